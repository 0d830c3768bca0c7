"""A cluster that does nothing: a runner that makes up results, and a store that holds nothing.

Everything else is the real driver: listing, units, their keys, the shuffles, the choice of rows.
What it counts: tasks, the range reads that stages would make, and the driver's memory. A bound that
is passed ends the build at once with `Exceeded`.

Usage: `cluster = Cluster(Corpus(...), Bounds(...)); build(spec, folder, cluster.job())`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tangobench.pipeline.core.build import Job, Task
from tangobench.pipeline.core.shards import Section
from tangobench.pipeline.core.store import Record, Store
from tangobench.pipeline.fineweb import encode, packing
from tangobench.pipeline.fineweb.parquet import FileInfo, RowGroup

LATE = 95  # one unit in so many has validation documents, as one dump in 95 does


class Exceeded(Exception):
    """A bound was passed."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    documents: int
    units: int
    rows: int
    context: int = 8192

    @property
    def unit_documents(self) -> int:
        return self.documents // self.units

    @property
    def unit_tokens(self) -> int:
        return self.rows * self.context * 101 // 100 // self.units


@dataclass(frozen=True, kw_only=True)
class Bounds:
    memory: int
    seconds: float
    reads: int


class NoStore(Store):
    """Nothing is stored and nothing may be read by the driver."""

    def _write(self, name, data):
        raise AssertionError("the driver writes no objects")

    _unnamed = _read = _read_range = _write


@dataclass
class Cluster:
    corpus: Corpus
    bounds: Bounds
    tasks: dict[str, int] = field(default_factory=dict)
    reads: int = 0
    peak: int = 0

    def __post_init__(self) -> None:
        self.began = time.process_time()
        self.base = _resident()

    def job(self) -> Job:
        return Job(NoStore(), self)

    def close(self) -> None:
        """Nothing to release."""

    def map(self, function, items, labels):
        assert len(items) == len(labels)
        for number, item in enumerate(items):
            if number % 200 == 0:
                self._check()
            yield self._run(item) if isinstance(item, Task) else self._inspect(item, number)
        self._check()

    def _run(self, task: Task) -> tuple[Record, bool]:
        name = task.stage.name
        self.tasks[name] = self.tasks.get(name, 0) + 1
        self.reads += _ranges(task.unit.args)
        answer = getattr(self, "_" + name.removeprefix("fineweb-").replace("-", "_"))
        result = answer(*task.unit.args)
        address = hashlib.sha256(task.key.encode()).hexdigest()
        return Record(key=task.key, address=address, size=1, result=result), False

    def _check(self) -> None:
        self.peak = max(self.peak, _resident() - self.base)
        seconds = time.process_time() - self.began
        if self.peak > self.bounds.memory or seconds > self.bounds.seconds:
            raise Exceeded(f"{self.peak / 1e9:.1f} GB, {seconds:.0f} s; {self.tasks}")
        if self.reads > self.bounds.reads:
            raise Exceeded(f"{self.reads:,} range reads; {self.tasks}")

    def _inspect(self, file, number) -> FileInfo:
        rows = self.corpus.unit_documents
        sha256 = hashlib.sha256(file.name.encode()).hexdigest()
        file = dataclasses.replace(file, sha256=sha256, size=1 << 29)
        return FileInfo(file, (RowGroup(rows, 1 << 30),))

    # What each stage would answer, in its true size.

    def _keys(self, args) -> dict[str, Any]:
        counts = {"url_null": 0, "url_empty": 0, "url_unparsable": 0}
        if args.encoding:
            counts["checked"] = 1
        bounds = _bounds(args.rules.parts + 1 + (args.encoding is not None))
        return {"rows": self.corpus.unit_documents, "bounds": bounds, **counts}

    def _groups(self, _keys, _bases) -> dict[str, Any]:
        return {"edges": 6_000_000}

    def _components(self, _edges, bounds) -> dict[str, Any]:
        return {"bounds": [16 * (base * 85 // 100) for base in bounds]}

    def _members(self, _unit, _linked, parts) -> dict[str, Any]:
        return {"bounds": _bounds(parts)}

    def _representatives(self, _members, bounds, *_rules) -> dict[str, Any]:
        return {"bounds": _bounds(len(bounds) - 1)}

    def _decided(self, *_) -> dict[str, Any]:
        return {}

    def _near_sign(self, _unit, _engine, parts) -> dict[str, Any]:
        kept = self.corpus.unit_documents // 4
        late = kept if self.tasks["fineweb-near-sign"] % LATE == 0 else 0
        return {"validation": late, "train": kept - late, "bounds": _bounds(29 + parts)}

    def _near_first(self, _validation, train) -> dict[str, Any]:
        return {"bounds": _bounds(len(train))}

    def _near_match(self, _candidates, _train, parts) -> dict[str, Any]:
        return {"bounds": _bounds(parts)}

    def _near_tables(self, *_) -> dict[str, Any]:
        return {"rows": 1000, "rows_sha256": "0" * 64, "twins": 1000}

    def _decisions(self, _unit, parts) -> dict[str, Any]:
        rows = self.corpus.unit_documents
        late = self.tasks["fineweb-decisions"] % LATE == 0
        return {
            "rows": rows,
            "repeated": 0,
            "train_keys": 0 if late else 2 * rows,
            "validation_keys": 2 * rows if late else 0,
            "train_bytes": int(self.corpus.unit_tokens * packing.BYTES_PER_TOKEN),
            "outcomes": [["train", True, "unique", rows]],
            "dumps": {f"CC-MAIN-20{n:02d}-10": rows // 10 for n in range(14, 24)},
            "part_rows": [rows // parts] * parts,
            "bounds": _bounds(3 * parts),
        }

    def _decision_files(self, _rows) -> dict[str, Any]:
        return {"rows": 1000, "rows_sha256": "0" * 64}

    def _audit(self, *_) -> dict[str, Any]:
        return {"shared": 0, "near": []}

    def _tokens(self, args: encode.TokensArgs) -> dict[str, Any]:
        count = args.wave.buckets
        late = self.tasks["fineweb-tokens"] % LATE == 0
        number = self.tasks["fineweb-tokens"] << 32
        windows = [
            [0, number + n, n, 202350, 16384 * n] for n in range(args.windows if late else 0)
        ]
        totals = [self.corpus.unit_tokens // count + n % 2 for n in range(count)]
        return {"bounds": _bounds(count + 1), "totals": totals, "windows": windows, "checked": 1}

    def _merge_tokens(self, args: encode.MergeArgs) -> dict[str, Any]:
        self.reads += len(args.sections)  # the tokens, which are elsewhere
        total = self.corpus.unit_tokens * len(args.sections)
        totals = [total // args.fine.buckets + n % 2 for n in range(args.count)]
        return {"bounds": _bounds(args.count), "totals": totals}

    def _shards(self, args) -> dict[str, Any]:
        offsets = [n << 20 for n in range(64)]
        plain = {"rows": 4096, "tokens": 4096 * 8192, "bytes": 1 << 26, "sha256": "0" * 64}
        dumps = " ".join(f"{201300 + n} {300 + n} 350000" for n in range(95))
        return {"shard": {**plain, "batch_rows": 64, "batch_offsets": offsets}, "dumps": dumps}


def _bounds(count: int) -> list[int]:
    """Distinct numbers, as real bounds are: each is an object of its own."""
    return [(1 << 20) + 1000 * n for n in range(count + 1)]


def _ranges(value: Any) -> int:
    """How many ranges of objects a unit reads."""
    if isinstance(value, Section):
        return 1
    if isinstance(value, encode.Window):
        return 1
    if isinstance(value, tuple):
        if value and isinstance(value[0], Section):
            return len(value)
        return 0 if value and isinstance(value[0], int | str) else sum(map(_ranges, value))
    if dataclasses.is_dataclass(value):
        return sum(_ranges(getattr(value, f.name)) for f in dataclasses.fields(value))
    return 0


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
