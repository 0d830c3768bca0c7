"""Unit stores and datasets in an object store: an S3 server on loopback."""

from __future__ import annotations

import tempfile
from collections import Counter

import pytest
from s3fs import S3FileSystem
from samples import LOCKED

from tangobench.errors import CorruptionError, ResourceError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.core.lock import committed_lock
from tangobench.pipeline.core.store import Bucket, open_store, place_of

KEY = "ab" * 32


def key_of(bucket: str, name: str) -> str:
    return f"{bucket.removeprefix('s3://shelf/')}/{name}"


def object_key(bucket: str, address: str) -> str:
    return key_of(bucket, f"objects/{address[:2]}/{address[2:]}")


@pytest.fixture
def reads(monkeypatch):
    """The addresses that were read, whole or in part."""
    seen, really = [], Bucket.read

    def read(self, start=None, end=None):
        seen.append(self.url)
        return really(self, start, end)

    monkeypatch.setattr(Bucket, "read", read)
    return seen


# FineWeb's units in a bucket are read by a cluster in tests/flows/test_runner_dask.py.
@pytest.mark.parametrize(
    "dataset", [pytest.param(n, marks=pytest.mark.slow if n == "fineweb" else ()) for n in LOCKED]
)
def test_processes_with_their_units_in_a_bucket_give_the_committed_root(dataset, bucket, tmp_path):
    built = api.build(dataset, out=str(tmp_path / "a"), store=bucket, workers=2)
    assert built.lock.root == committed_lock(dataset, "sample").root
    assert not (tmp_path / "a" / ".units").exists()


def test_a_resumed_build_fetches_no_object_of_a_finished_unit(
    toy, bucket, tmp_path, reads, monkeypatch
):
    """Only by the units that are missing, and to be published."""
    honest, shaped = toy.shape, []

    def dies(args, store):
        if len(shaped) == 2:
            raise ConnectionError("killed")
        shaped.append(args["address"])
        return honest(args, store)

    def build():
        return api.build("toy", out=str(tmp_path / "a"), manifest=toy.MANIFEST, store=bucket)

    with monkeypatch.context() as patch:
        patch.setattr(toy, "shape", dies)
        with pytest.raises(ConnectionError):
            build()
    reads.clear()
    lock = build().lock
    fetched = Counter("".join(url.split("/")[-2:]) for url in reads if "/objects/" in url)
    placed = {entry["sha256"] for entry in lock.shards + lock.side_files}
    drawn = {address: n for address, n in fetched.items() if address not in placed}
    assert len(shaped) == 2 and len(drawn) == 3
    # Each drawn unit has two shapes.
    assert drawn == {address: 2 - shaped.count(address) for address in drawn}


def test_a_resume_looks_at_objects_and_fetches_none(toy, bucket, tmp_path, reads):
    api.build("toy", out=str(tmp_path / "a"), manifest=toy.MANIFEST, store=bucket)
    record = open_store(bucket).put(KEY, b"hello world", {})
    reads.clear()
    assert open_store(bucket).get(KEY) == record
    assert reads and all("/records/" in url for url in reads)


@pytest.mark.parametrize("harm", ["other bytes", "cut", "removed"])
def test_an_object_that_was_changed_is_made_again(bucket, s3_server, harm):
    store = open_store(bucket)
    record = store.put(KEY, b"hello world", {})
    key = object_key(bucket, record.address)
    if harm == "removed":
        s3_server.delete_object(Bucket="shelf", Key=key)
    else:
        body = b"hello" if harm == "cut" else b"hellO world"
        s3_server.put_object(Bucket="shelf", Key=key, Body=body)
    assert store.get(KEY) is None
    assert store.put(KEY, b"hello world", {}) == record == store.get(KEY)


def test_bytes_that_the_store_vouches_for_are_hashed_where_they_are_used(bucket, monkeypatch):
    store = open_store(bucket)
    record = store.put(KEY, b"hello world", {})
    with monkeypatch.context() as patch:
        patch.setattr(Bucket, "read", lambda *_: b"hellO world")
        with pytest.raises(CorruptionError) as caught:
            store.read(record.address)
    assert caught.value.kind == "unit-corrupt"
    assert store.get(KEY) is None  # so the same command makes it again


def test_a_range_is_a_range(bucket):
    store = open_store(bucket)
    record = store.put(KEY, bytes(range(256)), {})
    assert bytes(store.read(record.address, 100, 3)) == bytes([100, 101, 102])
    assert bytes(store.read(record.address, 100, 0)) == b""


def test_memory_of_one_process_is_refused_for_two(toy, tmp_path):
    options = {"out": str(tmp_path), "manifest": toy.MANIFEST, "store": "memory://units"}
    with pytest.raises(UsageError) as caught:
        api.build("toy", workers=2, **options)
    assert caught.value.kind == "store-not-shared"
    assert api.build("toy", workers=1, **options).lock.root


def test_a_bucket_that_is_not_there_is_a_typed_error(s3_server):
    with pytest.raises(ResourceError) as caught:
        open_store("s3://no-such-bucket/units").put(KEY, b"x", {})
    assert caught.value.kind == "store-unreachable"
    assert "no-such-bucket" in caught.value.message


def test_of_two_writers_of_one_name_the_second_is_told(bucket):
    for place in (place_of(f"{bucket}/a"), place_of("memory://writers/a")):
        place.write(b"first", new=True)
        with pytest.raises(FileExistsError):
            place.write(b"second", new=True)
        assert place.read() == b"first"
        place.remove()


def test_what_another_process_wrote_is_seen_at_once(bucket, s3_server):
    """Whatever this one knows of the folder from before: a listing, a size."""
    place = place_of(bucket) / "a"
    for name in ("one", "two"):
        (place / name).write(b"old")
    assert place_of(bucket).files() == ["a/one", "a/two"]
    s3_server.put_object(Bucket="shelf", Key=key_of(bucket, "a/one"), Body=b"longer")
    s3_server.put_object(Bucket="shelf", Key=key_of(bucket, "a/new"), Body=b"new")
    s3_server.delete_object(Bucket="shelf", Key=key_of(bucket, "a/two"))
    assert ((place / "one").read(), (place / "new").read()) == (b"longer", b"new")
    assert (place / "one").read(1, 6) == b"onger" and (place / "one").stat()[0] == 6
    assert place_of(bucket).files() == ["a/new", "a/one"]
    with pytest.raises(FileNotFoundError):
        (place / "two").read()


PART = 5 << 20  # S3 takes no smaller part


def test_a_large_object_is_sent_in_parts_and_never_half_there(bucket, tmp_path, monkeypatch):
    """Killed at any request of the upload, the object and its record are not there."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("tangobench.pipeline.core.store._ONE_PUT", PART)
    monkeypatch.setattr("tangobench.pipeline.core.store._PARTS", {"chunksize": PART})
    store, size = open_store(bucket), 2 * PART + 1000
    sent, dies = [], [0]
    really = S3FileSystem._call_s3

    async def dead(*_):
        pass

    async def call(self, method, *args, **kwargs):
        if method in ("create_multipart_upload", "upload_part", "complete_multipart_upload"):
            sent.append(len(kwargs.get("Body", b"")))
            if len(sent) == dies[0]:
                raise ConnectionError("killed")
        return await really(self, method, *args, **kwargs)

    def write(sink):
        for _ in range(size // 1000):
            sink.write(bytes(1000))
        return {"bytes": sink.tell()}

    monkeypatch.setattr(S3FileSystem, "_call_s3", call)
    monkeypatch.setattr(S3FileSystem, "_abort_mpu", dead)
    for dies[0] in range(1, 100):
        sent.clear()
        try:
            record = store.put_streamed(KEY, write, size)
        except ResourceError:
            assert store.get(KEY) is None and not place_of(bucket).files()
        else:
            break
    assert dies == [6] and max(sent) == PART
    assert store.get(KEY) == record and len(store.read(record.address)) == record.size
    assert not list(tmp_path.iterdir())
