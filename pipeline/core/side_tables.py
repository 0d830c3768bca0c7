"""Tables beside the shards: decisions and declarations, checked like shards.

- A file is hashed whole before it is believed, as every reader of a dataset does.
- `check_rows` counts and hashes the rows again: a lock made to fit other bytes is noticed.

Usage: `SideTable(folder, entry, "lean").table()` for an entry of a lock's `side_files`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.errors import CorruptionError
from tangobench.pipeline.core.contents import check_table
from tangobench.pipeline.core.hashing import RowsHasher
from tangobench.pipeline.core.remote import Place
from tangobench.pipeline.core.shard_reader import broken, map_checked

_BATCH: Final = 1024


class SideTable:
    """A verified Parquet file beside the shards, such as decisions; a card has no rows."""

    def __init__(self, folder: Place, entry: dict[str, Any], dataset: str) -> None:
        self.entry = entry
        self._dataset = dataset
        self._path = folder / entry["path"]
        self._buffer = map_checked(folder, entry, entry["kind"])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its rows, a thousand at a time: a small file may decode to much."""
        try:
            file = pq.ParquetFile(pa.BufferReader(self._buffer))
            check_table(self._dataset, self.entry["kind"], file.schema_arrow)
            if file.metadata.num_rows == 0:
                kinds = file.schema_arrow
                empty = [pa.array([], field.type) for field in kinds]
                yield pa.RecordBatch.from_arrays(empty, names=kinds.names)
            yield from file.iter_batches(_BATCH, use_threads=False)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._lie(f"it is no such Parquet file: {error}") from None

    def table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.batches())

    def check_rows(self) -> None:
        """Refuse a table whose rows are not those that the lock counts and hashes."""
        if not self.entry["rows_sha256"]:
            return
        hasher, rows = RowsHasher(), 0
        for batch in self.batches():
            hasher.update(batch)
            rows += batch.num_rows
        for name, found in (("rows", rows), ("rows_sha256", hasher.hexdigest())):
            if found != self.entry[name]:
                raise self._lie(f"{name} is {found}, the lock says {self.entry[name]}")

    def _lie(self, why: str) -> CorruptionError:
        why = f"it is not what the lock says: {why}"
        return broken(self._path, "corrupt", why, self.entry["kind"])
