"""The average of gates: which kernel computes it, autograd around it, and the CPU's kernel.

- `strips` (a CPU's default): one head and one strip at a time. `batched`: all heads of several
  sequences in each product. `triton`: CUDA, or TRITON_INTERPRET=1; batched where it has no kernel.
  `auto` on CUDA is triton if its self-check passes, else batched, said once. The choice is the
  environment's (TANGOBENCH_KERNEL), so that child processes make the same one.
- A kernel sees N unrelated sequences: those of one head (strips), or all heads (`together`).
- Under autocast whatever enters wide products is rounded; logits, exponentials, totals and sums
  that become gradients of parameters stay in at least float32.
- Never more than one strip of weights exists, and masked blocks are skipped: a strip of queries
  meets the keys up to its last row (forward), one of keys the queries from its first row on.
- Unit-length queries and keys bound a logit by τ ≤ 20: exp needs no running maximum.
Shapes: B batch, T positions, C channels, H heads, F gated width, G = F/H, N sequences, Q rows and
J columns of a strip, K channels of a head.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from tangobench.errors import UsageError
from tangobench.model.layers import full_precision, split_heads, wide

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


# Sequences are batched inside a kernel up to this many rows of one head: short ones share products,
# long ones keep the memory of one.
ROWS_AT_ONCE: Final = 2048
WEIGHTS_AT_ONCE: Final = 1 << 28  # entries of one strip of all heads: a gigabyte in float32
DOTS_AT_ONCE: Final = {False: 1 << 19, True: 1 << 26}  # entries of a product summed at once
STRIP: Final = 512
STRIPS: Final = 12  # at most, however long the sequence
_ALIGNED: Final = 16  # bytes at which rows begin: tensor cores cannot load 3,560 bytes whole


class Incoming(NamedTuple):
    """What the backward pass of a kernel knows of the averages."""

    log_total_NT: Tensor
    mean_dot_NT: Tensor  # mean · dmean
    dmean_NTG: Tensor


class HeadKernel(Protocol):
    """The aggregation of N sequences; `null_bias` is one number, or one per sequence (N, 1)."""

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        """Write the average, return log_total: the logarithm of each row's mass, null included."""

    def backward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, incoming: Incoming, dgate_NTG: Tensor
    ) -> list[Tensor]:
        """Write the gate's gradient, return those of the features."""


class _Cut(NamedTuple):
    """The sequences and heads that a kernel is given at once."""

    rows: slice
    heads: slice

    def of(self, x_BHTX: Tensor) -> Tensor:
        """(B, H, T, …) → (N, T, …), heads varying fastest."""
        return x_BHTX[self].flatten(0, 1)

    def per_sequence(self, x_H: Tensor) -> Tensor:
        """One number per head → (N, 1)."""
        return x_H[self.heads].repeat(self.rows.stop - self.rows.start)[:, None]


def strip_of(length: int) -> int:
    """Rows of a strip of all heads, whole tiles of 64: few launches, and little of it is masked."""
    return max(STRIP, -(-length // (64 * STRIPS)) * 64)


def null_logits(null_bias: Tensor, start: int, stop: int) -> Tensor:
    """b + log n_i of rows start … stop − 1, where n_i = i + 1."""
    visible = torch.arange(start + 1, stop + 1, dtype=null_bias.dtype, device=null_bias.device)
    return null_bias + visible.log()


def average(
    kernel: HeadKernel, features: Sequence[Tensor], gate_BTF: Tensor, null_bias: Tensor | None
) -> Tensor:
    """The aggregated gates of all heads, (B, T, F); features are (B, H, T, K)."""
    null_H, together = null_of_heads(features[0], null_bias), chosen(gate_BTF) != "strips"
    result: Tensor = _Average.apply(kernel, together, gate_BTF, null_H, *features)  # type: ignore[no-untyped-call]
    return result


def null_of_heads(like: Tensor, null_bias: Tensor | None) -> Tensor:
    """The null biases; without a null gate its logit is −∞."""
    if null_bias is None:
        return like.new_full((like.shape[1],), -torch.inf)
    return null_bias.to(like.dtype)


def _cuts(features_BHTK: Tensor, together: bool) -> Iterator[_Cut]:
    batch, heads, length, _ = features_BHTK.shape
    step = max(1, ROWS_AT_ONCE // length)
    if together:
        step = max(1, WEIGHTS_AT_ONCE // (heads * length * min(length, strip_of(length))))
    width = heads if together else 1
    for head in range(0, heads, width):
        for start in range(0, batch, step):
            yield _Cut(slice(start, min(start + step, batch)), slice(head, head + width))


class _Average(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: HeadKernel,
        together: bool,
        gate_BTF: Tensor,
        null_H: Tensor,
        *features: Tensor,
    ) -> Tensor:
        mean_BTF = torch.empty_like(gate_BTF)
        gate_BHTG, mean_BHTG = (split_heads(x, len(null_H)) for x in (gate_BTF, mean_BTF))
        log_total_BHT = features[0].new_empty(features[0].shape[:3])
        with full_precision(gate_BTF):
            for cut in _cuts(features[0], together):
                gate = _gates(gate_BHTG[cut], together)
                mean = torch.empty_like(gate) if together else mean_BHTG[cut].squeeze(1)
                null = cut.per_sequence(null_H)
                log_total = kernel.forward([cut.of(f) for f in features], gate, null, mean)
                _put(log_total_BHT[cut], log_total)
                if together:  # one head's averages are written where they belong
                    _put(mean_BHTG[cut], mean)
        ctx.kernel, ctx.together = kernel, together
        ctx.save_for_backward(gate_BTF, mean_BTF, null_H, log_total_BHT, *features)
        return mean_BTF

    @staticmethod
    def backward(ctx: Any, dmean_BTF: Tensor) -> tuple[Tensor | None, ...]:
        gate_BTF, mean_BTF, null_H, log_total_BHT, *features = ctx.saved_tensors
        dnull_H, heads, together = torch.zeros_like(null_H), len(null_H), ctx.together
        gates, means, dmeans = (split_heads(x, heads) for x in (gate_BTF, mean_BTF, dmean_BTF))
        inputs = (gate_BTF, *features)
        found = [] if together else [torch.empty_like(x) for x in inputs]
        with full_precision(gate_BTF):
            for cut in _cuts(features[0], together):
                log_total = cut.of(log_total_BHT).contiguous()
                dots = _row_dots(means[cut], dmeans[cut], DOTS_AT_ONCE[together]).flatten(0, 1)
                dnull_NT = _null_gradients(cut.per_sequence(null_H), log_total, dots)
                dnull_H[cut.heads] += dnull_NT.sum(1).view(means[cut].shape[:2]).sum(0)
                gate, dmean = (_gates(x[cut], together) for x in (gates, dmeans))
                dgate = torch.empty_like(gate)
                if not together:
                    dgate = split_heads(found[0], heads)[cut].squeeze(1)
                incoming = Incoming(log_total, dots, dmean)
                grads = ctx.kernel.backward([cut.of(f) for f in features], gate, incoming, dgate)
                # Made only now: while all heads are at work, memory is at its peak.
                found = found or [torch.empty_like(x) for x in inputs]
                if together:
                    _put(split_heads(found[0], heads)[cut], dgate)
                for target, grad in zip(found[1:], grads, strict=True):
                    _put(target[cut], grad)
        return (None, None, found[0], dnull_H, *found[1:])


def _gates(x_BHTG: Tensor, aligned: bool) -> Tensor:
    """(N, T, columns), zeros behind so that rows begin aligned: 1,780 of bfloat16 become 1,792."""
    columns = x_BHTG.shape[3]
    if aligned and columns * x_BHTG.element_size() % _ALIGNED:
        x_BHTG = F.pad(x_BHTG, (0, -columns % (64 if columns > 256 else 8)))
    return x_BHTG.flatten(0, 1)


def _put(target: Tensor, found: Tensor) -> None:
    """Write (N, T, …) to (B, H, T, …), without padding."""
    found = found.unflatten(0, target.shape[:2])
    target.copy_(found[..., : target.shape[-1]])


def _null_gradients(null_bias: Tensor, log_total_NT: Tensor, mean_dot_NT: Tensor) -> Tensor:
    """The null gate's value is zero, so ∂loss/∂b = −Σ (its weight) · (mean · dmean)."""
    weight = torch.exp(null_logits(null_bias, 0, log_total_NT.shape[1]) - log_total_NT)
    return weight.mul_(mean_dot_NT).neg_()


def _row_dots(mean: Tensor, dmean: Tensor, most: int) -> Tensor:
    """mean · dmean of each row (…, T), which is also Σ weight · dweight over its sources."""
    step = max(1, most // mean[..., 0, :].numel())
    parts = zip(mean.split(step, -2), dmean.split(step, -2), strict=True)
    return torch.cat([(wide(m) * d).sum(-1) for m, d in parts], -1)


LONGEST_STRIP: Final = 256  # products of fewer rows run below the GEMM rate
SHORTEST_STRIP: Final = 64
SHORT: Final = 256  # half of 256 columns is what WANGO's blocks compute per row: 64 + 64 and S


@dataclass(frozen=True, slots=True)
class TangoKernel:
    """Forward and backward of eq. 5 with the weights of eq. 6; features are (τ·q, k).

    With a window it is WANGO's: pairs at least `window` apart have eq. 9's weights, of the features
    φ(√τ q) and φ(√τ k) that follow. Quadratic in T, but without padding or states.
    """

    strip: int | None = None  # queries at a time; None: by length, and by whose heads there are
    window: int | None = None

    def forward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, null_bias: Tensor, mean_NTG: Tensor
    ) -> Tensor:
        length = gate_NTG.shape[1]
        log_total_NT = features[0].new_empty(gate_NTG.shape[:2])
        null_T = null_logits(null_bias, 0, length)
        for rows in self._strips(features[0]):
            cols, log_total = slice(0, rows.stop), log_total_NT[:, rows]
            mass_NQJ = self.masses(features, rows, cols)
            torch.logaddexp(mass_NQJ.sum(-1).log_(), null_T[..., rows], out=log_total)
            weight = mass_NQJ.mul_(torch.exp(-log_total)[..., None]).to(gate_NTG.dtype)
            torch.bmm(weight, gate_NTG[:, cols], out=mean_NTG[:, rows])
        return log_total_NT

    def backward(
        self, features: Sequence[Tensor], gate_NTG: Tensor, incoming: Incoming, dgate_NTG: Tensor
    ) -> list[Tensor]:
        """By strips of keys, so that the wide products are whole sums: adding parts to T × G
        gradients runs at four fifths of the rate."""
        q_NTK, k_NTK = features[:2]
        log_total_NT, mean_dot_NT, dmean_NTG = incoming
        scale_NT1, length = torch.exp(-log_total_NT)[..., None], gate_NTG.shape[1]
        grads = [torch.zeros_like(f) for f in features]
        for cols in self._strips(features[0]):
            rows = slice(cols.start, length)
            dmean, scale = dmean_NTG[:, rows], scale_NT1[:, rows]
            weight = self.masses(features, rows, cols).mul_(scale)
            torch.bmm(weight.to(gate_NTG.dtype).mT, dmean, out=dgate_NTG[:, cols])
            dweight = torch.bmm(dmean, gate_NTG[:, cols].mT).to(weight.dtype)
            dweight.sub_(mean_dot_NT[:, rows, None])
            if self.window is not None:  # older pairs: their gradients go to φ, not to the logits
                later, corner = slice(cols.start + self.window, None), dweight[:, self.window :]
                dolder = corner.tril().mul_(scale[:, self.window :])
                grads[2][:, later].baddbmm_(dolder, features[3][:, cols])
                torch.bmm(dolder.mT, features[2][:, later], out=grads[3][:, cols])
                corner.triu_(1)
            dlogit = dweight.mul_(weight)
            torch.bmm(dlogit.mT, q_NTK[:, rows], out=grads[1][:, cols])
            grads[0][:, rows].baddbmm_(dlogit, k_NTK[:, cols])
        return grads

    def masses(self, features: Sequence[Tensor], rows: slice, cols: slice) -> Tensor:
        """Weights before division of a strip that begins or ends at the diagonal; zero above it."""
        mass_NQJ = torch.bmm(features[0][:, rows], features[1][:, cols].mT).exp_()
        mass_NQJ[:, : cols.stop - rows.start, rows.start - cols.start :].tril_()
        if self.window is None:
            return mass_NQJ
        first = max(rows.start, cols.start + self.window)
        last = min(cols.stop, rows.stop - self.window)
        if first < rows.stop and cols.start < last:
            phi_q, phi_k = features[2][:, first : rows.stop], features[3][:, cols.start : last]
            older = torch.bmm(phi_q, phi_k.mT)
            corner = mass_NQJ[:, first - rows.start :, : older.shape[2]]
            apart = first - cols.start - self.window  # on this diagonal and left of it
            corner.triu_(apart + 1).add_(older.tril_(apart))
        return mass_NQJ

    def _strips(self, q_NTK: Tensor) -> Iterator[slice]:
        """An eighth of a short sequence, so that the skipped half is not lost to the diagonal."""
        length = q_NTK.shape[1]
        strip = min(LONGEST_STRIP, -(-length // max(1, min(8, length // SHORTEST_STRIP))))
        strip = self.strip or (strip if chosen(q_NTK) == "strips" else strip_of(length))
        for start in range(0, length, strip):
            yield slice(start, min(start + strip, length))
