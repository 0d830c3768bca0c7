"""Commands as a reader of the pages runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).parents[2]
SESSIONS = re.compile(r"```text\n(\$ .*?)```", re.DOTALL)  # a `text` block of a page
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)  # and what is shown below it
TIME = re.compile(r"\b[\d.]+ (ms|s|m|h)\b")
AS_A_READER = {
    "OMP_NUM_THREADS": "1",
    "COLUMNS": "120",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in `place`, what it prints as one text; `tangobench` is this environment's."""
    if words[0] == "tangobench":
        words = (sys.executable, "-m", *words)
    return subprocess.run(
        words,
        cwd=place,
        env={**os.environ, **AS_A_READER},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
        check=False,
    )


def succeed(place: Path, *words: str) -> str:
    done = run(place, *words)
    assert done.returncode == 0, done.stdout
    return done.stdout


def fits(shown: str, printed: str) -> bool:
    """Whether the shown lines are the last ones printed; times may differ.

    `…` is any text of a line; alone in a line it is any number of lines.
    """
    pattern = r"(?:.*\n)*"
    for line in TIME.sub("TIME", shown.strip()).splitlines():
        words = ".*".join(re.escape(piece) for piece in line.split("…"))
        pattern += r"(?:.*\n)*" if line == "…" else rf"{words}\n"
    return re.fullmatch(pattern, TIME.sub("TIME", printed.strip()) + "\n") is not None
