"""Tests that share a port, a server or a network stay in one test process.

pytest 9.2 with xdist 3.8 ignored the mark silently: two processes then fought over one network.
"""

from __future__ import annotations

import os
import subprocess
import sys

TESTS = """
import os, pathlib, pytest

@pytest.mark.xdist_group("shared")
@pytest.mark.parametrize("number", range(12))
def test_shared(number):
    pathlib.Path(f"{number}.seen").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""


def test_marked_tests_run_in_one_process(tmp_path):
    (tmp_path / "test_shared.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_other.py").write_text("def test_other():\n    pass\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = ["-n", "2", "--dist", "loadgroup", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [path.read_text() for path in tmp_path.glob("*.seen")]
    assert len(seen) == 12
    assert len(set(seen)) == 1
