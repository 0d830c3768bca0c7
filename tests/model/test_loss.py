import math

import pytest
import torch
import torch.nn.functional as F
from awake_models import awake, random_tokens

from tangobench.errors import InputError
from tangobench.model import language
from tangobench.model.language import summed_nll


@pytest.mark.parametrize("rows", (0, 1, 7, 50))
def test_equal_to_plain_cross_entropy(rows, monkeypatch):
    monkeypatch.setattr(language, "LOGITS_AT_ONCE", 7 * 13)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    embed = torch.randn(13, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    target = torch.randint(0, 13, (rows,), generator=generator)
    found = summed_nll(hidden, embed, target)
    expected = F.cross_entropy(hidden @ embed.T, target, reduction="sum") if rows else hidden.sum()
    torch.testing.assert_close(found, expected)
    (3 * found).backward()
    for tensor, gradient in zip(
        (hidden, embed),
        torch.autograd.grad(3 * expected, (hidden, embed), allow_unused=True),
        strict=True,
    ):
        wanted = torch.zeros_like(tensor) if gradient is None else gradient
        torch.testing.assert_close(tensor.grad, wanted)


def test_by_hand():
    # One model position, logits zero: every class has probability 1/11.
    model = awake("tango")
    with torch.no_grad():
        model.final_norm.zero_()
    nll, count = model.loss(torch.tensor([[1, 2, 3]]), torch.tensor([[True, True, False]]))
    assert int(count) == 1  # the first token is never a target, the third is not marked
    assert nll.item() == pytest.approx(math.log(11))


def test_targets_are_predicted_from_before():
    model, tokens = awake("wango"), random_tokens(3, 40)
    mask = random_tokens(3, 40, vocabulary=2, seed=9).bool()
    log_probability = model(tokens).log_softmax(-1)
    expected = -sum(
        log_probability[b, t - 1, tokens[b, t]]
        for b in range(3)
        for t in range(1, 40)
        if mask[b, t]
    )
    nll, count = model.loss(tokens, mask)
    torch.testing.assert_close(nll, expected)
    assert int(count) == int(mask[:, 1:].sum())


def test_no_target_is_zero_with_zero_gradients():
    model, tokens = awake("flash"), random_tokens(2, 10)
    nll, count = model.loss(tokens, torch.zeros_like(tokens))
    nll.backward()
    assert nll.item() == 0 and int(count) == 0
    assert all(p.grad is None or p.grad.abs().max() == 0 for p in model.parameters())


def test_no_gradient_is_made_when_none_is_wanted():
    model, tokens = awake("tango"), random_tokens(2, 10)
    with torch.no_grad():
        nll, _ = model.loss(tokens, torch.ones_like(tokens))
    assert not nll.requires_grad


def test_mask_must_fit():
    with pytest.raises(InputError) as caught:
        awake("tango").loss(random_tokens(2, 10), torch.ones(2, 9))
    assert caught.value.kind == "bad-target-mask"
