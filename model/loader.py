"""Training batches from locked shards.

- Batch `step` is a pure function of (lock root, data-order seed, batch size, step): the same for
  every architecture, microbatch size, world size and after any restart.
- The state is one step number and the lock's root; another dataset's root is refused.
- Lean alternates: even steps are source batches, odd steps proof batches.
- Every shard's sha256 is checked in threads ahead of the reader; a row waits for its shard.

Shapes: B rows of a batch, T tokens of the longest row.
Usage: `loader = Loader(open_dataset(folder), batch=64, seed=101); batch = next(loader)`.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from tangobench.errors import MismatchError, UsageError
from tangobench.model.order import rows_at
from tangobench.pipeline.reading import Dataset, Shard
from tangobench.pipeline.rows import target_mask

NDArray = np.ndarray[Any, Any]

LEAN_CONFIGS: Final = ("source", "proof")  # the alternation starts with source
_TURNS: Final = 64  # batches whose order is computed at once: 0.3 µs per row instead of 15
_CHECKERS: Final = 2  # hashing releases the interpreter lock; two threads read 2 GB/s here


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one step, padded to the longest of them."""

    step: int
    config: str
    rows: NDArray
    tokens_BT: NDArray
    targets_BT: NDArray
    lengths_B: NDArray

    @property
    def targets(self) -> int:
        """Supervised tokens of the whole batch: what every microbatch's loss is divided by."""
        return int(self.targets_BT.sum())

    @property
    def tokens(self) -> int:
        """Tokens without padding."""
        return int(self.lengths_B.sum())

    def part(self, places: NDArray) -> Batch:
        """Some rows of the batch, padded to the longest of these."""
        longest = int(self.lengths_B[places].max())
        return Batch(
            self.step,
            self.config,
            self.rows[places],
            np.ascontiguousarray(self.tokens_BT[places, :longest]),
            np.ascontiguousarray(self.targets_BT[places, :longest]),
            self.lengths_B[places],
        )

    def microbatches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """This rank's rows in parts of at most `size`.

        Sorted by length: less padding, and every rank gets rows of every length. The gradient is a
        sum over rows, so neither the order nor the parts can change it.
        """
        mine = np.argsort(self.lengths_B, kind="stable")[rank::world]
        for start in range(0, len(mine), size):
            yield self.part(mine[start : start + size])


class Stream:
    """All rows of one config and split with their target masks, from checked shards."""

    def __init__(
        self, dataset: Dataset, config: str, split: str, *, context: int | None = None
    ) -> None:
        self.config = config
        self.convention = dataset.lock.configs[config]
        self.context = context
        self.table = dataset.rows(config, split)
        entries = dataset.lock.shards_of(config, split)
        self._ends = list(itertools.accumulate(entry["rows"] for entry in entries))
        self._starts = [0, *self._ends]
        self._pool = ThreadPoolExecutor(_CHECKERS, thread_name_prefix="shard-check")
        self._checks = [self._pool.submit(self._open, index) for index in range(len(entries))]

    def __len__(self) -> int:
        return len(self.table)

    def close(self) -> None:
        """Drop checks that nobody waits for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def row(self, row: int) -> tuple[NDArray, NDArray]:
        """Tokens and target mask of a row, cut to the context if one is set."""
        tokens, first = self._cut(row)
        return tokens, target_mask(self.convention, tokens, first)

    def batch(self, rows: NDArray, step: int = 0) -> Batch:
        """Chosen rows, padded; the masks are those of `row`, made for all rows at once."""
        found = [self._cut(row) for row in rows.tolist()]
        lengths = np.array([len(tokens) for tokens, _ in found], np.int64)
        first = np.array([max(1, start) for _, start in found], np.int64)
        tokens_BT = np.full((len(found), lengths.max()), self.convention["pad"], np.int32)
        for place, (tokens, _) in enumerate(found):
            tokens_BT[place, : len(tokens)] = tokens
        position = np.arange(tokens_BT.shape[1])
        targets_BT = (position >= first[:, None]) & (position < lengths[:, None])
        if self.convention["masked_target"] is not None:
            targets_BT &= tokens_BT != self.convention["masked_target"]
        return Batch(step, self.config, rows, tokens_BT, targets_BT, lengths)

    def _cut(self, row: int) -> tuple[NDArray, int]:
        """Tokens of a row and its first target; cut, a row keeps its end if it has a prompt."""
        index = bisect.bisect_right(self._ends, row)
        shard, target_starts = self._checks[index].result()
        place = row - self._starts[index]
        tokens = shard.tokens(place)
        excess = 0 if self.context is None else max(0, len(tokens) - self.context)
        if target_starts is None:
            return tokens[: len(tokens) - excess], 0
        return tokens[excess:], int(target_starts[place]) - excess

    def _open(self, index: int) -> tuple[Shard, NDArray | None]:
        shard = self.table.shard(index)
        batches = [shard.batch(i) for i in range(len(shard.entry["batch_offsets"]))]
        if not batches or "target_start" not in batches[0].schema.names:
            return shard, None
        return shard, np.concatenate([batch.column("target_start").to_numpy() for batch in batches])


class Loader:
    """An endless, restartable sequence of batches."""

    def __init__(
        self, dataset: Dataset, *, batch: int, seed: int, context: int | None = None
    ) -> None:
        self.root = dataset.lock.root
        self.folder = dataset.folder
        self.step = 0
        self._batch = batch
        self._seed = seed
        self._streams = [
            Stream(dataset, config, "train", context=context) for config in configs_of(dataset)
        ]
        self._ahead: list[tuple[int, NDArray]] = [(-1, np.zeros(0))] * len(self._streams)
        for stream in self._streams:
            _require_rows(stream, dataset)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self.at(self.step)
        self.step += 1
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:
            stream.close()

    def at(self, step: int) -> Batch:
        """The batch of one step."""
        turn, which = divmod(step, len(self._streams))
        place = turn % _TURNS
        return self._streams[which].batch(self._order(which, turn - place)[place], step)

    def _order(self, which: int, turn: int) -> NDArray:
        """Row numbers of the batches `turn` … `turn` + _TURNS − 1 of one stream."""
        if self._ahead[which][0] != turn:
            stream = self._streams[which]
            positions = np.arange(turn * self._batch, (turn + _TURNS) * self._batch)
            rows = rows_at(positions, rows=len(stream), seed=self._seed, stream=stream.config)
            self._ahead[which] = (turn, rows.reshape(_TURNS, self._batch))
        return self._ahead[which][1]

    def state(self) -> dict[str, Any]:
        """All that a restart needs."""
        return {"step": self.step, "root": self.root}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, on the same dataset only."""
        if state["root"] != self.root:
            raise MismatchError(
                f"the loader state is for a dataset with root {state['root']}, {self.folder} has "
                f"root {self.root}",
                kind="root-mismatch",
                fix="point --out at the dataset the run began with, or begin a new run",
                found=self.root,
                expected=state["root"],
            )
        self.step = int(state["step"])


def configs_of(dataset: Dataset) -> tuple[str, ...]:
    """The configs that training alternates between, in order."""
    names = set(dataset.lock.configs)
    return LEAN_CONFIGS if names == set(LEAN_CONFIGS) else tuple(sorted(names))


def _require_rows(stream: Stream, dataset: Dataset) -> None:
    if not len(stream):
        raise UsageError(
            f"{dataset.folder} has no training rows in config {stream.config}",
            kind="no-rows",
            fix="build a larger profile",
        )
