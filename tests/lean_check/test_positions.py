"""The extractor against Lean's own parser: starts, and the ends that the parser gets to.

What it shows: that no theorem is missed or made up, and that keywords, proofs and ends are where
Lean sees them. What it does not show: ends of proofs that use notation of Mathlib which the
vocabulary here leaves out. Lean's parser stops early at those; what is left over tells them apart.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tangobench.pipeline.lean.lexer import mask
from tangobench.pipeline.lean.proofs import extract

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Lean's parser goes astray after notation that it does not know, and then quotes or skips some.
FEWEST_STARTS = 0.999


def clean_ends(data: bytes, commands: list[tuple[int, ...]]) -> dict[int, tuple[int, int]]:
    """Commands that Lean read to their end, by start: nothing but comments before the next."""
    code = mask(data)
    starts = [start for start, _, _ in commands if start >= 0]
    found = {}
    for start, end, _ in commands:
        following = min((s for s in starts if s > start), default=len(data))
        if 0 <= start < end and not code[end:following].strip():
            found[start] = (end, following)
    return found


def compared(data: bytes, entry) -> Counter[str]:
    """How the extractor and Lean agree on one file."""
    ours = {d.kw_start: d for d in extract(data)}
    clean = clean_ends(data, entry.commands)
    tally: Counter[str] = Counter(ours=len(ours), lean=len(entry.theorems))
    for _, word, proof, end in entry.theorems:
        mine = ours.get(word)
        tally["both"] += mine is not None
        owner = max((s for s in clean if s <= word), default=-1)
        if mine is None or owner < 0 or not word < clean[owner][0]:
            continue
        tally["ends compared"] += 1
        same = (mine.proof_start, mine.proof_end) == (proof, end)
        tally["ends equal"] += same
        if not same:
            print(mine, (proof, end), data[proof:end][-60:], data[: mine.proof_end][-60:])
    return tally


def test_sample_is_valid_lean(compiled) -> None:
    assert not compiled.stopped
    assert [m["data"] for m in compiled.messages if m["severity"] == "error"] == []


def test_program_and_vocabulary_are_valid(answer) -> None:
    assert not answer.stopped
    assert [m["data"] for m in answer.messages if m["severity"] == "error"] == []


@pytest.mark.parametrize("kind", ["Sample", "Hard"])
def test_everything_agrees_on_our_own_files(kind: str, files, seen) -> None:
    for path, data in files.items():
        if path.startswith(f"{kind}/"):
            tally = compared(data, seen[path])
            print(path, dict(tally))
            assert tally["ours"] == tally["lean"] == tally["both"], path
            assert tally["ends equal"] == tally["ends compared"] == tally["ours"], path


def test_mathlib(files, seen) -> None:
    total: Counter[str] = Counter()
    for path, data in files.items():
        if path.startswith("Mathlib/"):
            total += compared(data, seen[path])
    if not total:
        pytest.skip("set TANGOBENCH_MATHLIB to a clone")
    print(dict(total))
    assert total["both"] >= FEWEST_STARTS * max(total["ours"], total["lean"])
    assert total["ends equal"] == total["ends compared"] > total["ours"] / 4
