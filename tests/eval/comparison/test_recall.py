"""Associative recall: rows that ask what they say, and runs that resume."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load

from tangobench.cli import main
from tangobench.eval.comparison import recall
from tangobench.eval.comparison.recall import (
    LENGTHS,
    read_recall,
    recall_tables,
    rows,
)
from tangobench.model import build
from tangobench.model.training.recipes import Recipe


@pytest.mark.parametrize("length", LENGTHS)
def test_every_target_is_the_value_of_an_earlier_key(length):
    tokens, distance = rows(np.random.default_rng(3), 40, length)
    assert tokens.shape == distance.shape == (40, length)
    for row, far in zip(tokens.tolist(), distance, strict=True):
        for place in np.flatnonzero(far):
            first = place - far[place]
            assert row[place - 1 : place + 1] == row[first - 1 : first + 1]
            between = row[first + 1 : place - 1]
            assert row[place - 1] not in between  # no nearer occurrence answers the question
            assert far[first] == 0
    assert (distance > 0).sum(1).min() >= 3  # nearly every row has room for its four pairs


def test_every_octave_has_as_many_questions():
    _, distance = rows(np.random.default_rng(0), 2000, 1024)
    octaves = np.bincount(np.log2(distance[distance > 0]).astype(int))[1:]
    assert len(octaves) == 9
    assert octaves.max() < 1.5 * octaves.min()


def test_all_models_are_matched_and_of_one_size():
    runs = recall.recall().runs
    assert len({run.name for run in runs}) == len(runs) == 21
    sizes = [run.recipe.model_config().nonembedding_params for run in runs]
    assert max(sizes) / min(sizes) < 1.02


def test_a_model_that_knows_the_answer_has_all_of_them(monkeypatch):
    class Oracle:
        """Looks for the last token's earlier occurrence and gives what followed."""

        def __call__(self, tokens):
            logits = torch.zeros(*tokens.shape, 33)
            for i, row in enumerate(tokens.tolist()):
                seen: dict[int, int] = {}
                for t in range(len(row) - 1):
                    logits[i, t, seen.get(row[t], 0)] = 1
                    seen[row[t]] = row[t + 1]
            return logits

    monkeypatch.setattr(recall, "_TEST_ROWS", 8)
    found = recall.accuracy(Oracle(), 128)
    assert all(correct == tried for correct, tried in found.values())
    assert sum(tried for _, tried in found.values()) >= 24


def test_the_command_trains_resumes_and_shows_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recall, "LENGTHS", (64,))
    monkeypatch.setattr(recall, "_SHARES", (1.0,))
    whole = recall.recall(2, [(17, 101)])
    two = replace(whole, arms=whole.arms[3:5])
    monkeypatch.setattr(recall, "recall", lambda steps: two)
    words = ["replicate", "--study", "recall", "--out", str(tmp_path), "--workers", "1", "--quiet"]
    shown = partial(recall_tables, length=64)
    monkeypatch.setattr(recall, "recall_tables", shown)
    assert main(words) == 0
    assert "right answers by distance" in capsys.readouterr().out
    path = tmp_path / "results" / "recall.json"
    before = path.read_bytes()
    found = read_recall([path.parent])
    assert len(found) == 2
    for name, run in found.items():
        weights = (tmp_path / "recall" / f"{name}.safetensors").read_bytes()
        assert hashlib.sha256(weights).hexdigest() == run["weights_sha256"]
        model = build(Recipe(**run["recipe"]).model_config(), seed=0)
        model.load_state_dict(load(weights))
        assert {"64": recall.accuracy(model, 64)} == run["accuracy"]
    monkeypatch.setattr(recall, "train_and_test", None)  # nothing is left to train
    assert main(words) == 0
    assert path.read_bytes() == before
    capsys.readouterr()
    path.write_bytes(before.replace(b"flash", b"flasg").replace(b'"gau"', b'"gav"'))
    assert main(words) == 4
    path.write_bytes(before)
    capsys.readouterr()
    assert main([*words, "--plan", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert "recall-gau-s17-101" in planned["runs"] and planned["finished"] == 2
    assert planned["core_hours"] == 0
