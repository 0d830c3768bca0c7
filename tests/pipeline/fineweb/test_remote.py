"""Input behind fsspec URLs: an S3 server on loopback, and memory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from little_hub import REPOSITORY, LittleHub
from s3fs import S3FileSystem

from tangobench.errors import InputError, ResourceError
from tangobench.pipeline import api
from tangobench.pipeline.fineweb import parquet
from tangobench.pipeline.fineweb.sources import SourceFile, list_files

SUPPORT = Path(__file__).parents[2] / "support"
OVERRIDES = {"context": 128, "near_duplicates": "off"}


def build(out, source, **options):
    return api.build("fineweb", out=str(out), source=str(source), overrides=OVERRIDES, **options)


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


@pytest.fixture
def door(corpus, tmp_path, monkeypatch):
    """What happens to requests of the store from now on: writes the control file of a gate."""
    control, store = tmp_path / "gate", urlsplit(os.environ["AWS_ENDPOINT_URL"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["127.0.0.1", control, port, store.port]
    process = subprocess.Popen([sys.executable, SUPPORT / "gate.py", *map(str, words)])
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        time.sleep(0.05)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # of the client alone
    monkeypatch.setattr("tangobench.pipeline.core.remote.random.uniform", lambda *_: 0.01)
    S3FileSystem.clear_instance_cache()
    yield control.write_text
    process.kill()
    process.wait()
    S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("status", ["429", "503"])
def test_a_store_that_refuses_every_third_request_is_waited_for(
    corpus, door, files, tmp_path, status
):
    whole = build(tmp_path / "local", files).lock.root
    door(f"{status}/3")  # a question may take two requests
    assert build(tmp_path / "folder", corpus).lock.root == whole
    listed = list_files(f"{corpus}/*/*/*.parquet").files
    assert [file.name.rpartition("/")[2] for file in listed] == ["0.parquet", "1.parquet"]


@pytest.mark.parametrize("status", ["429", "503"])
def test_a_store_that_keeps_refusing_is_unreachable(corpus, door, tmp_path, status):
    door("")
    (file, *_) = list_files(corpus, 0.1).files
    file = SourceFile(file.name, file.url, file.size, patience=0.1)
    door(status)
    S3FileSystem.clear_instance_cache()
    for ask in (
        lambda: list_files(corpus, 0.1),
        lambda: list_files(f"{corpus}/*/*.parquet", 0.1),
        lambda: parquet.inspect(file),
        lambda: list(parquet.read(file, [0], ["text"])),
        lambda: build(tmp_path / "out", corpus, patience=0.1),
    ):
        with pytest.raises(ResourceError) as caught:
            ask()
        assert (caught.value.kind, caught.value.exit_code) == ("source-unreachable", 7)
        assert "--patience" in caught.value.fix


@pytest.fixture
def web(files):
    """A server of the same files, and the address of one."""
    served = LittleHub(files)
    yield served, f"{served.storage}/{REPOSITORY}//data/0.parquet"
    served.close()


@pytest.mark.parametrize("fault", ["429", "503", "cut", "short"])
def test_a_web_server_that_fails_is_waited_for_and_then_unreachable(web, fault):
    served, address = web
    served.fault, served.patience = fault, 2
    (file,) = list_files(address).files
    assert parquet.inspect(file).rows == 120 and served.patience == 0
    served.patience = None
    file = SourceFile(file.name, file.url, file.size, patience=0.2)
    for ask in (lambda: parquet.inspect(file), lambda: list(parquet.read(file, [0], ["text"]))):
        with pytest.raises(ResourceError) as caught:
            ask()
        assert (caught.value.kind, caught.value.exit_code) == ("source-unreachable", 7)


def test_a_web_server_that_refuses_for_good_is_not_waited_for(web):
    served, address = web
    (file,) = list_files(address).files
    served.fault = "403"
    with pytest.raises(InputError, match="403") as caught:
        parquet.inspect(file)
    assert (caught.value.kind, caught.value.exit_code) == ("source-unreadable", 5)


@pytest.mark.parametrize("name", ["x.parquet", "*.parquet"])
def test_a_refused_connection_is_unreachable_at_once(name):
    began = time.monotonic()
    with pytest.raises(ResourceError) as caught:
        list_files(f"https://127.0.0.1:9/{name}")
    assert (caught.value.kind, caught.value.exit_code) == ("source-unreachable", 7)
    assert time.monotonic() - began < 20
