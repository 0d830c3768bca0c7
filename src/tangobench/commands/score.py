"""Scores of trained runs: made, checked by Lean, and packed for a repository."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

from tangobench.cli import COMPUTE, EXTRAS, command, finished, reporter_of, show
from tangobench.commands.train import compute_device
from tangobench.errors import UsageError

_EVAL: Final = """
run_folder=RUN      a folder in OUT/runs, or its name
--out DIR =out      where a bare name is looked up
--tokens-at-once N  does not change the result (default: 4,096 on a CPU, 65,536 on a GPU)
--limit N           only N rows of each config; writes no result
--samples FILE      also write prompts, answers and targets of some rows (--limit, or 20) as
                    JSONL
--on FOLDER         also score a test set (dm_math_tests) by module: NLL and exact match
"""


@command("eval", _EVAL, EXTRAS, COMPUTE)
def _eval(args: argparse.Namespace) -> int:
    """Score a finished run on its validation rows.

    Writes OUT/results/RUN.json and prints the scores. What an earlier result of the same checkpoint
    held of exact match, probes and proofs is kept.

    examples:
      eval sample-dm_math-tango-s17-101 --exact-match
      eval out/runs/sample-dm_math-tango-s17-101 --limit 100 --samples answers.jsonl
    """
    reporter_of(args).say(f"scoring {args.run_folder} …")  # torch takes seconds to load
    from tangobench.eval.scoring.result_files import read_result
    from tangobench.eval.scoring.results import evaluate, score_on
    from tangobench.model.training.runs import find_run_folder

    folder = find_run_folder(args.run_folder, args.out)
    if args.limit is not None or args.samples is not None:
        found = _look(args, folder)
        if args.limit is not None:
            lines = _score_lines({"scores": found})
            return show(args, {"limit": args.limit, "scores": found}, *lines)
    device = compute_device(args)
    how: dict[str, Any] = {"tokens_at_once": args.tokens_at_once, "reporter": reporter_of(args)}
    how["device"] = device
    if args.on is not None:
        path = score_on(folder, args.on, **how)
    if args.on is None or args.exact_match or args.probes:
        path = evaluate(folder, match_answers=args.exact_match, probe=args.probes, **how)
    result = read_result(path)
    path = _from_here(path)
    finished(args, f"scored {folder.name}", f"tangobench tables {path.parent}")
    return show(args, result, *_score_lines(result), str(path))


def _from_here(path: Path) -> Path:
    """The path as a reader types it: relative where it is below the working folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _look(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Scores of `--limit` rows, and the file of samples."""
    from tangobench.eval.scoring.generate import samples, spaced
    from tangobench.eval.scoring.nll import score
    from tangobench.eval.scoring.results import final_checkpoint
    from tangobench.model.training.loader import Stream, configs_of
    from tangobench.pipeline.core.files import write_atomic

    found = final_checkpoint(folder)
    dataset, model, recipe = found.dataset(), found.model(compute_device(args)), found.run.recipe
    scores, lines = {}, []
    for config in configs_of(dataset):
        stream = Stream(dataset, config, "validation", context=recipe.context)
        if args.limit is not None:
            how: dict[str, Any] = {"precision": recipe.precision, "reporter": reporter_of(args)}
            how |= {"rows": spaced(stream, args.limit), "tokens_at_once": args.tokens_at_once}
            scored = score(model, stream, **how)
            scores[config] = scored.tally().as_json()
        if args.samples is not None:
            for sample in samples(model, stream, args.limit or 20, dataset.tokenizer):
                lines.append(json.dumps({"config": config, **sample}) + "\n")
        stream.close()
    if args.samples is not None:
        write_atomic(args.samples, "".join(lines).encode())
        reporter_of(args).say(f"wrote {len(lines)} samples to {args.samples}")
    return scores


def _score_lines(result: dict[str, Any]) -> list[str]:
    lines = []
    for name, found in result["scores"].items():
        bits = found.get("bits_per_byte")
        per_byte = f", {bits:.4f} bits per byte" if bits is not None else ""
        targets = f" over {found['count']:,} targets" if "count" in found else ""
        lines.append(f"{name:<12} {found['nll']:.4f} nats{per_byte}{targets}")
    if "exact_match" in result:
        total = result["exact_match"]["shares"]["all"]
        shown = "exact match  {share:.2%} ({low:.2%} to {high:.2%}) of {tried:,} answers"
        lines.append(shown.format_map(total))
    for name, found in result.get("tests", {}).items():
        for config, tally in found["scores"].items():
            modules = found["modules"][config].values()
            right, tried = (sum(m[key] for m in modules) for key in ("correct", "tried"))
            share = f"{right / tried:.2%} of {tried:,}"
            lines.append(f"{name}, {config}: {tally['nll']:.4f} nats, {share}")
    for metric, probes in result.get("probes", {}).items():
        for name, probe in probes.items():
            lines.append(f"{metric} by {name}:")
            for group, found in probe["groups"].items():
                nll = "–" if found["nll"] is None else f"{found['nll']:.4f} nats"
                lines.append(f"  {group:<34} {nll} in {found['rows']:,} rows")
    return lines


_PROOFS: Final = """
run_folder=RUN  a folder in OUT/runs, or its name
--out DIR =out  where a bare name is looked up
--checker {wasm,toolchain} =wasm  which Lean (wasm)
--source REPO   the commit's repository
--project DIR   a built Lean project (toolchain)
--repl DIR      a built REPL of its Lean (toolchain)
--limit N       only the first N theorems
"""


@command("check-proofs", _PROOFS, COMPUTE)
def _check_proofs(args: argparse.Namespace) -> int:
    """Generate a proof for each validation theorem of a lean run and let Lean judge it.

    Adds the verdicts to OUT/results/RUN.json, which `tangobench eval` writes. `wasm` is a Lean
    without Mathlib that is fetched from npm; `toolchain` is the Lean of a project with Mathlib
    built. What cannot be checked is never counted as failed. A killed check resumes with the same
    command: RUN/proofs.jsonl holds what it has.

    examples:
      check-proofs sample-lean-tango-s17-101 --limit 20
      check-proofs RUN --checker toolchain --project ~/mathlib4
    """
    reporter_of(args).say(f"checking proofs of {args.run_folder} …")
    from tangobench.eval.proofs.check import ProofLog, check_proofs
    from tangobench.eval.scoring.result_files import read_result, write_result
    from tangobench.eval.scoring.results import add_extra, final_checkpoint
    from tangobench.model.training.runs import find_run_folder, provenance

    folder = find_run_folder(args.run_folder, args.out)
    run, device = final_checkpoint(folder), compute_device(args)
    if not run.result.exists():
        fix = f"tangobench eval {folder}"
        raise UsageError(f"{run.run.name} has no scores yet", kind="result-missing", fix=fix)
    found = check_proofs(
        run.model(device),
        run.dataset(),
        _checker(args),
        source=args.source,
        context=run.run.recipe.context,
        limit=args.limit,
        log=ProofLog(folder / "proofs.jsonl", checkpoint=run.sha256),
        reporter=reporter_of(args),
    )
    result = read_result(run.result)
    add_extra(result, "proof_check", found, provenance(device))
    write_result(run.result, result)
    path = _from_here(run.result)
    finished(args, f"checked {found['checked']:,} proofs", f"tangobench tables {path.parent}")
    return show(args, found, *_verdict_lines(found), str(path))


def _verdict_lines(found: dict[str, Any]) -> list[str]:
    interval = f" ({found['low']:.2%} to {found['high']:.2%})" if found["checked"] else ""
    lines = [f"proved     {found['proved']:,} of {found['checked']:,} checked proofs{interval}"]
    for outcome in ("failed", "unchecked"):
        lines += [f"{outcome:<10} {number:,} {why}" for why, number in found[outcome].items()]
    return lines


def _checker(args: argparse.Namespace) -> Any:
    if args.checker == "wasm":
        from tangobench.eval.proofs.wasm import WasmChecker

        return WasmChecker()
    from tangobench.eval.proofs.toolchain import ToolchainChecker

    if args.project is None:
        raise UsageError(
            "--checker toolchain needs --project", fix="name a Lean project whose Mathlib is built"
        )
    return ToolchainChecker(project=args.project, repl=args.repl)


@command("results pack", folders=Path)
def _pack(args: argparse.Namespace) -> int:
    """Add results to DIR/runs.jsonl and DIR/tallies.parquet.

    One checksummed line per run, and all tallies in one Parquet file. Runs that are packed in DIR
    already stay, unless a folder holds a newer result of the same run.

    options:
      folders=FOLDER*    such as OUT/results
      --to DIR =results  default: results

    examples:
      results pack out/results --to results
    """
    from tangobench.eval.comparison.recall import pack_recall
    from tangobench.eval.scoring.result_files import pack, read_results

    require_folders(args.folders)
    results = read_results([*args.folders, args.to])
    pack(args.to, results)
    pack_recall(args.folders, args.to)
    return _say(args, "packed", len(results), args.to)


def require_folders(folders: list[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"no folder {folder}", fix="name a folder of results")


@command("results predictions", folders=Path)
def _predictions(args: argparse.Namespace) -> int:
    """Compare the predictions made for the paper's size with what was measured.

    options:
      folders=FOLDER*  more results

    examples:
      results predictions out/results
    """
    from tangobench.eval.comparison.design import prediction_table, read_predictions
    from tangobench.eval.render import render
    from tangobench.eval.scoring.result_files import read_results, shipped_results

    found = read_predictions()
    table = prediction_table(found, read_results([*args.folders, shipped_results()]))
    return show(args, found, render([table], "markdown").rstrip("\n"))


@command("results unpack", folder=Path)
def _unpack(args: argparse.Namespace) -> int:
    """Write one file per run into FOLDER.

    options:
      folder=FOLDER  such as OUT/results
      --source DIR   packed results (default: the package's own)

    examples:
      results unpack out/results
    """
    from tangobench.eval.scoring.result_files import shipped_results, unpack, write_result

    results = list(unpack(args.source or shipped_results()))
    for result in results:
        path = args.folder / f"{result['run']}.json"
        if not path.exists():
            write_result(path, result)
    return _say(args, "unpacked", len(results), args.folder)


def _say(args: argparse.Namespace, verb: str, runs: int, folder: Path) -> int:
    from tangobench.pipeline.core.progress import units

    finished(args, f"{verb} {units(runs, 'run')}", f"tangobench tables {folder}")
    return show(args, {"runs": runs, "folder": str(folder)}, f"{units(runs, 'run')} in {folder}")
