"""`tokenizer train`: a byte-level BPE of your own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import add_output_options, count, emit_json, place


def add(commands: Any) -> None:
    """Add the command to the program."""
    parser = commands.add_parser("tokenizer", help="train a tokenizer on a dataset's documents")
    inner = parser.add_subparsers(dest="tokenizer_command", required=True, metavar="COMMAND")
    trainer = inner.add_parser(
        "train",
        help="a byte-level BPE from the kept training documents of a dataset folder",
        description="Writes a Hugging Face tokenizer.json; name it in a manifest with "
        'tokenizer = "FILE". The same folder and size give the same bytes.',
    )
    trainer.add_argument("folder", type=place, help="a built dataset of texts")
    trainer.add_argument("--size", type=count, default=4096, metavar="N", help="ids (default 4096)")
    trainer.add_argument("--out", required=True, type=Path, metavar="FILE", help="tokenizer.json")
    add_output_options(trainer)
    trainer.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    from tangobench.pipeline.core.files import write_atomic
    from tangobench.pipeline.core.hashing import sha256_bytes
    from tangobench.pipeline.reading import open_dataset
    from tangobench.pipeline.tokenizer.training import train

    data, size = train(open_dataset(str(args.folder)), args.size)
    write_atomic(args.out, data)
    found = {"file": str(args.out), "entries": size, "sha256": sha256_bytes(data)}
    if args.json:
        emit_json(found)
    else:
        print(f"{args.out}: {size:,} ids, sha256 {found['sha256']}")
    return 0
