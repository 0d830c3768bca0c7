"""The log of a run: every step once, whatever was interrupted."""

from __future__ import annotations

import json
import sys
import types

import pytest
from training import tiny_run

from tangobench.errors import UsageError
from tangobench.model.training import runs
from tangobench.model.training.runs import MetricsLog, read_metrics
from tangobench.model.training.train import Options, train


def row(step: int, config: str = "default") -> dict:
    return {"step": step, "config": config, "loss": step / 10, "tokens": 9, "seconds": 0.5}


def write(path, first, last):
    log = MetricsLog(path, first_step=first)
    for step in range(first, last):
        log.write(row(step))
    log.close()


def test_a_resumed_run_has_every_step_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, 0, 7)
    write(path, 5, 9)
    assert [row["step"] for row in read_metrics(path)] == list(range(9))


def test_a_line_cut_short_is_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, 0, 3)
    path.write_bytes(path.read_bytes()[:-9])
    assert [row["step"] for row in read_metrics(path)] == [0, 1]
    write(path, 2, 4)
    assert [row["step"] for row in read_metrics(path)] == [0, 1, 2, 3]


def test_a_number_that_is_none_is_never_written(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", first_step=0)
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.write({"step": 0, "loss": float("nan")})
    log.close()


def test_events_hold_the_numbers(tmp_path, monkeypatch):
    seen = []

    class Writer:
        def add_scalar(self, name, value, step):
            seen.append((name, value, step))

        def close(self):
            seen.append("closed")

    package = types.SimpleNamespace(SummaryWriter=lambda folder, purge_step: Writer())
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    write(tmp_path / "metrics.jsonl", 0, 4)
    seen.clear()
    log = MetricsLog(tmp_path / "metrics.jsonl", first_step=4, tensorboard=True)
    log.write({**row(4, "proof"), "validation_nll": {"proof": 2.5}})
    log.close()
    numbers = [("loss", 0.4, 4), ("tokens", 9, 4), ("seconds", 0.5, 4)]
    assert seen == [*numbers, ("validation_nll/proof", 2.5, 4), "closed"]
    assert (
        json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["config"] == "proof"
    )


def test_without_tensorboard_nothing_is_written(tmp_path, monkeypatch, make_toy_math):
    make_toy_math(tmp_path)
    monkeypatch.setattr(runs.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="tensorboard"):
        train(tiny_run(), Options(out=tmp_path, tensorboard=True))
    assert not (tmp_path / "runs").exists()
