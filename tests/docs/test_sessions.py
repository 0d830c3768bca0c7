"""What the pages show of a terminal is what the commands print.

- A session is a `text` block with lines `$ tangobench …`. What is shown below one must be the last
  lines that it prints; `…` matches any text, and times may differ.
- Sessions run in the reader's folder; those of docs/own.md, which edit a file, in test_own.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from reader import COMMAND, HOME, SESSIONS, fits, run

PAGES = [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))]


def sessions(page: Path) -> list[tuple[str, str]]:
    """(command, what is shown below it) of a page."""
    blocks = SESSIONS.findall(page.read_text(encoding="utf-8"))
    return [found for block in blocks for found in COMMAND.findall(block)]


ALL = [
    pytest.param(command, shown, id=f"{page.name}: {command}")
    for page in PAGES
    if page.name != "own.md"
    for command, shown in sessions(page)
]


@pytest.mark.xdist_group("docs")
@pytest.mark.parametrize(("command", "shown"), ALL)
def test_a_session_is_what_the_command_prints(command, shown, workspace):
    printed = run(workspace, *shlex.split(command)).stdout
    assert fits(shown, printed), printed


def test_pages_show_sessions():
    assert len({page for page in PAGES if sessions(page)}) >= 6


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("built in 5.1 s · next", "first\nbuilt in 61 s · next\n", True),
        ("a … c", "a b c", True),
        ("a … c", "a b d", False),
        ("a … c", "a\nc", False),
        ("a\n…\nc", "a\nb\nb\nc", True),
        ("a\n…", "a", True),
        ("last", "last but one\n", False),
        ("two\nthree", "one\ntwo\nthree", True),
    ],
)
def test_a_session_is_compared_line_by_line(shown, printed, same):
    assert fits(shown, printed) is same
