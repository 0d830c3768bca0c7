"""`push`: a dataset or model folder to the hub."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import command, finished, reporter_of, show


def add(commands: Any) -> None:
    """Add the command to the program."""
    pusher = command(
        commands, "push", _push, "upload a dataset or model folder to the hub",
        "push out/lean-sample me/lean-sample           # lists what would be sent",
        "push out/lean-sample me/lean-sample --yes",
        about="Verify DIR and list what would be uploaded to REPO. With --yes: upload it, "
        "in one commit. HF_ENDPOINT chooses another hub.",
    )  # fmt: skip
    pusher.add_argument("folder", type=Path, metavar="DIR", help="a dataset or exported model")
    pusher.add_argument("repository", metavar="REPO", help="OWNER/NAME")
    pusher.add_argument("--yes", action="store_true", help="upload; without it nothing is sent")


def _push(args: argparse.Namespace) -> int:
    from tangobench.pipeline.core.progress import size
    from tangobench.pipeline.core.push import plan_push, push

    upload = plan_push(args.folder, args.repository)
    files = {file: (upload.folder / file).stat().st_size for file in upload.files}
    for file, length in files.items():
        reporter_of(args).say(f"{size(length):>10}  {file}")
    address = push(upload) if args.yes else None
    what = f"{len(files)} files, {size(upload.bytes)}, to {upload.kind} {upload.repository}"
    found: dict[str, Any] = {
        "repository": upload.repository,
        "kind": upload.kind,
        "files": list(files),
    }
    found |= {"bytes": upload.bytes, "commit": address}
    if address:
        finished(args, f"uploaded {what}")
    return show(args, found, address or f"dry run: {what}; --yes uploads them")
