"""Equal bytes give one root, wherever they are and however the work is cut."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from fineweb_corpus import build, make_corpus, write_parquet
from little_hub import CARD, COMMIT, REPOSITORY, LittleHub

from tangobench.pipeline.core.build import Job
from tangobench.pipeline.core.lock import differences

NEAR = {"near_duplicates": "report", "near_engine": "rensa"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two files as a hub holds them; some of their row groups hold ignored dumps only."""
    root = tmp_path_factory.mktemp("repository")
    docs = make_corpus(700, 3)
    by_dump = sorted(docs, key=lambda doc: doc["dump"])
    write_parquet(root / "sample/10BT/000_00000.parquet", by_dump[:600], rows=25)
    write_parquet(root / "data/CC-MAIN-2023-50/000_00000.parquet", by_dump[600:], rows=25)
    groups = [pq.ParquetFile(p) for p in sorted(root.rglob("*.parquet"))]
    last = groups[0].read_row_group(groups[0].num_row_groups - 1, columns=["dump"])
    assert set(last["dump"].to_pylist()) == {"CC-MAIN-2024-10"}
    return root


@pytest.fixture(scope="module")
def reference(corpus, tmp_path_factory):
    return build(tmp_path_factory.mktemp("one"), corpus, overrides=NEAR)


def same(built, reference):
    # Every unit encodes a sample of its own texts again, so that number follows the units.
    free = ("environment", "checksum", "provenance", "side_files", "notes.tokenizer")
    fields = {name for name, *_ in differences(built.lock.data, reference.lock.data)}
    assert not {field for field in fields if not field.startswith(free)}
    assert built.lock.root == reference.lock.root


@pytest.mark.parametrize("unit_bytes", [1, 5_000, 1 << 30])
def test_any_unit_size(corpus, reference, tmp_path, unit_bytes):
    same(build(tmp_path, corpus, overrides={**NEAR, "unit_bytes": unit_bytes}), reference)


def test_any_number_of_workers(corpus, reference, tmp_path):
    same(build(tmp_path, corpus, overrides=NEAR, workers=3), reference)


def test_a_url_whose_row_groups_are_not_looked_into(corpus, reference, tmp_path):
    same(build(tmp_path, f"file://{corpus}", overrides=NEAR), reference)


def test_object_storage(corpus, reference, tmp_path, s3_server, bucket):
    for file in sorted(corpus.rglob("*.parquet")):
        name = f"{bucket}/{file.relative_to(corpus).as_posix()}".removeprefix("s3://shelf/")
        s3_server.upload_file(str(file), "shelf", name)
    same(build(tmp_path, bucket, overrides=NEAR), reference)


@pytest.mark.parametrize("stream", [False, True], ids=["download", "stream"])
def test_a_hub(corpus, reference, tmp_path, monkeypatch, stream):
    (corpus / "README.md").write_text(CARD)
    served = LittleHub(corpus)
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    hub = {"repository": REPOSITORY, "revision": COMMIT}
    try:
        overrides = {**NEAR, "hub": hub}
        same(build(tmp_path / "out", "hub", overrides=overrides, stream=stream), reference)
    finally:
        served.close()


@pytest.mark.parametrize("merge_bytes", [1 << 10, 1 << 13])
def test_a_shuffle_in_two_levels(corpus, reference, tmp_path, monkeypatch, merge_bytes):
    ran = []

    def run(self, stage, units):
        ran.extend([stage.name] * len(units))
        return original(self, stage, units)

    original = Job.run
    monkeypatch.setattr(Job, "run", run)
    monkeypatch.setattr("tangobench.pipeline.fineweb.stream.ONE_LEVEL", 1)
    monkeypatch.setattr("tangobench.pipeline.fineweb.stream.MERGE_BYTES", merge_bytes)
    monkeypatch.setattr("tangobench.pipeline.fineweb.stream._BUCKET_TOKENS", (1, 700))
    same(build(tmp_path, corpus, overrides=NEAR), reference)
    assert ran.count("fineweb-merge-tokens") > 4


def test_hash_partitions_and_spilling(corpus, reference, tmp_path, monkeypatch):
    monkeypatch.setattr("tangobench.pipeline.fineweb.resolve.PART_ROWS", 90)
    monkeypatch.setattr("tangobench.pipeline.fineweb.resolve.EDGES_IN_MEMORY", 20)
    same(build(tmp_path, corpus, overrides=NEAR), reference)
