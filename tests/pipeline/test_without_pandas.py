"""Builds do not wait for pandas, and do not take it away."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import tangobench.pipeline.without_pandas
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


def test_a_build_does_not_import_pandas(tmp_path):
    words = ["build", "lean", "--out", str(tmp_path), "--quiet"]
    code = f"import sys, tangobench.cli as c; c.main({words!r}); print('pandas' in sys.modules)"
    assert lines(code)[-1] == "False"
