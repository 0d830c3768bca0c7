"""The Triton kernels under Triton's interpreter: forward and every gradient against naive.

Tolerances are relative to the largest entry of each gradient: 1e-4 in float32, 4% in
bfloat16 (10% for the few numbers that are sums over all pairs of opposite signs).
"""

import os

import pytest
import torch
from awake_models import awake, compare, random_tokens

os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from tangobench.model.kernels import crossgate
from tangobench.model.kernels.triton import check
from tangobench.model.kernels.triton.tango import TangoTriton
from tangobench.model.kernels.triton.wango import WangoTriton

pytestmark = pytest.mark.kernels


@pytest.fixture(autouse=True)
def kernel(monkeypatch):
    monkeypatch.setenv(crossgate.VARIABLE, "triton")


@pytest.mark.parametrize("length", (1, 63, 64, 65, 257))
@pytest.mark.parametrize("arch", ("tango", "wango"))
def test_float32_at_odd_lengths(arch, length):
    model = awake(arch, dtype=torch.float32, depth=1)
    compare(model, random_tokens(2 if length < 200 else 1, length), tolerance=1e-4)


@pytest.mark.parametrize("fields", ({"null_gate": False}, {"temperature": False}), ids=str)
@pytest.mark.parametrize("arch", ("tango", "wango"))
def test_ablations(arch, fields):
    compare(
        awake(arch, dtype=torch.float32, depth=1, **fields), random_tokens(2, 70), tolerance=1e-4
    )


@pytest.mark.parametrize("arch", ("tango", "wango"))
def test_bfloat16(arch):
    tokens = random_tokens(2, 130)
    exact, model = awake(arch, depth=1), awake(arch, depth=1, dtype=torch.float32)
    exact(tokens).square().sum().backward()
    with torch.autocast("cpu", torch.bfloat16):
        model(tokens).square().sum().backward()
    for (name, found), expected in zip(model.named_parameters(), exact.parameters(), strict=True):
        error = (found.grad - expected.grad).abs().max() / expected.grad.abs().max()
        assert error < (0.1 if name.endswith(("theta", "null_bias")) else 0.04), name


def test_other_windows_and_float64_are_batched():
    compare(awake("wango", window=5, depth=1), random_tokens(2, 70))
    compare(awake("tango", depth=1), random_tokens(2, 70))


def test_the_self_check_passes():
    assert check.disagreement("cpu") is None


@pytest.mark.parametrize("kernel", (TangoTriton, WangoTriton))
def test_a_changed_sign_is_refused(kernel, monkeypatch, capsys):
    """And one line says so to the user."""
    right = kernel.backward

    def wrong(self, *args):
        dq, *others = right(self, *args)
        return [-dq, *others]

    monkeypatch.setattr(kernel, "backward", wrong)
    assert "differs from the reference" in check.disagreement("cpu")
    crossgate.automatic.cache_clear()
    assert crossgate.automatic("cpu") == "batched"
    assert capsys.readouterr().err.startswith("kernel: batched, because")
    crossgate.automatic.cache_clear()


def test_a_kernel_that_fails_is_refused(monkeypatch):
    def broken(self, *_):
        raise RuntimeError("no kernel image is available for execution on the device")

    monkeypatch.setattr(TangoTriton, "forward", broken)
    assert "no kernel image" in check.disagreement("cpu")
