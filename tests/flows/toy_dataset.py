"""A dataset of counted numbers, small and fast, that can be slowed down or made to fail.

Faults travel in an argument of units that has no key, so that the root stays the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tangobench.errors import InputError
from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import Arguments, Job, Output, Result, ShardFile, Stage, Unit

FAULTS: dict = {}  # set by tests: log, seconds, bad, flaky


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    units: int = 12
    rows: int = 5


@dataclass(frozen=True)
class Faults(Arguments):
    found: dict

    def key(self) -> None:
        """They decide no byte."""


def draw(args: dict, given: Faults, store) -> Output:
    """One shard: `rows` rows that count up from the unit's number."""
    faults = given.found
    if "log" in faults:
        with Path(faults["log"]).open("a") as handle:
            handle.write(f"{args['number']}\n")
    time.sleep(faults.get("seconds", 0))
    if args["number"] == faults.get("bad"):
        raise InputError("number 7 is odd", kind="odd", fix="use even numbers")
    if "secret" in faults:
        raise RuntimeError(faults["secret"])
    if "flaky" in faults and args["number"] == 3 and not Path(faults["flaky"]).exists():
        Path(faults["flaky"]).touch()
        raise ConnectionResetError("the line dropped")
    values = np.arange(args["rows"] * 4, dtype=np.uint16).reshape(-1, 4) + args["number"]
    data, info = shards.encode_shard({"tokens": shards.fixed(values)}, batch_rows=4)
    return Output(data, {"shard": info})


def total(args: dict, store) -> Output:
    """A second stage that reads what the first one stored."""
    return Output(b"".join(bytes(store.read(a)) for a in args["addresses"]), {})


def build(spec: Spec, source: str | None, job: Job) -> Result:
    inputs = [{"number": n, "rows": spec.rows} for n in range(spec.units)]
    units = [Unit(f"part {i['number']}", (i, Faults(FAULTS))) for i in inputs]
    records = job.run(Stage("draw", 1, draw), units)
    job.run(Stage("total", 1, total), [Unit("all", ({"addresses": [r.address for r in records]},))])
    return Result(
        source={"generator": 1},
        origin={},
        tokenizer=None,
        configs={"default": {"context": 4, "vocabulary": 99, "masked_target": None, "pad": 0}},
        counts={"rows": spec.units * spec.rows},
        drops={"odd": 0},
        notes={},
        shards=[
            ShardFile(shards.shard_name("train", n, spec.units), "default", "train", record)
            for n, record in enumerate(records)
        ],
        card={
            "title": "Toy",
            "licence": "CC0",
            "licence_id": "cc0-1.0",
            "description": "Numbers.",
            "sources": ["nowhere"],
        },
    )


def plan(spec: Spec, source: str | None, workers: int) -> dict:
    return {
        "rows": 1,
        "read_bytes": 0,
        "disk_bytes": 1,
        "memory_bytes": 1,
        "core_seconds": 1.0,
        "lines": [],
    }
