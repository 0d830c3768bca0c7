"""Which implementation computes a block's cross-token part; all of them compute the same function.

- `strips` (a CPU's default): one head and one strip at a time. `batched`: all heads of several
  sequences in each product. `triton`: CUDA, or TRITON_INTERPRET=1; batched where it has no kernel.
- `auto` on CUDA is triton if its self-check passes, else batched, said once.
- The choice is the environment's (TANGOBENCH_KERNEL), so that child processes make the same one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Final, Literal, cast, get_args

import torch
from torch import Tensor

from tangobench.errors import UsageError

Kernel = Literal["strips", "batched", "triton"]

VARIABLE: Final = "TANGOBENCH_KERNEL"
NAMES: Final = ("auto", *get_args(Kernel))
# Entries kept per application (B·T·F) from which the CPU's blocks make them again in the backward
# pass: 64 MB in float32.
RECOMPUTE_ABOVE: Final = 1 << 24


def requested() -> str:
    name = os.environ.get(VARIABLE) or "auto"
    if name not in NAMES:
        fix = f"use one of {', '.join(NAMES)}"
        raise UsageError(f"{VARIABLE} is {name!r}", kind="no-such-kernel", fix=fix)
    return name


def request(name: str | None) -> None:
    """Ask for a kernel in this process and its children; None leaves the choice as it is."""
    if name is not None:
        os.environ[VARIABLE] = name
    requested()


def chosen(like: Tensor) -> Kernel:
    name = requested()
    if name == "auto":
        name = automatic(str(like.device)) if like.device.type == "cuda" else "strips"
    if name == "triton" and like.dtype == torch.float64:
        name = "batched"
    return cast(Kernel, name)


def refusal(device: str) -> str | None:
    """Why the Triton kernels are not used on a device; None if they agree with the reference."""
    try:
        from tangobench.model.kernels.triton.check import disagreement
    except ImportError:
        return "triton is not installed (pip install 'tangobench[gpu]')"
    return disagreement(device)


@functools.cache
def automatic(device: str) -> Kernel:
    """Triton where it agrees with naive on this device, checked once per process."""
    why = refusal(device)
    if why is None:
        return "triton"
    print(f"kernel: batched, because {why}", file=sys.stderr)
    return "batched"


@contextlib.contextmanager
def using(kernel: Kernel, *, recompute: bool = False) -> Iterator[None]:
    """Another kernel for a while: to count what a device would do."""
    before = requested(), Policy.recompute
    os.environ[VARIABLE], Policy.recompute = kernel, recompute
    try:
        yield
    finally:
        os.environ[VARIABLE], Policy.recompute = before


class Policy:
    """Of kernels for devices: whether blocks make activations again; `training.plan` decides."""

    recompute = False


def recomputes(like: Tensor, values: int) -> bool:
    """Whether a block makes `values` activations again in its backward pass, or keeps them."""
    return values > RECOMPUTE_ABOVE if chosen(like) == "strips" else Policy.recompute
