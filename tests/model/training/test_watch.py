"""Watching a run: the validation subset, utilisation, what is printed, the profile."""

from __future__ import annotations

import io
import json
import math

import pytest
import torch
from training import STEPS, options, tiny_run

from tangobench.cli import main
from tangobench.eval.scoring.nll import score
from tangobench.eval.scoring.results import load_model
from tangobench.model.config import ARCHS, matched
from tangobench.model.training import checkpoint
from tangobench.model.training.loader import Stream, Validation
from tangobench.model.training.plan import useful_flop
from tangobench.model.training.runs import read_metrics
from tangobench.model.training.train import Options, train
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.reading import open_dataset


@pytest.fixture
def out(tmp_path, make_toy_math):
    make_toy_math(tmp_path)
    return tmp_path


def weights(folder):
    return checkpoint.load(checkpoint.latest(folder / "checkpoints")).tensors


def test_the_subset_is_scored_as_eval_scores_it(out):
    folder = train(tiny_run(batch=256), options(out))
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(STEPS))
    # 256 rows a step: the budget covers all eleven validation rows, so eval is the oracle.
    stream = Stream(open_dataset(out / "dm_math-sample"), "default", "validation")
    expected = score(load_model(folder), stream).tally().nll
    assert rows[-1]["validation_nll"]["default"] == pytest.approx(expected, rel=1e-6)
    assert rows[-1].keys() - {"validation_nll"} == {
        *("step", "config", "loss", "lr", "gradient_norm", "targets", "tokens", "seconds"),
    }


def test_a_small_budget_measures_few_rows_at_fixed_places(out):
    dataset = open_dataset(out / "dm_math-sample")
    chosen = Validation(dataset, tiny_run().recipe)._batches["default"]
    assert chosen.rows.tolist() == [0, 3, 6, 10]


def test_watching_changes_no_weight(out, tmp_path_factory, make_toy_math):
    other = tmp_path_factory.mktemp("other")
    make_toy_math(other)
    watched = weights(train(tiny_run(), Options(out=out, validate_every=1, trace=True)))
    blind = weights(train(tiny_run(), Options(out=other, validate_every=0)))
    assert all(torch.equal(watched[name], blind[name]) for name in blind)
    rows = read_metrics(other / "runs" / tiny_run().name / "metrics.jsonl")
    assert not any("validation_nll" in row for row in rows)
    traced = json.loads((out / "runs" / tiny_run().name / "trace.json").read_text())
    assert len(traced["traceEvents"]) > 100


def test_without_a_terminal_loss_and_nll_are_printed(out):
    stream = io.StringIO()
    train(tiny_run(), Options(out=out, validate_every=3), Reporter(stream=stream))
    lines = stream.getvalue().splitlines()
    row = read_metrics(out / "runs" / tiny_run().name / "metrics.jsonl")[-1]
    assert [line.partition(":")[0] for line in lines[:2]] == ["step 3", "step 6"]
    assert f"{STEPS} steps" in lines[-2]
    nll = f"{row['validation_nll']['default']:.4f} on 4 rows"
    for part in (f"{row['loss']:.4f}", nll, "tokens/s"):
        assert part in lines[-1]


@pytest.mark.parametrize("arch", ARCHS)
def test_useful_work_is_three_causal_forward_passes(arch):
    config = matched(arch, 60_000, d_model=32, heads=2, context=128, vocabulary=73)
    one, two = (useful_flop(config, [128] * rows, 0) for rows in (1, 2))
    assert two == 2 * one > 6 * 128 * (config.nonembedding_params - 10_000)
    assert useful_flop(config, [128], 5) - one == 6 * 5 * 32 * 73
    assert math.isfinite(useful_flop(config, [1], 0))


def test_wrong_numbers_are_usage_errors(out):
    words = ["train", "--recipe", "sample-dm_math-gau", "--out", str(out), "--quiet"]
    assert main([*words, "--validate-every", "-1"]) == 2
    assert main([*words, "--validate-every", "0", "--stop-at", "1"]) == 0
