from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.errors import CorruptionError, MismatchError, UsageError
from tangobench.pipeline.core.hashing import pretty_json
from tangobench.pipeline.core.lock import (
    LOCK_NAME,
    check_lock,
    differences,
    read_lock,
    require_root,
    seal,
    short,
    sign,
)


@pytest.fixture
def body(toy_original) -> dict:
    """The lock of the toy without its checksum and roots."""
    data = json.loads((toy_original / LOCK_NAME).read_text())
    return {k: v for k, v in data.items() if k not in {"checksum", "root", "content_root"}}


def refused(path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        read_lock(path)
    assert caught.value.kind == "lock-corrupt"
    assert caught.value.exit_code == 4
    assert str(path) in caught.value.message
    return caught.value.message


def test_a_lock_of_a_folder_and_of_a_file(toy_original):
    assert read_lock(toy_original) == read_lock(toy_original / LOCK_NAME)


def test_int_keys_and_tuples_read_back_as_written(body, tmp_path):
    lock = sign(seal({**body, "notes": {"a": {10: 1, 9: (1, 2)}}}))
    (tmp_path / "x").write_bytes(lock.to_bytes())
    assert read_lock(tmp_path / "x") == lock


@pytest.mark.parametrize(
    ("field", "value", "in_root", "in_content_root"),
    [
        ("spec", {"rows": 2}, True, False),
        ("source", {"sha256": "x"}, True, False),
        ("tokenizer", {"name": "gpt2"}, True, False),
        ("name", "other", True, False),
        ("profile", "paper", True, False),
        ("environment", {"numpy": "0"}, False, False),
        ("counts", {"x": 1}, False, False),
        ("drops", {"x": 1}, False, False),
        ("notes", {}, False, False),
    ],
)
def test_what_the_roots_cover(body, field, value, in_root, in_content_root):
    before, after = seal(body), seal({**body, field: value})
    assert (before["root"] != after["root"]) == in_root
    assert (before["content_root"] != after["content_root"]) == in_content_root


def test_rows_are_in_both_roots_and_side_bytes_in_none(body):
    before = seal(body)
    body["side_files"][0] |= {"sha256": "0" * 64, "bytes": 1}
    assert seal(body)["root"] == before["root"]
    body["side_files"][0]["rows_sha256"] = "0" * 64
    assert seal(body)["root"] != before["root"]
    body["shards"][0]["rows_sha256"] = "0" * 64
    assert seal(body)["content_root"] != before["content_root"]


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(0.05, id="some"),
        pytest.param(1, id="every byte", marks=[pytest.mark.faults, pytest.mark.slow]),
    ],
)
def test_one_flipped_bit_anywhere_in_a_lock_is_refused(toy_original, tmp_path, share):
    """One bit of a byte, seeded; `1e-05` and `1E-05` are one value and two files."""
    raw = (toy_original / LOCK_NAME).read_bytes()
    rng = random.Random(5)
    for place in rng.sample(range(len(raw)), int(share * len(raw))):
        data = bytearray(raw)
        data[place] ^= 1 << rng.randrange(8)
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(CorruptionError):
            read_lock(tmp_path / "x")
    assert b"1e-05" in raw
    assert "not its bytes" in refused(tmp_path / "x", raw.replace(b"1e-05", b"1E-05"))


_OTHER_FILES = ["last byte", "half", "empty", "longer", "bom", "utf-16", "compact", "doubled key"]
_OTHER_FILES += ["deep", "list", "null", "format", "noise"]


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: raw + b"\n",
        lambda raw: b"\xef\xbb\xbf" + raw,
        lambda raw: raw.decode().encode("utf-16"),
        lambda raw: json.dumps(json.loads(raw)).encode(),
        lambda raw: raw.replace(b'"name":', b'"name": "lean",\n "name":', 1),
        lambda raw: b"[" * 200_000,
        lambda raw: b"[1, 2]",
        lambda raw: b"null",
        lambda raw: b'{"format": "tangobench-lock/2"}',
        lambda raw: b"\x00\xff" * 50,
    ],
    ids=_OTHER_FILES,
)
def test_other_files_are_refused(toy_original, tmp_path, change):
    refused(tmp_path / "x", change((toy_original / LOCK_NAME).read_bytes()))


def hostile(body: dict, path: tuple, value: object) -> dict:
    """The lock with one field changed and every hash made to fit."""
    data = json.loads(json.dumps(body))
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    try:
        return sign(seal(data)).data
    except (KeyError, TypeError, AttributeError):  # hashes of such a lock cannot even be made
        return sign({**data, "root": "0" * 64, "content_root": "0" * 64}).data


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("shards", 0, "path"), "../x.arrow"),
        (("shards", 0, "path"), "/etc/passwd"),
        (("shards", 0, "path"), "a//b"),
        (("shards", 0, "path"), "a\0b"),
        (("shards", 0, "path"), ""),
        (("shards", 0, "path"), LOCK_NAME),
        (("shards", 0, "path"), "wide/train-00001-of-00002.arrow"),
        (("shards", 0, "rows"), -1),
        (("shards", 0, "rows"), True),
        (("shards", 0, "rows"), 10**30),
        (("shards", 0, "batch_rows"), 0),
        (("shards", 0, "batch_offsets"), ["x"]),
        (("shards", 0, "batch_offsets"), [10**12, 0, 0]),
        (("shards", 0, "batch_offsets"), []),
        (("shards", 0, "config"), "none"),
        (("shards", 0), 7),
        (("side_files", 0, "path"), "../../x"),
        (("side_files", 0), {}),
        (("side_files", 0, "bytes"), "1"),
        (("side_files",), [1]),
        (("configs", "wide"), {}),
        (("configs", "wide", "context"), None),
        (("configs",), []),
        (("spec",), 3),
        (("notes",), None),
    ],
    ids=lambda value: str(value)[:40].replace("\0", "NUL"),
)
def test_hostile_locks_with_hashes_to_fit_are_refused(body, tmp_path, path, value):
    lock = hostile(body, path, value)
    refused(tmp_path / "x", pretty_json(lock).encode() + b"\n")


@pytest.mark.parametrize("name", ["spec_sha256", "root", "content_root"])
def test_hashes_must_follow_from_the_fields(body, tmp_path, name):
    lock = sign({**seal(body), name: "0" * 64})
    message = refused(tmp_path / "x", lock.to_bytes())
    assert name in message


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_lock_is_read_or_refused(toy_original, data):
    """Any field of a real lock replaced by any value, hashes made to fit."""
    body = json.loads((toy_original / LOCK_NAME).read_text())
    body = {k: v for k, v in body.items() if k not in {"checksum", "root", "content_root"}}
    path: tuple = (data.draw(st.sampled_from(sorted(body))),)
    place = body[path[0]]
    while isinstance(place, dict | list) and place and data.draw(st.booleans()):
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        path += (data.draw(st.sampled_from(keys)),)
        place = place[path[-1]]
    lock = hostile(body, path, data.draw(JSON))
    try:
        check_lock(lock, toy_original)
    except CorruptionError as error:
        assert error.kind == "lock-corrupt"


def test_no_lock_and_an_unreadable_one(tmp_path):
    with pytest.raises(CorruptionError) as caught:
        read_lock(tmp_path)
    assert caught.value.kind == "lock-missing"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / LOCK_NAME).touch()
    with pytest.raises(CorruptionError) as caught:
        read_lock(tmp_path)
    assert caught.value.kind == "lock-missing" and str(tmp_path / "mine") in caught.value.fix
    for place in (tmp_path / "none", tmp_path / "none" / "deeper"):
        with pytest.raises(UsageError) as missing:
            read_lock(place)
        assert missing.value.kind == "path-missing"
    (tmp_path / LOCK_NAME).mkdir()
    with pytest.raises(UsageError) as unreadable:
        read_lock(tmp_path)
    assert unreadable.value.kind == "lock-unreadable"


def test_differences_name_every_field():
    ours = {"a": {"b": 1, "c": [1, 2]}, "x": None, "n": 1}
    theirs = {"a": {"b": 2, "c": [1, 3]}, "n": 1.0}
    assert list(differences(ours, theirs)) == [
        ("a.b", 1, 2),
        ("a.c[1]", 2, 3),
        ("n", 1, 1.0),
        ("x", None, "(absent)"),
    ]
    assert list(differences(ours, ours)) == []
    assert list(differences([1], [1, 2])) == [("", [1], [1, 2])]


def test_another_root_is_a_mismatch_that_shows_the_fields(body):
    one, other = sign(seal(body)), sign(seal({**body, "source": {"commit": "abc"}}))
    require_root(one, one, "here")
    with pytest.raises(MismatchError) as caught:
        require_root(one, other, "here")
    assert caught.value.exit_code == 3
    assert one.root in caught.value.message
    assert other.root in caught.value.message
    assert "source.commit: (absent) here, abc expected" in caught.value.message


@given(JSON)
def test_pretty_json_is_json(value):
    assert json.loads(pretty_json(value)) == value


def test_short_cuts():
    assert short("x" * 100, 10) == "x" * 9 + "…"
    assert short([1, 2]) == "[1, 2]"
