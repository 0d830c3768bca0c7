"""`tokenizer train`: a byte-level BPE of your own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import command, count, finished, place, show


def add(commands: Any) -> None:
    """Add the command to the program."""
    parser = command(commands, "tokenizer", None, "train a tokenizer on a dataset's documents")
    inner = parser.add_subparsers(dest="tokenizer_command", required=True, metavar="COMMAND")
    trainer = command(
        inner, "train", _train,
        "a byte-level BPE from the kept training documents of a dataset folder",
        "tokenizer train out/fineweb-sample --size 4096 --out t.json",
        about="Writes a Hugging Face tokenizer.json; name it in a manifest with tokenizer = "
        '"FILE". The same folder and size give the same bytes.',
    )  # fmt: skip
    trainer.add_argument("folder", type=place, help="a built dataset of texts")
    trainer.add_argument("--size", type=count, default=4096, metavar="N", help="ids (default 4096)")
    trainer.add_argument("--out", required=True, type=Path, metavar="FILE", help="tokenizer.json")


def _train(args: argparse.Namespace) -> int:
    from tangobench.pipeline.core.files import write_atomic
    from tangobench.pipeline.core.hashing import sha256_bytes
    from tangobench.pipeline.reading import open_dataset
    from tangobench.pipeline.tokenizer.training import train

    data, size = train(open_dataset(str(args.folder)), args.size)
    write_atomic(args.out, data)
    sha256 = sha256_bytes(data)
    found = {"file": str(args.out), "entries": size, "sha256": sha256}
    finished(args, f"trained {args.out}", f"tangobench build lean --set tokenizer={args.out}")
    return show(args, found, f"{args.out}: {size:,} ids, sha256 {sha256}")
