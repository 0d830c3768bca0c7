"""Equal bytes give one root, wherever they are and however the work is cut."""

from __future__ import annotations

import shutil

import pyarrow.parquet as pq
import pytest
from fineweb_corpus import build, make_corpus, write_parquet
from little_hub import CARD, COMMIT, REPOSITORY, LittleHub

from tangobench.pipeline import api
from tangobench.pipeline.core.build import Job
from tangobench.pipeline.core.lock import differences, read_lock
from tangobench.pipeline.core.spec import load_spec, manifest_file
from tangobench.pipeline.core.store import open_store
from tangobench.pipeline.fineweb import encode, packing, plan, units
from tangobench.pipeline.fineweb.spec import Spec
from tangobench.pipeline.tokenizer.use import GPT2

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


@pytest.mark.parametrize("duplicates", ["drop", "reassign"])
@pytest.mark.parametrize("rows", [9, 1000], ids=["some", "all"])
def test_one_pass_or_two(corpus, tmp_path, monkeypatch, duplicates, rows):
    """Which it is cannot be seen in the lock, counts of the tokens beyond the rows included."""
    monkeypatch.setattr("tangobench.pipeline.fineweb.build._BUCKET_TOKENS", (1, 700))
    overrides = {**NEAR, "duplicates": duplicates, "train_rows": rows, "near_duplicates": "drop"}
    built, indexed, original = {}, [], encode._pointer
    monkeypatch.setattr(encode, "_pointer", lambda *args: indexed.append(args) or original(*args))
    for once in (True, False):
        monkeypatch.setattr(units, "one_pass", lambda *_, once=once: once)
        built[once] = build(tmp_path / str(once), corpus, overrides=overrides)
        assert bool(indexed) == once
        indexed.clear()
    same(built[True], built[False])


def test_the_sample_in_one_pass_or_two(tmp_path, monkeypatch):
    for once in (True, False):
        monkeypatch.setattr(units, "one_pass", lambda *_, once=once: once)
        built = api.build("fineweb", "sample", out=str(tmp_path / str(once)))
        assert built.lock.root == read_lock(manifest_file("fineweb.sample.lock.json")).root


@pytest.mark.parametrize("source", ["files", "one of them twice", "sample"])
def test_the_plan_is_for_the_way_that_the_build_goes(corpus, tmp_path, source):
    """Row groups have more bytes than their texts: about the threshold a plan that counted texts
    would differ."""
    if source == "one of them twice":
        shutil.copytree(corpus, tmp_path / "in")
        file = next((tmp_path / "in").rglob("*.parquet"))
        shutil.copy(file, file.with_name("copy.parquet"))
    where = {"files": str(corpus), "sample": None}.get(source, str(tmp_path / "in"))
    plain = {"context": 16, "near_duplicates": "off"}
    given, *_ = plan._input(load_spec(Spec, "fineweb", "sample", plain), where)
    threshold = given.groups / (2 * 16 * packing.BYTES_PER_TOKEN)
    ways = []
    for share in (0.5, 0.7, 0.8, 0.9, 0.98, 1.02, 1.2):
        over = {**plain, "train_rows": int(share * threshold)}
        spec = load_spec(Spec, "fineweb", "sample", over)
        found = units.find_inputs(spec, where, Job(open_store(str(tmp_path / "s"))), GPT2)
        once = found.units[0].encoding is not None
        assert round(plan.plan(spec, where, 1)["read_bytes"] / given.size) == (2 if once else 3)
        ways.append(once)
    assert set(ways) == {True, False}


def test_the_way_follows_from_spec_and_size():
    spec = load_spec(Spec, "fineweb", "paper")
    half = spec.train_rows * spec.context * packing.BYTES_PER_TOKEN
    assert packing.one_pass(spec, 2 * half) and not packing.one_pass(spec, 2 * half + 1)


def test_any_number_of_workers(corpus, reference, tmp_path):
    same(build(tmp_path, corpus, overrides=NEAR, workers=3), reference)


def test_a_file_url(corpus, reference, tmp_path):
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
    monkeypatch.setattr("tangobench.pipeline.fineweb.build.ONE_LEVEL", 1)
    monkeypatch.setattr("tangobench.pipeline.fineweb.build.MERGE_BYTES", merge_bytes)
    monkeypatch.setattr("tangobench.pipeline.fineweb.build._BUCKET_TOKENS", (1, 700))
    same(build(tmp_path, corpus, overrides=NEAR), reference)
    assert ran.count("fineweb-merge-tokens") > 4


def test_hash_partitions_and_spilling(corpus, reference, tmp_path, monkeypatch):
    monkeypatch.setattr("tangobench.pipeline.fineweb.keys.PART_ROWS", 90)
    monkeypatch.setattr("tangobench.pipeline.fineweb.resolve.TOGETHER", 20)
    same(build(tmp_path, corpus, overrides=NEAR), reference)
