"""`doctor` checks this machine; `model info` and `model speed` give the models' costs."""

from __future__ import annotations

import argparse
import functools
import operator
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tangobench.catalogue import CATALOGUE
from tangobench.cli import command, count, emit_json, finished, reporter_of, show
from tangobench.commands.train import checked_device
from tangobench.errors import ResourceError, TangobenchError

if TYPE_CHECKING:
    from importlib import metadata

    from tangobench.model.config import ModelConfig

_LENGTHS: Final = (256, 2048, 8192, 16_384)
_COLUMNS: Final = ("arch", "width", "nonembedding", "total", "MACs", "scaling", "kept", "decode")
_MARKS: Final = {"ok": "✓", "warn": "!", "bad": "✗"}
_REQUIRED: Final = (
    *("datasets", "tiktoken", "datasketch", "pyarrow", "polars", "gitpython"),
    *("prefect", "torch", "mathematics_dataset", "can_ada"),
)
_OPTIONAL: Final = {"gigatoken": "fast", "dask": "dask", "mlcroissant": "cards", "s3fs": "hub"}


class Check(NamedTuple):
    """One line of the doctor's report."""

    name: str
    state: Literal["ok", "warn", "bad"]
    found: str
    fix: str = ""


@command("doctor")
def _doctor(args: argparse.Namespace) -> int:
    """Check this machine; each red line comes with its fix.

    Versions, vocabulary, git, disk and device. Exit code 7 if something needed is missing.

    options:
      --out DIR =out  where data would go
      --licences      instead: every installed package and its licence

    examples:
      doctor --licences
    """
    if args.licences:
        from importlib import metadata

        rows = [_licence(package) for package in metadata.distributions()]
        rows.sort(key=operator.itemgetter("name", "version"))
        form = "{name:<32} {version:<16} {licence}"
        return show(args, rows, *map(form.format_map, rows))
    fine = sys.version_info >= (3, 11)
    python = _check("python", fine, platform.python_version(), "install 3.11+")
    checks = [python, *_packages(), *_constraints(), _vocabulary(), _git()]
    checks += [_disk(args.out), *_device()]
    fixes = [f"\n    {c.fix}" if c.fix else "" for c in checks]
    lines = [f"{_MARKS[c.state]} {c.name:<22} {c.found}" for c in checks]
    show(args, [c._asdict() for c in checks], *map(operator.add, lines, fixes))
    bad = sum(check.state == "bad" for check in checks)
    done = f"{len(checks) - bad} of {len(checks)} checks passed"
    finished(args, done, "the fixes above" if bad else "tangobench build lean")
    return ResourceError.exit_code if bad else 0


def _licence(package: metadata.Distribution) -> dict[str, str]:
    """A package's licence; one that is a whole text is cut to its first line."""
    about = package.metadata.json
    kinds = [c.rpartition(" :: ")[2] for c in about.get("classifier", []) if "License" in c]
    text = str(about.get("license", "")).strip() or "not stated"
    stated = about.get("license_expression") or ", ".join(kinds) or text.splitlines()[0]
    return {"name": package.name, "version": package.version, "licence": str(stated)}


def _check(name: str, fine: bool, found: str, fix: str, *, needed: bool = True) -> Check:
    if fine:
        return Check(name, "ok", found)
    return Check(name, "bad" if needed else "warn", found, fix)


def _packages() -> list[Check]:
    fixes = dict.fromkeys(_REQUIRED, "run `make setup`")
    fixes |= {n: f"optional: pip install 'tangobench[{e}]'" for n, e in _OPTIONAL.items()}
    found = {name: _version(name) or "" for name in fixes}
    return [
        _check(n, bool(v), v or "not installed", fixes[n], needed=n in _REQUIRED)
        for n, v in found.items()
    ]


def _version(name: str) -> str | None:
    return _installed().get(_plain(name))


@functools.cache
def _installed() -> dict[str, str]:
    """Plain names and versions; only the head of each METADATA is parsed, once (0.1 s saved)."""
    from importlib import metadata  # with email and sockets: not in every command

    found: dict[str, str] = {}
    for package in metadata.distributions():
        head = (package.read_text("METADATA") or "").partition("\n\n")[0]
        about = dict(line.partition(": ")[::2] for line in head.splitlines())
        name = about.get("Name") or package.name
        found.setdefault(_plain(name), about.get("Version") or package.version)  # first on the path
    return found


def _constraints() -> list[Check]:
    """Compare with constraints.txt where the project's own folder is around."""
    path = Path(__file__).resolve().parents[3] / "constraints.txt"
    if not path.is_file():
        return [Check("constraints", "warn", "no constraints.txt beside the package")]
    other, covered = [], {"tangobench", "pip", "setuptools"}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, equals, tested = line.strip().partition("==")
        if equals:
            covered.add(_plain(name))
            if (version := _version(name) or tested).split("+")[0] != tested:
                other.append(f"{name} {version} (tested: {tested})")
    same = _some(other) or "every installed package has the tested version"
    found = [
        _check("constraints", not other, same, "run `make setup` for the tested set", needed=False)
    ]
    if unknown := sorted(_installed().keys() - covered):
        fix = "fine if you installed them yourself; nothing here was tested with them"
        found.append(Check("beyond constraints", "warn", _some(unknown), fix))
    return found


def _plain(name: str) -> str:
    """A package's name in the one spelling that compares equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")


def _vocabulary() -> Check:
    try:
        from tangobench.pipeline.tokenizer import base

        for file in (base.MERGES, base.ENCODER):  # both are checked against their sha256
            base.read_vocabulary_file(file)
        engine = "reference" if _version("gigatoken") is None else "fast"
        found = f"GPT-2, {base.VOCABULARY_SIZE:,} entries, engine {engine}"
        return Check("vocabulary", "ok", found)
    except TangobenchError as error:
        return Check("vocabulary", "bad", error.message, error.fix)
    except ImportError as error:
        return Check("vocabulary", "bad", str(error), "run `make setup`")


def _git() -> Check:
    if shutil.which("git") is None:
        return Check("git", "bad", "not found", "install git (needed for Lean)")
    version = subprocess.run(["git", "--version"], capture_output=True, text=True, check=False)
    return Check("git", "ok", version.stdout.strip().removeprefix("git version "))


def _disk(out: Path) -> Check:
    from tangobench.pipeline.core.files import free_bytes
    from tangobench.pipeline.core.progress import size

    free = free_bytes(out.absolute())
    fix = "the paper profiles need about 20 GB; samples need 1 GB"
    return _check("disk", free > 20e9, f"{size(free)} free for {out}", fix, needed=False)


def _device() -> list[Check]:
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidiactl").exists():
        return [Check("device", "ok", f"CPU, {os.cpu_count()} cores")]  # torch takes 1.4 s to load
    try:
        import torch
    except (ImportError, OSError) as error:
        return [Check("device", "bad", f"torch does not load: {error}", "run `make setup`")]
    if not torch.cuda.is_available():
        fix = "torch sees no GPU: install a CUDA build of it, or use the CPU"
        return [Check("device", "warn", "CPU, although this machine has an NVIDIA driver", fix)]
    return [Check("device", "ok", torch.cuda.get_device_name(0))]


@command("model info", f"--dataset DATASET =fineweb  {' or '.join(CATALOGUE)}")
def _info(args: argparse.Namespace) -> int:
    """Parameters, operations and memory at the paper's sizes.

    Parameters, operations and the memory of decoding by the paper's formulas. --trace also runs the
    real module: operations, and activations kept for training.

    options:
      --arch NAME =all  one of the six, or all
      --depth N =4      block applications
      --trace           also trace the real module (needs torch, seconds)

    examples:
      model info --arch tango --dataset lean
    """
    from tangobench.eval.render import Table, render
    from tangobench.model import config as model_config

    archs = model_config.ARCHS if args.arch == "all" else (args.arch,)
    configs = [model_config.published(arch, args.dataset, args.depth) for arch in archs]
    if args.trace:
        reporter_of(args).say("tracing the modules …")  # torch takes seconds to load
    rows = [_describe(config, args.dataset, trace=args.trace) for config in configs]
    table = Table(columns=_COLUMNS, rows=[_line(row) for row in rows])
    note = (
        f"MACs of one forward pass over {configs[0].context:,} tokens; kept: activations for the "
        "backward pass (--trace measures them); decode: state of one sequence"
    )
    return show(args, rows, *render([table], "text").splitlines()[1:], note)


def _describe(config: ModelConfig, dataset: str, *, trace: bool) -> dict[str, Any]:
    """One architecture as a JSON object; MACs are for one sequence at the dataset's context."""
    from tangobench.model import config as costs

    terms = costs.formula(config, config.context)
    traced: dict[str, Any] = {}
    if trace:  # needs torch, and seconds
        from tangobench.eval.costs import macs

        traced["macs_traced_terms"] = macs.traced(config, config.context)
        traced["kept_activation_bytes"] = macs.kept_activation_bytes(config, config.context)
    sizes = ("nonembedding_params", "total_params", "target_params", "deviation")
    return {
        "arch": config.arch,
        "dataset": dataset,
        **{name: getattr(config, name) for name in ("depth", "context", "d_model")},
        "heads": 1 if config.is_unit else config.heads,
        "width": config.width,
        "shared_block": config.shared,
        **{name: getattr(config, name) for name in sizes},
        "macs": sum(terms.values()),
        "macs_printed": costs.printed(sum(terms.values())),
        "macs_terms": terms,
        **traced,
        "macs_per_token": {str(t): sum(costs.formula(config, t).values()) // t for t in _LENGTHS},
        "scaling": costs.SCALING[config.arch],
        "decode_state_bytes": 4 * costs.decode_state_values(config, config.context),
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


_SPEED: Final = """
--arch NAME =all    one of the six, or all
--lengths T+        tokens (default: 256 1024 4096)
--size {mini,published} =mini
                    mini: 0.8M parameters (default); published: 44M
--device DEVICE =cpu  cpu (default) or cuda
--kernel NAME       auto, strips, batched or triton: the same function at another speed
                    (default: TANGOBENCH_KERNEL or auto)
--precision {fp32,bf16} =fp32  default: fp32
--rounds N =1       measure everything N times, one after the other, and keep the fastest of
                    each: for a machine with slow phases
--save FILE         also write the results to a JSON file
"""


@command("model speed", _SPEED, lengths=count)
def _speed(args: argparse.Namespace) -> int:
    """Tokens/s and peak memory of training and decoding on this machine.

    Each measurement is a process of its own, with the paper's operation count beside it. One that
    shared its core with other work is marked as disturbed. The paper itself reports neither speed
    nor memory.

    examples:
      model speed --arch tango --lengths 256 1024 --save speed.json
    """
    reporter_of(args).say("measuring, in a process per case …")
    from tangobench.eval.costs import speed, timing
    from tangobench.model.config import ARCHS
    from tangobench.model.kernels import crossgate
    from tangobench.pipeline.core.files import write_atomic
    from tangobench.pipeline.core.hashing import case_json

    crossgate.request(args.kernel)
    device = checked_device(args.device)
    fields = {"size": args.size, "device": device, "precision": args.precision}
    archs = ARCHS if args.arch == "all" else (args.arch,)
    chosen = speed.jobs(archs, args.lengths or speed.LENGTHS, **fields)
    best: dict[Any, dict[str, Any]] = {}
    for job in chosen * args.rounds:
        case = {**speed.measure(job), "rounds": args.rounds}
        best[job] = max(case, best.get(job, case), key=lambda case: case["tokens_per_second"])
        if not args.json and not args.quiet:
            print(_speed_line(case), flush=True)
        report = {"machine": timing.machine(device), "cases": list(best.values())}
        if args.save:  # after each case: an interrupted run keeps what it has measured
            write_atomic(args.save, case_json(report).encode())
    if args.json:
        emit_json(report)
    finished(args, f"measured {len(best)} cases" + (f" into {args.save}" if args.save else ""))
    return 0


def _speed_line(case: dict[str, Any]) -> str:
    macs = case["forward_macs_per_token"]  # None of an architecture without a formula
    return (
        f"{case['arch']:<24}{case['task']:<8}T {case['length']:>7,}"
        f"{case['tokens_per_second']:>12,.0f} tokens/s{case['peak_bytes'] / 1e6:>10,.0f} MB"
        f"{'–' if macs is None else f'{macs / 1e6:,.1f}M':>11} MACs/token"
        f"{'  disturbed: measure again' if case['disturbed'] else ''}"
    )
