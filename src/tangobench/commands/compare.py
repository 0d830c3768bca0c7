"""`tables`, `compare`, `report` and `replicate`: runs beside each other and beside the paper's."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tangobench.catalogue import CATALOGUE
from tangobench.cli import EXTRAS, FORMAT, command, finished, reporter_of, show
from tangobench.commands.score import require_folders
from tangobench.commands.train import checked_device
from tangobench.errors import UsageError

if TYPE_CHECKING:
    from tangobench.eval.comparison.studies import Study
    from tangobench.eval.render import Table


def _show(args: argparse.Namespace, value: Any, tables: Sequence[Table], form: str = "") -> int:
    """Print a value as JSON or its tables as `--format` says."""
    from tangobench.eval.render import render

    return show(args, value, render(tables, args.format or form or "markdown").rstrip("\n"))


@command("tables", FORMAT, folders=Path)
def _tables(args: argparse.Namespace) -> int:
    """The paper's five tables, ours beside the paper's.

    In a terminal: the models of each group of runs, best first. With --all, --format or in a pipe
    every table: the paper's, small replications with its orderings judged, then what the paper does
    not report: bits per byte, exact match, probes, checked proofs, ablations.

    options:
      folders=RESULTS*  folders of results (default: out/results and results; the first that has a
                        run wins)
      --speed FILE      also what `tangobench model speed --save FILE` measured
      --all             every table, in a terminal too
      --dataset NAME    only runs on this dataset

    examples:
      tables                                        # in a terminal: who is ahead
      tables --all --dataset dm_math
      tables out/results --format latex > tables.tex
    """
    import tangobench.pipeline.core.no_pandas  # noqa: F401
    from tangobench.eval.scoring.result_files import read_results, shipped_results

    require_folders(args.folders)
    read = read_results(args.folders or [Path("out/results"), shipped_results()])
    results = [result for result in read if args.dataset in (None, result["dataset"])]
    if read and not results:
        there = ", ".join(sorted({result["dataset"] for result in read}))
        raise UsageError(f"no results on {args.dataset!r}", fix=f"use one of {there}")
    terminal = sys.stdout.isatty()
    if terminal and not (args.all or args.json or args.format):
        return _standings(results, args.folders or [Path("out/results")])
    from tangobench.eval.comparison.analysis import studies_in, study_tables
    from tangobench.eval.comparison.beyond import beyond_tables, gap_tables, gaps
    from tangobench.eval.comparison.tables import own_tables, paper_tables, replication_tables

    tables = [*own_tables(results), *paper_tables(results), *replication_tables(results)]
    tables += [t for study in studies_in(results) for t in study_tables(study, results)]
    tables += [table for gap in gaps(results) for table in gap_tables(gap)]
    tables += [*beyond_tables(results), *(_speeds(args.speed) if args.speed else [])]
    return _show(args, [dataclasses.asdict(t) for t in tables], tables, "text" if terminal else "")


def _standings(results: list[dict[str, Any]], folders: Sequence[Path]) -> int:
    """Who is ahead, a table for each group of runs that can be compared."""
    from tangobench.eval.comparison.runs import groups
    from tangobench.eval.render import Table, render
    from tangobench.eval.report.pages import standings
    from tangobench.eval.scoring.result_files import read_results

    own = {run["run"] for run in read_results(folders)}
    columns = ["Model", "NLL", "95% interval", "Runs", "Verdict"]
    for group in groups(results):
        rows = [
            [row.label, row.nll, row.own, str(row.runs), row.verdict]
            for row in standings(group)["rows"]
        ]
        title = group.title("Validation NLL", group.metrics[0])
        if own.isdisjoint(run["run"] for run in group.every):
            title += " that come with tangobench"
        print(render([Table(title=title, columns=columns, rows=rows)], "text"))
    print("--all shows every table, --dataset NAME those of one dataset")
    return 0


def _speeds(path: Path) -> list[Table]:
    from tangobench.eval.costs.speed import read_speed, speed_tables

    try:
        return list(speed_tables(read_speed(path)))
    except (OSError, ValueError) as error:
        why = f"{path} holds no measurements: {type(error).__name__}: {error}"
        raise UsageError(why, fix=f"tangobench model speed --save {path}") from None


@command("compare", FORMAT)
def _compare(args: argparse.Namespace) -> int:
    """Scored runs beside each other: NLL, paired differences, cost.

    Differences are to the first one named, on equal seed pairs. A recipe's name means all of its
    runs. Results are those of OUT and those that come with tangobench.

    options:
      runs=RUN+       a run, its folder, or a recipe
      --out DIR =out  where results are

    examples:
      compare mini-dm_math-tango mini-dm_math-wango
    """
    from tangobench.eval.comparison.tables import choose, compared
    from tangobench.eval.scoring.result_files import read_results, shipped_results

    results = read_results([args.out / "results", shipped_results()])
    table = compared(choose(results, [Path(name).name for name in args.runs]))
    return _show(args, dataclasses.asdict(table), [table])


@command("report")
def _report(args: argparse.Namespace) -> int:
    """One static HTML site of everything in OUT.

    Write a site that opens from disk: datasets, models, results, provenance. What does not exist
    yet is shown with the command that makes it. The same inputs give the same bytes.

    options:
      --out DIR =out  what to show (default: out)
      --site DIR      where to write it (default: OUT/report)
      --look RUN+     a page that looks inside one or two finished runs: the NLL of every token of
                      some rows, and the strongest sources of each

    examples:
      report --look sample-dm_math-tango-s17-101 sample-dm_math-wango-s17-101
    """
    if not args.out.is_dir():
        fix = "name the folder that holds datasets, runs and results"
        raise UsageError(f"{args.out} does not exist", kind="path-missing", fix=fix)
    inside = f", looking inside {' and '.join(args.look)}" if args.look else ""
    reporter_of(args).say(f"writing the report of {args.out}{inside} …")
    from tangobench.eval.report.site import write_report

    index = write_report(args.out, args.site or args.out / "report", args.look or ())
    finished(args, f"wrote {index.parent}", "open it in a browser")
    return show(args, {"index": str(index)}, str(index))


_REPLICATE: Final = """
--profile {sample,mini,paper}
                 default: sample; of a study: mini. paper: the published 90 runs, on --devices
--dataset        what to train on (dm_math; of the paper: all three)
--devices A,B    one run per device at a time, each in its own process: cuda:0,cuda:1 or
                 cpu,cpu
--only PATTERN   with --devices: runs, e.g. 'fineweb-*'
--out DIR =out   parent folder
--source WHERE   input for building the dataset
--workers N =2   runs at a time (default: 2)
--ablations      instead: TANGO and WANGO with one part changed, against the whole models
--study {sharing,compute,rates,context,recall,large-untied,large-compute,large-orderings}
                 instead: a question that the paper leaves open; shows its plan before it
                 starts
--plan           only show what the runs would take
"""


@command("replicate", _REPLICATE, EXTRAS, FORMAT, dataset=tuple(CATALOGUE))
def _replicate(args: argparse.Namespace) -> int:
    """Train and score all six models at a small size; run again to resume.

    Builds the dataset if it is not in OUT, then trains six architectures with three seed pairs each
    and judges the paper's orderings.

    examples:
      replicate                                     # the sample, minutes
      replicate --profile mini --dataset lean --source ~/mathlib4 --workers 8
      replicate --profile paper --devices cuda:0,cuda:1 --only 'fineweb-*'
      replicate --study sharing --plan
    """
    reporter_of(args).say("planning the runs …")  # torch takes seconds to load
    from tangobench.eval.comparison import analysis
    from tangobench.eval.comparison.replicate import ablate, replicate
    from tangobench.eval.comparison.studies import STUDIES, ablations
    from tangobench.eval.comparison.tables import summary_tables

    if args.study == "recall":
        return _recall(args)
    profile: Any = args.profile or "sample"
    if args.study:
        return _study(args, STUDIES[args.study](args.profile or "mini"))
    if args.ablations and args.plan:
        return _study(args, ablations(profile))
    if args.plan or args.devices or args.only or profile == "paper":
        return _launch(args)
    dataset, how = args.dataset or "dm_math", _how(args)
    if args.ablations:
        results, study = ablate(profile, dataset, args.out, **how), ablations(profile)
        _trained(args)
        tables = analysis.study_tables(study, results)
        return _show(args, analysis.analyse(study, results), tables)
    summary = replicate(profile, dataset, args.out, **how)
    _trained(args)
    return _show(args, summary, summary_tables(summary))


def _extras(args: argparse.Namespace) -> tuple[str, ...]:
    return tuple(name for name in ("exact_match", "probes") if getattr(args, name))


def _how(args: argparse.Namespace) -> dict[str, Any]:
    names = {"workers": args.workers, "source": args.source}
    return {**names, "extras": _extras(args), "reporter": reporter_of(args)}


def _trained(args: argparse.Namespace, done: str = "scored") -> None:
    finished(args, f"trained and {done} into {args.out}", f"tangobench report --out {args.out}")


def _launch(args: argparse.Namespace) -> int:
    """Runs on several devices; says what they would take before it starts."""
    import torch

    from tangobench.eval.comparison import replicate as launch
    from tangobench.eval.render import render
    from tangobench.model.training.recipes import runs

    profile: Any = args.profile or "sample"
    dataset = args.dataset or (None if profile == "paper" or args.only else "dm_math")
    family: Any = "published" if profile == "paper" else profile
    chosen = launch.choose(runs(family, None), f"{family} run", dataset, args.only)
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    devices = args.devices.split(",") if args.devices else gpus
    assumed = ["cuda"] if profile == "paper" else ["cpu"] * args.workers
    planned = launch.estimates(chosen, devices or assumed)
    if args.plan:
        return _show(args, dataclasses.asdict(planned), [planned])
    reporter = reporter_of(args)
    for line in render([planned], "markdown").splitlines():
        reporter.say(line)
    if not devices:
        fix = "name devices: --devices cuda:0,cuda:1 (or cpu,cpu, if you have that long)"
        raise UsageError("this machine has no GPU to train on", kind="no-cuda", fix=fix)
    for device in devices:
        checked_device(device)
    out, extras = args.out.absolute(), _extras(args)
    done = launch.finished(chosen, out, extras)
    work = launch.Launcher(chosen, out, devices, done, extras, reporter)
    states = work.finish()
    failed = [state for state in states if state.name == "failed"]
    rows = [dataclasses.asdict(state) | {"run": state.run.name} for state in states]
    _show(args, {"runs": rows}, [work.table()])
    return failed[0].code if failed and failed[0].code > 0 else int(bool(failed))


def _study(args: argparse.Namespace, study: Study) -> int:
    from tangobench.eval.comparison import analysis, design
    from tangobench.eval.comparison.replicate import run_study
    from tangobench.eval.render import render
    from tangobench.eval.scoring.result_files import read_results, shipped_results

    before = read_results([args.out / "results", shipped_results()])
    prior = design.prior_residual(read_results([shipped_results()]), study)
    planned = design.plan(study, before, prior)
    if args.plan:
        return _show(args, planned, [design.plan_table(planned)])
    if not (args.quiet or args.json):
        print(render([design.plan_table(planned)], "markdown"), file=sys.stderr)
    results = run_study(study, args.out, **_how(args))
    _trained(args)
    found = analysis.analyse(study, results) if args.json else None
    return _show(args, found, analysis.study_tables(study, results))


def _recall(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison import recall
    from tangobench.eval.comparison.design import plan, plan_title
    from tangobench.eval.scoring.result_files import shipped_results

    study = recall.recall(20 if args.profile == "sample" else 600)
    planned = plan(study, recall.read_recall([args.out / "results"]).values())
    if args.plan:
        return show(args, planned, plan_title(planned), *planned["runs"])
    reporter_of(args).say(plan_title(planned))
    recall.run_recall(args.out, study.runs, workers=args.workers, reporter=reporter_of(args))
    found = recall.read_recall([args.out / "results", shipped_results()])
    _trained(args, "tested")
    return _show(args, found, recall.recall_tables(found, study))
