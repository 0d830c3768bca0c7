"""Generated-answer exact match on DeepMind Mathematics, with each architecture's own fast decode.

- The prompt is the row up to its first target (BOS, question, SEP); decoding is greedy and ends at
  EOS. An answer counts if and only if its characters equal the generator's, EOS included.
- Shares are given per module, per difficulty and overall, each with its 95% Wilson interval.
- Prompts of different lengths share a batch: they are padded behind, where causal models never
  look. Which rows share one cannot change an answer (batch invariance is a test of the models).

Usage: `report = exact_match(model, open_dataset(folder), split="validation")`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch

from tangobench.eval.scoring.tally import MatchReport
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.dm_math.vocabulary import EOS, SYMBOLS
from tangobench.pipeline.reading import Dataset, Rows

_LONGEST_ANSWER: Final = 31  # upstream's limit of 30 characters, and EOS


def exact_match(
    model: Any,
    dataset: Dataset,
    *,
    config: str = "default",
    split: str = "validation",
    batch: int = 64,
    keep_wrong: int = 100,
    reporter: Reporter | None = None,
) -> MatchReport:
    """Decode an answer to every question of a split and compare."""
    rows = dataset.rows(config, split)
    report = MatchReport(dataset.lock.notes["combinations"])
    reporter = reporter or Reporter(quiet=True)
    reporter.start("answer", -(-len(rows) // batch), len(rows))
    for indices in _batches_by_length(rows, batch):
        for index, answer in zip(indices, _answers(model, rows, indices), strict=True):
            _judge(report, rows[index], answer, keep_wrong)
        reporter.advance(len(indices))
    reporter.finish()
    return report


def _batches_by_length(rows: Rows, batch: int) -> Iterator[list[int]]:
    """Rows of similar prompt length together, so that few steps are spent on fed tokens."""
    order = np.argsort(rows.column("target_start"), kind="stable")
    for start in range(0, len(order), batch):
        yield [int(index) for index in order[start : start + batch]]


def _answers(model: Any, rows: Rows, indices: Sequence[int]) -> list[list[int]]:
    prompts = [rows.tokens(index)[: rows.value(index, "target_start")] for index in indices]
    return continuations(model, prompts, _LONGEST_ANSWER, stop=EOS)


def _judge(report: MatchReport, row: dict[str, Any], answer: list[int], keep_wrong: int) -> None:
    start = row["target_start"]
    expected = row["tokens"][start:].tolist()
    report.tried[row["combination"]] += 1
    # Rows that ended early are filled up with EOS; one that never ended has none.
    if answer[: len(expected)] == expected:
        report.correct[row["combination"]] += 1
    elif len(report.wrong) < keep_wrong:
        report.wrong.append(
            {
                "combination": report.names[row["combination"]],
                "question": _text(row["tokens"][1 : start - 1].tolist()),
                "expected": _text(expected[:-1]),
                "generated": _text(answer[: answer.index(EOS)] if EOS in answer else answer),
            }
        )


def _text(ids: Sequence[int]) -> str:
    return "".join(SYMBOLS[symbol] for symbol in ids)


def padded(rows: Sequence[Any]) -> torch.Tensor:
    """Token ids as one tensor, zeros behind the short ones."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.from_numpy(np.asarray(row, np.int64))
    return ids


def continuations(
    model: Any, prompts: Sequence[Any], longest: int, *, stop: int
) -> list[list[int]]:
    """At most `longest` new tokens of each prompt; what ended early is filled up with `stop`."""
    device = model.embed.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    out = model.generate(padded(prompts).to(device), longest, stop=stop, lengths=lengths)
    generated: list[list[int]] = out.tolist()
    return generated
