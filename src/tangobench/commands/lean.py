"""`lean extract`: proofs of a repository at one commit, as JSON lines."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tangobench.commands._common import add_output_options, count, emit_json


def add(commands: Any) -> None:
    """Add the command to the program."""
    parser = commands.add_parser("lean", help="tools for Lean sources")
    inner = parser.add_subparsers(dest="lean_command", required=True, metavar="COMMAND")
    extract = inner.add_parser(
        "extract",
        help="one JSON line per theorem and lemma, with byte offsets and the proof",
        description="Cut the proofs out of every .lean file of a commit. Files that are not UTF-8 "
        "or end inside a comment or string are left out and named.",
    )
    extract.add_argument("--source", required=True, metavar="REPO", help="clone, bundle or git URL")
    extract.add_argument(
        "--commit", required=True, metavar="REV", help="commit id, HEAD, tag or branch"
    )
    extract.add_argument("--out", required=True, metavar="FILE", help="JSON lines ('-': stdout)")
    extract.add_argument("--path", metavar="GLOB", help="only files whose path matches")
    extract.add_argument(
        "--max-bytes",
        type=count,
        default=8_000_000,
        metavar="N",
        help="leave out larger files (default 8,000,000)",
    )
    extract.add_argument(
        "--kind",
        action="append",
        choices=("theorem", "lemma", "instance", "example"),
        help="kinds of declarations (default: theorem and lemma), may be repeated",
    )
    add_output_options(extract)
    extract.set_defaults(run=_extract)


def _extract(args: argparse.Namespace) -> int:
    from tangobench.pipeline.core.progress import Reporter
    from tangobench.pipeline.lean.export import export
    from tangobench.pipeline.lean.proofs import PROOF_KINDS

    done = export(
        args.source,
        args.commit,
        args.out,
        args.path,
        args.kind or PROOF_KINDS,
        max_bytes=args.max_bytes,
        reporter=Reporter(quiet=args.quiet or args.json),
    )
    if args.json:
        emit_json(done)
        return 0
    for path, reason in done["rejected_files"]:
        print(f"left out {path}: {reason}", file=sys.stderr)
    if not args.quiet:
        for reason, number in done["rejected"].items():
            print(f"left out {number:,} files: {reason}", file=sys.stderr)
        found = f"{done['declarations']:,} declarations in {done['files']:,} files"
        print(f"{found} at commit {done['commit']}", file=sys.stderr)
    return 0
