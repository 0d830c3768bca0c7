"""All heads in one product: the same function as naive.py, in few launches."""

from pathlib import Path

import pytest
import torch
from awake_models import awake, compare, random_tokens

from tangobench.errors import UsageError
from tangobench.model import build
from tangobench.model.config import ARCHS, published
from tangobench.model.counting import Counter
from tangobench.model.kernels import crossgate

PAGE = Path(__file__).parents[3] / "docs" / "gpu.md"


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    monkeypatch.setenv(crossgate.VARIABLE, "batched")


@pytest.mark.parametrize("length", (1, 63, 64, 65, 257, 1000))
@pytest.mark.parametrize("arch", ARCHS)
def test_odd_lengths(arch, length):
    compare(awake(arch), random_tokens(3 if length < 300 else 1, length))


@pytest.mark.parametrize(
    ("arch", "columns", "length"),
    [
        *(("tango", 1780, 257), ("tango", 481, 1300), ("tango", 481, 2048)),
        *(("wango", 1780, 257), ("wango", 481, 1300), ("wango", 481, 2048)),
    ],
)
def test_wide_heads(arch, columns, length):
    compare(awake(arch, width=2 * columns, depth=1, context=2048), random_tokens(1, length))


@pytest.mark.parametrize("fields", ({"null_gate": False}, {"temperature": False}), ids=str)
@pytest.mark.parametrize("arch", ("tango", "wango"))
def test_ablations(arch, fields):
    compare(awake(arch, **fields), random_tokens(2, 300))


@pytest.mark.parametrize("window", (1, 5, 64, 100, 128, 400))
@pytest.mark.parametrize("length", (130, 300))
def test_any_window(window, length):
    compare(awake("wango", window=window), random_tokens(2, length))


@pytest.mark.parametrize("arch", ("tango", "wango", "untied_transformer"))
def test_sequences_in_several_parts(arch, monkeypatch):
    """And the blocks as on a device without room for their activations."""
    fields = {"weighting": "cosine-null"} if arch == "untied_transformer" else {}
    monkeypatch.setattr(crossgate, "WEIGHTS_AT_ONCE", 1)
    monkeypatch.setitem(crossgate.DOTS_AT_ONCE, True, 1000)
    monkeypatch.setattr(crossgate, "recomputes", lambda *_: True)
    compare(awake(arch, **fields), random_tokens(3, 270))


def test_bfloat16_rows_start_at_sixteen_bytes():
    x = torch.arange(2 * 3 * 2 * 1780).view(2, 2, 3, 1780).to(torch.bfloat16)
    aligned, found = crossgate._gates(x, aligned=True), torch.empty_like(x)
    assert aligned.shape == (4, 3, 1792)
    crossgate._put(found, aligned)
    assert torch.equal(found, x)


@pytest.mark.parametrize("arch", ("tango", "wango"))
def test_bfloat16_is_near_float64(arch):
    exact = awake(arch, depth=1, width=2 * 12)
    tokens = random_tokens(2, 300)
    expected = exact(tokens)
    model = awake(arch, depth=1, width=2 * 12, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens)
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()


def launches(arch, length):
    block = build(published(arch, "fineweb"), device="meta").blocks[0]
    h = torch.zeros(1, length, 512, device="meta", requires_grad=True)
    block(h)  # RoPE's tables are made once in a process: ten more
    with Counter() as counter:
        block(h).sum().backward()
    return counter.ops.total()


@pytest.mark.parametrize(
    ("arch", "most"), [("tango", 400), ("wango", 280), ("gau", 170), ("flash", 120)]
)
def test_launches_of_one_application(arch, most):
    assert launches(arch, 8192) <= most


@pytest.mark.parametrize("name", ("strips", "batched"))
def test_the_page_gives_the_launches(name, monkeypatch):
    monkeypatch.setenv(crossgate.VARIABLE, name)
    archs = ("tango", "wango", "gau", "flash", "untied_transformer")
    counts = " | ".join(f"{launches(arch, 8192):,}" for arch in archs)
    assert f"| {name} | {counts} |" in PAGE.read_text()


def test_strips_launch_by_head_and_strip(monkeypatch):
    """The counter sees what the CPU's path would do to a GPU."""
    monkeypatch.setenv(crossgate.VARIABLE, "strips")
    assert launches("tango", 2048) > 4000


def test_an_unknown_kernel_is_named(monkeypatch):
    monkeypatch.setenv(crossgate.VARIABLE, "cuda")
    with pytest.raises(UsageError, match="cuda"):
        awake("tango")(random_tokens(1, 3))
