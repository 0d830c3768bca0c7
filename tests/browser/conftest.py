"""One browser and one site for all browser tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def load_module(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium."""
    chromium = load_module(HERE / "chromium.py")
    if chromium.PROGRAM is None:
        pytest.fail("needs a browser: apt-get install chromium")
    with chromium.Browser() as running:
        yield running


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The report of the toy datasets and made-up results, and of an empty folder."""
    from tangobench.eval.report.site import write_report

    out = tmp_path_factory.mktemp("browser") / "out"
    load_module(HERE.parent / "eval" / "toy_out.py").make_out(out)
    load_module(HERE.parent / "eval" / "toy_results.py").make_results(out)
    write_report(out / "nothing", out / "empty")
    return write_report(out, out / "report").parent
