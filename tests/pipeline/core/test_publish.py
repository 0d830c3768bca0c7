from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml
from trees import hashes, temporary_files

from tangobench.errors import MismatchError, TangobenchError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.core import publish, shard_reader
from tangobench.pipeline.core.build import SerialRunner
from tangobench.pipeline.core.lock import CARD_NAMES, LOCK_NAME, RUN_NAME, read_lock, seal, sign
from tangobench.pipeline.core.shard_reader import verify

SHARD = "wide/train-00000-of-00002.arrow"


def flip(path: Path, place: int = -40) -> None:
    """One bit, with size and mtime as before."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(folder: Path, one: str, other: str) -> None:
    a, b = (folder / one).read_bytes(), (folder / other).read_bytes()
    (folder / one).write_bytes(b)
    (folder / other).write_bytes(a)


FAULTS = {
    "shard-corrupt": lambda f: flip(f / SHARD),
    "shard-truncated": lambda f: os.truncate(f / SHARD, 100),
    "shard-missing": lambda f: (f / SHARD).unlink(),
    "shard-extra": lambda f: shutil.copy(f / SHARD, f / "wide/train-00002-of-00002.arrow"),
    "shard-swapped": lambda f: swap(f, SHARD, "wide/train-00001-of-00002.arrow"),
    "shard-renamed": lambda f: (f / SHARD).rename(f / "wide/train-00009-of-00002.arrow"),
    "shard-unreadable": lambda f: (
        (f / SHARD).unlink(),
        (f / SHARD).symlink_to(SHARD.split("/")[1]),
    ),
    "decisions-corrupt": lambda f: flip(f / "decisions/part-00000.parquet", 9),
    "decisions-missing": lambda f: (f / "decisions/part-00000.parquet").unlink(),
    "decisions-truncated": lambda f: os.truncate(f / "decisions/part-00000.parquet", 0),
    "card-corrupt": lambda f: flip(f / "README.md"),
    "card-missing": lambda f: (f / "croissant.json").unlink(),
    "file-extra": lambda f: (f / "notes.txt").touch(),
    "lock-corrupt": lambda f: flip(f / LOCK_NAME),
    "lock-missing": lambda f: (f / LOCK_NAME).unlink(),
}


def relock(folder: Path, change) -> None:
    data = json.loads((folder / LOCK_NAME).read_text())
    del data["checksum"]
    change(data)
    (folder / LOCK_NAME).write_bytes(sign(seal(data)).to_bytes())


def test_a_published_folder_verifies(toy_original):
    assert verify(toy_original) == read_lock(toy_original)


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_has_a_kind_of_its_own(toy_folder, kind):
    FAULTS[kind](toy_folder)
    with pytest.raises(TangobenchError) as caught:
        verify(toy_folder)
    assert caught.value.kind == kind
    assert caught.value.exit_code == 4
    assert str(toy_folder) in caught.value.message
    assert caught.value.details["path"].startswith(str(toy_folder))


@pytest.mark.parametrize("kind", sorted({*FAULTS} - {"file-extra"}))
def test_the_same_build_repairs(toy, toy_folder, kind):
    whole = hashes(toy_folder)
    FAULTS[kind](toy_folder)
    built = api.run(toy.request(toy_folder.parent), SerialRunner())
    assert not built.reused
    assert hashes(toy_folder) == whole
    assert api.run(toy.request(toy_folder.parent), SerialRunner()).reused


def test_a_shard_damaged_in_place_is_made_again(toy, tmp_path):
    built = api.run(toy.request(tmp_path), SerialRunner())
    whole, entry = hashes(built.folder), built.lock.shards[0]
    (unit,) = (tmp_path / ".units" / "objects").rglob(entry["sha256"][2:])
    assert unit.samefile(built.folder / entry["path"])  # the unit store is damaged with it
    flip(built.folder / entry["path"])
    api.run(toy.request(tmp_path), SerialRunner())
    assert hashes(built.folder) == whole


def test_publishing_hashes_no_object_that_the_run_has_hashed(toy, tmp_path, monkeypatch):
    really, hashed = publish.sha256_bytes, []
    for module in (publish, shard_reader):
        monkeypatch.setattr(module, "sha256_bytes", lambda d: hashed.append(d) or really(d))
    built = api.run(toy.request(tmp_path), SerialRunner())
    cards = sorted((built.folder / name).read_bytes() for name in CARD_NAMES)
    assert sorted(map(bytes, hashed)) == cards


def test_an_object_damaged_after_its_run_is_made_again_before_it_is_published(toy, tmp_path):
    built = api.run(toy.request(tmp_path), SerialRunner())
    whole, entry = hashes(built.folder), built.lock.shards[0]
    (unit,) = (tmp_path / ".units" / "objects").rglob(entry["sha256"][2:])
    shutil.rmtree(built.folder)
    flip(unit)
    assert hashes(api.run(toy.request(tmp_path), SerialRunner()).folder) == whole


def test_a_foreign_file_is_refused_before_anything_is_written(toy, tmp_path):
    folder = tmp_path / "toy-sample"
    folder.mkdir()
    for name in ("notes.txt", "mine.arrow"):
        (folder / name).write_text("precious")
        with pytest.raises(UsageError) as caught:
            api.run(toy.request(tmp_path), SerialRunner())
        assert caught.value.kind == "foreign-file"
        assert [p.name for p in folder.iterdir()] == [name]
        (folder / name).unlink()


def test_what_an_interrupted_publication_left_is_removed(toy, tmp_path, toy_original):
    folder = tmp_path / "toy-sample"
    (folder / "wide").mkdir(parents=True)
    for name in ("wide/train-00000-of-00009.arrow", ".partial-1-x", "wide/.partial-2-y"):
        (folder / name).touch()
    api.run(toy.request(tmp_path), SerialRunner())
    assert hashes(folder) == hashes(toy_original)


@pytest.mark.parametrize(
    "change",
    [
        lambda shard: shard.update(tokens=shard["tokens"] + 1),
        lambda shard: shard.update(rows=shard["rows"] + 1),
        lambda shard: shard.update(rows_sha256="0" * 64),
        lambda shard: shard.update(batch_offsets=[o + 8 for o in shard["batch_offsets"]]),
        lambda shard: shard.update(batch_offsets=shard["batch_offsets"][::-1]),
        lambda shard: shard.update(batch_rows=3, batch_offsets=shard["batch_offsets"][:2]),
    ],
    ids=["tokens", "rows", "rows hash", "offsets", "order of batches", "batch rows"],
)
def test_a_lock_that_lies_about_a_shard_is_refused(toy_folder, change):
    """Checksum and roots made to fit: only the rows themselves can tell."""
    relock(toy_folder, lambda data: change(data["shards"][0]))
    with pytest.raises(TangobenchError) as caught:
        verify(toy_folder)
    assert caught.value.exit_code == 4


def test_another_spec_in_the_same_folder_shows_both_hashes(toy, toy_folder):
    with pytest.raises(MismatchError) as caught:
        api.run(toy.request(toy_folder.parent, overrides={"rows": 6}), SerialRunner())
    assert caught.value.kind == "spec-mismatch"
    assert caught.value.exit_code == 3
    for digest in (caught.value.details["found"], caught.value.details["expected"]):
        assert digest in caught.value.message
    verify(toy_folder)


def test_another_root_for_the_same_spec_is_refused(toy, toy_folder, monkeypatch):
    really = toy.build

    def drifted(spec, source, job):
        result = really(spec, source, job)
        result.source["generator"] = 2
        return result

    monkeypatch.setattr(toy, "build", drifted)
    before = hashes(toy_folder)
    with pytest.raises(MismatchError) as caught:
        api.run(toy.request(toy_folder.parent, source="elsewhere"), SerialRunner())
    assert caught.value.kind == "root-mismatch"
    assert "source.generator: 2 here, 1 expected" in caught.value.message
    assert hashes(toy_folder) == before


def test_run_json_tells_times_but_no_secrets(toy, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["tangobench", "--source", "https://me:hunter2@h/x", "a\udcff"])
    request = toy.request(tmp_path, source="https://me:hunter2@h/x")
    folder = api.run(request, SerialRunner()).folder
    run = json.loads((folder / RUN_NAME).read_text())
    assert run["origin"] == {"where": "https://…@h/x"}
    assert {"began", "seconds", "host", "stages"} <= run.keys()
    for path in folder.rglob("*"):
        assert path.is_dir() or b"hunter2" not in path.read_bytes()
    assert not temporary_files(tmp_path)


def test_the_card_names_every_config_and_split(toy_original):
    _, head, text = (toy_original / "README.md").read_text().split("---\n", 2)
    head = yaml.safe_load(head)
    assert head["pretty_name"] == "Toy: a test"
    assert {c["config_name"]: {d["split"] for d in c["data_files"]} for c in head["configs"]} == {
        config: {"train", "validation"} for config in ("wide", "long")
    }
    assert read_lock(toy_original).root in text
