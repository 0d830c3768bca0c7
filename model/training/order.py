"""The order of training rows: a keyed permutation, computed for each index by itself.

- `row = permute(index)` is a bijection of 0 … rows − 1 for every (data-order seed, epoch, stream),
  and needs neither the other indices nor memory: resuming at any step costs nothing.
- It depends on these numbers alone, not on architecture, microbatch, workers or world size.
- A balanced Feistel network on the next power of four, walked until it falls into the range (on
  average at most four times, because the network's domain is less than four times the range).

Usage: `rows_at(np.arange(64), rows=5_376_000, seed=101, stream="default")`.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np

NDArray = np.ndarray[Any, Any]

ROUNDS: Final = 8  # twice what makes a Feistel network pseudorandom; 8 × 64 bits is one SHA-512


def rows_at(positions: NDArray, *, rows: int, seed: int, stream: str) -> NDArray:
    """The rows at `positions` of an endless order that visits every row once per epoch."""
    if rows < 1:
        raise ValueError("an order needs at least one row")
    positions = np.asarray(positions, np.int64)
    epochs, indices = np.divmod(positions, rows)
    found = np.empty_like(positions)
    for epoch in np.unique(epochs).tolist():
        chosen = epochs == epoch
        found[chosen] = permute(indices[chosen], rows=rows, seed=seed, epoch=epoch, stream=stream)
    return found


def permute(indices: NDArray, *, rows: int, seed: int, epoch: int, stream: str) -> NDArray:
    """The images of `indices` under the permutation of one epoch."""
    half = max(1, ((rows - 1).bit_length() + 1) // 2)
    keys = _keys(seed, epoch, stream, rows)
    values = _feistel(np.asarray(indices, np.uint64), keys, half)
    while (outside := np.flatnonzero(values >= rows)).size:
        values[outside] = _feistel(values[outside], keys, half)
    return values.astype(np.int64)


def _keys(seed: int, epoch: int, stream: str, rows: int) -> NDArray:
    text = f"tangobench-order/1 seed={seed} epoch={epoch} stream={stream} rows={rows}"
    return np.frombuffer(hashlib.sha512(text.encode()).digest(), "<u8")


def _feistel(values: NDArray, keys: NDArray, half: int) -> NDArray:
    shift = np.uint64(half)
    mask = np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys[:ROUNDS]:
        left, right = right, left ^ (_mix(right + key) & mask)
    mixed: NDArray = (left << shift) | right
    return mixed


def _mix(values: NDArray) -> NDArray:
    """SplitMix64's finaliser: every input bit moves every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray = values ^ (values >> np.uint64(31))
    return mixed
