"""WANGO's gate average for one head: a blockwise scan with a carried state, linear in T.

- Rows are handled in groups of 16 blocks of 64; only one state (S: K × G, z: K) is carried.
- A block sees a strip of keys: the blocks that its window touches and itself, each pair with the
  weight of eq. 6 (recent) or eq. 9 (older); everything before comes from S and z (eq. 10).
Shapes: N sequences, n blocks of a group, C rows of a block, J columns of a strip, K, G channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tangobench.model.kernels.crossgate import Incoming, null_logits
from tangobench.model.kernels.strips import SHORT, ShortWangoKernel
from tangobench.model.layers import wide

BLOCK: Final = 64  # the paper's scan block
GROUP: Final = 16  # blocks in flight: enough for batched products, few enough for the cache


class _Group(NamedTuple):
    """One group of blocks, zero-padded; keys and gates begin `reach` rows before the queries."""

    start: int
    stop: int
    q: Tensor  # (N, n, C, K)
    phi_q: Tensor  # (N, n, C, K)
    k: Tensor  # (N, reach + n·C, K)
    phi_k: Tensor  # (N, reach + n·C, K)
    gate: Tensor  # (N, reach + n·C, G)
    recent: Tensor  # (n, C, J) bool: pairs inside the window
    older: Tensor  # (C, J) bool: pairs of the strip before the window


class _State(NamedTuple):
    """S and z of eq. 10, or their gradients."""

    s: Tensor  # (N, K, G)
    z: Tensor  # (N, K)


@dataclass(frozen=True, slots=True)
class WangoKernel:
    """Forward and backward of eq. 5 with eq. 6 and 9; features are (τ·q, k, φ(√τ q), φ(√τ k))."""

    window: int
    group: int = GROUP
    short: int = SHORT  # positions up to which strips are less work than the scan

    @property
    def reach(self) -> int:
        """The window rounded up to whole blocks: how far before a block its strip begins."""
        return -(-self.window // BLOCK) * BLOCK

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        """Write the average into `mean_NTG`; give the logarithm of each row's total mass."""
        if gate_NTG.shape[1] <= self.short:
            strips = ShortWangoKernel(window=self.window)
            return strips.forward(features, gate_NTG, null_bias, mean_NTG)
        log_total_NT = features[0].new_empty(gate_NTG.shape[:2])
        state = _empty_state(features[3], gate_NTG)
        for start in self._starts(gate_NTG):
            group = self._load(features, gate_NTG, start)
            rows = slice(group.start, group.stop)
            recent, older = _masses(group)
            prefix, state = _scan(group, state)
            mass = recent + older
            total = _rows(mass.sum(-1) + (group.phi_q @ prefix.z[..., None])[..., 0], group)
            log_total = torch.logaddexp(total.log(), null_logits(null_bias, start, group.stop))
            summed = wide(mass.to(gate_NTG.dtype) @ _strips(group.gate, group.q.shape[1]))
            summed += group.phi_q @ prefix.s
            scale = torch.exp(-log_total)[..., None]
            torch.mul(_rows(summed, group), scale, out=mean_NTG[:, rows])
            log_total_NT[:, rows] = log_total
        return log_total_NT

    def backward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, incoming: Incoming, dgate_NTG: Tensor
    ) -> list[Tensor]:
        """Write the gate's gradient into `dgate_NTG`; give those of the features."""
        if gate_NTG.shape[1] <= self.short:
            strips = ShortWangoKernel(window=self.window)
            return strips.backward(features, gate_NTG, incoming, dgate_NTG)
        grads = [*(torch.zeros_like(f) for f in features), dgate_NTG.zero_()]
        dstate = _empty_state(features[3], gate_NTG)
        scale_NT = torch.exp(-incoming.log_total_NT)
        for start, state in reversed(self._carried_states(features, gate_NTG)):
            group = self._load(features, gate_NTG, start)
            rows = slice(group.start, group.stop)
            dsummed = _blocks(incoming.dmean_NTG[:, rows] * scale_NT[:, rows, None], group)
            dtotal = _blocks(-(incoming.mean_dot_NT * scale_NT)[:, rows, None], group)
            key_grads = (grads[1], grads[3], grads[4])
            targets = [self._target(grad, group) for grad in key_grads]
            query_grads, dstate = _group_backward(
                group, (state, dstate), (dsummed, dtotal), targets
            )
            for grad, part in zip((grads[0], grads[2]), query_grads, strict=True):
                grad[:, rows] = _rows(part, group)
            low = max(0, start - self.reach)
            skip = low - (start - self.reach)
            for grad, part in zip(key_grads, targets, strict=True):
                if part.untyped_storage().data_ptr() != grad.untyped_storage().data_ptr():
                    grad[:, low : group.stop] += part[:, skip : skip + group.stop - low]
        return grads[:4]

    def _starts(self, gate_NTG: Tensor) -> range:
        return range(0, gate_NTG.shape[1], self.group * BLOCK)

    def _carried_states(
        self, features: Sequence[Tensor], gate_NTG: Tensor
    ) -> list[tuple[int, _State]]:
        """(start, state on entry) of each group: T/1,024 states, a thirty-second of the gates."""
        state = _empty_state(features[3], gate_NTG)
        states = []
        for start in self._starts(gate_NTG):
            states.append((start, state))
            group = self._load(features, gate_NTG, start)
            state = _scan(group, state)[1]
        return states

    def _target(self, grad_NTX: Tensor, group: _Group) -> Tensor:
        """Where a group adds its padded gradients: in place, or zeros where rows are outside."""
        rows = group.k.shape[1]
        low = group.start - self.reach
        if low >= 0 and low + rows <= grad_NTX.shape[1] and grad_NTX.dtype == group.k.dtype:
            return grad_NTX[:, low : low + rows]
        return group.k.new_zeros(grad_NTX.shape[0], rows, grad_NTX.shape[2])

    def _load(self, features: Sequence[Tensor], gate_NTG: Tensor, start: int) -> _Group:
        length = gate_NTG.shape[1]
        blocks = min(self.group, -(-(length - start) // BLOCK))
        q, k, phi_q, phi_k = features
        row = torch.arange(BLOCK, device=q.device)[:, None] + self.reach
        column = torch.arange(self.reach + BLOCK, device=q.device)
        first = start - self.reach + BLOCK * torch.arange(blocks, device=q.device)
        inside = (row - column < self.window) & (row >= column)
        exists = first[:, None, None] + column >= 0  # zero rows before the sequence have no mass
        return _Group(
            start=start,
            stop=min(length, start + blocks * BLOCK),
            q=_padded(q, start, 0, blocks).unflatten(1, (blocks, BLOCK)),
            phi_q=_padded(phi_q, start, 0, blocks).unflatten(1, (blocks, BLOCK)),
            k=_padded(k, start, self.reach, blocks),
            phi_k=_padded(phi_k, start, self.reach, blocks),
            gate=_padded(gate_NTG, start, self.reach, blocks),
            recent=inside & exists,
            older=row - column >= self.window,
        )


def _padded(x_NTX: Tensor, start: int, reach: int, blocks: int) -> Tensor:
    """Rows start − reach … start + 64·blocks − 1 of `x`; rows outside the sequence are zero.

    A view where no row is outside, which is the case for all groups but the first and last.
    """
    sequences, length, channels = x_NTX.shape
    low, high = max(0, start - reach), min(length, start + blocks * BLOCK)
    if high - low == reach + blocks * BLOCK:
        return x_NTX[:, low:high]
    out = x_NTX.new_zeros(sequences, reach + blocks * BLOCK, channels)
    out[:, low - start + reach : high - start + reach] = x_NTX[:, low:high]
    return out


def _strips(padded: Tensor, blocks: int) -> Tensor:
    """Overlapping (N, n, J, X) view: block c meets rows 64·c … 64·c + J − 1."""
    return padded.unfold(1, padded.shape[1] - (blocks - 1) * BLOCK, BLOCK).mT


def _blocks(x_NTX: Tensor, group: _Group) -> Tensor:
    blocks = group.q.shape[1]
    return _padded(x_NTX, 0, 0, blocks).view(x_NTX.shape[0], blocks, BLOCK, -1)


def _rows(x: Tensor, group: _Group) -> Tensor:
    """(N, n, C, …) → the group's real rows."""
    return x.flatten(1, 2)[:, : group.stop - group.start]


def _empty_state(phi_k: Tensor, gate: Tensor) -> _State:
    sequences, _, channels = phi_k.shape
    return _State(
        phi_k.new_zeros(sequences, channels, gate.shape[2]), phi_k.new_zeros(sequences, channels)
    )


def _masses(group: _Group) -> tuple[Tensor, Tensor]:
    """Weights of the recent (eq. 6) and of the older pairs (eq. 9) of each strip."""
    blocks = group.q.shape[1]
    recent = (group.q @ _strips(group.k, blocks).mT).exp_().mul_(group.recent)
    older = (group.phi_q @ _strips(group.phi_k, blocks).mT).mul_(group.older)
    return recent, older


def _own_blocks(padded: Tensor, group: _Group) -> Tensor:
    """The rows that enter the state during this group: the first n·64 of a padded tensor."""
    blocks = group.q.shape[1]
    return padded[:, : blocks * BLOCK].view(padded.shape[0], blocks, BLOCK, -1)


def _scan(group: _Group, state: _State) -> tuple[_State, _State]:
    """States before each block's strip, (N, n, K, G) and (N, n, K), and the next group's state."""
    phi_k = _own_blocks(group.phi_k, group)
    s, s_next = _running(phi_k.mT @ wide(_own_blocks(group.gate, group)), state.s, 1)
    z, z_next = _running(phi_k.sum(-2), state.z, 1)
    return _State(s, z), _State(s_next, z_next)


def _running(increments: Tensor, carry: Tensor, direction: int) -> tuple[Tensor, Tensor]:
    """Exclusive sums over the blocks, forwards (1) or backwards (−1), and the total.

    Block by block: whole K × G slices are contiguous, which a strided cumsum is not.
    """
    sums = torch.empty_like(increments)
    for c in range(increments.shape[1])[::direction]:
        sums[:, c] = carry
        carry = carry + increments[:, c]
    return sums, carry


def _group_backward(
    group: _Group,
    states: tuple[_State, _State],
    incoming: tuple[Tensor, Tensor],
    targets: Sequence[Tensor],
) -> tuple[tuple[Tensor, Tensor], _State]:
    """Gradients of (q, φq) by block and of the entering state; adds those of (k, φk, gate).

    `states` are the entering state and the gradient of the leaving one, `incoming` are those of the
    unnormalised sums and of the total mass, `targets` are padded gradients of k, φk and gate.
    """
    (state, dstate), (dsummed, dtotal), (dk, dphi_k, dgate) = states, incoming, targets
    blocks = group.q.shape[1]
    recent, older = _masses(group)
    prefix, _ = _scan(group, state)
    dmass = wide(dsummed.to(group.gate.dtype) @ _strips(group.gate, blocks).mT)
    dphi_q = dsummed @ prefix.s.mT
    dmass += dtotal
    drecent, dolder = dmass * recent, dmass * group.older
    dq = drecent @ _strips(group.k, blocks)
    dphi_q += dolder @ _strips(group.phi_k, blocks) + dtotal * prefix.z[..., None, :]
    _add_strips(dk, drecent, group.q)
    _add_strips(dphi_k, dolder, group.phi_q)
    _add_strips(dgate, recent.add_(older), dsummed)
    ds, s_carry = _running(group.phi_q.mT @ dsummed, dstate.s, -1)
    dz, z_carry = _running((group.phi_q * dtotal).sum(-2), dstate.z, -1)
    _own_blocks(dphi_k, group).add_(dz[:, :, None])
    _add_products(_own_blocks(dphi_k, group), wide(_own_blocks(group.gate, group)), ds.mT)
    _add_products(_own_blocks(dgate, group), _own_blocks(group.phi_k, group), ds)
    return (dq, dphi_q), _State(s_carry, z_carry)


def _add_strips(target: Tensor, weights: Tensor, rows: Tensor) -> None:
    """target[strip of c] += weights_cᵀ rows_c; strips overlap, their whole blocks do not."""
    sequences, blocks = rows.shape[:2]
    for first in range(0, weights.shape[-1], BLOCK):
        part = target[:, first : first + blocks * BLOCK].view(sequences, blocks, BLOCK, -1)
        _add_products(part, weights[..., first : first + BLOCK].mT, rows)


def _add_products(target: Tensor, left: Tensor, right: Tensor) -> None:
    """target += left @ right, without a temporary of the target's size."""
    for out, a, b in zip(target, left, right, strict=True):
        out.baddbmm_(a, b)
