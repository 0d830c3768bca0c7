"""A unit tries again after a passing I/O fault, where it runs, and after no other error."""

from __future__ import annotations

import errno

import pool_jobs
import pytest

from tangobench.errors import InputError, ResourceError, TangobenchError
from tangobench.pipeline.core import build
from tangobench.pipeline.core.build import Job, SerialRunner, Stage
from tangobench.pipeline.core.pool import ProcessRunner
from tangobench.pipeline.core.store import open_store


@pytest.mark.parametrize("workers", [1, 2])
def test_a_dropped_line_is_tried_again_in_every_runner(workers, tmp_path):
    runner = SerialRunner() if workers == 1 else ProcessRunner(workers)
    try:
        job = Job(open_store(str(tmp_path / "store"), scratch="x"), runner)
        stage = Stage("unreliable", 1, pool_jobs.unreliable)
        (record,) = job.run(stage, [build.Unit("a", ({"log": str(tmp_path / "log")},))])
    finally:
        runner.close()
    assert (tmp_path / "log").read_text() == "..."
    assert bytes(job.store.read(record.address)) == b"done"


ERRORS = [
    pytest.param(OSError(errno.EIO, "x"), 3, ResourceError, id="device"),
    pytest.param(TimeoutError("x"), 3, TimeoutError, id="time-out"),
    pytest.param(OSError(errno.ENOSPC, "x"), 1, ResourceError, id="full disk"),
    pytest.param(FileNotFoundError(errno.ENOENT, "x"), 1, ResourceError, id="missing file"),
    pytest.param(InputError("x", kind="odd"), 1, InputError, id="bad input"),
    pytest.param(ResourceError("x", kind="store-unreachable"), 3, ResourceError, id="store"),
    pytest.param(ValueError("x"), 1, ValueError, id="bug"),
]


@pytest.mark.parametrize(("error", "tries", "raised"), ERRORS)
def test_how_often(error, tries, raised, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "_PAUSES", (0.0, 0.0))
    seen = []

    def fail(args, store):
        seen.append(args)
        raise error

    job = Job(open_store(str(tmp_path), scratch="x"))
    with pytest.raises(raised) as caught:
        job.run(Stage("fail", 1, fail), [build.Unit("a", ({},))])
    assert len(seen) == tries
    if isinstance(caught.value, TangobenchError):
        assert caught.value.details["unit"] == "a"
