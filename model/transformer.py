"""Transformer++: pre-RMSNorm attention with RoPE and a SwiGLU feed-forward, bias-free.

- Parameters: norm_attn, wq, wk, wv, wo, norm_ffn, w_gate, w_up, w_down; matrices are (out, in).
- The same block serves both baselines: one block applied `depth` times (recurrent) or `depth`
  independent ones (untied). Scale 1/√d_h, no query or key norm.
- Attention is `scaled_dot_product_attention`.

Shapes: B batch, T positions, C model channels.
Usage: `h_BTC = TransformerBlock(config)(h_BTC)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.model import layers
from tangobench.model.config import ModelConfig
from tangobench.model.decode import PrefixCache


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

    def forward(self, h_BTC: Tensor, cache: PrefixCache | None = None) -> Tensor:
        """Both sublayers; fills `cache` when decoding begins."""
        q, k, v = self._query_key_value(h_BTC, 0)
        if cache is not None:
            cache.extend(k, v)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._finish(h_BTC, mixed)

    def empty_cache(self) -> PrefixCache:
        """Keys and values of the whole prefix."""
        return PrefixCache()

    def step(self, h_B1C: Tensor, cache: PrefixCache, position: int) -> Tensor:
        """One more token."""
        q, k, v = self._query_key_value(h_B1C, position)
        keys, values = cache.extend(k, v)
        return self._finish(h_B1C, F.scaled_dot_product_attention(q, keys, values))

    def _query_key_value(self, h_BTC: Tensor, start: int) -> tuple[Tensor, Tensor, Tensor]:
        x_BTC = layers.rms_norm(h_BTC, self.norm_attn)
        q, k, v = (
            layers.split_heads(F.linear(x_BTC, w), self.config.heads)
            for w in (self.wq, self.wk, self.wv)
        )
        q, k = (layers.rope(u, start, self.config.rope_base).to(v.dtype) for u in (q, k))
        return q, k, v

    def _finish(self, h_BTC: Tensor, mixed_BHTK: Tensor) -> Tensor:
        h_BTC = h_BTC + F.linear(layers.merge_heads(mixed_BHTK), self.wo)
        x_BTC = layers.rms_norm(h_BTC, self.norm_ffn)
        hidden = F.silu(F.linear(x_BTC, self.w_gate)) * F.linear(x_BTC, self.w_up)
        return h_BTC + F.linear(hidden, self.w_down)
