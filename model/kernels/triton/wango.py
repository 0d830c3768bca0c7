"""WANGO's gate average on a GPU: kernels that walk a sequence with S in registers.

- Never run on a GPU so far: checked under Triton's interpreter, compiled for sm_80, 90 and 100.
- What is narrow is the batched kernel's. What is wide is walked: a program owns one sequence of one
  head and BG gate columns, and reads gates once; 96 operations per byte are bound by memory.
- Backward is two walks, because S runs forwards and its gradient backwards; nothing is undone by
  subtraction. φ's gradients are written by program and summed in a fixed order.
Shapes: N sequences (all heads of all sequences), M blocks, K channels, G gate columns.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tangobench.model.kernels.wango_batched import Blocks, Layout, WangoBatched
from tangobench.model.kernels.wango_scan import BLOCK

WALK: Final = {"BG": 32, "num_warps": 8, "num_stages": 2}
BACK: Final = {"BG": 64, "num_warps": 8, "num_stages": 2}


@triton.jit
def _tile(ptr, block, column, width, exists):
    """One block's rows of (M, 64, width); zeros where `exists` is false or columns end."""
    row = tl.arange(0, 64)
    inside = (column < width)[None, :] & exists
    offset = row[:, None] * width + column[None, :]
    return tl.load(ptr + block * 64 * width + offset, mask=inside, other=0.0)


@triton.jit
def _put(ptr, block, column, width, tile):
    row = tl.arange(0, 64)
    offset = row[:, None] * width + column[None, :]
    tl.store(ptr + block * 64 * width + offset, tile, mask=(column < width)[None, :])


@triton.jit
def _dot(a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """A product; the interpreter would multiply bfloat16 as integers."""
    if WIDEN:
        return tl.dot(a.to(tl.float32), b.to(tl.float32))
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _walk(
    own_ptr, before_ptr, phi_q_ptr, phi_k_ptr, gate_ptr, scale_ptr, mean_ptr,
    blocks, width,
    K: tl.constexpr, BK: tl.constexpr, BG: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Averages of every block; `before` begins at the second block."""
    first = tl.program_id(1).to(tl.int64) * blocks
    column, channel = tl.program_id(0) * BG + tl.arange(0, BG), tl.arange(0, BK)
    inner = tl.arange(0, 64)
    s = tl.zeros((BK, BG), tl.float32)
    for index in range(2, blocks):
        block = first + index
        phi_left = _tile(phi_k_ptr, block - 2, channel, K, True)
        gate = _tile(gate_ptr, block - 2, column, width, True)
        s += _dot(tl.trans(phi_left), gate.to(tl.float32), PRECISION, WIDEN)
        summed = _dot(_tile(phi_q_ptr, block, channel, K, True), s, PRECISION, WIDEN)
        gate = _tile(gate_ptr, block - 1, column, width, True)
        summed += _dot(_tile(before_ptr, block - 1, inner, 64, True), gate, PRECISION, WIDEN)
        gate = _tile(gate_ptr, block, column, width, True)
        summed += _dot(_tile(own_ptr, block, inner, 64, True), gate, PRECISION, WIDEN)
        scale = tl.load(scale_ptr + block * 64 + inner)
        _put(mean_ptr, block, column, width, summed * scale[:, None])


@triton.jit
def _query_walk(
    phi_k_ptr, gate_ptr, dsummed_ptr, dphi_ptr,
    blocks, width,
    K: tl.constexpr, BK: tl.constexpr, BG: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Forwards with S: this program's part of what φq gets through it."""
    first = tl.program_id(1).to(tl.int64) * blocks
    column, channel = tl.program_id(0) * BG + tl.arange(0, BG), tl.arange(0, BK)
    part = tl.program_id(0) * (tl.num_programs(1) * blocks)
    s = tl.zeros((BK, BG), tl.float32)
    for index in range(2, blocks):
        block = first + index
        phi_left = _tile(phi_k_ptr, block - 2, channel, K, True)
        gate = _tile(gate_ptr, block - 2, column, width, True)
        s += _dot(tl.trans(phi_left), gate.to(tl.float32), PRECISION, WIDEN)
        dsummed = _tile(dsummed_ptr, block, column, width, True).to(tl.float32)
        dphi = _dot(dsummed, tl.trans(s), PRECISION, WIDEN)
        _put(dphi_ptr, part + block, channel, K, dphi)


@triton.jit
def _key_walk(
    own_ptr, before_ptr, phi_q_ptr, phi_k_ptr, gate_ptr, dsummed_ptr, dphi_ptr, dgate_ptr,
    blocks, width,
    K: tl.constexpr, BK: tl.constexpr, BG: tl.constexpr,
    PRECISION: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Backwards with the gradient of S: gates, and this program's part of what φk gets."""
    first = tl.program_id(1).to(tl.int64) * blocks
    column, channel = tl.program_id(0) * BG + tl.arange(0, BG), tl.arange(0, BK)
    part = tl.program_id(0) * (tl.num_programs(1) * blocks)
    inner = tl.arange(0, 64)
    ds = tl.zeros((BK, BG), tl.float32)
    for step in range(2, blocks):
        index = blocks + 1 - step
        block = first + index
        later = index + 2 < blocks
        phi_right = _tile(phi_q_ptr, block + 2, channel, K, later)
        dsummed = _tile(dsummed_ptr, block + 2, column, width, later)
        ds += _dot(tl.trans(phi_right), dsummed.to(tl.float32), PRECISION, WIDEN)
        dgate = _dot(_tile(phi_k_ptr, block, channel, K, True), ds, PRECISION, WIDEN)
        after = index + 1 < blocks
        dsummed = _tile(dsummed_ptr, block + 1, column, width, after)
        before = _tile(before_ptr, block, inner, 64, after)
        dgate += _dot(tl.trans(before), dsummed, PRECISION, WIDEN)
        dsummed = _tile(dsummed_ptr, block, column, width, True)
        own = _tile(own_ptr, block, inner, 64, True)
        dgate += _dot(tl.trans(own), dsummed, PRECISION, WIDEN)
        _put(dgate_ptr, block, column, width, dgate)
        gate = _tile(gate_ptr, block, column, width, True).to(tl.float32)
        _put(dphi_ptr, part + block, channel, K, _dot(gate, tl.trans(ds), PRECISION, WIDEN))


@dataclass(frozen=True, slots=True)
class WangoTriton(WangoBatched):
    """The batched kernel with its wide products walked; only for a window of 64."""

    def averages(self, blocks: Blocks, scale: Tensor) -> Tensor:
        """The masses' sums of gates times `scale`, (M, C, G)."""
        layout, (_, _, phi_q, phi_k), gate, pairs = blocks
        own, before = (pair.mass.to(gate.dtype) for pair in pairs)
        mean = torch.empty_like(gate)
        _walk[_grid(layout, gate, WALK)](
            own, before, phi_q, phi_k, gate, scale, mean,
            layout.blocks, gate.shape[2], **_constants(phi_q, gate), **WALK,
        )  # fmt: skip
        return mean

    def gate_gradients(self, blocks: Blocks, dsummed: Tensor, grads: Sequence[Tensor]) -> Tensor:
        """The gates' gradients; adds to those of φq and φk what reaches them through S."""
        layout, (_, _, phi_q, phi_k), gate, pairs = blocks
        own, before = (pair.mass.to(gate.dtype) for pair in pairs)
        narrow, dgate = dsummed.to(gate.dtype), torch.empty_like(gate)
        grid, sizes = _grid(layout, gate, BACK), {**_constants(phi_q, gate), **BACK}
        parts = phi_q.new_zeros(2, grid[0], *phi_q.shape)
        _query_walk[grid](phi_k, gate, narrow, parts[0], layout.blocks, gate.shape[2], **sizes)
        _key_walk[grid](
            own, before, phi_q, phi_k, gate, narrow, parts[1], dgate,
            layout.blocks, gate.shape[2], **sizes,
        )  # fmt: skip
        for grad, part in zip(grads[2:], parts.sum(1), strict=True):
            grad.add_(part)
        return dgate


def _grid(layout: Layout, gate: Tensor, config: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(gate.shape[2], config["BG"]), layout.sequences


def _constants(phi_MCK: Tensor, gate: Tensor) -> dict[str, Any]:
    channels = phi_MCK.shape[2]
    return {
        "K": channels,
        "BK": max(16, triton.next_power_of_2(channels)),
        "PRECISION": "tf32" if gate.dtype == torch.bfloat16 else "tf32x3",
        "WIDEN": os.environ.get("TRITON_INTERPRET") == "1",
    }


assert BLOCK == 64  # the kernels' tiles
