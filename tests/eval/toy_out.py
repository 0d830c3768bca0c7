"""An output folder with small datasets of all three shapes, made in a second and always the same.

Rows look like the real ones: packed rows with document spans, segments and proofs, questions with
answers; the numbers are small enough to count by hand.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import Job, Result, ShardFile, SideFile
from tangobench.pipeline.core.hashing import digest, rows_sha256
from tangobench.pipeline.core.publish import publish
from tangobench.pipeline.core.store import open_store
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.tokenizer.base import gpt2

EOT = 50256
LEVELS = ("easy", "medium", "hard")
PHRASES = ("What is {} + {}?", "Calculate {} + {}.", "{} + {}")
MODULES = ("arithmetic__add_or_sub", "algebra__linear_1d", "numbers__is_prime")
CARD = {
    "title": "Toy rows",
    "licence": "CC0 1.0",
    "licence_id": "cc0-1.0",
    "description": "Rows that a test made.",
    "sources": ["Nothing but this test: CC0 1.0."],
}


def make_out(out: Path, names: tuple[str, ...] = ("fineweb", "lean", "dm_math")) -> Path:
    """Publish the toy datasets as `out/NAME-sample`."""
    for name in names:
        job = Job(open_store(str(out / ".units")))
        result = {"fineweb": fineweb, "lean": lean, "dm_math": dm_math}[name](job)
        folder = out / f"{name}-sample"
        publish(folder, name, "sample", {"seed": 7}, result, job, {"seconds": 1})
    return out


def _shard(job: Job, path: str, config: str, split: str, columns: dict[str, Any]) -> ShardFile:
    data, info = shards.encode_shard(columns, batch_rows=16)
    record = job.store.put(digest([path, info["sha256"]]), data, {"shard": info})
    return ShardFile(path, config, split, record)


def _result(tokenizer: Any, configs: dict[str, Any], files: list[ShardFile], **more: Any) -> Result:
    plain: dict[str, Any] = {"counts": {"read": 100}, "drops": {}, "notes": {}}
    return Result(
        source={"sha256": "0" * 64},
        origin={"folder": "somewhere"},
        tokenizer=tokenizer,
        configs=configs,
        shards=files,
        card=CARD,
        **(plain | more),
    )


def fineweb(job: Job) -> Result:
    """Packed rows of 64 tokens with document spans, and decisions."""
    text = "The harbour froze twice in one winter.\nBoats <waited> & the gulls did not.\n"
    stream = np.array([*gpt2().encode(text).tolist(), EOT] * 60, np.uint16)
    rows = stream[: len(stream) // 64 * 64].reshape(-1, 64)
    files = []
    for split, part in (("train", rows[:10]), ("validation", rows[10:14])):
        ends = [[0, *(np.flatnonzero(row[:-1] == EOT) + 1).tolist()] for row in part]
        flat = np.array([end for row in ends for end in row], np.uint16)
        bounds = np.cumsum([0, *(len(row) for row in ends)])
        columns = {
            "tokens": shards.fixed(part),
            "doc_index": shards.lists(np.arange(len(flat), dtype=np.uint32), bounds),
            "doc_start": shards.lists(flat, bounds),
            "doc_offset": shards.lists(np.zeros(len(flat), np.uint32), bounds),
        }
        files.append(_shard(job, shards.shard_name(split, 0, 1), "default", split, columns))
    dumps = ["CC-MAIN-2023-40"] * 6 + ["CC-MAIN-2023-50"] * 3
    table = pl.DataFrame(
        {
            "id": [f"d{i}" for i in range(9)],
            "dump": dumps,
            "component": [f"c{i}" for i in range(9)],
            "partition": ["train"] * 7 + ["validation"] * 2,
            "kept": [True] * 5 + [False, False, True, True],
            "reason": [""] * 5 + ["duplicate url", "duplicate text", "", ""],
            "representative": [f"d{i}" for i in range(9)],
        }
    )
    buffer = io.BytesIO()
    table.write_parquet(buffer)
    rows_digest = rows_sha256(table.to_arrow())
    record = job.store.put(digest("decisions"), buffer.getvalue(), {})
    side = SideFile("decisions/part-00000.parquet", "decisions", record.address, 9, rows_digest)
    config = {"context": 64, "vocabulary": 50257, "masked_target": EOT, "pad": EOT}
    return _result(
        gpt2().identity,
        {"default": config},
        files,
        drops={"duplicate_url": 1, "duplicate_text": 1, "empty_text": 0},
        notes={"leakage": {"shared_keys": 0, "train_keys": 12, "validation_keys": 6}},
        side_files=[side],
    )


def lean(job: Job) -> Result:
    """Source segments and proofs of two directories."""
    encode = gpt2().encode
    files = []
    for split, count in (("train", 20), ("validation", 5)):
        sources = [encode(f"theorem t{i} : {i} + 0 = {i} := by\n  simp\n") for i in range(count)]
        prompts = [encode(f"theorem t{i} : {i} + 0 = {i} := ") for i in range(count)]
        proofs = [[*encode("by\n  simp" + " ;" * (i % 7)).tolist(), EOT] for i in range(count)]
        paths = [f"Mathlib/{'Algebra' if i % 3 else 'Topology'}/F{i}.lean" for i in range(count)]
        both = [
            np.array([*p.tolist(), *q], np.uint16) for p, q in zip(prompts, proofs, strict=True)
        ]
        starts = np.array([len(p) for p in prompts], np.uint16)
        source_columns = {
            "tokens": _lists(sources),
            "path": shards.strings(paths),
            "start": shards.scalars(np.zeros(count, np.uint32)),
            "length": shards.scalars(np.full(count, 30, np.uint32)),
        }
        proof_columns = {
            "tokens": _lists(both),
            "target_start": shards.scalars(starts),
            "path": shards.strings(paths),
            "declaration": shards.strings([f"t{i}" for i in range(count)]),
            "kind": shards.strings(["theorem"] * count),
        }
        name = shards.shard_name(split, 0, 1)
        files.append(_shard(job, f"source/{name}", "source", split, source_columns))
        files.append(_shard(job, f"proof/{name}", "proof", split, proof_columns))
    config = {"context": 2048, "vocabulary": 50257, "masked_target": None, "pad": EOT}
    configs = {"source": config, "proof": dict(config)}
    return _result(gpt2().identity, configs, files, drops={"proof_too_long": 4})


def dm_math(job: Job) -> Result:
    """Questions of three lengths, of three modules at three levels."""
    names = [f"{module}/{level}" for module in MODULES for level in LEVELS]
    files = []
    for split, count in (("train", 4), ("validation", 2)):
        pairs = [
            vocabulary.encode(PHRASES[(i + c) % 3].format(i, c), str(i + c))
            for i in range(count)
            for c in range(len(names))
        ]
        columns = {
            "tokens": _lists([tokens for tokens, _ in pairs]),
            "target_start": shards.scalars(np.array([start for _, start in pairs], np.uint16)),
            "combination": shards.scalars(np.tile(np.arange(len(names), dtype=np.uint8), count)),
        }
        files.append(_shard(job, shards.shard_name(split, 0, 1), "default", split, columns))
    config = {"context": 256, "vocabulary": 73, "masked_target": None, "pad": 0}
    notes = {"combinations": names}
    return _result({"name": "dm_math"}, {"default": config}, files, notes=notes)


def _lists(rows: list[Any]) -> shards.Column:
    bounds = np.cumsum([0, *(len(row) for row in rows)])
    return shards.lists(np.concatenate(rows), bounds)
