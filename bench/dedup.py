"""Dedup at scale: synthetic keys through the real stages, beside a polars script for the split.

- Rows link like recrawls do: 15% repeat an earlier URL, 10% an earlier text.
- The reference resolves the split only (training keys against validation keys, then a closure
  inside validation); ours also finds all components and representatives, out of core.
- `anonymous` is the memory that counts: mapped files of the unit store can be dropped at any time.

Usage: `make bench-dedup`, `python bench/dedup.py 50_000_000`; `--only polars` for one side.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa

from tangobench.pipeline.core.build import Job, Output, Stage, Unit
from tangobench.pipeline.core.store import Store, open_store
from tangobench.pipeline.fineweb.decisions import audit_leaks, decide
from tangobench.pipeline.fineweb.keys import pack_keys, partitions_for
from tangobench.pipeline.fineweb.parquet import read_sample
from tangobench.pipeline.fineweb.resolve import resolve
from tangobench.pipeline.fineweb.units import number_units

sys.path.insert(0, str(Path(__file__).parent))
from side_by_side import (
    HOME,
    RESULTS,
    exponent,
    measure,
    own_versions,
    peer_python,
    peer_versions,
    row,
    save,
)

STORE: Final = HOME / f"dedup-{os.getpid()}"
JOB: Final = "exact component dedup"
PEERS: Final = {"scipy": "scipy", "duckdb": "duckdb", "dask": "dask", "datatrove": "datatrove"}
GROWTH: Final = (100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
UNIT: Final = 500_000
TRAIN_THROUGH: Final = 202340
DUMPS: Final = np.array([202240, 202306, 202314, 202340, 202350], np.int32)


def mix(values: Any) -> Any:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def columns(start: int, stop: int) -> dict[str, Any]:
    """Rows start..stop-1: a pure function of their numbers."""
    number = np.arange(start, stop, dtype=np.uint64)
    made: dict[str, Any] = {"dump": DUMPS[(mix(number + np.uint64(7)) % np.uint64(5)).astype(int)]}
    for seed, (name, share) in enumerate((("url", 15), ("content", 10)), start=1):
        draw = mix(number * np.uint64(2) + np.uint64(seed << 40))
        earlier = (draw >> np.uint64(8)) % (number + np.uint64(1))
        source = np.where(draw % np.uint64(100) < share, earlier, number)
        made[f"{name}_high"] = mix(source + np.uint64(seed << 50))
        made[f"{name}_low"] = mix(source + np.uint64((seed + 8) << 50))
    return made


def synthetic(start: int, stop: int, parts: int, store: Store) -> Output:
    del store
    made = columns(start, stop)
    count = stop - start
    ids = pa.array(mix(np.arange(start, stop, dtype=np.uint64))).cast(pa.large_string())
    table = pa.table(
        {
            "id": ids,
            "dump": made.pop("dump"),
            "date": pa.nulls(count, pa.large_string()),
            "status": np.zeros(count, np.uint8),
            **made,
            "size": np.full(count, 1000, np.uint64),
        }
    )
    return pack_keys(table, parts, {"url_null": 0, "url_empty": 0, "url_unparsable": 0})


def polars_reference(rows: int) -> tuple[float, int]:
    """The split alone, in memory: how many validation documents belong to training."""
    made = columns(0, rows)
    frame = pl.DataFrame({"document": np.arange(rows), **made})
    began = time.process_time()
    keys = pl.concat(
        frame.select("document", "dump", high=f"{n}_high", low=f"{n}_low")
        for n in ("url", "content")
    )
    train = keys.filter(pl.col("dump") <= TRAIN_THROUGH).select("high", "low").unique()
    late = keys.filter(pl.col("dump") > TRAIN_THROUGH)
    moved = late.join(train, on=["high", "low"], how="semi")["document"].unique()
    while True:
        linked = late.join(moved.to_frame(), on="document", how="semi").select("high", "low")
        wider = late.join(linked.unique(), on=["high", "low"], how="semi")["document"].unique()
        if len(wider) == len(moved):
            return time.process_time() - began, len(moved)
        moved = wider


class Memory(threading.Thread):
    """Peak anonymous memory of this process, sampled."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0

    def run(self) -> None:
        while True:
            status = Path("/proc/self/status").read_text()
            found = re.search(r"RssAnon:\s+(\d+)", status)
            self.peak = max(self.peak, int(found[1]) if found else 0)
            time.sleep(0.02)


def own(rows: int) -> dict[str, Any]:
    shutil.rmtree(STORE, ignore_errors=True)
    job = Job(open_store(str(STORE)))
    parts = partitions_for(rows)
    units = [
        Unit(f"{start}", (start, min(rows, start + UNIT), parts)) for start in range(0, rows, UNIT)
    ]
    keys = job.run(Stage("synthetic", 1, synthetic), units)
    numbered = number_units((read_sample(n, n + 1) for n in range(len(keys))), keys)
    memory = Memory()
    memory.start()
    began, wall = time.process_time(), time.monotonic()
    decided = resolve(job, numbered, keys, train_through=TRAIN_THROUGH, duplicates="drop")
    resolved = time.process_time() - began
    decisions, _ = decide(job, decided)
    total = time.process_time() - began
    moved = sum(
        count
        for record in decisions
        for partition, _, _, count in record.result["outcomes"]
        if partition == "train"
    )
    late = sum(int((columns(*u.args[:2])["dump"] > TRAIN_THROUGH).sum()) for u in units)
    began = time.process_time()
    leaks = audit_leaks(job, decided, decisions)["shared_keys"]
    audited = time.process_time() - began
    shutil.rmtree(STORE, ignore_errors=True)
    return {
        "rows": rows,
        "partitions": parts,
        "resolve_cpu_seconds": round(resolved, 2),
        "with_decisions_cpu_seconds": round(total, 2),
        "audit_cpu_seconds": round(audited, 2),
        "wall_seconds": round(time.monotonic() - wall, 1),
        "rows_per_cpu_second": round(rows / total),
        "resolve_rows_per_cpu_second": round(rows / resolved),
        "load": round(os.getloadavg()[0], 1),
        "moved_to_training": moved - (rows - late),
        "shared_keys": leaks,
        "anonymous_mb": memory.peak // 1024,
        "resident_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def peer(name: str, rows: int) -> dict[str, Any]:
    """Another tool on the same keys; datatrove, which takes minutes, gets a tenth of them."""
    path = HOME / f"keys-{rows}.parquet"
    if not path.exists():
        pl.DataFrame(columns(0, rows)).write_parquet(path)
    script = str(Path(__file__).parent / "peers_dedup.py")
    run = measure([peer_python("dedup"), script, name, str(path)])
    found: dict[str, Any] = json.loads(run["stdout"].splitlines()[-1])
    return {**found, "rows": rows, "anonymous_mb": run["anonymous_mb"]}


def polars_side(rows: int) -> dict[str, Any]:
    seconds, moved = polars_reference(rows)
    return {"cpu_seconds": round(seconds, 2), "answer": moved, "rows": rows}


def compare(rows: int, which: list[str]) -> None:
    """All sides on the same keys; an answer that differs from ours stops the benchmark."""
    path = RESULTS / "dedup.json"
    known = json.loads(path.read_text()).get("sides", {}) if path.exists() else {}
    sides: dict[str, Any] = known if known.get("rows") == rows else {"rows": rows}
    for name in which:
        if name == "ours":
            sides[name] = own(rows)
        elif name == "polars":
            sides[name] = polars_side(rows)
        else:
            sides[name] = peer(name, rows // 10 if name == "datatrove" else rows)
        print(name, sides[name])
    save("dedup", list(_rows(sides)), {"sides": sides})


def _rows(sides: dict[str, Any]) -> Any:
    ours = sides.get("ours")
    python, rate = peer_python("dedup"), (ours or {}).get("resolve_rows_per_cpu_second", 0)
    for name in ("polars", *PEERS):
        theirs = sides.get(name)
        if ours is None or theirs is None:
            continue
        assert name == "datatrove" or theirs["answer"] == ours["moved_to_training"], (name, theirs)
        other = theirs["rows"] / theirs["cpu_seconds"]
        versions = own_versions("numpy", "polars") | peer_versions(python, [PEERS.get(name, "")])
        label = {
            "polars": "polars, the split alone, in memory",
            "datatrove": "datatrove exact dedup, one key, no chains",
            "duckdb": "duckdb, label propagation",
            "dask": "Dask, label propagation",
        }.get(name, name)
        in_memory = name == "polars"  # the bar: our time over theirs
        yield row(
            f"{JOB}, {ours['rows']:,} rows", label, other / rate if in_memory else rate / other,
            "≤ 1.2" if in_memory else "≥ 1", ours=f"{rate:,} rows/s",
            theirs=f"{round(other):,} rows/s", command="make bench-dedup", versions=versions,
        )  # fmt: skip


def growth() -> None:
    points = [own(rows) for rows in GROWTH]
    sizes = [point["rows"] for point in points]
    fitted = {
        "points": points,
        "time_exponent": exponent(sizes, [p["with_decisions_cpu_seconds"] for p in points]),
        "memory_exponent": exponent(sizes, [p["anonymous_mb"] for p in points]),
        "command": "python bench/dedup.py --growth",
    }
    save("dedup", [], {"growth": fitted})
    print({key: value for key, value in fitted.items() if key != "points"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="*", default=[2_000_000, 50_000_000])
    parser.add_argument("--only", action="append", choices=["ours", "polars", *PEERS])
    parser.add_argument("--growth", action="store_true")
    args = parser.parse_args()
    for rows in () if args.growth else args.rows:
        if rows > 5_000_000:
            measured = own(rows)
            print(json.dumps(measured, indent=1))
            save("dedup", [], {f"rows_{rows}": measured})
        else:
            compare(rows, args.only or ["ours", "polars", *PEERS])
    if args.growth or len(args.rows) > 1:
        growth()


if __name__ == "__main__":
    main()
