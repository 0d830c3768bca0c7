import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.eval.costs import macs
from tangobench.model.config import ARCHS, SCALING, ModelConfig, formula, printed, published


@pytest.mark.parametrize(
    ("arch", "dataset", "text"),
    [
        ("tango", "fineweb", "9.44T"),
        ("wango", "fineweb", "1.90T"),
        ("recurrent_transformer", "fineweb", "1.94T"),
        ("untied_transformer", "fineweb", "848.60B"),
        ("gau", "fineweb", "2.52T"),
        ("flash", "fineweb", "693.98B"),
        ("tango", "dm_math", "52.94B"),
        ("wango", "dm_math", "52.91B"),
    ],
)
def test_every_printed_count(arch, dataset, text):
    config = published(arch, dataset)
    assert printed(sum(formula(config, config.context).values())) == text


@pytest.mark.parametrize("dataset", ("fineweb", "lean", "dm_math"))
@pytest.mark.parametrize("arch", ARCHS)
def test_trace_agrees_term_by_term(arch, dataset):
    config = published(arch, dataset)
    assert macs.traced(config, config.context) == formula(config, config.context)


@settings(max_examples=20, deadline=None)
@given(
    arch=st.sampled_from(ARCHS),
    width=st.integers(1, 9),
    depth=st.integers(1, 3),
    chunks=st.integers(1, 5),
)
def test_trace_agrees_at_other_sizes(arch, width, depth, chunks):
    config = ModelConfig(
        arch=arch, width=16 * width, d_model=32, heads=4, depth=depth, vocabulary=9, qk_width=6
    )
    assert macs.traced(config, 256 * chunks) == formula(config, 256 * chunks)


@pytest.mark.parametrize(
    ("arch", "fields"),
    [
        ("tango", {"shared": False}),
        ("wango", {"shared": False}),
        ("untied_transformer", {"weighting": "cosine-null"}),
    ],
)
def test_variants_cost_what_their_blocks_cost(arch, fields):
    config = dataclasses.replace(published(arch, "dm_math"), width=64, **fields)
    assert macs.traced(config, 256) == formula(config, 256)


@pytest.mark.parametrize("arch", ARCHS)
def test_scaling_is_what_the_formula_does(arch):
    config = published(arch, "fineweb")
    short, long = (sum(formula(config, t).values()) / t for t in (4096, 16384))
    assert SCALING[arch] == ("linear" if short == long else "quadratic")
