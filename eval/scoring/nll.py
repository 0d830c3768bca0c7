"""Validation NLL as the paper defines it, token by token, and its sums by module, position, ….

- NLLs are put in row order in float64 and summed once, so the batch size cannot move the metric
  beyond the rounding of the model itself. Logits and their log-sum-exp are in at least float32.
- Bits per byte divide the same NLLs by ln 2 and by the UTF-8 bytes of the scored tokens. EOT has no
  bytes, so where it is a target (Lean) the bits for ending are paid and divided by nothing.
- Every breakdown divides the same tokens: its sums and counts add up to the total's.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tangobench.eval.scoring.tally import PARTS, Scored, Tally
from tangobench.model.language import LanguageModel
from tangobench.model.layers import full_precision
from tangobench.model.training.loader import Batch, Stream
from tangobench.model.training.optim import autocast
from tangobench.model.training.recipes import Precision
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.progress import Reporter

NDArray = np.ndarray[Any, Any]
Breakdowns = dict[str, dict[str, Tally]]

TOKENS_AT_ONCE: Final = 4096  # on a CPU; more leaves the caches
_ON_A_GPU: Final = 65_536
LOGITS_AT_ONCE: Final = 1 << 24  # 64 MB in float32
_EXACT: Final = 16  # positions that are counted one by one


def score(
    model: LanguageModel,
    stream: Stream,
    *,
    rows: NDArray | None = None,
    precision: Precision = "fp32",
    tokens_at_once: int | None = None,
    reporter: Reporter | None = None,
    label: str = "",
) -> Scored:
    """All targets of some rows (default: of every row)."""
    rows = np.arange(len(stream)) if rows is None else rows
    masks = [stream.row(row)[1] for row in rows.tolist()]
    counts = np.array([int(mask.sum()) for mask in masks], np.int64)
    starts = np.cumsum(counts) - counts
    found = np.empty((2, int(counts.sum())), np.float64)
    lengths = np.array([len(mask) for mask in masks], np.int64)
    default = TOKENS_AT_ONCE if model.embed.device.type == "cpu" else _ON_A_GPU
    reporter = reporter or Reporter(quiet=True)
    reporter.start(f"score {label}", len(lengths), int(lengths.sum()), noun="row")
    for batch in batches_of(lengths, tokens_at_once or default):
        places = np.concatenate([starts[row] + np.arange(counts[row]) for row in batch.tolist()])
        found[:, places] = token_scores(model, stream.batch(rows[batch]), precision)
        reporter.advance(int(lengths[batch].sum()), count=len(batch))
    reporter.finish()
    positions = [np.flatnonzero(mask) for mask in masks]
    return Scored(
        found[0],
        np.repeat(rows, counts),
        np.concatenate([np.zeros(0, np.int64), *positions]),
        np.arange(found.shape[1]) - np.repeat(starts, counts),
        found[1],
    )


def batches_of(lengths: NDArray, tokens_at_once: int) -> list[NDArray]:
    """Rows of similar length in batches of about so many padded tokens, at least one row each."""
    order = np.argsort(lengths, kind="stable")
    batches: list[NDArray] = []
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= tokens_at_once:
            stop += 1
        batches.append(order[start:stop])
        start = stop
    return batches


@torch.no_grad()
def token_scores(model: LanguageModel, batch: Batch, precision: Precision) -> NDArray:
    """NLL of the batch's targets and their lead over the best other token, in float64, by row."""
    device = model.embed.device
    tokens_BT, before_R = batch.on(device, len(model.embed))
    with autocast(device.type, precision):
        hidden_RC = model.hidden(tokens_BT).flatten(0, 1)[before_R]
    target_R = tokens_BT.flatten()[before_R + 1].long()
    return np.asarray(target_scores(hidden_RC, model.embed, target_R).cpu())


def target_scores(hidden_RC: Tensor, embed_VC: Tensor, target_R: Tensor) -> Tensor:
    """NLL of each target and its lead over the best other token, as (2, R) in float64."""
    step = max(1, LOGITS_AT_ONCE // embed_VC.shape[0])
    parts = [hidden_RC.new_zeros(2, 0)]
    with full_precision(hidden_RC):
        for rows in (slice(i, i + step) for i in range(0, hidden_RC.shape[0], step)):
            logits_RV = hidden_RC[rows] @ embed_VC.T.to(hidden_RC.dtype)
            chosen_R = logits_RV.gather(1, target_R[rows, None])[:, 0]
            nll_R = logits_RV.logsumexp(-1) - chosen_R
            others_R = logits_RV.scatter_(1, target_R[rows, None], -torch.inf).amax(-1)
            parts.append(torch.stack([nll_R, chosen_R - others_R]))
    return torch.cat(parts, dim=1).double()


def bits_per_byte(scored: Scored, stream: Stream, token_bytes: NDArray) -> dict[str, Any]:
    """Bits per byte and the bytes that they were divided by; null where there is no byte."""
    count = scored_bytes(stream, token_bytes)
    bits = scored.tally().sum / math.log(2)
    return {"bits_per_byte": bits / count if count else None, "bytes": count}


def scored_bytes(stream: Stream, token_bytes: NDArray) -> int:
    """Bytes of all targets of a split; `token_bytes` has one length per token id."""
    total = 0
    for row in range(len(stream)):
        tokens, is_target = stream.row(row)
        total += int(token_bytes[tokens[is_target]].sum(dtype=np.int64))
    return total


def breakdowns(scored: Scored, stream: Stream, lock: Lock) -> Breakdowns:
    found: Breakdowns = {}
    if lock.name == "dm_math":
        found |= _by_combination(scored, stream, lock)
    if lock.name == "lean":
        found["directory"] = _by_directory(scored, stream)
    prompted = len(stream) and "target_start" in stream.table[0]
    found["position"] = _by_position(scored, scored.rank if prompted else scored.position)
    return found


def _by_combination(scored: Scored, stream: Stream, lock: Lock) -> Breakdowns:
    names: list[str] = lock.notes["combinations"]
    combination = stream.table.column("combination").astype(np.int64)[scored.row]
    found = {"combination": scored.by(combination, names)}
    for part, label in PARTS.items():
        labels = [label(name) for name in names]
        distinct = list(dict.fromkeys(labels))
        label_of = np.array([distinct.index(label) for label in labels])
        found[part] = scored.by(label_of[combination], distinct)
    return found


def _by_directory(scored: Scored, stream: Stream) -> dict[str, Tally]:
    """By the first two levels: Mathlib/Algebra, Mathlib/Topology, …"""
    folders = [
        "/".join(stream.table.value(row, "path").split("/")[:-1][:2]) for row in range(len(stream))
    ]
    names, label_of = np.unique(np.array(folders, dtype=object), return_inverse=True)
    return scored.by(label_of[scored.row], names.tolist())


def _by_position(scored: Scored, position: NDArray) -> dict[str, Tally]:
    powers = np.maximum(position, 1).astype(np.float64)
    octave = np.floor(np.log2(powers)).astype(np.int64)
    labels = np.where(position < _EXACT, position, _EXACT + octave - 4)
    last = int(labels.max()) if len(labels) else 0
    names = [str(p) for p in range(_EXACT)]
    names += [f"{1 << o}-{(2 << o) - 1}" for o in range(4, max(5, last - _EXACT + 5))]
    return scored.by(labels, names)
