"""Wall-clock and memory: real processes, and requests that cannot be met."""

import json

import pytest

from tangobench import cli
from tangobench.errors import UsageError
from tangobench.eval import macs, speed
from tangobench.eval.speed import Job


@pytest.mark.parametrize("task", speed.TASKS)
def test_a_process_of_its_own_measures(task):
    job = Job(arch="flash", task=task, length=300)
    found = speed.measure(job)
    assert found["tokens"] == (6 * 300 if task == "train" else speed.DECODED)
    assert found["tokens_per_second"] == pytest.approx(found["tokens"] / found["seconds"])
    # At least the 0.8 million weights, trained with gradients and two moments.
    assert found["peak_bytes"] > (4 if task == "train" else 1) * 4 * 772_000
    assert found["peak_bytes"] < 2e9
    expected = sum(macs.formula(job.config(), 300).values()) // 300
    assert found["forward_macs_per_token"] == expected
    assert found["scaling"] == "linear"


@pytest.mark.parametrize(
    ("field", "value"),
    [("arch", "mamba"), ("task", "sleep"), ("length", 0), ("size", "huge"), ("precision", "fp8")],
)
def test_bad_requests_are_refused(field, value):
    with pytest.raises(UsageError, match=field):
        Job(**{"arch": "gau", "task": "train", "length": 8, field: value})


def test_every_architecture_task_and_length_is_a_job():
    found = [(j.length, j.task, j.arch) for j in speed.jobs(("gau", "flash"), (8, 9))]
    assert found[:3] == [(8, "train", "gau"), (8, "train", "flash"), (8, "decode", "gau")]
    assert len(found) == len(set(found)) == 8


def test_command_saves_what_it_prints(capsys, tmp_path, monkeypatch):
    case = {"arch": "gau", "task": "train", "length": 8, "tokens_per_second": 5.0}
    monkeypatch.setattr(speed, "measure", lambda job: {**case, "task": job.task})
    file = tmp_path / "speed.json"
    command = ["model", "speed", "--arch", "gau", "--lengths", "8", "--save", str(file), "--json"]
    assert cli.main(command) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(file.read_bytes())
    assert [c["task"] for c in printed["cases"]] == ["train", "decode"]
    assert cli.main(["model", "speed", "--arch", "mamba"]) == 2
    assert cli.main(["model", "speed", "--device", "cuda:7", "--lengths", "8"]) == 2
