"""Proofs judged by an installed Lean with Mathlib built, through lean-interact's REPL.

- Before anything is generated, `prepare` has Lean answer once, the way it will be asked later.
- The REPL runs in a sandbox (bubblewrap): everything is read-only, /tmp is its own, there is no
  network. Each request has a time limit, the process a memory limit.

Usage: `ToolchainChecker(project=Path("mathlib4")).check(tasks, decided)`.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import ResourceError
from tangobench.eval.proofs.repl import SHOWN, Session
from tangobench.eval.proofs.tasks import Decided, Task

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

    @property
    def name(self) -> str:
        """With the project's Lean, because another may judge otherwise."""
        return f"toolchain {_lean_of(self.project)}"

    def prepare(self) -> None:
        """Say what is missing, or have Lean answer once."""
        self._require_parts()
        with self._session() as session:
            try:
                session.greet()
            except Exception as error:
                raise self._broken(error) from error

    def _broken(self, error: Exception) -> ResourceError:
        lean, said = _lean_of(self.project), " ".join(str(error).split())[:SHOWN]
        return _unavailable(
            f"no REPL for Lean {lean} starts: {said}",
            f"build the REPL's tag {lean} and name it with --repl (docs/lean.md)",
        )

    def _require_parts(self) -> None:
        for folder, option in ((self.project, "--project"), (self.repl, "--repl")):
            if folder is not None and not (folder / "lean-toolchain").exists():
                raise _unavailable(f"{folder} is no Lean project", f"name one with {option}")
        if self.repl is not None and _lean_of(self.repl) != _lean_of(self.project):
            raise _unavailable(
                f"the REPL is for Lean {_lean_of(self.repl)}, {self.project} for "
                f"{_lean_of(self.project)}",
                "build the REPL's tag of that Lean",
            )
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

    def check(self, tasks: Sequence[Task], decided: Decided) -> None:
        """Call `decided` with each task's number and verdict, as they come."""
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

        try:
            return LeanREPLConfig(
                project=LocalProject(
                    directory=self.project.absolute(), lake_path=self.lake, auto_build=False
                ),
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
    """A program that runs lake in the sandbox."""
    script = folder / "lake"
    script.write_text(f'#!/bin/sh\nexec {shlex.join((*_SANDBOX, lake))} "$@"\n')
    script.chmod(0o700)
    return script


def _unavailable(message: str, fix: str) -> ResourceError:
    return ResourceError(message, kind="lean-unavailable", fix=fix)
