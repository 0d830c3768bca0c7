"""Which tests the targets of the Makefile run, by what `make -n` says."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

Test = tuple[str, frozenset[str]]
"""The id of a test and the names of its marks."""


@dataclass(frozen=True, slots=True)
class Run:
    """One call of pytest: an expression of marks, where it looks and where it does not."""

    marks: str
    paths: tuple[str, ...]
    ignored: tuple[str, ...]

    def has(self, test: Test) -> bool:
        ident, marks = test
        names = dict.fromkeys(re.findall(r"\w+", self.marks), False) | dict.fromkeys(marks, True)
        return (
            ident.startswith(self.paths or ("",))
            and not ident.startswith(self.ignored)
            and (not self.marks or bool(eval(self.marks, {}, names)))
        )


def runs_of(project: Path, *targets: str) -> list[Run]:
    """The calls of pytest in these targets; every target has one at least."""
    found = []
    for target in targets:
        said = subprocess.run(
            ["make", "-n", target], cwd=project, capture_output=True, text=True, check=True
        ).stdout
        calls = re.findall(r"-m pytest (.*)", said)
        assert calls, f"make {target} runs no test"
        found += [_run(shlex.split(call)) for call in calls]
    return found


def _run(words: list[str]) -> Run:
    return Run(
        marks=words[words.index("-m") + 1] if "-m" in words else "",
        paths=tuple(word for word in words if word.startswith("tests")),
        ignored=tuple(word[9:] for word in words if word.startswith("--ignore=")),
    )


def unreached(tests: list[Test], runs: list[Run]) -> list[str]:
    """The tests that none of the calls runs."""
    return [test[0] for test in tests if not any(run.has(test) for run in runs)]
