"""Which of the project's files take part from Parquet to loss: a function of theirs is called.

Builds FineWeb-Edu's sample and trains two steps on it, in this process and with one worker. What
runs while a module is imported does not count.

Usage: `python bench/called_files.py`
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tangobench.cli import main

ROOT = Path(__file__).parents[1]
LIBRARY = ("pipeline", "model", "eval", "flows", "src")
RECIPE = "sample-fineweb-tango"


def importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def called_files(commands: list[list[str]]) -> set[str]:
    """Files below the root with a function that the commands call, paths relative to it."""
    seen: set[CodeType] = set()
    found: set[str] = set()

    def hook(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        path = Path(code.co_filename)
        own = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in LIBRARY
        if own and (code.co_name == "<module>" or importing(frame)):
            return  # may be called again later
        seen.add(code)
        if own:
            found.add(str(path.relative_to(ROOT)))

    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        for words in commands:
            assert main(words) == 0
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as out:
        shared = ["--out", out, "--quiet"]
        train = ["train", "--recipe", RECIPE, "--stop-at", "2"]
        files = called_files([["build", "fineweb", "--workers", "1", *shared], [*train, *shared]])
    print("\n".join(sorted(files)))
    rooms = Counter(file.partition("/")[0] for file in files)
    print(f"{len(files)} files:", ", ".join(f"{name} {rooms[name]}" for name in sorted(rooms)))
