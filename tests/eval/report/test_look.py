"""Looking inside models: weights that are the model's, NLLs that are the score's."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from tangobench import cli
from tangobench.errors import UsageError
from tangobench.eval.report.look import look_context, sources, weights
from tangobench.eval.scoring.nll import score
from tangobench.eval.scoring.results import load_model
from tangobench.model import build, layers
from tangobench.model.config import ARCHS, matched
from tangobench.model.training.loader import Stream
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options, train
from tangobench.pipeline.reading import open_dataset

TOKENS = np.random.default_rng(3).integers(0, 73, 90)


def tiny(arch):
    config = matched(arch, 60_000, d_model=32, heads=2, vocabulary=73, context=256)
    return build(config, seed=5)


@pytest.mark.parametrize("arch", ARCHS)
def test_a_token_takes_nothing_from_later_ones(arch):
    for weight_HQT in weights(tiny(arch), TOKENS, 40):
        assert weight_HQT.shape[1:] == (50, 90)
        assert not weight_HQT.triu(41).any()
        assert weight_HQT.any()


@pytest.mark.parametrize("arch", ["tango", "wango"])
def test_what_sources_leave_goes_to_the_null_gate(arch):
    model = tiny(arch)
    with torch.no_grad():
        model.blocks[0].null_bias.fill_(3.0)  # e³ per visible source: nearly everything
        found = sources(model, TOKENS, 0)
    assert found["hasNull"]
    assert min(min(head) for head in found["sources"][0]["null"]) >= 5
    with torch.no_grad():
        model.blocks[0].null_bias.fill_(-30.0)
        found = sources(model, TOKENS, 0)
    assert max(max(head) for head in found["sources"][0]["null"]) == 0


def test_the_first_applications_weights_of_a_transformer_are_its_softmax():
    model = tiny("untied_transformer")
    block, heads = model.blocks[0], model.config.heads
    with torch.no_grad():
        x = layers.rms_norm(model.embed[torch.from_numpy(TOKENS)][None], block.norm_attn)
        q, k = (layers.split_heads(x @ w.T, heads) for w in (block.wq, block.wk))
        q, k = (layers.rope(u, 0, model.config.rope_base) for u in (q, k))
        mask = torch.ones(90, 90, dtype=torch.bool).triu(1)
        wanted = (q @ k.mT / model.config.d_head**0.5).masked_fill(mask, -torch.inf).softmax(-1)[0]
    torch.testing.assert_close(weights(model, TOKENS, 0)[0], wanted)
    top = sources(model, TOKENS, 0)["sources"][0]["top"][1][70]
    assert top[0] == int(wanted[1, 70].argmax())
    assert top[1] == round(100 * float(wanted[1, 70].max()))


@pytest.fixture(scope="module")
def out(tmp_path_factory, make_toy_math, make_toy_lean):
    folder = tmp_path_factory.mktemp("look")
    make_toy_math(folder)
    make_toy_lean(folder)
    for name in ("dm_math-tango", "dm_math-gau", "lean-tango"):
        recipe = dataclasses.replace(
            RECIPES[f"sample-{name}"], steps=2, batch=2, warmup=1, target_params=30_000, name=name
        )
        train(Run(recipe, 1, 2), Options(out=folder))
    return folder


def test_the_shown_nlls_are_those_of_the_score(out):
    found = look_context(out, ["dm_math-tango-s1-2", "dm_math-gau-s1-2"])
    assert found["labels"][0] == "TANGO"
    model = load_model(out / "runs" / "dm_math-tango-s1-2")
    stream = Stream(open_dataset(out / "dm_math-sample"), "default", "validation")
    scored = score(model, stream)
    for row in found["rows"]:
        wanted = scored.nll[scored.row == row["number"]]
        assert row["means"][0] == f"{wanted.mean():.3f}"
        data = json.loads(str(row["data"]))
        places = scored.position[scored.row == row["number"]] - data["start"]
        assert np.allclose(np.array(data["nll"][0])[places], wanted, atol=0.006)
        assert len(row["panels"]) == 3


@pytest.mark.parametrize(
    "names", [["dm_math-tango-s1-2", "lean-tango-s1-2"], ["dm_math-tango-s1-2"] * 3]
)
def test_runs_that_cannot_be_compared_are_refused(out, names):
    with pytest.raises(UsageError, match="expected one or two runs on one"):
        look_context(out, names)


def test_the_command_writes_the_page_and_says_when_there_is_no_run(out, capsys):
    words = ["report", "--out", str(out), "--look"]
    shutil.rmtree(out / "lean-sample")  # made of numbers, not of text
    assert cli.main([*words, "dm_math-gau-s1-2"]) == 0
    page = (out / "report" / "look.html").read_text(encoding="utf-8")
    assert page.count('class="tokens heat"') == 6
    capsys.readouterr()
    assert cli.main([*words, "no-such-run"]) == 2
    assert "no-such-run" in capsys.readouterr().err
