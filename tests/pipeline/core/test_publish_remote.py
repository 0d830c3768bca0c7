"""Datasets published to an object store, and read from it: an S3 server on loopback."""

from __future__ import annotations

import json

import pytest

from tangobench.errors import CorruptionError, MismatchError, TangobenchError
from tangobench.pipeline import api, open_dataset
from tangobench.pipeline.core.build import SerialRunner
from tangobench.pipeline.core.lock import LOCK_NAME, committed_lock, read_lock
from tangobench.pipeline.core.shard_reader import cache_folder, verify
from tangobench.pipeline.core.store import Bucket, place_of

SHARD = "wide/train-00000-of-00002.arrow"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def published(toy, bucket):
    return api.run(toy.request(bucket), SerialRunner())


class Died(BaseException):
    """The publisher was killed."""


def dying(monkeypatch, at: int, *, arrives: bool):
    """The `at`-th PUT is the last thing that this process does, whether it arrives or not."""
    really, puts = Bucket.write, []

    def write(self, data, *, new=False):
        puts.append(self.url)
        if len(puts) < at or (len(puts) == at and arrives):
            really(self, data, new=new)
        if len(puts) >= at:
            raise Died

    monkeypatch.setattr(Bucket, "write", write)
    return puts


def test_a_sample_published_to_a_bucket_has_the_committed_root(bucket):
    built = api.build("lean", out=bucket, workers=2)
    assert verify(built.folder).root == committed_lock("lean", "sample").root
    assert any(name.startswith(".units/") for name in place_of(bucket).files())
    rows = open_dataset(str(built.folder))
    config = next(iter(rows.lock.configs))
    assert len(rows.rows(config, "train").tokens(0))


def test_the_same_command_again_changes_nothing(toy, bucket, published, monkeypatch):
    monkeypatch.setattr(Bucket, "write", None)  # not called
    again = api.run(toy.request(bucket), SerialRunner())
    assert again.reused and again.lock == published.lock
    again = api.run(toy.request(bucket, source="elsewhere"), SerialRunner(), None)
    assert again.lock == published.lock


@pytest.mark.parametrize("arrives", [False, True])
def test_a_publisher_killed_at_any_put_leaves_no_dataset_or_a_whole_one(
    toy, bucket, tmp_path, monkeypatch, arrives
):
    request = toy.request(bucket, store=str(tmp_path / "units"))
    whole = api.run(toy.request(tmp_path), SerialRunner()).lock.root
    for at in range(1, 100):
        with monkeypatch.context() as patch:
            puts = dying(patch, at, arrives=arrives)
            try:
                api.run(request, SerialRunner())
            except Died:
                pass
            else:
                break
        try:
            assert verify(request.folder).root == whole
            assert arrives and puts[-1].endswith(LOCK_NAME)
        except CorruptionError as error:
            assert error.kind == "lock-missing"
        for name in place_of(bucket).files():
            place_of(f"{bucket}/{name}").remove()
    assert at > len(verify(request.folder).shards)
    assert puts[-1].endswith(LOCK_NAME)


@pytest.mark.parametrize("harm", ["shard", "card", "lock", "missing"])
def test_a_damaged_dataset_is_no_dataset_until_it_is_whole(toy, bucket, published, harm):
    path = published.folder / {"card": "README.md", "lock": LOCK_NAME}.get(harm, SHARD)
    if harm == "missing":
        path.remove()
    else:
        path.write(path.read()[:-1] + b"?")
    with pytest.raises(CorruptionError):
        verify(published.folder)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died):
        dying(patch, 1, arrives=True)
        api.run(toy.request(bucket), SerialRunner())
    with pytest.raises(CorruptionError) as caught:
        open_dataset(str(published.folder))
    assert caught.value.kind == "lock-missing"
    assert api.run(toy.request(bucket), SerialRunner()).lock == published.lock
    assert verify(published.folder) == published.lock


def test_another_root_is_refused_whoever_comes_second(toy, bucket, published, monkeypatch):
    really, before = toy.build, place_of(bucket).files()

    def drifted(spec, source, job):
        result = really(spec, source, job)
        result.source["generator"] = 2
        return result

    monkeypatch.setattr(toy, "build", drifted)
    request = toy.request(bucket, source="elsewhere")
    with pytest.raises(MismatchError) as caught:
        api.run(request, SerialRunner())
    assert caught.value.exit_code == 3
    assert place_of(bucket).files() == before
    # The other one's lock arrives between our check and our last PUT.
    theirs = (published.folder / LOCK_NAME).read()
    (published.folder / LOCK_NAME).remove()
    put = Bucket.write

    def late(self, data, *, new=False):
        if new:
            put(self, theirs)
        put(self, data, new=new)

    monkeypatch.setattr(Bucket, "write", late)
    with pytest.raises(MismatchError):
        api.run(request, SerialRunner())
    assert (published.folder / LOCK_NAME).read() == theirs
    monkeypatch.setattr(toy, "build", really)
    (published.folder / LOCK_NAME).remove()
    assert api.run(request, SerialRunner()).lock.root == published.lock.root


def test_readers_fetch_a_shard_once_and_never_list(published, s3_server, monkeypatch):
    calls, really = [], Bucket.read

    def read(self, start=None, end=None):
        calls.append(self.name)
        return really(self, start, end)

    monkeypatch.setattr(Bucket, "read", read)
    monkeypatch.setattr(Bucket, "files", None)
    for _ in range(2):
        rows = open_dataset(str(published.folder)).rows("wide", "train")
        assert rows.tokens(0).tolist()
    assert sorted(calls) == sorted([LOCK_NAME, LOCK_NAME, SHARD.split("/")[1]])
    (kept,) = cache_folder().iterdir()
    kept.write_bytes(kept.read_bytes()[:-1] + b"?")  # the copy rots: it is fetched again
    assert open_dataset(str(published.folder)).rows("wide", "train").tokens(0).tolist()
    assert calls.count(SHARD.split("/")[1]) == 2
    path = published.folder / SHARD
    path.write(path.read()[:-1] + b"?")
    assert open_dataset(str(published.folder)).rows("wide", "train").tokens(0).tolist()
    monkeypatch.undo()
    with pytest.raises(CorruptionError) as caught:
        verify(published.folder)  # always reads the bucket
    assert caught.value.kind == "shard-corrupt" and SHARD in caught.value.details["path"]


def test_verify_finds_what_the_lock_does_not_name(published):
    data = (published.folder / SHARD).read()
    (published.folder / "wide/train-00002-of-00002.arrow").write(data)
    with pytest.raises(TangobenchError) as caught:
        verify(published.folder)
    assert caught.value.kind == "shard-extra"
    (published.folder / SHARD).remove()
    with pytest.raises(TangobenchError) as caught:
        verify(published.folder)
    assert caught.value.kind == "shard-renamed"


def test_the_program_builds_verifies_and_reads_a_bucket(
    program, toy, bucket, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # where a folder called `s3:` would be
    done = program("build", "toy", "--manifest", toy.MANIFEST, "--out", bucket, "--json")
    folder, root = f"{bucket}/toy-sample", json.loads(done.stdout)["root"]
    assert program("verify", folder).stdout.strip() == root
    assert program("diff", folder, folder).stdout.strip().endswith(root)
    assert not list(tmp_path.glob("s3:*"))
    path = place_of(f"{folder}/{SHARD}")
    path.write(b"")
    done = program("verify", folder, "--json", check=4)
    assert json.loads(done.stdout)["error"] == "shard-truncated"
    assert read_lock(place_of(folder)).root == root
