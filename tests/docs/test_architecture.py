"""The walks of docs/architecture.md name functions that exist, and are short."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^### |\Z)", PAGE, re.M | re.S))


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_there_are_four_walks():
    assert len(WALKS) == 4


@pytest.mark.parametrize("title", WALKS)
def test_every_step_names_a_function_of_its_file(title):
    steps = re.findall(r"^\d+\. `([\w/]+\.py)` `(\w+)`", WALKS[title], re.M)
    assert len(steps) == len(re.findall(r"^\d+\. ", WALKS[title], re.M))
    assert 5 <= len(steps) <= 15
    for file, name in steps:
        assert name in functions(ROOT / file), f"{file} has no {name}"


def test_every_room_is_in_the_picture():
    picture = re.search(r"```mermaid(.*?)```", PAGE, re.S)[1]
    for top in ("pipeline", "model", "eval"):
        for folder in (ROOT / top).iterdir():
            if (folder / "__init__.py").exists():
                assert re.search(rf"\b{folder.name}\b", picture), folder
