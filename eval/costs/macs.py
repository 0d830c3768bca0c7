"""Operations and kept activations of the published models, counted from the products they perform.

- `traced` runs the dense, unskipped path on `meta` tensors and adds up its matrix products: they
  agree with `formula` (model/config.py) term by term. The causal half that the fast paths skip is
  computed and masked here, and so are the first block's empty states of WANGO and FLASH.
- The dense mixers have the signature and labels of naive.py's; T must be a multiple of the block.

Shapes: B batch, H heads, n blocks, C rows of a block, K channels of a head, G gate channels.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tangobench.errors import UsageError
from tangobench.model import build, counting, layers, naive
from tangobench.model.config import ModelConfig
from tangobench.model.language import LanguageModel
from tangobench.model.naive import Mixer, Params, term

BLOCK: Final = 64


def wango(config: ModelConfig, p: Params, q: Tensor, k: Tensor, gate: Tensor) -> Tensor:
    """Blocks of 64: two blocks of recent pairs, one of older pairs, and the scanned states."""
    if config.window != BLOCK:
        why = f"the dense path has blocks of {BLOCK}, the window is {config.window}"
        fix = f"count operations with a window of {BLOCK}"
        raise UsageError(why, kind="bad-model-config", fix=fix)
    tau = layers.log_tau_H11(p.get("theta"), q).exp()
    phi_q, phi_k = (_blocks(layers.phi(tau.sqrt() * u), BLOCK) for u in (q, k))
    q, k, gate = (_blocks(u, BLOCK) for u in (tau * q, k, gate))
    distance = torch.arange(BLOCK)[:, None] + BLOCK - torch.arange(2 * BLOCK)
    inside = (distance >= 0) & (distance < BLOCK)
    exists = torch.ones(k.shape[2], 1, 2 * BLOCK, dtype=torch.bool)
    exists[0, :, :BLOCK] = False
    recent_mask = (inside & exists).to(q.device)
    older_mask = (distance[:, :BLOCK] >= BLOCK).to(q.device)
    with term("pairs"):
        strip_k, strip_gate = (torch.cat((_shift(u, 1), u), dim=-2) for u in (k, gate))
        recent = (q @ strip_k.mT).exp() * recent_mask
        older = (phi_q @ _shift(phi_k, 1).mT) * older_mask
        summed = recent @ strip_gate + older @ _shift(gate, 1)
    with term("state"):
        ones = torch.ones(BLOCK, 1, dtype=q.dtype, device=q.device).expand(*k.shape[:3], -1, -1)
        s, z = (_shift((phi_k.mT @ u).cumsum(2), 2) for u in (gate, ones))
        summed = summed + phi_q @ s
        older_total = phi_q @ z
    total = recent.sum(-1, keepdim=True) + older.sum(-1, keepdim=True) + older_total
    null = naive.null_mass_HT1(p, q.shape[2] * BLOCK, q)
    if isinstance(null, Tensor):
        total = total + null.view(-1, q.shape[2], BLOCK, 1)
    return (summed / total).flatten(2, 3)


def flash(config: ModelConfig, p: Params, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Whole chunks, and a summary for each of them, the first (empty) one included."""
    chunk = config.chunk
    q, k, v = _blocks(q, chunk), _blocks(k, chunk), _blocks(v, chunk)
    visible = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    with term("pairs"):
        scores = q[:, 0] @ k[:, 0].mT / chunk + naive.toeplitz_TT(p, chunk, chunk)
        mixed = (scores.relu().square() * visible) @ v
    with term("state"):
        summary = _shift((k[:, 1].mT @ v / chunk)[:, None].cumsum(2), 1)[:, 0]
        if config.global_term == "mean":
            count = torch.arange(v.shape[1], device=v.device).clamp(min=1)
            summary = summary / count[:, None, None]
        mixed = mixed + q[:, 1] @ summary
    return mixed.flatten(1, 2)


def _blocks(x: Tensor, rows: int) -> Tensor:
    """(…, T, X) → (…, n, rows, X)."""
    return x.reshape(*x.shape[:-2], -1, rows, x.shape[-1])


def _shift(x_BHnCX: Tensor, blocks: int) -> Tensor:
    """Each block gets what stood `blocks` before it; the first ones get zeros."""
    return F.pad(x_BHnCX, (0, 0, 0, 0, blocks, 0))[:, :, : x_BHnCX.shape[2]]


MIXERS: Final[dict[str, Mixer]] = {"wango": wango, "flash": flash}


def traced(config: ModelConfig, length: int) -> dict[str, int]:
    """MACs of the products that the dense path performs on `meta` tensors, by term."""
    parameters = dict(build(config, device="meta").named_parameters())
    tokens = torch.zeros(1, length, dtype=torch.long, device="meta")
    macs: Counter[str] = Counter()
    with torch.no_grad(), counting.Counter(naive.TERM.get) as counter:
        naive.logits(config, parameters, tokens, mixers=MIXERS)
    for op, number in counter.ops.items():
        if op.flop:
            macs[op.term] += number * op.flop // 2
    return dict(macs)


def kept_activation_bytes(config: ModelConfig, length: int) -> int:
    """Bytes that the blocks keep between forward and backward, in float32, for one sequence.

    Not in it: the embedded tokens, the final norm, and the output loss, which keeps one row of
    gradients per target (model/language.py).
    """
    if config.arch == "gau":
        config = replace(config, context=max(length, config.context))
    with torch.device("meta"):
        block = LanguageModel(config).blocks[0]
        h = torch.empty(1, length, config.d_model, requires_grad=True)
    with counting.Counter() as counter, counting.like_cuda(counter):
        out = block(h)  # alive while it is counted
        return config.depth * counter.live if out.requires_grad else 0
