"""`model info`: parameters, operations and memory of the six architectures."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from tangobench.commands._common import add_output_options, count, emit_json

if TYPE_CHECKING:
    from tangobench.model.config import ModelConfig

_LENGTHS: Final = (256, 2048, 8192, 16_384)
_COLUMNS: Final = ("arch", "width", "nonembedding", "total", "MACs", "scaling", "kept", "decode")


def add(commands: Any) -> None:
    """Add the command to the program."""
    model = commands.add_parser("model", help="the six architectures: sizes and costs")
    actions = model.add_subparsers(dest="action", metavar="ACTION", required=True)
    info = actions.add_parser(
        "info",
        help="parameters, operations and memory at the paper's sizes",
        description="Parameters are counted from the real module, operations by the paper's "
        "formulas (and traced with --trace), memory for one sequence at the dataset's context.",
    )
    info.add_argument("--arch", default="all", metavar="NAME", help="one of the six, or all")
    info.add_argument("--dataset", default="fineweb", help="fineweb, lean or dm_math")
    info.add_argument("--depth", type=count, default=4, metavar="N", help="block applications")
    info.add_argument("--trace", action="store_true", help="also count a dense traced run")
    add_output_options(info)
    info.set_defaults(run=_info)


def _info(args: argparse.Namespace) -> int:
    from tangobench.model import config as model_config

    archs = model_config.ARCHS if args.arch == "all" else (args.arch,)
    configs = [model_config.published(arch, args.dataset, args.depth) for arch in archs]
    rows = [describe(config, args.dataset, trace=args.trace) for config in configs]
    if args.json:
        emit_json(rows)
        return 0
    table = [_COLUMNS, *(_line(row) for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(_COLUMNS))]
    for line in table:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        print("  ".join(cells))
    return 0


def describe(config: ModelConfig, dataset: str, *, trace: bool) -> dict[str, Any]:
    """One architecture as a JSON object; MACs are for one sequence at the dataset's context."""
    from tangobench.eval import macs, params

    counts = params.count(config)
    terms = macs.formula(config, config.context)
    traced = {"macs_traced_terms": macs.traced(config, config.context)} if trace else {}
    return {
        "arch": config.arch,
        "dataset": dataset,
        "depth": config.depth,
        "context": config.context,
        "d_model": config.d_model,
        "heads": 1 if config.gated_attention_unit else config.heads,
        "width": config.width,
        "shared_block": config.shared,
        "nonembedding_params": counts.nonembedding,
        "total_params": counts.total,
        "target_params": config.target_params,
        "deviation": config.deviation,
        "macs": sum(terms.values()),
        "macs_printed": macs.printed(sum(terms.values())),
        "macs_terms": terms,
        **traced,
        "macs_per_token": {str(t): sum(macs.formula(config, t).values()) // t for t in _LENGTHS},
        "scaling": macs.SCALING[config.arch],
        "kept_activation_bytes": params.kept_activation_bytes(config, config.context),
        "decode_state_bytes": 4 * params.decode_state_values(config, config.context),
    }


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["arch"],
        f"{row['width']:,}",
        f"{row['nonembedding_params']:,}",
        f"{row['total_params']:,}",
        row["macs_printed"],
        row["scaling"],
        f"{row['kept_activation_bytes'] / 1e6:,.0f} MB",
        f"{row['decode_state_bytes'] / 1e6:,.0f} MB",
    )
