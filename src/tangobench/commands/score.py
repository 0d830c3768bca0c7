"""`eval`, `tables` and `replicate`: scoring runs and comparing them."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tangobench.commands._common import add_output_options, emit_json
from tangobench.commands.train import add_compute_options, compute_device
from tangobench.errors import UsageError

if TYPE_CHECKING:
    from tangobench.eval.render import Table

FORMS: Final = ("markdown", "latex", "csv", "html")


def add(commands: Any) -> None:
    """Add the commands to the program."""
    scorer = commands.add_parser(
        "eval",
        help="score a finished run on its validation rows",
        description="Writes OUT/results/RUN.json and prints the scores. What an earlier result of "
        "the same checkpoint held of exact match, probes and proofs is kept.",
    )
    scorer.add_argument("run_folder", metavar="RUN", help="a folder in OUT/runs, or its name")
    scorer.add_argument(
        "--out", default="out", metavar="DIR", help="where a bare name is looked up"
    )
    scorer.add_argument(
        "--tokens-at-once", type=int, default=4096, metavar="N", help="does not change the result"
    )
    _add_extras(scorer)
    add_compute_options(scorer)
    add_output_options(scorer)
    scorer.set_defaults(run=_eval)
    tabler = commands.add_parser(
        "tables",
        help="the paper's five tables, ours beside the paper's",
        description="After the paper's tables come small replications with the paper's orderings "
        "judged, then what the paper does not report, as far as results hold it: bits per byte, "
        "exact match, probes, checked proofs, ablations.",
    )
    tabler.add_argument(
        "folders",
        nargs="*",
        type=Path,
        metavar="RESULTS",
        help="folders of results (default: out/results and results; the first that has a run wins)",
    )
    tabler.add_argument(
        "--speed",
        type=Path,
        metavar="FILE",
        help="also what `tangobench model speed --save FILE` measured",
    )
    tabler.add_argument("--format", choices=FORMS, default="markdown")
    add_output_options(tabler)
    tabler.set_defaults(run=_tables)
    _add_replicate(commands)


def _add_extras(parser: argparse.ArgumentParser) -> None:
    """What can be measured beyond the NLL."""
    parser.add_argument(
        "--exact-match",
        action="store_true",
        help="also generate an answer to every question (dm_math) and compare it",
    )
    parser.add_argument(
        "--probes",
        action="store_true",
        help="also give the NLL by what training holds of a validation row",
    )


def _add_replicate(commands: Any) -> None:
    repeater = commands.add_parser(
        "replicate",
        help="train and score all six models at a small size; run again to resume",
        description="Builds the dataset if it is not in OUT, then trains six architectures with "
        "three seed pairs each and judges the paper's orderings.",
    )
    repeater.add_argument("--profile", choices=("sample", "mini"), default="sample")
    repeater.add_argument("--dataset", choices=("dm_math", "lean", "fineweb"), default="dm_math")
    repeater.add_argument("--out", default="out", metavar="DIR", help="parent folder")
    repeater.add_argument("--source", metavar="WHERE", help="input for building the dataset")
    repeater.add_argument("--workers", type=int, default=2, metavar="N", help="runs side by side")
    repeater.add_argument(
        "--ablations",
        action="store_true",
        help="instead: TANGO and WANGO with one part changed, against the whole models",
    )
    _add_extras(repeater)
    repeater.add_argument("--format", choices=FORMS, default="markdown")
    add_output_options(repeater)
    repeater.set_defaults(run=_replicate)


def _eval(args: argparse.Namespace) -> int:
    from tangobench.eval.results import evaluate, read_result
    from tangobench.pipeline.progress import Reporter

    if args.tokens_at_once < 1:
        raise UsageError("--tokens-at-once is below 1", kind="usage", fix="use 1 or more")
    folder = Path(args.run_folder)
    if not folder.is_dir():
        folder = Path(args.out) / "runs" / args.run_folder
    path = evaluate(
        folder,
        device=compute_device(args),
        tokens_at_once=args.tokens_at_once,
        match_answers=args.exact_match,
        probe=args.probes,
        reporter=Reporter(quiet=args.quiet or args.json),
    )
    result = read_result(path)
    if args.json:
        emit_json(result)
        return 0
    _print_scores(result)
    print(path)
    return 0


def _print_scores(result: dict[str, Any]) -> None:
    for name, found in result["scores"].items():
        bits = found.get("bits_per_byte")
        per_byte = f", {bits:.4f} bits per byte" if bits is not None else ""
        targets = f" over {found['count']:,} targets" if "count" in found else ""
        print(f"{name:<12} {found['nll']:.4f} nats{per_byte}{targets}")
    if "exact_match" in result:
        total = result["exact_match"]["shares"]["all"]
        print(
            f"exact match  {total['share']:.2%} ({total['low']:.2%} to {total['high']:.2%})"
            f" of {total['tried']:,} answers"
        )
    for metric, probes in result.get("probes", {}).items():
        for name, probe in probes.items():
            print(f"{metric} by {name}:")
            for group, found in probe["groups"].items():
                nll = "–" if found["nll"] is None else f"{found['nll']:.4f} nats"
                print(f"  {group:<34} {nll} in {found['rows']:,} rows")


def _tables(args: argparse.Namespace) -> int:
    from tangobench.eval.beyond import beyond_tables
    from tangobench.eval.render import render
    from tangobench.eval.replication_tables import replication_tables
    from tangobench.eval.results import read_results
    from tangobench.eval.tables import paper_tables

    for folder in args.folders:
        if not folder.is_dir():
            raise UsageError(f"no folder {folder}", kind="usage", fix="name a folder of results")
    folders = args.folders or [Path("out/results"), Path("results")]
    results = read_results(folders)
    tables = [*paper_tables(results), *replication_tables(results), *beyond_tables(results)]
    tables += _speeds(args.speed) if args.speed else []
    if args.json:
        emit_json([dataclasses.asdict(table) for table in tables])
    else:
        print(render(tables, args.format), end="")
    return 0


def _speeds(path: Path) -> list[Table]:
    from tangobench.eval.speed_tables import speed_tables

    try:
        return list(speed_tables(json.loads(path.read_bytes())))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(
            f"{path} holds no measurements: {type(error).__name__}: {error}",
            kind="usage",
            fix=f"tangobench model speed --save {path}",
        ) from None


def _replicate(args: argparse.Namespace) -> int:
    from tangobench.eval.ablations import ablate, ablation_tables
    from tangobench.eval.render import render
    from tangobench.eval.replicate import replicate
    from tangobench.eval.replication_tables import summary_tables
    from tangobench.pipeline.progress import Reporter

    if args.workers < 1:
        raise UsageError(f"--workers is {args.workers}", kind="workers", fix="use 1 or more")
    wanted = {"exact_match": args.exact_match, "probes": args.probes}
    make = ablate if args.ablations else replicate
    summary = make(
        args.profile,
        args.dataset,
        Path(args.out),
        workers=args.workers,
        source=args.source,
        extras=tuple(name for name, asked in wanted.items() if asked),
        reporter=Reporter(quiet=args.quiet or args.json),
    )
    if args.json:
        emit_json(summary)
        return 0
    tables = (
        list(ablation_tables(summary["ablations"])) if args.ablations else summary_tables(summary)
    )
    print(render(tables, args.format), end="")
    return 0
