"""Kept checkpoints, scored again: the committed NLLs follow from weights and drawn questions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load

from tangobench.eval.scoring.nll import token_scores
from tangobench.eval.scoring.result_files import read_results, shipped_results
from tangobench.model import build
from tangobench.model.training.loader import Batch
from tangobench.model.training.recipes import Recipe
from tangobench.pipeline.core.lock import committed_lock
from tangobench.pipeline.dm_math.stages import draw
from tangobench.pipeline.dm_math.vocabulary import encode

KEPT = sorted((Path(__file__).parent / "checkpoints").glob("*.safetensors"))
COMBINATIONS = (  # of different groups, and cheap to draw
    "arithmetic__div/easy",
    "measurement__time/medium",
    "numbers__place_value/hard",
    "algebra__sequence_next_term/easy",
)


@pytest.fixture(scope="module")
def questions():
    """The validation rows of some combinations, drawn as the mini dataset draws them."""
    spec = committed_lock("dm_math", "mini").spec
    each = range(spec["validation_per_combination"])
    found = {}
    for name in COMBINATIONS:
        drawn = [draw(spec["seed"], "validation", name, index) for index in each]
        found[name] = [encode(example.question, example.answer) for example in drawn]
    return found


@pytest.fixture(scope="module")
def results():
    return {result["run"]: result for result in read_results([shipped_results()])}


def batch_of(rows):
    lengths = np.array([len(tokens) for tokens, _ in rows])
    tokens = np.zeros((len(rows), lengths.max()), np.int32)
    targets = np.zeros(tokens.shape, bool)
    for place, (row, start) in enumerate(rows):
        tokens[place, : len(row)] = row
        targets[place, start : len(row)] = True
    return Batch(0, "default", np.arange(len(rows)), tokens, targets, lengths)


def test_two_are_kept_and_small():
    assert len(KEPT) == 2
    assert all(path.stat().st_size <= 4_000_000 for path in KEPT)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_committed_nlls_are_those_of_the_weights(path, questions, results):
    result = results[path.stem]
    model = build(Recipe(**result["recipe"]).model_config(), seed=0)
    model.load_state_dict(load(path.read_bytes()))
    torch.set_num_threads(1)
    for name, rows in questions.items():
        found = token_scores(model, batch_of(rows), "fp32")[0]
        wanted = result["breakdowns"]["dm_math"]["combination"][name]
        assert len(found) == wanted["count"]
        assert found.sum() == pytest.approx(wanted["sum"], rel=1e-5)
