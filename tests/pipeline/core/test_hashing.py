from __future__ import annotations

import hashlib
import itertools
import json

import forge
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.pipeline.core.hashing import (
    DOCUMENT,
    LINE,
    RECORD,
    Broken,
    RowsHasher,
    canonical_json,
    case_json,
    digest,
    rows_sha256,
    seal,
    sha256_bytes,
    sha256_file,
    unseal,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
ROW = st.fixed_dictionaries(
    {
        "tokens": st.none() | st.lists(st.none() | st.integers(0, 65535), max_size=5),
        "text": st.none() | st.text(max_size=5),
        "flag": st.none() | st.booleans(),
        "number": st.none() | st.integers(-(2**31), 2**31 - 1),
        "share": st.none() | st.floats(width=32, allow_nan=False),
        "nested": st.lists(st.lists(st.text(max_size=2), max_size=2), max_size=2),
    }
)
SCHEMA = pa.schema(
    [
        ("tokens", pa.list_(pa.uint16())),
        ("text", pa.string()),
        ("flag", pa.bool_()),
        ("number", pa.int32()),
        ("share", pa.float32()),
        ("nested", pa.list_(pa.list_(pa.string()))),
    ]
)


def table(rows: list[dict]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def test_canonical_json_is_one_byte_sequence():
    assert canonical_json({"b": [1, 2.5, None, True], "a": "ü"}) == (
        '{"a":"ü","b":[1,2.5,null,true]}'.encode()
    )


@given(JSON)
def test_canonical_json_survives_a_round_trip(value):
    data = canonical_json(value)
    assert canonical_json(json.loads(data)) == data


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {"a": {1, 2}}])
def test_what_json_does_not_have_is_refused(value):
    with pytest.raises((ValueError, TypeError)):
        canonical_json(value)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (0, False), ("1", 1), ([], {}), (None, "null"), ([1, 2], [2, 1])],
)
def test_digest_tells_values_apart(one, other):
    assert digest(one) != digest(other)


def test_digests_of_bytes_and_files_agree_with_hashlib(tmp_path):
    data = bytes(range(256)) * 40_000  # more than one chunk
    path = tmp_path / "f"
    path.write_bytes(data)
    assert sha256_file(path) == sha256_bytes(data) == hashlib.sha256(data).hexdigest()
    assert sha256_bytes(pa.py_buffer(data)) == sha256_bytes(np.frombuffer(data, np.uint16))


@given(st.lists(ROW, max_size=8), st.lists(st.integers(0, 8), max_size=3))
def test_rows_hash_ignores_chunks_and_slices(rows, cuts):
    whole = table(rows)
    bounds = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    pieces = [whole.slice(a, b - a) for a, b in itertools.pairwise(bounds)]
    padded = pa.concat_tables([table(rows[:1]), whole]).slice(len(rows[:1]))
    assert rows_sha256(whole) == rows_sha256(pa.concat_tables([table([]), *pieces]))
    assert rows_sha256(whole) == rows_sha256(padded)
    hasher = RowsHasher()
    for batch in [table([]), *pieces]:
        hasher.update(batch)
    assert hasher.hexdigest() == rows_sha256(whole)


@given(st.lists(ROW, max_size=6), st.lists(ROW, max_size=6))
def test_rows_hash_tells_other_rows_apart(one, other):
    same = table(one).equals(table(other)) and str(one) == str(other)  # -0.0 equals 0.0
    assert (rows_sha256(table(one)) == rows_sha256(table(other))) == same


def test_rows_hash_ignores_the_container(tmp_path):
    rows = table(
        [{"tokens": [1, 2], "text": "ü", "nested": []}, {"tokens": None, "nested": [["x"]]}]
    )
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=1)
    assert rows_sha256(pq.read_table(tmp_path / "a.parquet", schema=SCHEMA)) == rows_sha256(rows)
    large = rows.set_column(1, "text", rows["text"].cast(pa.large_string()))
    assert rows_sha256(large) == rows_sha256(rows)


def test_fixed_and_variable_lists_of_equal_rows_hash_equal():
    values = [[1, 2], [3, 4]]
    fixed = pa.table({"t": pa.array(values, pa.list_(pa.uint16(), 2))})
    free = pa.table({"t": pa.array(values, pa.list_(pa.uint16()))})
    assert rows_sha256(fixed) == rows_sha256(free)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": [1]}, {"b": [1]}),
        ({"a": [1], "b": [2]}, {"b": [2], "a": [1]}),
        ({"a": pa.array([1], pa.int8())}, {"a": pa.array([1], pa.int16())}),
        ({"a": ["ab", "c"]}, {"a": ["a", "bc"]}),
        ({"a": [[1], [2]]}, {"a": [[1, 2], []]}),
        ({"a": [None]}, {"a": [0]}),
        ({"a": [None, ""]}, {"a": ["", None]}),
    ],
    ids=["name", "order of columns", "type", "texts", "lists", "null", "place of null"],
)
def test_rows_hash_covers(one, other):
    one, other = pa.table(one), pa.table(other)
    if one.schema.types != other.schema.types and "null" in str(one.schema):
        one = one.cast(other.schema)
    assert rows_sha256(one) != rows_sha256(other)


def test_a_changed_type_between_batches_is_refused():
    hasher = RowsHasher()
    hasher.update(pa.table({"a": pa.array([1], pa.int8())}))
    with pytest.raises(TypeError, match="int8 before, int16 now"):
        hasher.update(pa.table({"a": pa.array([1], pa.int16())}))


@pytest.mark.parametrize("values", [[None], [""], [None, "", "é"], ["a", None, "bc", "d"]], ids=str)
def test_strings_are_hashed_by_lengths_and_bytes_whatever_their_buffers(values):
    """Slices, chunks, nulls with bytes under them and empty buffers: one digest per content."""
    plain = pa.table({"s": pa.array(values, pa.string())})
    padded = pa.array(["xx", *values, "yy"], pa.large_string()).slice(1, len(values))
    hidden = pa.StringArray.from_buffers(
        len(values),
        *pa.array([v or "hidden" for v in values], pa.string()).buffers()[1:],
        pa.array([v is not None for v in values], pa.bool_()).buffers()[1],
        -1,
    )
    chunks = pa.chunked_array([pa.array([v], pa.string()) for v in values], pa.string())
    expected = rows_sha256(plain)
    assert rows_sha256(pa.table({"s": padded})) == expected
    assert rows_sha256(pa.table({"s": chunks})) == expected
    if None in values and "" not in values:
        assert rows_sha256(pa.table({"s": hidden})) == expected


FORMS = {"document": DOCUMENT, "line": LINE, "record": RECORD}
BODY = {"b": [1, 2, {"c": None}], "a": "ü", "share": 1e-05}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(st.dictionaries(st.text(max_size=5).filter(lambda key: key != "checksum"), JSON))
def test_what_is_sealed_reads_back(form, body):
    assert unseal(seal(body, form), form) == body


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_flipped_bit_is_refused(form):
    raw = seal(BODY, form)
    for place in range(len(raw)):
        for bit in range(8):
            data = bytearray(raw)
            data[place] ^= 1 << bit
            with pytest.raises(Broken):
                unseal(bytes(data), form)


def test_the_bytes_are_those_of_an_independent_writer():
    assert seal(BODY) == forge.sealed(BODY)
    assert seal(BODY, LINE) == forge.line(BODY)


@pytest.mark.parametrize(
    "raw",
    [b"", b"null", b"[]", b"{}", b'{"checksum": 1}', b"[" * 200_000, b"\xff", b'"x"'],
    ids=repr,
)
def test_anything_else_is_broken(raw):
    with pytest.raises(Broken):
        unseal(raw)


def test_not_a_number_is_no_json():
    raw = seal({"a": 1.5}).replace(b"1.5", b"NaN")
    assert json.loads(raw)["a"] != json.loads(raw)["a"]
    with pytest.raises(Broken):
        unseal(raw)


def test_a_line_holds_text_that_is_no_unicode():
    assert unseal(seal({"text": "\udc80"}, LINE), LINE) == {"text": "\udc80"}


def test_a_report_has_one_line_per_case():
    report = {"machine": "é", "cases": [{"a": [1, 2]}, {"a": []}], "by": {"x": {"y": 1}}, "no": []}
    text = case_json(report)
    assert json.loads(text) == report
    assert len(text.splitlines()) == 2 + 1 + 4 + 3 + 1
