"""A corpus of real English for benchmarks, made on this machine from Debian's documentation.

- Ten packages are downloaded and unpacked, not installed; about 56,000 pages, 380 MB of text.
- Rows have FineWeb-Edu's columns; dumps are assigned by a hash of the path, so the split and the
  true duplicates between the packages exercise the dedup.
- Lives under /var/tmp/tangobench-bench and is never committed.

Usage: `path = make_corpus()`, `corpus_of(200)` for 200 MB of it.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from side_by_side import HOME

PACKAGES: Final = (
    "rust-doc",
    "linux-doc-6.1",
    "openjdk-17-doc",
    "python-pandas-doc",
    "erlang-doc",
    "python-scipy-doc",
    "libboost1.74-doc",
    "python3.11-doc",
    "python-sympy-doc",
    "sqlite3-doc",
)
DUMPS: Final = (
    "CC-MAIN-2022-40",
    "CC-MAIN-2023-06",
    "CC-MAIN-2023-14",
    "CC-MAIN-2023-40",
    "CC-MAIN-2023-50",
)
_SKIP: Final = re.compile(r"<(script|style|head)\b.*?</\1>", re.DOTALL | re.IGNORECASE)
_TAG: Final = re.compile(r"<[^>]*>")
_SPACE: Final = re.compile(r"[ \t]*\n\s*\n\s*|[ \t]+")


def _unpack() -> Path:
    debs, tree = HOME / "debs", HOME / "tree"
    if not tree.is_dir():
        debs.mkdir(parents=True, exist_ok=True)
        if len(list(debs.glob("*.deb"))) < len(PACKAGES):
            subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=debs, check=True)
        partial = HOME / "tree.partial"
        shutil.rmtree(partial, ignore_errors=True)
        for deb in sorted(debs.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(deb), str(partial)], check=True)
        partial.rename(tree)
    return tree


def _plain(data: bytes, suffix: str) -> str:
    text = data.decode("utf-8", "replace")
    if suffix in {".html", ".htm", ".xhtml"}:
        text = html.unescape(_TAG.sub(" ", _SKIP.sub(" ", text)))
        text = _SPACE.sub(lambda m: "\n\n" if "\n" in m[0] else " ", text)
    return text.strip()


def _rows(tree: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(tree.rglob("*")):
        if path.suffix not in {".html", ".htm", ".xhtml", ".txt", ".rst"} or path.is_symlink():
            continue
        text = _plain(path.read_bytes(), path.suffix)
        if len(text) < 200:
            continue
        name = path.relative_to(tree).as_posix()
        key = xxhash.xxh3_64_intdigest(name.encode())
        yield {
            "text": text,
            "id": f"<urn:uuid:{key:016x}>",
            "dump": DUMPS[key % len(DUMPS)],
            "url": f"https://docs.example/{name}",
            "date": f"2023-{1 + key % 12:02d}-01T00:00:00Z",
            "token_count": len(text) // 4,
        }


def make_corpus() -> Path:
    """The corpus as one Parquet file with row groups of 1,000 documents."""
    path = HOME / "corpus.parquet"
    if not path.exists():
        table = pa.Table.from_pylist(list(_rows(_unpack())))
        partial = path.with_suffix(".partial")
        pq.write_table(table, partial, row_group_size=1000, compression="snappy")
        partial.rename(path)
    return path


def corpus_of(megabytes: int) -> Path:
    """About so many megabytes of the corpus: evenly spaced documents, or copies that differ."""
    path = HOME / f"corpus-{megabytes}mb" / "corpus.parquet"
    if path.exists():
        return path
    whole = make_corpus()
    wanted = megabytes * 1e6 / text_bytes(whole)
    table = pq.read_table(whole)
    copies, share = divmod(wanted, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with pq.ParquetWriter(partial, table.schema, compression="snappy") as writer:
        for copy in range(int(copies)):
            writer.write_table(_changed(table, copy), row_group_size=1000)
        rows = np.unique(
            np.linspace(0, table.num_rows - 1, round(share * table.num_rows)).astype(int)
        )
        if len(rows):
            writer.write_table(_changed(table.take(rows), int(copies)), row_group_size=1000)
    partial.rename(path)
    return path


def _changed(table: pa.Table, copy: int) -> pa.Table:
    """The same documents with other ids, URLs and first words, so that copies do not link."""
    if copy == 0:
        return table
    for name in ("id", "url", "text"):
        column = pc.binary_join_element_wise(
            *((table[name], f"#{copy}") if name == "id" else (f"{copy} ", table[name])), ""
        )
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


def text_bytes(path: Path) -> int:
    """UTF-8 bytes of all texts."""
    file = pq.ParquetFile(path)
    return sum(
        pc.sum(pc.binary_length(batch.column("text"))).as_py()
        for batch in file.iter_batches(columns=["text"])
    )


if __name__ == "__main__":
    made = make_corpus()
    print(made, f"{pq.ParquetFile(made).metadata.num_rows:,} documents, {text_bytes(made):,} bytes")
