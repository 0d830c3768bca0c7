"""A byte-level BPE of your own, trained on the kept training documents of a dataset folder.

The same folder and size give the same bytes: counting is exact, and ties are broken by token.
Validation is never read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

import numpy as np

from tangobench.errors import UsageError
from tangobench.pipeline.core.hashing import canonical_json
from tangobench.pipeline.tokenizer.base import EOT_TEXT

_LEAST: Final = 257  # every byte, and the end of a text
_MOST: Final = 1 << 20


def train(dataset: Any, size: int) -> tuple[bytes, int]:
    """The tokenizer as canonical JSON, and how many ids it has: fewer if the text gives no more."""
    if not _LEAST <= size <= _MOST:
        fix = f"use {_LEAST} to {_MOST:,} token ids"
        raise UsageError(f"--size is {size}", kind="usage", fix=fix)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[EOT_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(documents(dataset), trainer)
    return canonical_json(json.loads(library.to_str())), library.get_vocab_size()


def documents(dataset: Any) -> Iterator[str]:
    """The texts of the training split of an open dataset, each whole; the last may be cut."""
    tokenizer, config = dataset.text_tokenizer, next(iter(dataset.lock.configs))
    config = "source" if "source" in dataset.lock.configs else config
    rows = dataset.rows(config, "train")
    if config == "source":
        for _, parts in groupby(rows, key=lambda row: row["path"]):
            yield _text(b"".join(tokenizer.decode_bytes(row["tokens"]) for row in parts))
        return
    held: list[bytes] = []
    for row in rows:
        first, *others = np.split(row["tokens"], np.flatnonzero(row["tokens"] == tokenizer.eot))
        held.append(tokenizer.decode_bytes(first))
        for part in others:  # each begins with the end of the document before
            yield _text(b"".join(held))
            held = [tokenizer.decode_bytes(part[1:])]
    yield _text(b"".join(held))


def _text(data: bytes) -> str:
    return data.decode(errors="ignore")  # a document that the last row cuts
