"""A proof to check: the file it belongs to, the place of the original, and the text instead.

- The file with the proof in place of the original is what Lean sees; nothing else changes.
- `refusal` turns down, before Lean is asked, what must not reach it: text that is more than one
  proof, words that end a proof without proving, words that run programs or ask for more time.
  Comments and strings may hold any word.

Usage: `task = Task(...)`, `verdict = refusal(task)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from tangobench.pipeline.lean_commands import commands
from tangobench.pipeline.lean_lexer import Unterminated, mask
from tangobench.pipeline.lean_proofs import Declaration, extract

Outcome = Literal["proved", "failed", "unchecked"]

# What Lean would find out too (`sorry`), what runs programs while a proof is read, what asks for
# more time. Attributes in a trailing `where` could do the second.
_FORBIDDEN: Final = re.compile(
    r"(?<![\w.!?'])(?:sorry|admit|sorryAx|axiom|native_decide|unsafe|dbg_trace|dbg_sleep"
    r"|run_(?:tac|cmd|elab|meta|conv)|by_elab|include_(?:str|bytes)|\w*[mM]axHeartbeats)(?![\w'])"
    r"|\.maxHeartbeats\b|\+\s*native\b|\bnative\s*:="
    r"|@\[[^\]]*\b(?:init|builtin_init|extern|implemented_by|csimp|macro|\w*_?elab|tactic)\b"
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a proof; `reason` is one word, `detail` what was said about it."""

    outcome: Outcome
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """One proof for one theorem."""

    path: str
    source: bytes
    theorem: Declaration
    proof: str

    @property
    def variant(self) -> bytes:
        """The file with the proof in place of the original."""
        start, end = self.theorem.proof_start, self.theorem.proof_end
        return self.source[:start] + self.proof.encode() + self.source[end:]


def refusal(task: Task) -> Verdict | None:
    """Why a proof is not even shown to Lean, if so; it counts as failed."""
    if not task.proof.strip():
        return Verdict("failed", "empty")
    try:
        code = mask(task.proof.encode()).decode()
        same = _shape(task.source) == _shape(task.variant, task)
    except (Unterminated, UnicodeError) as error:
        return Verdict("failed", "malformed", str(error))
    found = _FORBIDDEN.search(code)
    if found:
        return Verdict("failed", "forbidden", found.group())
    if not same:
        return Verdict("failed", "malformed", "it is not one proof and nothing else")
    return None


def _shape(data: bytes, task: Task | None = None) -> list[tuple[bytes, int]]:
    """Every command with its place, places after the proof counted from the end of the file."""
    found = [(c.word, c.word_start) for c in commands(b"\n" + mask(data))]
    if task is None:
        return [(word, place) for word, place in found]
    shift = len(data) - len(task.source)
    start = task.theorem.proof_start + 1
    return [(word, place - shift if place > start else place) for word, place in found]


def theorem_at(source: bytes, proof_start: int) -> Declaration | None:
    """The declaration whose proof starts at this byte."""
    kinds = ("theorem", "lemma", "instance", "example")
    return next((d for d in extract(source, kinds) if d.proof_start == proof_start), None)
