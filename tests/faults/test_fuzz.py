"""Parsers fed with changed valid inputs and with noise; `make fuzz` does it guided by coverage."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import fuzz_pack
import fuzz_targets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.faults


@st.composite
def changed(draw, seeds):
    """A seed with a few pieces cut, doubled or replaced."""
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        piece = draw(st.sampled_from(fuzz_targets.PIECES) | st.binary(max_size=8))
        data[place : place + draw(st.integers(0, 9))] = piece
    return bytes(data)


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_anything_is_read_or_refused(name, data):
    seeds = fuzz_targets.seeds(name)
    fuzz_targets.TARGETS[name](data.draw(changed(seeds) | st.binary(max_size=200)))


@pytest.mark.parametrize("name", fuzz_targets.TARGETS)
def test_what_a_fuzzer_once_found_is_read_or_refused(name):
    for data in fuzz_pack.files(fuzz_pack.KEPT / name) + fuzz_pack.guided(fuzz_pack.KEPT / name):
        fuzz_targets.TARGETS[name](data)


def test_every_corpus_belongs_to_a_target_and_is_small():
    assert {path.name for path in fuzz_pack.KEPT.iterdir()} <= set(fuzz_targets.TARGETS)
    sizes = [path.stat().st_size for path in fuzz_pack.KEPT.rglob("*") if path.is_file()]
    assert 10_000 < sum(sizes) < 300_000


def test_inputs_are_kept_for_a_line_of_ours_or_for_being_short():
    seed, refused, long = b"http://a.b/?c=1", b"http://[", b"http://a.b/?" + b"d" * fuzz_pack.ROOM
    found = fuzz_pack.chosen("url", {seed, refused, refused + b"x", long}, [seed])
    assert found == [refused, refused + b"x"]


LEAVE = """
import ctypes, sys
import fuzz_targets
libc = ctypes.CDLL(None)
libc.on_exit(libc.abort, None)  # like a library that waits for its threads
if sys.argv[1] == "at once":
    fuzz_targets.leave_at_once()
libc.exit(7)
"""


@pytest.mark.parametrize(("how", "code"), [("at once", 7), ("as usual", -6)])
def test_a_finished_fuzzer_skips_the_exit_handlers_of_libraries(how, code):
    folder = Path(fuzz_targets.__file__).parent
    done = subprocess.run([sys.executable, "-c", LEAVE, how], cwd=folder, check=False, timeout=60)
    assert done.returncode == code


@pytest.mark.parametrize("name", ["lean", "url", "spec", "lock", "record"])
def test_time_is_linear_in_repeated_pieces(name):
    """Sixteen times the input may take sixteen times as long, and some slack; not 256 times."""
    rng = random.Random(3)
    target = fuzz_targets.TARGETS[name]
    seed = fuzz_targets.seeds(name)[0]
    for _ in range(12):
        start = rng.randrange(len(seed))
        piece = seed[start : start + rng.randrange(1, 12)] + rng.choice(fuzz_targets.PIECES)

        def seconds(size: int, piece: bytes = piece) -> float:
            data = (piece * (size // len(piece) + 1))[:size]
            began = time.process_time()
            target(data)
            return time.process_time() - began

        small = min(seconds(8_000) for _ in range(2))
        assert seconds(128_000) < 40 * small + 0.2, piece
