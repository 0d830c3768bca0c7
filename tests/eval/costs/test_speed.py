"""Wall-clock and memory: real processes, and requests that cannot be met."""

import importlib
import json
from pathlib import Path

import pytest
from drawings import svg

from tangobench import cli
from tangobench.eval.costs import speed, timing
from tangobench.eval.costs.speed import Job, speed_tables
from tangobench.eval.report import pages
from tangobench.model.config import formula


@pytest.mark.parametrize("task", speed.TASKS)
def test_a_process_of_its_own_measures(task):
    job = Job(arch="flash", task=task, length=300)
    found = speed.measure(job)
    assert found["tokens"] == (6 * 300 if task == "train" else speed.DECODED)
    assert found["tokens_per_second"] == pytest.approx(found["tokens"] / found["seconds"])
    # At least the 0.8 million weights, trained with gradients and two moments.
    assert found["peak_bytes"] > (4 if task == "train" else 1) * 4 * 772_000
    assert found["peak_bytes"] < 2e9
    expected = sum(formula(job.config(), 300).values()) // 300
    assert found["forward_macs_per_token"] == expected
    assert found["scaling"] == "linear"


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="only Linux sets a peak back"
)
def test_the_prompt_is_no_part_of_the_peak_of_decoding():
    """WANGO's state does not depend on T; its prompt's parallel pass takes 34 MB and 212 MB."""
    short, long = (
        speed.measure(Job(arch="wango", task="decode", length=length))["peak_bytes"]
        for length in (256, 4096)
    )
    assert long < 1.5 * short


@pytest.mark.parametrize(("cpu_seconds", "disturbed"), [(1.3, True), (1.9, False), (3.8, False)])
def test_less_than_a_core_is_marked(monkeypatch, cpu_seconds, disturbed):
    monkeypatch.setattr(timing, "_timed", lambda run, device: (2.0, cpu_seconds))
    found = timing.measure_here(Job(arch="gau", task="decode", length=8))
    assert found["disturbed"] is disturbed


def test_repetitions_that_differ_are_marked(monkeypatch):
    for others, disturbed in ((1.1, False), (1.3, True)):
        walls = iter([9.0, *[others] * 2, 1.0, *[others] * 2])
        monkeypatch.setattr(timing, "_timed", lambda run, device, walls=walls: [next(walls)] * 2)
        found = timing.measure_here(Job(arch="gau", task="decode", length=8))
        assert found["seconds"] == 1.0  # the best; the first is not counted
        assert found["spread"] == others
        assert found["disturbed"] is disturbed


def test_the_recorded_measurements_are_marked():
    recorded = Path(__file__).parents[3] / "bench" / "results" / "speed.json"
    for case in json.loads(recorded.read_bytes())["cases"]:
        expected = case["cpu_seconds"] < timing.UNDISTURBED * case["seconds"]
        expected |= case["spread"] > timing.STEADY
        assert case["disturbed"] is (case["device"] == "cpu" and expected)


def test_the_command_shows_the_mark(capsys, monkeypatch):
    case = {"tokens_per_second": 5.0, "peak_bytes": 3_000_000, "forward_macs_per_token": 7}

    def measured(job):
        return {"arch": "gau", "task": job.task, "length": 8, **case, "disturbed": busy[job.task]}

    busy = {"train": False, "decode": True}
    monkeypatch.setattr(speed, "measure", measured)
    assert cli.main(["model", "speed", "--arch", "gau", "--lengths", "8"]) == 0
    train, decode = capsys.readouterr().out.splitlines()
    assert train.endswith("MACs/token")
    assert decode.endswith("MACs/token  disturbed: measure again")


@pytest.mark.parametrize(
    ("option", "value"),
    [("arch", "mamba"), ("lengths", "0"), ("size", "huge"), ("precision", "fp8")],
)
def test_bad_requests_are_refused(option, value, capsys):
    assert cli.main(["model", "speed", "--lengths", "8", f"--{option}", value]) == 2
    assert option in capsys.readouterr().err


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
    rates = iter([3.0, 9.0, 7.0, 2.0])
    monkeypatch.setattr(speed, "measure", lambda j: {**case, "tokens_per_second": next(rates)})
    assert cli.main([*command, "--rounds", "2"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [(c["tokens_per_second"], c["rounds"]) for c in cases] == [(7.0, 2), (9.0, 2)]
    assert cli.main(["model", "speed", "--arch", "mamba"]) == 2
    assert cli.main(["model", "speed", "--device", "cuda:7", "--lengths", "8"]) == 2


PLAIN = """
from tangobench.model import config, language
class Plain(language.BLOCKS["untied_transformer"]): pass
language.register("plain", Plain, config._transformer_params, shared=True)
"""


def test_a_registered_architecture_is_measured_without_a_formula(tmp_path, monkeypatch):
    (tmp_path / "plain_block.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("plain_block")
    found = speed.measure(Job(arch="plain", task="train", length=16))
    assert found["tokens_per_second"] > 0 and found["forward_macs_per_token"] is None
    file = tmp_path / "speed.json"
    file.write_text(json.dumps({"machine": {"device": "a", "torch": "2"}, "cases": [found]}))
    (table,) = speed_tables(speed.read_speed(file))
    (figure,) = pages.speed(speed.read_speed(file), "yours")["figures"]
    assert ">plain<" in svg(figure)
    assert (table.rows[0][0], table.rows[0][-2:]) == ("plain", ["–", "–"])
