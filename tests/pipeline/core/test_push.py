"""Pushing to a hub on loopback, through the real client and the real command."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from little_hub import LittleHub

from tangobench.errors import CorruptionError, InputError, UsageError
from tangobench.pipeline.core.push import plan_push, stale
from tangobench.pipeline.core.shard_reader import verify

TESTS = Path(__file__).parents[2]


def _load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path):
    make_out = _load(TESTS / "eval" / "toy_out.py").make_out
    return make_out(tmp_path / "out", ("lean",)) / "lean-sample"


@pytest.fixture
def hub(tmp_path):
    server = LittleHub(folder=tmp_path / "hub")
    yield server
    server.close()


def _run(hub, *words, token="secret"):
    env = os.environ | {
        "HF_ENDPOINT": hub.url,
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HOME": str(hub.folder / "home"),
    }
    command = [sys.executable, "-m", "tangobench", "push", *map(str, words)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_dry_run_lists_files_and_sends_nothing(folder, hub):
    done = _run(hub, folder, "me/lean")
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith("dry run: 7 files,")
    assert "proof/train-00000-of-00001.arrow" in done.stderr
    assert not hub.commits


def test_what_arrives_is_the_dataset_and_says_its_root(folder, hub):
    old = hub.folder / "me" / "lean" / "train-00000-of-00009.arrow"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"of an earlier push")
    done = _run(hub, folder, "me/lean", "--yes", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    lock = verify(hub.folder / "me" / "lean")
    assert lock.root == verify(folder).root
    assert not (hub.folder / "me" / "lean" / "run.json").exists()
    (commit,) = hub.commits
    assert lock.root in commit["summary"]
    assert json.loads(done.stdout)["commit"].startswith(hub.url)


def test_a_wrong_token_is_a_short_error(folder, hub):
    done = _run(hub, folder, "me/lean", "--yes", token="wrong")
    assert done.returncode == InputError.exit_code
    assert "Traceback" not in done.stderr
    assert "hf auth login" in done.stderr
    assert not hub.commits


def test_a_server_that_takes_no_uploads_is_no_question_of_the_login(folder, hub, monkeypatch):
    def refuse(self):
        self.body()
        self.answer({"error": "Unsupported method"}, 501)

    monkeypatch.setattr("little_hub._Hub.do_POST", refuse)
    done = _run(hub, folder, "me/lean", "--yes")
    assert done.returncode == InputError.exit_code
    assert "501" in done.stderr and "HF_ENDPOINT" in done.stderr
    assert "hf auth login" not in done.stderr


def test_a_damaged_dataset_is_not_uploaded(folder):
    shard = folder / "proof" / "train-00000-of-00001.arrow"
    data = bytearray(shard.read_bytes())
    data[-20] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CorruptionError):
        plan_push(folder, "me/lean")


def test_a_run_folder_is_a_model(tmp_path):
    for name in ("step-00000010.safetensors", "step-00000010.json", "notes.txt"):
        (tmp_path / name).write_bytes(b"{}")
    upload = plan_push(tmp_path, "me/tango")
    assert upload.kind == "model"
    assert upload.files == ("step-00000010.json", "step-00000010.safetensors")
    assert stale(upload, ["train-00000-of-00001.arrow"]) == []


def test_a_missing_folder_is_said_to_be_missing(tmp_path):
    with pytest.raises(InputError, match="nowhere does not exist"):
        plan_push(tmp_path / "nowhere", "me/x")


def test_an_empty_folder_is_neither(tmp_path):
    with pytest.raises(InputError, match="neither a dataset"):
        plan_push(tmp_path, "me/x")


def test_a_folder_of_many_things_is_refused_and_they_are_named(folder):
    out = folder.parent
    for run in ("a-s17-101", "b-s17-101"):
        (out / "runs" / run / "checkpoints").mkdir(parents=True)
        (out / "runs" / run / "checkpoints" / "step-00000010.safetensors").write_bytes(b"{}")
    with pytest.raises(InputError) as caught:
        plan_push(out, "me/x")
    assert caught.value.kind == "many-things"
    for name in ("lean-sample", "runs/a-s17-101", "runs/b-s17-101"):
        assert name in caught.value.message
    with pytest.raises(InputError, match="a-s17-101"):
        plan_push(out / "runs", "me/x")
    assert plan_push(out / "runs" / "a-s17-101", "me/x").kind == "model"


@pytest.mark.parametrize("trace", ["home", "place", "host"])
def test_nothing_of_this_machine_is_sent(tmp_path, trace):
    texts = {
        "home": str(Path.home()),
        "place": str(tmp_path),
        "host": json.dumps({"x": platform.node()}),
    }
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"{}")
    (folder / "notes.md").write_text("fine")
    assert plan_push(folder, "me/x").files == ("model.safetensors", "notes.md")
    (folder / "notes.md").write_text(f"from {texts[trace]}")
    with pytest.raises(UsageError, match=r"notes\.md"):
        plan_push(folder, "me/x")


@pytest.mark.parametrize("name", ["lean", "me/lean/x", "/lean", "me/", "me/..\n"])
def test_bad_repository_names_are_usage_errors(folder, name):
    with pytest.raises(UsageError):
        plan_push(folder, name)
