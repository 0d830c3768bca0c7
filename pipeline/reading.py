"""Reading a dataset folder: any row of any split from checked shards, and what a row means.

- Nothing is read before the lock is valid; a shard is hashed whole when a process first opens it.
  Verdicts are not remembered between processes: size and mtime would pass a flipped bit.
- A row of T tokens has at most T - 1 targets, because token 0 is never one; `target_start` and
  `masked_target` (GPT-2's EOT on FineWeb-Edu) leave out more. Nothing else is masked.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tangobench.errors import UsageError
from tangobench.pipeline.core.lock import Lock, read_lock, require_committed_content
from tangobench.pipeline.core.shard_reader import Shard, check_schemas, shard_rules
from tangobench.pipeline.core.shards import Rules
from tangobench.pipeline.core.store import Bucket, Place, place_of

if TYPE_CHECKING:
    from tangobench.pipeline.tokenizer.base import Tokenizer

NDArray = np.ndarray[Any, Any]


class Rows:
    """All rows of one config and split, in order; shards open when first needed."""

    def __init__(self, folder: Place, shards: list[dict[str, Any]], rules: Rules) -> None:
        self._folder = folder
        self._rules = rules
        self._entries = shards
        self._ends = list(itertools.accumulate(shard["rows"] for shard in shards))
        self._open: dict[int, Shard] = {}

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: int) -> dict[str, Any]:
        shard, place = self._locate(row)
        others = [name for name in shard.schema.names if name != "tokens"]
        return {"tokens": shard.tokens(place), **{n: shard.value(place, n) for n in others}}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[row] for row in range(len(self)))

    def tokens(self, row: int) -> NDArray:
        shard, place = self._locate(row)
        return shard.tokens(place)

    def value(self, row: int, column: str) -> Any:
        shard, place = self._locate(row)
        return shard.value(place, column)

    def column(self, name: str) -> NDArray:
        batches = (batch for shard in self.open_all() for batch in shard)
        parts = [batch.column(name).to_numpy(zero_copy_only=False) for batch in batches]
        return np.concatenate(parts) if parts else np.zeros(0)

    def open_all(self) -> list[Shard]:
        return [self.shard(index) for index in range(len(self._entries))]

    def shard(self, index: int) -> Shard:
        """Shard `index`, verified when first asked for."""
        if index not in self._open:
            self._open[index] = Shard(self._folder, self._entries[index], self._rules)
        return self._open[index]

    def _locate(self, row: int) -> tuple[Shard, int]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        index = bisect.bisect_right(self._ends, row)
        return self.shard(index), row - (self._ends[index - 1] if index else 0)


class Dataset:
    """A dataset folder with a valid lock."""

    def __init__(self, folder: Place) -> None:
        self.folder = folder
        self.lock: Lock = read_lock(folder)
        require_committed_content(self.lock, str(folder))

    @functools.cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of its texts, from the folder itself; mathematics has symbols instead."""
        from tangobench.pipeline.tokenizer.use import tokenizer_of

        return tokenizer_of(self.folder, self.lock)

    @property
    def text_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            why = f"{self.folder}: its lock names no tokenizer of texts"
            fix = "`tangobench inspect` shows what the folder holds"
            raise UsageError(why, kind="tokenizer-unknown", fix=fix)
        return self.tokenizer

    def rows(self, config: str, split: str) -> Rows:
        shards = self.lock.shards_of(config, split)
        if not shards:
            have = ", ".join(sorted({f"{s['config']}/{s['split']}" for s in self.lock.shards}))
            why, fix = f"{self.folder} has no {config}/{split}", f"choose one of {have}"
            raise UsageError(why, kind="no-such-split", fix=fix)
        rules = shard_rules(self.lock, config)
        check_schemas(self.folder, shards, rules)
        return Rows(self.folder, shards, rules)

    def to_datasets(self, config: str, split: str) -> Any:
        """One memory-mapped `datasets.Dataset` over all shards, verified first, not copied."""
        import datasets

        files = [str(shard.path) for shard in self.rows(config, split).open_all()]
        return datasets.concatenate_datasets([datasets.Dataset.from_file(file) for file in files])


def open_dataset(folder: Path | str) -> Dataset:
    """A dataset folder, ready to read; one in an object store through a cache of checked shards."""
    place = place_of(folder)
    return Dataset(replace(place, cached=True) if isinstance(place, Bucket) else place)


def target_mask(config: dict[str, Any], tokens: NDArray, target_start: int | None) -> NDArray:
    """True where a token is predicted and scored."""
    mask = np.ones(len(tokens), np.bool_)
    mask[: max(1, target_start or 0)] = False
    if config["masked_target"] is not None:
        mask &= tokens != config["masked_target"]
    return mask


@dataclass(frozen=True, slots=True)
class RowView:
    """A row with its meaning, for whoever shows it."""

    tokens: NDArray
    scored: NDArray
    masked: NDArray
    """Tokens that are never a target."""
    padding: int
    columns: dict[str, Any]
    """The row's other columns."""


def row_view(lock: Lock, config: str, row: dict[str, Any]) -> RowView:
    """Which tokens of a row are scored, which are masked, and its other columns."""
    convention, tokens = lock.configs[config], row["tokens"]
    masked = convention["masked_target"]
    return RowView(
        tokens,
        target_mask(convention, tokens, row.get("target_start")),
        np.zeros(len(tokens), np.bool_) if masked is None else tokens == masked,
        convention["context"] - len(tokens),
        {name: value for name, value in row.items() if name != "tokens"},
    )


def pieces(dataset: Dataset, tokens: NDArray) -> list[str]:
    """Each token as text; bytes that are no character as \\xNN, ids that nobody knows as ⟨ID⟩."""
    from tangobench.pipeline.dm_math.vocabulary import SYMBOLS

    def piece(token: int) -> str:
        try:
            if dataset.tokenizer is None:
                return str(SYMBOLS[token])
            return dataset.tokenizer.decode_bytes([token]).decode("utf-8", "backslashreplace")
        except LookupError:
            return f"⟨{token}⟩"

    return list(map(piece, tokens.tolist()))
