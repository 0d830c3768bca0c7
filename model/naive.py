"""The paper, equation by equation, materialising everything: the reference of every fast path.

- Pure functions of (config, state dict, tokens); no module, no tiling, no in-place operation.
- A later token never changes an earlier output, bit for bit: masked weights are exact zeros.
- `term` labels matrix products for the traced operation count (eval/costs/macs.py).
Shapes: B batch, T positions, C model channels, H heads, K channels of a head, F gated width,
G = F/H, S query/key width of GAU, E expansion width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from tangobench.model import layers
from tangobench.model.config import ModelConfig

Params = Mapping[str, Tensor]
# (config, block parameters, query, key, gate or value) -> aggregate, all in head layout
Mixer = Callable[[ModelConfig, Params, Tensor, Tensor, Tensor], Tensor]

TERM: Final[ContextVar[str]] = ContextVar("term", default="projections")


@contextmanager
def term(name: str) -> Iterator[None]:
    """Label the matrix products inside as one term of the operation count."""
    token = TERM.set(name)
    try:
        yield
    finally:
        TERM.reset(token)


def logits(
    config: ModelConfig, params: Params, tokens_BT: Tensor, mixers: Mapping[str, Mixer] = {}
) -> Tensor:
    """Logits of every position; `mixers` replaces the cross-token part of named architectures."""
    h_BTC = params["embed"][tokens_BT]
    mixer = {**MIXERS, **mixers}[config.arch]
    for application in range(config.depth):
        index = 0 if config.shared else application
        block = {
            name.removeprefix(f"blocks.{index}."): value
            for name, value in params.items()
            if name.startswith(f"blocks.{index}.")
        }
        h_BTC = _BLOCKS[config.arch](config, block, h_BTC, mixer)
    with term("vocab"):
        return layers.rms_norm(h_BTC, params["final_norm"]) @ params["embed"].T


def _visible(length: int, like: Tensor) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool, device=like.device).tril()


def _cross_gated_block(config: ModelConfig, p: Params, h_BTC: Tensor, mixer: Mixer) -> Tensor:
    """TANGO and WANGO, eq. 2 and 3."""
    x_BTC = layers.rms_norm(h_BTC, p["norm"])
    q, k = (layers.split_heads(x_BTC @ p[name].T, config.heads) for name in ("wq", "wk"))
    q, k = (layers.unit(layers.rope(u, 0, config.rope_base)) for u in (q, k))
    gate_BTF = F.silu(x_BTC @ p["wg"].T)
    value_BTF = x_BTC @ p["wv"].T
    mean_BHTG = mixer(config, p, q, k, layers.split_heads(gate_BTF, config.heads))
    return h_BTC + (layers.merge_heads(mean_BHTG) * value_BTF) @ p["wo"].T


def null_mass_HT1(p: Params, length: int, like: Tensor) -> Tensor | float:
    """n_i · exp(b), n_i = i + 1 visible sources (also in WANGO)."""
    if p.get("null_bias") is None:
        return 0.0
    visible = torch.arange(1, length + 1, dtype=like.dtype, device=like.device)
    return visible[:, None] * p["null_bias"].exp()[:, None, None]


def tango(config: ModelConfig, p: Params, q: Tensor, k: Tensor, gate: Tensor) -> Tensor:
    """Full-prefix aggregation, eq. 5 and 6."""
    with term("pairs"):
        logits_BHTT = layers.log_tau_H11(p.get("theta"), q).exp() * (q @ k.mT)
        mass_BHTT = logits_BHTT.exp() * _visible(q.shape[-2], q)
        total = mass_BHTT.sum(-1, keepdim=True) + null_mass_HT1(p, q.shape[-2], q)
        return mass_BHTT @ gate / total


def wango(config: ModelConfig, p: Params, q: Tensor, k: Tensor, gate: Tensor) -> Tensor:
    """Windowed aggregation, eq. 7 to 9, with every pair's weight written out."""
    length = q.shape[-2]
    tau = layers.log_tau_H11(p.get("theta"), q).exp()
    visible = _visible(length, q)
    older = visible.tril(-config.window)
    recent_BHTT = (tau * (q @ k.mT)).exp() * (visible & ~older)
    older_BHTT = (layers.phi(tau.sqrt() * q) @ layers.phi(tau.sqrt() * k).mT) * older
    mass_BHTT = recent_BHTT + older_BHTT
    total = mass_BHTT.sum(-1, keepdim=True) + null_mass_HT1(p, length, q)
    return mass_BHTT @ gate / total


def _transformer_block(config: ModelConfig, p: Params, h_BTC: Tensor, mixer: Mixer) -> Tensor:
    """Transformer++: pre-RMSNorm attention with RoPE, then SwiGLU."""
    x_BTC = layers.rms_norm(h_BTC, p["norm_attn"])
    q, k, v = (layers.split_heads(x_BTC @ p[n].T, config.heads) for n in ("wq", "wk", "wv"))
    q, k = (layers.rope(u, 0, config.rope_base) for u in (q, k))
    h_BTC = h_BTC + layers.merge_heads(mixer(config, p, q, k, v)) @ p["wo"].T
    x_BTC = layers.rms_norm(h_BTC, p["norm_ffn"])
    return h_BTC + (F.silu(x_BTC @ p["w_gate"].T) * (x_BTC @ p["w_up"].T)) @ p["w_down"].T


def attention(config: ModelConfig, p: Params, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal softmax attention, scale 1/√d_h; or TANGO's weights, of unit queries and keys."""
    if config.weighting == "cosine-null":
        return tango(config, p, layers.unit(q), layers.unit(k), v)
    with term("pairs"):
        scores = q @ k.mT / math.sqrt(config.d_head)
        scores = scores.masked_fill(~_visible(q.shape[-2], q), -math.inf)
        return scores.softmax(-1) @ v


def _gau_block(config: ModelConfig, p: Params, h_BTC: Tensor, mixer: Mixer) -> Tensor:
    """Gated attention unit: u ⊙ (A v); heads are the offset-scaled copies of the base."""
    x_BTC = layers.layer_norm(h_BTC, p["norm_weight"], p["norm_bias"])
    inner = F.silu(x_BTC @ p["w_in"].T + p["b_in"])
    e = config.width
    u_BTE, v_BTE, base_BTS = inner[..., :e], inner[..., e : 2 * e], inner[..., 2 * e :]
    heads = base_BTS[..., None, :] * p["gamma"] + p["beta"]
    heads = layers.rope(heads.transpose(1, 2), 0, config.rope_base)
    mixed_BTE = mixer(config, p, heads[:, 0::2], heads[:, 1::2], v_BTE)
    return h_BTC + (u_BTE * mixed_BTE) @ p["w_out"].T + p["b_out"]


def toeplitz_TT(p: Params, length: int, reach: int) -> Tensor:
    """w[(j − i) + N − 1] for every pair."""
    position = torch.arange(length, device=p["toeplitz"].device)
    distance = position[None, :] - position[:, None]
    return p["toeplitz"].take(distance + reach - 1)


def gau(config: ModelConfig, p: Params, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Squared-ReLU weights over every causal pair, scaled by the constant context N."""
    length = q.shape[-2]
    with term("pairs"):
        scores_BTT = q[:, 0] @ k[:, 0].mT / config.context
        scores_BTT = scores_BTT + toeplitz_TT(p, length, config.context)
        return (scores_BTT.relu().square() * _visible(length, q)) @ v


def flash(config: ModelConfig, p: Params, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """GAU inside chunks of 256 and a mean over all earlier chunks of (lin_kᵀ v / 256)."""
    length, chunk = q.shape[-2], config.chunk
    number = torch.arange(length, device=q.device) // chunk
    distance = torch.arange(length, device=q.device)
    distance = (distance[None, :] - distance[:, None]).clamp(1 - chunk, 0)
    same = (number[None, :] == number[:, None]) & _visible(length, q)
    bias_TT = p["toeplitz"][distance + chunk - 1]
    quadratic = (q[:, 0] @ k[:, 0].mT / chunk + bias_TT).relu().square() * same
    earlier = number[None, :] < number[:, None]
    linear = (q[:, 1] @ k[:, 1].mT) * earlier / chunk
    if config.global_term == "mean":
        linear = linear / number.clamp(min=1)[:, None]
    return (quadratic + linear) @ v


MIXERS: Final[dict[str, Mixer]] = {
    "tango": tango,
    "wango": wango,
    "recurrent_transformer": attention,
    "untied_transformer": attention,
    "gau": gau,
    "flash": flash,
}
_BLOCKS: Final = {
    "tango": _cross_gated_block,
    "wango": _cross_gated_block,
    "recurrent_transformer": _transformer_block,
    "untied_transformer": _transformer_block,
    "gau": _gau_block,
    "flash": _gau_block,
}
