"""`report`: one static HTML site of everything in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import command, finished, show
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    reporter = command(
        commands, "report", _report, "one static HTML site of everything in OUT",
        "report --out out",
        about="Write a site that opens from disk: datasets, models, results, provenance. "
        "What does not exist yet is shown with the command that makes it. The same inputs give "
        "the same bytes.",
    )  # fmt: skip
    reporter.add_argument(
        "--out", type=Path, default=Path("out"), metavar="DIR", help="what to show (default: out)"
    )
    reporter.add_argument(
        "--site", type=Path, metavar="DIR", help="where to write it (default: OUT/report)"
    )
    reporter.add_argument(
        "--look",
        nargs="+",
        default=[],
        metavar="RUN",
        help="a page that looks inside one or two finished runs: the NLL of every token of some "
        "rows, and the strongest sources of each",
    )


def _report(args: argparse.Namespace) -> int:
    from tangobench.eval.report.site import write_report

    if not args.out.is_dir():
        raise UsageError(
            f"{args.out} does not exist",
            kind="path-missing",
            fix="name the folder that holds datasets, runs and results",
        )
    index = write_report(args.out, args.site or args.out / "report", args.look)
    finished(args, f"wrote {index.parent}", "open it in a browser")
    return show(args, {"index": str(index)}, str(index))
