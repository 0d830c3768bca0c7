"""The hub as a source, with the real client against a small hub on loopback."""

from __future__ import annotations

import fnmatch
import io
import json
import os
import re
import shutil
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard
from little_hub import CARD, COMMIT, FOLDERS, REPOSITORY, LittleHub, write_repository

from tangobench.errors import InputError, ResourceError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.core.hashing import rows_sha256, sha256_file
from tangobench.pipeline.core.progress import Reporter, size
from tangobench.pipeline.core.push import plan_push
from tangobench.pipeline.core.shard_reader import verify
from tangobench.pipeline.fineweb import plan as fineweb_plan
from tangobench.pipeline.fineweb import sources
from tangobench.pipeline.fineweb.sources.hub import HubParts, cache_folder, files_of, list_hub

CARD_BYTES = len(CARD.encode())
WANTED = HubParts(repository=REPOSITORY, revision=COMMIT, parts=FOLDERS)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture(scope="module")
def total(repository):
    """Bytes of the files that a build needs."""
    return sum(f.stat().st_size for name, *_ in FOLDERS for f in (repository / name).iterdir())


@pytest.fixture(params=[True, False], ids=["lfs", "plain"])
def either_hub(request, repository, monkeypatch, tmp_path):
    yield from serve(repository, monkeypatch, tmp_path, lfs=request.param)


@pytest.fixture
def hub(repository, monkeypatch, tmp_path):
    yield from serve(repository, monkeypatch, tmp_path, lfs=True)


def serve(repository, monkeypatch, tmp_path, *, lfs):
    served = LittleHub(repository, lfs=lfs)
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "s" * 30)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    yield served
    served.close()


def build(out, source="hub", *, keys=None, workers=1, **options):
    keys = {"repository": REPOSITORY, "revision": COMMIT, **(keys or {})}
    overrides = {"context": 128, "near_duplicates": "off", "hub": keys}
    return api.build(
        "fineweb", out=str(out), source=source, overrides=overrides, workers=workers, **options
    )


def refused(out, kind=ResourceError, **options):
    with pytest.raises(kind) as caught:
        build(out, **options)
    assert "hf_sss" not in str(caught.value) + str(caught.value.details)
    assert not (out / "fineweb-sample").exists()
    return caught.value


def test_hub_stream_and_folder_give_the_same_root(either_hub, repository, tmp_path):
    from_hub = build(tmp_path / "hub")
    named = build(tmp_path / "named", f"hub:{REPOSITORY}", stream=True)
    folder = tmp_path / "local"
    for part in ("sample/10BT", "data/CC-MAIN-2023-50"):
        for file in (repository / part).iterdir():
            copy = folder / f"{part.replace('/', '-')}-{file.name}"
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(file.read_bytes())
    local = build(tmp_path / "folder", str(folder))
    assert from_hub.lock.root == named.lock.root == local.lock.root
    assert from_hub.lock.data["counts"]["input"]["rows"] == 360
    assert not any("CC-MAIN-2024-10" in path for path in either_hub.requests)
    run = json.loads((from_hub.folder / "run.json").read_text())
    assert run["origin"]["commit"] == COMMIT and run["origin"]["endpoint"] == either_hub.url


def test_each_byte_travels_once(hub, total, tmp_path):
    shown = io.StringIO()
    build(tmp_path / "a", workers=2, reporter=Reporter(stream=shown))
    assert hub.sent == total + CARD_BYTES
    assert "download: 4 files" in shown.getvalue()
    assert set(hub.tokens) == {None}  # the token is the hub's, not its storage's
    asked = len(hub.requests)
    build(tmp_path / "b")
    assert (hub.sent, len(hub.requests)) == (
        total + CARD_BYTES,
        asked,
    )  # a commit never changes: nobody asked


def test_a_plan_names_the_bytes_and_requests_that_the_hub_counts(
    hub, repository, total, tmp_path, monkeypatch
):
    known = {}
    for folder, rows in (("sample/10BT", 240), ("data/CC-MAIN-2023-50", 120)):
        known[folder] = (rows, sum(f.stat().st_size for f in (repository / folder).iterdir()))
    monkeypatch.setattr(fineweb_plan, "_KNOWN", known)  # this hub's index instead of the real one
    monkeypatch.setattr(fineweb_plan, "_FILE_BYTES", total / 4)
    keys = {"repository": REPOSITORY, "revision": COMMIT}
    overrides = {"context": 128, "near_duplicates": "off", "hub": keys}
    asked = api.Request(name="fineweb", source="hub", overrides=overrides)
    (line,) = [x for x in api.plan(asked)["lines"] if x.startswith("network")]
    assert hub.requests == []  # a plan asks nobody
    build(tmp_path)
    assert f"{size(hub.sent - CARD_BYTES)} once" in line
    counted, about = len(hub.requests), int(re.search(r"about ([\d,]+) requests", line)[1])
    assert about / 2.5 <= counted <= about, (counted, about)


@pytest.mark.parametrize("fault", ["cut", "short", "stall", "reset", "429", "503"])
@pytest.mark.parametrize("stream", [False, True], ids=["download", "stream"])
def test_a_hub_that_fails_for_a_while_is_waited_for(
    hub, total, tmp_path, fault, stream, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 2)
    list_hub(WANTED, 120.0)  # so that files are hit, not the card
    hub.fault, hub.patience = fault, 2 - (fault == "stall")  # one stall is half of what is waited
    build(tmp_path, stream=stream, patience=4.0 if fault == "stall" else 120.0)
    assert hub.patience == 0
    # A reset may take with it what was sent and not yet read.
    assert stream or fault == "reset" or hub.sent <= 1.1 * (total + CARD_BYTES)


@pytest.mark.parametrize(
    ("fault", "stream"),
    [(fault, stream) for fault in ("429", "503", "cut") for stream in (False, True)]
    + [("stall", False), ("reset", False)],
)
def test_a_hub_that_keeps_failing_is_unreachable(hub, total, tmp_path, fault, stream):
    hub.fault = fault
    if fault == "cut":  # an interrupted file is continued where it stopped: nothing left to send
        hub.patience = 3
        build(tmp_path, stream=stream, patience=2.0)
        return
    # Worker processes were started with the environment of an earlier test.
    error = refused(tmp_path, stream=stream, patience=1.0, workers=1 if stream else 2)
    assert (error.kind, error.exit_code) == ("source-unreachable", 7)
    assert "--patience" in error.fix
    hub.fault = None
    build(tmp_path, stream=stream)
    assert stream or fault == "reset" or hub.sent == total + CARD_BYTES


def test_two_workers_that_stream_from_a_failing_hub_end_with_7(hub, tmp_path, program):
    list_hub(WANTED, 120.0)  # so that the workers meet the fault
    hub.fault = "503"
    words = ["--source", f"hub:{REPOSITORY}@{COMMIT}", "--set", "near_duplicates=off", "--stream"]
    place = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hf" / "hub")}
    limits = ["--workers", 2, "--patience", 2, "--json"]
    done = program("build", "fineweb", "--out", tmp_path, *words, *limits, check=7, **place)
    said = done.stdout + done.stderr
    assert "source-unreachable" in said and "--patience" in said and "Traceback" not in said


def test_a_listing_that_stalls_is_unreachable(hub, tmp_path):
    hub.listing_fault, began = "stall", time.monotonic()
    error = refused(tmp_path, patience=2.0)
    assert (error.kind, error.exit_code) == ("source-unreachable", 7)
    assert time.monotonic() - began < 20


def test_a_long_wait_that_the_hub_asks_for_is_named_at_once(hub, tmp_path):
    hub.fault, began = "429", time.monotonic()
    for hub.asks in ({"Retry-After": "300"}, {"RateLimit": '"resolvers";r=0;t=299'}):
        error = refused(tmp_path, patience=30.0)
        assert error.kind == "source-unreachable" and "--patience 3" in error.fix
    assert time.monotonic() - began < 20


def test_a_killed_download_resumes_inside_the_file(hub, total, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    really = open

    def die(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("tangobench.pipeline.fineweb.sources.download.sha256_file", die)
        with pytest.raises(Killed):
            build(tmp_path)
    blobs = cache_folder(REPOSITORY) / "blobs"
    partial = sorted(blobs.glob("*.incomplete"))
    assert partial and not [p for p in blobs.iterdir() if len(p.name) == 64]
    before = sum(p.stat().st_size for p in partial)
    with really(partial[0], "r+b") as file:  # the disk lost a part of it
        file.truncate(partial[0].stat().st_size // 2)
    lost = before - sum(p.stat().st_size for p in partial)
    build(tmp_path)
    assert hub.sent == total + lost + CARD_BYTES
    assert not list(blobs.glob("*.incomplete"))


def test_a_listing_that_fails_falls_back_to_a_whole_cache_only(hub, tmp_path, monkeypatch):
    whole = build(tmp_path / "a").lock.root
    tree = cache_folder(REPOSITORY) / "trees" / f"{COMMIT}.json"
    assert tree.is_file()
    hub.listing_fault, hub.fault = 503, "503"
    assert build(tmp_path / "b").lock.root == whole
    name = "sample/10BT/001_00000.parquet"
    (cache_folder(REPOSITORY) / "snapshots" / COMMIT / name).unlink()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    began = time.monotonic()
    error = refused(tmp_path / "c")
    assert (error.kind, error.exit_code) == ("source-unreachable", 7)
    assert name in error.message
    tree.unlink()
    monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})
    error = refused(tmp_path / "c")
    assert error.details["missing"] == ["sample/10BT/*.parquet", "data/CC-MAIN-2023-50/*.parquet"]
    assert "hf download someone/fineweb-edu" in error.fix and COMMIT in error.fix
    assert time.monotonic() - began < 20  # refused connections are not waited for


@pytest.mark.parametrize("how", ["offline", "no name", "refused"])
def test_a_branch_without_a_hub_needs_a_whole_cache(hub, tmp_path, monkeypatch, how):
    build(tmp_path / "a", keys={"revision": "main"})
    if how == "offline":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    else:
        host = "no-such-host.invalid" if how == "no name" else "127.0.0.1:9"
        monkeypatch.setenv("HF_ENDPOINT", f"http://{host}")
    build(tmp_path / "b", keys={"revision": "main"})
    name = "data/CC-MAIN-2023-50/000_00000.parquet"
    (cache_folder(REPOSITORY) / "snapshots" / COMMIT / name).unlink()
    error = refused(tmp_path / "c", keys={"revision": "main"})
    assert error.kind == "source-unreachable" and error.details["missing"] == [name]


def test_other_bytes_than_the_index_says_never_enter_the_cache(hub, tmp_path):
    hub.fault = "other-bytes"
    error = refused(tmp_path, InputError)
    assert error.kind == "source-changed"
    blobs = cache_folder(REPOSITORY) / "blobs"
    assert not [p for p in blobs.iterdir() if len(p.name) == 64]
    hub.fault = None
    build(tmp_path)


def test_a_file_that_rots_in_the_cache_is_downloaded_again(hub, tmp_path):
    build(tmp_path / "a")
    snapshot = cache_folder(REPOSITORY) / "snapshots" / COMMIT
    blob = (snapshot / "sample/10BT/000_00000.parquet").resolve()
    blob.write_bytes(blob.read_bytes().replace(b"says so", b"says no"))
    assert refused(tmp_path / "b", InputError).kind == "source-changed"
    build(tmp_path / "b")


def test_no_room_for_the_download_is_told_before_it(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("tangobench.pipeline.fineweb.sources.download.free_bytes", lambda _: 1000)
    error = refused(tmp_path)
    assert error.kind == "disk-full" and "--stream" in error.fix
    assert hub.sent == CARD_BYTES
    shutil.rmtree(tmp_path / "hf")
    build(tmp_path, stream=True)


def test_the_index_claims_hashes_of_large_files(either_hub, repository):
    listing = list_hub(WANTED, 120.0)
    assert [file.name for file in listing.files] == [
        "sample/10BT/000_00000.parquet",
        "sample/10BT/001_00000.parquet",
        "data/CC-MAIN-2023-50/000_00000.parquet",
        "data/CC-MAIN-2023-50/001_00000.parquet",
    ]
    for file in listing.files:
        assert file.size == (repository / file.name).stat().st_size
        assert (file.sha256 is not None) == either_hub.lfs


def test_the_build_follows_the_repositorys_own_yaml(hub, repository, tmp_path):
    """Another folder in the YAML, another input: no rule of ours maps names to folders."""
    moved = shutil.copytree(repository, tmp_path / "moved")
    (moved / "sample" / "10BT").rename(moved / "elsewhere")
    card = CARD.replace("path: sample/10BT/*", "path: elsewhere/*1_00000.parquet")
    (moved / "README.md").write_text(card)
    hub.root = moved
    done = build(tmp_path / "out")
    assert done.lock.data["counts"]["input"]["rows"] == 240
    origin = json.loads((done.folder / "run.json").read_text())["origin"]
    assert "elsewhere/001_00000.parquet" in origin["files"]


def test_a_listing_without_end_is_refused(hub, tmp_path, monkeypatch):
    monkeypatch.setattr("tangobench.pipeline.fineweb.sources.hub._MOST_FILES", 3)
    with pytest.raises(InputError, match="more than 3 files"):
        build(tmp_path)


def test_a_file_name_that_a_terminal_obeys_is_refused(hub, repository, tmp_path):
    hub.root = shutil.copytree(repository, tmp_path / "odd")
    (hub.root / "sample" / "\x1b[2J.parquet").write_bytes(b"")
    with pytest.raises(InputError, match=r"name sample/\\x1b\[2J.parquet"):
        build(tmp_path)


CONFIG = "---\nconfigs:\n- config_name: a\n  data_files: '{}'\n---\n"


@pytest.mark.parametrize(
    "tree",
    [["a", "a/b"], ["\0.parquet"], ["n" * 300], ["a/" * 3000 + "b"], ["\ud800"]],
    ids=range(5),
)
def test_a_tree_that_no_folder_can_hold_has_no_config(tree):
    assert files_of("a", tree, CONFIG.format("**")) is None


@pytest.mark.parametrize(
    "pattern", ["https://host.test/x.parquet", "s3://b/*", "zip://*::x.zip", "/etc/*", "../../*"]
)
def test_a_card_leads_to_no_other_place(pattern, monkeypatch):
    """`datasets` would follow an address in a card: a request of the author's choice."""
    asked = []
    monkeypatch.setattr("socket.getaddrinfo", lambda *words, **_: asked.append(words))
    assert files_of("a", ["x.parquet"], CONFIG.format(pattern)) is None
    assert asked == []


def test_without_datasets_a_config_is_no_config(hub, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("datasets does nothing")

    monkeypatch.setattr("datasets.load_dataset_builder", broken)
    with pytest.raises(RuntimeError, match="datasets does nothing"):
        build(tmp_path)


def test_cards_say_what_the_input_states_and_no_more(hub, repository, tmp_path):
    """Title and licence are the repository's; own files state none, and push asks for one."""
    from_hub = build(tmp_path / "hub")
    card = DatasetCard.load(from_hub.folder / "README.md")
    assert (card.data.license, card.data.pretty_name) == ("odc-by", "FineWeb-Edu, temporal split")
    for words in (
        "commoncrawl.org/terms-of-use",
        "anonymised",
        "@inproceedings{fineweb",
        "Validation was checked",
    ):
        assert words in card.text
    told = {"repository": REPOSITORY, "commit": COMMIT, "endpoint": hub.url}
    assert verify(from_hub.folder).data["provenance"] == {"hub": told}
    folder = shutil.copytree(repository / "sample", tmp_path / "files")
    shutil.copytree(repository / "data/CC-MAIN-2023-50", folder / "validation")
    own = build(tmp_path / "own", str(folder))
    assert own.lock.root == from_hub.lock.root and "provenance" not in own.lock.data
    text = (own.folder / "README.md").read_text()
    assert "FineWeb" not in text and "odc" not in text.lower()
    with pytest.raises(UsageError) as caught:
        plan_push(own.folder, "me/own")
    assert caught.value.kind == "licence-not-stated"
    told = {"title": "Letters", "licence": "CC0-1.0", "source_url": "https://letters.example"}
    stated = build(tmp_path / "stated", str(folder), **told)
    card = DatasetCard.load(stated.folder / "README.md")
    assert (card.data.license, card.data.pretty_name) == ("cc0-1.0", "Letters")
    assert "https://letters.example" in card.text
    assert verify(stated.folder).root == own.lock.root
    assert plan_push(stated.folder, "me/own").files


def test_file_limits(hub, tmp_path):
    done = build(tmp_path / "out", keys={"train_files": 1, "validation_files": 1})
    assert done.lock.data["counts"]["input"]["rows"] == 180


GROUPS = {"train_files": 1, "train_groups": 2, "validation_files": 2, "validation_groups": 1}


@pytest.fixture(scope="module")
def wanted(repository):
    """Bytes of the row groups that `GROUPS` names, and of the footers."""
    found = 0
    for folder, files, groups in (("sample/10BT", 1, 2), ("data/CC-MAIN-2023-50", 2, 1)):
        for path in sorted((repository / folder).iterdir())[:files]:
            metadata = pq.ParquetFile(path).metadata
            columns = [metadata.row_group(g).column(c) for g in range(groups) for c in range(4)]
            found += sum(column.total_compressed_size for column in columns)
            found += 4 + 2 * 8 + metadata.serialized_size  # magic, and the length twice
    return found


def test_row_groups_travel_alone_and_their_rows_are_the_identity(
    hub, repository, wanted, tmp_path, monkeypatch
):
    """Hub, ranges, mirror and a folder of whole files: the same row groups, one root."""
    part = build(tmp_path / "part", keys=GROUPS)
    assert hub.sent == wanted + CARD_BYTES
    assert part.lock.data["counts"]["input"]["rows"] == 2 * 50 + 2 * 50
    hashes = []
    for path in ("sample/10BT/000", "data/CC-MAIN-2023-50/000", "data/CC-MAIN-2023-50/001"):
        file = pq.ParquetFile(repository / f"{path}_00000.parquet")
        columns = ["id", "dump", "url", "text"]
        tables = [file.read_row_group(g, columns) for g in range(2 if "10BT" in path else 1)]
        date = pa.nulls(50, pa.string())
        hashes.append([rows_sha256(table.append_column("date", date)) for table in tables])
    found = [[g["rows_sha256"] for g in f["groups"]] for f in part.lock.data["source"]["files"]]
    assert sorted(found) == sorted(hashes)
    claims = part.lock.data["provenance"]["hub"]["claims"]
    assert claims["sample/10BT/000_00000.parquet"] == sha256_file(
        repository / "sample/10BT/000_00000.parquet"
    )
    again = build(tmp_path / "again", keys=GROUPS)
    streamed = build(tmp_path / "stream", keys=GROUPS, stream=True)
    folder = build(tmp_path / "folder", str(repository), keys=GROUPS)
    assert "provenance" not in folder.lock.data
    roots = {done.lock.root for done in (part, again, streamed, folder)}
    assert len(roots) == 1
    build(tmp_path / "whole")  # now the cache has the whole files
    before = hub.sent
    assert build(tmp_path / "cached", keys=GROUPS).lock.root in roots and hub.sent == before
    hub.fault = "other-bytes"  # the claim is the same, the rows are not
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "other"))
    assert build(tmp_path / "other", keys=GROUPS).lock.root not in roots


@pytest.mark.parametrize("fault", ["cut", "short", "503"])
def test_row_groups_from_a_hub_that_fails_for_a_while(hub, wanted, tmp_path, fault):
    hub.fault, hub.patience = fault, 3
    whole = build(tmp_path / "a", keys=GROUPS).lock.root
    assert hub.patience == 0 and hub.sent <= 1.1 * (wanted + CARD_BYTES)
    folder = cache_folder(REPOSITORY) / "tangobench"
    assert len(list(folder.rglob("*.first-*"))) == 2 * 3  # with their locks
    kept = next(folder.rglob("*/000_00000.parquet.first-2"))
    partial = kept.rename(kept.with_name(f"{kept.name}.incomplete"))  # killed before its new name
    os.truncate(partial, 5_000)
    assert build(tmp_path / "b", keys=GROUPS).lock.root == whole and not partial.exists()


def test_row_groups_without_a_hub(hub, tmp_path, monkeypatch):
    whole = build(tmp_path / "a", keys=GROUPS).lock.root
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert build(tmp_path / "b", keys=GROUPS).lock.root == whole
    error = refused(tmp_path / "c", keys={**GROUPS, "train_groups": 3})
    assert error.details["missing"] == ["sample/10BT/000_00000.parquet"]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setattr("huggingface_hub._tree_cache._IN_MEMORY_TREE_CACHE", {})
    error = refused(tmp_path / "c", keys=GROUPS)
    names = [p.relative_to(hub.root).as_posix() for p in sorted(hub.root.rglob("*.parquet"))]
    words = re.findall('--include "([^"]+)"', error.fix)
    found = [name for name in names if any(fnmatch.fnmatch(name, word) for word in words)]
    validation = [f"data/CC-MAIN-2023-50/{n:03d}_00000.parquet" for n in (0, 1)]
    assert found == [*validation, "sample/10BT/000_00000.parquet"]


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ({"train": "sample/11BT"}, "sample/11BT"),
        ({"revision": "nosuch"}, "nosuch"),
        ({"repository": "someone/else"}, "someone/else"),
    ],
)
def test_what_the_hub_does_not_have_is_named(hub, tmp_path, keys, what):
    error = refused(tmp_path / "out", InputError, keys=keys)
    assert error.kind == "hub-unavailable" and what in error.message


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("hub:a/b", ("a/b", None)),
        ("hub:a/b@main", ("a/b", "main")),
        ("hf://datasets/a/b@refs/x", ("a/b", "refs/x")),
        ("HuggingFaceFW/fineweb-edu", None),
        ("a/b/c", None),
        ("/abs/b", None),
        ("a.parquet", None),
        ("s3://bucket/x", None),
    ],
)
def test_hub_names(source, found):
    assert sources.hub_name(source) == found


def test_a_mistyped_path_does_not_go_to_the_hub(hub, tmp_path):
    error = refused(tmp_path, InputError, source="dta/fineweb-edu")
    assert error.kind == "source-missing" and "hub:" in error.fix
    assert not hub.requests
