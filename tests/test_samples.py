"""The three samples: rebuilt, compared with the committed locks, and read by other libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from samples import LOCKED, each_sample
from trees import hashes

from tangobench.pipeline import api
from tangobench.pipeline.core.lock import committed_lock, differences, require_root, short
from tangobench.pipeline.core.shard_reader import verify
from tangobench.pipeline.core.spec import as_dict, manifest_file
from tangobench.pipeline.reading import open_dataset

rebuilt = each_sample()
OWN = {"mdn": {"manifest": str(manifest_file("mdn.toml")), "kind": "documents"}}


def test_a_sample_lock_is_committed_for_every_dataset():
    assert sorted(LOCKED) == sorted(api.DATASETS)


@rebuilt
def test_the_rebuilt_root_is_the_committed_one(sample, dataset):
    """On a difference the message lists every field that differs."""
    folder = sample(dataset) / f"{dataset}-sample"
    lock, committed = verify(folder), committed_lock(dataset, "sample")
    require_root(lock, committed, str(folder))
    other = [
        f"{name}: {short(ours)} here, {short(theirs)} committed"
        for name, ours, theirs in differences(lock.data, committed.data)
        if not name.startswith(("environment", "checksum", "side_files"))
    ]
    assert other == []


@pytest.mark.parametrize(
    "path", sorted(manifest_file("").glob("*.lock.json")), ids=lambda path: path.name
)
def test_every_committed_lock_is_of_the_current_spec(path: Path):
    name, profile = path.name.removesuffix(".lock.json").split(".")
    lock = committed_lock(name, profile)
    own = {} if name in api.DATASETS or name == "dm_math_tests" else OWN[name]
    spec = as_dict(api.Request(name=name, profile=profile, **own).spec())
    # A tokenizer of one's own is a file: its hash is added when a build reads it.
    changed = [field for field in differences(lock.spec, spec) if field[0] != "tokenizer_sha256"]
    assert changed == []
    assert (lock.name, lock.profile) == (name, profile)
    assert all(lock.rows(c, split) > 0 for c in lock.configs for split in lock.splits(c))


@rebuilt
def test_every_row_keeps_the_promises_of_its_config(sample, dataset):
    opened = open_dataset(sample(dataset) / f"{dataset}-sample")
    for name, config in opened.lock.configs.items():
        for split in opened.lock.splits(name):
            for row in opened.rows(name, split):
                assert 2 <= len(row["tokens"]) <= config["context"]
                assert int(row["tokens"].max()) < config["vocabulary"]
                assert 0 <= row.get("target_start", 0) < len(row["tokens"])


@rebuilt
def test_other_libraries_read_the_same_rows(sample, dataset, tmp_path):
    import datasets
    import polars

    folder = sample(dataset) / f"{dataset}-sample"
    opened = open_dataset(folder)
    for shard in opened.lock.shards:
        path = folder / shard["path"]
        theirs = datasets.Dataset.from_file(str(path))
        frame = polars.read_ipc_stream(path)
        assert len(theirs) == frame.height == shard["rows"]
        ours = opened.rows(shard["config"], shard["split"])
        before = sum(
            other["rows"]
            for other in opened.lock.shards_of(shard["config"], shard["split"])
            if other["path"] < shard["path"]
        )
        for place in np.unique(np.linspace(0, shard["rows"] - 1, 7).astype(int)).tolist():
            row = ours[before + place]
            expected = {**row, "tokens": row["tokens"].tolist()}
            assert theirs[place] == expected
            found = frame.row(place, named=True)
            assert {**found, "tokens": list(found["tokens"])} == expected


@rebuilt
def test_load_dataset_finds_every_config_and_split(sample, dataset, tmp_path):
    import datasets

    folder = sample(dataset) / f"{dataset}-sample"
    lock = open_dataset(folder).lock
    assert sorted(datasets.get_dataset_config_names(str(folder))) == sorted(lock.configs)
    for config in lock.configs:
        loaded = datasets.load_dataset(str(folder), config, cache_dir=str(tmp_path))
        assert {split: len(rows) for split, rows in loaded.items()} == {
            split: lock.rows(config, split) for split in lock.splits(config)
        }


@rebuilt
def test_a_finished_sample_is_verified_and_not_built_again(sample, dataset):
    folder = sample(dataset) / f"{dataset}-sample"
    before = hashes(folder)
    assert api.build(dataset, out=str(folder.parent)).reused
    assert hashes(folder) == before
