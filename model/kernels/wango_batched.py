"""WANGO's gate average for all heads at once: blocks of 64 as batched products, sums by cumsum.

- Sequences are cut into blocks and laid out one after the other, each behind `lead` blocks of
  zeros: "the block `back` before" is the same tensor shifted by `back` blocks, without a copy.
- S, z and all weights are in at least float32. All of a sequence's states exist at once (half the
  gates in float32): for devices with room; `wango_scan` carries a single state.
Shapes: N sequences, M blocks of all of them, C = 64 rows of a block, K channels, G gate channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tangobench.model.kernels.crossgate import Incoming, null_logits
from tangobench.model.kernels.wango_scan import BLOCK
from tangobench.model.layers import wide


class Layout(NamedTuple):
    """How (N, T, X) and (M, C, X) correspond."""

    sequences: int
    length: int
    lead: int  # blocks of zeros before each sequence

    @property
    def blocks(self) -> int:
        """Blocks of one sequence, the leading ones included."""
        return self.lead - (-self.length // BLOCK)

    def cut(self, x_NTX: Tensor) -> Tensor:
        """Pad each sequence with zero rows at both ends and reshape it into blocks."""
        room = (0, 0, self.lead * BLOCK, -self.length % BLOCK)
        return F.pad(x_NTX, room).view(-1, BLOCK, x_NTX.shape[2])

    def sequence(self, x_MX: Tensor) -> Tensor:
        """(M, …) → (N, blocks of a sequence, …)."""
        return x_MX.view(self.sequences, self.blocks, *x_MX.shape[1:])

    def rows(self, x_MCX: Tensor) -> Tensor:
        """The real rows of blocks."""
        rows_NTX = x_MCX.view(self.sequences, self.blocks * BLOCK, -1)
        return rows_NTX[:, self.lead * BLOCK :][:, : self.length]

    def sums(self, x_MX: Tensor, *, backwards: bool = False) -> Tensor:
        """Sums over the blocks of a sequence up to each, or from each on, itself included."""
        x = x_MX.view(self.sequences, self.blocks, -1)
        found = x.flip(1).cumsum(1).flip(1) if backwards else x.cumsum(1)
        return found.view(x_MX.shape)


class Pairs(NamedTuple):
    """Weights of the blocks `here` with those `there`, the same number of blocks before each."""

    here: slice
    there: slice
    mass: Tensor  # (blocks, C, C): recent and older
    recent: Tensor  # the recent ones alone
    older_from: int | None  # pairs with column − row ≤ this are older; None where none are


class Blocks(NamedTuple):
    """Everything a pass needs, cut into blocks."""

    layout: Layout
    features: tuple[Tensor, ...]  # τ·q, k, φ(√τ q), φ(√τ k)
    gate: Tensor
    pairs: list[Pairs]


@dataclass(frozen=True, slots=True)
class WangoBatched:
    """Forward and backward of eq. 5 with eq. 6 and 9; features are (τ·q, k, φ(√τ q), φ(√τ k))."""

    window: int

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        """Write the average into `mean_NTG`; give the logarithm of each row's total mass."""
        blocks = self._blocks(features, gate_NTG)
        layout, (_, _, phi_q, phi_k), gate, pairs = blocks
        total, lead = phi_q.new_zeros(*gate.shape[:2], 1), layout.lead
        for here, _, mass, _, _ in pairs:
            total[here] += mass.sum(-1, keepdim=True)
        total[lead:].baddbmm_(phi_q[lead:], _older_masses(layout, phi_k)[:-lead])
        log_mass = layout.rows(total)[..., 0].log()
        log_total = torch.logaddexp(log_mass, null_logits(null_bias, 0, layout.length))
        scale = layout.cut(torch.exp(-log_total)[..., None])
        mean_NTG.copy_(layout.rows(self.averages(blocks, scale)))
        return log_total

    def backward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, incoming: Incoming, dgate_NTG: Tensor
    ) -> list[Tensor]:
        """Write the gate's gradient into `dgate_NTG`; give those of the features."""
        blocks = self._blocks(features, gate_NTG)
        layout, (_, _, phi_q, phi_k), gate, pairs = blocks
        lead, scale_NT = layout.lead, torch.exp(-incoming.log_total_NT)
        dsummed = layout.cut(incoming.dmean_NTG * scale_NT[..., None])
        dtotal = layout.cut((incoming.mean_dot_NT * scale_NT).neg_()[..., None])
        grads = phi_q.new_zeros(len(features), *phi_q.shape).unbind()
        for pair in pairs:
            _pair_gradients(pair, blocks.features, gate, (dsummed, dtotal), grads)
        grads[2][lead:].baddbmm_(dtotal[lead:], _older_masses(layout, phi_k)[:-lead].mT)
        dz = layout.sums(torch.bmm(dtotal.mT, phi_q), backwards=True)
        layout.sequence(dz)[:, :lead] = 0  # a sequence's last blocks enter no state
        grads[3][:-lead].add_(dz[lead:])
        dgate_NTG.copy_(layout.rows(self.gate_gradients(blocks, dsummed, grads)))
        return [layout.rows(grad) for grad in grads]

    def averages(self, blocks: Blocks, scale: Tensor) -> Tensor:
        """The masses' sums of gates times `scale`, (M, C, G)."""
        layout, (_, _, phi_q, phi_k), gate, pairs = blocks
        summed, lead = torch.zeros_like(gate, dtype=scale.dtype), layout.lead
        for here, there, mass, _, _ in pairs:
            summed[here] += torch.bmm(mass.to(gate.dtype), gate[there])
        s = layout.sums(torch.bmm(phi_k.mT, wide(gate)))
        summed[lead:].baddbmm_(phi_q[lead:], s[:-lead])
        return summed.mul_(scale)

    def gate_gradients(self, blocks: Blocks, dsummed: Tensor, grads: Sequence[Tensor]) -> Tensor:
        """The gates' gradients; adds to those of φq and φk what reaches them through S."""
        layout, (_, _, phi_q, phi_k), gate, pairs = blocks
        dgate, lead = torch.zeros_like(dsummed), layout.lead
        narrow = dsummed.to(gate.dtype)
        for here, there, mass, _, _ in pairs:
            dgate[there] += torch.bmm(mass.to(gate.dtype).mT, narrow[here])
        s = layout.sums(torch.bmm(phi_k.mT, wide(gate)))
        grads[2][lead:].baddbmm_(dsummed[lead:], s[:-lead].mT)
        ds = layout.sums(torch.bmm(phi_q.mT, dsummed), backwards=True)
        layout.sequence(ds)[:, :lead] = 0
        grads[3][:-lead].baddbmm_(wide(gate[:-lead]), ds[lead:].mT)
        dgate[:-lead].baddbmm_(phi_k[:-lead], ds[lead:])
        return dgate

    def _blocks(self, features: Sequence[Tensor], gate_NTG: Tensor) -> Blocks:
        lead = -(-self.window // BLOCK) + 1  # the blocks that a window touches, and one more
        layout = Layout(gate_NTG.shape[0], gate_NTG.shape[1], lead)
        cut = layout.cut(torch.stack(tuple(features)).flatten(0, 1))  # all in one go
        parts = cut.view(len(features), -1, *cut.shape[1:]).unbind()
        return Blocks(layout, parts, layout.cut(gate_NTG), list(self._pairs(layout, parts)))

    def _pairs(self, layout: Layout, features: Sequence[Tensor]) -> Iterator[Pairs]:
        q, k, phi_q, phi_k = features
        for back in range(layout.lead):
            here, there = slice(back, None), slice(0, len(q) - back)
            older_from = back * BLOCK - self.window  # a pair is older if column − row ≤ this
            recent = q.new_empty(len(q), BLOCK, BLOCK)
            torch.bmm(q[here], k[there].mT, out=recent[here]).exp_().triu_(older_from + 1)
            if back == 0:
                recent.tril_()
            else:  # rows before a sequence have no mass, though their logits are zero
                layout.sequence(recent)[:, : layout.lead + back] = 0
            if older_from + BLOCK <= 0:
                yield Pairs(here, there, recent[here], recent[here], None)
                continue
            older = torch.bmm(phi_q[here], phi_k[there].mT).tril_(older_from)
            yield Pairs(here, there, older.add_(recent[here]), recent[here], older_from)


def _older_masses(layout: Layout, phi_k: Tensor) -> Tensor:
    """z (M, K, 1), each block's own rows included; a block reads it `lead` blocks later."""
    return layout.sums(phi_k.sum(1))[..., None]


def _pair_gradients(
    pairs: Pairs,
    features: Sequence[Tensor],
    gate: Tensor,
    incoming: tuple[Tensor, Tensor],
    grads: Sequence[Tensor],
) -> None:
    """Add the gradients that features get through one diagonal of block pairs."""
    q, k, phi_q, phi_k = features
    dq, dk, dphi_q, dphi_k = grads
    here, there, _, recent, older_from = pairs
    dsummed, dtotal = (x[here] for x in incoming)
    dmass = wide(torch.bmm(dsummed.to(gate.dtype), gate[there].mT)).add_(dtotal)
    if older_from is not None:
        dolder = dmass.tril(older_from)
        dphi_q[here].baddbmm_(dolder, phi_k[there])
        dphi_k[there].baddbmm_(dolder.mT, phi_q[here])
    dlogit = dmass.mul_(recent)
    dq[here].baddbmm_(dlogit, k[there])
    dk[there].baddbmm_(dlogit.mT, q[here])
