"""The optimizer: decay by name, the schedule's corners, and AdamW against its definition."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tangobench.model import build
from tangobench.model.config import ARCHS
from tangobench.model.training.optim import (
    is_decayed,
    learning_rate,
    load_optimizer,
    make_optimizer,
    optimizer_tensors,
    set_learning_rate,
)
from tangobench.model.training.recipes import RECIPES

RECIPE = RECIPES["fineweb-tango-4"]


@pytest.mark.parametrize("arch", ARCHS)
def test_only_matrices_decay(arch):
    model = build(RECIPES[f"sample-dm_math-{arch}"].model_config(), device="meta")
    for name, parameter in model.named_parameters():
        # gamma and beta are stacks of vectors, not linear maps.
        linear = parameter.ndim == 2 and name.rpartition(".")[2] not in ("gamma", "beta")
        assert is_decayed(name) == linear, name
    optimizer = make_optimizer(model, RECIPE)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    grouped = sum(len(group["params"]) for group in optimizer.param_groups)
    assert grouped == len(list(model.parameters()))


def test_an_undecided_parameter_is_an_error():
    with pytest.raises(ValueError, match="w_new"):
        is_decayed("blocks.0.w_new")


def test_schedule_corners():
    assert learning_rate(RECIPE, 0) == pytest.approx(6e-4 / 200)
    assert learning_rate(RECIPE, 199) == 6e-4
    assert learning_rate(RECIPE, 200) < 6e-4
    assert learning_rate(RECIPE, 5721) == pytest.approx(6e-5, abs=1e-18)
    half = 200 + (5722 - 200) // 2 - 1
    assert learning_rate(RECIPE, half) == pytest.approx(3.3e-4)
    rates = [learning_rate(RECIPE, step) for step in range(5722)]
    assert rates[:200] == sorted(rates[:200])
    assert rates[199:] == sorted(rates[199:], reverse=True)


def test_one_step_is_adamw_by_hand():
    recipe = dataclasses.replace(RECIPE, eps=1e-3)
    module = torch.nn.Module()
    module.embed = torch.nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))
    module.norm = torch.nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
    optimizer = make_optimizer(module, recipe)
    gradients, weight, norm, m, v = [0.5, -0.2, 0.1], 2.0, 3.0, 0.0, 0.0
    for step, gradient in enumerate(gradients):
        rate = learning_rate(recipe, step)
        module.embed.grad = torch.full_like(module.embed, gradient)
        module.norm.grad = torch.full_like(module.norm, gradient)
        set_learning_rate(optimizer, rate)
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
        update = (m / (1 - 0.9 ** (step + 1))) / (math.sqrt(v / (1 - 0.95 ** (step + 1))) + 1e-3)
        weight = weight * (1 - rate * 0.1) - rate * update
        norm = norm - rate * update
    assert module.embed.item() == pytest.approx(weight, rel=1e-12)
    assert module.norm.item() == pytest.approx(norm, rel=1e-12)


def test_state_survives_the_round_trip_bit_for_bit():
    def fresh():
        model = build(RECIPES["sample-dm_math-gau"].model_config())
        return model, make_optimizer(model, RECIPE)

    def step(model, optimizer, scale):
        for parameter in model.parameters():
            parameter.grad = parameter.detach() * scale
        optimizer.step()

    model, optimizer = fresh()
    assert optimizer_tensors(model, optimizer) == {}
    step(model, optimizer, 0.3)
    other, other_optimizer = fresh()
    other.load_state_dict(model.state_dict())
    load_optimizer(other, other_optimizer, optimizer_tensors(model, optimizer), 1)
    for pair in ((model, optimizer), (other, other_optimizer)):
        step(*pair, -0.7)
    for left, right in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right)
