"""Proofs judged by an installed Lean with Mathlib built, through lean-interact's REPL.

- The REPL runs in a sandbox (bubblewrap): everything is read-only, /tmp is its own, there is no
  network. Each request has a time limit, the process a memory limit.
- The file up to the theorem gives the state; the original must pass from there, else its proofs are
  unchecked. A proof passes without errors, without `sorry`, with axioms from `_AXIOMS` only, and
  with the type that Lean prints in full for the original.
- What stops the REPL is tried once more in a fresh one, and has failed only if it stops that too.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import ResourceError
from tangobench.eval.proofs.tasks import (
    PROVED,
    SHOWN,
    Decided,
    Task,
    Verdict,
    failed,
    original_fails,
    place_of,
    unavailable,
)

_SANDBOX: Final = (
    *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"),
    *("--unshare-all", "--die-with-parent", "--new-session"),
)
_AXIOMS: Final = frozenset(("propext", "Classical.choice", "Quot.sound"))
_ABOUT_AXIOMS: Final = re.compile(
    r"'(?:_private\.\S*\.0\.)?(?P<name>\S+)' "
    r"(?:depends on axioms: \[(?P<axioms>[^\]]*)\]|does not depend on any axioms)"
)
_APART: Final = 10  # a file's beginning may take as long as this many proofs


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolchainChecker:
    """The Lean of a project, with whatever the project has built."""

    project: Path
    repl: Path | None = None  # a built REPL of the same Lean; else lean-interact fetches one
    seconds: float = 120.0
    megabytes: int = 16_384
    lake: str = "lake"

    @property
    def name(self) -> str:
        """With the project's Lean, because another may judge otherwise."""
        return f"toolchain {_lean_of(self.project)}"

    def prepare(self) -> None:
        self._require_parts()
        with self._session() as session:
            try:
                session.greet()
            except Exception as error:
                raise self._broken(error) from error

    def _broken(self, error: Exception) -> ResourceError:
        lean, said = _lean_of(self.project), " ".join(str(error).split())[:SHOWN]
        fix = f"build the REPL's tag {lean} and name it with --repl (docs/lean.md)"
        return unavailable(f"no REPL for Lean {lean} starts: {said}", fix)

    def _require_parts(self) -> None:
        for folder, option in ((self.project, "--project"), (self.repl, "--repl")):
            if folder is not None and not (folder / "lean-toolchain").exists():
                raise unavailable(f"{folder} is no Lean project", f"name one with {option}")
        if self.repl is not None and _lean_of(self.repl) != _lean_of(self.project):
            leans = f"Lean {_lean_of(self.repl)}, {self.project} for {_lean_of(self.project)}"
            raise unavailable(f"the REPL is for {leans}", "build the REPL's tag of that Lean")
        programs = {self.lake: "install Lean with elan", "bwrap": "install bubblewrap"}
        for program, fix in programs.items():
            if shutil.which(program) is None:
                raise unavailable(f"{program} is not installed", fix)
        if importlib.util.find_spec("lean_interact") is None:
            raise unavailable("lean-interact is not installed", "pip install 'tangobench[lean]'")

    def check(self, tasks: Sequence[Task], decided: Decided) -> None:
        theorems: dict[tuple[str, bytes, int], list[int]] = {}
        for index, task in enumerate(tasks):
            key = (task.path, task.source, task.theorem.kw_start)
            theorems.setdefault(key, []).append(index)
        with self._session() as session:
            for members in theorems.values():
                found = session.judge([tasks[index] for index in members])
                for index, verdict in zip(members, found, strict=True):
                    decided(index, verdict)

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        config = self._config()
        with tempfile.TemporaryDirectory(prefix="tangobench-lean-") as folder:
            config.lake_path = _sandboxed(self.lake, Path(folder))
            session = Session(config, self.seconds)
            try:
                yield session
            finally:
                session.close()

    def _config(self) -> Any:
        """May fetch and build a REPL, which is done outside of the sandbox."""
        from lean_interact import LeanREPLConfig, LocalProject

        here = self.project.absolute()
        try:
            return LeanREPLConfig(
                project=LocalProject(directory=here, lake_path=self.lake, auto_build=False),
                local_repl_path=self.repl.absolute() if self.repl else None,
                build_repl=self.repl is None,
                lake_path=self.lake,
                memory_hard_limit_mb=self.megabytes,
            )
        except Exception as error:  # its own, git's and lake's, of all kinds
            raise self._broken(error) from error


def _lean_of(project: Path) -> str:
    text = (project / "lean-toolchain").read_text(encoding="utf-8").strip()
    return text.removeprefix("leanprover/lean4:")


def _sandboxed(lake: str, folder: Path) -> Path:
    script = folder / "lake"
    script.write_text(f'#!/bin/sh\nexec {shlex.join((*_SANDBOX, lake))} "$@"\n')
    script.chmod(0o700)
    return script


class _NoAnswer(Exception):
    """The REPL did not say, through no fault of the proof."""


class _Refused(Exception):
    """The REPL is well, but will not run this."""


class Session:
    """A REPL that is restarted after a crash, asked about theorems in turn."""

    def __init__(self, config: Any, seconds: float) -> None:
        self._config = config
        self._seconds = seconds
        self._server: Any = None
        self._state: tuple[bytes, int | None] = (b"", None)

    def greet(self) -> None:
        """Raise unless the REPL starts and accepts a trivial theorem."""
        self._start()
        wrong = _error(self._ask("example : True := trivial", None, self._seconds))
        if wrong is not None:
            raise ChildProcessError(wrong)

    def judge(self, tasks: Sequence[Task]) -> list[Verdict]:
        first = tasks[0]
        place = place_of(first)
        if place is None:
            return [Verdict("unchecked", "mutual")] * len(tasks)
        start, name = place
        original = first.source[start : first.theorem.proof_end].decode()
        statement = self._statement(first.source[:start], original, name)
        if isinstance(statement, Verdict):
            return [original_fails(statement)] * len(tasks)
        head = first.source[start : first.theorem.proof_start].decode()
        found = (self._statement(t.source[:start], head + t.proof, name) for t in tasks)
        changed = failed("it changes the statement")
        return [
            one if isinstance(one, Verdict) else PROVED if one == statement else changed
            for one in found
        ]

    def close(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server = None

    def _statement(self, before: bytes, text: str, name: str) -> str | Verdict:
        """What this text proves, as Lean prints it, or why it proves nothing."""
        for _ in range(2):
            try:
                return self._proved(before, text, name)
            except _Refused as error:
                return Verdict("unchecked", "no-answer", str(error)[:SHOWN])
            except (_NoAnswer, ValueError) as error:  # of json and of pydantic: not the protocol
                found = Verdict("unchecked", "no-answer", str(error)[:SHOWN])
            except OSError as error:  # of lean-interact, for a REPL that is late or gone
                reason = "time" if isinstance(error, TimeoutError) else "crash"
                found = Verdict("failed", reason, str(error)[:SHOWN])
            self.close()
        return found

    def _proved(self, before: bytes, text: str, name: str) -> str | Verdict:
        env = self._before(before)
        answer = self._ask(text, env, self._seconds)
        wrong = _error(answer)
        if wrong is not None:
            return failed(wrong)
        if answer.sorries:
            return Verdict("failed", "axiom", "sorryAx")
        # Long types are cut off at 5,000 steps of the printer unless it is told otherwise.
        asked = (
            f"set_option pp.all true in set_option pp.maxSteps 1000000000 in #check @_root_.{name}"
            f"\n#print axioms _root_.{name}"
        )
        return _answered(self._ask_apart(asked, answer.env), name)

    def _before(self, text: bytes) -> int | None:
        """The state after a file's beginning; what was already elaborated is not done again."""
        self._start()
        done, env = self._state
        if not text.startswith(done):
            done, env = b"", None
        if text != done:
            env = self._ask_apart(text[len(done) :].decode(), env).env
            self._state = (text, env)
        return env

    def _ask_apart(self, text: str, env: int | None) -> Any:
        """Ask what must not count against a proof, with time for many."""
        try:
            return self._ask(text, env, _APART * self._seconds)
        except (OSError, ValueError) as error:
            raise _NoAnswer(str(error)) from error

    def _start(self) -> None:
        if self._server is None:
            from lean_interact import LeanServer

            try:
                self._server = LeanServer(self._config)
            except OSError as error:
                raise _NoAnswer(str(error)) from error
            self._state = (b"", None)

    def _ask(self, text: str, env: int | None, seconds: float) -> Any:
        from lean_interact import Command
        from lean_interact.interface import LeanError

        answer = self._server.run(Command(cmd=text, env=env), timeout=seconds)
        if isinstance(answer, LeanError):
            raise _Refused(answer.message)
        return answer


def _error(answer: Any) -> str | None:
    return next((m.data for m in answer.messages if m.severity == "error"), None)


def _answered(answer: Any, name: str) -> str | Verdict:
    """The statement, if the answer is about this very theorem and its axioms are allowed."""
    said = [message.data for message in answer.messages if message.severity == "info"]
    found = _ABOUT_AXIOMS.fullmatch(said[-1]) if len(said) == 2 else None
    if found is None or found["name"] != name:
        return failed(f"no theorem {name}: {' '.join(said)}")
    used = {axiom.strip() for axiom in (found["axioms"] or "").split(",")} - {""}
    if used <= _AXIOMS:
        return str(said[0])
    return Verdict("failed", "axiom", ", ".join(sorted(used - _AXIOMS)))
