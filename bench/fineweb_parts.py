"""The parts of a FineWeb-Edu build, each alone: CPU seconds of one process on the build's input.

- Decoding once, encoding what is packed and one sha256 of the output are what no build can do
  without. The other parts are what this build does besides.
- What does not depend on the text (start, libraries, URLs, decisions, the files of every stage,
  exit) is a build of `without_texts`, which bench/fineweb.py runs.

Usage: `text_parts(corpus) | byte_parts(output_bytes, corpus_bytes)`, `first_use(megabytes)`.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from side_by_side import HOME

from tangobench.pipeline.core.files import write_atomic
from tangobench.pipeline.fineweb.keys import content_keys, invalid_utf8
from tangobench.pipeline.fineweb.packing import SAMPLE_BYTES
from tangobench.pipeline.fineweb.spec import dump_order
from tangobench.pipeline.tokenizer.base import SAMPLE_SHARE, Tokenizer, gpt2

UNIT: Final = 1 << 25  # bytes of text: `unit_bytes` of the manifest


class Clock(dict[str, float]):
    """CPU seconds by part."""

    @contextlib.contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self[part] = self.get(part, 0.0) + time.process_time() - began


def text_parts(corpus: Path) -> Clock:
    """Everything that is done with texts, batch by batch, as in a build."""
    tokenizer, clock, left = gpt2(), Clock(), 0.0
    tokenizer.check("once", tokenizer.encode_arrow(pa.array(["once"]))[0], "")  # loaded
    file = pq.ParquetFile(corpus)
    batches = file.iter_batches(1024, columns=["text", "dump"], use_threads=False)
    while True:
        with clock("decode"):
            batch = next(batches, None)
        if batch is None:
            return clock
        texts = batch.column("text").filter(_used(batch))
        with clock("encode"):
            ids = tokenizer.encode_arrow(texts)
        with clock("keys and UTF-8"):
            invalid_utf8(batch.column("text"))
            content_keys(batch.column("text"))
        with clock("two copies of tokens"):  # into hash order, and into rows
            for first in range(0, len(ids), 256):
                np.concatenate(ids[first : first + 256]).copy()
        with clock("tiktoken again"):
            left += SAMPLE_BYTES * batch.column("text").nbytes / UNIT
            left = _check(tokenizer, texts, ids, left)


def _used(batch: Any) -> Any:
    """Texts of training dumps, and those that may fill a window."""
    orders = pc.dictionary_encode(batch.column("dump"))
    early = [(dump_order(name) or 0) <= 202340 for name in orders.dictionary.to_pylist()]
    long = pc.greater_equal(pc.binary_length(batch.column("text")), 8192)
    return pc.or_(pa.array(early).take(orders.indices), long)


def _check(tokenizer: Tokenizer, texts: Any, ids: list[Any], left: float) -> float:
    """Compare a build's sample of texts; how many bytes may still be compared."""
    for at in np.flatnonzero(content_keys(texts)[:, 1] % np.uint64(SAMPLE_SHARE) == 0).tolist():
        size = len(texts[at].as_buffer())
        if size <= left:
            tokenizer.check(texts[at].as_py(), ids[at], "")
            left -= size
    return left


def byte_parts(output: int, corpus: int) -> Clock:
    """Hashes of the output, of stored tokens, rows and the input; tokens and rows written."""
    clock, block = Clock(), np.random.default_rng(1).integers(0, 256, output, np.uint8)
    with clock("sha256"):
        hashlib.sha256(block)
    clock["three more sha256"] = (2 + corpus / output) * clock["sha256"]
    with clock("two writes"):
        for name in ("tokens", "shards"):
            write_atomic(HOME / name, block)
            (HOME / name).unlink()
    return clock


def first_use(megabytes: int) -> Clock:
    """What the kernel does when a process first touches so much memory."""
    clock, fresh = Clock(), mmap.mmap(-1, max(1, megabytes) << 20)
    with clock("memory used first"):
        np.frombuffer(fresh, np.uint8)[:: mmap.PAGESIZE] = 1
    return clock


def without_texts(corpus: Path) -> tuple[Path, int]:
    """The corpus with a hash for each text, and `unit_bytes` that cut it into as many units."""
    path, file = HOME / "bare.parquet", pq.ParquetFile(corpus)
    with pq.ParquetWriter(path, file.schema_arrow) as writer:
        for number in range(file.num_row_groups):
            table = file.read_row_group(number)
            texts = [xxhash.xxh3_128_hexdigest(t.encode()) for t in table["text"].to_pylist()]
            place = table.schema.get_field_index("text")
            writer.write_table(table.set_column(place, "text", pa.array(texts)))
    bare, whole = (
        sum(found.row_group(n).total_byte_size for n in range(found.num_row_groups))
        for found in (pq.read_metadata(path), file.metadata)
    )
    return path, UNIT * bare // whole
