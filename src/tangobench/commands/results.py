"""`results`: many result files as two that a repository can keep, and the page about them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import command, finished, show
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the commands to the program."""
    summary = "pack the results of many runs into two files, or unpack them"
    parser = command(commands, "results", None, summary)
    group = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    packer = command(
        group, "pack", _pack, "add results to DIR/runs.jsonl and DIR/tallies.parquet",
        "results pack out/results --to results",
        about="One checksummed line per run, and all tallies in one Parquet file. Runs that are "
        "packed in DIR already stay, unless a folder holds a newer result of the same run.",
    )  # fmt: skip
    packer.add_argument(
        "folders", nargs="*", type=Path, metavar="FOLDER", help="such as OUT/results"
    )
    packer.add_argument(
        "--to", type=Path, default=Path("results"), metavar="DIR", help="default: results"
    )
    writer = command(
        group, "findings", _findings, "print the page docs/findings.md from results",
        "results findings out/results",
    )  # fmt: skip
    writer.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="more results")
    writer.add_argument(
        "--pictures", type=Path, metavar="DIR", help="also write the page's pictures there"
    )
    foreteller = command(
        group, "predictions", _predictions, "what was predicted for the paper's size, and outcomes",
        "results predictions out/results",
    )  # fmt: skip
    foreteller.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="more results")
    foreteller.add_argument(
        "--write", type=Path, metavar="FILE", help="instead: predict from the results, once"
    )
    foreteller.add_argument("--date", metavar="YYYY-MM-DD", help="with --write: the day")
    opener = command(
        group, "unpack", _unpack, "write one file per run into FOLDER",
        "results unpack out/results",
    )  # fmt: skip
    opener.add_argument("folder", type=Path, metavar="FOLDER", help="such as OUT/results")
    opener.add_argument(
        "--source", type=Path, metavar="DIR", help="packed results (default: the package's own)"
    )


def _pack(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison.recall import pack_recall
    from tangobench.eval.scoring.packed import pack
    from tangobench.eval.scoring.result_files import read_results

    for folder in args.folders:
        if not folder.is_dir():
            raise UsageError(f"no folder {folder}", kind="usage", fix="name a folder of results")
    results = read_results([*args.folders, args.to])
    pack(args.to, results)
    pack_recall(args.folders, args.to)
    return _say(args, "packed", len(results), args.to)


def _findings(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison.findings import findings, pictures
    from tangobench.eval.comparison.predictions import read_predictions
    from tangobench.eval.comparison.recall import read_recall
    from tangobench.eval.scoring.result_files import read_results, shipped_results
    from tangobench.pipeline.core.files import write_atomic

    folders = [*args.folders, shipped_results()]
    results = read_results(folders)
    page = findings(results, read_recall(folders), read_predictions())
    if args.pictures is not None:
        for name, picture in pictures(results).items():
            write_atomic(args.pictures / name, picture.encode())
    return show(args, {"markdown": page}, page.rstrip("\n"))


def _predictions(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison.predictions import (
        prediction_table,
        read_predictions,
        write_predictions,
    )
    from tangobench.eval.render import render
    from tangobench.eval.scoring.result_files import read_results, shipped_results

    results = read_results([*args.folders, shipped_results()])
    if args.write is not None:
        if args.date is None:
            raise UsageError("--write without --date", kind="usage", fix="add --date YYYY-MM-DD")
        path = write_predictions(args.write, results, args.date)
        return show(args, {"path": str(path)}, str(path))
    found = read_predictions()
    return show(args, found, render([prediction_table(found, results)], "markdown").rstrip("\n"))


def _unpack(args: argparse.Namespace) -> int:
    from tangobench.eval.scoring.packed import unpack
    from tangobench.eval.scoring.result_files import shipped_results, write_result

    results = list(unpack(args.source or shipped_results()))
    for result in results:
        path = args.folder / f"{result['run']}.json"
        if not path.exists():
            write_result(path, result)
    return _say(args, "unpacked", len(results), args.folder)


def _say(args: argparse.Namespace, verb: str, runs: int, folder: Path) -> int:
    finished(args, f"{verb} {runs} runs", "tangobench tables")
    return show(args, {"runs": runs, "folder": str(folder)}, f"{runs} runs in {folder}")
