from __future__ import annotations

import errno
import os
import pickle
import tempfile
from itertools import accumulate

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.errors import CorruptionError, ResourceError, UsageError, without_secrets
from tangobench.pipeline.core.hashing import sha256_bytes
from tangobench.pipeline.core.store import LocalStore, Record, RemoteStore, open_store

KEY = "ab" * 32


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path):
    if request.param == "folder":
        return open_store(str(tmp_path / "units"))
    return open_store(f"memory://{tmp_path.name}/units")


def object_path(store: LocalStore, record: Record):
    return store.root / "objects" / record.address[:2] / record.address[2:]


def test_put_and_get(store):
    assert store.get(KEY) is None
    record = store.put(KEY, b"hello", {"rows": 3})
    assert store.get(KEY) == record
    assert record.address == sha256_bytes(b"hello")
    assert bytes(store.read(record.address)) == b"hello"
    assert bytes(store.read(record.address, 1, 3)) == b"ell"
    assert pickle.loads(pickle.dumps(store)).get(KEY) == record


LARGE = [b"x" * (1 << 21), b"y" * 3_000_000]
PIECES = st.lists(st.binary(max_size=40) | st.sampled_from(LARGE), max_size=4)


@settings(max_examples=25, deadline=None)
@given(PIECES)
def test_an_object_in_pieces_is_the_object_whole(pieces):
    with tempfile.TemporaryDirectory() as folder:
        for store in (open_store(folder), open_store("memory://pieces")):

            def write(sink):
                return {"ends": [sink.write(piece) + sink.tell() - len(piece) for piece in pieces]}

            record = store.put_streamed(KEY, write, 0)
            assert store.get(KEY) == record
            assert bytes(store.read(record.address)) == b"".join(pieces)
            assert record.result["ends"] == list(accumulate(map(len, pieces)))
            assert record == store.put(KEY, b"".join(pieces), record.result)
    fsspec.filesystem("memory").rm("/pieces", recursive=True)


@pytest.mark.parametrize("where", ["folder", "memory"])
def test_an_object_that_is_not_finished_is_not_there(tmp_path, where):
    store = open_store(str(tmp_path) if where == "folder" else f"memory://{tmp_path}")

    def fail(sink):
        sink.write(b"x" * 5_000_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put_streamed(KEY, fail, 5_000_000)
    assert store.get(KEY) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not fsspec.filesystem("memory").glob(f"{tmp_path}/**")


def failing(code):
    def fail(*_):
        raise OSError(code, os.strerror(code))

    return fail


def test_a_full_disk_names_the_bytes_of_an_object_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(ResourceError) as caught:
        open_store(str(tmp_path)).put_streamed(KEY, lambda sink: {"n": sink.write(b"x")}, 12_345)
    assert caught.value.details["bytes_needed"] == 12_345


def test_an_empty_object(store):
    record = store.put(KEY, b"", {})
    assert store.get(KEY) == record
    assert bytes(store.read(record.address)) == b""


def test_a_fresh_record_equals_the_stored_one(store):
    """Else a build that resumes would go on with other values than one that was never killed."""
    result = {"b": (1, 2), "a": {10: "x", 9: "y"}}
    fresh = store.put(KEY, b"x", result)
    again = store.get(KEY)
    assert fresh == again
    assert repr(fresh) == repr(again)  # the order of keys too


def test_a_missing_object_is_a_typed_error(store):
    with pytest.raises(CorruptionError) as caught:
        store.read("0" * 64)
    assert caught.value.kind == "unit-missing"
    with pytest.raises(CorruptionError):
        store.read("0" * 64, 0, 1)


@pytest.mark.parametrize("harm", ["flip", "cut", "empty", "remove", "remove record", "flip record"])
def test_a_damaged_unit_is_not_there(tmp_path, harm):
    store = open_store(str(tmp_path))
    record = store.put(KEY, b"hello world", {})
    path = object_path(store, record)
    if "record" in harm:
        path = store.root / "records" / KEY[:2] / f"{KEY[2:]}.json"
    data = path.read_bytes()
    if harm.startswith("remove"):
        path.unlink()
    else:
        path.write_bytes(
            {"cut": data[:-1], "empty": b""}.get(harm, bytes([data[0] ^ 1]) + data[1:])
        )
    assert store.get(KEY) is None
    assert store.put(KEY, b"hello world", {}) == record
    assert store.get(KEY) == record


def test_a_record_with_another_value_is_not_believed(tmp_path):
    store = open_store(str(tmp_path))
    store.put(KEY, b"hello world", {"rows": 3})
    path = store.root / "records" / KEY[:2] / f"{KEY[2:]}.json"
    path.write_bytes(path.read_bytes().replace(b'"rows":3', b'"rows":4'))
    assert store.get(KEY) is None


def test_a_record_under_another_key_is_not_believed(tmp_path):
    store = open_store(str(tmp_path))
    store.put(KEY, b"x", {})
    other = "cd" * 32
    (store.root / "records" / "cd").mkdir()
    (store.root / "records" / "ab" / f"{KEY[2:]}.json").rename(
        store.root / "records" / "cd" / f"{other[2:]}.json"
    )
    assert store.get(other) is None


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_a_record_or_none(data):
    assert Record.from_bytes(data) is None


def test_a_record_nested_too_deeply_is_none():
    assert Record.from_bytes(b"[" * 100_000) is None


def test_scratch_is_cleared_and_holds_nothing_else(tmp_path):
    one, other = (open_store(str(tmp_path), scratch=name) for name in ("a", "b"))
    for name in ("a", "b"):
        (tmp_path / "tmp" / name).mkdir(parents=True)
        (tmp_path / "tmp" / name / ".partial-1").touch()
    one.clear_scratch()
    assert not (tmp_path / "tmp" / "a").exists()
    assert (tmp_path / "tmp" / "b" / ".partial-1").exists()
    other.put(KEY, b"x", {})
    assert one.get(KEY) is not None


def test_where_a_store_can_be(tmp_path):
    assert open_store(f"file://{tmp_path}") == open_store(str(tmp_path))
    assert isinstance(open_store("memory://x"), RemoteStore)
    with pytest.raises(UsageError) as caught:
        open_store("nowhere://user:password@x")
    assert caught.value.kind == "store-unknown"
    assert "password" not in caught.value.message


def test_a_remote_store_that_fails_is_a_typed_error(monkeypatch):
    import fsspec.implementations.memory

    def refuse(*_, **__):
        raise ConnectionResetError("s3://key:secret@bucket went away")

    monkeypatch.setattr(fsspec.implementations.memory.MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(ResourceError) as caught:
        open_store("memory://y").put(KEY, b"x", {})
    assert caught.value.kind == "store-unreachable"
    assert "secret" not in caught.value.message


def test_an_unreadable_store_is_a_typed_error(tmp_path):
    store = open_store(str(tmp_path))
    (tmp_path / "records" / KEY[:2] / f"{KEY[2:]}.json").mkdir(parents=True)
    with pytest.raises(ResourceError) as caught:
        store.get(KEY)
    assert caught.value.kind == "store-unreadable"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://u:p@h/x", "https://…@h/x"),
        ("a s3://k@b and git+ssh://t@h", "a s3://…@b and git+ssh://…@h"),
        ("https://h/x@y", "https://h/x@y"),
    ],
)
def test_without_secrets(text, clean):
    assert without_secrets(text) == clean


def test_an_object_in_its_place_is_the_same_file_and_never_half_there(tmp_path):
    store = open_store(str(tmp_path / "units"))
    record = store.put(KEY, b"hello", {})
    for _ in range(2):
        store.place(record.address, tmp_path / "data" / "a.arrow")
        assert (tmp_path / "data" / "a.arrow").samefile(object_path(store, record))
        assert [path.name for path in (tmp_path / "data").iterdir()] == ["a.arrow"]


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES])
def test_an_object_is_copied_where_there_are_no_links(tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "link", failing(code))
    store = open_store(str(tmp_path / "units"))
    record = store.put(KEY, b"hello", {})
    store.place(record.address, tmp_path / "a.arrow")
    assert (tmp_path / "a.arrow").read_bytes() == b"hello"
    assert not (tmp_path / "a.arrow").samefile(object_path(store, record))


def test_a_full_disk_is_told_when_an_object_is_placed(tmp_path, monkeypatch):
    store = open_store(str(tmp_path / "units"))
    record = store.put(KEY, b"hello", {})
    monkeypatch.setattr(os, "link", failing(errno.ENOSPC))
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(ResourceError) as caught:
        store.place(record.address, tmp_path / "a.arrow")
    assert (caught.value.kind, caught.value.details["bytes_needed"]) == ("disk-full", 5)
    assert not (tmp_path / "a.arrow").exists()


def test_an_error_of_the_unit_is_not_taken_for_one_of_the_store(tmp_path):
    def lost(sink):
        raise FileNotFoundError(errno.ENOENT, "gone", "input.txt")

    with pytest.raises(FileNotFoundError, match=r"input\.txt"):
        open_store(str(tmp_path)).put_streamed(KEY, lost, 5)
