"""The log of a run: every step once, whatever was interrupted."""

from __future__ import annotations

import json
import sys

import pytest

from tangobench.errors import UsageError
from tangobench.model import metrics
from tangobench.model.metrics import MetricsLog, read_metrics


def write(path, first, last):
    log = MetricsLog(path, first_step=first)
    for step in range(first, last):
        log.write({"step": step, "config": "default", "loss": step / 10})
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

    monkeypatch.setattr(metrics, "_event_writer", lambda folder, first: Writer())
    log = MetricsLog(tmp_path / "metrics.jsonl", first_step=4, tensorboard=True)
    log.write({"step": 4, "config": "proof", "loss": 1.5})
    log.close()
    assert seen == [("loss", 1.5, 4), "closed"]
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["config"] == "proof"


def test_without_tensorboard_the_package_to_install_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if not installed
    with pytest.raises(UsageError, match="tensorboard"):
        MetricsLog(tmp_path / "metrics.jsonl", first_step=0, tensorboard=True)
