"""What a FineWeb-Edu build would read, take and need: estimates from measured rates.

- Rates are per core, from `make bench-fineweb` and `make bench-dedup` on two shared cores; the
  network is not in them.
- A local source is measured by its footers; the hub's sizes are those of its published index.

Usage: `plan(spec, None, workers=2)["lines"]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tangobench.pipeline import fineweb_sample
from tangobench.pipeline.fineweb_dedup import PART_ROWS, partitions_for
from tangobench.pipeline.hub import hub_name

if TYPE_CHECKING:
    from tangobench.pipeline.fineweb import Spec

# (rows, Parquet bytes) of parts of HuggingFaceFW/fineweb-edu.
_KNOWN: Final = {
    "sample/10BT": (9_672_101, 28_500_000_000),
    "sample/100BT": (97_270_686, 286_000_000_000),
    "sample/350BT": (339_347_842, 998_000_000_000),
    "data": (1_260_000_000, 3_700_000_000_000),
    "data/CC-MAIN-2023-50": (14_000_000, 42_000_000_000),
}
_TEXT_PER_PARQUET: Final = 1.75
_KEYS_RATE: Final = 260e6  # bytes of text per core-second: decode, check, hash
_TOKENS_RATE: Final = 70e6  # decode, encode, re-encode a sample, pack, hash
_DEDUP_RATE: Final = 250e3  # rows per core-second
_DOCUMENT_BYTES: Final = 110  # id, keys and dump per document, and its key rows
_BYTES_PER_TOKEN: Final = 4.7


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """Totals and lines to print."""
    rows, size, known = _input(spec, source)
    text = size * _TEXT_PER_PARQUET
    partitions = partitions_for(rows)
    wanted = min(text, spec.train_rows * spec.context * 5.2)
    tokens = spec.train_rows * spec.context
    core_seconds = 2 * text / _KEYS_RATE + wanted / _TOKENS_RATE + rows / _DEDUP_RATE
    disk = rows * (_DOCUMENT_BYTES * 2 + 60) + 4 * 2 * tokens
    memory = workers * (400e6 * min(1.0, rows / PART_ROWS) + 250e6)
    hours = core_seconds / workers / 3600
    lines = [
        f"input: about {rows:,} documents, {size / 1e9:,.1f} GB of Parquet ({known})",
        f"read: {2 * size / 1e9:,.1f} GB in two passes (text and keys, then tokens)",
        f"disk: {disk / 1e9:,.1f} GB for units and shards, without the input",
        f"memory: {memory / 1e9:,.1f} GB with {workers} workers and {partitions} hash partitions",
        f"time: {hours:,.2f} hours with {workers} workers ({core_seconds / 3600:,.1f} core-hours), "
        "network not counted",
        "more machines: --runner dask with a shared --store; raise unit_bytes to 1 GiB beyond "
        "100 million documents",
    ]
    return {
        "rows": rows,
        "read_bytes": int(2 * size),
        "disk_bytes": int(disk),
        "memory_bytes": int(memory),
        "core_seconds": core_seconds,
        "lines": lines,
    }


def _input(spec: Spec, source: str | None) -> tuple[int, float, str]:
    if source is None and spec.source == "sample":
        return fineweb_sample.count(), 4e6, "the embedded sample"
    if source in (None, "hub") or hub_name(str(source)) is not None:
        rows = size = 0.0
        for folder, limit in spec.hub.folders():
            known = _KNOWN.get(folder, _KNOWN["data/CC-MAIN-2023-50"])
            share = min(1.0, limit / 14) if limit else 1.0
            rows, size = rows + share * known[0], size + share * known[1]
        return int(rows), size, "from published sizes"
    from tangobench.pipeline.fineweb import list_source
    from tangobench.pipeline.fineweb_read import count_rows

    files = list_source(spec, source).files
    size = float(sum(file.size or 0 for file in files))
    return sum(count_rows(file) for file in files), size, "from the files' footers"
