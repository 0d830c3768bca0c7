"""Input behind fsspec URLs: an S3 server on loopback, and memory."""

from __future__ import annotations

import json

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tangobench.errors import InputError, ResourceError
from tangobench.pipeline import api

OVERRIDES = {"context": 128, "near_duplicates": "off"}


def build(out, source):
    return api.build("fineweb", out=str(out), source=str(source), overrides=OVERRIDES)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("files")
    for folder, dump in (("sample/10BT", "CC-MAIN-2023-14"), ("data", "CC-MAIN-2023-50")):
        for part in range(2):
            names = [f"{dump}-{part}-{n}" for n in range(120)]
            columns = {
                "text": [f"{name}: " + f"{name} says so. " * 40 for name in names],
                "id": names,
                "dump": [dump] * len(names),
                "url": [f"https://a.example/{name}" for name in names],
            }
            (root / folder).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), root / folder / f"{part}.parquet", row_group_size=50)
    return root


@pytest.fixture
def corpus(files, s3_server, bucket):
    for file in sorted(files.rglob("*.parquet")):
        name = f"{bucket}/{file.relative_to(files).as_posix()}"
        s3_server.upload_file(str(file), "shelf", name.removeprefix("s3://shelf/"))
    return bucket


def test_a_bucket_gives_the_root_of_its_files(corpus, files, tmp_path):
    remote = build(tmp_path / "s3", corpus)
    local = build(tmp_path / "local", files)
    assert remote.lock.root == local.lock.root
    globbed = build(tmp_path / "glob", f"{corpus}/sample/10BT/*.parquet")
    assert globbed.lock.data["counts"]["input"]["rows"] == 240
    told = (remote.folder / "run.json").read_text()
    assert json.loads(told)["origin"]["source"] == corpus and "secret-word" not in told


def test_an_empty_or_missing_bucket_is_named(corpus, tmp_path):
    for source in (f"{corpus}/nothing", "s3://no-such-bucket/x"):
        with pytest.raises(InputError) as caught:
            build(tmp_path / "out", source)
        assert source in caught.value.message
        assert caught.value.kind in {"source-empty", "source-missing"}


def test_any_fsspec_file_system_will_do(files, tmp_path):
    memory = fsspec.filesystem("memory")
    memory.put(str(files), "/edu", recursive=True)
    try:
        remote = build(tmp_path / "memory", "memory://edu")
    finally:
        memory.rm("/edu", recursive=True)
    assert remote.lock.root == build(tmp_path / "local", files).lock.root


def test_an_unknown_protocol_is_a_typed_error(tmp_path):
    with pytest.raises(ResourceError) as caught:
        build(tmp_path / "out", "nosuch://bucket/file.parquet")
    assert (caught.value.kind, caught.value.exit_code) == ("source-unreachable", 7)
