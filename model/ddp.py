"""More than one process: each takes some rows of every batch, gradients are summed once a step.

- Every rank sees the whole batch's row numbers and target count, so no rank needs to ask another
  what to divide by; a rank without rows (or targets) simply adds zero.
- Weights need no broadcast: they depend on (seed, name) alone and all ranks apply the same update.
- One flat all-reduce after the last microbatch: with accumulation there is little to overlap with,
  and the paper's 44M gradients are 177 MB.

Usage: `torchrun --nproc-per-node 2 -m tangobench train --recipe NAME`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from tangobench.errors import UsageError

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
        """Add up every parameter's gradient over all ranks."""
        if self.size == 1:
            return
        parameters = list(model.parameters())
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def sum_number(self, value: float) -> float:
        """Add up a number over all ranks."""
        if self.size == 1:
            return value
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        total = torch.tensor(value, dtype=torch.float64, device=device)
        dist.all_reduce(total)
        return float(total)

    def wait(self) -> None:
        """Let every rank arrive."""
        if self.size > 1:
            dist.barrier()


@contextlib.contextmanager
def world(device: str) -> Iterator[World]:
    """The processes that `torchrun` started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or not os.environ.keys() >= RENDEZVOUS:  # some schedulers set WORLD_SIZE alone
        yield World()
        return
    if device == "cuda":
        _take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()


def _take_gpu(rank: int) -> None:
    there = torch.cuda.device_count()
    if rank >= there:
        raise UsageError(
            f"process {rank} of this machine has no GPU: there are {there}",
            kind="no-cuda",
            fix=f"torchrun --nproc-per-node {there}, or --device cpu",
        )
    torch.cuda.set_device(rank)
