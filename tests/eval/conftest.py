"""An output folder with toy datasets, and runs that nobody trained."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def load_module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def page():
    """The program that writes docs/findings.md."""
    return load_module(Path(__file__).parents[2] / "docs" / "findings.py")


@pytest.fixture(scope="session")
def toy_out(tmp_path_factory):
    """The three toy datasets and made-up results, published once; do not change it."""
    here = Path(__file__).parent
    out = load_module(here / "toy_out.py").make_out(tmp_path_factory.mktemp("toy") / "out")
    load_module(here / "toy_results.py").make_results(out)
    return out
