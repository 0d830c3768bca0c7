"""Coverage-guided fuzzing of the parsers: `python tests/support/fuzz.py TARGET CASES [SEED]`.

libFuzzer through atheris: inputs that reach new lines of our modules are kept and changed further.
A case that crashes, breaks a promise or takes more than ten seconds ends the run with the input.

- Readers import their modules when they are first called: each target is called once with its seeds
  while imports are instrumented, because a module that is loaded later guides nobody.
- Inputs found are kept in FUZZ_CORPUS/TARGET if that is set, and a later run begins with them.
- FUZZ_SECONDS ends a run that has not seen its cases by then; FUZZ_TIMEOUT replaces the ten seconds
  of wall time, which a process that is stopped for a while exceeds.
- What every reader calls and took most of a case is cheaper here: the filter of secrets (which is a
  target of its own), names that are close to a wrong one, the types of a dataclass.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import sys
import tempfile
import typing
from pathlib import Path

import atheris

# Modules take these by name when they are imported.
typing.get_type_hints = functools.cache(typing.get_type_hints)
logging.disable()  # the hub's client remarks on cards that hold nothing
difflib.get_close_matches = lambda word, names, **_: list(names)[:1]

OURS = ["tangobench.pipeline", "tangobench.eval.scoring", "tangobench.model", "tangobench.errors"]

with atheris.instrument_imports(include=OURS):
    import fuzz_targets

    from tangobench import errors

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
    longest = max(1024, *(len(data) + 512 for data in SEEDS))
    options = [
        f"-runs={sys.argv[2]}",
        f"-seed={sys.argv[3] if len(sys.argv) > 3 else 1}",
        f"-max_total_time={os.environ.get('FUZZ_SECONDS', '0')}",
        f"-timeout={os.environ.get('FUZZ_TIMEOUT', '10')}",
        *("-rss_limit_mb=3000", f"-max_len={longest}", "-print_final_stats=1"),
        f"-artifact_prefix={tempfile.mkdtemp(prefix=f'found-{NAME}-')}/",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], fuzz_targets.TARGETS[NAME])
    if NAME != "text":
        errors.without_secrets = lambda text: text
    sys.stdout.reconfigure(line_buffering=True)  # the traceback of a finding must get out
    fuzz_targets.leave_at_once()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
