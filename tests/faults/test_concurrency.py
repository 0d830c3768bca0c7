"""Two builds, a build and a reader, a lock whose holder died."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest
from trees import hashes, temporary_files

from tangobench.errors import CorruptionError
from tangobench.pipeline import api
from tangobench.pipeline.core.build import SerialRunner
from tangobench.pipeline.core.files import exclusive
from tangobench.pipeline.reading import open_dataset

pytestmark = pytest.mark.faults


def wait_for(path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_of_two_builds_one_publishes_and_the_other_is_busy_or_waits(start, program, tmp_path):
    log = tmp_path / "log"
    words = ["build", "toy", "--out", tmp_path / "out"]
    first = start(*words, TOY_SECONDS="1.5", TOY_LOG=str(log))
    wait_for(log)
    error = json.loads(program(*words, "--json", check=6).stdout)
    assert error["error"] == "busy"
    assert error["details"]["holder"] == str(first.pid)
    waiting = program(*words, "--wait", "60")
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0, err
    assert waiting.stdout == out
    assert "already built" in waiting.stderr
    assert not temporary_files(tmp_path / "out")


def test_a_lock_whose_holder_was_killed_is_free(start, program, tmp_path):
    log = tmp_path / "log"
    words = ["build", "toy", "--out", tmp_path / "out"]
    first = start(*words, TOY_SECONDS="60", TOY_LOG=str(log))
    wait_for(log)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    assert (tmp_path / "out" / ".locks" / "toy-sample").read_text() == str(first.pid)
    program(*words)


def test_builds_of_two_targets_share_a_store(toy, tmp_path, toy_original):
    """Equal units of two builds at the same time: equal objects, nobody harmed."""
    folders: list = []

    def build(name: str) -> None:
        request = toy.request(tmp_path / name, store=str(tmp_path / "units"))
        folders.append(api.run(request, SerialRunner()).folder)

    threads = [threading.Thread(target=build, args=(f"out-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(folders) == 4
    assert all(hashes(folder) == hashes(toy_original) for folder in folders)
    assert not list((tmp_path / "units" / "tmp").rglob(".partial-*"))


def test_a_reader_during_repairs_sees_right_rows_or_a_refusal(toy, toy_folder):
    """Shards are replaced whole, so a reader never sees a mixture."""
    right = [row["tokens"].tolist() for row in open_dataset(toy_folder).rows("wide", "train")]
    shard = toy_folder / "wide" / "train-00001-of-00002.arrow"
    stop = threading.Event()

    def damage_and_repair() -> None:
        while not stop.is_set():
            shard.unlink()
            shard.write_bytes(b"\0" * 300)
            api.run(toy.request(toy_folder.parent), SerialRunner())

    worker = threading.Thread(target=damage_and_repair)
    worker.start()
    seen = {"right": 0, "refused": 0}
    deadline = time.monotonic() + 30
    while min(seen.values()) < 3 and time.monotonic() < deadline:
        try:
            rows = open_dataset(toy_folder).rows("wide", "train")
            assert [row["tokens"].tolist() for row in rows] == right
            seen["right"] += 1
        except CorruptionError:
            seen["refused"] += 1
    stop.set()
    worker.join()
    assert min(seen.values()) >= 3, seen


def test_two_trainers_on_one_dataset(tmp_path, make_toy_math):
    """At the same time or alone: the same weights; the second of one run is busy."""
    from training import options, tiny_run

    from tangobench.errors import BusyError
    from tangobench.model.training import checkpoint
    from tangobench.model.training.train import train

    make_toy_math(tmp_path / "both")
    make_toy_math(tmp_path / "alone")
    barrier = threading.Barrier(2)

    def work(name: str) -> None:
        barrier.wait()
        train(tiny_run(name), options(tmp_path / "both"))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = train(tiny_run("a"), options(tmp_path / "alone"))
    ours, theirs = (
        checkpoint.load(checkpoint.latest(folder / "checkpoints")).tensors
        for folder in (tmp_path / "both" / "runs" / alone.name, alone)
    )
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    with exclusive(alone / ".lock"), pytest.raises(BusyError):
        train(tiny_run("a"), options(tmp_path / "alone"))


def test_a_dataset_replaced_by_another_during_training_is_refused_on_resume(
    tmp_path, make_toy_math
):
    import dataclasses
    import shutil

    from training import options, tiny_run

    from tangobench.errors import MismatchError
    from tangobench.model.training.train import train

    folder = make_toy_math(tmp_path)
    train(tiny_run(), dataclasses.replace(options(tmp_path), stop_at=4))
    shutil.rmtree(folder)
    make_toy_math(tmp_path / "other", seed=1)
    shutil.copytree(tmp_path / "other" / folder.name, folder)
    with pytest.raises(MismatchError, match="root"):
        train(tiny_run(), options(tmp_path))


def test_processes_that_make_the_lean_sample_at_once(tmp_path, monkeypatch):
    """One makes it, the others wait; a damaged one is made again."""
    from concurrent.futures import ThreadPoolExecutor

    from tangobench.pipeline.lean.fetch import cache_folder, sample_repository

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: sample_repository(), range(4)))
    assert len(found) == 1
    (folder,) = found
    damaged = next(p for p in sorted(folder.glob("objects/*/*")) if p.suffix in ("", ".pack"))
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-30] + bytes(30))
    assert sample_repository() == folder
    assert len(list(cache_folder().iterdir())) == 2  # the repository and its lock
