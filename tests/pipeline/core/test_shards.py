from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.pipeline.core.hashing import rows_sha256
from tangobench.pipeline.core.shards import (
    encode_shard,
    fixed,
    lists,
    scalars,
    shard_name,
    shard_size,
    strings,
)


def columns(rows: list[list[int]], start: int = 0) -> dict:
    """Columns of the rows, as views into larger arrays that begin `start` items later."""
    values = np.concatenate([np.full(start, 9), *rows, np.full(3, 7)]).astype(np.uint16)
    offsets = start + np.cumsum([0, *map(len, rows)])
    return {
        "tokens": lists(values, offsets),
        "number": scalars(np.arange(start, start + len(rows), dtype=np.uint32) - start),
        "path": strings([f"ü{n}" for n in range(len(rows))]),
    }


ROWS = st.lists(st.lists(st.integers(0, 65535), max_size=4), min_size=1, max_size=9)


@given(ROWS, st.integers(1, 10))
def test_what_goes_in_comes_out(rows, batch_rows):
    data, info = encode_shard(columns(rows), batch_rows=batch_rows)
    table = pa.ipc.open_stream(data).read_all()
    assert table["tokens"].to_pylist() == rows
    assert table["path"].to_pylist() == [f"ü{n}" for n in range(len(rows))]
    assert info["rows"] == len(rows)
    assert info["tokens"] == sum(map(len, rows))
    assert info["bytes"] == data.size < shard_size(columns(rows), batch_rows=batch_rows)
    assert info["sha256"] == hashlib.sha256(data).hexdigest()
    assert info["rows_sha256"] == rows_sha256(table)


@given(ROWS, st.integers(1, 20), st.integers(1, 10))
def test_bytes_depend_on_rows_alone(rows, start, batch_rows):
    one, _ = encode_shard(columns(rows), batch_rows=batch_rows)
    other, _ = encode_shard(columns(rows, start), batch_rows=batch_rows)
    assert one.equals(other)


@given(ROWS, st.integers(1, 10), st.integers(1, 10))
def test_batch_size_changes_bytes_but_not_the_rows_hash(rows, one, other):
    assert (
        encode_shard(columns(rows), batch_rows=one)[1]["rows_sha256"]
        == encode_shard(columns(rows), batch_rows=other)[1]["rows_sha256"]
    )


@given(ROWS, st.integers(1, 10))
def test_every_batch_is_reachable_by_its_offset(rows, batch_rows):
    data, info = encode_shard(columns(rows), batch_rows=batch_rows)
    schema = pa.ipc.open_stream(data).schema
    found = []
    for offset in info["batch_offsets"]:
        message = pa.ipc.read_message(data.slice(offset))
        found += pa.ipc.read_record_batch(message, schema).column("tokens").to_pylist()
    assert found == rows


def test_no_metadata_no_validity_bitmaps():
    data, _ = encode_shard(columns([[1], [2, 3]]), batch_rows=2)
    batch = pa.ipc.open_stream(data).read_next_batch()
    assert batch.schema.metadata is None
    assert all(column.buffers()[0] is None for column in batch.columns)


def test_a_known_shard_keeps_its_bytes():
    """The bytes are the promise: a library that writes others must be noticed here first."""
    data, info = encode_shard(
        {"tokens": fixed(np.arange(12, dtype=np.uint16).reshape(3, 4))}, batch_rows=2
    )
    assert info["batch_offsets"] == [176, 368]
    assert info["sha256"] == "d22ae1ca1e32cb0423649b6c4abcedde4f6b7ebc78b872ba7ed5826ec9203747"
    assert info["rows_sha256"] == "27dc5fa5466ffdcabc82541d3e1ad1728950cdf8dab182c9d85277e7b5314f08"
    assert data.size == 560


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="unequal length"):
        encode_shard({"a": scalars(np.zeros(2)), "b": scalars(np.zeros(3))}, batch_rows=1)


def test_an_empty_shard_has_no_batches():
    _, info = encode_shard({"tokens": fixed(np.zeros((0, 4), np.uint16))}, batch_rows=2)
    assert (info["rows"], info["tokens"], info["batch_offsets"]) == (0, 0, [])


def test_names_sort_as_numbers():
    names = [shard_name("train", index, 12) for index in range(12)]
    assert names[1] == "train-00001-of-00012.arrow"
    assert sorted(names) == names
