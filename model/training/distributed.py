"""More than one process: each takes some rows of every batch, gradients are summed once a step.

- Every rank knows the whole batch's rows and target count; a rank without rows adds zero.
- Weights need no broadcast: they depend on (seed, name) alone. Before the first step all ranks
  compare step and a hash of weights and moments with rank 0's; disagreement stops all.
- A lost rank ends the others with a typed error, and the same command resumes.
- One flat all-reduce after the last microbatch: the paper's 44M gradients are 177 MB.
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
        if self.size == 1:
            return
        gradients = []
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        _together(lambda: dist.all_reduce(flat))
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

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
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        mine = torch.tensor([step, *bytes.fromhex(sha256)], dtype=torch.int64, device=device)
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
        rank, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if rank >= there:
            raise UsageError(
                f"process {rank} of this machine has no GPU: there are {there}",
                kind="no-cuda",
                fix=f"torchrun --nproc-per-node {there}, or --device cpu",
            )
        torch.cuda.set_device(rank)
    _together(lambda: dist.init_process_group("gloo" if device == "cpu" else "nccl"))
    try:
        yield World(dist.get_rank(), size)
    finally:
        dist.destroy_process_group()
