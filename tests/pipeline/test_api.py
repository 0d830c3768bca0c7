from __future__ import annotations

import io
import os

import pytest
from trees import hashes, temporary_files

from tangobench.errors import InputError, ResourceError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.core.build import Job, Output, SerialRunner, Stage, Unit
from tangobench.pipeline.core.pool import ProcessRunner
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.store import open_store


def test_build_then_reuse(toy, tmp_path):
    one = api.build("toy", out=str(tmp_path), manifest=toy.MANIFEST)
    other = api.build("toy", out=str(tmp_path), manifest=toy.MANIFEST, workers=2)
    assert (one.reused, other.reused) == (False, True)
    assert one.lock == other.lock
    assert not temporary_files(tmp_path)


def test_store_and_dataset_are_apart(toy, tmp_path, toy_original):
    request = toy.request(tmp_path / "out", store=str(tmp_path / "units"))
    assert hashes(api.run(request, SerialRunner()).folder) == hashes(toy_original)
    assert not (tmp_path / "out" / ".units").exists()


def test_a_remote_store_gives_the_same_files(toy, tmp_path, toy_original):
    request = toy.request(tmp_path, store="memory://test-api/units")
    assert hashes(api.run(request, SerialRunner()).folder) == hashes(toy_original)


def test_processes_give_the_same_files(toy, tmp_path, toy_original):
    with ProcessRunner(2) as runner:
        built = api.run(toy.request(tmp_path), runner)
    assert hashes(built.folder) == hashes(toy_original)


def test_plan_and_unknown_names(toy, tmp_path):
    assert api.plan(toy.request(tmp_path))["rows"] == 30
    with pytest.raises(UsageError) as caught:
        api.build("nothing")
    assert caught.value.kind == "no-such-dataset"
    with pytest.raises(UsageError):
        api.build("toy", workers=0)


@pytest.mark.parametrize("profile", ["nope", "../../x", ""])
def test_an_unknown_profile_makes_no_folder(toy, tmp_path, profile):
    with pytest.raises(UsageError) as caught:
        api.run(toy.request(tmp_path / "out", profile=profile), SerialRunner())
    assert caught.value.kind == "spec-profile"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_unit_names_itself_and_resumes(toy, tmp_path, monkeypatch, workers, toy_original):
    monkeypatch.setenv("TOY_BAD", "2")
    with pytest.raises(InputError) as caught:
        api.build("toy", out=str(tmp_path), manifest=toy.MANIFEST, workers=workers)
    assert caught.value.details["unit"] == "part 2"
    assert not (tmp_path / "toy-sample").exists()
    assert not temporary_files(tmp_path)
    monkeypatch.delenv("TOY_BAD")
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "log"))
    built = api.build("toy", out=str(tmp_path), manifest=toy.MANIFEST, workers=workers)
    assert hashes(built.folder) == hashes(toy_original)
    redone = (tmp_path / "log").read_text().split()
    assert "2" in redone
    if workers == 1:
        assert redone == ["2"]  # finished units are not done again


def test_a_bug_in_a_unit_names_stage_and_unit(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_BUG", "1")
    with pytest.raises(RuntimeError) as caught:
        api.run(toy.request(tmp_path), SerialRunner())
    assert caught.value.__notes__ == ["in stage draw, unit part 1"]


def test_a_worker_that_dies(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_DIE", "1")
    with pytest.raises(ResourceError) as caught, ProcessRunner(2) as runner:
        api.run(toy.request(tmp_path), runner)
    assert caught.value.kind == "worker-died"
    assert "draw: part 1" in caught.value.details["units"]


def hungry(args, store) -> Output:
    raise MemoryError


def test_out_of_memory_in_a_unit(tmp_path):
    with pytest.raises(ResourceError) as caught:
        Job(open_store(str(tmp_path))).run(Stage("eat", 1, hungry), [Unit("all of it", ({},))])
    assert caught.value.kind == "out-of-memory"
    assert caught.value.details["unit"] == "all of it"


def echo(args, store) -> Output:
    return Output(str(args).encode(), {})


def test_a_unit_is_redone_when_inputs_or_version_change_and_not_else(tmp_path):
    job = Job(open_store(str(tmp_path)))
    job.run(Stage("echo", 1, echo), [Unit("a", ({"x": 1},))])
    job.run(Stage("echo", 1, echo), [Unit("renamed", ({"x": 1},), weight=9)])
    job.run(Stage("echo", 2, echo), [Unit("a", ({"x": 1},))])
    job.run(Stage("echo", 1, echo), [Unit("a", ({"x": 2},))])
    assert [stage["reused"] for stage in job.stages] == [0, 1, 0, 0]


def test_progress_survives_a_reader_that_went_away():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream:
        reporter = Reporter(stream=stream)
        reporter.start("x", 1, 1.0)
        reporter.advance(1.0)
        reporter.finish()
        reporter.say("nobody hears this")
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tick_by_20_seconds(monkeypatch) -> None:
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr(
        "tangobench.pipeline.core.progress.time.monotonic", lambda: float(next(clock))
    )


def test_rate_and_time_left_do_not_count_what_was_kept_from_before(monkeypatch):
    tick_by_20_seconds(monkeypatch)
    stream = io.StringIO()
    reporter = Reporter(stream=stream)
    reporter.start("train", 10, 10.0)
    for _ in range(4):
        reporter.advance(1.0, reused=True)
    for _ in range(4):
        reporter.advance(1.0)
    fields = stream.getvalue().splitlines()[-1].split(" · ")
    assert fields[1:4] == ["1 m 20 s left", "8/10 units", "1.5/min"]  # 4 in 160 s; 2 to go


def test_one_unit_is_not_plural():
    stream = io.StringIO()
    reporter = Reporter(stream=stream)
    reporter.start("pack", 1, 1.0)
    reporter.advance(1.0)
    reporter.finish()
    assert stream.getvalue().startswith("pack: 1 unit in ")


def test_progress_gives_the_time_left_of_the_stage(monkeypatch):
    tick_by_20_seconds(monkeypatch)
    stream = io.StringIO()
    reporter = Reporter(stream=stream)
    reporter.start("draw", 4, 8.0)
    reporter.advance(2.0, label="gcd/easy 0 - 9")
    reporter.advance(2.0)
    reporter.advance(2.0)
    lines = stream.getvalue().splitlines()
    assert [line.split(" · ")[1] for line in lines] == ["1 m 00 s left", "40 s left", "20 s left"]
    assert lines[0].split(" · ")[2] == "gcd/easy 0 - 9"
