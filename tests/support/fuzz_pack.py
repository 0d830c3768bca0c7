"""Keep a few inputs of fuzzers' corpora, which together reach every line that was reached.

- From short to long, an input is kept if it takes a step from line to line of our code that none
  before it took, and the shortest of the others up to `ROOM`: they differ in counts, or below us.
- Seeds and findings, which have files of their own, count as taken. What was kept is chosen again.
- `corpus/TARGET/guided.jsonl` has one input per line, as a string whose characters are its bytes.
- `make test` replays all (`faults/test_fuzz.py`).

Usage: `python tests/support/fuzz_pack.py FUZZ_CORPUS`, the folder that `fuzz.py` kept them in.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import fuzz_targets

from tangobench import errors
from tangobench.pipeline import api

KEPT = Path(__file__).parents[1] / "faults" / "corpus"
GUIDED = "guided.jsonl"
ROOM = 4096  # bytes per target
OURS = (str(Path(api.__file__).parents[1]), str(Path(errors.__file__).parent))


def files(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*")) if path.name != GUIDED]


def guided(folder: Path) -> list[bytes]:
    path = folder / GUIDED
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line).encode("latin-1") for line in lines]


def steps(name: str, data: bytes) -> set[tuple[str, int, int]]:
    """The steps from line to line of our modules that an input takes."""
    found, last = set(), dict[int, int]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            return None
        found.add((file, last.get(id(frame), -1), frame.f_lineno))
        last[id(frame)] = frame.f_lineno
        return trace

    def begin(frame: FrameType, event: str, argument: object) -> Any:
        last.pop(id(frame), None)  # a new frame may have the address of an old one
        return trace(frame, event, argument)

    sys.settrace(begin)
    try:
        fuzz_targets.TARGETS[name](data)
    finally:
        sys.settrace(None)
    return found


def chosen(name: str, candidates: set[bytes], known: list[bytes]) -> list[bytes]:
    """The inputs to keep, short ones first."""
    for data in known:  # what is loaded or cached at first is no input's merit
        fuzz_targets.TARGETS[name](data)
    reached = set().union(*(steps(name, data) for data in known))
    kept, others = list[bytes](), list[bytes]()
    for data in sorted(candidates - {*known}, key=lambda one: (len(one), one)):
        new = steps(name, data) - reached
        reached |= new
        (kept if new else others).append(data)
    sizes = itertools.accumulate(map(len, others))
    return kept + [data for data, size in zip(others, sizes, strict=True) if size <= ROOM]


def main() -> None:
    for name in fuzz_targets.TARGETS:
        candidates = {*files(Path(sys.argv[1], name)), *guided(KEPT / name)}
        kept = chosen(name, candidates, fuzz_targets.seeds(name) + files(KEPT / name))
        if kept:
            (KEPT / name).mkdir(exist_ok=True)
            lines = [json.dumps(data.decode("latin-1")) + "\n" for data in kept]
            (KEPT / name / GUIDED).write_text("".join(lines), encoding="utf-8")
        print(f"{name}: {len(kept)} of {len(candidates)} inputs, {sum(map(len, kept)):,} bytes")


if __name__ == "__main__":
    main()
