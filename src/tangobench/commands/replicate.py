"""`replicate`: all runs of a comparison, on this machine's cores or on several devices."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from tangobench.catalogue import CATALOGUE
from tangobench.commands._common import command, count, finished, reporter_of, show
from tangobench.commands.score import STUDY_NAMES, add_extras, add_format
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    repeater = command(
        commands, "replicate", _replicate,
        "train and score all six models at a small size; run again to resume",
        "replicate                                     # the sample, minutes",
        "replicate --profile mini --dataset lean --source ~/mathlib4 --workers 8",
        "replicate --profile paper --devices cuda:0,cuda:1 --only 'fineweb-*'",
        "replicate --study sharing --plan",
        about="Builds the dataset if it is not in OUT, then trains six architectures with "
        "three seed pairs each and judges the paper's orderings.",
    )  # fmt: skip
    repeater.add_argument(
        "--profile",
        choices=("sample", "mini", "paper"),
        help="default: sample; of a study: mini. paper: the published 90 runs, on --devices",
    )
    repeater.add_argument(
        "--dataset", choices=CATALOGUE, help="what to train on (dm_math; of the paper: all three)"
    )
    repeater.add_argument(
        "--devices",
        metavar="A,B",
        help="one run per device at a time, each in its own process: cuda:0,cuda:1 or cpu,cpu",
    )
    repeater.add_argument(
        "--only", metavar="PATTERN", help="with --devices: runs, e.g. 'fineweb-*'"
    )
    repeater.add_argument("--out", default="out", metavar="DIR", help="parent folder")
    repeater.add_argument("--source", metavar="WHERE", help="input for building the dataset")
    repeater.add_argument("--workers", type=count, default=2, metavar="N", help="runs at a time")
    repeater.add_argument(
        "--ablations",
        action="store_true",
        help="instead: TANGO and WANGO with one part changed, against the whole models",
    )
    repeater.add_argument(
        "--study",
        choices=STUDY_NAMES,
        help="instead: a question that the paper leaves open; shows its plan before it starts",
    )
    repeater.add_argument(
        "--plan", action="store_true", help="of a study or of --devices: only show the plan"
    )
    add_extras(repeater)
    add_format(repeater)


def _replicate(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison.ablations import ablate, ablation_tables
    from tangobench.eval.comparison.claims import summary_tables
    from tangobench.eval.comparison.replicate import replicate
    from tangobench.eval.render import render

    wanted = {"exact_match": args.exact_match, "probes": args.probes}
    if args.study == "recall":
        return _recall(args)
    if args.study:
        return _study(args, tuple(name for name, asked in wanted.items() if asked))
    if args.devices or args.only or args.profile == "paper":
        return _launch(args, tuple(name for name, asked in wanted.items() if asked))
    args.dataset = args.dataset or "dm_math"
    make = ablate if args.ablations else replicate
    summary = make(
        args.profile or "sample",
        args.dataset,
        Path(args.out),
        workers=args.workers,
        source=args.source,
        extras=tuple(name for name, asked in wanted.items() if asked),
        reporter=reporter_of(args),
    )
    tables = (
        list(ablation_tables(summary["ablations"])) if args.ablations else summary_tables(summary)
    )
    finished(args, f"trained and scored into {args.out}", f"tangobench report --out {args.out}")
    return show(args, summary, render(tables, args.format).rstrip("\n"))


def _launch(args: argparse.Namespace, extras: tuple[str, ...]) -> int:
    """Runs on several devices; says what they would take before it starts."""
    from tangobench.eval.comparison import launch
    from tangobench.eval.render import render

    profile: Any = args.profile or "sample"
    out = Path(args.out).absolute()
    dataset = args.dataset or (None if profile == "paper" or args.only else "dm_math")
    chosen = launch.choose("published" if profile == "paper" else profile, dataset, args.only)
    devices = args.devices.split(",") if args.devices else launch.all_gpus()
    planned, seconds = launch.estimates(chosen, devices or ["cuda"])
    if args.plan:
        return show(args, dataclasses.asdict(planned), render([planned], args.format).rstrip("\n"))
    reporter = reporter_of(args)
    for line in render([planned], "markdown").splitlines():
        reporter.say(line)
    if not devices:
        raise UsageError(
            "this machine has no GPU to train on",
            kind="no-cuda",
            fix="name devices: --devices cuda:0,cuda:1 (or cpu,cpu, if you have that long)",
        )
    work = launch.launch(chosen, out, devices, extras, step_seconds=seconds, reporter=reporter)
    states = work.finish()
    failed = [state for state in states if state.name == "failed"]
    rows = [dataclasses.asdict(state) | {"run": state.run.name} for state in states]
    show(args, {"runs": rows}, render([work.table()], args.format).rstrip("\n"))
    return failed[0].code if failed and failed[0].code > 0 else int(bool(failed))


def _study(args: argparse.Namespace, extras: tuple[str, ...]) -> int:
    from tangobench.eval.comparison.designs import STUDIES
    from tangobench.eval.comparison.replicate import run_study
    from tangobench.eval.comparison.studies import analyse, plan, prior_residual
    from tangobench.eval.comparison.study_tables import plan_table, study_tables
    from tangobench.eval.render import render
    from tangobench.eval.scoring.result_files import read_results, shipped_results

    out = Path(args.out)
    study = STUDIES[args.study](args.profile or "mini")
    before = read_results([out / "results", shipped_results()])
    planned = plan(study, before, prior_residual(read_results([shipped_results()]), study))
    if args.plan:
        return show(args, planned, render([plan_table(planned)], args.format).rstrip("\n"))
    if not (args.quiet or args.json):
        print(render([plan_table(planned)], "markdown"), file=sys.stderr)
    results = run_study(
        study,
        out,
        workers=args.workers,
        source=args.source,
        extras=extras,
        reporter=reporter_of(args),
    )
    text = render(study_tables(study, results), args.format).rstrip("\n")
    finished(args, f"trained and scored into {args.out}", f"tangobench report --out {args.out}")
    return show(args, analyse(study, results) if args.json else None, text)


def _recall(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison.recall import read_recall, recall_runs, recall_table, run_recall
    from tangobench.eval.render import render
    from tangobench.eval.scoring.result_files import shipped_results

    runs = recall_runs(20 if args.profile == "sample" else 600)
    if args.plan:
        names = [run.name for run in runs]
        return show(args, {"study": "recall", "runs": names}, "\n".join(names))
    run_recall(Path(args.out), runs, workers=args.workers, reporter=reporter_of(args))
    found = read_recall([Path(args.out) / "results", shipped_results()])
    table = recall_table(found, runs)
    finished(args, f"trained and tested into {args.out}", f"tangobench report --out {args.out}")
    return show(args, found, render([table], args.format).rstrip("\n"))
