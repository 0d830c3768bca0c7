"""`eval`, `tables` and `compare`: scoring runs and showing the scores."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tangobench.commands._common import (
    command,
    count,
    emit_json,
    finished,
    reporter_of,
    show,
)
from tangobench.commands.train import add_compute_options, compute_device
from tangobench.errors import UsageError

if TYPE_CHECKING:
    from tangobench.eval.render import Table

FORMS: Final = ("markdown", "latex", "csv", "html")


STUDY_NAMES: Final = (
    *("sharing", "compute", "rates", "recall"),
    *("large-untied", "large-compute", "large-orderings"),
)


def add(commands: Any) -> None:
    """Add the commands to the program."""
    scorer = command(
        commands, "eval", _eval, "score a finished run on its validation rows",
        "eval sample-dm_math-tango-s17-101 --exact-match",
        "eval out/runs/sample-dm_math-tango-s17-101 --limit 100 --samples answers.jsonl",
        about="Writes OUT/results/RUN.json and prints the scores. What an earlier result of "
        "the same checkpoint held of exact match, probes and proofs is kept.",
    )  # fmt: skip
    scorer.add_argument("run_folder", metavar="RUN", help="a folder in OUT/runs, or its name")
    scorer.add_argument(
        "--out", default="out", metavar="DIR", help="where a bare name is looked up"
    )
    scorer.add_argument(
        "--tokens-at-once",
        type=count,
        metavar="N",
        help="does not change the result (default: 4,096 on a CPU, 65,536 on a GPU)",
    )
    scorer.add_argument(
        "--limit", type=count, metavar="N", help="only N rows of each config; writes no result"
    )
    scorer.add_argument(
        "--samples",
        type=Path,
        metavar="FILE",
        help="also write prompts, answers and targets of some rows (--limit, or 20) as JSONL",
    )
    scorer.add_argument(
        "--on",
        metavar="FOLDER",
        help="also score a test set (dm_math_tests) by module: NLL and exact match",
    )
    add_extras(scorer)
    add_compute_options(scorer)
    tabler = command(
        commands, "tables", _tables, "the paper's five tables, ours beside the paper's",
        "tables                                        # in a terminal: who is ahead",
        "tables --all --dataset dm_math",
        "tables out/results --format latex > tables.tex",
        about="In a terminal: the models of each group of runs, best first. With --all, --format "
        "or in a pipe every table: the paper's, small replications with its orderings judged, then "
        "what the paper does not report: bits per byte, exact match, probes, checked proofs, "
        "ablations.",
    )  # fmt: skip
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
    tabler.add_argument("--all", action="store_true", help="every table, in a terminal too")
    tabler.add_argument("--dataset", metavar="NAME", help="only runs on this dataset")
    add_format(tabler, None)
    comparer = command(
        commands, "compare", _compare,
        "scored runs beside each other: NLL, paired differences, cost",
        "compare mini-dm_math-tango mini-dm_math-wango",
        about="Differences are to the first one named, on equal seed pairs. A recipe's name means "
        "all of its runs. Results are those of OUT and those that come with tangobench.",
    )  # fmt: skip
    comparer.add_argument("runs", nargs="+", metavar="RUN", help="a run, its folder, or a recipe")
    comparer.add_argument("--out", default="out", metavar="DIR", help="where results are")
    add_format(comparer)


def add_format(parser: argparse.ArgumentParser, default: str | None = "markdown") -> None:
    """How tables are written."""
    parser.add_argument("--format", choices=FORMS, default=default, help="of the tables")


def add_extras(parser: argparse.ArgumentParser) -> None:
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


def _eval(args: argparse.Namespace) -> int:
    from tangobench.eval.scoring.result_files import read_result
    from tangobench.eval.scoring.results import evaluate
    from tangobench.eval.scoring.testsets import score_on
    from tangobench.model.training.runs import find_run_folder

    folder = find_run_folder(args.run_folder, args.out)
    if args.limit is not None or args.samples is not None:
        found = _look(args, folder)
        if args.limit is not None:
            if args.json:
                emit_json({"limit": args.limit, "scores": found})
            else:
                _print_scores({"scores": found})
            return 0
    device = compute_device(args)
    how: dict[str, Any] = {"device": device, "tokens_at_once": _at_once(args, device)}
    how["reporter"] = reporter_of(args)
    if args.on is not None:
        path = score_on(folder, args.on, **how)
    if args.on is None or args.exact_match or args.probes:
        path = evaluate(folder, match_answers=args.exact_match, probe=args.probes, **how)
    result = read_result(path)
    if args.json:
        emit_json(result)
        return 0
    _print_scores(result)
    print(path)
    finished(args, f"scored {folder.name}", "tangobench tables")
    return 0


def _at_once(args: argparse.Namespace, device: str) -> int:
    """Tokens that are scored at once: what a CPU's caches hold, or what fills a GPU."""
    return int(args.tokens_at_once or (4096 if device == "cpu" else 65_536))


def _look(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Scores of `--limit` rows, and the file of samples."""
    from tangobench.eval.scoring.results import final_checkpoint, model_of, require_root
    from tangobench.eval.scoring.samples import partial_nll, samples
    from tangobench.model.training.loader import Stream, configs_of
    from tangobench.model.training.train import dataset_of
    from tangobench.pipeline.core.files import write_atomic

    path, trained, run = final_checkpoint(folder)
    dataset = dataset_of(run, path.parents[3])
    require_root(trained, dataset, path)
    model = model_of(path, trained, run, compute_device(args))
    scores, lines = {}, []
    for config in configs_of(dataset):
        stream = Stream(dataset, config, "validation", context=run.recipe.context)
        if args.limit is not None:
            sizes = (run.recipe.precision, _at_once(args, model.embed.device.type))
            scores[config] = partial_nll(model, stream, args.limit, *sizes).as_json()
        if args.samples is not None:
            for sample in samples(model, stream, args.limit or 20, dataset.tokenizer):
                lines.append(json.dumps({"config": config, **sample}) + "\n")
        stream.close()
    if args.samples is not None:
        write_atomic(args.samples, "".join(lines).encode())
    return scores


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
    for name, found in result.get("tests", {}).items():
        for config, tally in found["scores"].items():
            right, tried = (
                sum(module[key] for module in found["modules"][config].values())
                for key in ("correct", "tried")
            )
            print(f"{name}, {config}: {tally['nll']:.4f} nats, {right / tried:.2%} of {tried:,}")
    for metric, probes in result.get("probes", {}).items():
        for name, probe in probes.items():
            print(f"{metric} by {name}:")
            for group, found in probe["groups"].items():
                nll = "–" if found["nll"] is None else f"{found['nll']:.4f} nats"
                print(f"  {group:<34} {nll} in {found['rows']:,} rows")


def _tables(args: argparse.Namespace) -> int:
    import tangobench.pipeline.core.no_pandas  # noqa: F401
    from tangobench.eval.comparison.beyond import beyond_tables
    from tangobench.eval.comparison.claims import replication_tables
    from tangobench.eval.comparison.designs import studies_in
    from tangobench.eval.comparison.gaps import gap_tables, gaps
    from tangobench.eval.comparison.own import own_tables
    from tangobench.eval.comparison.study_tables import study_tables
    from tangobench.eval.comparison.tables import paper_tables
    from tangobench.eval.render import render
    from tangobench.eval.scoring.result_files import read_results, shipped_results

    for folder in args.folders:
        if not folder.is_dir():
            raise UsageError(f"no folder {folder}", kind="usage", fix="name a folder of results")
    results = _on_dataset(
        read_results(args.folders or [Path("out/results"), shipped_results()]), args.dataset
    )
    if sys.stdout.isatty() and not (args.all or args.json or args.format):
        return _standings(results)
    tables = [*own_tables(results), *paper_tables(results), *replication_tables(results)]
    tables += [t for study, _ in studies_in(results) for t in study_tables(study, results)]
    tables += [table for gap in gaps(results) for table in gap_tables(gap)]
    tables += beyond_tables(results)
    tables += _speeds(args.speed) if args.speed else []
    form = args.format or ("text" if sys.stdout.isatty() else "markdown")
    return show(args, [dataclasses.asdict(t) for t in tables], render(tables, form).rstrip("\n"))


def _on_dataset(results: list[dict[str, Any]], name: str | None) -> list[dict[str, Any]]:
    found = [result for result in results if name in (None, result["dataset"])]
    if results and not found:
        there = ", ".join(sorted({result["dataset"] for result in results}))
        raise UsageError(f"no results on {name!r}", kind="usage", fix=f"use one of {there}")
    return found


def _standings(results: list[dict[str, Any]]) -> int:
    """Who is ahead, a table for each group of runs that can be compared."""
    from tangobench.eval.comparison.runs import groups
    from tangobench.eval.render import Table, render
    from tangobench.eval.report.standings import standings

    columns = {"label": "Model", "mean": "NLL", "interval": "95% interval", "runs": "Runs"}
    columns["verdict"] = "Verdict"
    for group in groups(results):
        found = standings(group)
        rows = [[str(row[key]) for key in columns] for row in found["rows"]]
        title = group.title("Validation NLL", group.metrics[0])
        table = Table(title=title, columns=list(columns.values()), rows=rows)
        print(render([table], "text"))
    print("--all shows every table, --dataset NAME those of one dataset")
    return 0


def _speeds(path: Path) -> list[Table]:
    from tangobench.eval.costs.speed import speed_tables
    from tangobench.pipeline.core.files import read_untrusted

    try:
        return list(speed_tables(json.loads(read_untrusted(path, links=True))))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise UsageError(
            f"{path} holds no measurements: {type(error).__name__}: {error}",
            kind="usage",
            fix=f"tangobench model speed --save {path}",
        ) from None


def _compare(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison.own import choose, compared
    from tangobench.eval.render import render
    from tangobench.eval.scoring.result_files import read_results, shipped_results

    results = read_results([Path(args.out) / "results", shipped_results()])
    table = compared(choose(results, [Path(name).name for name in args.runs]))
    return show(args, dataclasses.asdict(table), render([table], args.format).rstrip("\n"))
