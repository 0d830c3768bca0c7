"""A dataset in an object store while it is published: by two at once, and under a reader."""

from __future__ import annotations

import threading

import pytest

from tangobench.errors import CorruptionError
from tangobench.pipeline import api
from tangobench.pipeline.core.build import SerialRunner
from tangobench.pipeline.core.lock import LOCK_NAME
from tangobench.pipeline.core.shard_reader import verify
from tangobench.pipeline.core.store import Bucket, place_of
from tangobench.pipeline.reading import open_dataset

pytestmark = pytest.mark.faults


def in_threads(*works):
    """Run each in a thread; the first error of any is raised."""
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_two_publishers_at_one_target_both_succeed_with_one_root(
    toy, bucket, tmp_path, monkeypatch
):
    """Both have found no lock before either writes one."""
    ready, really, roots, tries = threading.Barrier(2), Bucket.write, [], []

    def write(self, data, *, new=False):
        if new:
            tries.append(self.url)
            ready.wait(60)
        really(self, data, new=new)

    monkeypatch.setattr(Bucket, "write", write)

    def publisher(number):
        request = toy.request(bucket, store=str(tmp_path / f"units-{number}"))
        return lambda: roots.append(api.run(request, SerialRunner()).lock.root)

    in_threads(publisher(1), publisher(2))
    assert len(tries) == 2
    assert len(set(roots)) == 1
    assert verify(place_of(f"{bucket}/toy-sample")).root == roots[0]


def test_a_reader_during_a_publication_sees_no_dataset_or_a_whole_one(
    toy, bucket, tmp_path, monkeypatch
):
    """The reader looks after every PUT, first of a new dataset and then of a repair."""
    really, seen = Bucket.write, []
    folder = f"{bucket}/toy-sample"

    def look():
        try:
            data = open_dataset(folder)
            for config in data.lock.configs:
                for row in data.rows(config, "train"):
                    row["tokens"].sum()
            seen.append("whole")
        except CorruptionError as error:
            assert error.kind == "lock-missing", error
            seen.append("none")

    def write(self, data, *, new=False):
        really(self, data, new=new)
        look()

    request = toy.request(bucket, store=str(tmp_path / "units"))
    monkeypatch.setattr(Bucket, "write", write)
    root = api.run(request, SerialRunner()).lock.root
    assert seen[-1] == "whole" and set(seen[:-1]) == {"none"} and len(seen) > 5
    shard = next(n for n in place_of(folder).files() if n.endswith(".arrow"))
    really(place_of(f"{folder}/{shard}"), b"other bytes")
    seen.clear()
    assert api.run(request, SerialRunner()).lock.root == root
    assert seen[-1] == "whole" and set(seen[:-1]) == {"none"}
    assert (place_of(folder) / LOCK_NAME).read()
