"""What a FineWeb-Edu build would read, take and need: estimates from measured rates.

- Rates are per core, from `make bench-fineweb` and `make bench-dedup` on two shared cores; the
  network is not in them.
- A local source is measured by its footers; the hub's sizes are those of its published index.

Usage: `plan(spec, None, workers=2)["lines"]`.
"""

from __future__ import annotations

from typing import Any, Final

from tangobench.pipeline import fineweb_sample
from tangobench.pipeline.fineweb_dedup import PART_ROWS, partitions_for
from tangobench.pipeline.fineweb_inputs import list_source
from tangobench.pipeline.fineweb_read import count_rows
from tangobench.pipeline.fineweb_spec import Spec
from tangobench.pipeline.hub import hub_name

# (rows, Parquet bytes) of parts of HuggingFaceFW/fineweb-edu; one dump is the average of 95.
_TEN_BILLION: Final = (9_672_101, 28_500_000_000)
_WHOLE: Final = (1_260_000_000, 3_700_000_000_000)
_KNOWN: Final = {
    "sample/10BT": _TEN_BILLION,
    "sample/100BT": (10 * _TEN_BILLION[0], 10 * _TEN_BILLION[1]),
    "sample/350BT": (35 * _TEN_BILLION[0], 35 * _TEN_BILLION[1]),
    "data": _WHOLE,
}
_ONE_DUMP: Final = (_WHOLE[0] // 95, _WHOLE[1] // 95)
_TEXT_PER_PARQUET: Final = 1.75
_READ_RATE: Final = 370e6  # bytes of text per core-second: decode
_KEYS_RATE: Final = 160e6  # decode, check, hash
_TOKENS_RATE: Final = 55e6  # encode, re-encode a sample, pack, hash, write
_DEDUP_RATE: Final = 290e3  # rows per core-second, decisions included
_DOCUMENT_BYTES: Final = 110  # id, keys and dump per document, and its key rows


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """Totals and lines to print."""
    rows, size, known = _input(spec, source)
    text = size * _TEXT_PER_PARQUET
    partitions = partitions_for(rows)
    wanted = min(text, spec.train_rows * spec.context * 5.2)
    tokens = spec.train_rows * spec.context
    core_seconds = text / _KEYS_RATE + text / _READ_RATE + rows / _DEDUP_RATE
    core_seconds += wanted / _TOKENS_RATE
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
            known = _KNOWN.get(folder, _ONE_DUMP)
            share = min(1.0, limit / 14) if limit else 1.0
            rows, size = rows + share * known[0], size + share * known[1]
        return int(rows), size, "estimated from published sizes"
    files = list_source(spec, source).files
    size = float(sum(file.size or 0 for file in files))
    return sum(count_rows(file) for file in files), size, "from the files' footers"
