"""Builds do not wait for pandas, and do not take it away."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import tangobench.pipeline.core.no_pandas
import numpy as np, pyarrow as pa
pa.array(np.arange(3)).to_numpy()
print("pandas" in sys.modules)
print(pa.table({"a": [1]}).to_pandas().shape)
"""


def lines(code):
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return run.stdout.splitlines()


def test_pyarrow_converts_without_importing_pandas_until_asked():
    assert lines(PROGRAM) == ["False", "(1, 1)"]


# With two workers both the driver and the units' processes are looked at.
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_build_does_not_import_pandas(tmp_path, workers):
    """A pandas that cannot be imported shows whether anything asks for it."""
    (tmp_path / "pandas.py").write_text("import os; os.write(2, b'pandas was asked for')")
    words = ["build", "fineweb", "--out", str(tmp_path / "out"), "--quiet", "--workers", workers]
    run = subprocess.run(
        [sys.executable, "-m", "tangobench", *words],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stderr == ""
