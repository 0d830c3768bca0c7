"""Memorisation and leakage probes: the same NLLs by what training holds of a validation row.

- A probe puts every validation row into one of its groups, by the data alone: the groups are the
  same for every model, and their sums and counts add up to the score's.
- Memory is O(validation): training rows go by one at a time. Shares of runs of tokens are exact but
  for collisions of 64-bit hashes; runs do not cross rows, and a shorter row is one run.
- Groups differ in more than this (length, module, directory): a difference between them is where to
  look, not what memory is worth. A difference between models in one group is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tangobench.eval.scoring.tally import Scored, Tally
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.lean.audit import LONG
from tangobench.pipeline.reading import Dataset, Rows
from tangobench.pipeline.tokenizer.base import Tokenizer

NDArray = np.ndarray[Any, Any]

NEAR: Final = 0.8  # as in the Lean build's audit of files
PARTLY: Final = 0.2
_TEXT_RUN: Final = 16
_PROOF_RUN: Final = 8  # half of the proofs have fewer than 16 tokens
_PROOFS: Final = ("word for word in training", "nearly in training", "new")
_QUESTIONS: Final = ("other numbers", "other numbers and letters", "new form")
# With its sign, unless that is an operator; with the letters that are digits in bases above ten.
_NUMBER: Final = re.compile(r"((?<![\w)])-)?\b(\d+\.\d+|(?=[a-f]*\d)[\da-f]+)\b")
_LETTER: Final = re.compile(r"\b[a-z]\b")
_MULTIPLIER: Final = 0x9E3779B97F4A7C15  # odd: multiplying loses nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A group for every validation row of a config."""

    name: str
    definition: str
    groups: Sequence[str]
    group_of: NDArray
    """Per row, the place of its group."""

    def measure(self, scored: Scored) -> dict[str, Any]:
        """Rows, sum, count and mean NLL of every group, empty ones too."""
        tallies = scored.by(self.group_of[scored.row], list(self.groups))
        rows = np.bincount(self.group_of, minlength=len(self.groups)).tolist()
        return {
            "definition": self.definition,
            "groups": {
                name: {"rows": rows[place], **tallies.get(name, Tally(0.0, 0)).as_json()}
                for place, name in enumerate(self.groups)
            },
        }


def probes(dataset: Dataset, config: str) -> list[Probe]:
    rows, training = (dataset.rows(config, split) for split in ("validation", "train"))
    if dataset.lock.name == "dm_math":
        return [novelty(rows, training)]
    if (dataset.lock.name, config) == ("lean", "proof"):
        return proofs(rows, training, dataset.text_tokenizer)
    return [near_twin(rows, training)]


def near_twin(rows: Rows, training: Rows) -> Probe:
    share = shares(list(_tokens(rows)), _tokens(training), size=_TEXT_RUN)
    names = ("near twin in training", "partly in training", "not in training")
    return Probe(
        name="near_twin",
        definition=f"Share of a row's runs of {_TEXT_RUN} tokens that occur in training rows: a "
        f"near twin from {NEAR:.0%}, partly from {PARTLY:.0%}.",
        groups=names,
        group_of=np.where(share >= NEAR, 0, np.where(share >= PARTLY, 1, 2)).astype(np.int64),
    )


def proofs(rows: Rows, training: Rows, tokenizer: Tokenizer) -> list[Probe]:
    mine, text = list(_proofs(rows)), tokenizer.decode_bytes
    new = {text(proof).strip() for proof in mine}
    new.difference_update(text(proof).strip() for proof in _proofs(training))
    same = np.array([text(proof).strip() not in new for proof in mine], np.bool_)
    near = shares(mine, _proofs(training), size=_PROOF_RUN) >= NEAR
    group_of = np.where(same, 0, np.where(near, 1, 2)).astype(np.int64)
    long = np.array([len(proof) > LONG for proof in mine], np.int64)
    how = (
        "A proof is in training if a training proof has its text, white space around it aside; "
        f"nearly, if {NEAR:.0%} of its runs of {_PROOF_RUN} tokens occur in training proofs"
    )
    by_length = [f"{name}, {size}" for size in (f"≤ {LONG}", f"> {LONG}") for name in _PROOFS]
    return [
        Probe(name="proof", definition=f"{how}.", groups=_PROOFS, group_of=group_of),
        Probe(
            name="proof_length",
            definition=f"{how}. Lengths are in tokens.",
            groups=by_length,
            group_of=group_of + len(_PROOFS) * long,
        ),
    ]


def novelty(rows: Rows, training: Rows) -> Probe:
    """Questions by what is left of them in training when numbers and letters are left out."""
    forms = [_forms(question) for question in _questions(rows)]
    new = tuple(set(kind) for kind in zip(*forms, strict=True))
    for question in _questions(training) if forms else ():
        for kind, form in zip(new, _forms(question), strict=True):
            kind.discard(form)
    groups = [0 if a not in new[0] else 1 if b not in new[1] else 2 for a, b in forms]
    return Probe(
        name="novelty",
        definition="No question is in training. Other numbers: one there is the same when every "
        "number, its sign included, is replaced by one mark; other numbers and letters: when "
        "every single letter is too; new form: none is.",
        groups=_QUESTIONS,
        group_of=np.array(groups, np.int64),
    )


def _tokens(rows: Rows) -> Iterator[NDArray]:
    return (rows.tokens(row) for row in range(len(rows)))


def _prompted(rows: Rows) -> Iterator[tuple[NDArray, int]]:
    return zip(_tokens(rows), rows.column("target_start").tolist(), strict=True)


def _proofs(rows: Rows) -> Iterator[NDArray]:
    return (tokens[start:-1] for tokens, start in _prompted(rows))


def _questions(rows: Rows) -> Iterator[str]:
    return (vocabulary.text(bytes(tokens[:start].tolist())) for tokens, start in _prompted(rows))


def _forms(question: str) -> tuple[str, str]:
    """The question without its numbers, and also without its single letters."""
    form = _NUMBER.sub("0", question)
    return form, _LETTER.sub("x", form)


def runs_of(tokens: NDArray, size: int) -> NDArray:
    """A hash of every `size` tokens in a row; `size` is a power of two."""
    values = tokens.astype(np.uint64) + np.uint64(1)  # 0 fills up rows that are too short
    if len(values) < size:
        values = np.concatenate([values, np.zeros(size - len(values), np.uint64)])
    state, width, power = _mix(values), 1, _MULTIPLIER
    while width < size:  # a run's hash from those of its halves
        state = state[:-width] * np.uint64(power) + state[width:]
        width, power = 2 * width, power * power & (1 << 64) - 1
    return _mix(state)


def _mix(values: NDArray) -> NDArray:
    values = (values ^ (values >> np.uint64(32))) * np.uint64(_MULTIPLIER)
    return np.asarray(values ^ (values >> np.uint64(29)))


def shares(rows: Sequence[NDArray], training: Iterable[NDArray], *, size: int) -> NDArray:
    """Per row: the share of its runs of `size` tokens that occur in some training row."""
    if not rows:
        return np.zeros(0)
    parts = [runs_of(row, size) for row in rows]
    wanted = np.unique(np.concatenate(parts))
    seen = np.zeros(len(wanted), np.bool_)
    for row in training:
        found = runs_of(row, size)
        at = np.searchsorted(wanted, found)
        at[at == len(wanted)] = 0
        seen[at[wanted[at] == found]] = True
    return np.array([seen[np.searchsorted(wanted, part)].mean() for part in parts])
