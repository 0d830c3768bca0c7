"""`report`: one static HTML site of everything in a folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import add_output_options, emit_json
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    reporter = commands.add_parser(
        "report",
        help="one static HTML site of everything in OUT",
        description="Write a site that opens from disk: datasets, models, results, provenance. "
        "What does not exist yet is shown with the command that makes it. The same inputs give "
        "the same bytes.",
    )
    reporter.add_argument("--out", type=Path, default=Path("out"), metavar="DIR")
    reporter.add_argument(
        "--site", type=Path, metavar="DIR", help="where to write it (default: OUT/report)"
    )
    add_output_options(reporter)
    reporter.set_defaults(run=_report)


def _report(args: argparse.Namespace) -> int:
    from tangobench.eval.report.site import write_report

    if not args.out.is_dir():
        raise UsageError(
            f"{args.out} does not exist",
            kind="path-missing",
            fix="name the folder that holds datasets, runs and results",
        )
    index = write_report(args.out, args.site or args.out / "report")
    if args.json:
        emit_json({"index": str(index)})
    else:
        print(index)
    return 0
