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
    opener = command(
        group, "unpack", _unpack, "write one file per run into FOLDER",
        "results unpack out/results",
    )  # fmt: skip
    opener.add_argument("folder", type=Path, metavar="FOLDER", help="such as OUT/results")
    opener.add_argument(
        "--source", type=Path, metavar="DIR", help="packed results (default: the package's own)"
    )


def _pack(args: argparse.Namespace) -> int:
    from tangobench.eval.scoring.packed import pack
    from tangobench.eval.scoring.results import read_results

    for folder in args.folders:
        if not folder.is_dir():
            raise UsageError(f"no folder {folder}", kind="usage", fix="name a folder of results")
    results = read_results([*args.folders, args.to])
    pack(args.to, results)
    return _say(args, "packed", len(results), args.to)


def _findings(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison.findings import findings
    from tangobench.eval.scoring.results import read_results, shipped_results

    page = findings(read_results([*args.folders, shipped_results()]))
    return show(args, {"markdown": page}, page.rstrip("\n"))


def _unpack(args: argparse.Namespace) -> int:
    from tangobench.eval.scoring.packed import unpack
    from tangobench.eval.scoring.results import shipped_results, write_result

    results = list(unpack(args.source or shipped_results()))
    for result in results:
        path = args.folder / f"{result['run']}.json"
        if not path.exists():
            write_result(path, result)
    return _say(args, "unpacked", len(results), args.folder)


def _say(args: argparse.Namespace, verb: str, runs: int, folder: Path) -> int:
    finished(args, f"{verb} {runs} runs", "tangobench tables")
    return show(args, {"runs": runs, "folder": str(folder)}, f"{runs} runs in {folder}")
