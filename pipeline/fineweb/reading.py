"""The rows of one unit of the input: a range of row groups, or of the embedded sample.

- `key()` says what is read (content and range); name and URL only say where.
- Rows come a thousand at a time, with the columns `id dump url text date`.

Usage: `for batch in FileRows(...).rows(): ...`; `for texts in SampleRows(0, 640).texts(): ...`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa

from tangobench.pipeline.core.build import Arguments
from tangobench.pipeline.core.remote import PATIENCE
from tangobench.pipeline.fineweb import parquet
from tangobench.pipeline.fineweb import sample as fineweb_sample
from tangobench.pipeline.fineweb.sources import SourceFile

_BATCH: Final = 512
_COLUMNS: Final = ["id", "dump", "url", "text", "date"]


@dataclass(frozen=True, slots=True)
class SampleRows(Arguments):
    """Documents start..stop-1 of the embedded sample."""

    start: int
    stop: int

    name: ClassVar[str] = "the embedded sample"

    @property
    def label(self) -> str:
        """For progress and errors."""
        return f"sample {self.start}"

    @property
    def size(self) -> int:
        """Relative cost."""
        return self.stop - self.start

    @property
    def first_row(self) -> int:
        """The number of the first row, for messages."""
        return self.start

    def key(self) -> Any:
        """What decides the rows."""
        return ["fineweb_sample", fineweb_sample.VERSION, self.start, self.stop]

    def rows(self) -> Iterator[pa.Table]:
        """The rows."""
        for first in range(self.start, self.stop, _BATCH):
            table = fineweb_sample.sample_table(first, min(self.stop, first + _BATCH))
            yield table.select(_COLUMNS).combine_chunks()

    def texts(self) -> Iterator[pa.Array]:
        """The texts, in the order of the rows."""
        for table in self.rows():
            yield parquet.whole(table["text"])


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRows(Arguments):
    """Row groups groups[0]..groups[1]-1 of a Parquet file.

    Without `with_texts` neither texts nor URLs are read: all rows are of ignored dumps.
    """

    sha256: str
    groups: tuple[int, int]
    with_texts: bool
    name: str
    url: str
    has_date: bool
    first_row: int
    size: int
    patience: float = PATIENCE

    @property
    def label(self) -> str:
        """For progress and errors."""
        return f"{self.name} groups {self.groups[0]}-{self.groups[1] - 1}"

    def key(self) -> Any:
        """What decides the rows."""
        return [self.sha256, self.groups, self.with_texts]

    def rows(self) -> Iterator[pa.Table]:
        """The rows."""
        return self._read(["id", "dump", "date", *(("url", "text") if self.with_texts else ())])

    def texts(self) -> Iterator[pa.Array]:
        """The texts, in the order of the rows."""
        for table in self._read(["text"]):
            yield parquet.whole(table["text"])

    def _read(self, columns: list[str]) -> Iterator[pa.Table]:
        wanted = [name for name in columns if name != "date" or self.has_date]
        yield from parquet.read(
            SourceFile(self.name, self.url, patience=self.patience), range(*self.groups), wanted
        )


Reading = SampleRows | FileRows
