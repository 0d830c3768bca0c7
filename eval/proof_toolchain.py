"""Proofs judged by an installed Lean with Mathlib built, through lean-interact's REPL.

- The file up to the theorem gives the state; the original must pass from there, then each proof is
  tried from the same state. No original, no verdict: unchecked.
- A proof passes without errors, without `sorry`, and with axioms from `_AXIOMS` only, by
  `#print axioms`.
- The REPL runs in a sandbox (bubblewrap): everything is read-only, /tmp is its own, there is no
  network. Each request has a time limit, the process a memory limit.

Usage: `verdicts = ToolchainChecker(project=Path("mathlib4")).check(tasks)`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import ResourceError
from tangobench.eval.proof_tasks import Task, Verdict
from tangobench.pipeline.lean_commands import commands
from tangobench.pipeline.lean_lexer import mask

_AXIOMS: Final = frozenset(("propext", "Classical.choice", "Quot.sound"))
_DEPENDS: Final = re.compile(r"depends on axioms: \[([^\]]*)\]")
_SANDBOX: Final = (
    *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),
    *("--unshare-all", "--die-with-parent", "--new-session"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolchainChecker:
    """The Lean of a project, with whatever the project has built."""

    project: Path
    repl: Path | None = None  # a built REPL of the same Lean; else lean-interact fetches one
    seconds: float = 120.0
    megabytes: int = 16_384
    lake: str = "lake"
    name: str = "toolchain"

    def prepare(self) -> None:
        """Say what is missing."""
        if not (self.project / "lean-toolchain").exists():
            raise _unavailable(f"{self.project} is no Lean project", "name one with --project")
        for program, fix in (
            (self.lake, "install Lean with elan"),
            ("bwrap", "install bubblewrap"),
        ):
            if shutil.which(program) is None:
                raise _unavailable(f"{program} is not installed", fix)
        try:
            import lean_interact  # noqa: F401
        except ImportError:
            fix = "pip install 'tangobench[lean]'"
            raise _unavailable("lean-interact is not installed", fix) from None

    def check(self, tasks: Sequence[Task]) -> list[Verdict]:
        """A verdict for each task, in order."""
        self.prepare()
        verdicts: dict[int, Verdict] = {}
        theorems: dict[tuple[str, bytes, int], list[int]] = {}
        for index, task in enumerate(tasks):
            key = (task.path, task.source, task.theorem.kw_start)
            theorems.setdefault(key, []).append(index)
        with tempfile.TemporaryDirectory(prefix="tangobench-lean-") as folder:
            session = _Session(self, Path(folder))
            for members in theorems.values():
                found = session.judge([tasks[index] for index in members])
                verdicts |= dict(zip(members, found, strict=True))
            session.close()
        return [verdicts[index] for index in range(len(tasks))]


class _Session:
    """A REPL that is started again when a proof has cost it its life."""

    def __init__(self, checker: ToolchainChecker, folder: Path) -> None:
        from lean_interact import LeanREPLConfig, LocalProject

        project = LocalProject(directory=checker.project, lake_path=checker.lake, auto_build=False)
        self._config = LeanREPLConfig(
            project=project,
            local_repl_path=checker.repl,
            build_repl=checker.repl is None,
            lake_path=checker.lake,
            memory_hard_limit_mb=checker.megabytes,
        )
        self._config.lake_path = _sandboxed(checker.lake, folder)
        self._seconds = checker.seconds
        self._server: Any = None
        self._state: tuple[bytes, int | None] = (b"", None)

    def judge(self, tasks: Sequence[Task]) -> list[Verdict]:
        """Verdicts on proofs of one theorem."""
        first = tasks[0]
        start = command_start(first)
        if start is None:
            return [Verdict("unchecked", "mutual")] * len(tasks)
        original = first.source[start : first.theorem.proof_end].decode()
        control = self._try(first, start, original)
        if control.outcome != "proved":
            detail = f"{control.reason} {control.detail}"
            return [Verdict("unchecked", "original-fails", detail)] * len(tasks)
        head = first.source[start : first.theorem.proof_start].decode()
        return [self._try(task, start, head + task.proof) for task in tasks]

    def close(self) -> None:
        """End the process."""
        if self._server is not None:
            self._server.kill()
            self._server = None

    def _try(self, task: Task, start: int, text: str) -> Verdict:
        try:
            env = self._before(task.source[:start])
            answer = self._ask(text, env)
            wrong = next((m.data for m in answer.messages if m.severity == "error"), None)
            if wrong is not None:
                late = "deterministic) timeout" in wrong
                return Verdict("failed", "time" if late else "error", wrong[:500])
            if answer.sorries:
                return Verdict("failed", "axiom", "sorryAx")
            name = task.theorem.name
            return _by_axioms(self._ask(f"#print axioms {name}", answer.env))
        except TimeoutError:
            self.close()
            return Verdict("failed", "time", "stopped")
        except (ConnectionAbortedError, ChildProcessError, OSError) as error:
            self.close()
            return Verdict("failed", "died", str(error)[:500])

    def _before(self, text: bytes) -> int | None:
        """The state after a file's beginning; what was already elaborated is not done again."""
        if self._server is None:
            from lean_interact import LeanServer

            self._server = LeanServer(self._config)
            self._state = (b"", None)
        done, env = self._state
        if not text.startswith(done):
            done, env = b"", None
        if text != done:
            env = self._ask(text[len(done) :].decode(), env).env
            self._state = (text, env)
        return env

    def _ask(self, text: str, env: int | None) -> Any:
        from lean_interact import Command
        from lean_interact.interface import LeanError

        answer = self._server.run(Command(cmd=text, env=env), timeout=self._seconds)
        if isinstance(answer, LeanError):
            raise ChildProcessError(answer.message)
        return answer


def _by_axioms(answer: Any) -> Verdict:
    said = " ".join(message.data for message in answer.messages)
    found = _DEPENDS.search(said)
    if found is None:
        if "does not depend on any axioms" in said:
            return Verdict("proved", "proved")
        return Verdict("failed", "error", said[:500])
    used = {name.strip() for name in found[1].split(",")}
    if used <= _AXIOMS:
        return Verdict("proved", "proved")
    return Verdict("failed", "axiom", ", ".join(sorted(used - _AXIOMS)))


def command_start(task: Task) -> int | None:
    """Where the theorem's command starts, with `open … in`; None inside `mutual`."""
    start, mutual = None, False
    for command in commands(b"\n" + mask(task.source)):
        if command.word == b"mutual":
            mutual = True
        elif command.word == b"end":
            mutual = False
        if command.word_start - 1 == task.theorem.kw_start:
            start = command.start - 1
            break
    return None if mutual else start


def _sandboxed(lake: str, folder: Path) -> Path:
    """A program that runs lake in the sandbox."""
    script = folder / "lake"
    script.write_text(f'#!/bin/sh\nexec {shlex.join((*_SANDBOX, lake))} "$@"\n')
    script.chmod(0o700)
    return script


def _unavailable(message: str, fix: str) -> ResourceError:
    return ResourceError(message, kind="lean-unavailable", fix=fix)
