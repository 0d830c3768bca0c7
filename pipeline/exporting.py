"""A dataset's rows in files that other trainers read: Parquet, or a folder of `datasets`.

- Every shard is verified before its rows are written, and the rows are hashed again as they were
  written: they have the dataset's `content_root`, or there is no export.
- parquet: DIR/CONFIG/SPLIT-00000-of-0000N.parquet, one file per shard.
- hf: `datasets.load_from_disk("DIR/CONFIG")["SPLIT"]`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.errors import CorruptionError, UsageError
from tangobench.pipeline.core import files, hashing
from tangobench.pipeline.core.hashing import rows_sha256
from tangobench.pipeline.core.lock import content_root_of
from tangobench.pipeline.core.shards import shard_name
from tangobench.pipeline.reading import Dataset

Format = Literal["parquet", "hf"]
Written: TypeAlias = Iterator[tuple[str, pa.Table | Iterable[pa.RecordBatch]]]
"""The rows of each shard, by its path, as they were written."""
NOTE: Final = "export.json"
_FORMAT: Final = "tangobench-export/1"
_BATCH: Final = 1024


def require_new(target: Path) -> None:
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        why, fix = f"{target} is not empty", "name a new or empty folder"
        raise UsageError(why, kind="not-empty", fix=fix, path=str(target))


def export_rows(dataset: Dataset, target: Path, form: Format) -> str:
    """Write all rows to a new folder; returns their content root, which is the dataset's."""
    require_new(target)
    lock, needed = dataset.lock, sum(shard["bytes"] for shard in dataset.lock.shards)
    with files.explain_os_errors(target, needed), files.partial_folder(target) as folder:
        write = _write_parquet if form == "parquet" else _write_hf
        rows = {path: rows_sha256(table) for path, table in write(dataset, folder)}
        written = [{**shard, "rows_sha256": rows[shard["path"]]} for shard in lock.shards]
        found = content_root_of({"shards": written})
        if found != lock.content_root:
            why = f"the export has content root {found}, the dataset {lock.content_root}"
            fix = "check that disk, and export again"
            raise CorruptionError(why, kind="export-corrupt", fix=fix, path=str(target))
        note = {"format": _FORMAT, "as": form, "content_root": found, "root": lock.root}
        note |= {"dataset": lock.name, "profile": lock.profile}
        files.write_atomic(folder / NOTE, hashing.seal(note))
    return found


def _splits(dataset: Dataset) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    lock = dataset.lock
    return (
        (config, split, lock.shards_of(config, split))
        for config in lock.configs
        for split in lock.splits(config)
    )


def _write_parquet(dataset: Dataset, folder: Path) -> Written:
    for config, split, entries in _splits(dataset):
        rows = dataset.rows(config, split)
        for index, entry in enumerate(entries):
            name = shard_name(split, index, len(entries)).replace(".arrow", ".parquet")
            path, shard = folder / config / name, rows.shard(index)
            with (
                files.atomic_file(path, needed=entry["bytes"]) as target,
                os.fdopen(target.descriptor, "wb", closefd=False) as file,
                pq.ParquetWriter(file, shard.schema, compression="zstd") as writer,
            ):
                for batch in shard:
                    writer.write_batch(batch)
            with pq.ParquetFile(path) as written:
                yield entry["path"], written.iter_batches(_BATCH)


def _write_hf(dataset: Dataset, folder: Path) -> Written:
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        for config in dataset.lock.configs:
            splits = {s: dataset.to_datasets(config, s) for s in dataset.lock.splits(config)}
            datasets.DatasetDict(splits).save_to_disk(folder / config)
    finally:
        if shown:
            datasets.enable_progress_bars()
    for config, split, entries in _splits(dataset):
        table, first = datasets.load_from_disk(str(folder / config))[split].data.table, 0
        for entry in entries:
            yield entry["path"], table.slice(first, entry["rows"])
            first += entry["rows"]
