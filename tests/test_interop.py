"""What `make test` must skip, because its packages come with other extras, runs somewhere else."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_modules_that_skip_themselves_run_in_make_test_interop():
    makefile = (ROOT / "Makefile").read_text()
    run = set(re.search(r"^INTEROP_TESTS := (.*)$", makefile, re.M)[1].split())
    run |= set(re.findall(r"^\tTRITON_INTERPRET=1 .* (tests/\S+)$", makefile, re.M))
    skipping = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"^pytest\.importorskip", path.read_text(encoding="utf-8"), re.M)
    }
    assert run == skipping != set()


def test_ci_runs_them():
    for name in (".ci/run", ".github/workflows/ci.yml"):
        assert "make test-interop\n" in (ROOT / name).read_text(), name
