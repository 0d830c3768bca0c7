"""A step of AdamW as the paper uses it, on one process or several.

- Decay falls on the embedding and the linear weights only. A name in no list of `language` is an
  error, so that a new tensor has to be decided on.
- Weights and optimizer state are float32 (or float64 in tests), whatever autocast computes in.
- Every rank knows the whole batch's rows and target count; a rank without rows adds zero.
- Weights need no broadcast: they depend on (seed, name) alone. Before the first step all ranks
  compare step and a hash of weights and moments with rank 0's; disagreement stops all.
- A lost rank ends the others with a typed error, and the same command resumes.
- One flat all-reduce after the last microbatch: the paper's 44M gradients are 177 MB.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist
from torch import nn

from tangobench.errors import MismatchError, ResourceError, UsageError
from tangobench.model.language import MATRICES, ONES, POSITION_FREE, ZEROS

if TYPE_CHECKING:
    from tangobench.model.training.recipes import Precision, Recipe

FREE: Final = ONES | ZEROS | POSITION_FREE | {"theta"}
MOMENTS: Final = ("exp_avg", "exp_avg_sq")


def is_decayed(name: str) -> bool:
    leaf = name.rpartition(".")[2]
    if leaf not in MATRICES | FREE:
        raise ValueError(f"parameter {name!r} is in no weight-decay group")
    return leaf in MATRICES


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


RENDEZVOUS: Final = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}


@dataclass(frozen=True, slots=True)
class World:
    """This process among its peers."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and reports."""
        return self.rank == 0

    def sum_gradients(self, model: nn.Module) -> None:
        if self.size == 1:
            return
        gradients = []
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        flat = nn.utils.parameters_to_vector(gradients)
        _together(lambda: dist.all_reduce(flat))
        nn.utils.vector_to_parameters(flat, gradients)

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        if self.size > 1:
            _together(lambda: dist.all_reduce(values))
        return values

    def wait(self) -> None:
        if self.size > 1:
            _together(dist.barrier)

    def agree(self, step: int, sha256: str) -> None:
        """Refuse to begin, on every rank, unless all are at rank 0's step with its weights."""
        if self.size == 1:
            return
        places = [(step, sha256)] * self.size
        _together(lambda: dist.all_gather_object(places, (step, sha256)))
        if len(set(places)) > 1:
            lines = (
                f"\n  rank {rank}: step {place[0]}, weights {place[1][:16]}…"
                for rank, place in enumerate(places)
            )
            raise MismatchError(
                f"the {self.size} processes do not begin at the same place" + "".join(lines),
                kind="ranks-disagree",
                fix="give all of them rank 0's run folder: the same --out on shared storage, or a "
                "copy of its checkpoints",
                ranks=[list(place) for place in places],
            )


def _together(talk: Callable[[], object]) -> None:
    """A collective; a peer that is gone is a typed error."""
    try:
        talk()
    except RuntimeError as error:
        why = f"another process of this run is gone: {str(error).splitlines()[0][:200]}"
        fix = "run the same command again: it resumes from the last checkpoint"
        raise ResourceError(why, kind="rank-lost", fix=fix) from None


@contextlib.contextmanager
def world(device: str) -> Iterator[World]:
    """The processes that `torchrun` started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or not os.environ.keys() >= RENDEZVOUS:  # some schedulers set WORLD_SIZE alone
        yield World()
        return
    if device == "cuda":
        rank, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if rank >= there:
            why = f"process {rank} of this machine has no GPU: there are {there}"
            fix = f"torchrun --nproc-per-node {there}, or --device cpu"
            raise UsageError(why, kind="no-cuda", fix=fix)
        torch.cuda.set_device(rank)
    _together(lambda: dist.init_process_group("gloo" if device == "cpu" else "nccl"))
    try:
        yield World(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
