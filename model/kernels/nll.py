"""The output loss in chunks of rows: cross-entropy on 50,257 classes without T × V logits.

- Gradients are made in the forward pass, while a chunk's logits are at hand, and scaled later.
- Logits, exponentials and sums are in at least float32. On CUDA under autocast the products take
  bfloat16 and accumulate and return float32: in float32 they would be half of a FineWeb step.
Shapes: R rows (targets; there may be none), C model channels, V vocabulary.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from tangobench.model.kernels.select import chosen
from tangobench.model.layers import autocast_dtype, full_precision

LOGITS_AT_ONCE: Final = 1 << 24  # 64 MB in float32: 333 rows of 50,257
_ON_DEVICE: Final = 1 << 28  # 1 GB: 5,341 rows


def summed_nll(hidden_RC: Tensor, embed_VC: Tensor, target_R: Tensor) -> Tensor:
    """Σ −log softmax(hidden · embedᵀ)[target], a scalar in the dtype of `hidden`."""
    result: Tensor = _SummedNll.apply(hidden_RC, embed_VC, target_R)  # type: ignore[no-untyped-call]
    return result


def product(a: Tensor, b: Tensor, narrow: torch.dtype) -> Tensor:
    """a @ b of inputs rounded to `narrow`, accumulated and returned in the dtype of `a`."""
    if narrow == a.dtype:
        return a @ b.to(narrow)
    if a.device.type in ("cuda", "meta"):
        return torch.mm(a.to(narrow), b.to(narrow), out_dtype=a.dtype)
    return a.to(narrow).to(a.dtype) @ b.to(narrow).to(a.dtype)  # a CPU's product would round


class _SummedNll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, embed: Tensor, target: Tensor) -> Tensor:
        need_hidden, need_embed, _ = ctx.needs_input_grad
        dhidden = torch.empty_like(hidden) if need_hidden else None
        dembed = torch.zeros_like(embed) if need_embed else None
        total = hidden.new_zeros(())
        kind = hidden.device.type
        on_gpu = kind == "cuda" or (kind == "meta" and chosen(hidden) != "strips")
        narrow = autocast_dtype(hidden) if on_gpu else hidden.dtype
        step = max(1, (_ON_DEVICE if on_gpu else LOGITS_AT_ONCE) // embed.shape[0])
        with full_precision(hidden):
            for rows in (slice(i, i + step) for i in range(0, hidden.shape[0], step)):
                logits = product(hidden[rows], embed.T, narrow)
                log_total = logits.logsumexp(-1, keepdim=True)
                index = target[rows, None]
                total += (log_total - logits.gather(1, index)).sum()
                if dhidden is None and dembed is None:
                    continue
                dlogits = logits.sub_(log_total).exp_()
                dlogits.scatter_add_(1, index, torch.full_like(log_total, -1.0))
                if dhidden is not None:
                    dhidden[rows] = product(dlogits, embed, narrow)
                if dembed is not None and narrow == hidden.dtype:
                    dembed.addmm_(dlogits.T.to(embed.dtype), hidden[rows].to(embed.dtype))
                elif dembed is not None:
                    dembed += product(dlogits.T, hidden[rows], narrow)
        ctx.save_for_backward(dhidden, dembed)
        return total

    @staticmethod
    def backward(ctx: Any, dtotal: Tensor) -> tuple[Tensor | None, ...]:
        dhidden, dembed = ctx.saved_tensors
        return (
            None if dhidden is None else dhidden * dtotal,
            None if dembed is None else dembed * dtotal.to(dembed.dtype),
            None,
        )
