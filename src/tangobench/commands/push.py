"""`push`: a dataset or model folder to the hub."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tangobench.commands._common import add_output_options, emit_json


def add(commands: Any) -> None:
    """Add the command to the program."""
    pusher = commands.add_parser(
        "push",
        help="upload a dataset or model folder to the hub",
        description="Verify DIR and list what would be uploaded to REPO. With --yes: upload it, "
        "in one commit. HF_ENDPOINT chooses another hub.",
    )
    pusher.add_argument("folder", type=Path, metavar="DIR")
    pusher.add_argument("repository", metavar="REPO", help="OWNER/NAME")
    pusher.add_argument("--yes", action="store_true", help="upload; without it nothing is sent")
    add_output_options(pusher)
    pusher.set_defaults(run=_push)


def _push(args: argparse.Namespace) -> int:
    from tangobench.pipeline.core.progress import size
    from tangobench.pipeline.core.push import plan_push, push

    upload = plan_push(args.folder, args.repository)
    address = push(upload) if args.yes else None
    if args.json:
        emit_json(
            {
                "repository": upload.repository,
                "kind": upload.kind,
                "files": list(upload.files),
                "bytes": upload.bytes,
                "commit": address,
            }
        )
        return 0
    if not args.quiet:
        for file in upload.files:
            print(f"{size((upload.folder / file).stat().st_size):>10}  {file}", file=sys.stderr)
    what = f"{len(upload.files)} files, {size(upload.bytes)}, to {upload.kind} {upload.repository}"
    print(address or f"dry run: {what}; --yes uploads them")
    return 0
