"""A step waits for its device once: nothing else asks a tensor for its value."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tangobench.errors import InputError
from tangobench.model import build
from tangobench.model.kernels import crossgate
from tangobench.model.language import product
from tangobench.model.training.loader import Batch
from tangobench.model.training.optim import World
from tangobench.model.training.recipes import RECIPES
from tangobench.model.training.train import accumulate

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal")


class Waits(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(word in str(func) for word in WAITING):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def batch_of(vocabulary, rows=4, length=40):
    tokens = np.arange(rows * length, dtype=np.int32).reshape(rows, length) % vocabulary
    targets = tokens % 3 == 1
    targets[:, 0] = False
    return Batch(0, "default", np.arange(rows), tokens, targets, np.full(rows, length))


@pytest.mark.parametrize("arch", ("tango", "wango", "untied_transformer", "gau", "flash"))
def test_microbatches_never_wait(arch, monkeypatch):
    monkeypatch.setenv(crossgate.VARIABLE, "batched")
    model = build(RECIPES[f"sample-dm_math-{arch}"].model_config(), seed=1)
    # On a CPU the model checks ids itself; on a GPU that is done on the host.
    monkeypatch.setattr(type(model), "_checked", lambda _, tokens: tokens.long())
    for name in ("tolist", "item", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(torch.Tensor, name, None)
    with Waits() as waits:
        accumulate(model, batch_of(73), microbatch=2, precision="fp32", peers=World())
    assert waits.seen == []


def test_places_and_marks_are_the_same_loss():
    model = build(RECIPES["sample-dm_math-flash"].model_config(), seed=1)
    batch = batch_of(73)
    marked, count = model.loss(
        torch.from_numpy(batch.tokens_BT), torch.from_numpy(batch.targets_BT)
    )
    tokens, places = batch.on(torch.device("cpu"), 73)
    assert torch.equal(model.loss_at(tokens, places), marked)
    assert len(places) == count == batch.targets


def test_a_token_outside_the_vocabulary_is_found_on_the_host():
    with pytest.raises(InputError, match="token 72"):
        batch_of(73).on(torch.device("cpu"), 72)


def test_products_of_the_loss_round_their_inputs_alone():
    """bfloat16 in, float32 sums: against float64 products of the rounded inputs."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(*shape, generator=generator) for shape in ((40, 512), (512, 300)))
    found = product(a, b, torch.bfloat16)
    exact = a.bfloat16().double() @ b.bfloat16().double()
    assert found.dtype == torch.float32
    assert (found - exact).abs().max() < 1e-4
    rounded = (a.bfloat16() @ b.bfloat16()).double()
    assert (rounded - exact).abs().max() > 1e-2  # what a product that returns bfloat16 would lose
