"""`check-proofs`: let a run prove its validation theorems, and let Lean judge."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import command, count, finished, reporter_of, show
from tangobench.commands.train import add_compute_options, compute_device
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    parser = command(
        commands, "check-proofs", _check,
        "generate a proof for each validation theorem of a lean run and let Lean judge it",
        "check-proofs sample-lean-tango-s17-101 --limit 20",
        "check-proofs RUN --checker toolchain --project ~/mathlib4",
        about="Adds the verdicts to OUT/results/RUN.json, which `tangobench eval` writes. "
        "`wasm` is a Lean without Mathlib that is fetched from npm; `toolchain` is the Lean of a "
        "project with Mathlib built. What cannot be checked is never counted as failed. A killed "
        "check resumes with the same command: RUN/proofs.jsonl holds what it has.",
    )  # fmt: skip
    parser.add_argument("run_folder", metavar="RUN", help="a folder in OUT/runs, or its name")
    parser.add_argument(
        "--out", default="out", metavar="DIR", help="where a bare name is looked up"
    )
    parser.add_argument(
        "--checker", choices=("wasm", "toolchain"), default="wasm", help="which Lean (wasm)"
    )
    parser.add_argument("--source", metavar="REPO", help="the commit's repository")
    parser.add_argument("--project", metavar="DIR", help="a built Lean project (toolchain)")
    parser.add_argument("--repl", metavar="DIR", help="a built REPL of its Lean (toolchain)")
    parser.add_argument("--limit", type=count, metavar="N", help="only the first N theorems")
    add_compute_options(parser)


def _check(args: argparse.Namespace) -> int:
    from tangobench.eval.proofs.check import check_proofs
    from tangobench.eval.proofs.log import ProofLog
    from tangobench.eval.scoring.result_files import read_result, write_result
    from tangobench.eval.scoring.results import add_extra, final_checkpoint, model_of, require_root
    from tangobench.model.training.provenance import provenance
    from tangobench.model.training.runs import find_run_folder
    from tangobench.model.training.train import dataset_of

    folder = find_run_folder(args.run_folder, args.out)
    path, trained, run = final_checkpoint(folder)
    out = folder.absolute().parents[1]
    result_file = out / "results" / f"{run.name}.json"
    if not result_file.exists():
        raise UsageError(
            f"{run.name} has no scores yet", kind="result-missing", fix=f"tangobench eval {folder}"
        )
    dataset = dataset_of(run, out)
    require_root(trained, dataset, path)
    report = check_proofs(
        model_of(path, trained, run, compute_device(args)),
        dataset,
        _checker(args),
        source=args.source,
        context=run.recipe.context,
        limit=args.limit,
        log=ProofLog(folder / "proofs.jsonl", checkpoint=trained.meta["tensors"]["sha256"]),
        reporter=reporter_of(args),
    )
    found = report.as_json()
    result = read_result(result_file)
    add_extra(result, "proof_check", found, provenance(compute_device(args)))
    write_result(result_file, result)
    interval = f" ({found['low']:.2%} to {found['high']:.2%})" if found["checked"] else ""
    lines = [f"proved     {found['proved']:,} of {found['checked']:,} checked proofs{interval}"]
    for outcome in ("failed", "unchecked"):
        lines += [f"{outcome:<10} {number:,} {why}" for why, number in found[outcome].items()]
    show(args, found, *lines, str(result_file))
    finished(args, f"checked {found['checked']:,} proofs", "tangobench tables")
    return 0


def _checker(args: argparse.Namespace) -> Any:
    if args.checker == "wasm":
        from tangobench.eval.proofs.wasm import WasmChecker

        return WasmChecker()
    from tangobench.eval.proofs.toolchain import ToolchainChecker

    if args.project is None:
        raise UsageError(
            "--checker toolchain needs --project",
            kind="usage",
            fix="name a Lean project whose Mathlib is built",
        )
    repl = Path(args.repl) if args.repl else None
    return ToolchainChecker(project=Path(args.project), repl=repl)
