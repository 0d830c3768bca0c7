"""Coverage-guided fuzzing of the parsers: `python tests/support/fuzz.py TARGET CASES [SEED]`.

libFuzzer through atheris: inputs that reach new lines of our modules are kept and changed further.
A case that crashes, breaks a promise or takes more than ten seconds ends the run with the input.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["tangobench.pipeline", "tangobench.eval.scoring", "tangobench.model.training"]
):
    import fuzz_targets


def main() -> None:
    name, cases = sys.argv[1], int(sys.argv[2])
    seed = sys.argv[3] if len(sys.argv) > 3 else "1"
    corpus = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"))
    for number, data in enumerate(fuzz_targets.seeds(name)):
        (corpus / f"seed-{number}").write_bytes(data)
    limits = [f"-runs={cases}", f"-seed={seed}", "-timeout=10", "-rss_limit_mb=3000"]
    options = [
        *limits,
        "-max_len=4096",
        "-print_final_stats=1",
        f"-artifact_prefix={corpus}/",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], fuzz_targets.TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
