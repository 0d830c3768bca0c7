"""What a model writes: exact match of answers (DeepMind Mathematics), samples, any prompt.

- An answer's prompt is the row up to its first target (BOS, question, SEP). It is right if greedy
  decoding gives the generator's characters, EOS included, that is, if each of them has the highest
  logit after the true ones before it. The pass that scores shows that; near-ties are decoded.
- Prompts of different lengths share a batch: they are padded behind, where causal models never
  look. Which rows share one cannot change an answer (batch invariance is a test of the models).
- Samples are of rows that are evenly spaced over the split. A row with a target is continued from
  there; any other from its middle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from tangobench.catalogue import CATALOGUE
from tangobench.errors import InputError
from tangobench.eval.scoring.tally import MatchReport, Scored
from tangobench.model.language import LanguageModel
from tangobench.model.training.loader import Stream
from tangobench.pipeline.dm_math.vocabulary import EOS, SYMBOLS, question_prefix
from tangobench.pipeline.reading import Dataset
from tangobench.pipeline.tokenizer.base import VOCABULARY_SIZE, Tokenizer, gpt2

_LONGEST_ANSWER: Final = 31  # upstream's limit of 30 characters, and EOS
_CLOSE: Final = 1e-2  # in logits: far above the rounding between a parallel pass and decoding
_BATCH: Final = 16
_LONGEST: Final = 128


def exact_match(
    model: Any,
    dataset: Dataset,
    scored: Scored,
    *,
    config: str = "default",
    split: str = "validation",
    keep_wrong: int = 100,
) -> MatchReport:
    """Whether a model, whose scores of a split these are, answers as the generator does."""
    rows = dataset.rows(config, split)
    report = MatchReport(dataset.lock.notes["combinations"])
    margins, counts = np.full(len(rows), np.inf), np.bincount(scored.row, minlength=len(rows))
    np.minimum.at(margins, scored.row, scored.lead)
    for index in np.argsort(rows.column("target_start"), kind="stable").tolist():
        row = rows[index]
        whole = counts[index] == len(row["tokens"]) - row["target_start"]  # not cut to a context
        _judge(report, row, float(margins[index]) if whole else 0.0, model, keep_wrong)
    return report


def _judge(
    report: MatchReport, row: dict[str, Any], margin: float, model: Any, keep_wrong: int
) -> None:
    """Count a row; it is decoded if the margin is too small to tell or its wrong answer is kept."""
    start = row["target_start"]
    expected = row["tokens"][start:].tolist()
    report.tried[row["combination"]] += 1
    right, answer = margin > 0, []
    if abs(margin) < _CLOSE or (not right and len(report.wrong) < keep_wrong):
        (answer,) = continuations(model, [row["tokens"][:start]], _LONGEST_ANSWER, stop=EOS)
        # A row that ended early is filled up with EOS; one that never ended has none.
        right = answer[: len(expected)] == expected
    if right:
        report.correct[row["combination"]] += 1
    elif len(report.wrong) < keep_wrong:
        report.wrong.append(
            {
                "combination": report.names[row["combination"]],
                "question": _symbols(row["tokens"][1 : start - 1].tolist()),
                "expected": _symbols(expected[:-1]),
                "generated": _symbols(answer[: answer.index(EOS)] if EOS in answer else answer),
            }
        )


def padded(rows: Sequence[Any]) -> torch.Tensor:
    """Token ids as one tensor, zeros behind the short ones."""
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = torch.from_numpy(np.asarray(row, np.int64))
    return ids


def continuations(
    model: Any, prompts: Sequence[Any], longest: int, *, stop: int, **sampling: Any
) -> list[list[int]]:
    """At most `longest` new tokens of each prompt; what ended early is filled up with `stop`."""
    device = model.embed.device
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    out = model.generate(
        padded(prompts).to(device), longest, stop=stop, lengths=lengths, **sampling
    )
    generated: list[list[int]] = out.tolist()
    return generated


def spaced(stream: Stream, limit: int) -> Any:
    return np.linspace(0, len(stream) - 1, min(limit, len(stream))).astype(np.int64)


def samples(
    model: LanguageModel, stream: Stream, limit: int, tokenizer: Tokenizer | None = None
) -> Iterator[dict[str, Any]]:
    rows, codec = spaced(stream, limit).tolist(), codec_of(model, tokenizer)
    for start in range(0, len(rows), _BATCH):
        chosen = rows[start : start + _BATCH]
        cut = [_cut(*stream.row(row)) for row in chosen]
        longest = min(_LONGEST, max(len(target) for _, target in cut))
        answers = continuations(model, [prompt for prompt, _ in cut], longest, stop=codec.stop)
        for row, (prompt, target), found in zip(chosen, cut, answers, strict=True):
            texts = (text_of(codec, ids) for ids in (prompt, found, target))
            yield {"row": row, **dict(zip(("prompt", "answer", "target"), texts, strict=True))}


def _cut(tokens: Any, is_target: Any) -> tuple[list[int], list[int]]:
    first = int(np.flatnonzero(is_target)[0]) if is_target.any() else 1
    first = max(1, first if first > 1 else len(tokens) // 2)
    return tokens[:first].tolist(), tokens[first:].tolist()


def answer(
    model: LanguageModel,
    prompt: str,
    tokenizer: Tokenizer | None = None,
    *,
    longest: int = _LONGEST,
    temperature: float = 0.0,
    seed: int = 0,
) -> str:
    codec = codec_of(model, tokenizer)
    ids, limit = codec.prompt(prompt), model.config.context
    if not ids or (model.config.arch == "gau" and len(ids) + longest > limit):
        why = f"a prompt of {len(ids)} tokens and {longest} new ones, the model takes 1 to {limit}"
        fix = "shorten the prompt, or give a smaller --tokens"
        raise InputError(why, kind="bad-prompt", fix=fix)
    generator = torch.Generator(model.embed.device).manual_seed(seed)
    sampling = {"temperature": temperature, "generator": generator}
    (found,) = continuations(model, [ids], longest, stop=codec.stop, **sampling)
    return text_of(codec, found)


@dataclass(frozen=True, slots=True)
class Codec:
    """A model's way from text to ids and back, and the id that ends an answer."""

    prompt: Callable[[str], list[int]]
    text: Callable[[list[int]], str]
    stop: int


def codec_of(model: LanguageModel, tokenizer: Tokenizer | None) -> Codec:
    """That of the tokenizer that the run keeps, or of the vocabulary's size."""
    size = model.config.vocabulary
    if tokenizer is None and size == CATALOGUE["dm_math"].vocabulary:
        return Codec(lambda text: list(question_prefix(text)), _symbols, EOS)
    tokenizer = gpt2() if tokenizer is None and size == VOCABULARY_SIZE else tokenizer
    if tokenizer is None:
        why = f"the model has {size:,} token ids, neither GPT-2's nor the mathematics'"
        fix = "decode its tokens with its own tokenizer"
        raise InputError(why, kind="tokenizer-unknown", fix=fix)
    known = tokenizer

    def text(ids: list[int]) -> str:
        inside = [ident for ident in ids if ident < known.size]  # a model may have more ids
        return known.decode_bytes(inside).decode("utf-8", "backslashreplace")

    return Codec(lambda words: known.encode(words).tolist(), text, known.eot)


def _symbols(ids: Sequence[int]) -> str:
    return "".join(SYMBOLS[symbol] for symbol in ids)


def text_of(codec: Codec, ids: list[int]) -> str:
    return codec.text(ids[: ids.index(codec.stop)] if codec.stop in ids else ids)
