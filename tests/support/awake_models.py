"""Small models with weights far enough from zero that every parameter matters."""

from __future__ import annotations

from typing import Any

import torch

from tangobench.model import build, naive
from tangobench.model.config import ModelConfig
from tangobench.model.language import LanguageModel


def awake(arch: str, dtype: torch.dtype = torch.float64, **fields: Any) -> LanguageModel:
    defaults: dict[str, Any] = {
        "width": 32, "d_model": 16, "heads": 2, "depth": 2, "context": 1024, "vocabulary": 11,
        "qk_width": 8,
    }  # fmt: skip
    model = build(ModelConfig(arch=arch, **{**defaults, **fields}), dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)
    return model.to(dtype)


def random_tokens(batch: int, length: int, vocabulary: int = 11, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (batch, length), generator=generator)


def reference_gradients(
    model: LanguageModel, tokens: torch.Tensor, direction: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits and gradients of (logits · direction) by naive.py."""
    params = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    logits = naive.logits(model.config, params, tokens)
    (logits * direction).sum().backward()
    zero = {n: torch.zeros_like(p) for n, p in params.items()}
    return logits.detach(), {n: zero[n] if p.grad is None else p.grad for n, p in params.items()}


def compare(model: LanguageModel, tokens: torch.Tensor, tolerance: float = 1e-9) -> None:
    """Logits and every gradient of a model against naive.py."""
    generator = torch.Generator().manual_seed(1)
    shape = (*tokens.shape, model.config.vocabulary)
    direction = torch.randn(shape, generator=generator, dtype=torch.float64).to(model.embed.dtype)
    logits = model(tokens)
    (logits * direction).sum().backward()
    expected, gradients = reference_gradients(model, tokens, direction)
    torch.testing.assert_close(logits, expected, rtol=tolerance, atol=tolerance)
    for name, parameter in model.named_parameters():
        scale = gradients[name].abs().max().clamp(min=1)
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(
            found / scale,
            gradients[name] / scale,
            rtol=0,
            atol=tolerance,
            msg=lambda m, n=name: n + m,
        )
