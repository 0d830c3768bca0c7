"""What a FineWeb-Edu build would read, take and need: estimates from measured rates.

- Rates are per core, from `make bench-plan`, `bench-fineweb` and `bench-dedup` on two shared cores;
  the network is not in them.
- A local source is measured by its footers; the hub's sizes are those of its published index.
"""

from __future__ import annotations

from typing import Any, Final

from tangobench.pipeline.fineweb import sample as fineweb_sample
from tangobench.pipeline.fineweb.inputs import list_source
from tangobench.pipeline.fineweb.parquet import promised
from tangobench.pipeline.fineweb.resolve import EDGES_IN_MEMORY, PART_ROWS, partitions_for
from tangobench.pipeline.fineweb.sources import hub_name
from tangobench.pipeline.fineweb.spec import Spec, config_folder
from tangobench.pipeline.tokenizer import keys

# (rows, Parquet bytes) of parts of HuggingFaceFW/fineweb-edu; one dump is the average of 95.
# Files have about 2 GB, row groups 1,000 rows.
_TEN_BILLION: Final = (9_672_101, 28_500_000_000)
_WHOLE: Final = (1_260_000_000, 3_700_000_000_000)
_KNOWN: Final = {
    "sample/10BT": _TEN_BILLION,
    "sample/100BT": (10 * _TEN_BILLION[0], 10 * _TEN_BILLION[1]),
    "sample/350BT": (35 * _TEN_BILLION[0], 35 * _TEN_BILLION[1]),
    "data": _WHOLE,
}
_ONE_DUMP: Final = (_WHOLE[0] // 95, _WHOLE[1] // 95)
_FILE_BYTES: Final = 2.04e9
_REQUESTS: Final = 3  # per file: its address, its bytes, its name in the cache
_SPEEDS: Final = {"100 Mbit/s": 1e8, "1 Gbit/s": 1e9, "10 Gbit/s": 1e10}
_TEXT_PER_PARQUET: Final = 1.75
_START: Final = 1.0  # seconds: imports, the encoder, publishing
_HASH_RATE: Final = 1.2e9  # bytes of Parquet per core-second: sha256
_READ_RATE: Final = 600e6  # bytes of text per core-second: decode
_KEYS_RATE: Final = 400e6  # decode, check, hash
_TOKENS_RATE: Final = 105e6  # encode, re-encode a sample, pack, hash, write twice
_DEDUP_RATE: Final = 400e3  # rows per core-second, decisions included
_NEAR_RATE: Final = {"rensa": 90e6, "datasketch": 11e6}  # bytes of text: decode, sign, compare
_NEAR_ROW: Final = 45e-6  # core-seconds per document, beside that
_DOCUMENT_BYTES: Final = 850  # keys, decisions joined, by file and published
_NEAR_BYTES: Final = 700  # per document: 112 minima, 14 bands, sorted bands
_BYTES_PER_TOKEN: Final = 4.6
_TOKEN_BYTES: Final = 2.2  # with its part of the spans
_EDGES: Final = 0.25  # per document of a sample: recrawls of a page or of a text
_EDGES_WHOLE: Final = 1.2  # of whole dumps: three quarters are copies, most by URL and by content
_EDGE_BYTES: Final = 64  # on disk, while components are found
_MANY: Final = 100_000_000  # documents beyond which units of a gibibyte keep their number small
_LARGE_UNIT: Final = 1 << 30
_LIBRARIES: Final = 150e6  # bytes of memory
_UNIT_SHARE: Final = 2.0  # bytes held per byte of a unit's text: ids
_BATCH: Final = 1024  # documents that are signed together
_BATCH_SHARE: Final = 11.0  # bytes held per byte of such a batch: words and n-grams
_ROW_BYTES: Final = 4000  # bytes held per document of a unit: keys, decisions, signatures


def resolve(spec: Spec, source: str | None) -> Spec:
    """The spec with its tokenizer's sha256."""
    del source
    return keys.resolve(spec)


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    """Totals and lines to print."""
    rows, size, text, known = _input(spec, source)
    tokens = spec.train_rows * spec.context
    wanted = min(text, tokens * 5.2)
    edges = rows * _edge_rate(spec, source)
    near = spec.near_duplicates != "off"
    core_seconds = _START + size / _HASH_RATE + text / _KEYS_RATE + text / _READ_RATE
    core_seconds += rows / _DEDUP_RATE + wanted / _TOKENS_RATE
    core_seconds += near * (text / _NEAR_RATE[spec.near_engine] + rows * _NEAR_ROW)
    read = (3 + near) * size  # sha256, keys, near-duplicates, tokens
    unit = max(spec.unit_bytes, _LARGE_UNIT if rows > _MANY else 0)
    disk = rows * (_DOCUMENT_BYTES + near * _NEAR_BYTES) + edges * _EDGE_BYTES
    disk += 2 * _TOKEN_BYTES * min(tokens, text / _BYTES_PER_TOKEN)  # in units and in shards
    memory = _memory(rows, edges, unit, text / max(rows, 1), workers)
    lines = [
        f"input    {size / 1e9:,.1f} GB of Parquet ({known}), read {3 + near} times",
        *_network(spec, source, size),
        *_settings(spec, rows, edges, text, unit),
    ]
    return {
        "rows": rows,
        "read_bytes": int(read),
        "disk_bytes": int(disk),
        "memory_bytes": int(memory),
        "core_seconds": core_seconds,
        "lines": lines,
    }


def _network(spec: Spec, source: str | None, size: float) -> list[str]:
    """What travels from the hub, once; how many requests; for how long."""
    if not _from_hub(spec, source):
        return []
    parts = []
    for config, files, groups in spec.hub.parts():
        which = f"the first {files} of its files" if files else "all its files"
        parts.append(
            f"{config}: {which}" + (f", the first {groups} row groups of each" if groups else "")
        )
    requests = 20 + _REQUESTS * max(1, round(size / _FILE_BYTES))
    hours = ", ".join(f"{size * 8 / bits / 3600:,.2g} at {name}" for name, bits in _SPEEDS.items())
    return [
        f"files    {'; '.join(parts)}",
        f"network  {size / 1e9:,.1f} GB once, about {requests:,} requests (the hub allows 3,000 in "
        "5 minutes, 5,000 with HF_TOKEN)",
        f"download {hours} hours, not in the time above",
    ]


def _from_hub(spec: Spec, source: str | None) -> bool:
    if source is None:
        return spec.source == "hub"
    return source == "hub" or hub_name(source) is not None


def _edge_rate(spec: Spec, source: str | None) -> float:
    hub = _from_hub(spec, source)
    return _EDGES_WHOLE if hub and config_folder(spec.hub.train).startswith("data") else _EDGES


def _memory(rows: int, edges: float, unit: int, document: float, workers: int) -> float:
    """A worker holds libraries, and one hash partition or a unit: documents, ids, one batch."""
    partition = 400e6 * min(1.0, rows / PART_ROWS)
    documents = min(unit / max(document, 1.0), rows)
    batch = min(_BATCH * document, unit)
    held = _UNIT_SHARE * min(unit, rows * document) + _BATCH_SHARE * batch
    graph = min(100 * edges, 800e6)  # one process at a time, never beside partitions
    return max(
        workers * (_LIBRARIES + max(partition, held + _ROW_BYTES * documents)), _LIBRARIES + graph
    )


def _settings(spec: Spec, rows: int, edges: float, text: float, unit: int) -> list[str]:
    """What the estimate assumes, and how to get it."""
    parts = partitions_for(rows)
    graph = "in memory" if edges <= EDGES_IN_MEMORY else "spilled to disk"
    lines = [
        f"settings: {parts} hash partition{'s' if parts > 1 else ''} of {PART_ROWS:,} documents, "
        f"components {graph}, units of {unit >> 20:,} MiB (about {max(1, round(text / unit)):,})"
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
    if _from_hub(spec, source):
        rows = size = 0.0
        seen: list[str] = []
        for config, files, groups in spec.hub.parts():
            folder = config_folder(config)
            if any(folder == other or folder.startswith(f"{other}/") for other in seen):
                continue  # a dump inside `data`
            seen.append(folder)
            known = _KNOWN.get(folder, _ONE_DUMP)
            share = min(1.0, files * _FILE_BYTES / known[1]) if files else 1.0
            if groups and files:
                share = min(share, 1000 * groups * files / known[0])
            rows, size = rows + share * known[0], size + share * known[1]
        return int(rows), size, size * _TEXT_PER_PARQUET, "estimated from published sizes"
    found = [promised(file) for file in list_source(spec, source).files]
    rows, size, text = (sum(column) for column in zip(*found, strict=True))
    return rows, float(size), text, "from the files' footers"
