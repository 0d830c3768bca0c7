"""The three stages of the math dataset: draw examples, audit combinations, assemble shards.

- `draw_unit` stores the rows of a few pieces; `audit_combinations` counts repeated questions and
  proves that no question is on both sides; `assemble_shard` interleaves the combinations.
- Order of rows: index-major. Row r of a split is example r // 168 of combination r % 168, so every
  prefix and every shard holds all combinations equally.

Usage: `job.run(DRAW, [Unit(label, inputs)])`
"""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tangobench.pipeline import dm_vocab, shards
from tangobench.pipeline.build import Output, Stage, Streamed, shard_unit
from tangobench.pipeline.dm_draw import NAMES, draw
from tangobench.pipeline.dm_summary import REJECTIONS
from tangobench.pipeline.hashing import canonical_json
from tangobench.pipeline.store import Store

_UNIT_BATCH: Final = 65536


def draw_unit(inputs: dict[str, Any], _store: Store) -> Output:
    """Rows of the pieces in order, and what was rejected, by combination."""
    rows: list[npt.NDArray[np.uint8]] = []
    starts: list[int] = []
    rejected: dict[str, list[int]] = {}
    for name, first, last in inputs["pieces"]:
        counts = rejected.setdefault(name, [0] * len(REJECTIONS))
        combination = NAMES.index(name)
        for index in range(first, last):
            example = draw(inputs["seed"], inputs["split"], combination, index)
            tokens, start = dm_vocab.encode(example.question, example.answer)
            rows.append(tokens)
            starts.append(start)
            for place, field in enumerate(REJECTIONS):
                counts[place] += getattr(example, field)
    lengths = [len(row) for row in rows]
    columns = {
        "tokens": shards.lists(np.concatenate(rows), np.cumsum([0, *lengths])),
        "target_start": shards.scalars(np.array(starts, np.uint16)),
    }
    data, _ = shards.encode(columns, batch_rows=_UNIT_BATCH)
    return Output(data, {"rejected": rejected, "longest": max(lengths)})


def audit_combinations(inputs: dict[str, Any], store: Store) -> Output:
    """How many questions of each combination are distinct, and how many both splits share."""
    result = {}
    for name, found in inputs.items():
        train = set(_questions(_read(store, found["train"])))
        validation = set(_questions(_read(store, found["validation"])))
        result[name] = {
            "train": len(train),
            "validation": len(validation),
            "shared": len(train & validation),
        }
    return Output(canonical_json(result), result)


def assemble_shard(inputs: dict[str, Any], store: Store) -> Streamed:
    """One shard: the examples of an index range of all combinations, index after index."""
    table = _read(store, (found for combination in inputs["found"] for found in combination))
    combinations = len(inputs["found"])
    each = table.num_rows // combinations
    order = np.arange(table.num_rows).reshape(combinations, each).T.reshape(-1)
    tokens = table.column("tokens").combine_chunks().take(pa.array(order))
    starts = table.column("target_start").to_numpy()[order]
    columns = {
        "tokens": shards.lists(tokens.values.to_numpy(), tokens.offsets.to_numpy()),
        "target_start": shards.scalars(starts),
        "combination": shards.scalars(np.tile(np.arange(combinations, dtype=np.uint8), each)),
    }
    return shard_unit(columns, batch_rows=inputs["batch_rows"])


def _read(store: Store, found: Iterable[tuple[str, int, int]]) -> pa.Table:
    opened: dict[str, pa.Table] = {}
    parts = []
    for address, first, last in found:
        if address not in opened:
            opened[address] = pa.ipc.open_stream(store.read(address)).read_all()
        parts.append(opened[address].slice(first, last - first))
    return pa.concat_tables(parts)


def _questions(table: pa.Table) -> list[bytes]:
    """The tokens of each row before its answer."""
    column = table.column("tokens").combine_chunks()
    data = column.values.to_numpy().tobytes()
    bounds = zip(column.offsets.to_pylist(), table.column("target_start").to_pylist(), strict=False)
    return [data[offset : offset + start] for offset, start in bounds]


DRAW: Final = Stage("dm-draw", 1, draw_unit)
AUDIT: Final = Stage("dm-audit", 1, audit_combinations)
ASSEMBLE: Final = Stage("dm-assemble", 1, assemble_shard)
