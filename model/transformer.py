"""Transformer++: pre-RMSNorm attention with RoPE and a SwiGLU feed-forward, bias-free.

- Parameters: norm_attn, wq, wk, wv, wo, norm_ffn, w_gate, w_up, w_down; scale 1/√d_h, no q/k norm.
- `weighting = "cosine-null"` weighs values as TANGO weighs gates, with theta and null_bias of its
  own; it is not in the paper. A large SwiGLU makes its hidden layer again in the backward pass.
Shapes: B batch, T positions, C model channels, R rows (positions of all sequences), F width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.model import layers
from tangobench.model.config import ModelConfig
from tangobench.model.kernels import select
from tangobench.model.kernels.crossgate import average, strip_of
from tangobench.model.kernels.strips import TangoKernel
from tangobench.model.layers import PrefixCache
from tangobench.model.tango import newest_average

ROWS_AT_ONCE: Final = 1024


class TransformerBlock(nn.Module):
    """Attention, then SwiGLU, each added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c, f = config.d_model, config.width
        self.config = config
        self.norm_attn = nn.Parameter(torch.empty(c))
        self.wq = nn.Parameter(torch.empty(c, c))
        self.wk = nn.Parameter(torch.empty(c, c))
        self.wv = nn.Parameter(torch.empty(c, c))
        self.wo = nn.Parameter(torch.empty(c, c))
        self.norm_ffn = nn.Parameter(torch.empty(c))
        self.w_gate = nn.Parameter(torch.empty(f, c))
        self.w_up = nn.Parameter(torch.empty(f, c))
        self.w_down = nn.Parameter(torch.empty(c, f))
        self.cosine = config.weighting == "cosine-null"
        temperature, null_gate = (self.cosine and x for x in (config.temperature, config.null_gate))
        self.theta = nn.Parameter(torch.empty(config.heads)) if temperature else None
        self.null_bias = nn.Parameter(torch.empty(config.heads)) if null_gate else None

    def forward(self, h_BTC: Tensor, cache: PrefixCache | None = None) -> Tensor:
        """Both sublayers; fills `cache` when decoding begins."""
        q, k, v = self._query_key_value(h_BTC, 0)
        if cache is not None:
            cache.extend(k, v)
        if self.cosine:
            features = (q * layers.log_tau_H11(self.theta, q).exp(), k)
            together = select.chosen(h_BTC) != "strips"
            kernel = TangoKernel(strip=strip_of(h_BTC.shape[1]) if together else None)
            values = layers.merge_heads(v)
            mixed_BTC = average(kernel, features, values, self.null_bias, together=together)
        else:
            mixed_BTC = layers.merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self._finish(h_BTC, mixed_BTC)

    def empty_cache(self) -> PrefixCache:
        """Keys and values of the whole prefix."""
        return PrefixCache()

    def step(self, h_B1C: Tensor, cache: PrefixCache, position: int) -> Tensor:
        """One more token."""
        q, k, v = self._query_key_value(h_B1C, position)
        keys, values = cache.extend(k, v)
        if self.cosine:
            with layers.full_precision(q):
                scaled_q = q * layers.log_tau_H11(self.theta, q).exp()
                null_mass = layers.null_mass_H11(self.null_bias, q, position)
                mixed = newest_average(scaled_q, keys, values, null_mass).to(v.dtype)
        else:
            mixed = F.scaled_dot_product_attention(q, keys, values)
        return self._finish(h_B1C, layers.merge_heads(mixed))

    def _query_key_value(self, h_BTC: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        x_BTC = layers.rms_norm(h_BTC, self.norm_attn)
        q, k, v = (
            layers.split_heads(F.linear(x_BTC, w), self.config.heads)
            for w in (self.wq, self.wk, self.wv)
        )
        q, k = (layers.rope(u, start, self.config.rope_base) for u in (q, k))
        if self.cosine:
            return layers.unit(q), layers.unit(k), v
        return q.to(v.dtype), k.to(v.dtype), v

    def _finish(self, h_BTC: Tensor, mixed_BTC: Tensor) -> Tensor:
        h_BTC = h_BTC + F.linear(mixed_BTC, self.wo)
        x_BTC = layers.rms_norm(h_BTC, self.norm_ffn)
        values = x_BTC.shape[:2].numel() * self.config.width
        if select.recomputes(x_BTC, values):
            weights = (self.w_gate, self.w_up, self.w_down)
            y_RC: Tensor = _SwiGlu.apply(x_BTC.flatten(0, 1), *weights)  # type: ignore[no-untyped-call]
            return h_BTC + y_RC.view_as(h_BTC)
        hidden = F.silu(F.linear(x_BTC, self.w_gate)) * F.linear(x_BTC, self.w_up)
        return h_BTC + F.linear(hidden, self.w_down)


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_RC: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
        ctx.dtype = layers.autocast_dtype(x_RC)
        ctx.save_for_backward(x_RC, w_gate, w_up, w_down)
        y_RC = torch.empty_like(x_RC)
        with layers.full_precision(x_RC):
            gate, up, down = (w.to(ctx.dtype) for w in (w_gate, w_up, w_down))
            for rows in _row_parts(x_RC):
                x = x_RC[rows].to(ctx.dtype)
                y_RC[rows] = F.silu(x @ gate.T).mul_(x @ up.T) @ down.T
        return y_RC

    @staticmethod
    def backward(ctx: Any, dy_RC: Tensor) -> tuple[Tensor, ...]:
        x_RC, *weights = ctx.saved_tensors
        dx_RC = torch.empty_like(x_RC)
        dgate, dup, ddown = (torch.zeros_like(w) for w in weights)
        with layers.full_precision(x_RC):
            gate, up, down = (w.to(ctx.dtype) for w in weights)
            for rows in _row_parts(x_RC):
                x, dy = x_RC[rows].to(ctx.dtype), dy_RC[rows].to(ctx.dtype)
                before, raised = x @ gate.T, x @ up.T
                opened = F.silu(before)
                ddown += dy.T @ (opened * raised)
                dhidden = dy @ down
                draised = dhidden * opened
                dbefore = torch.ops.aten.silu_backward(dhidden.mul_(raised), before)
                dx_RC[rows] = dbefore @ gate + draised @ up
                dgate += dbefore.T @ x
                dup += draised.T @ x
        return dx_RC, dgate, dup, ddown


def _row_parts(x_RC: Tensor) -> Iterator[slice]:
    for start in range(0, x_RC.shape[0], ROWS_AT_ONCE):
        yield slice(start, start + ROWS_AT_ONCE)
