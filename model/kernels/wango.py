"""WANGO's gate average: blocks of 64 as batched products, everything older as sums of products.

- Blocks are ordered by place, then by sequence: "the block `back` before" is the same tensor
  shifted by `back`·N blocks, without a copy; one sequence of whole blocks is not copied at all.
- A block meets the blocks that its window touches and itself, each pair with the weight of eq. 6
  (recent) or eq. 9 (older); everything before comes from S and z (eq. 10).
- S, z and all weights are in at least float32; the states of all blocks take half of the gates.
Shapes: N sequences, M blocks of all of them, C = 64 rows of a block, K channels, G gate channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tangobench.model.kernels.crossgate import Incoming, null_logits
from tangobench.model.layers import wide

BLOCK: Final = 64  # the paper's scan block


class Pairs(NamedTuple):
    """Weights of the blocks `here` with those `there`, the same number of places before each."""

    here: slice
    there: slice
    mass: Tensor  # (blocks, C, C): recent and older
    recent: Tensor  # the recent ones alone
    older_from: int | None  # pairs with column − row ≤ this are older; None where none are


class Blocks(NamedTuple):
    """Everything a pass needs, cut into blocks."""

    sequences: int
    features: tuple[Tensor, ...]  # τ·q, k, φ(√τ q), φ(√τ k)
    gate: Tensor
    pairs: list[Pairs]
    later: slice  # the blocks that read a state; `prefix` are those that it is of
    prefix: slice

    def rows(self, x_MCX: Tensor, length: int) -> Tensor:
        """(M, C, X) → (N, T, X)."""
        x = x_MCX.view(-1, self.sequences, *x_MCX.shape[1:])
        return x.transpose(0, 1).flatten(1, 2)[:, :length]

    def states(self, x_MCX: Tensor) -> Tensor:
        """Σ φ(√τ k)ᵀ x over each prefix that a later block reads."""
        return self._sums(torch.bmm(self.features[3][self.prefix].mT, wide(x_MCX[self.prefix])), 1)

    def state_gradients(self, x_MCX: Tensor) -> Tensor:
        """Σ φ(√τ q)ᵀ x over the blocks that read a prefix block's part of the state."""
        return self._sums(torch.bmm(self.features[2][self.later].mT, x_MCX[self.later]), -1)

    def _sums(self, x_MX: Tensor, direction: int) -> Tensor:
        """Running sums over places, forwards or backwards, in place on a CPU."""
        x = x_MX.view(-1, self.sequences, *x_MX.shape[1:])
        if x.device.type != "cpu":
            found = x.cumsum(0) if direction > 0 else x.flip(0).cumsum(0).flip(0)
            return found.view(x_MX.shape)
        for before, here in pairwise(range(len(x))[::direction]):
            x[here] += x[before]  # whole slices: a strided cumsum takes four times as long
        return x_MX


def cut(x_NTX: Tensor) -> Tensor:
    """(N, T, X) → (M, C, X), zero rows behind each sequence where its last block is not full."""
    if room := -x_NTX.shape[1] % BLOCK:
        x_NTX = F.pad(x_NTX, (0, 0, 0, room))
    x = x_NTX.view(len(x_NTX), -1, BLOCK, x_NTX.shape[2])
    return x.transpose(0, 1).flatten(0, 1)


@dataclass(frozen=True, slots=True)
class WangoKernel:
    """Forward and backward of eq. 5 with eq. 6 and 9; features are (τ·q, k, φ(√τ q), φ(√τ k))."""

    window: int

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        blocks = self._blocks(features, gate_NTG)
        length, phi_q = gate_NTG.shape[1], blocks.features[2]
        total = blocks.pairs[0].mass.sum(-1, keepdim=True)
        for pair in blocks.pairs[1:]:
            total[pair.here] += pair.mass.sum(-1, keepdim=True)
        total[blocks.later].baddbmm_(phi_q[blocks.later], blocks.states(torch.ones_like(total)))
        log_mass = blocks.rows(total, length)[..., 0].log()
        log_total = torch.logaddexp(log_mass, null_logits(null_bias, 0, length))
        mean_MCG = self.averages(blocks, cut(torch.exp(-log_total)[..., None]))
        mean_NTG.copy_(blocks.rows(mean_MCG, length))
        return log_total

    def backward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, incoming: Incoming, dgate_NTG: Tensor
    ) -> list[Tensor]:
        blocks = self._blocks(features, gate_NTG)
        later, prefix, length = blocks.later, blocks.prefix, gate_NTG.shape[1]
        scale_NT = torch.exp(-incoming.log_total_NT)
        dsummed = cut(incoming.dmean_NTG * scale_NT[..., None])
        dtotal = cut((incoming.mean_dot_NT * scale_NT).neg_()[..., None])
        grads = features[0].new_zeros(4, *blocks.features[0].shape).unbind()
        narrow = dsummed.to(gate_NTG.dtype)
        for pair in blocks.pairs:
            _pair_gradients(pair, blocks, (narrow, dtotal), grads)
        grads[2][later].baddbmm_(dtotal[later], blocks.states(torch.ones_like(dtotal)).mT)
        grads[3][prefix].add_(blocks.state_gradients(dtotal).mT)
        dgate_MCG = self.gate_gradients(blocks, dsummed, grads)
        dgate_NTG.copy_(blocks.rows(dgate_MCG, length))
        return [blocks.rows(grad, length) for grad in grads]

    def averages(self, blocks: Blocks, scale: Tensor) -> Tensor:
        """Sums of gates weighted by their masses, times `scale`: (M, C, G)."""
        gate, later = blocks.gate, blocks.later
        summed = wide(torch.bmm(blocks.pairs[0].mass.to(gate.dtype), gate))
        for here, there, mass, _, _ in blocks.pairs[1:]:
            _add_product(summed[here], mass.to(gate.dtype), gate[there])
        summed[later].baddbmm_(blocks.features[2][later], blocks.states(gate))
        return summed.mul_(scale)

    def gate_gradients(self, blocks: Blocks, dsummed: Tensor, grads: Sequence[Tensor]) -> Tensor:
        """The gates' gradients; adds to those of φq and φk what reaches them through S."""
        gate, later, prefix = blocks.gate, blocks.later, blocks.prefix
        narrow = dsummed.to(gate.dtype)
        dgate = wide(torch.bmm(blocks.pairs[0].mass.to(gate.dtype).mT, narrow))
        for here, there, mass, _, _ in blocks.pairs[1:]:
            _add_product(dgate[there], mass.to(gate.dtype).mT, narrow[here])
        grads[2][later].baddbmm_(dsummed[later], blocks.states(gate).mT)
        ds = blocks.state_gradients(dsummed)
        grads[3][prefix].baddbmm_(wide(gate[prefix]), ds.mT)
        dgate[prefix].baddbmm_(blocks.features[3][prefix], ds)
        return dgate

    def _blocks(self, features: Sequence[Tensor], gate_NTG: Tensor) -> Blocks:
        parts = tuple(map(cut, features))
        sequences, number = gate_NTG.shape[0], len(parts[0])
        reach = -(-self.window // BLOCK) + 1  # the blocks that a window touches, and one more
        older = min(number, reach * sequences)
        later, prefix = slice(older, None), slice(0, number - older)
        pairs = list(self._pairs(parts, sequences, reach))
        return Blocks(sequences, parts, cut(gate_NTG), pairs, later, prefix)

    def _pairs(self, parts: Sequence[Tensor], sequences: int, reach: int) -> Iterator[Pairs]:
        q, k, phi_q, phi_k = parts
        for back in range(min(reach, len(q) // sequences)):
            here, there = slice(back * sequences, None), slice(0, len(q) - back * sequences)
            older_from = back * BLOCK - self.window  # a pair is older if column − row ≤ this
            recent = torch.bmm(q[here], k[there].mT).exp_().triu_(older_from + 1)
            if back == 0:
                recent.tril_()
            if older_from + BLOCK <= 0:
                yield Pairs(here, there, recent, recent, None)
                continue
            older = torch.bmm(phi_q[here], phi_k[there].mT).tril_(older_from)
            yield Pairs(here, there, older.add_(recent), recent, older_from)


def _pair_gradients(
    pair: Pairs, blocks: Blocks, incoming: Sequence[Tensor], grads: Sequence[Tensor]
) -> None:
    """Add to `grads` what the features get through the block pairs that are equally far apart."""
    (q, k, phi_q, phi_k), (dq, dk, dphi_q, dphi_k) = blocks.features, grads
    here, there, _, recent, older_from = pair
    dsummed, dtotal = (x[here] for x in incoming)
    dmass = wide(torch.bmm(dsummed, blocks.gate[there].mT)).add_(dtotal)
    if older_from is not None:
        dolder = dmass.tril(older_from)
        dphi_q[here].baddbmm_(dolder, phi_k[there])
        dphi_k[there].baddbmm_(dolder.mT, phi_q[here])
    dlogit = dmass.mul_(recent)
    dq[here].baddbmm_(dlogit, k[there])
    dk[there].baddbmm_(dlogit.mT, q[here])


def _add_product(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target += left @ right, without a temporary where nothing is rounded."""
    if target.dtype == left.dtype:
        target.baddbmm_(left, right)
    else:
        target += torch.bmm(left, right)
