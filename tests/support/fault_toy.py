"""A dataset as small as one can be that still has everything: two stages, two configs in folders of
their own, texts, a side file, and units that can be slowed down without changing a byte.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.errors import InputError
from tangobench.pipeline import api
from tangobench.pipeline.core import shards, spec
from tangobench.pipeline.core.build import (
    Arguments,
    Job,
    Output,
    Result,
    ShardFile,
    SideFile,
    Stage,
    Streamed,
    Unit,
    shard_unit,
)
from tangobench.pipeline.core.hashing import rows_sha256

NAME = "toy"
MANIFEST = str(Path(__file__).with_name("fault_toy.toml"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What the toy is made of."""

    units: int
    rows: int = 5
    seed: int = 1

    def __post_init__(self) -> None:
        if self.units < 1:
            raise spec.bad_value("units", self.units, "a count of at least 1")


def register() -> None:
    """Make `toy` a dataset name of this process."""
    api.DATASETS[NAME] = __name__


def request(out: Path | str, **more: object) -> api.Request:
    """A request for the toy."""
    return api.Request(name=NAME, out=str(out), manifest=MANIFEST, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Faults(Arguments):
    found: dict

    def key(self) -> None:
        """They decide no byte."""


def draw(args: dict, faults: Faults, store) -> Output:
    """Numbers, in their own record as well."""
    _fault(args["number"], faults.found)
    rng = np.random.default_rng([args["seed"], args["number"]])
    values = rng.integers(0, 90, args["rows"] * 8, np.uint16)
    return Output(values.tobytes(), {"sum": int(values.sum()), "tuple": (1, 2), "keys": {3: "x"}})


def shape(args: dict, store) -> Streamed:
    """One shard from one object of the stage before."""
    values = np.frombuffer(store.read(args["address"]), np.uint16)
    if args["config"] == "wide":
        columns = {"tokens": shards.fixed(values.reshape(-1, 8))}
    else:
        lengths = np.arange(args["rows"] + 1) * 8 - np.arange(args["rows"] + 1) % 3
        columns = {
            "tokens": shards.lists(values, lengths),
            "target_start": shards.scalars(np.full(args["rows"], 2, np.uint16)),
            "path": shards.strings([f"Füße/{n}.lean" for n in range(args["rows"])]),
        }
    return shard_unit(columns, batch_rows=2)


def decide(args: dict, store) -> Output:
    """A side file."""
    table = pa.table({"id": ["a", "b"], "kept": [True, False]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return Output(sink.getvalue(), {"rows": 2, "rows_sha256": rows_sha256(table)})


def build(spec: Spec, source: str | None, job: Job) -> Result:
    """All stages."""
    inputs = [{"number": n, "rows": spec.rows, "seed": spec.seed} for n in range(spec.units)]
    faults = {key: value for key, value in os.environ.items() if key.startswith("TOY_")}
    units = [Unit(f"part {i['number']}", (i, Faults(faults))) for i in inputs]
    drawn = job.run(Stage("draw", 1, draw), units)
    plans = [
        {"config": config, "address": record.address, "rows": spec.rows}
        for config in ("wide", "long")
        for record in drawn
    ]
    shaped = job.run(Stage("shape", 1, shape), [Unit(f"{p['config']}", (p,)) for p in plans])
    decided = job.run(Stage("decide", 1, decide), [Unit("all", ({},))])[0]
    files = []
    for index, (plan, record) in enumerate(zip(plans, shaped, strict=True)):
        split = "validation" if index % spec.units == 0 else "train"
        place, total = (0, 1) if split == "validation" else (index % spec.units - 1, spec.units - 1)
        name = shards.shard_name(split, place, total)
        files.append(ShardFile(f"{plan['config']}/{name}", plan["config"], split, record))
    row = {"context": 8, "vocabulary": 99, "masked_target": None, "pad": 0}
    return Result(
        source={"generator": 1},
        origin={"where": source},
        tokenizer=None,
        configs={"wide": row, "long": {**row, "context": 10}},
        counts={"sum": sum(r.result["sum"] for r in drawn), "records": [r.result for r in drawn]},
        drops={"odd": 0},
        notes={"share": 1e-05, "by number": {n: n for n in range(12)}},
        shards=files,
        side_files=[
            SideFile(
                "decisions/part-00000.parquet",
                "decisions",
                decided.address,
                decided.result["rows"],
                decided.result["rows_sha256"],
            )
        ],
        card={
            "title": "Toy: a test",
            "licence": "CC0",
            "licence_id": "cc0-1.0",
            "description": "Numbers.",
            "sources": ["nowhere"],
        },
    )


def plan(spec: Spec, source: str | None, workers: int) -> dict:
    """What the toy takes."""
    return {
        "rows": spec.units * spec.rows * 2,
        "read_bytes": 0,
        "disk_bytes": 10_000,
        "memory_bytes": 1,
        "core_seconds": 1.0,
        "lines": [],
    }


def record(row: dict, config: str, lock) -> dict:
    """A row as a plain record."""
    return {"tokens": row["tokens"].tolist(), "path": row.get("path")}


def why(folder: Path, lock, ident: str) -> list[str]:
    """What became of an id."""
    raise InputError(f"no {ident!r} in {folder}", kind="not-found", fix="ask for another")


def _fault(number: int, faults: dict[str, str]) -> None:
    """Faults travel in a unit's arguments, never in its inputs, so they cannot change the root."""
    if "TOY_LOG" in faults:
        with Path(faults["TOY_LOG"]).open("a") as file:
            file.write(f"{number}\n")
    time.sleep(float(faults.get("TOY_SECONDS", "0")))
    if faults.get("TOY_BAD") == str(number):
        raise InputError(f"number {number} is odd", kind="odd", fix="use even numbers")
    if faults.get("TOY_BUG") == str(number):
        raise RuntimeError("boom")
    if faults.get("TOY_DIE") == str(number):
        os._exit(9)
