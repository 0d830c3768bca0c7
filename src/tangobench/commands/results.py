"""`results`: many result files as two that a repository can keep, and the page about them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import add_output_options, emit_json
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the commands to the program."""
    group = commands.add_parser(
        "results", help="pack the results of many runs into two files, or unpack them"
    ).add_subparsers(dest="action", metavar="ACTION", required=True)
    packer = group.add_parser(
        "pack",
        help="add results to DIR/runs.jsonl and DIR/tallies.parquet",
        description="One checksummed line per run, and all tallies in one Parquet file. Runs that "
        "are packed in DIR already stay, unless a folder holds a newer result of the same run.",
    )
    packer.add_argument(
        "folders", nargs="*", type=Path, metavar="FOLDER", help="such as OUT/results"
    )
    packer.add_argument("--to", type=Path, default=Path("results"), metavar="DIR")
    add_output_options(packer)
    packer.set_defaults(run=_pack)
    writer = group.add_parser("findings", help="print the page docs/findings.md from results")
    writer.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="more results")
    add_output_options(writer)
    writer.set_defaults(run=_findings)
    opener = group.add_parser("unpack", help="write one file per run into FOLDER")
    opener.add_argument("folder", type=Path, metavar="FOLDER", help="such as OUT/results")
    opener.add_argument(
        "--source", type=Path, metavar="DIR", help="packed results (default: the package's own)"
    )
    add_output_options(opener)
    opener.set_defaults(run=_unpack)


def _pack(args: argparse.Namespace) -> int:
    from tangobench.eval.scoring.packed import pack
    from tangobench.eval.scoring.results import read_results

    for folder in args.folders:
        if not folder.is_dir():
            raise UsageError(f"no folder {folder}", kind="usage", fix="name a folder of results")
    results = read_results([*args.folders, args.to])
    pack(args.to, results)
    return _say(args, len(results), args.to)


def _findings(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison.findings import findings
    from tangobench.eval.scoring.results import read_results, shipped_results

    page = findings(read_results([*args.folders, shipped_results()]))
    if args.json:
        emit_json({"markdown": page})
    else:
        print(page, end="")
    return 0


def _unpack(args: argparse.Namespace) -> int:
    from tangobench.eval.scoring.packed import unpack
    from tangobench.eval.scoring.results import shipped_results, write_result

    results = list(unpack(args.source or shipped_results()))
    for result in results:
        path = args.folder / f"{result['run']}.json"
        if not path.exists():
            write_result(path, result)
    return _say(args, len(results), args.folder)


def _say(args: argparse.Namespace, runs: int, folder: Path) -> int:
    if args.json:
        emit_json({"runs": runs, "folder": str(folder)})
    else:
        print(f"{runs} runs in {folder}")
    return 0
