"""What a result says about the code it came from."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tangobench.model.training import runs as provenance


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A git checkout that the package seems to be in."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.py").write_text("x = 1\n")
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    monkeypatch.setattr(provenance.importlib.resources, "files", lambda _: tmp_path / "model")
    provenance.commit.cache_clear()
    yield tmp_path
    provenance.commit.cache_clear()


def test_a_clean_checkout_gives_its_commit(checkout):
    assert re.fullmatch("[0-9a-f]{40}", provenance.commit())


def test_changed_sources_are_marked(checkout):
    (checkout / "model" / "config.py").write_text("x = 2\n")
    assert provenance.commit().endswith("+")


def test_outside_of_git_there_is_no_commit(checkout):
    shutil.rmtree(checkout / ".git")
    assert provenance.commit() is None
    assert provenance.provenance("cpu")["commit"] is None
