"""Rows handed to other trainers: what they read is what the lock hashes."""

from __future__ import annotations

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tangobench.cli import main
from tangobench.errors import CorruptionError, ResourceError, UsageError
from tangobench.pipeline import exporting
from tangobench.pipeline.core import hashing
from tangobench.pipeline.core.hashing import digest, rows_sha256
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.exporting import export_rows
from tangobench.pipeline.reading import open_dataset


@pytest.fixture
def many_shards(make_toy_math, tmp_path_factory):
    """Eleven rows in two shards of unequal size."""
    return make_toy_math(tmp_path_factory.mktemp("many"), rows=11)


def content_root(lock, tables):
    """From docs/reference.md: over config, split, rows and row hash of every shard."""
    return digest(
        [
            [s["config"], s["split"], s["rows"], rows_sha256(tables(s["config"], s["split"]))]
            for s in lock.shards
        ]
    )


@pytest.mark.parametrize("form", ["parquet", "hf"])
def test_an_export_has_the_content_root_of_the_dataset(sample, tmp_path, capsys, form):
    folder = sample("lean") / "lean-sample"
    assert main(["export", str(folder), str(tmp_path / "rows"), "--format", form]) == 0
    lock = read_lock(folder)
    assert capsys.readouterr().out.strip() == lock.content_root

    def parquet(config, split):
        return pq.read_table(tmp_path / "rows" / config / f"{split}-00000-of-00001.parquet")

    def hf(config, split):
        return datasets.load_from_disk(tmp_path / "rows" / config)[split].data.table

    assert content_root(lock, {"parquet": parquet, "hf": hf}[form]) == lock.content_root
    note = hashing.unseal((tmp_path / "rows" / "export.json").read_bytes())
    assert (note["root"], note["content_root"]) == (lock.root, lock.content_root)
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]


@pytest.mark.parametrize("form", ["parquet", "hf"])
def test_several_shards_keep_their_order(many_shards, tmp_path, form):
    dataset = open_dataset(many_shards)
    assert len(dataset.lock.shards_of("default", "train")) > 1
    assert export_rows(dataset, tmp_path / "rows", form) == dataset.lock.content_root


def test_one_dataset_over_all_shards_memory_mapped(many_shards):
    dataset = open_dataset(many_shards)
    rows, found = dataset.rows("default", "train"), dataset.to_datasets("default", "train")
    assert len(found) == len(rows) == 11
    before = pa.total_allocated_bytes()
    again = dataset.to_datasets("default", "train")
    assert pa.total_allocated_bytes() == before
    named = [place["filename"] for place in again.cache_files]
    assert named == [
        str(many_shards / s["path"]) for s in dataset.lock.shards_of("default", "train")
    ]
    for number, row in enumerate(found.with_format("torch")):
        assert np.array_equal(row["tokens"].numpy(), rows.tokens(number))


def damage(folder):
    shard = folder / read_lock(folder).shards[-1]["path"]
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(data)


@pytest.mark.parametrize("form", ["parquet", "hf"])
def test_a_damaged_shard_leaves_no_export(many_shards, tmp_path, form):
    damage(many_shards)
    with pytest.raises(CorruptionError):
        export_rows(open_dataset(many_shards), tmp_path / "new" / "rows", form)
    assert not list((tmp_path / "new").iterdir())
    lock = read_lock(many_shards).shards[-1]
    with pytest.raises(CorruptionError):
        open_dataset(many_shards).to_datasets(lock["config"], lock["split"])


def test_rows_that_changed_on_the_way_are_no_export(many_shards, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "rows_sha256", lambda table: "0" * 64)
    with pytest.raises(CorruptionError, match="content root"):
        export_rows(open_dataset(many_shards), tmp_path / "rows", "parquet")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_a_typed_error_and_leaves_nothing(many_shards, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets.DatasetDict, "save_to_disk", full)
    with pytest.raises(ResourceError) as caught:
        export_rows(open_dataset(many_shards), tmp_path / "rows", "hf")
    assert caught.value.kind == "disk-full"
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays(many_shards, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "mine").write_text("x")
    with pytest.raises(UsageError, match="not empty"):
        export_rows(open_dataset(many_shards), tmp_path / "rows", "parquet")
    (tmp_path / "empty").mkdir()
    export_rows(open_dataset(many_shards), tmp_path / "empty", "parquet")
    assert (tmp_path / "empty" / "export.json").is_file()


@pytest.mark.parametrize(
    ("words", "code"), [(["nowhere"], 2), (["nowhere", "--format", "parquet"], 2)]
)
def test_what_is_no_dataset_is_a_run(tmp_path, capsys, words, code):
    folder, *rest = words
    assert main(["export", str(tmp_path / folder), str(tmp_path / "x"), "--json", *rest]) == code
    assert "Traceback" not in capsys.readouterr().err
