"""The hub as a source, with the real client against a small hub on loopback."""

from __future__ import annotations

import hashlib
import json

import pytest
from little_hub import COMMIT, FOLDERS, REPOSITORY, LittleHub, write_repository

from tangobench.errors import InputError
from tangobench.pipeline import api, hub
from tangobench.pipeline.hub import HubFolders, list_hub


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
