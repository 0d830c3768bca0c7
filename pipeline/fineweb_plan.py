"""What a FineWeb-Edu build would read, take and need: estimates from measured rates.

- Rates are per core, from `make bench-fineweb` and `make bench-dedup` on two shared cores; the
  network is not in them.
- A local source is measured by its footers; the hub's sizes are those of its published index.

Usage: `plan(spec, None, workers=2)["lines"]`.
"""

from __future__ import annotations

from typing import Any, Final

from tangobench.pipeline import fineweb_sample
from tangobench.pipeline.fineweb_dedup import EDGES_IN_MEMORY, PART_ROWS, partitions_for
from tangobench.pipeline.fineweb_inputs import list_source
from tangobench.pipeline.fineweb_read import promised
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
_PASSES: Final = 3
_HASH_RATE: Final = 1.2e9  # bytes of Parquet per core-second: sha256
_READ_RATE: Final = 600e6  # bytes of text per core-second: decode
_KEYS_RATE: Final = 400e6  # decode, check, hash
_TOKENS_RATE: Final = 105e6  # encode, re-encode a sample, pack, hash, write twice
_DEDUP_RATE: Final = 400e3  # rows per core-second, decisions included
_DOCUMENT_BYTES: Final = 110  # id, keys and dump per document, and its key rows
_DECISION_BYTES: Final = 60  # per document, compressed
_TOKEN_BYTES: Final = 2.2  # with its part of the spans
_EDGES: Final = 0.25  # per document: recrawls of a page or of a text
_EDGE_BYTES: Final = 64  # on disk, while components are found
_MANY: Final = 100_000_000  # documents beyond which units of a gibibyte keep their number small
_LARGE_UNIT: Final = 1 << 30


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """Totals and lines to print."""
    rows, size, text, known = _input(spec, source)
    tokens = spec.train_rows * spec.context
    wanted = min(text, tokens * 5.2)
    core_seconds = size / _HASH_RATE + text / _KEYS_RATE + text / _READ_RATE + rows / _DEDUP_RATE
    core_seconds += wanted / _TOKENS_RATE
    unit = max(spec.unit_bytes, _LARGE_UNIT if rows > _MANY else 0)
    disk = rows * (2 * _DOCUMENT_BYTES + 2 * _DECISION_BYTES + _EDGES * _EDGE_BYTES)
    disk += 2 * _TOKEN_BYTES * min(tokens, text / 4)  # in units and in shards
    memory = _memory(rows, unit * wanted / max(text, 1), workers)
    hours = core_seconds / workers / 3600
    crew = f"{workers} worker{'s' if workers > 1 else ''}"
    lines = [
        f"input: about {rows:,} documents, {size / 1e9:,.1f} GB of Parquet ({known})",
        f"read: {_PASSES * size / 1e9:,.1f} GB in three passes (sha256, keys, tokens)",
        f"disk: {disk / 1e9:,.1f} GB for units and shards, without the input",
        f"memory: {memory / 1e9:,.1f} GB with {crew}",
        f"time: {hours:,.2f} hours with {crew} ({core_seconds / 3600:,.1f} core-hours), "
        f"network not counted: {_PASSES * size / 125e6 / 3600:,.1f} hours at 1 Gbit/s",
        *_settings(spec, rows, text, unit),
    ]
    return {
        "rows": rows,
        "read_bytes": int(_PASSES * size),
        "disk_bytes": int(disk),
        "memory_bytes": int(memory),
        "core_seconds": core_seconds,
        "lines": lines,
    }


def _memory(rows: int, unit_tokens_text: float, workers: int) -> float:
    """A worker holds libraries, and one hash partition or the texts and ids of one unit."""
    partition = 400e6 * min(1.0, rows / PART_ROWS)
    graph = min(100 * _EDGES * rows, 800e6)  # one process at a time, never beside partitions
    return max(workers * (250e6 + max(partition, 7 * unit_tokens_text)), 250e6 + graph)


def _settings(spec: Spec, rows: int, text: float, unit: int) -> list[str]:
    """What the estimate assumes, and how to get it."""
    parts = partitions_for(rows)
    graph = "in memory" if _EDGES * rows <= EDGES_IN_MEMORY else "spilled to disk"
    lines = [
        f"settings: {parts} hash partitions of {PART_ROWS:,} documents, components {graph}, "
        f"units of {unit >> 20:,} MiB (about {max(1, round(text / unit)):,})"
    ]
    if unit != spec.unit_bytes:
        lines.append(f"for units of that size: --set unit_bytes={unit}")
    if rows > _MANY:
        lines.append(
            "more machines: --runner dask --address tcp://… with a --store that all of them see; "
            "time falls with the workers, the components are found on one"
        )
    return lines


def _input(spec: Spec, source: str | None) -> tuple[int, float, float, str]:
    """Rows, bytes of Parquet, bytes of text, and how they are known."""
    if source is None and spec.source == "sample":
        return fineweb_sample.count(), 4e6, 4e6 * _TEXT_PER_PARQUET, "the embedded sample"
    if source in (None, "hub") or hub_name(str(source)) is not None:
        rows = size = 0.0
        for folder, limit in spec.hub.folders():
            known = _KNOWN.get(folder, _ONE_DUMP)
            share = min(1.0, limit / 14) if limit else 1.0
            rows, size = rows + share * known[0], size + share * known[1]
        return int(rows), size, size * _TEXT_PER_PARQUET, "estimated from published sizes"
    files = list_source(spec, source).files
    size = float(sum(file.size or 0 for file in files))
    found = [promised(file) for file in files]
    return sum(r for r, _ in found), size, sum(t for _, t in found), "from the files' footers"
