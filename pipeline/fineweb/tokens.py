"""The ids of a unit's texts, batch by batch, and how they are stored.

- A sample of the texts, chosen by content, is encoded again in every unit, GPT-2's with tiktoken,
  up to a fixed number of bytes; where none is chosen, the shortest text is.
- Ids are stored in the order of a seeded hash of the document: that of the training stream.
- Where most documents are used, they are encoded in the first pass, while the text is there. Which
  way it is follows from the spec and the files' footers alone; every row is the same either way.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tangobench.pipeline.core.arrays import NDArray
from tangobench.pipeline.core.build import Arguments
from tangobench.pipeline.core.hashing import Sink
from tangobench.pipeline.fineweb.spec import Spec
from tangobench.pipeline.tokenizer.base import SAMPLE_SHARE, Tokenizer
from tangobench.pipeline.tokenizer.use import Choice

BYTES_PER_TOKEN: Final = 5.2  # English web text has 4.4 to 4.9; more means a second wave is rare
SAMPLE_BYTES: Final = 1 << 16  # of a unit's 32 MiB: tiktoken takes 25 times as long per byte
_TOGETHER: Final = 256  # documents that are written at once, a mebibyte of tokens or so


def one_pass(spec: Spec, size: float) -> bool:
    """Whether the rows take at least half of an input; `size` is that of all listed files' row
    groups before compression, copies of a file included: `plan` knows no more than the footers."""
    return spec.train_rows * spec.context * BYTES_PER_TOKEN >= size / 2


@dataclass(frozen=True, slots=True)
class Encoding(Arguments):
    """What the first pass encodes: training dumps, and later texts of at least `shortest` bytes."""

    seed: int
    shortest: int
    tokenizer: Choice


class Ids:
    """`found` has the ids of each text, in the order in which texts were added.

    Equal texts are encoded once and share one array: a file of 60 kB can hold 12,000 copies of a
    long text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.dtype = np.dtype(tokenizer.dtype)
        self.found: list[NDArray] = []
        self.checked = 0
        self._tokenizer, self._sampled = tokenizer, 0
        self._known: dict[bytes, NDArray] = {}
        self._shortest: tuple[str, NDArray, str] | None = None

    def add(self, texts: pa.Array, content: NDArray, names: pa.Array) -> None:
        """Encode texts; `content` has their content keys as two columns."""
        raw = content.tobytes()
        keys = [raw[at : at + 16] for at in range(0, len(raw), 16)]
        new = {key: at for at, key in enumerate(keys) if key not in self._known}
        fresh = (
            texts if len(new) == len(keys) else texts.take(pa.array(list(new.values()), pa.int64()))
        )
        self._known.update(zip(new, self._tokenizer.encode_arrow(fresh), strict=True))
        ids = [self._known[key] for key in keys]
        self.found += ids
        sizes = pc.binary_length(texts).to_numpy()
        chosen = content[:, 1] % np.uint64(SAMPLE_SHARE) == 0
        sampled = self._sampled + np.cumsum(np.where(chosen, sizes, 0))
        for at in np.flatnonzero(chosen & (sampled <= SAMPLE_BYTES)).tolist():
            self._check(texts[at].as_py(), ids[at], names[at].as_py())
        if len(sizes):
            self._sampled, at = int(sampled[-1]), int(np.argmin(sizes))
            if self._shortest is None or sizes[at] < len(self._shortest[0].encode()):
                self._shortest = (texts[at].as_py(), ids[at], names[at].as_py())

    def _check(self, text: str, ids: NDArray, name: str) -> None:
        self._tokenizer.check(text, ids, name)
        self.checked += 1

    def lengths(self) -> NDArray:
        """How many ids each text has; called when all texts are there."""
        if self._shortest is not None and not self.checked:
            self._check(*self._shortest)
        return np.array([len(ids) for ids in self.found], np.int64)


def write_ids(sink: Sink, ids: Iterable[NDArray], dtype: np.dtype[np.generic]) -> None:
    waiting = iter(ids)
    while some := list(itertools.islice(waiting, _TOGETHER)):
        sink.write(np.concatenate(some, dtype=dtype, casting="same_kind"))


def order_hash(ident: str, content: bytes, seed: int) -> int:
    """A document's place in the training stream."""
    return xxhash.xxh3_64_intdigest(ident.encode() + b"\0" + content, seed)


def order_hashes(idents: pa.Array, content: NDArray, seed: int) -> NDArray:
    """The same of many, given their content keys as two columns."""
    raw = content.astype(">u8").tobytes()
    names = enumerate(idents.to_pylist())
    return np.array([order_hash(name, raw[16 * n : 16 * n + 16], seed) for n, name in names], "u8")
