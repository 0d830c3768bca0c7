"""Proofs judged by Lean in WebAssembly: for theorems that need no Mathlib, many in one run.

- Judge.lean elaborates each file and tries the proofs from the state before their theorem; an
  original that does not pass there makes its proofs unchecked, never failed.
- A proof that stops a run, by silence or by a crash, has failed only if that run judged nothing
  before it; else it comes first in the next run. So every run decides something.
- A line of the results counts only if it is one that Judge.lean writes, about a proof of this run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from tangobench.eval.proofs.lean_wasm import RESULTS, LeanRun, install, run_lean
from tangobench.eval.proofs.tasks import SHOWN, Decided, Task, Verdict, unavailable
from tangobench.pipeline.lean.lexer import mask

_IMPORT: Final = re.compile(rb"^(?:public )?(?:meta )?import(?: all)? +(\S+)", re.MULTILINE)
_MODULE: Final = re.compile(rb"\A\s*module\b")
_LIBRARIES: Final = (b"Init", b"Std", b"Lean")
_STOPPED: Final = {
    "time": Verdict("failed", "time", "stopped"),
    "crash": Verdict("failed", "crash", "Lean died of it"),
    "killed": Verdict("unchecked", "killed", "by somebody else, or for want of memory"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WasmChecker:
    """Lean 4.28 without Mathlib."""

    heartbeats: int = 200_000  # Lean's own default
    seconds: float = 900.0  # without a result, which a proof of few heartbeats never takes
    name: str = "wasm"

    def prepare(self) -> None:
        """Fetch it, or say why that cannot be."""
        install()

    def check(self, tasks: Sequence[Task], decided: Decided) -> None:
        """Call `decided` with each task's number and verdict, as they come."""
        left = []
        for index, task in enumerate(tasks):
            foreign = _foreign_import(task.source)
            if foreign:
                decided(index, Verdict("unchecked", "imports", foreign))
            else:
                left.append(index)
        while left:
            left = self._run(tasks, left, decided)

    def _run(self, tasks: Sequence[Task], left: list[int], decided: Decided) -> list[int]:
        """One run of Lean; returns the proofs that another one must judge."""
        judge = _Judge(left, decided)
        run = run_lean(
            lambda folder: self._text(folder, tasks, left), seconds=self.seconds, heard=judge.heard
        )
        if not judge.files:
            said = _errors(run) or f"stopped ({run.stopped}) before the first file"
            raise unavailable(f"Lean cannot judge: {said}", "try again with more memory free")
        rest = [index for index in left if index in judge.open]
        if run.finished:
            given_up = {index: Verdict("unchecked", "no-answer", _errors(run)) for index in rest}
        elif len(rest) < len(left):  # others came before what stopped it, and may be why
            given_up = {}
        elif judge.proof is not None and len(judge.files) == 1:
            given_up = {judge.proof: _STOPPED[run.stopped]}
        else:
            path = tasks[judge.files[0]].path
            silent = Verdict("unchecked", "no-answer", f"{run.stopped}, but not in a proof")
            given_up = {index: silent for index in rest if tasks[index].path == path}
        for index, verdict in given_up.items():
            decided(index, verdict)
        return [index for index in rest if index not in given_up]

    def _text(self, folder: Path, tasks: Sequence[Task], left: Sequence[int]) -> str:
        judge = (files("tangobench.eval.proofs") / "lean" / "Judge.lean").read_text(
            encoding="utf-8"
        )
        lines = [
            *("import Lean", judge),
            *("set_option Elab.async false", f"set_option maxHeartbeats {self.heartbeats}"),
        ]
        sources: dict[tuple[str, bytes], list[int]] = {}
        for index in left:
            sources.setdefault((tasks[index].path, tasks[index].source), []).append(index)
        for number, ((_, source), members) in enumerate(sources.items()):
            original = folder / f"{number}.lean"
            original.write_bytes(without_imports(source))
            asked: dict[int, list[str]] = {}
            for index in members:
                variant = folder / f"{number}-{index}.lean"
                variant.write_bytes(without_imports(tasks[index].variant))
                byte = tasks[index].theorem.kw_start
                asked.setdefault(byte, []).append(f'({index}, "{variant}")')
            listed = ", ".join(f"({byte}, [{', '.join(v)}])" for byte, v in sorted(asked.items()))
            numbers = f"{members[0]} {first_command(source)}"
            lines.append(f'#eval Judge.file "{folder / RESULTS}" "{original}" {numbers} [{listed}]')
        return "\n".join(lines) + "\n"


class _Judge:
    """What the lines of one run say, and where the run stands."""

    def __init__(self, left: Sequence[int], decided: Decided) -> None:
        self.open = set(left)
        self.files: list[int] = []  # a proof of each file so far
        self.proof: int | None = None  # the proof at hand
        self._numbers = {str(index): index for index in left}
        self._decided = decided

    def heard(self, fields: list[str]) -> None:
        """Take one line."""
        if len(fields) != 3 or self._numbers.get(fields[0]) not in self.open:
            return
        index, word, detail = self._numbers[fields[0]], fields[1], fields[2][:SHOWN]
        if word == "file":
            self.files.append(index)
        self.proof = index if word == "start" else None
        verdict = _verdict(word, detail)
        if verdict is not None:
            self.open.discard(index)
            self._decided(index, verdict)


def _verdict(word: str, detail: str) -> Verdict | None:
    if word == "proved":
        return Verdict("proved", "proved")
    if word == "original":
        return Verdict("unchecked", "original-fails", detail)
    if word in ("error", "axiom"):
        late = "deterministic) timeout" in detail
        return Verdict("failed", "time" if late else word, detail)
    return None


def _errors(run: LeanRun) -> str:
    return " ".join(m["data"] for m in run.messages if m.get("severity") == "error")[:SHOWN]


def without_imports(source: bytes) -> bytes:
    """The file with its header blanked out; every other byte keeps its place."""
    code = mask(source)
    spans = [match.span() for match in _IMPORT.finditer(code)]
    module = _MODULE.match(code)
    spans += [module.span()] if module else []
    data = bytearray(source)
    for start, end in spans:
        data[start:end] = b" " * (end - start)
    return bytes(data)


def first_command(source: bytes) -> int:
    """Where the first command after the header starts."""
    code = mask(without_imports(source))
    return len(code) - len(code.lstrip())


def _foreign_import(source: bytes) -> str:
    """An import that is not Lean's own library."""
    for match in _IMPORT.finditer(mask(source)):
        if match[1].split(b".")[0] not in _LIBRARIES:
            return match[1].decode(errors="replace")
    return ""
