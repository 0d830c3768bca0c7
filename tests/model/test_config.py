import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.errors import UsageError
from tangobench.model import build
from tangobench.model.config import ARCHS, TARGET_PARAMS, ModelConfig, matched, published

# Every width and count that the paper prints (its parameter-matching table and eight-block text).
PUBLISHED = [
    *(("tango", d, 4, 28480, 44_270_624) for d in ("fineweb", "lean", "dm_math")),
    *(("wango", d, 4, 28480, 44_270_624) for d in ("fineweb", "lean", "dm_math")),
    *(("recurrent_transformer", d, 4, 28144, 44_279_296) for d in ("fineweb", "lean", "dm_math")),
    *(("untied_transformer", d, 4, 6528, 44_306_944) for d in ("fineweb", "lean", "dm_math")),
    ("gau", "fineweb", 4, 7136, 44_237_564),
    ("gau", "lean", 4, 7152, 44_286_844),
    ("gau", "dm_math", 4, 7152, 44_272_508),
    *(("flash", d, 4, 7152, 44_274_556) for d in ("fineweb", "lean", "dm_math")),
    *(("tango", d, 8, 28480, 44_270_624) for d in ("fineweb", "lean")),
    *(("wango", d, 8, 28480, 44_270_624) for d in ("fineweb", "lean")),
    *(("recurrent_transformer", d, 8, 28144, 44_279_296) for d in ("fineweb", "lean")),
    *(("untied_transformer", d, 8, 2912, 44_179_968) for d in ("fineweb", "lean")),
    ("gau", "fineweb", 8, 3536, None),
    ("gau", "lean", 8, 3552, 44_278_776),
    *(("flash", d, 8, 3552, None) for d in ("fineweb", "lean")),
]


@pytest.mark.parametrize(("arch", "dataset", "depth", "width", "count"), PUBLISHED)
def test_published_widths_and_counts(arch, dataset, depth, width, count):
    config = published(arch, dataset, depth)
    assert config.width == width
    parameters = build(config, device="meta").named_parameters()
    counted = sum(p.numel() for name, p in parameters if name != "embed")
    assert counted == config.nonembedding_params
    if count is not None:
        assert counted == count
    assert abs(config.deviation) < (0.001 if depth == 4 else 0.0021)


def test_eight_block_counts_span_the_printed_range():
    counts = [
        published(arch, dataset, 8).nonembedding_params
        for arch in ("untied_transformer", "gau", "flash")
        for dataset in ("fineweb", "lean")
    ]
    assert (min(counts), max(counts)) == (44_179_968, 44_278_776)


def test_total_is_the_seventy_million_of_the_paper():
    assert published("tango", "fineweb").total_params - TARGET_PARAMS == pytest.approx(
        25_731_584, abs=3000
    )


@given(
    arch=st.sampled_from(ARCHS),
    target=st.integers(60_000, 3_000_000),
    d_model=st.sampled_from((32, 64, 128)),
    depth=st.integers(1, 4),
)
def test_matched_is_nearest_multiple_of_sixteen(arch, target, d_model, depth):
    fields = {"heads": 4, "depth": depth, "context": 256, "vocabulary": 73, "chunk": 64}
    try:
        config = matched(arch, target, d_model=d_model, **fields)
    except UsageError as error:
        assert error.kind == "target-too-small"
        return
    assert config.width % 16 == 0
    error = abs(config.nonembedding_params - target)
    for width in (config.width - 16, config.width + 16):
        if width >= 16:
            other = ModelConfig(arch=arch, width=width, d_model=d_model, **fields)
            assert abs(other.nonembedding_params - target) >= error
    assert config.deviation == config.nonembedding_params / target - 1


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"arch": "mamba"}, "arch"),
        ({"width": 33}, "width"),
        ({"d_model": 20}, "d_model"),
        ({"depth": 0}, "depth"),
        ({"heads": 2.0}, "heads"),
        ({"context": -1}, "context"),
        ({"vocabulary": True}, "vocabulary"),
        ({"arch": "gau", "qk_width": 7}, "qk_width"),
        ({"rope_base": 1.0}, "rope_base"),
        ({"global_term": "max"}, "global_term"),
        ({"shared": 1}, "shared"),
        ({"weighting": "cosine-null"}, "weighting"),
        ({"arch": "untied_transformer", "weighting": "cosine"}, "weighting"),
        ({"init_scale": 0}, "init_scale"),
    ],
)
def test_bad_values_are_named(fields, key):
    with pytest.raises(UsageError) as caught:
        ModelConfig(**{"arch": "tango", "width": 32, "d_model": 32, "heads": 4, **fields})
    assert caught.value.details["key"] == key


VARIANTS = [
    *(("tango", {"shared": False}), ("wango", {"shared": False}), ("gau", {"shared": True})),
    ("recurrent_transformer", {"weighting": "cosine-null"}),
    ("untied_transformer", {"weighting": "cosine-null", "null_gate": False}),
]


@pytest.mark.parametrize(("arch", "fields"), VARIANTS)
def test_variants_are_counted_from_their_shapes_and_matched(arch, fields):
    config = matched(arch, 2_000_000, d_model=128, heads=4, depth=3, vocabulary=73, **fields)
    sizes = {name: p.numel() for name, p in build(config, device="meta").named_parameters()}
    assert sum(sizes.values()) == config.total_params
    assert {int(name.split(".")[1]) for name in sizes if name.startswith("blocks")} == set(
        range(1 if config.shared else 3)
    )
    assert abs(config.deviation) < 0.01
    assert ModelConfig(**config.as_json()) == config
    assert fields.items() <= config.as_json().items()


@pytest.mark.parametrize("arch", ARCHS)
def test_later_fields_at_their_defaults_leave_no_trace(arch):
    config = published(arch, "dm_math")
    explicit = ModelConfig(**{**config.as_json(), "shared": config.shared})
    assert explicit == config
    assert not {"shared", "weighting", "init_scale"} & set(explicit.as_json())


def test_unknown_dataset_is_named():
    with pytest.raises(UsageError, match="dataset"):
        published("tango", "c4")
