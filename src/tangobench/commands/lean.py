"""`lean extract`: proofs of a repository at one commit, as JSON lines."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tangobench.commands._common import command, count, emit_json, finished, reporter_of


def add(commands: Any) -> None:
    """Add the command to the program."""
    parser = command(commands, "lean", None, "tools for Lean sources")
    inner = parser.add_subparsers(dest="lean_command", required=True, metavar="COMMAND")
    extract = command(
        inner, "extract", _extract,
        "one JSON line per theorem and lemma, with byte offsets and the proof",
        "lean extract --source ~/my-project --commit HEAD --out proofs.jsonl",
        about="Cut the proofs out of every .lean file of a commit. Files that are not UTF-8 or end "
        "inside a comment or string are left out and named.",
    )  # fmt: skip
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


def _extract(args: argparse.Namespace) -> int:
    from tangobench.pipeline.lean.export import export
    from tangobench.pipeline.lean.proofs import PROOF_KINDS

    done = export(
        args.source,
        args.commit,
        args.out,
        args.path,
        args.kind or PROOF_KINDS,
        max_bytes=args.max_bytes,
        reporter=reporter_of(args),
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
    finished(args, f"wrote {args.out}: {found} at commit {done['commit']}")
    return 0
