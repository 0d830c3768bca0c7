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

from tangobench.model.kernels.wango import BLOCK, Blocks, WangoKernel

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
    """Averages of every block; `before` begins at the second block of a sequence."""
    n, sequences = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    column, channel = tl.program_id(0) * BG + tl.arange(0, BG), tl.arange(0, BK)
    inner = tl.arange(0, 64)
    s = tl.zeros((BK, BG), tl.float32)
    for index in range(0, blocks):
        block = index * sequences + n
        left = block - 2 * sequences
        phi_left = _tile(phi_k_ptr, left, channel, K, index > 1)
        gate = _tile(gate_ptr, left, column, width, index > 1)
        s += _dot(tl.trans(phi_left), gate.to(tl.float32), PRECISION, WIDEN)
        summed = _dot(_tile(phi_q_ptr, block, channel, K, True), s, PRECISION, WIDEN)
        left = block - sequences
        gate = _tile(gate_ptr, left, column, width, index > 0)
        summed += _dot(_tile(before_ptr, left, inner, 64, index > 0), gate, PRECISION, WIDEN)
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
    n, sequences = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    column, channel = tl.program_id(0) * BG + tl.arange(0, BG), tl.arange(0, BK)
    part = tl.program_id(0) * (sequences * blocks)
    s = tl.zeros((BK, BG), tl.float32)
    for index in range(2, blocks):
        block = index * sequences + n
        phi_left = _tile(phi_k_ptr, block - 2 * sequences, channel, K, True)
        gate = _tile(gate_ptr, block - 2 * sequences, column, width, True)
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
    n, sequences = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    column, channel = tl.program_id(0) * BG + tl.arange(0, BG), tl.arange(0, BK)
    part = tl.program_id(0) * (sequences * blocks)
    inner = tl.arange(0, 64)
    ds = tl.zeros((BK, BG), tl.float32)
    for step in range(0, blocks):
        index = blocks - 1 - step
        block = index * sequences + n
        right = block + 2 * sequences
        phi_right = _tile(phi_q_ptr, right, channel, K, step > 1)
        dsummed = _tile(dsummed_ptr, right, column, width, step > 1)
        ds += _dot(tl.trans(phi_right), dsummed.to(tl.float32), PRECISION, WIDEN)
        dgate = _dot(_tile(phi_k_ptr, block, channel, K, True), ds, PRECISION, WIDEN)
        dsummed = _tile(dsummed_ptr, block + sequences, column, width, step > 0)
        before = _tile(before_ptr, block, inner, 64, step > 0)
        dgate += _dot(tl.trans(before), dsummed, PRECISION, WIDEN)
        dsummed = _tile(dsummed_ptr, block, column, width, True)
        own = _tile(own_ptr, block, inner, 64, True)
        dgate += _dot(tl.trans(own), dsummed, PRECISION, WIDEN)
        _put(dgate_ptr, block, column, width, dgate)
        gate = _tile(gate_ptr, block, column, width, True).to(tl.float32)
        _put(dphi_ptr, part + block, channel, K, _dot(gate, tl.trans(ds), PRECISION, WIDEN))


@dataclass(frozen=True, slots=True)
class WangoTriton(WangoKernel):
    """The batched kernel with its wide products walked; only for a window of 64."""

    def averages(self, blocks: Blocks, scale: Tensor) -> Tensor:
        mean = torch.empty_like(blocks.gate)
        _, _, phi_q, phi_k = blocks.features
        grid, sizes = _launch(blocks, WALK)
        _walk[grid](*_weights(blocks), phi_q, phi_k, blocks.gate, scale, mean, **sizes)
        return mean

    def gate_gradients(self, blocks: Blocks, dsummed: Tensor, grads: Sequence[Tensor]) -> Tensor:
        _, _, phi_q, phi_k = blocks.features
        gate, narrow = blocks.gate, dsummed.to(blocks.gate.dtype)
        dgate = torch.empty_like(gate)
        grid, sizes = _launch(blocks, BACK)
        parts = phi_q.new_zeros(2, grid[0], *phi_q.shape)
        _query_walk[grid](phi_k, gate, narrow, parts[0], **sizes)
        _key_walk[grid](*_weights(blocks), phi_q, phi_k, gate, narrow, parts[1], dgate, **sizes)
        for grad, part in zip(grads[2:], parts.sum(1), strict=True):
            grad.add_(part)
        return dgate


def _weights(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Of each block with itself and with the one before; a single block has none before."""
    own, before = (blocks.pairs[i].mass.to(blocks.gate.dtype) for i in (0, -1))
    return own, before


def _launch(blocks: Blocks, config: dict[str, int]) -> tuple[tuple[int, int], dict[str, Any]]:
    (number, _, width), channels = blocks.gate.shape, blocks.features[2].shape[2]
    sizes = {
        "blocks": number // blocks.sequences,
        "width": width,
        "K": channels,
        "BK": max(16, triton.next_power_of_2(channels)),
        "PRECISION": "tf32" if blocks.gate.dtype == torch.bfloat16 else "tf32x3",
        "WIDEN": os.environ.get("TRITON_INTERPRET") == "1",
    }
    return (triton.cdiv(width, config["BG"]), blocks.sequences), sizes | config


assert BLOCK == 64  # the kernels' tiles
