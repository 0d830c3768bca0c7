"""Coverage-guided fuzzing of the parsers: `python tests/support/fuzz.py TARGET CASES [SEED]`.

libFuzzer through atheris: inputs that reach new lines of our modules are kept and changed further.
A case that crashes, breaks a promise or takes more than ten seconds ends the run with the input.

- Readers import their modules when they are first called: each target is called once with its seeds
  while imports are instrumented, because a module that is loaded later guides nobody.
- Inputs found are kept in FUZZ_CORPUS/TARGET if that is set; a run begins with them and with the
  few that `fuzz_pack.py` took over into the project.
- Parsers in Python below our own guide as well, and documents of JSON are half of the time changed
  by value instead of by byte: behind a broken syntax or checksum a reader has little to do.
- FUZZ_SECONDS ends a run that has not seen its cases by then; FUZZ_TIMEOUT replaces the ten seconds
  of wall time, which a process that is stopped for a while exceeds.
- What every reader calls and took most of a case is cheaper here: the filter of secrets (which is a
  target of its own), names that are close to a wrong one, the types of a dataclass.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import logging
import os
import random
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
BELOW = {"card": ["yaml"], "spec": ["tomllib"], "manifest": ["tomllib"], "recipe": ["tomllib"]}
JSON = ("lock", "record", "packed", "jsonl", "tokenizer")

NAME = sys.argv[1]
with atheris.instrument_imports(include=[*OURS, *BELOW.get(NAME, ())]):
    import fuzz_pack
    import fuzz_targets
    import hostile

    from tangobench import errors

    SEEDS = fuzz_targets.seeds(NAME)
    for seed in SEEDS:
        fuzz_targets.TARGETS[NAME](seed)


def _corpus() -> Path:
    if kept := os.environ.get("FUZZ_CORPUS"):
        folder = Path(kept, NAME)
        folder.mkdir(parents=True, exist_ok=True)
        return folder
    return Path(tempfile.mkdtemp(prefix=f"fuzz-{NAME}-"))


def _dictionary(folder: Path) -> Path:
    """Pieces that are odd somewhere, in libFuzzer's spelling."""
    pieces = {*fuzz_targets.PIECES, *hostile.ODD, *(word.encode() for word in hostile.WORDS)}
    lines = [
        "".join(f"\\x{byte:02x}" for byte in one) for one in sorted(pieces) if 0 < len(one) < 64
    ]
    path = folder / "pieces.dict"
    path.write_text("".join(f'"{line}"\n' for line in lines))
    return path


def _changed(data: bytes, longest: int, seed: int) -> bytes:
    """A line of JSON with one value replaced, added or removed; bytes changed by libFuzzer."""
    rng = random.Random(seed)
    if NAME in JSON and rng.random() < 0.5:
        with contextlib.suppress(ValueError, RecursionError):
            lines = bytes(data).split(b"\n")
            place = rng.randrange(len(lines))
            whole = json.loads(lines[place])
            if isinstance(whole, dict | list):
                _change_value(rng, whole)
                lines[place] = json.dumps(whole).encode()
                return b"\n".join(lines)[:longest]
    return atheris.Mutate(data, longest)


def _change_value(rng: random.Random, node: dict | list) -> None:
    """Walk down at random, then change the object or list that was reached."""
    keys = list(node) if isinstance(node, dict) else range(len(node))
    key = rng.choice(keys) if keys else None
    if key is not None and isinstance(node[key], dict | list) and rng.random() < 0.8:
        _change_value(rng, node[key])
        return
    values = [*hostile.VALUES, *(node[other] for other in keys), *_near(node, key)]
    if key is not None and rng.random() < 0.2:
        del node[key]
    elif isinstance(node, dict):
        node[rng.choice(["x", *keys])] = rng.choice(values)
    elif keys and rng.random() < 0.7:
        node[key] = rng.choice(values)
    else:
        node.insert(rng.randint(0, len(node)), rng.choice(values))


def _near(node: dict | list, key: str | int | None) -> list:
    """Numbers beside the one that is there, and texts beside the text."""
    value = None if key is None else node[key]
    if isinstance(value, int | float):
        return [value + 1, value - 1, -value, value * 2, str(value)] * 4
    return (
        [value + "/", value[:-1], value[::-1], [value], "../" + value]
        if value and isinstance(value, str)
        else []
    )


def main() -> None:
    corpus = _corpus()
    kept = fuzz_pack.KEPT / NAME
    for number, data in enumerate([*SEEDS, *fuzz_pack.files(kept), *fuzz_pack.guided(kept)]):
        (corpus / f"seed-{number}").write_bytes(data)
    longest = max(1024, *(len(data) + 512 for data in SEEDS))
    found = Path(tempfile.mkdtemp(prefix=f"found-{NAME}-"))
    options = [
        f"-runs={sys.argv[2]}",
        f"-seed={sys.argv[3] if len(sys.argv) > 3 else 1}",
        f"-max_total_time={os.environ.get('FUZZ_SECONDS', '0')}",
        f"-timeout={os.environ.get('FUZZ_TIMEOUT', '10')}",
        *("-rss_limit_mb=3000", f"-max_len={longest}", "-print_final_stats=1"),
        f"-artifact_prefix={found}/",
        # Whole valid inputs stay: smaller ones that reach the same lines teach less.
        *("-keep_seed=1", f"-dict={_dictionary(found)}"),
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *options], fuzz_targets.TARGETS[NAME], custom_mutator=_changed)
    if NAME != "text":
        errors.without_secrets = lambda text: text
    sys.stdout.reconfigure(line_buffering=True)  # the traceback of a finding must get out
    fuzz_targets.leave_at_once()
    atheris.Fuzz()


if __name__ == "__main__":
    main()
