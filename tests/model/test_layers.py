"""Small pieces against definitions written another way: naive.py shares them."""

import math

import pytest
import torch

from tangobench.model import layers


@pytest.mark.parametrize("start", (0, 5, 8191))
def test_rope_turns_complex_numbers(start):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 7, 6, generator=generator, dtype=torch.float64)
    found = layers.rope(x, start, 10_000.0)
    position = torch.arange(start, start + 7, dtype=torch.float64)
    frequency = torch.tensor([10_000.0 ** (-2 * c / 6) for c in range(3)], dtype=torch.float64)
    turn = torch.polar(torch.ones(7, 3, dtype=torch.float64), position[:, None] * frequency)
    expected = torch.complex(x[..., :3].contiguous(), x[..., 3:].contiguous()) * turn
    torch.testing.assert_close(found, torch.cat((expected.real, expected.imag), -1))


def test_rope_gradients_to_the_second_order():
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: layers.rope(x, 3, 100.0), (x,))
    assert torch.autograd.gradgradcheck(lambda x: layers.rope(x, 3, 100.0), (x,))


def test_rope_leaves_strided_inputs_alone():
    x = torch.randn(2, 5, 3, 4)
    before = x.clone()
    turned = layers.rope(x.transpose(1, 2), 0, 100.0)
    torch.testing.assert_close(turned, layers.rope(x.transpose(1, 2).contiguous(), 0, 100.0))
    assert torch.equal(x, before)


def test_unit_and_phi_by_hand():
    torch.testing.assert_close(layers.unit(torch.tensor([3.0, 4.0])), torch.tensor([0.6, 0.8]))
    assert torch.equal(layers.unit(torch.zeros(3)), torch.zeros(3))
    expected = (torch.tensor([math.exp(-2.0), 4.0]) + 1e-4) / math.sqrt(2)
    torch.testing.assert_close(layers.phi(torch.tensor([-2.0, 3.0])), expected)


def test_log_tau_is_clamped_at_twenty():
    theta = torch.tensor([0.0, 5.0], requires_grad=True)
    tau = layers.log_tau_H11(theta, theta)[:, 0, 0].exp()
    torch.testing.assert_close(tau, torch.tensor([1.0, 20.0]))
    tau.sum().backward()
    assert theta.grad.tolist() == [1.0, 0.0]
