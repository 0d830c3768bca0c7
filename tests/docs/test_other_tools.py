"""The blocks about shards of docs/other-tools.md, run in order, print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

from tangobench.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "other-tools.md"
BLOCK = re.compile(r"```(sh|python)\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)


def test_the_page_runs_as_printed(sample, tmp_path, monkeypatch):
    (tmp_path / "out").symlink_to(sample("dm_math"))
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    shown = 0
    page, _, _ = PAGE.read_text(encoding="utf-8").partition("\n## Models\n")
    for kind, code, output in BLOCK.findall(page):
        if kind == "sh":
            words = shlex.split(code)
            assert words[0] == "tangobench"
            assert words[1] == "build" or main(words[1:]) == 0
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, str(PAGE), "exec"), names)
        assert said.getvalue() == output, code
        shown += 1
    assert shown == 7
