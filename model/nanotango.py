"""TANGO in one file: the model, its training and its score, in plain PyTorch.

- Equations are those of the paper, materialised: T × T weights, no tiles, no recomputation. Read
  this file first; `tangobench.model` is the same function, made fast.
- Only the shard reader comes from the project. Initial weights, row order, schedule and loss are
  written out again here, and 50 steps of a sample recipe give the full system's losses to 1e-5.
- The defaults are the `sample` recipe, seconds on a laptop. The paper's FineWeb-Edu run is
  `Config(vocabulary=50257, width=28480, d_model=512, heads=16, context=8192, steps=5722, batch=32,
  warmup=200, lr_peak=6e-4, lr_final=6e-5)`.

Shapes: B rows, T positions, C model channels, H heads, K = C/H, F gated width, G = F/H.
Usage: `python -m tangobench.model.nanotango out/dm_math-sample`.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tangobench.pipeline.reading import open_dataset

NDArray = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """One run: the model, the optimiser, the seeds."""

    vocabulary: int = 73
    width: int = 602  # F; the paper's 28,480 matches the parameters of its other five models
    d_model: int = 32
    heads: int = 2
    depth: int = 4  # applications of one shared block
    context: int = 256
    steps: int = 30
    batch: int = 16
    warmup: int = 3
    lr_peak: float = 6e-3
    lr_final: float = 6e-4
    init_seed: int = 17
    order_seed: int = 101


class Block(nn.Module):
    """One cross-token gated update in place of attention and feed-forward (paper, §2.1)."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads = c.heads
        self.norm = nn.Parameter(torch.empty(c.d_model))
        self.wq = nn.Parameter(torch.empty(c.d_model, c.d_model))
        self.wk = nn.Parameter(torch.empty(c.d_model, c.d_model))
        self.wg = nn.Parameter(torch.empty(c.width, c.d_model))
        self.wv = nn.Parameter(torch.empty(c.width, c.d_model))
        self.wo = nn.Parameter(torch.empty(c.d_model, c.width))
        self.theta = nn.Parameter(torch.empty(c.heads))
        self.null_bias = nn.Parameter(torch.empty(c.heads))

    def forward(self, h_BTC: Tensor) -> Tensor:
        """h + Wo (ḡ ⊙ Wv x): the average gate of the visible tokens gates the own value."""
        x_BTC = F.rms_norm(h_BTC, (h_BTC.shape[-1],), self.norm, 1e-6)
        q_BHTK = F.normalize(rope(self.split(x_BTC @ self.wq.T)), dim=-1, eps=1e-6)
        k_BHTK = F.normalize(rope(self.split(x_BTC @ self.wk.T)), dim=-1, eps=1e-6)
        gate_BHTG = self.split(F.silu(x_BTC @ self.wg.T))
        length = h_BTC.shape[1]
        tau_H11 = self.theta.clamp(max=math.log(20)).exp()[:, None, None]  # eq. 4
        mass_BHTT = (tau_H11 * (q_BHTK @ k_BHTK.mT)).exp().tril()  # eq. 5, causal
        visible_T1 = torch.arange(1, length + 1, dtype=h_BTC.dtype)[:, None]
        null_HT1 = visible_T1 * self.null_bias.exp()[:, None, None]  # the option of no update
        mean_BHTG = mass_BHTT @ gate_BHTG / (mass_BHTT.sum(-1, keepdim=True) + null_HT1)  # eq. 6
        return h_BTC + (mean_BHTG.transpose(1, 2).flatten(2) * (x_BTC @ self.wv.T)) @ self.wo.T

    def split(self, x: Tensor) -> Tensor:
        """(B, T, C) → (B, H, T, C/H)."""
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def rope(x: Tensor) -> Tensor:
    """Rotate the pairs (c, c + half) of each head by position × 10,000^(−2c/K)."""
    length, channels = x.shape[-2:]
    even = torch.arange(0, channels, 2, dtype=torch.float64)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * 10_000.0 ** (-even / channels)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class NanoTango(nn.Module):
    """Tied embedding, `depth` applications of one block, a final norm."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.depth = c.depth
        self.embed = nn.Parameter(torch.empty(c.vocabulary, c.d_model))
        self.blocks = nn.ModuleList([Block(c)])
        self.final_norm = nn.Parameter(torch.empty(c.d_model))
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.copy_(initial(name, parameter.shape, c))

    def nll(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """NLL of every marked token, predicted from the tokens before it in its row."""
        h_BTC = self.embed[tokens_BT]
        for _ in range(self.depth):
            h_BTC = self.blocks[0](h_BTC)
        h_BTC = F.rms_norm(h_BTC, (h_BTC.shape[-1],), self.final_norm, 1e-6)
        marked_BT = targets_BT[:, 1:]
        logits_RV = h_BTC[:, :-1][marked_BT] @ self.embed.T
        return F.cross_entropy(logits_RV, tokens_BT[:, 1:][marked_BT], reduction="none")


def initial(name: str, shape: torch.Size, c: Config) -> Tensor:
    """Norms 1, null gate 0, τ = 10, else N(0, σ²); a generator per tensor, seeded by its name."""
    leaf = name.rpartition(".")[2]
    if "norm" in leaf or leaf in ("theta", "null_bias"):
        fill = {"theta": math.log(10), "null_bias": 0.0}.get(leaf, 1.0)
        return torch.full(shape, fill)
    std = 0.02 * math.sqrt(512 / c.d_model)
    if leaf == "wo":
        std /= math.sqrt(2 * c.depth)
    key = hashlib.sha256(f"{c.init_seed}:{name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(key, "little") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)


def order(rows: int, epoch: int, stream: str, seed: int) -> NDArray:
    """The rows of one epoch in training order: a keyed permutation (8 Feistel rounds)."""
    half = max(1, ((rows - 1).bit_length() + 1) // 2)
    text = f"tangobench-order/1 seed={seed} epoch={epoch} stream={stream} rows={rows}"
    keys = np.frombuffer(hashlib.sha512(text.encode()).digest(), "<u8")
    shift, mask = np.uint64(half), np.uint64((1 << half) - 1)

    def feistel(values: NDArray) -> NDArray:
        left, right = values >> shift, values & mask
        for key in keys:
            z = right + key  # SplitMix64's finaliser
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            left, right = right, left ^ ((z ^ (z >> np.uint64(31))) & mask)
        return (left << shift) | right

    values = feistel(np.arange(rows, dtype=np.uint64))
    while (outside := np.flatnonzero(values >= rows)).size:  # walk until inside the range
        values[outside] = feistel(values[outside])
    return values.astype(np.int64)


class Split:
    """The rows of one config and split of a dataset folder, as padded batches with target masks."""

    def __init__(self, folder: str, config: str, split: str, context: int) -> None:
        dataset = open_dataset(folder)
        self.rows = dataset.rows(config, split)
        self.convention, self.context = dataset.lock.configs[config], context

    def batch(self, rows: NDArray) -> tuple[Tensor, Tensor]:
        """Tokens (B, T), and a mask of those that are predicted and scored."""
        found = [self.rows[int(row)] for row in rows]
        longest = min(self.context, max(len(row["tokens"]) for row in found))
        tokens_BT = torch.full((len(found), longest), self.convention["pad"])
        targets_BT = torch.zeros(len(found), longest, dtype=torch.bool)
        for place, row in enumerate(found):
            # A prompted row that is too long loses the beginning of its prompt, another its end.
            cut = max(0, len(row["tokens"]) - longest) if "target_start" in row else 0
            tokens = torch.from_numpy(row["tokens"][cut : cut + longest].astype(np.int64))
            tokens_BT[place, : len(tokens)] = tokens
            targets_BT[place, max(1, row.get("target_start", 0) - cut) : len(tokens)] = True
        if self.convention["masked_target"] is not None:  # the end-of-text token of FineWeb-Edu
            targets_BT &= tokens_BT != self.convention["masked_target"]
        return tokens_BT, targets_BT


def batches(folder: str, c: Config) -> Iterator[tuple[Tensor, Tensor]]:
    """One batch per step; Lean alternates between source and proof rows."""
    streams = sorted(open_dataset(folder).lock.configs, reverse=True)
    splits = [Split(folder, stream, "train", c.context) for stream in streams]
    orders: dict[tuple[int, int], NDArray] = {}
    for step in range(c.steps):
        turn, which = divmod(step, len(splits))
        count, rows = len(splits[which].rows), []
        for position in range(turn * c.batch, (turn + 1) * c.batch):
            epoch, index = divmod(position, count)
            if (which, epoch) not in orders:
                orders[which, epoch] = order(count, epoch, streams[which], c.order_seed)
            rows.append(orders[which, epoch][index])
        yield splits[which].batch(np.array(rows))


def learning_rate(c: Config, step: int) -> float:
    """Linear warmup, then a cosine from the peak to the end."""
    if step < c.warmup:
        return c.lr_peak * (step + 1) / c.warmup
    progress = (step + 1 - c.warmup) / (c.steps - c.warmup)
    return c.lr_final + (c.lr_peak - c.lr_final) * (1 + math.cos(math.pi * progress)) / 2


def train(folder: str, c: Config) -> tuple[NanoTango, list[float]]:
    """A trained model and the loss of every step."""
    model, losses = NanoTango(c), []
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.95),
        eps=1e-8,
    )
    for step, (tokens_BT, targets_BT) in enumerate(batches(folder, c)):
        loss = model.nll(tokens_BT, targets_BT).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(c, step)
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@torch.no_grad()
def score(model: NanoTango, folder: str, config: str, c: Config) -> float:
    """Validation NLL in nats per scored token."""
    split, total, count = Split(folder, config, "validation", c.context), 0.0, 0
    for start in range(0, len(split.rows), c.batch):
        nll = model.nll(*split.batch(np.arange(start, min(start + c.batch, len(split.rows)))))
        total, count = total + float(nll.double().sum()), count + len(nll)
    return total / count


if __name__ == "__main__":
    place = sys.argv[1]
    conventions = open_dataset(place).lock.configs
    chosen = Config(vocabulary=next(iter(conventions.values()))["vocabulary"])
    trained, curve = train(place, chosen)
    print(f"loss {curve[0]:.4f} … {curve[-1]:.4f} in {chosen.steps} steps")
    for name in conventions:
        print(f"validation NLL, {name}: {score(trained, place, name, chosen):.4f}")
