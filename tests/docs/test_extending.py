"""The worked examples of docs/extending.md run as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8")


def blocks(section: str) -> list[str]:
    text = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"```(?:toml|python)\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def poems(tmp_path):
    spec, module, use = blocks("A new dataset")
    (tmp_path / "poems.toml").write_text(spec)
    (tmp_path / "poems.py").write_text(module)
    (tmp_path / "use.py").write_text(use)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("The rose is without why. " * 9)
    (tmp_path / "texts" / "b.txt").write_text("It blooms because it blooms.")
    return tmp_path


def run(folder: Path, script: str) -> str:
    done = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_new_dataset_builds_and_reads_back(poems):
    first, root = run(poems, "use.py").splitlines()
    assert first == ("The rose is without why. " * 9)[:64]
    assert len(root) == 64


def test_the_new_dataset_has_one_root_wherever_its_files_are(poems, tmp_path):
    root = run(poems, "use.py").splitlines()[1]
    (poems / "texts").rename(poems / "elsewhere")
    use = (poems / "use.py").read_text().replace('"texts"', '"elsewhere"')
    (poems / "use.py").write_text(use.replace('out="out"', 'out="again"'))
    assert run(poems, "use.py").splitlines()[1] == root


def test_the_example_is_short():
    assert len(blocks("A new dataset")[1].splitlines()) < 100
