"""AdamW as the paper uses it: two parameter groups by name, the learning rate, the precision.

- Decay falls on the embedding and the linear weights only. A name in neither list is an error, so
  that a new tensor has to be decided on.
- Weights and optimizer state are float32 (or float64 in tests), whatever autocast computes in.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

if TYPE_CHECKING:
    from tangobench.model.training.recipes import Precision, Recipe

DECAYED: Final = frozenset(
    ("embed", "wq", "wk", "wv", "wg", "wo", "w_gate", "w_up", "w_down", "w_in", "w_out")
)
_NORMS: Final = ("norm", "norm_attn", "norm_ffn", "norm_weight", "norm_bias", "final_norm")
FREE: Final = frozenset(
    (*_NORMS, "b_in", "b_out", "gamma", "beta", "toeplitz", "theta", "null_bias")
)
MOMENTS: Final = ("exp_avg", "exp_avg_sq")


def is_decayed(name: str) -> bool:
    leaf = name.rpartition(".")[2]
    if leaf not in DECAYED | FREE:
        raise ValueError(f"parameter {name!r} is in no weight-decay group")
    return leaf in DECAYED


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    named = list(model.named_parameters())
    return torch.optim.AdamW(
        [
            {
                "params": [p for name, p in named if is_decayed(name) == decayed],
                "weight_decay": recipe.weight_decay if decayed else 0.0,
            }
            for decayed in (True, False)
        ],
        lr=recipe.lr_peak,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.eps,
        fused=named[0][1].device.type == "cuda" or None,
    )


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warmup, whose last step has the peak; then cosine, whose last step has the end."""
    if step < recipe.warmup:
        return recipe.lr_peak * (step + 1) / recipe.warmup
    progress = (step + 1 - recipe.warmup) / (recipe.steps - recipe.warmup)
    swing = (recipe.lr_peak - recipe.lr_final) * (1 + math.cos(math.pi * progress)) / 2
    return recipe.lr_final + swing


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Both moments of every parameter, by the parameter's name; empty before the first step."""
    return {
        f"{moment}.{name}": optimizer.state[parameter][moment]
        for name, parameter in model.named_parameters()
        for moment in MOMENTS
        if parameter in optimizer.state
    }


def load_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, torch.Tensor], step: int
) -> None:
    """Put back what `optimizer_tensors` gave after `step` steps."""
    if step == 0:
        return
    for name, parameter in model.named_parameters():
        moments = {m: tensors[f"{m}.{name}"].to(parameter, copy=True) for m in MOMENTS}
        fused = optimizer.defaults.get("fused")
        count = torch.tensor(float(step), device=parameter.device if fused else "cpu")
        optimizer.state[parameter] = {"step": count, **moments}


def autocast(device: str, precision: Precision) -> torch.autocast:
    kind = device.partition(":")[0]
    return torch.autocast(kind, torch.bfloat16, enabled=precision == "bf16")
