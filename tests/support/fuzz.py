"""Coverage-guided fuzzing of the parsers: `python tests/support/fuzz.py TARGET CASES [SEED]`.

libFuzzer through atheris: inputs that reach new lines of our modules are kept and changed further.
A case that crashes, breaks a promise or takes more than ten seconds ends the run with the input.

- Readers import their modules when they are first called: each target is called once with its seeds
  while imports are instrumented, because a module that is loaded later guides nobody.
- Inputs found are kept in FUZZ_CORPUS/TARGET if that is set, and a later run begins with them.
- FUZZ_SECONDS ends a run that has not seen its cases by then.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import atheris

OURS = ["tangobench.pipeline", "tangobench.eval.scoring", "tangobench.model", "tangobench.errors"]

with atheris.instrument_imports(include=OURS):
    import fuzz_targets

    NAME = sys.argv[1]
    SEEDS = fuzz_targets.seeds(NAME)
    for seed in SEEDS:
        fuzz_targets.TARGETS[NAME](seed)


def _corpus() -> Path:
    if kept := os.environ.get("FUZZ_CORPUS"):
        folder = Path(kept, NAME)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(tempfile.mkdtemp(prefix=f"fuzz-{NAME}-"))


def main() -> None:
    corpus = _corpus()
    for number, data in enumerate(SEEDS):
        (corpus / f"seed-{number}").write_bytes(data)
    longest = max(4096, *(len(data) + 512 for data in SEEDS))
    options = [
        f"-runs={sys.argv[2]}",
        f"-seed={sys.argv[3] if len(sys.argv) > 3 else 1}",
        f"-max_total_time={os.environ.get('FUZZ_SECONDS', '0')}",
        *("-timeout=10", "-rss_limit_mb=3000", f"-max_len={longest}", "-print_final_stats=1"),
        f"-artifact_prefix={tempfile.mkdtemp(prefix=f'found-{NAME}-')}/",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], fuzz_targets.TARGETS[NAME])
    fuzz_targets.leave_at_once()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
