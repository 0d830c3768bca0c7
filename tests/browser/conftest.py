"""One browser and one site for all browser tests."""

from __future__ import annotations

import dataclasses
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
    return write_report(out, out / "report", look=_two_runs(out)).parent


def _two_runs(out):
    """The names of two models trained for a moment."""
    from tangobench.model.training.recipes import RECIPES, Run
    from tangobench.model.training.train import Options, train

    recipes = [
        dataclasses.replace(
            RECIPES[f"sample-dm_math-{arch}"], steps=2, batch=2, warmup=1, target_params=30_000
        )
        for arch in ("tango", "untied_transformer")
    ]
    return [train(Run(recipe, 17, 101), Options(out=out)).name for recipe in recipes]
