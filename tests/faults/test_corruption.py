"""Flip, cut, remove, add, swap and rename: verify and every reader refuse, by name."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from training import options, tiny_run

from tangobench.errors import CorruptionError, TangobenchError
from tangobench.pipeline.core.hashing import sha256_bytes
from tangobench.pipeline.core.lock import LOCK_NAME, RUN_NAME, read_lock, seal, sign
from tangobench.pipeline.core.shard_reader import verify
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


def test_200_flipped_bits(toy_folder, record_property):
    record_property("faults", 200)
    assert_flips_are_caught(toy_folder, 200, seed=7)


@slow_sample
def test_200_flipped_bits_of_each_sample(sample, tmp_path, dataset, record_property):
    record_property("faults", 200)
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


def relock(folder: Path, change) -> None:
    """A lock that somebody edited and made to fit: right checksum, right roots, other facts."""
    data = json.loads((folder / LOCK_NAME).read_text())
    del data["checksum"]
    change(data)
    (folder / LOCK_NAME).write_bytes(sign(seal(data)).to_bytes())


@pytest.mark.parametrize("field", ["rows", "rows_sha256", "bytes"])
def test_a_lock_made_to_fit_cannot_lie_about_a_side_file(toy_folder, field):
    def lie(data: dict) -> None:
        entry = next(e for e in data["side_files"] if e["kind"] == "decisions")
        entry[field] = "0" * 64 if field == "rows_sha256" else entry[field] + 1

    relock(toy_folder, lie)
    with pytest.raises(CorruptionError) as caught:
        verify(toy_folder)
    assert caught.value.kind in ("decisions-corrupt", "decisions-truncated")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" * 99, b"x" * 500])
def test_a_side_file_that_is_no_table_is_refused_even_with_a_lock_to_fit(toy_folder, content):
    path = toy_folder / "decisions" / "part-00000.parquet"
    path.write_bytes(content)

    def fit(data: dict) -> None:
        entry = next(e for e in data["side_files"] if e["kind"] == "decisions")
        entry |= {"bytes": len(content), "sha256": sha256_bytes(content)}

    relock(toy_folder, fit)
    with pytest.raises(CorruptionError, match="it is not what the lock says"):
        verify(toy_folder)


@pytest.fixture(scope="module")
def scored(tmp_path_factory, make_toy_math):
    """Two finished and scored runs."""
    from tangobench.eval.scoring.results import evaluate
    from tangobench.model.training.train import train

    out = tmp_path_factory.mktemp("scored")
    make_toy_math(out)
    for name in ("one", "two"):
        evaluate(train(tiny_run(name), options(out)))
    return out


@pytest.fixture
def out(scored, tmp_path):
    return Path(shutil.copytree(scored, tmp_path / "out"))


def read_run(out: Path, name: str = "one") -> None:
    """Everything that is believed of a run: its checkpoints, its log, its result."""
    from tangobench.eval.scoring.result_files import read_results
    from tangobench.eval.scoring.results import final_checkpoint
    from tangobench.model.training import checkpoint
    from tangobench.model.training.runs import read_metrics

    folder = out / "runs" / f"{name}-s17-101"
    for path in sorted((folder / "checkpoints").glob("step-*.json")):
        checkpoint.load(path)
    final_checkpoint(folder)
    # A last line that a kill cut short is dropped, so only its absence can tell.
    if len(read_metrics(folder / "metrics.jsonl")) != 8:
        raise CorruptionError("metrics.jsonl lacks steps", kind="metrics-corrupt")
    read_results([out / "results"])


def trained_files(out: Path) -> list[Path]:
    folder = out / "runs" / "one-s17-101"
    found = [*folder.glob("checkpoints/*"), folder / "metrics.jsonl"]
    return sorted([*found, *(out / "results").glob("one*.json")])


def test_200_flipped_bits_in_checkpoints_logs_and_results(out, record_property):
    record_property("faults", 200)
    rng = random.Random(11)
    read_run(out)
    files = trained_files(out)
    assert len(files) == 6  # two checkpoints of two files, a log, a result
    for number in range(200):
        path = files[number % len(files)]
        whole = path.read_bytes()
        flip(path, rng)
        with pytest.raises(CorruptionError) as caught:
            read_run(out)
        assert path.stem in caught.value.message
        assert caught.value.kind in ("checkpoint-corrupt", "metrics-corrupt", "result-corrupt")
        path.write_bytes(whole)
    read_run(out)


@pytest.mark.parametrize("size", [0, 1, 0.5, -2])
def test_any_file_of_a_run_cut_short(out, size):
    for path in trained_files(out):
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * size) if isinstance(size, float) else size])
        with pytest.raises(CorruptionError):
            read_run(out)
        path.write_bytes(whole)


def swap(one: Path, other: Path) -> None:
    a, b = one.read_bytes(), other.read_bytes()
    one.write_bytes(b)
    other.write_bytes(a)


@pytest.mark.parametrize(
    "harm",
    [
        lambda c, r: swap(c / "step-00000006.json", c / "step-00000008.json"),
        lambda c, r: swap(c / "step-00000006.safetensors", c / "step-00000008.safetensors"),
        lambda c, r: (c / "step-00000008.safetensors").unlink(),
        lambda c, r: (c / "step-00000006.json").rename(c / "step-00000009.json"),
        lambda c, r: shutil.copy(c / "step-00000006.json", c / "step-99999999.json"),
        lambda c, r: swap(r / "one-s17-101.json", r / "two-s17-101.json"),
        lambda c, r: (r / "one-s17-101.json").rename(r / "three-s17-101.json"),
        lambda c, r: (r / "new.json").write_text("[" * 100_000),
        lambda c, r: (r / "new.json").mkdir(),
    ],
    ids=["json swapped", "tensors swapped", "tensors gone", "renamed", "copied", "results swapped",
         "result renamed", "nested", "folder"],
)  # fmt: skip
def test_swapped_renamed_and_missing_files_of_a_run(out, harm):
    harm(out / "runs" / "one-s17-101" / "checkpoints", out / "results")
    with pytest.raises(CorruptionError) as caught:
        read_run(out)
    assert caught.value.fix


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": {"file": "../../../secret", "bytes": 1, "sha256": "0"}},
        {"tensors": {"file": "/etc/passwd", "bytes": 1, "sha256": "0"}},
        {"tensors": {}},
        {"recipe": {}},
        {"recipe": {"name": "x"}},
        {"run": "two-s17-101"},
        {"seeds": [1]},
        {"seeds": ["a", "b"]},
        {"step": 7},
        {"step": True},
        {"loader": {}},
        {"run_sha256": "0" * 64},
    ],
    ids=str,
)
def test_a_checkpoint_made_to_fit_leads_nowhere(out, change):
    """Somebody else's checkpoint with right checksums: refused, never a traceback."""

    path = out / "runs" / "one-s17-101" / "checkpoints" / "step-00000008.json"
    from tangobench.pipeline.core import hashing

    body = json.loads(path.read_text())
    del body["checksum"]
    path.write_bytes(hashing.seal({**body, **change}))
    with pytest.raises(TangobenchError) as caught:
        read_run(out)
    assert caught.value.kind == "checkpoint-corrupt"


def test_the_name_in_a_checkpoint_leads_nowhere(out):
    """A name that would put the result elsewhere, with every hash made to fit."""
    from tangobench.model.training import checkpoint

    path = out / "runs" / "one-s17-101" / "checkpoints" / "step-00000008.json"
    found = checkpoint.load(path)
    run = checkpoint.run_of(found, path)
    evil = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, name="../../evil"))
    meta = checkpoint.describe(evil, found.meta["loader"], found.meta["provenance"])
    checkpoint.save(path.parent, dataclasses.replace(found, meta=meta))
    with pytest.raises(CorruptionError):
        checkpoint.run_of(checkpoint.load(path), path)
