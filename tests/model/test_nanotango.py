"""The one-file TANGO against the full system: same losses, same score, same weights' names."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tangobench.eval.scoring.nll import score as full_score
from tangobench.model import build, nanotango
from tangobench.model.training import checkpoint
from tangobench.model.training.loader import Stream
from tangobench.model.training.recipes import find
from tangobench.model.training.train import Options, train
from tangobench.pipeline.reading import open_dataset

STEPS = 12
SOURCE = Path(nanotango.__file__)


def small_config(dataset: str) -> tuple[nanotango.Config, object]:
    run = find(f"sample-{dataset}-tango")
    recipe = dataclasses.replace(run.recipe, steps=STEPS)
    model = recipe.model_config()
    names = {field.name for field in dataclasses.fields(nanotango.Config)}
    values = {
        **{name: getattr(recipe, name) for name in names if hasattr(recipe, name)},
        **{name: getattr(model, name) for name in names if hasattr(model, name)},
    }
    config = nanotango.Config(**values, init_seed=run.init_seed, order_seed=run.order_seed)
    return config, dataclasses.replace(run, recipe=recipe)


# Float32 rounding grows with the steps: on rows of 2,048 tokens to 1.4e-4 after 50 of them.
@pytest.mark.parametrize(("dataset", "tolerance"), [("dm_math", 1e-5), ("lean", 1e-4)])
def test_losses_and_score_equal_the_full_systems(sample, tmp_path, dataset, tolerance):
    out = tmp_path / "out"
    out.mkdir()
    (out / f"{dataset}-sample").symlink_to(sample(dataset) / f"{dataset}-sample")
    config, run = small_config(dataset)
    folder = train(run, Options(out=out))
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    full = [json.loads(line)["loss"] for line in lines]
    model, losses = nanotango.train(str(out / f"{dataset}-sample"), config)
    assert len(losses) == len(full) == STEPS
    assert max(abs(a - b) for a, b in zip(losses, full, strict=True)) < tolerance

    found = checkpoint.load(checkpoint.latest(folder / "checkpoints"))
    weights = found.group("model")
    assert weights.keys() == model.state_dict().keys()
    data = open_dataset(out / f"{dataset}-sample")
    for name in data.lock.configs:
        ours = nanotango.score(model, str(data.folder), name, config)
        trained = run.recipe.model_config()
        whole = build(trained, seed=0)
        whole.load_state_dict(weights)
        with torch.no_grad():
            theirs = full_score(whole, Stream(data, name, "validation", context=config.context))
        assert ours == pytest.approx(theirs.tally().nll, abs=10 * tolerance)


def test_one_file_of_at_most_250_lines_that_imports_the_reader_only():
    text = SOURCE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    imported = {
        node.module
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tangobench")
    }
    assert imported == {"tangobench.pipeline.reading"}


def test_it_runs_as_a_program(make_toy_math, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tangobench.model.nanotango", str(make_toy_math(tmp_path))],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "validation NLL" in done.stdout
