"""Proofs judged by Lean in WebAssembly: for theorems that need no Mathlib, many in one run.

- Judge.lean elaborates each file and tries the proofs from the state before their theorem; an
  original that does not pass there makes its proofs unchecked, never failed.
- Heartbeats bound each proof. What ignores them stops the run; that proof has then failed on time,
  and the rest are judged in another run, of which there are at most `_RUNS`.

Usage: `verdicts = WasmChecker().check(tasks)`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from tangobench.eval.lean_wasm import RESULTS, LeanRun, install, run_lean
from tangobench.eval.proof_tasks import Task, Verdict
from tangobench.pipeline.lean_lexer import mask

_IMPORT: Final = re.compile(rb"^(?:public )?(?:meta )?import(?: all)? +(\S+)", re.MULTILINE)
_MODULE: Final = re.compile(rb"\A\s*module\b")
_LIBRARIES: Final = (b"Init", b"Std", b"Lean")
_RUNS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class WasmChecker:
    """Lean 4.28 without Mathlib."""

    heartbeats: int = 200_000  # Lean's own default
    seconds: float = 900.0
    name: str = "wasm"

    def prepare(self) -> None:
        """Fetch it, or say why that cannot be."""
        install()

    def check(self, tasks: Sequence[Task]) -> list[Verdict]:
        """A verdict for each task, in order."""
        verdicts: dict[int, Verdict] = {}
        for index, task in enumerate(tasks):
            foreign = _foreign_import(task.source)
            if foreign:
                verdicts[index] = Verdict("unchecked", "imports", foreign)
        for _ in range(_RUNS):
            left = [index for index in range(len(tasks)) if index not in verdicts]
            if not left:
                break
            run = run_lean(
                lambda folder, left=left: self._text(folder, tasks, left),  # type: ignore[misc]
                seconds=self.seconds,
            )
            verdicts |= _verdicts(run, left)
        silent = Verdict("unchecked", "no-answer", "Lean said nothing about it")
        return [verdicts.get(index, silent) for index in range(len(tasks))]

    def _text(self, folder: Path, tasks: Sequence[Task], left: Sequence[int]) -> str:
        judge = (files("tangobench.eval") / "lean" / "Judge.lean").read_text(encoding="utf-8")
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
            first = first_command(source)
            lines.append(f'#eval Judge.file "{folder / RESULTS}" "{original}" {first} [{listed}]')
        return "\n".join(lines) + "\n"


def _verdicts(run: LeanRun, left: Sequence[int]) -> dict[int, Verdict]:
    found: dict[int, Verdict] = {}
    started = None
    for number, word, *rest in run.results:
        detail = "".join(rest)[:500]
        index = int(number)
        started = index if word == "start" else None
        if word == "proved":
            found[index] = Verdict("proved", "proved")
        elif word == "original":
            found[index] = Verdict("unchecked", "original-fails", detail)
        elif word in ("error", "axiom"):
            late = "deterministic) timeout" in detail
            found[index] = Verdict("failed", "time" if late else word, detail)
    if not run.finished and started is not None:
        found[started] = Verdict("failed", "time", "stopped")
    elif not found:  # nothing would change by asking again
        said = " ".join(m["data"] for m in run.messages if m["severity"] == "error")[:500]
        return {index: Verdict("unchecked", "no-answer", said) for index in left}
    return found


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
