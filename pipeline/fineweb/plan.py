"""What a FineWeb-Edu build would read, take and need: estimates from measured rates.

- Rates are per core, from `make bench-plan`, `bench-fineweb` and `bench-dedup` on two shared cores;
  the network is not in them.
- A local source is measured by its footers; the hub's sizes are those of its published index.
"""

from __future__ import annotations

from typing import Any, Final

from tangobench.pipeline.core.progress import duration
from tangobench.pipeline.core.progress import size as shown
from tangobench.pipeline.fineweb import parquet
from tangobench.pipeline.fineweb.build import ONE_LEVEL
from tangobench.pipeline.fineweb.keys import PART_ROWS, partitions_for
from tangobench.pipeline.fineweb.near_duplicates import BATCH_BYTES
from tangobench.pipeline.fineweb.packing import BYTES_PER_TOKEN, one_pass
from tangobench.pipeline.fineweb.parquet import Promise, occurrences, promised
from tangobench.pipeline.fineweb.resolve import TOGETHER
from tangobench.pipeline.fineweb.sources import hub_name
from tangobench.pipeline.fineweb.spec import Spec, config_folder
from tangobench.pipeline.fineweb.units import list_source

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
_READ_RATE: Final = 1e9  # bytes of text per core-second: decode
_KEYS_RATE: Final = 700e6  # decode, check, hash
_TOKENS_RATE: Final = 300e6  # encode, re-encode a sample, pack, hash, write twice
_DEDUP_RATE: Final = 330e3  # rows per core-second, decisions included
_NEAR_RATE: Final = {"rensa": 77e6, "datasketch": 11e6}  # bytes of text: decode, sign, compare
_NEAR_ROW: Final = 13e-6  # core-seconds per document, beside that
_TOKENS_ROW: Final = 2e-6
_DOCUMENT_BYTES: Final = 460  # keys, decisions by unit and published: 380, 315 more for a copy
_NEAR_BYTES: Final = 570  # per document: 112 minima, 14 bands
_BYTES_PER_TOKEN: Final = 4.6
_TOKEN_BYTES: Final = 2.2  # with its part of the spans
_EDGES: Final = 0.25  # per document of a sample: recrawls of a page or of a text
_EDGES_WHOLE: Final = 1.2  # of whole dumps: three quarters are copies, most by URL and by content
_KEPT_WHOLE: Final = 0.26  # of all dumps: 322 million of 1,260 million documents
_EDGE_BYTES: Final = 64  # on disk, while components are found
_MANY: Final = 100_000_000  # documents beyond which units of a gibibyte keep their number small
_LARGE_UNIT: Final = 1 << 30
_LIBRARIES: Final = 120e6  # bytes of memory
_UNIT_SHARE: Final = 2.0  # bytes held per byte of a unit's text: ids
_BATCH: Final = 1024  # documents that are decoded and signed together
_TEXT_SHARE: Final = 3.5  # bytes held per byte of such a batch: pages, texts
_BATCH_SHARE: Final = 11.0  # and of what is signed of it at once: words and n-grams
_ROW_BYTES: Final = 4000  # bytes held per document of a unit: keys, decisions, signatures
_MEMBER_BYTES: Final = 340  # and of a partition of the components


def plan(spec: Spec, source: str | None, workers: int) -> dict[str, Any]:
    given, unlike, known = _input(spec, source)
    rows, size, groups, different, text, _ = given
    share = unlike if spec.duplicates == "drop" else 1.0
    kept, tokens = share * text, float(spec.train_rows * spec.context)
    once = one_pass(spec, groups)
    wanted = different if once else min(kept, tokens * BYTES_PER_TOKEN)  # copies in a unit once
    edges = rows * max(1 - unlike, _edge_rate(spec, source))
    near = spec.near_duplicates != "off"
    core_seconds = _START + size / _HASH_RATE + text / _KEYS_RATE
    core_seconds += 0 if once else text / _READ_RATE
    core_seconds += rows / _DEDUP_RATE + wanted / _TOKENS_RATE
    core_seconds += rows * wanted / max(different, 1) * _TOKENS_ROW
    core_seconds += near * share * (text / _NEAR_RATE[spec.near_engine] + rows * _NEAR_ROW)
    passes = 2 + (not once) + near  # sha256, keys, tokens, near-duplicates
    unit = max(spec.unit_bytes, _LARGE_UNIT if rows > _MANY else 0)
    disk = rows * (_DOCUMENT_BYTES + near * share * _NEAR_BYTES) + edges * _EDGE_BYTES
    tokens = min(tokens, kept / _BYTES_PER_TOKEN)
    pairs = text / unit * tokens / (spec.shard_rows * spec.context)  # of units and buckets
    disk += (1 + (pairs > ONE_LEVEL)) * _TOKEN_BYTES * tokens  # merged, in shards
    disk += _TOKEN_BYTES * (text / _BYTES_PER_TOKEN if once else tokens)  # in units, copies too
    memory = _memory(given, unlike, edges, unit, workers)
    lines = [
        f"input    {shown(size)} of Parquet ({known}), read {passes} times",
        *_network(spec, source, size),
        *_settings(spec, rows, text, unit),
    ]
    return {
        "rows": rows,
        "rows_are": " documents of the input",
        "read_bytes": int(passes * size),
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
    times = ", ".join(f"{duration(size * 8 / b)} at {name}" for name, b in _SPEEDS.items())
    return [
        f"files    {'; '.join(parts)}",
        f"network  {shown(size)} once, about {requests:,} requests (the hub allows 3,000 in "
        "5 minutes, 5,000 with HF_TOKEN)",
        f"download {times}; not in the time above",
    ]


def _from_hub(spec: Spec, source: str | None) -> bool:
    if source is None:
        return spec.source == "hub"
    return source == "hub" or hub_name(source) is not None


def _edge_rate(spec: Spec, source: str | None) -> float:
    hub = _from_hub(spec, source)
    return _EDGES_WHOLE if hub and config_folder(spec.hub.train).startswith("data") else _EDGES


def _memory(given: Promise, unlike: float, edges: float, unit: int, workers: int) -> float:
    """A worker holds libraries, and a unit (documents, ids, one batch) whose memory the allocator
    keeps; a hash partition of keys comes on top of it, one of documents with a copy replaces it."""
    rows, document = given.rows, given.longest
    partition = 100.0 * min(rows, PART_ROWS)
    members = _MEMBER_BYTES * min(rows * (1 - unlike**2), PART_ROWS)
    documents = rows * min(1.0, unit / max(given.different, 1.0))
    batch = min(_BATCH, rows) * document
    held = _UNIT_SHARE * min(unit, given.different) + _TEXT_SHARE * batch
    held += _BATCH_SHARE * max(document, min(batch, BATCH_BYTES))
    graph = 100 * min(edges, TOGETHER)  # one process at a time, never beside partitions
    return max(
        workers * (_LIBRARIES + max(members, partition + held + _ROW_BYTES * documents)),
        _LIBRARIES + graph,
    )


def _settings(spec: Spec, rows: int, text: float, unit: int) -> list[str]:
    """What the estimate assumes, and how to get it."""
    parts = partitions_for(rows)
    lines = [
        f"settings: {parts} hash partition{'s' if parts > 1 else ''} of {PART_ROWS:,} documents, "
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


def _input(spec: Spec, source: str | None) -> tuple[Promise, float, str]:
    """The input, the share of its documents that are no copies, and how both are known."""
    if source is None and spec.source == "sample":
        text, mean = float(parquet.SAMPLE_TEXT), parquet.SAMPLE_TEXT / parquet.SAMPLE_ROWS
        given = Promise(parquet.SAMPLE_ROWS, 4e6, text, text, text, mean)
        return given, 1.0, "the embedded sample"
    if _from_hub(spec, source):
        whole = config_folder(spec.hub.train) == "data"
        return _published(spec), _KEPT_WHOLE if whole else 1.0, "estimated from published sizes"
    inputs = list_source(spec, source).files
    found = [promised(file) for file in inputs]
    largest = max(inputs, key=lambda file: file.size or 0)
    unlike = 1.0 if largest.afar else 1 / occurrences(largest)
    total = Promise(*map(sum, zip(*found, strict=True)))
    given = total._replace(longest=max(one.longest for one in found))
    return given, unlike, "from the files' footers"


def _published(spec: Spec) -> Promise:
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
    text = size * _TEXT_PER_PARQUET
    return Promise(int(rows), size, text, text, text, text / rows)
