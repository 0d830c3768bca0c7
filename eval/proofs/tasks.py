"""A proof to check: the file it belongs to, the place of the original, and the text instead.

- The file with the proof in place of the original is what Lean sees; nothing else changes.
- `refusal` turns down, before Lean is asked, what must not reach it: text that is more than one
  proof, words that end a proof without proving, words that run programs or ask for more time, all
  options but a few that prove nothing. Comments and strings may hold any word; interpolated
  strings and quotations hold code that is not looked at, so there may be none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from tangobench.errors import ResourceError
from tangobench.pipeline.lean.lexer import Unterminated, mask, matches
from tangobench.pipeline.lean.proofs import Declaration, extract

Outcome = Literal["proved", "failed", "unchecked"]
SHOWN: Final = 500  # characters of what Lean said

# What Lean would find out too (`sorry`), what runs programs while a proof is read, what asks for
# more time. Attributes in a trailing `where` could do the second. Options can turn the kernel off
# (`debug.skipKernelTC`); the proofs of Mathlib at the pinned commit set one, `linter.deprecated`.
_FORBIDDEN: Final = re.compile(
    r"(?<![\w.!?'])(?:sorry|admit|sorryAx|axiom|native_decide|unsafe|dbg_trace|dbg_sleep"
    r"|run_(?:tac|cmd|elab|meta|conv)|by_elab|include_(?:str|bytes)|\w*[mM]axHeartbeats)(?![\w'])"
    r"|\.maxHeartbeats\b|\+\s*native\b|\bnative\s*:="
    r"|@\[[^\]]*\b(?:init|builtin_init|extern|implemented_by|csimp|macro|\w*_?elab|tactic)\b"
    r"|(?<![\w.!?'])set_option(?![\w'])(?!\s+(?:maxRecDepth|(?:pp|linter)(?:\.\w+)+)\s)\s*\S*"
    r'|[a-z]!\s?"'
)
_SCOPE_NAME: Final = re.compile(rb"[ \t]+(\S+)")
_QUOTATION: Final = re.compile(rb"`\(")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a proof; `reason` is one word, `detail` is mostly Lean's message."""

    outcome: Outcome
    reason: str
    detail: str = ""


PROVED: Final = Verdict("proved", "proved")


def failed(said: object) -> Verdict:
    """The verdict on a proof about which Lean said this error."""
    text = str(said)
    return Verdict("failed", "time" if "deterministic) timeout" in text else "error", text[:SHOWN])


def original_fails(verdict: Verdict) -> Verdict:
    """The verdict on proofs of a theorem whose own proof gets this one."""
    if verdict.outcome != "failed":
        return verdict
    return Verdict("unchecked", "original-fails", f"{verdict.reason} {verdict.detail}")


Decided = Callable[[int, Verdict], None]
"""Takes the number of a task and its verdict."""


@dataclass(frozen=True, slots=True)
class Task:
    """One proof for one theorem."""

    path: str
    source: bytes
    theorem: Declaration
    proof: str

    @property
    def variant(self) -> bytes:
        start, end = self.theorem.proof_start, self.theorem.proof_end
        return self.source[:start] + self.proof.encode() + self.source[end:]


def unavailable(message: str, fix: str) -> ResourceError:
    return ResourceError(message, kind="lean-unavailable", fix=fix)


def refusal(task: Task) -> Verdict | None:
    """Why a proof is not even shown to Lean, if so; it counts as failed."""
    if not task.proof.strip():
        return Verdict("failed", "empty")
    try:
        proof = task.proof.encode()
        masked = mask(proof)
        code = masked.decode()
        same = _shape(task.source) == _shape(task.variant, task)
    except (Unterminated, UnicodeError) as error:
        return Verdict("failed", "malformed", str(error))
    found = _FORBIDDEN.search(code)
    if found:
        return Verdict("failed", "forbidden", found.group())
    # In place of a quotation's backtick the mask has its bracket; in a comment it has a space.
    if any(masked[match.start()] == ord("(") for match in _QUOTATION.finditer(proof)):
        return Verdict("failed", "forbidden", "a quotation")
    if not same:
        return Verdict("failed", "malformed", "it is not one proof and nothing else")
    return None


def _shape(data: bytes, task: Task | None = None) -> list[tuple[bytes, int]]:
    """Every command with its place, places after the proof counted from the end of the file."""
    commands = matches(b"\n" + mask(data))
    found = [(c["word"] or b"", c.start("word") if c["word"] else c.start() + 1) for c in commands]
    if task is None:
        return found
    shift = len(data) - len(task.source)
    start = task.theorem.proof_start + 1
    return [(word, place - shift if place > start else place) for word, place in found]


def theorem_at(source: bytes, proof_start: int) -> Declaration | None:
    kinds = ("theorem", "lemma", "instance", "example")
    return next((d for d in extract(source, kinds) if d.proof_start == proof_start), None)


def place_of(task: Task) -> tuple[int, str] | None:
    """Where the command (with `open … in`) starts, and the full name; None inside `mutual`."""
    code = mask(task.source)
    scopes: list[str] = []  # open namespaces by their names, sections as "", `mutual` as itself
    for command in matches(b"\n" + code):
        if command.start("word") - 1 == task.theorem.kw_start:
            name = task.theorem.name
            outer = [] if name.startswith("_root_.") else filter(None, scopes)
            full = ".".join([*outer, name.removeprefix("_root_.")])
            return None if "mutual" in scopes else (command.start(), full)
        named = _SCOPE_NAME.match(code, command.end() - 1)
        parts = task.source[slice(*named.span(1))].decode().split(".") if named else [""]
        opened = {b"namespace": parts, b"section": [""] * len(parts), b"mutual": ["mutual"]}
        if command["word"] == b"end":
            del scopes[-len(parts) :]
        else:
            scopes += opened.get(command["word"], [])
    return None
