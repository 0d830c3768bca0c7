"""Runs on several devices: with quick programs in place of training, killed and failing."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tangobench import cli
from tangobench.errors import UsageError
from tangobench.eval.comparison import launch
from tangobench.eval.comparison.launch import Launcher
from tangobench.model.training.recipes import RECIPES, Run

RUNS = [Run(RECIPES["sample-dm_math-flash"], seed, seed) for seed in range(6)]

# Trains 20 "steps": appends a line per step, resumes after the lines that are there.
TOY = """
import pathlib, sys, time
import fcntl
name, out, device, fail = sys.argv[1:]
here = pathlib.Path(out) / name
lock = open(here.with_suffix(".lock"), "w")
try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError: sys.exit(6)
with here.with_suffix(".devices").open("a") as f: f.write(device + "\\n")
for step in range(here.read_text().count("x") if here.exists() else 0, 20):
    if fail == name and step == 5 and not (pathlib.Path(out) / "repaired").exists():
        print('{"error": "loss-not-finite", "message": "loss nan at step 5"}'); sys.exit(5)
    with here.open("a") as f: f.write("x")
    time.sleep(0.01)
with here.with_suffix(".done").open("a") as f: f.write("once\\n")
"""


@pytest.fixture
def toy(tmp_path):
    def make(run, out, device, extras):
        return [[sys.executable, "-c", TOY, run.name, str(out), device, fails]]

    fails = RUNS[2].name
    done = lambda run: (tmp_path / f"{run.name}.done").exists()  # noqa: E731
    return lambda **more: Launcher(RUNS, tmp_path, ["a", "b", "c", "d"], done, make=make, **more)


def names(states):
    return {state.run.name: state.name for state in states}


def test_a_failed_run_frees_its_device_and_the_rest_finish(toy, tmp_path):
    first = toy(step_seconds={"sample-dm_math-flash": 2.0})
    found = names(first.finish())
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


@pytest.mark.skipif(sys.platform != "linux", reason="children end with their parent on Linux")
def test_children_end_with_a_killed_launcher(tmp_path):
    """SIGKILL of the launcher is SIGTERM for its children."""
    child = (
        "import signal, sys, time; write = lambda path: open(path, 'w').close();"
        "signal.signal(15, lambda *_: sys.exit(write({!r}))); write({!r}); time.sleep(60)"
    )
    marks = [str(tmp_path / name) for name in ("saved", "started")]
    program = f"""
        import sys, pathlib
        from tangobench.eval.comparison.launch import Launcher
        from tangobench.model.training.recipes import RECIPES, Run
        run = Run(RECIPES["sample-dm_math-flash"], 1, 1)
        make = lambda *_: [[sys.executable, "-c", {child.format(*marks)!r}]]
        out = pathlib.Path({str(tmp_path)!r})
        Launcher([run], out, ["cpu"], lambda run: False, make=make).finish()
    """
    launcher = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    wait_for(tmp_path / "started")
    launcher.send_signal(signal.SIGKILL)
    wait_for(tmp_path / "saved")
    launcher.wait()


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


def test_runs_are_chosen_by_pattern():
    assert len(launch.choose("published", None, None)) == 90
    assert len(launch.choose("published", None, "fineweb-*")) == 36
    with pytest.raises(UsageError, match="fineweb-x"):
        launch.choose("published", None, "fineweb-x*")


def test_commands_name_the_run_and_the_device(tmp_path):
    train, score = launch.commands(RUNS[0], tmp_path, "cuda:1", ("exact_match",))
    common = ["--out", str(tmp_path), "--device", "cuda:1", "--quiet", "--json"]
    assert train[3:] == ["train", "--recipe", RUNS[0].name, *common]
    assert score[-1] == "--exact-match" and "--threads" not in score


@pytest.mark.parametrize("device", ("cuda:999", "abacus"))
def test_a_device_that_is_not_there_starts_nothing(device, tmp_path, capsys):
    words = ["--devices", f"cpu,{device}", "--only", "sample-dm_math-flash-*"]
    assert cli.main(["replicate", *words, "--out", str(tmp_path / "out")]) == 2
    assert device in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_plan_adds_up():
    runs = [Run(dataclasses.replace(RECIPES["sample-dm_math-flash"]), s, s) for s in range(3)]
    table, seconds = launch.estimates(runs, ["cpu", "cpu"])
    assert table.rows[0][1] == "3" and seconds["sample-dm_math-flash"] > 0
    assert "3 runs" in table.title
