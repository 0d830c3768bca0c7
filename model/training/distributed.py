"""More than one process: each takes some rows of every batch, gradients are summed once a step.

- Every rank sees the whole batch's row numbers and target count, so no rank needs to ask another
  what to divide by; a rank without rows (or targets) simply adds zero.
- Weights need no broadcast: they depend on (seed, name) alone and all ranks apply the same update.
  Before the first step all ranks compare their step and a hash of weights and moments with rank
  0's: with separate disks one may have resumed where another begins. Disagreement stops all.
- A rank that is lost ends the others with a typed error, and the same command resumes.
- One flat all-reduce after the last microbatch: with accumulation there is little to overlap with,
  and the paper's 44M gradients are 177 MB.

Usage: `torchrun --nproc-per-node 2 -m tangobench train --recipe NAME`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist
from torch import nn

from tangobench.errors import MismatchError, ResourceError, UsageError

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
        _together(lambda: dist.all_reduce(flat))
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """Add up numbers over all ranks, in place."""
        if self.size > 1:
            _together(lambda: dist.all_reduce(values))
        return values

    def wait(self) -> None:
        """Let every rank arrive."""
        if self.size > 1:
            _together(dist.barrier)

    def agree(self, step: int, sha256: str) -> None:
        """Refuse to begin, on every rank, unless all are at rank 0's step with its weights."""
        if self.size == 1:
            return
        mine = torch.tensor([step, *bytes.fromhex(sha256)], dtype=torch.int64, device=_device())
        found = [torch.empty_like(mine) for _ in range(self.size)]
        _together(lambda: dist.all_gather(found, mine))
        places = [(int(row[0]), bytes(row[1:].tolist()).hex()) for row in found]
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


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _together(talk: Callable[[], object]) -> None:
    """A collective; a peer that is gone is a typed error."""
    try:
        talk()
    except RuntimeError as error:
        raise ResourceError(
            f"another process of this run is gone: {str(error).splitlines()[0][:200]}",
            kind="rank-lost",
            fix="run the same command again: it resumes from the last checkpoint",
        ) from None


@contextlib.contextmanager
def world(device: str) -> Iterator[World]:
    """The processes that `torchrun` started, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or not os.environ.keys() >= RENDEZVOUS:  # some schedulers set WORLD_SIZE alone
        yield World()
        return
    if device == "cuda":
        _take_gpu(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
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
