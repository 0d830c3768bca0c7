"""Upstream that moves, lies, breaks off or is not there; and builds that ask nobody at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import fault_toy
import pytest
from little_hub import COMMIT, REPOSITORY, LittleHub, write_repository

from tangobench.errors import InputError
from tangobench.pipeline import api
from tangobench.pipeline.lean.fetch import cache_folder, open_repository

pytestmark = pytest.mark.faults
SEALED = Path(fault_toy.__file__).with_name("sealed.py")


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return write_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def hub(repository, monkeypatch, tmp_path):
    served = LittleHub(repository)
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", "hf_" + "s" * 30)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    yield served
    served.close()


def build(out, **more):
    keys = {"repository": REPOSITORY, "revision": COMMIT, "train_files": 1, "validation_files": 1}
    overrides = {"context": 128, "hub": keys, **more}
    return api.build("fineweb", out=str(out), source="hub", overrides=overrides)


def assert_nothing_published_and_resumes(hub, out):
    assert not (out / "fineweb-sample").exists()
    hub.fault = None
    assert build(out).lock.rows("default", "train") > 0


def test_a_hub_that_serves_other_bytes_than_its_index_says(hub, tmp_path):
    """The sha256 in a lock is that of the bytes that were read, not what somebody claims."""
    hub.fault = "other-bytes"
    with pytest.raises(InputError, match="the hub's index says") as caught:
        build(tmp_path)
    assert caught.value.kind == "source-changed"
    assert_nothing_published_and_resumes(hub, tmp_path)


def test_a_hub_that_answers_with_another_revision(hub, tmp_path):
    hub.fault = "moved"
    with pytest.raises(InputError) as caught:
        build(tmp_path)
    assert (caught.value.kind, caught.value.details["found"]) == ("hub-moved", "b" * 40)
    assert_nothing_published_and_resumes(hub, tmp_path)


def test_a_file_that_changes_while_it_is_read(repository, tmp_path, monkeypatch):
    from tangobench.pipeline.fineweb import build as fineweb

    copy = tmp_path / "in.parquet"
    copy.write_bytes((repository / "sample/10BT/000_00000.parquet").read_bytes())
    really = fineweb.make_streams

    def meanwhile(*arguments, **options):
        copy.write_bytes((repository / "sample/10BT/001_00000.parquet").read_bytes())
        return really(*arguments, **options)

    monkeypatch.setattr(fineweb, "make_streams", meanwhile)
    with pytest.raises(InputError) as caught:
        api.build("fineweb", out=str(tmp_path), source=str(copy), overrides={"context": 128})
    assert caught.value.kind in ("source-changed", "parquet-corrupt")
    assert not (tmp_path / "fineweb-sample").exists()


def git(folder, *words):
    names = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER")
             for what in ("NAME", "EMAIL")}  # fmt: skip
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        check=True,
        capture_output=True,
        env={**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull},
    )
    return done.stdout.decode().strip()


@pytest.fixture
def remote(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "remote"
    folder.mkdir()
    git(folder, "init", "--quiet", "-b", "main")
    (folder / "A.lean").write_text("theorem a : P := h\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(folder, "config", "uploadpack.allowAnySHA1InWant", "true")
    return folder


def test_a_git_remote_that_no_longer_has_the_commit(remote):
    gone = git(remote, "rev-parse", "HEAD")
    git(remote, "commit", "--quiet", "--amend", "-m", "rewritten")
    git(remote, "reflog", "expire", "--expire=now", "--all")
    git(remote, "gc", "--quiet", "--prune=now")
    with pytest.raises(InputError) as caught:
        open_repository(remote.as_uri(), gone)
    assert caught.value.kind in ("fetch-failed", "commit-missing")
    assert gone in caught.value.message


def test_what_a_killed_fetch_left_locked_is_freed(remote):
    commit = git(remote, "rev-parse", "HEAD")
    git_dir = open_repository(remote.as_uri(), commit)
    (remote / "A.lean").write_text("theorem b : P := h\n")
    git(remote, "commit", "--quiet", "-am", "second")
    for name in ("shallow.lock", "packed-refs.lock", "config.lock", "objects/pack/tmp_pack_x"):
        (git_dir / name).write_bytes(b"")
    assert open_repository(remote.as_uri(), git(remote, "rev-parse", "HEAD")) == git_dir
    assert not list(cache_folder().rglob("*/*.lock"))


def test_a_clone_that_names_a_command_for_missing_objects_is_not_obeyed(remote, tmp_path):
    """`remote.*.uploadpack` of a partial clone runs when an object is missing: never here."""
    from tangobench.errors import CorruptionError
    from tangobench.pipeline.lean.git import list_files, read_files

    commit = git(remote, "rev-parse", "HEAD")
    blob = git(remote, "rev-parse", "HEAD:A.lean")
    (remote / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    trace = tmp_path / "pwned"
    for key, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "evil",
        "remote.evil.url": str(tmp_path),
        "remote.evil.promisor": "true",
        "remote.evil.uploadpack": f"touch {trace}; false",
    }.items():
        git(remote, "config", key, value)
    git_dir = open_repository(str(remote), commit)
    with pytest.raises(CorruptionError):
        list(read_files(git_dir, list_files(git_dir, commit, "").files))
    assert not trace.exists()
    # The same clone without our precautions: the trap is a real one.
    subprocess.run(
        ["git", "-C", str(remote), "cat-file", "-p", blob], capture_output=True, check=False
    )
    assert trace.exists()


def test_the_seal_holds():
    """A check that cannot fail is none."""
    script = "import socket; print('begins', flush=True); socket.socket()"
    done = subprocess.run(
        [sys.executable, str(SEALED), "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("begins\n", -signal.SIGSYS)
