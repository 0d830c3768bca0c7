"""Transformer++: pre-RMSNorm attention with RoPE and a SwiGLU feed-forward, bias-free.

- Parameters: norm_attn, wq, wk, wv, wo, norm_ffn, w_gate, w_up, w_down; scale 1/√d_h, no q/k norm.
- `weighting = "cosine-null"` weighs values as TANGO weighs gates, with theta and null_bias of its
  own; it is not in the paper. A large SwiGLU makes its hidden layer again in the backward pass.
Shapes: B batch, T positions, C model channels, F width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.model import layers
from tangobench.model.config import ModelConfig
from tangobench.model.kernels import crossgate
from tangobench.model.kernels.crossgate import TangoKernel, average
from tangobench.model.layers import PrefixCache
from tangobench.model.tango import newest_average


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
        q, k, v = self._query_key_value(h_BTC, 0)
        if cache is not None:
            cache.extend(k, v)
        if self.cosine:
            features = (q * layers.log_tau_H11(self.theta, q).exp(), k)
            mixed_BTC = average(TangoKernel(), features, layers.merge_heads(v), self.null_bias)
        else:
            mixed_BTC = layers.merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return self._finish(h_BTC, mixed_BTC)

    def step(self, h_B1C: Tensor, cache: PrefixCache, position: int) -> Tensor:
        q, k, v = self._query_key_value(h_B1C, position)
        keys, values = cache.extend(k, v)
        if self.cosine:
            with layers.full_precision(q):
                scaled_q = q * layers.log_tau_H11(self.theta, q).exp()
                mixed = newest_average(scaled_q, keys, values, self.null_bias).to(v.dtype)
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
        if not crossgate.recomputes(x_BTC, values):
            return h_BTC + F.linear(_hidden(x_BTC, self.w_gate, self.w_up), self.w_down)
        weights = (self.w_down, self.w_gate, self.w_up)
        return h_BTC + layers.by_parts(_hidden, x_BTC, weights, (1, 0, 0), self.config.heads)


def _hidden(x_BTC: Tensor, w_gate: Tensor, w_up: Tensor) -> Tensor:
    """All columns of SwiGLU's hidden layer, or some."""
    return F.silu(F.linear(x_BTC, w_gate)) * F.linear(x_BTC, w_up)
