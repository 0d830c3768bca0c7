import math

import pytest
import torch

from tangobench.model import build
from tangobench.model.config import ARCHS, ModelConfig


def state(arch, seed=17, **fields):
    defaults = {"width": 256, "d_model": 128, "heads": 4, "vocabulary": 99, "context": 64}
    return build(ModelConfig(arch=arch, **{**defaults, **fields}), seed=seed).state_dict()


def test_tango_and_wango_start_equal():
    tango, wango = state("tango"), state("wango")
    assert all(torch.equal(tango[name], wango[name]) for name in tango)


def test_all_share_the_embedding():
    first, *others = (state(arch)["embed"] for arch in ARCHS)
    assert all(torch.equal(first, other) for other in others)


def test_seed_and_block_decide():
    assert not torch.equal(state("gau", seed=17)["embed"], state("gau", seed=23)["embed"])
    untied = state("untied_transformer")
    assert not torch.equal(untied["blocks.0.wq"], untied["blocks.1.wq"])


def test_more_blocks_move_no_other_tensor():
    few, many = state("untied_transformer", depth=2), state("untied_transformer", depth=3)
    assert torch.equal(few["blocks.1.wq"], many["blocks.1.wq"])


@pytest.mark.parametrize(
    ("arch", "name", "std"),
    [
        ("tango", "embed", 0.04),
        ("tango", "blocks.0.wg", 0.04),
        ("tango", "blocks.0.wo", 0.04 / math.sqrt(8)),
        ("untied_transformer", "blocks.0.wo", 0.04 / math.sqrt(8)),
        ("untied_transformer", "blocks.3.w_down", 0.04 / math.sqrt(8)),
        ("gau", "blocks.1.w_out", 0.04 / math.sqrt(8)),
        ("gau", "blocks.1.gamma", 0.02),
        ("gau", "blocks.1.toeplitz", 0.02),
    ],
)
def test_scale(arch, name, std):
    # d_model = 128 doubles 0.02; four applications divide residual outputs by √8.
    value = state(arch)[name]
    assert value.std().item() == pytest.approx(std, rel=4 / math.sqrt(value.numel()))


def test_another_reading_of_the_scale():
    """The paper's literal "four block applications" at depth 8."""
    deep, literal = state("tango", depth=8), state("tango", depth=8, init_scale=4)
    torch.testing.assert_close(
        literal["blocks.0.wo"], deep["blocks.0.wo"] * math.sqrt(2), rtol=1e-6, atol=0
    )
    assert torch.equal(literal["blocks.0.wg"], deep["blocks.0.wg"])


def test_constants():
    tango, flash = state("tango"), state("flash")
    assert torch.allclose(tango["blocks.0.theta"], torch.tensor(math.log(10)))
    assert (tango["blocks.0.null_bias"] == 0).all()
    assert (tango["final_norm"] == 1).all() and (tango["blocks.0.norm"] == 1).all()
    for name in ("norm_bias", "b_in", "b_out", "beta"):
        assert (flash[f"blocks.0.{name}"] == 0).all()


def test_dtype_changes_no_draw():
    config = ModelConfig(arch="tango", width=32, d_model=32, heads=4, vocabulary=9)
    narrow, wide = build(config), build(config, dtype=torch.float64)
    assert torch.equal(narrow.embed.double(), wide.embed)
