"""What the paper promises of the functions, whatever their implementation."""

import math

import pytest
import torch
from awake_models import awake, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.errors import InputError
from tangobench.model import layers, naive
from tangobench.model.config import ARCHS
from tangobench.model.kernels import crossgate
from tangobench.model.kernels.crossgate import TangoKernel
from tangobench.model.kernels.squared_relu import squared_relu_mix
from tangobench.model.kernels.wango import WangoKernel


@pytest.mark.parametrize("arch", ARCHS)
def test_later_tokens_never_reach_back(arch):
    model = awake(arch, dtype=torch.float32, chunk=64)
    tokens = random_tokens(1, 200)
    params = dict(model.named_parameters())
    with torch.no_grad():
        fast, exact = model(tokens), naive.logits(model.config, params, tokens)
        for position in (1, 64, 130, 199):
            changed = tokens.clone()
            changed[:, position:] = (changed[:, position:] + 1) % 11
            early = slice(0, position)
            assert torch.equal(
                naive.logits(model.config, params, changed)[:, early], exact[:, early]
            )
            torch.testing.assert_close(model(changed)[:, early], fast[:, early], rtol=0, atol=1e-6)
            assert not torch.equal(model(changed)[:, position:], fast[:, position:])


@pytest.mark.parametrize("arch", ARCHS)
def test_a_prefix_does_not_know_the_length(arch):
    model = awake(arch, chunk=64)
    tokens = random_tokens(2, 190)
    torch.testing.assert_close(model(tokens[:, :77]), model(tokens)[:, :77], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("arch", ARCHS)
def test_rows_of_a_batch_do_not_meet(arch):
    model = awake(arch, chunk=64)
    tokens = random_tokens(5, 100)
    together = model(tokens)
    for row in range(5):
        alone = model(tokens[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", (1, 40, 64))
def test_wango_is_tango_inside_its_window(length):
    full, windowed = awake("tango"), awake("wango")
    windowed.load_state_dict(full.state_dict())
    tokens = random_tokens(2, length)
    torch.testing.assert_close(windowed(tokens), full(tokens), rtol=1e-12, atol=1e-12)


def test_wango_leaves_tango_past_its_window():
    full, windowed = awake("tango"), awake("wango")
    windowed.load_state_dict(full.state_dict())
    tokens = random_tokens(2, 65)
    assert (windowed(tokens) - full(tokens))[:, 64].abs().max() > 1e-6


def test_one_chunk_of_flash_is_gau():
    flash, gau = awake("flash", chunk=128), awake("gau", context=128)
    weights = {
        name: value[:2] if name.endswith(("gamma", "beta")) else value
        for name, value in flash.state_dict().items()
    }
    gau.load_state_dict(weights)
    tokens = random_tokens(2, 128)
    torch.testing.assert_close(flash(tokens), gau(tokens), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("arch", ("tango", "wango"))
def test_null_gate_limits(arch):
    tokens = random_tokens(2, 90)
    model, without = awake(arch), awake(arch, null_gate=False)
    without.load_state_dict(
        {n: v for n, v in model.state_dict().items() if not n.endswith("null_bias")}
    )
    with torch.no_grad():
        model.blocks[0].null_bias.fill_(-1e4)  # no weight on the null gate
        torch.testing.assert_close(model(tokens), without(tokens), rtol=1e-12, atol=1e-12)
        model.blocks[0].null_bias.fill_(1e4)  # all weight on it: no update at all
        embedded = layers.rms_norm(model.embed[tokens], model.final_norm) @ model.embed.T
        torch.testing.assert_close(model(tokens), embedded, rtol=1e-12, atol=1e-12)
    model(tokens).sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_null_weight_does_not_shrink_with_more_sources():
    # Equal logits: the null gate keeps the share e^b / (e^b + 1) at every position.
    zero, gate = torch.zeros(1, 1, 50, 2), torch.ones(1, 50, 3)
    bias = torch.tensor([0.7])
    mean = crossgate.average(TangoKernel(), (zero, zero), gate, bias)
    torch.testing.assert_close(mean, torch.full_like(mean, 1 / (1 + math.exp(0.7))))


@pytest.mark.parametrize("arch", ("tango", "wango"))
def test_temperature_clamp(arch):
    tokens = random_tokens(2, 90)
    model = awake(arch)
    outputs = []
    for theta in (math.log(20), 4.0, 50.0):
        with torch.no_grad():
            model.blocks[0].theta.fill_(theta)
        model.zero_grad()
        out = model(tokens)
        out.square().sum().backward()
        outputs.append(out.detach())
        if theta > math.log(20):
            assert model.blocks[0].theta.grad.abs().max() == 0
    for out in outputs[1:]:
        torch.testing.assert_close(out, outputs[0], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("arch", ARCHS)
def test_same_run_same_bits(arch):
    tokens = random_tokens(2, 130)
    runs = []
    for _ in range(2):
        model = awake(arch, dtype=torch.float32)
        nll, _ = model.loss(tokens, torch.ones_like(tokens))
        nll.backward()
        runs.append([nll.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("arch", ARCHS)
def test_nothing_but_the_block_between_applications(arch):
    # No embedding of the application number, no re-added input, no dropout.
    model = awake(arch, depth=3).train()
    tokens = random_tokens(2, 70)
    h = model.embed[tokens]
    for i in range(3):
        h = model.blocks[i if len(model.blocks) > 1 else 0](h)
    expected = layers.rms_norm(h, model.final_norm) @ model.embed.T
    assert torch.equal(model(tokens), expected)
    assert torch.equal(model.eval()(tokens), expected)
    assert not any("drop" in type(m).__name__.lower() for m in model.modules())


@pytest.mark.parametrize("arch", ARCHS)
def test_bf16_stays_close(arch):
    model = awake(arch)
    tokens, mask = random_tokens(2, 150), torch.ones(2, 150)
    exact, _ = model.loss(tokens, mask)
    model = model.float()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
        rounded, _ = model.loss(tokens, mask)
    rounded.backward()
    assert logits.dtype == rounded.dtype == torch.float32
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert rounded.item() == pytest.approx(exact.item(), rel=0.03)


def test_bf16_sums_do_not_stall():
    # Summed in bfloat16, z would stop growing long before 2,048 sources.
    length = 2048
    ones, phi = torch.zeros(1, 1, length, 4), torch.full((1, 1, length, 4), 0.5)
    gate = torch.ones(1, length, 8, dtype=torch.bfloat16)
    bias = torch.tensor([-1e4])
    mean = crossgate.average(WangoKernel(64), (ones, ones, phi, phi), gate, bias)
    torch.testing.assert_close(mean.float(), torch.ones(1, length, 8), rtol=0, atol=0.01)


def test_gradcheck_of_the_kernels():
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    q, k, phi_q, phi_k = (draw(2, 2, 67, 3) for _ in range(4))
    phi_q, phi_k = (x.detach().exp().requires_grad_() for x in (phi_q, phi_k))
    gate, bias = draw(2, 67, 4), draw(2)
    fast = {"fast_mode": True, "atol": 1e-7}
    assert torch.autograd.gradcheck(
        lambda *f: crossgate.average(TangoKernel(strip=32), f[:2], *f[2:]),
        (q, k, gate, bias),
        **fast,
    )
    for kernel in (WangoKernel(5), TangoKernel(32, 5)):
        assert torch.autograd.gradcheck(
            lambda *f, kernel=kernel: crossgate.average(kernel, f[:4], *f[4:]),
            (q, k, phi_q, phi_k, gate, bias),
            **fast,
        )
    assert torch.autograd.gradcheck(
        lambda *a: squared_relu_mix(*a, scale=9), (q[0], k[0], gate, draw(2 * 80 - 1)), **fast
    )


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 300), strip=st.integers(1, 300), tau=st.floats(0.1, 20.0))
def test_strips_do_not_show(length, strip, tau):
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(1, 2, length, 4, generator=generator) for _ in range(2))
    q, k = tau * layers.unit(q.double()), layers.unit(k.double())
    gate = torch.randn(1, length, 6, generator=generator).double()
    bias = torch.tensor([0.3, -0.4], dtype=torch.float64)
    whole = crossgate.average(TangoKernel(strip=length), (q, k), gate, bias)
    striped = crossgate.average(TangoKernel(strip=strip), (q, k), gate, bias)
    torch.testing.assert_close(striped, whole, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("tokens", "kind"),
    [
        (torch.zeros(2, 0, dtype=torch.long), "no-tokens"),
        (torch.zeros(0, 2, dtype=torch.long), "no-tokens"),
        (torch.zeros(3, dtype=torch.long), "no-tokens"),
        (torch.tensor([[1, 11]]), "token-out-of-range"),
        (torch.tensor([[-1, 1]]), "token-out-of-range"),
    ],
)
def test_bad_tokens(tokens, kind):
    with pytest.raises(InputError) as caught:
        awake("tango")(tokens)
    assert caught.value.kind == kind


def test_longer_than_the_toeplitz_bias():
    model = awake("gau", context=32)
    assert model(random_tokens(1, 32)).shape == (1, 32, 11)
    with pytest.raises(InputError, match="context") as caught:
        model(random_tokens(1, 33))
    assert caught.value.kind == "context-too-long"


def test_small_integer_tokens_are_welcome():
    model, tokens = awake("untied_transformer"), random_tokens(2, 9)
    assert torch.equal(model(tokens.to(torch.uint8)), model(tokens))
