"""`model info` and `model speed`: sizes, operations, wall-clock and memory of the six models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tangobench.catalogue import CATALOGUE
from tangobench.commands._common import command, count, emit_json, finished, show
from tangobench.commands.train import add_kernel_option

if TYPE_CHECKING:
    from tangobench.model.config import ModelConfig

_LENGTHS: Final = (256, 2048, 8192, 16_384)
_COLUMNS: Final = ("arch", "width", "nonembedding", "total", "MACs", "scaling", "kept", "decode")


def add(commands: Any) -> None:
    """Add the command to the program."""
    model = command(commands, "model", None, "the six architectures: sizes and costs")
    actions = model.add_subparsers(dest="action", metavar="ACTION", required=True)
    info = command(
        actions, "info", _info, "parameters, operations and memory at the paper's sizes",
        "model info --arch tango --dataset lean",
        about="Parameters, operations and the memory of decoding by the paper's formulas. "
        "--trace also runs the real module: operations, and activations kept for training.",
    )  # fmt: skip
    info.add_argument("--arch", default="all", metavar="NAME", help="one of the six, or all")
    info.add_argument("--dataset", default="fineweb", help=" or ".join(CATALOGUE))
    info.add_argument("--depth", type=count, default=4, metavar="N", help="block applications")
    info.add_argument(
        "--trace", action="store_true", help="also trace the real module (needs torch, seconds)"
    )
    _add_speed(actions)


def _add_speed(actions: Any) -> None:
    speed = command(
        actions, "speed", _speed,
        "tokens/s and peak memory of training and decoding on this machine",
        "model speed --arch tango --lengths 256 1024 --save speed.json",
        about="Each measurement is a process of its own, with the paper's operation count beside "
        "it. One that shared its core with other work is marked as disturbed. The paper itself "
        "reports neither speed nor memory.",
    )  # fmt: skip
    speed.add_argument("--arch", default="all", metavar="NAME", help="one of the six, or all")
    speed.add_argument(
        "--lengths", type=count, nargs="+", metavar="T", help="tokens (default: 256 1024 4096)"
    )
    speed.add_argument(
        "--size", default="mini", help="mini: 0.8M parameters (default); published: 44M"
    )
    speed.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    add_kernel_option(speed)
    speed.add_argument("--precision", default="fp32", help="fp32 (default) or bf16")
    speed.add_argument(
        "--rounds", type=count, default=1, metavar="N",
        help="measure everything N times, one after the other, and keep the fastest of each: "
        "for a machine with slow phases",
    )  # fmt: skip
    speed.add_argument("--save", metavar="FILE", help="also write the results to a JSON file")


def _info(args: argparse.Namespace) -> int:
    from tangobench.model import config as model_config

    archs = model_config.ARCHS if args.arch == "all" else (args.arch,)
    configs = [model_config.published(arch, args.dataset, args.depth) for arch in archs]
    rows = [describe(config, args.dataset, trace=args.trace) for config in configs]
    table = [_COLUMNS, *(_line(row) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(_COLUMNS))]
    cells = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in table]
    return show(args, rows, *map("  ".join, cells))


def describe(config: ModelConfig, dataset: str, *, trace: bool) -> dict[str, Any]:
    """One architecture as a JSON object; MACs are for one sequence at the dataset's context."""
    from tangobench.model import macs

    terms = macs.formula(config, config.context)
    traced = _traced(config) if trace else {}
    return {
        "arch": config.arch,
        "dataset": dataset,
        "depth": config.depth,
        "context": config.context,
        "d_model": config.d_model,
        "heads": 1 if config.gated_attention_unit else config.heads,
        "width": config.width,
        "shared_block": config.shared,
        "nonembedding_params": config.nonembedding_params,
        "total_params": config.total_params,
        "target_params": config.target_params,
        "deviation": config.deviation,
        "macs": sum(terms.values()),
        "macs_printed": macs.printed(sum(terms.values())),
        "macs_terms": terms,
        **traced,
        "macs_per_token": {str(t): sum(macs.formula(config, t).values()) // t for t in _LENGTHS},
        "scaling": macs.SCALING[config.arch],
        "decode_state_bytes": 4 * macs.decode_state_values(config, config.context),
    }


def _traced(config: ModelConfig) -> dict[str, Any]:
    """Operations and kept activations of the real module; needs torch and seconds."""
    from tangobench.eval.costs import macs, params

    return {
        "macs_traced_terms": macs.traced(config, config.context),
        "kept_activation_bytes": params.kept_activation_bytes(config, config.context),
    }


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["arch"],
        f"{row['width']:,}",
        f"{row['nonembedding_params']:,}",
        f"{row['total_params']:,}",
        row["macs_printed"],
        row["scaling"],
        f"{row['kept_activation_bytes'] / 1e6:,.0f} MB" if "kept_activation_bytes" in row else "–",
        f"{row['decode_state_bytes'] / 1e6:,.0f} MB",
    )


def _speed(args: argparse.Namespace) -> int:
    from tangobench.eval.costs import speed
    from tangobench.model.config import ARCHS
    from tangobench.model.kernels import select
    from tangobench.pipeline.core.files import write_atomic
    from tangobench.pipeline.core.sealed import case_json

    select.request(args.kernel)
    fields = {"size": args.size, "device": args.device, "precision": args.precision}
    archs = ARCHS if args.arch == "all" else (args.arch,)
    chosen = list(speed.jobs(archs, args.lengths or speed.LENGTHS, **fields))
    best: dict[Any, dict[str, Any]] = {}
    for job in chosen * args.rounds:
        case = {**speed.measure(job), "rounds": args.rounds}
        best[job] = max(case, best.get(job, case), key=lambda case: case["tokens_per_second"])
        if not args.json and not args.quiet:
            print(_speed_line(case), flush=True)
        report = {"machine": speed.machine(args.device), "cases": list(best.values())}
        if args.save:  # after each case: an interrupted run keeps what it has measured
            write_atomic(Path(args.save), case_json(report).encode())
    if args.json:
        emit_json(report)
    finished(args, f"measured {len(best)} cases" + (f" into {args.save}" if args.save else ""))
    return 0


def _speed_line(case: dict[str, Any]) -> str:
    return (
        f"{case['arch']:<24}{case['task']:<8}T {case['length']:>7,}"
        f"{case['tokens_per_second']:>12,.0f} tokens/s{case['peak_bytes'] / 1e6:>10,.0f} MB"
        f"{case['forward_macs_per_token'] / 1e6:>10,.1f}M MACs/token"
        f"{'  disturbed: measure again' if case['disturbed'] else ''}"
    )
