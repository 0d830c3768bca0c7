"""Training batches from locked shards, in an order that is a keyed permutation of the rows.

- Batch `step` is a pure function of (lock root, data-order seed, batch size, step): the same for
  every architecture, microbatch, world size and after any restart. The state is a step number.
- Each index is permuted by itself (a Feistel network), so resuming at any step costs nothing.
- Lean alternates: even steps are source batches, odd steps proof batches.
- Every shard's sha256 is checked in threads ahead of the reader; a row waits for its shard.
- Validation rows are a fixed subset, evenly spaced, about 5% of a run; nothing is selected by it.
- On a CPU the microbatch depends on the recipe alone, so that a resumed run reaches the same bits.
Shapes: B rows of a batch, T tokens of the longest row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import torch

from tangobench.errors import InputError, UsageError
from tangobench.model.kernels import crossgate
from tangobench.model.language import LanguageModel
from tangobench.model.training.optim import autocast
from tangobench.model.training.recipes import Precision, Recipe
from tangobench.pipeline.core.lock import require_data
from tangobench.pipeline.reading import Dataset, target_mask

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
        return int(self.lengths_B.sum())

    def on(self, device: torch.device, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and the places before targets on a device: one copy, ids checked on the host."""
        high = int(self.tokens_BT.max(initial=0))
        if high >= vocabulary or int(self.tokens_BT.min(initial=0)) < 0:
            raise InputError(
                f"{self.config} rows {', '.join(map(str, self.rows.tolist()))} hold token {high}, "
                f"outside the vocabulary of {vocabulary}",
                kind="token-out-of-range",
                fix="use the dataset that the recipe was made for",
            )
        before = np.zeros_like(self.targets_BT)
        before[:, :-1] = self.targets_BT[:, 1:]
        places = np.flatnonzero(before).astype(np.int32)
        packed = torch.from_numpy(np.concatenate((self.tokens_BT.ravel(), places)))
        if device.type == "cuda":
            packed = packed.pin_memory().to(device, non_blocking=True)
        tokens, marked = packed.split((self.tokens_BT.size, len(places)))
        return tokens.view(self.tokens_BT.shape), marked.long()

    def microbatches(self, size: int, *, rank: int = 0, world: int = 1) -> Iterator[Batch]:
        """This rank's rows in parts of at most `size`, sorted by length: less padding.

        The gradient is a sum over rows, so neither the order nor the parts can change it.
        """
        mine = np.argsort(self.lengths_B, kind="stable")[rank::world]
        for start in range(0, len(mine), size):
            places = mine[start : start + size]
            lengths = self.lengths_B[places]
            wide = (x[places, : int(lengths.max())] for x in (self.tokens_BT, self.targets_BT))
            tokens, targets = map(np.ascontiguousarray, wide)
            yield Batch(self.step, self.config, self.rows[places], tokens, targets, lengths)


class Stream:
    """All rows of one config and split with their target masks, from checked shards.

    Arrays over all rows hold the place of each, filled shard by shard as they are checked.
    """

    def __init__(
        self, dataset: Dataset, config: str, split: str, *, context: int | None = None
    ) -> None:
        self.config = config
        self.convention = dataset.lock.configs[config]
        self.context = context
        self.table = dataset.rows(config, split)
        entries = dataset.lock.shards_of(config, split)
        self._bounds = np.cumsum([0, *(entry["rows"] for entry in entries)])
        self._starts = np.empty(len(self.table), np.int64)
        self._lengths = np.empty(len(self.table), np.int32)
        self._first_targets = np.empty(len(self.table), np.int32)
        self._pool = ThreadPoolExecutor(_CHECKERS, thread_name_prefix="shard-check")
        self._checks = [self._pool.submit(self._open, index) for index in range(len(entries))]

    def __len__(self) -> int:
        return len(self.table)

    def close(self) -> None:
        """Drop checks that nobody waits for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def row(self, row: int) -> tuple[NDArray, NDArray]:
        """Tokens and target mask of a row, cut to the context if one is set."""
        (flat,), starts, lengths, firsts = self._find(np.array([row]))
        tokens = flat[starts[0] : starts[0] + lengths[0]]
        return tokens, target_mask(self.convention, tokens, int(firsts[0]))

    def batch(self, rows: NDArray, step: int = 0) -> Batch:
        """Chosen rows, padded; the masks are those of `row`, made for all rows at once."""
        flats, starts, lengths, firsts = self._find(rows)
        longest, ragged = int(lengths.max()), int(lengths.min()) < int(lengths.max())
        tokens_BT = np.empty((len(rows), longest), np.int32)
        if ragged:
            tokens_BT.fill(self.convention["pad"])
        stops = (starts + lengths).tolist()
        for out, flat, start, stop in zip(tokens_BT, flats, starts.tolist(), stops, strict=True):
            out[: stop - start] = flat[start:stop]
        masked = self.convention["masked_target"]
        targets_BT = np.ones_like(tokens_BT, bool) if masked is None else tokens_BT != masked
        targets_BT[:, 0] = False
        if ragged or int(firsts.max()) > 1:
            position = np.arange(longest, dtype=np.int32)
            targets_BT &= position >= firsts[:, None]
            targets_BT &= position < lengths[:, None]
        return Batch(step, self.config, rows, tokens_BT, targets_BT, lengths.astype(np.int64))

    def _find(self, rows: NDArray) -> tuple[list[NDArray], NDArray, NDArray, NDArray]:
        """Each row's file, start, length and first target; cut, a prompted row keeps its end."""
        shards = (np.searchsorted(self._bounds, rows, side="right") - 1).tolist()
        opened = {shard: self._checks[shard].result() for shard in set(shards)}
        flats = [opened[shard][0] for shard in shards]
        starts, lengths, firsts = (
            x[rows] for x in (self._starts, self._lengths, self._first_targets)
        )
        if self.context is None:
            return flats, starts, lengths, firsts
        excess = np.maximum(lengths - self.context, 0)
        prompted = np.array([opened[shard][1] for shard in shards])
        kept_end = np.where(prompted, excess, 0)
        return flats, starts + kept_end, lengths - excess, firsts - kept_end

    def _open(self, index: int) -> tuple[NDArray, bool]:
        """Check a shard and note where its rows are; its tokens, and whether rows have prompts."""
        shard = self.table.shard(index)
        rows = slice(self._bounds[index], self._bounds[index + 1])
        flat, self._starts[rows], self._lengths[rows] = shard.token_places
        batches = [shard.batch(i) for i in range(len(shard.entry["batch_offsets"]))]
        if not batches or "target_start" not in batches[0].schema.names:
            self._first_targets[rows] = 0
            return flat, False
        first = [batch.column("target_start").to_numpy() for batch in batches]
        self._first_targets[rows] = np.concatenate(first)
        return flat, True


class Loader:
    """An endless, restartable sequence of batches."""

    def __init__(
        self, dataset: Dataset, *, batch: int, seed: int, context: int | None = None
    ) -> None:
        self._lock, self.folder = dataset.lock, dataset.folder
        self._batch, self._seed, self.step = batch, seed, 0
        self._streams = [
            Stream(dataset, config, "train", context=context) for config in configs_of(dataset)
        ]
        self._ahead: list[tuple[int, NDArray]] = [(-1, np.zeros(0))] * len(self._streams)
        for stream in self._streams:
            if not len(stream):
                why = f"{dataset.folder} has no training rows in config {stream.config}"
                raise UsageError(why, kind="no-rows", fix="build a larger profile")

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
        roots = {"root": self._lock.root, "content_root": self._lock.content_root}
        return {"step": self.step, **roots}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken, on the same dataset only."""
        require_data(self._lock, state, f"the dataset {self.folder}")
        self.step = int(state["step"])


def configs_of(dataset: Dataset) -> tuple[str, ...]:
    """The configs that training alternates between, in order."""
    names = set(dataset.lock.configs)
    return LEAN_CONFIGS if names == set(LEAN_CONFIGS) else tuple(sorted(names))


def rows_at(positions: NDArray, *, rows: int, seed: int, stream: str) -> NDArray:
    """The rows at `positions` of an endless order that visits every row once per epoch."""
    if rows < 1:
        raise ValueError("an order needs at least one row")
    epochs, indices = np.divmod(positions, rows)
    found = np.empty_like(positions)
    for epoch in np.unique(epochs).tolist():
        chosen = epochs == epoch
        found[chosen] = permute(indices[chosen], rows=rows, seed=seed, epoch=epoch, stream=stream)
    return found


def permute(indices: NDArray, *, rows: int, seed: int, epoch: int, stream: str) -> NDArray:
    half = max(1, ((rows - 1).bit_length() + 1) // 2)  # the next power of four: at most 4 walks
    text = f"tangobench-order/1 seed={seed} epoch={epoch} stream={stream} rows={rows}"
    keys = np.frombuffer(hashlib.sha512(text.encode()).digest(), "<u8")  # eight rounds
    values = _feistel(np.asarray(indices, np.uint64), keys, half)
    while (outside := np.flatnonzero(values >= rows)).size:
        values[outside] = _feistel(values[outside], keys, half)
    return values.astype(np.int64)


def _feistel(values: NDArray, keys: NDArray, half: int) -> NDArray:
    shift = np.uint64(half)
    mask = np.uint64((1 << half) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        z = right + key  # then SplitMix64's finaliser: every input bit moves every output bit
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        left, right = right, left ^ ((z ^ (z >> np.uint64(31))) & mask)
    mixed: NDArray = (left << shift) | right
    return mixed


POINTS: Final = 20  # measurements of a run
_MOST_ROWS: Final = 256
_SHARE: Final = 0.05  # of a run's time; a forward pass is a third of a step


class Validation:
    """The fixed validation rows of a run; configs without validation rows are left out."""

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        configs = [c for c in configs_of(dataset) if "validation" in dataset.lock.splits(c)]
        budget = int(_SHARE * 3 * recipe.steps * recipe.batch / POINTS / max(1, len(configs)))
        self._precision = recipe.precision
        self._batches: dict[str, Batch] = {}
        self.rows = 0
        for config in configs:
            stream = Stream(dataset, config, "validation", context=recipe.context)
            count = min(len(stream), _MOST_ROWS, max(4, budget))
            rows = np.linspace(0, max(0, len(stream) - 1), count).astype(np.int64)
            if count:
                self._batches[config] = stream.batch(rows)
                self.rows += count
            stream.close()

    @torch.no_grad()
    def nll(self, model: LanguageModel, microbatch: int) -> dict[str, float]:
        """Mean NLL of the subset's targets in nats, by config, some rows at once."""
        device = next(model.parameters()).device
        found = {}
        for config, whole in self._batches.items():
            total, count = 0.0, 0
            for batch in whole.microbatches(microbatch):
                tokens, places = batch.on(device, model.config.vocabulary)
                with autocast(device.type, self._precision):
                    nll = model.loss_at(tokens, places)
                total, count = total + float(nll), count + batch.targets
            if count:
                found[config] = total / count
        return found


# More at once is slower on a CPU: activations leave the caches, and rows sorted by length are
# padded less in small parts. Mini steps on mathematics, 4 rows against 8: TANGO and FLASH 0.97,
# Untied 0.95, WANGO 0.87, GAU 0.86 of the time.
_CPU_ROWS: Final = 4
_CPU_TOKENS: Final = 2048


def rows_at_once(model: LanguageModel, rows: int, context: int, precision: Precision) -> int:
    """A power of two of rows, at most `rows`; on a GPU also decides what is recomputed."""
    device = next(model.parameters()).device
    if device.type == "cpu":
        return rows_on_cpu(rows, context)
    from tangobench.model.training.plan import fitting

    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_allocated(device)
    fit = fitting(model.config, rows, context, precision, free)
    crossgate.Policy.recompute = fit.recomputes
    return fit.rows


def rows_on_cpu(rows: int, context: int) -> int:
    """A power of two of rows that stay in the caches."""
    return power_of_two(min(rows, _CPU_ROWS, max(1, _CPU_TOKENS // context)))


def power_of_two(number: int) -> int:
    return 1 << (number.bit_length() - 1)
