"""Runs on several devices: with quick functions in place of training, killed and failing."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import launch_jobs
import psutil
import pytest

from tangobench import cli
from tangobench.errors import InputError, UsageError
from tangobench.eval.comparison import replicate as launch
from tangobench.eval.comparison.replicate import Launcher
from tangobench.model.training.recipes import RECIPES, Run, runs

RUNS = [Run(RECIPES["sample-dm_math-flash"], seed, seed) for seed in range(6)]


@pytest.fixture
def toy(tmp_path):
    def make(devices=("a", "b", "c", "d"), work=launch_jobs.twenty_steps, **more):
        done = [path.stem for path in tmp_path.glob("*.done")]
        return Launcher(RUNS, tmp_path, list(devices), done, work=work, **more)

    return make


def names(states):
    return {state.run.name: state.name for state in states}


def test_a_failed_run_frees_its_device_and_the_rest_finish(toy, tmp_path):
    first = toy()
    found = names(first.finish())
    assert RUNS[2].name == launch_jobs.FAILS
    assert found.pop(RUNS[2].name) == "failed" and set(found.values()) == {"done"}
    (why,) = (state.why for state in first.states if state.name == "failed")
    assert why == "loss-not-finite: loss nan at step 5"
    assert "5 done, 1 failed" in first.table().title
    (tmp_path / "repaired").touch()
    assert set(names(toy().finish()).values()) == {"done"}
    for run in RUNS:  # each trained once, none beyond its steps
        assert (tmp_path / run.name).read_text() == 20 * "x"
        assert (tmp_path / f"{run.name}.done").read_text() == "once\n"
    used = [(tmp_path / f"{run.name}.devices").read_text().split() for run in RUNS]
    assert {device for each in used for device in each} == {"a", "b", "c", "d"}
    assert [len(each) for each in used] == [1, 1, 2, 1, 1, 1]


def test_a_run_that_another_process_holds_is_waited_for(toy, tmp_path):
    (tmp_path / "repaired").touch()
    held = f"import fcntl, time; f = open({str(tmp_path / RUNS[0].name) + '.lock'!r}, 'w')\n"
    held += "fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(3)"
    other = subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE)
    other.stdout.readline()
    assert set(names(toy().finish()).values()) == {"done"}
    other.wait()


def test_a_worker_says_what_a_bug_was_and_takes_the_next_run(toy, tmp_path):
    states = toy("ab", launch_jobs.a_bug).finish()
    assert {state.why for state in states} == {"unexpected: a bug"} and states[0].code == 1
    for run in RUNS:
        log = (tmp_path / "logs" / f"{run.name}.log").read_text()
        assert "begun" in log and "ZeroDivisionError" in log


def test_the_first_failure_ends_everything_if_asked_to(toy):
    with pytest.raises(InputError, match="loss nan"):
        toy(stop_on_failure=True).finish()
    with pytest.raises(ZeroDivisionError):
        toy(["cpu"], launch_jobs.a_bug, stop_on_failure=True).finish()


def test_workers_end_with_a_killed_launcher(tmp_path):
    """SIGKILL of the launcher is SIGTERM for its workers."""
    program = f"""
        import pathlib, sys
        sys.path.insert(0, {str(Path(launch_jobs.__file__).parent)!r})
        import launch_jobs
        from tangobench.eval.comparison.replicate import Launcher
        from tangobench.model.training.recipes import RECIPES, Run
        run = Run(RECIPES["sample-dm_math-flash"], 1, 1)
        out = pathlib.Path({str(tmp_path)!r})
        Launcher([run], out, ["cpu", "cpu"], work=launch_jobs.until_asked_to_stop).finish()
    """
    launcher = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    wait_for(tmp_path / "started")
    launcher.send_signal(signal.SIGKILL)
    wait_for(tmp_path / "saved")
    launcher.wait()
    with contextlib.suppress(psutil.NoSuchProcess):  # and waits for no more work
        psutil.Process(int((tmp_path / "pid").read_text())).wait(30)


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def test_runs_are_chosen_by_pattern():
    every = runs("published", None)
    assert len(launch.choose(every, "run", None)) == 90
    assert len(launch.choose(every, "run", None, "fineweb-*")) == 36
    with pytest.raises(UsageError, match="fineweb-x") as caught:
        launch.choose(every, "run", None, "fineweb-x*")
    assert every[0].name in caught.value.fix


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_a_run_is_trained_and_scored_on_its_device(device, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(launch.torch, "set_num_threads", said.append)
    monkeypatch.setattr(launch.torch.cuda, "set_device", said.append)
    monkeypatch.setattr(launch, "train", lambda run, options: said.append(options.device) or run)
    monkeypatch.setattr(launch, "evaluate", lambda folder, **how: said.append(how))
    launch.train_and_score(RUNS[0], tmp_path, device, ("exact_match",))
    wanted = {"device": device, "match_answers": True, "probe": False}
    assert said == [1 if device == "cpu" else device, device, wanted]


@pytest.mark.parametrize("device", ("cuda:999", "abacus"))
def test_a_device_that_is_not_there_starts_nothing(device, tmp_path, capsys):
    words = ["--devices", f"cpu,{device}", "--only", "sample-dm_math-flash-*"]
    assert cli.main(["replicate", *words, "--out", str(tmp_path / "out")]) == 2
    assert device in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_plan_adds_up():
    runs = [Run(dataclasses.replace(RECIPES["sample-dm_math-flash"]), s, s) for s in range(3)]
    table = launch.estimates(runs, ["cpu", "cpu"])
    assert table.rows[0][1] == "3"
    assert "3 runs" in table.title
