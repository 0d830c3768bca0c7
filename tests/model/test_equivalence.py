"""Fast paths against naive.py, in float64: logits and every gradient."""

import math

import pytest
import torch
from awake_models import awake, compare, random_tokens

from tangobench.eval.costs import macs as dense
from tangobench.model import naive, tango
from tangobench.model.config import ARCHS
from tangobench.model.kernels import crossgate

LENGTHS = (1, 2, 63, 64, 65, 127, 255, 257, 1000)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("arch", ARCHS)
def test_logits_and_gradients(arch, length):
    compare(awake(arch), random_tokens(2 if length < 300 else 1, length))


@pytest.mark.parametrize("length", (1, 65, 300))
@pytest.mark.parametrize("arch", ("tango", "wango", "recurrent_transformer"))
def test_recomputing_paths(arch, length, monkeypatch):
    monkeypatch.setattr(crossgate, "RECOMPUTE_ABOVE", 0)
    monkeypatch.setattr(crossgate, "ROWS_AT_ONCE", 128)
    compare(awake(arch), random_tokens(3, length))


@pytest.mark.parametrize("window", (1, 5, 64, 100, 400))
def test_any_window(window):
    compare(awake("wango", window=window), random_tokens(2, 300))


@pytest.mark.parametrize("window", (1, 5, 64, 200))
@pytest.mark.parametrize("length", (2, 65, 130))
def test_blocks_of_short_sequences(length, window, monkeypatch):
    """By default short sequences are averaged by strips."""
    monkeypatch.setattr(tango, "SHORT", 0)
    compare(awake("wango", window=window), random_tokens(2, length))


@pytest.mark.parametrize("window", (1, 5, 64, 100))
def test_strips_of_long_sequences(window, monkeypatch):
    monkeypatch.setattr(tango, "SHORT", 400)
    compare(awake("wango", window=window), random_tokens(2, 300))


@pytest.mark.parametrize("global_term", ("mean", "sum"))
@pytest.mark.parametrize("chunk", (1, 7, 64))
def test_any_chunk(chunk, global_term):
    model = awake("flash", chunk=chunk, global_term=global_term)
    compare(model, random_tokens(2, 150))


@pytest.mark.parametrize("ablation", ("null_gate", "temperature"))
@pytest.mark.parametrize("arch", ("tango", "wango"))
def test_ablations(arch, ablation):
    model = awake(arch, **{ablation: False})
    missing = {"null_gate": "null_bias", "temperature": "theta"}[ablation]
    assert f"blocks.0.{missing}" not in model.state_dict()
    compare(model, random_tokens(2, 130))


@pytest.mark.parametrize("length", (1, 65, 300))
@pytest.mark.parametrize(
    ("arch", "fields"),
    [
        ("tango", {"shared": False}),
        ("wango", {"shared": False}),
        ("flash", {"shared": True}),
        ("untied_transformer", {"weighting": "cosine-null"}),
        ("recurrent_transformer", {"weighting": "cosine-null", "null_gate": False}),
        ("untied_transformer", {"weighting": "cosine-null", "temperature": False}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_variants(arch, fields, length):
    compare(awake(arch, **fields), random_tokens(2, length))


def test_cosine_null_weighs_values_as_tango_weighs_gates():
    """A Transformer's attention with one value per position is TANGO's average of those values."""
    config = awake("untied_transformer", weighting="cosine-null").config
    q, k, v = torch.randn(3, 2, config.heads, 40, config.d_head, dtype=torch.float64)
    p = {
        "theta": torch.tensor([1.0, 5.0], dtype=torch.float64)[: config.heads],
        "null_bias": torch.tensor([0.3, -2.0], dtype=torch.float64)[: config.heads],
    }
    logits = p["theta"].clamp(max=math.log(20)).exp()[:, None, None] * torch.cosine_similarity(
        q[..., :, None, :], k[..., None, :, :], dim=-1
    )
    null = (p["null_bias"][:, None] + torch.arange(1, 41).double().log())[None, :, :, None]
    hidden = ~torch.ones(40, 40).tril().bool()
    weights = torch.cat((logits.masked_fill(hidden, -math.inf), null.expand(2, -1, -1, -1)), -1)
    expected = weights.softmax(-1)[..., :-1] @ v
    torch.testing.assert_close(naive.attention(config, p, q, k, v), expected)


@pytest.mark.parametrize("arch", ("wango", "flash"))
def test_dense_blocks_are_the_same_function(arch):
    model = awake(arch, chunk=64)
    tokens = random_tokens(2, 320)
    params = dict(model.named_parameters())
    expected = naive.logits(model.config, params, tokens)
    found = naive.logits(model.config, params, tokens, mixers=dense.MIXERS)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("arch", ARCHS)
def test_zero_embeddings_have_finite_gradients(arch):
    # A zero row makes zero queries and keys: plain x/‖x‖ would give NaN here.
    model = awake(arch)
    with torch.no_grad():
        model.embed[0] = 0
    model(torch.zeros(1, 70, dtype=torch.long)).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()


@pytest.mark.parametrize("arch", ARCHS)
def test_state_dict_names_and_shapes(arch):
    names = {
        "tango": "norm wq wk wg wv wo theta null_bias",
        "wango": "norm wq wk wg wv wo theta null_bias",
        "recurrent_transformer": "norm_attn wq wk wv wo norm_ffn w_gate w_up w_down",
        "untied_transformer": "norm_attn wq wk wv wo norm_ffn w_gate w_up w_down",
        "gau": "norm_weight norm_bias w_in b_in gamma beta toeplitz w_out b_out",
        "flash": "norm_weight norm_bias w_in b_in gamma beta toeplitz w_out b_out",
    }[arch].split()
    model = awake(arch)
    blocks = 1 if arch in ("tango", "wango", "recurrent_transformer") else 2
    expected = {f"blocks.{i}.{name}" for i in range(blocks) for name in names}
    assert set(model.state_dict()) == expected | {"embed", "final_norm"}
    if arch == "flash":
        assert model.blocks[0].gamma.shape == (4, 8)
        assert model.blocks[0].toeplitz.shape == (2 * 256 - 1,)
