"""Rows of a dataset as a batch of tensors, for `torch.utils.data.DataLoader` and its workers.

Usage: `DataLoader(rows, batch_size=8, collate_fn=collate(dataset.lock.configs["default"]))`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tangobench.pipeline.reading import target_mask


def collate(config: dict[str, Any]) -> Callable[[Sequence[dict[str, Any]]], dict[str, Any]]:
    """A function for DataLoader; `config` is the lock's entry, with padding and masked token."""
    return functools.partial(_collate, config)


def _collate(config: dict[str, Any], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    shape = (len(rows), max(len(row["tokens"]) for row in rows))
    tokens_BT = torch.full(shape, config["pad"], dtype=torch.long)
    targets_BT = torch.zeros(shape, dtype=torch.bool)
    for place, row in enumerate(rows):
        tokens = row["tokens"]
        tokens_BT[place, : len(tokens)] = torch.from_numpy(tokens.astype("int64"))
        mask = target_mask(config, tokens, row.get("target_start"))
        targets_BT[place, : len(tokens)] = torch.from_numpy(mask)
    return {"tokens": tokens_BT, "targets": targets_BT}
