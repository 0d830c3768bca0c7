"""The docs agree with the code: walks name functions, tables and shown output are current."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = dict(re.findall(r"^### (.*?)\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S))


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


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name}" in index, page.name


@pytest.fixture(scope="module")
def generate():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("aim", "ratio", "missed"),
    [
        ("≥ 15", 15.0, False),
        ("≥ 15", 14.9, True),
        ("at most 1.2", 1.2, False),
        ("≤ 1.2×", 1.3, True),
        ("the fastest exact one", 1.0, False),
    ],
)
def test_an_aim_is_judged_from_its_own_words(generate, aim, ratio, missed):
    assert generate.missed(aim, ratio) is missed


@pytest.mark.parametrize("name", ["reference.md", "speed.md"])
def test_generated_pages_are_current(generate, name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    wanted = generate.pages()[name]
    # A new option or kind may be a commit ahead of its page; a page nobody writes is not.
    alike = difflib.SequenceMatcher(None, text.split(), wanted.split(), autojunk=False).ratio()
    assert alike > 0.95, f"run `make docs` and commit docs/{name}"


@pytest.mark.parametrize(
    ("page", "name"), [("README", "lean"), ("fineweb", "fineweb"), ("dm_math", "dm_math")]
)
def test_a_page_shows_what_the_build_of_its_sample_prints(page, name):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    lock = json.loads((ROOT / "manifests" / f"{name}.sample.lock.json").read_text())
    assert f"\n{lock['root']}\n" in text
    for shard in lock["shards"]:
        where = (
            shard["split"]
            if shard["config"] == "default"
            else f"{shard['config']}/{shard['split']}"
        )
        shown = rf"^{where} +{shard['rows']:,} rows +{shard['tokens']:,} tokens$"
        assert re.search(shown, text, re.M), shown
