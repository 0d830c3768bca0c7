"""Flip, cut, remove, add, swap and rename: verify and every reader refuse, by name."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tangobench.errors import CorruptionError
from tangobench.pipeline.manifest import LOCK_NAME, RUN_NAME, read_lock
from tangobench.pipeline.publish import verify
from tangobench.pipeline.reading import open_dataset

from .conftest import slow_sample

pytestmark = pytest.mark.faults


def trusted_files(folder: Path) -> list[Path]:
    """Everything that readers believe: all but run.json, which only tells times."""
    return sorted(p for p in folder.rglob("*") if p.is_file() and p.name != RUN_NAME)


def flip(path: Path, rng: random.Random) -> None:
    """One bit anywhere, in place, with size and mtime as before."""
    before = path.stat()
    with path.open("r+b") as file:
        place = rng.randrange(before.st_size)
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1 << rng.randrange(8)]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def assert_flips_are_caught(folder: Path, count: int, seed: int) -> None:
    rng = random.Random(seed)
    files = trusted_files(folder)
    for number in range(count):
        path = files[number % len(files)]
        whole = path.read_bytes()
        flip(path, rng)
        with pytest.raises(CorruptionError) as caught:
            verify(folder)
        assert path.name in str(caught.value.details["path"])
        if path.suffix == ".arrow":
            lock = read_lock(folder)
            entry = next(s for s in lock.shards if folder / s["path"] == path)
            with pytest.raises(CorruptionError, match=path.name):
                open_dataset(folder).rows(entry["config"], entry["split"]).open_all()
        path.write_bytes(whole)
    verify(folder)


def test_200_flipped_bits(toy_folder):
    assert_flips_are_caught(toy_folder, 200, seed=7)


@slow_sample
def test_200_flipped_bits_of_each_sample(sample, tmp_path, dataset):
    folder = Path(shutil.copytree(sample(dataset) / f"{dataset}-sample", tmp_path / "copy"))
    assert_flips_are_caught(folder, 200, seed=8)


def test_a_cut_at_any_length(toy_folder):
    rng = random.Random(3)
    for path in trusted_files(toy_folder):
        whole = path.read_bytes()
        for size in {0, 1, len(whole) - 1, *rng.sample(range(len(whole)), 5)}:
            path.write_bytes(whole[:size])
            with pytest.raises(CorruptionError) as caught:
                verify(toy_folder)
            expected = "lock-corrupt" if path.name == LOCK_NAME else "-truncated"
            assert caught.value.kind.endswith(expected)
        path.write_bytes(whole)


def test_any_file_removed_replaced_by_a_folder_or_made_longer(toy_folder):
    for path in trusted_files(toy_folder):
        whole = path.read_bytes()
        path.unlink()
        with pytest.raises(CorruptionError) as caught:
            verify(toy_folder)
        assert caught.value.kind.endswith("-missing")
        path.write_bytes(whole + b"\n")
        with pytest.raises(CorruptionError) as caught:
            verify(toy_folder)
        assert caught.value.kind.endswith("-corrupt")
        path.write_bytes(whole)


def test_every_pair_of_shards_swapped(toy_folder):
    shards = [p for p in trusted_files(toy_folder) if p.suffix == ".arrow"]
    for number, one in enumerate(shards):
        for other in shards[number + 1 :]:
            a, b = one.read_bytes(), other.read_bytes()
            one.write_bytes(b)
            other.write_bytes(a)
            with pytest.raises(CorruptionError) as caught:
                verify(toy_folder)
            assert caught.value.kind == "shard-swapped"
            one.write_bytes(a)
            other.write_bytes(b)


@pytest.mark.parametrize(
    ("kind", "harm"),
    [
        ("shard-corrupt", lambda f, s: flip(s, random.Random(1))),
        ("shard-truncated", lambda f, s: os.truncate(s, 40)),
        ("shard-missing", lambda f, s: s.unlink()),
        ("shard-extra", lambda f, s: shutil.copy(s, s.with_name("train-00007-of-00002.arrow"))),
        ("shard-renamed", lambda f, s: s.rename(s.with_name("train-00007-of-00002.arrow"))),
        ("lock-corrupt", lambda f, s: flip(f / LOCK_NAME, random.Random(1))),
        ("lock-missing", lambda f, s: (f / LOCK_NAME).unlink()),
    ],
)
def test_exit_code_and_kind_of_the_program(program, toy_folder, kind, harm):
    harm(toy_folder, toy_folder / "wide" / "train-00000-of-00002.arrow")
    error = json.loads(program("verify", toy_folder, "--json", check=4).stdout)
    assert (error["error"], error["exit_code"]) == (kind, 4)
    assert error["fix"]


def test_the_swapped_kind_of_the_program(program, toy_folder):
    one, other = (toy_folder / "wide" / f"train-0000{n}-of-00002.arrow" for n in (0, 1))
    a, b = one.read_bytes(), other.read_bytes()
    one.write_bytes(b)
    other.write_bytes(a)
    error = json.loads(program("verify", toy_folder, "--json", check=4).stdout)
    assert error["error"] == "shard-swapped"
    assert "train-00001-of-00002.arrow" in error["message"]
