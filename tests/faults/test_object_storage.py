"""A dataset in an object store while it is published: by two at once, and under a reader."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tangobench.errors import CorruptionError
from tangobench.pipeline import api
from tangobench.pipeline.core.build import SerialRunner
from tangobench.pipeline.core.lock import LOCK_NAME
from tangobench.pipeline.core.shard_reader import verify
from tangobench.pipeline.core.store import Bucket, place_of
from tangobench.pipeline.reading import open_dataset

from .conftest import SUPPORT

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


@pytest.fixture
def gate(s3_server, tmp_path):
    """A gate in front of the store, for one build: its address, its orders and its counts."""
    store = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    opened = []

    class Gate:
        def __init__(self, order):
            self.folder = Path(tempfile.mkdtemp(dir=tmp_path))
            (self.folder / "gate").write_text(order)
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            words = ["127.0.0.1", self.folder / "gate", port, store.port]
            opened.append(subprocess.Popen([sys.executable, SUPPORT / "gate.py", *map(str, words)]))
            until(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)

        def counted(self, what):
            counts = self.folder / "gate.json"
            return json.loads(counts.read_text()).get(what, 0) if counts.exists() else 0

    yield Gate
    for process in opened:
        process.kill()
        process.wait()


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.02)


@pytest.mark.slow
def test_a_publisher_that_is_killed_at_a_put_leaves_no_dataset(
    toy, bucket, tmp_path, start, gate, record_property
):
    """SIGKILL at the first PUT, in the middle, and at the lock; the same command then finishes."""
    words = ("build", "toy", "--out", bucket, "--store", tmp_path / "units", "--quiet")
    expected = api.run(toy.request(tmp_path), SerialRunner()).lock.root
    undisturbed = gate("")
    whole = start(*words, AWS_ENDPOINT_URL=undisturbed.url)
    assert whole.communicate()[0].split()[-1] == expected
    puts = undisturbed.counted("127.0.0.1")
    folder = place_of(f"{bucket}/toy-sample")
    names = folder.files()
    assert puts == len(names) > 5
    points = (0, puts // 2, puts - 1)
    record_property("faults", len(points))
    for point in points:
        for name in folder.files():
            (folder / name).remove()
        held = gate(f"hold {point}")
        process = start(*words, AWS_ENDPOINT_URL=held.url)
        until(lambda held=held: held.counted("held") > 0)
        assert process.poll() is None
        process.kill()
        process.communicate()
        assert held.counted("127.0.0.1") == point == len(folder.files())
        with pytest.raises(CorruptionError) as caught:
            verify(folder)
        assert caught.value.kind == "lock-missing"
        again = start(*words)
        assert again.communicate()[0].split()[-1] == expected
        assert folder.files() == names and verify(folder).root == expected


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
