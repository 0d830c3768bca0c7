"""The hub as a source, with the real client against a small hub on loopback."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tangobench.errors import InputError
from tangobench.pipeline import api, hub
from tangobench.pipeline.hub import HubFolders, list_hub

REPOSITORY = "someone/fineweb-edu"
COMMIT = "a" * 40
FOLDERS = (("sample/10BT", 0), ("data/CC-MAIN-2023-50", 0))


class LittleHub:
    """Serves one dataset repository from a folder the way the hub does, ranges included."""

    def __init__(self, root: Path, *, lfs: bool = True) -> None:
        self.root, self.lfs, self.requests = root, lfs, []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_args):
                pass

            def do_HEAD(self):
                outer.answer(self, body=False)

            def do_GET(self):
                outer.answer(self, body=True)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request, *, body):
        path = unquote(urlsplit(request.path).path)
        self.requests.append(path)
        api_root = f"/api/datasets/{REPOSITORY}"
        if path.startswith(f"{api_root}/revision/"):
            if path.endswith("/nosuch"):
                return self.send(request, 404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
            info = {"id": REPOSITORY, "sha": COMMIT, "siblings": [], "private": False}
            return self.send(request, 200, json.dumps(info).encode(), body)
        if path.startswith(f"{api_root}/tree/"):
            folder = path.split("/", 7)[7] if path.count("/") > 6 else ""
            if not (self.root / folder).is_dir():
                return self.send(request, 404, b"{}", body, {"X-Error-Code": "EntryNotFound"})
            return self.send(request, 200, json.dumps(self.tree(folder)).encode(), body)
        if path.startswith(f"/datasets/{REPOSITORY}/resolve/{COMMIT}/"):
            return self.send_file(request, self.root / path.split("/", 6)[6], body)
        return self.send(request, 404, b"{}", body)

    def tree(self, folder):
        entries = []
        for file in sorted(p for p in (self.root / folder).rglob("*") if p.is_file()):
            data = file.read_bytes()
            name = file.relative_to(self.root).as_posix()
            entry = {"type": "file", "path": name, "size": len(data), "oid": "b" * 40}
            if self.lfs:
                sha256 = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": 130}
            entries.append(entry)
        return entries

    def send_file(self, request, file, body):
        data = file.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes", "ETag": '"etag"'}
        asked = request.headers.get("Range")
        if asked:
            first, last = asked.removeprefix("bytes=").split("-")
            stop = int(last) + 1 if last else len(data)
            total, data = len(data), data[int(first) : stop]
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(data) - 1}/{total}"
        self.send(request, 206 if asked else 200, data, body, headers)

    def send(self, request, status, data, body, headers=None):
        request.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if body:
            request.wfile.write(data)


def write_repository(root: Path) -> Path:
    for folder, dump, count in (
        ("sample/10BT", "CC-MAIN-2023-14", 120),
        ("data/CC-MAIN-2023-50", "CC-MAIN-2023-50", 60),
        ("data/CC-MAIN-2024-10", "CC-MAIN-2024-10", 30),
    ):
        for part in range(2):
            names = [f"{dump}-{part}-{n}" for n in range(count)]
            columns = {
                "text": [f"{name}: " + f"{name} says so. " * 40 for name in names],
                "id": names,
                "dump": [dump] * count,
                "url": [f"https://a.example/{name}" for name in names],
            }
            file = root / folder / f"{part:03d}_00000.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(columns), file, row_group_size=50)
    (root / "README.md").write_text("a card")
    return root


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(params=[True, False], ids=["lfs", "plain"])
def little_hub(request, repository, monkeypatch, tmp_path):
    served = LittleHub(repository, lfs=request.param)
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    yield served
    served.close()


def build(out, source, **hub_keys):
    keys = {"repository": REPOSITORY, "revision": COMMIT, **hub_keys}
    return api.build(
        "fineweb", out=str(out), source=source, overrides={"context": 128, "hub": keys}
    )


def test_hub_and_download_give_the_same_root(little_hub, repository, tmp_path):
    from_hub = build(tmp_path / "hub", "hub")
    named = build(tmp_path / "named", f"hub:{REPOSITORY}")
    folder = tmp_path / "local"
    for part in ("sample/10BT", "data/CC-MAIN-2023-50"):
        for file in (repository / part).iterdir():
            copy = folder / f"{part.replace('/', '-')}-{file.name}"
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(file.read_bytes())
    local = build(tmp_path / "folder", str(folder))
    assert from_hub.lock.root == named.lock.root == local.lock.root
    assert from_hub.lock.data["counts"]["input"]["rows"] == 360
    assert not any("CC-MAIN-2024-10" in path for path in little_hub.requests)
    run = json.loads((from_hub.folder / "run.json").read_text())
    assert run["origin"]["commit"] == COMMIT and run["origin"]["endpoint"] == little_hub.url


def test_lfs_hashes_save_the_download(little_hub, repository):
    listing = list_hub(HubFolders(repository=REPOSITORY, revision=COMMIT, folders=FOLDERS))
    assert [file.name for file in listing.files] == [
        "sample/10BT/000_00000.parquet",
        "sample/10BT/001_00000.parquet",
        "data/CC-MAIN-2023-50/000_00000.parquet",
        "data/CC-MAIN-2023-50/001_00000.parquet",
    ]
    for file in listing.files:
        data = (repository / file.name).read_bytes()
        assert file.size == len(data)
        expected = hashlib.sha256(data).hexdigest() if little_hub.lfs else None
        assert file.sha256 == expected


def test_file_limits(little_hub, tmp_path):
    done = build(tmp_path / "out", "hub", train_files=1, validation_files=1)
    assert done.lock.data["counts"]["input"]["rows"] == 180


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"train": "sample/11BT"}, "sample/11BT"),
        ({"revision": "nosuch"}, "nosuch"),
        ({"repository": "someone/else"}, "someone/else"),
    ],
)
def test_what_the_hub_does_not_have_is_named(little_hub, tmp_path, keys, what):
    with pytest.raises(InputError) as caught:
        build(tmp_path / "out", "hub", **keys)
    assert caught.value.kind == "hub-unavailable" and what in caught.value.message


def test_offline_says_what_is_missing_and_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError) as caught:
        build(tmp_path / "out", "hub")
    assert caught.value.details["missing"] == [
        "data/CC-MAIN-2023-50/*.parquet",
        "sample/10BT/*.parquet",
    ]
    assert "hf download someone/fineweb-edu" in caught.value.fix and COMMIT in caught.value.fix


def test_offline_uses_what_the_cache_holds(monkeypatch, repository, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "datasets--someone--fineweb-edu" / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(repository)
    done = build(tmp_path / "out", "hub")
    assert done.lock.data["counts"]["input"]["rows"] == 360


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("hub:a/b", ("a/b", None)),
        ("hub:a/b@main", ("a/b", "main")),
        ("hf://datasets/a/b@refs/x", ("a/b", "refs/x")),
        ("HuggingFaceFW/fineweb-edu", ("HuggingFaceFW/fineweb-edu", None)),
        ("a/b/c", None),
        ("/abs/b", None),
        ("a.parquet", None),
        ("s3://bucket/x", None),
    ],
)
def test_hub_names(source, found):
    assert hub.hub_name(source) == found


def test_an_existing_folder_is_not_a_hub_name(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub.hub_name("a/b") is None and hub.hub_name("hub:a/b") == ("a/b", None)
