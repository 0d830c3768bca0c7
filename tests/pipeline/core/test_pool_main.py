"""Worker processes start whatever the caller's main module is."""

import subprocess
import sys

SCRIPT = """
import math
from tangobench.pipeline.core.pool import ProcessRunner
runner = ProcessRunner(2)
print(list(runner.map(math.isqrt, [1, 4, 9], ["a", "b", "c"])))
runner.close()
"""


def test_a_script_without_a_main_guard_can_use_workers(tmp_path):
    script = tmp_path / "unguarded.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[1, 2, 3]\n", 0), done.stderr


def test_a_script_from_standard_input_can_use_workers():
    done = subprocess.run(
        [sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("[1, 2, 3]\n", 0), done.stderr
