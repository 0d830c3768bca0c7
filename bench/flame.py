"""Flame graphs of the slowest stages, drawn from py-spy's samples (`docs/images/flame-*.svg`).

- A picture shows one stage: everything below the function that does its units, whatever else the
  build spends its time on. Widths are shares of that stage's samples; hover for numbers.
- Native frames are shown too, so that encoders, hashes and the system's part can be told apart.

Usage: `make bench-flame`, or `python bench/flame.py dm_math`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent))
from corpus import corpus_of
from side_by_side import HOME, peer_python

IMAGES: Final = Path(__file__).parents[1] / "docs" / "images"
HERTZ: Final = 200
WIDTH: Final = 1200
ROW: Final = 16
# The function whose calls are the stage, and what is built to see it.
STAGES: Final = {
    "fineweb": ("encode_unit", "Encoding FineWeb-Edu text, 379 MB"),
    "dm_math": ("draw", "Drawing mathematics, 100 examples of each combination"),
}


@dataclass(slots=True)
class Node:
    """A function in its place in the stack."""

    samples: int = 0
    below: dict[str, Node] = field(default_factory=dict)


def command(name: str, out: str) -> list[str]:
    """A build with one worker, so that all of it is in the process that is looked at."""
    words = [sys.executable, "-m", "tangobench", "build", name, "--out", out, "--workers", "1"]
    if name == "fineweb":
        return [*words, "--source", str(corpus_of(379)), "--set", "shard_rows=4096"]
    return [*words, "--set", "train_per_combination=100", "--set", "validation_per_combination=1"]


def sample(name: str) -> list[str]:
    """Lines of `frame;frame;… count`."""
    spy = Path(peer_python("flame")).with_name("py-spy")
    with tempfile.TemporaryDirectory(dir=HOME) as folder:
        raw = Path(folder) / "raw"
        words = [str(spy), "record", "--native", "--format", "raw", "--rate", str(HERTZ)]
        words += ["--output", str(raw), "--", *command(name, folder)]
        subprocess.run(words, check=True, capture_output=True)
        return raw.read_text(encoding="utf-8").splitlines()


def tree(lines: list[str], function: str) -> Node:
    """All stacks from the stage's function on."""
    root = Node()
    for line in lines:
        stack, _, count = line.rpartition(" ")
        frames = [_short(frame) for frame in stack.split(";")]
        start = next((i for i, f in enumerate(frames) if f.split(" ")[0] == function), None)
        node = root
        for frame in [] if start is None else ["", *frames[start:]]:
            node = node.below.setdefault(frame, Node()) if frame else node
            node.samples += int(count)
    return root


def _short(frame: str) -> str:
    """Function and file name, without folders and line numbers."""
    return re.sub(r"\((?:.*/)?([^/:]*)(?::\d+)?\)$", r"(\1)", frame.strip())


def draw(root: Node, title: str) -> str:
    """The tree as SVG, callers above; what is narrower than two pixels is left out."""
    boxes: list[str] = []
    deepest = 0

    def place(node: Node, left: float, depth: int) -> None:
        nonlocal deepest
        for name, below in sorted(node.below.items()):
            wide = WIDTH * below.samples / root.samples
            if wide >= 2:
                deepest = max(deepest, depth)
                boxes.append(_box(name, below.samples / root.samples, left, wide, depth))
                place(below, left, depth + 1)
            left += wide

    place(root, 0.0, 0)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {ROW * (deepest + 3)}" '
        'font-family="monospace" font-size="11"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="6" y="12">{escape(title)}, one worker: {root.samples:,} samples</text>\n'
        + "\n".join(boxes)
        + "\n</svg>\n"
    )


def _box(name: str, share: float, left: float, wide: float, depth: int) -> str:
    shade = sum(map(ord, name))
    colour = f"rgb({205 + shade % 50},{130 + shade * 7 % 100},{60 + shade * 3 % 60})"
    top = ROW * (depth + 1) + 4
    label = escape(name[: int(wide / 6.8)]) if wide > 24 else ""
    return (
        f'<g><title>{escape(name)}: {share:.1%}</title><rect x="{left:.1f}" y="{top}" '
        f'width="{wide:.1f}" height="{ROW - 1}" fill="{colour}"/>'
        f'<text x="{left + 2:.1f}" y="{top + 11}">{label}</text></g>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], default=list(STAGES))
    HOME.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().stages:
        function, title = STAGES[name]
        root = tree(sample(name), function)
        path = IMAGES / f"flame-{name}.svg"
        path.write_text(draw(root, title), encoding="utf-8")
        print(f"{path}: {root.samples:,} samples")


if __name__ == "__main__":
    main()
