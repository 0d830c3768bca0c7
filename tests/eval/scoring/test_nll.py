"""Scoring: a hand-computed oracle, no dependence on the batch, and breakdowns that add up."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from tangobench.eval.scoring.nll import batches_of, breakdowns, score
from tangobench.model import build
from tangobench.model.config import ARCHS
from tangobench.model.training.loader import Stream
from tangobench.model.training.recipes import RECIPES
from tangobench.pipeline.reading import open_dataset


@pytest.fixture(scope="module")
def math_data(tmp_path_factory, make_toy_math):
    return open_dataset(make_toy_math(tmp_path_factory.mktemp("math")))


@pytest.fixture(scope="module")
def lean_data(tmp_path_factory, make_toy_lean):
    return open_dataset(make_toy_lean(tmp_path_factory.mktemp("lean")))


@pytest.fixture(scope="module")
def fineweb_data(tmp_path_factory, make_toy_fineweb):
    return open_dataset(make_toy_fineweb(tmp_path_factory.mktemp("fineweb")))


def model_of(arch="untied_transformer", dataset="dm_math", dtype=torch.float64):
    recipe = dataclasses.replace(RECIPES[f"sample-{dataset}-{arch}"], target_params=30_000)
    return build(recipe.model_config(), seed=5, dtype=dtype)


class Bigrams(torch.nn.Module):
    """A model whose probabilities can be worked out by hand: they depend on the last token only."""

    def __init__(self, probabilities):
        super().__init__()
        self.embed = torch.nn.Parameter(torch.eye(len(probabilities), dtype=torch.float64))
        self.logits = torch.log(torch.tensor(probabilities, dtype=torch.float64))

    def hidden(self, tokens):
        return self.logits[tokens.long()]


def test_against_numbers_worked_out_by_hand(math_data):
    # Whatever stands before it, token 3 (EOS) has probability 1/2, the other 72 share the rest.
    table = np.full((73, 73), 0.5 / 72)
    table[:, 3] = 0.5
    stream = Stream(math_data, "default", "validation")
    scored = score(Bigrams(table), stream)
    total, count = 0.0, 0
    for row in math_data.rows("default", "validation"):
        answer = len(row["tokens"]) - row["target_start"] - 1
        total += answer * math.log(144) + math.log(2)
        count += answer + 1
    assert scored.tally().count == count
    assert scored.tally().sum == pytest.approx(total, rel=1e-12)
    assert scored.tally().nll == pytest.approx(total / count, rel=1e-12)


def test_a_token_is_scored_by_the_one_before_it(math_data):
    # Probability 1 for "the same token again": unshifted logits would give NLL 0 everywhere.
    table = np.full((73, 73), 1e-9)
    np.fill_diagonal(table, 1.0)
    stream = Stream(math_data, "default", "validation")
    scored = score(Bigrams(table), stream)
    first = scored.nll[scored.rank == 0]  # the answer's first symbol follows SEP, never itself
    assert (first > 20).all()
    repeated = scored.nll[(scored.rank > 0) & (scored.nll < 1)]
    assert len(repeated) == scored.tally().count - 2 * len(stream)  # all but the first and EOS


def plain_nll(model, stream):
    """One row at a time, log-softmax of all logits."""
    values = []
    for row in range(len(stream)):
        tokens, mask = stream.row(row)
        ids = torch.from_numpy(tokens.astype(np.int64))
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids[None])[0], -1)
        values += [-logprobs[p - 1, ids[p]].item() for p in np.flatnonzero(mask)]
    return np.array(values)


@pytest.mark.parametrize("arch", ARCHS)
def test_every_token_equals_the_plain_way(arch, math_data):
    model = model_of(arch)
    stream = Stream(math_data, "default", "validation")
    assert np.allclose(score(model, stream).nll, plain_nll(model, stream), rtol=1e-9)


@pytest.mark.parametrize("config", ["source", "proof"])
def test_lean_equals_the_plain_way(config, lean_data):
    model = model_of(dataset="lean")
    stream = Stream(lean_data, config, "validation")
    assert np.allclose(score(model, stream).nll, plain_nll(model, stream), rtol=1e-9)


def test_fineweb_scores_no_end_of_text(fineweb_data):
    model = model_of(dataset="fineweb")
    stream = Stream(fineweb_data, "default", "validation")
    scored = score(model, stream)
    assert np.allclose(scored.nll, plain_nll(model, stream), rtol=1e-9)
    tokens = np.concatenate([stream.row(r)[0][1:] for r in range(len(stream))])
    assert scored.tally().count == (tokens != 50256).sum() < len(tokens)


def test_the_batch_size_cannot_move_the_metric(math_data):
    stream = Stream(math_data, "default", "validation")
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        model = model_of("tango", dtype=dtype)
        tallies = [score(model, stream, tokens_at_once=n).tally() for n in (1, 40, 100_000)]
        assert len({tally.count for tally in tallies}) == 1
        for tally in tallies:
            assert tally.sum == pytest.approx(tallies[0].sum, rel=tolerance)


def test_bfloat16_moves_it_a_little(math_data):
    stream = Stream(math_data, "default", "validation")
    model = model_of("tango", dtype=torch.float32)
    exact, low = (score(model, stream, precision=p).tally().nll for p in ("fp32", "bf16"))
    assert exact != low
    assert low == pytest.approx(exact, rel=0.02)


def test_batches_hold_every_row_once_and_few_tokens():
    lengths = np.random.default_rng(0).integers(1, 200, 500)
    batches = batches_of(lengths, 1000)
    assert sorted(np.concatenate(batches).tolist()) == list(range(500))
    assert all(len(b) * lengths[b].max() <= 1000 for b in batches)
    assert len(batches_of(lengths, 1)) == 500


def adds_up(parts, scored):
    assert sum(t.count for t in parts.values()) == scored.tally().count
    assert math.fsum(t.sum for t in parts.values()) == pytest.approx(scored.tally().sum, rel=1e-12)


def test_math_breakdowns_add_up(math_data):
    stream = Stream(math_data, "default", "validation")
    scored = score(model_of(), stream)
    found = breakdowns(scored, stream, math_data.lock)
    assert set(found) == {"combination", "module", "difficulty", "group", "position"}
    assert list(found["difficulty"]) == ["easy", "medium", "hard"]
    assert list(found["module"]) == ["a__x", "b__y"]
    assert list(found["group"]) == ["a", "b"]
    for parts in found.values():
        adds_up(parts, scored)
    hard = [r for r in range(len(stream)) if stream.table.value(r, "combination") % 3 == 2]
    assert found["difficulty"]["hard"].sum == pytest.approx(
        scored.nll[np.isin(scored.row, hard)].sum()
    )
    # Every answer has a symbol 0; only the position within the answer counts.
    assert found["position"]["0"].count == len(stream)


def test_lean_breakdowns_are_by_directory_and_position(lean_data):
    for config in ("source", "proof"):
        stream = Stream(lean_data, config, "validation")
        scored = score(model_of(dataset="lean"), stream)
        found = breakdowns(scored, stream, lean_data.lock)
        assert list(found["directory"]) == ["Mathlib/Algebra", "Mathlib/Order"]
        for parts in found.values():
            adds_up(parts, scored)
        assert ("0" in found["position"]) == (config == "proof")  # a source's token 0 is no target


def test_long_positions_are_in_powers_of_two(lean_data):
    stream = Stream(lean_data, "source", "validation")
    scored = score(model_of(dataset="lean"), stream)
    found = breakdowns(scored, stream, lean_data.lock)["position"]
    assert found["16-31"].count == int((scored.position >= 16).sum())
    assert found["15"].count == int((scored.position == 15).sum())
