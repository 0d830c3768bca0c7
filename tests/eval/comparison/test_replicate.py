"""The replication: every run once, what is finished kept, what is missing made; `attest`."""

from __future__ import annotations

import dataclasses
import json
import socket

import pytest

from tangobench.cli import main
from tangobench.errors import CorruptionError, UsageError
from tangobench.eval.comparison import replicate as module
from tangobench.eval.comparison.replicate import replicate
from tangobench.eval.report.site import write_report
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.pipeline import api

FIELDS = {"steps": 2, "batch": 4, "warmup": 1, "target_params": 30_000}
SHORT = [
    Run(dataclasses.replace(RECIPES[f"sample-dm_math-{arch}"], **FIELDS), *pair)
    for arch in ARCHS
    for pair in ((17, 101), (23, 103))
]


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(module, "runs", lambda family, dataset: SHORT)


@pytest.fixture
def trained(monkeypatch):
    """Names of the runs that were trained."""
    names = []
    real = module.train

    def train(run, options):
        names.append(run.name)
        return real(run, options)

    monkeypatch.setattr(module, "train", train)
    return names


def test_all_runs_are_trained_scored_and_kept(tmp_path, make_toy_math, short, trained):
    make_toy_math(tmp_path)
    summary = replicate("sample", "dm_math", tmp_path, workers=1)
    assert sorted(trained) == sorted(run.name for run in SHORT) == summary["runs"]
    assert {arch: len(s["dm_math"]) for arch, s in summary["scores"].items()} == dict.fromkeys(
        ARCHS, 2
    )
    trained.clear()
    (tmp_path / "results" / f"{SHORT[3].name}.json").unlink()
    assert replicate("sample", "dm_math", tmp_path, workers=1) == summary
    assert trained == [SHORT[3].name]  # its weights are there: it is only scored again
    page = write_report(tmp_path, tmp_path / "report").parent / "results.html"
    # Shortened recipes are none of the project's: the report shows them as the user's own.
    assert f"{SHORT[0].recipe.name} (" not in page.read_text(encoding="utf-8")
    assert "own runs" in page.read_text(encoding="utf-8")


def test_the_dataset_is_built_if_it_is_missing(tmp_path, make_toy_math, short, monkeypatch):
    asked = []

    def build(name, profile, **options):
        asked.append((name, profile, options["out"]))
        make_toy_math(tmp_path)

    monkeypatch.setattr(api, "build", build)
    replicate("sample", "dm_math", tmp_path, workers=1)
    assert asked == [("dm_math", "sample", str(tmp_path))]


def test_a_damaged_dataset_is_not_built_over(tmp_path, make_toy_math, short):
    (make_toy_math(tmp_path) / "manifest.lock.json").write_text("{}")
    with pytest.raises(CorruptionError):
        replicate("sample", "dm_math", tmp_path, workers=1)


def test_an_unknown_replication_names_those_there_are(tmp_path):
    with pytest.raises(UsageError) as caught:
        replicate("mini", "fineweb", tmp_path)
    assert "dm_math, lean" in caught.value.fix


def test_an_attestation_says_nothing_about_where_it_was_made(tmp_path, make_toy_math, capsys):
    make_toy_math(tmp_path)
    words = ["attest", "--recipe", "sample-dm_math-flash", "--steps", "3", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path), "--quiet"]) == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    assert found["kernel"] == {"chosen": "strips", "refused": None}
    assert found["training"]["steps"] == 3
    assert found["training"]["planned_for"] == "cpu"
    assert found["training"]["step_seconds"] > 0 < found["training"]["planned_step_seconds"]
    assert found["data"]["as_committed"] is False  # toy rows are not the committed sample
    assert str(tmp_path) not in text and socket.gethostname() not in text
