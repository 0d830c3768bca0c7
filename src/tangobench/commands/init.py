"""`init`: a commented manifest to build a dataset of your own from."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from tangobench.commands._common import command, finished, show
from tangobench.errors import UsageError

_DOCUMENTS: Final = """\
# A dataset of your own documents. Build it with: tangobench build {name}

kind = "documents"
files = "data/*.parquet"        # a file, folder or glob: Parquet, JSONL, CSV, Arrow, .gz, .zst;
                                # or "hub:OWNER/NAME@REVISION" for a dataset of the hub
licence = "unknown"

context = 1024                  # tokens of a row; validation rows are whole windows of one document
# train_rows = 10_000           # at most; all there are by default
# validation_rows = 1_000
# tokenizer = "gpt2"            # or a tiktoken encoding, or the path of a tokenizer.json
# eot = "<|endoftext|>"         # its special token between documents

[columns]
text = "text"
# id = "doc_id"                 # without it: the hash of text and URL
# url = "link"                  # without it, documents are linked by content only
# time = "published"            # ISO 8601, a timestamp or seconds since 1970

[split]
by = "hash"                     # or "time", or "dump" (CC-MAIN-YYYY-WW)
share = 0.05                    # hash: validation; a component with a training member is training
# cut = "2024-01-01"            # time: documents from here on are validation
"""


def add(commands: Any) -> None:
    """Add the command to the program."""
    parser = command(
        commands, "init", _init, "write a commented manifest for a dataset of your own",
        "init documents my-corpus.toml",
        "init lean my-project.toml",
        about="Writes a template to edit; `tangobench build FILE.toml` then builds "
        "OUT/FILE-PROFILE.",
    )  # fmt: skip
    parser.add_argument("kind", help="documents, or a dataset to start from")
    parser.add_argument("file", type=Path, metavar="FILE.toml", help="a new file")


def _init(args: argparse.Namespace) -> int:
    from tangobench.catalogue import CATALOGUE
    from tangobench.pipeline.core.files import write_atomic
    from tangobench.pipeline.core.spec import manifest_file

    path: Path = args.file.expanduser()
    kinds = ["documents", *CATALOGUE]
    if args.kind not in kinds or path.suffix != ".toml":
        raise UsageError(
            f"init {args.kind} {path}: not a kind and a .toml file",
            kind="usage",
            fix=f"tangobench init documents my-corpus.toml; kinds: {', '.join(kinds)}",
        )
    if path.exists():
        raise UsageError(f"{path} exists already", kind="file-exists", fix="name another file")
    text = _DOCUMENTS.format(name=path.name)
    if args.kind != "documents":
        text = f'kind = "{args.kind}"\n\n' + manifest_file(f"{args.kind}.toml").read_text("utf-8")
    write_atomic(path, text.encode())
    finished(args, f"wrote {path}", f"edit it, then tangobench build {path}")
    return show(args, {"file": str(path), "kind": args.kind}, str(path))
