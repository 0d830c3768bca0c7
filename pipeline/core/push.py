"""Uploading a dataset or model folder to a Hugging Face hub, in one commit.

- A dataset is verified byte by byte first. Only files that the lock names go up: `run.json` tells
  the host, paths and times. Of a model no file goes up that names this machine.
- One commit holds everything, so a reader sees the old dataset or the new one, never a mixture;
  shards of an earlier push that the new lock does not name are removed in the same commit.
"""

from __future__ import annotations

import fnmatch
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tangobench.errors import CorruptionError, InputError, UsageError
from tangobench.pipeline.core.cards import NOT_STATED
from tangobench.pipeline.core.files import LOG_BYTES, read_untrusted, size_untrusted
from tangobench.pipeline.core.lock import CARD_NAMES, LOCK_NAME
from tangobench.pipeline.core.shard_reader import verify

_REPOSITORY: Final = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_SHARDS: Final = "*-?????-of-?????.arrow"
_SHOWN: Final = 10
_MODEL_FILES: Final = ("*.safetensors", "*.json", "*.jsonl", "*.md", "recipe.toml")


@dataclass(frozen=True, slots=True)
class Upload:
    """What would go where."""

    folder: Path
    repository: str
    kind: Literal["dataset", "model"]
    files: tuple[str, ...]
    bytes: int
    message: str


def plan_push(folder: Path, repository: str) -> Upload:
    """Check a folder and list what a push would upload; nothing leaves this machine."""
    if not _REPOSITORY.fullmatch(repository):
        why = f"{repository!r} is no repository name"
        fix = "write OWNER/NAME, such as me/lean-sample"
        raise UsageError(why, kind="repository-name", fix=fix)
    is_dataset = (folder / LOCK_NAME).is_file()
    files, message = _dataset_files(folder) if is_dataset else _model_files(folder)
    size = sum((folder / file).stat().st_size for file in files)
    kind: Literal["dataset", "model"] = "dataset" if is_dataset else "model"
    return Upload(folder, repository, kind, files, size, message)


def push(upload: Upload) -> str:
    """Upload in one commit and return its address."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    try:
        api.create_repo(upload.repository, repo_type=upload.kind, exist_ok=True)
        there = api.list_repo_files(upload.repository, repo_type=upload.kind)
        operations: list[Any] = [
            CommitOperationAdd(path_in_repo=file, path_or_fileobj=str(upload.folder / file))
            for file in upload.files
        ]
        operations += [CommitOperationDelete(path_in_repo=file) for file in stale(upload, there)]
        commit = api.create_commit(
            upload.repository, operations, commit_message=upload.message, repo_type=upload.kind
        )
    except (HfHubHTTPError, OSError) as error:
        why = f"the hub refused the upload to {upload.repository}: {str(error).splitlines()[0]}"
        fix = "no question of your login: check HF_ENDPOINT and the network, then try again"
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403, 404):
            fix = "log in with `hf auth login` (or set HF_TOKEN) and check the owner's name"
        raise InputError(why, kind="hub-refused", fix=fix) from error
    return str(commit.commit_url)


def stale(upload: Upload, there: list[str]) -> list[str]:
    if upload.kind != "dataset":
        return []
    return sorted(set(fnmatch.filter(there, _SHARDS)) - set(upload.files))


def _dataset_files(folder: Path) -> tuple[tuple[str, ...], str]:
    """What the lock names; rows whose licence nobody has stated are refused."""
    from huggingface_hub import DatasetCard

    lock = verify(folder)
    if DatasetCard.load(folder / CARD_NAMES[0]).data.license == NOT_STATED:
        why = f"the licence of the rows in {folder} is not stated"
        fix = "remove the folder and build it again with --licence: the units are kept"
        raise UsageError(why, kind="licence-not-stated", fix=fix, path=str(folder))
    files = [entry["path"] for entry in lock.shards + lock.side_files]
    return (*sorted(files), LOCK_NAME), f"{lock.name} {lock.profile}, root {lock.root}"


def _model_files(folder: Path) -> tuple[tuple[str, ...], str]:
    _require_one_thing(folder)
    paths = {path for pattern in _MODEL_FILES for path in folder.rglob(pattern) if path.is_file()}
    names = sorted(path.relative_to(folder).as_posix() for path in paths)
    for name in names:
        try:
            size_untrusted(folder / name, folder=folder)
        except OSError as error:
            path, fix = str(folder / name), "remove it, or put the file itself there"
            why = f"{path} is not uploaded: {error.strerror}"
            raise CorruptionError(why, kind="file-refused", fix=fix, path=path) from None
        _require_nothing_of_this_machine(folder, name)
    return tuple(names), folder.name


def _require_one_thing(folder: Path) -> None:
    """Refuse a folder that is no model, and name the datasets and models in it."""
    if not folder.exists():
        fix = "check the path: a dataset folder, or a run folder under out/runs"
        raise InputError(f"{folder} does not exist", kind="path-missing", fix=fix, path=str(folder))
    locks = (path.parent for path in folder.rglob(LOCK_NAME))
    weights = (path.parent for path in folder.rglob("*.safetensors"))
    models = (path.parent if path.name == "checkpoints" else path for path in weights)
    things = sorted({path.relative_to(folder).as_posix() for path in (*locks, *models)})
    if things == ["."]:
        return
    why = f"{folder} is neither a dataset (no {LOCK_NAME}) nor a model (no .safetensors)"
    kind, fix = "nothing-to-push", "name a dataset folder such as out/lean-sample, or a run folder"
    if things:
        why += f"; in it are {', '.join(things[:_SHOWN])}{', …' if things[_SHOWN:] else ''}"
        kind, fix = "many-things", f"push one of them: tangobench push {folder / things[0]} …"
    raise InputError(why, kind=kind, fix=fix, path=str(folder))


def _require_nothing_of_this_machine(folder: Path, name: str) -> None:
    """Refuse a text that names this machine, its user's home or the folder's place."""
    if name.endswith(".safetensors"):
        return
    data = read_untrusted(folder / name, folder=folder, limit=LOG_BYTES)
    places = (str(Path.home()), str(folder.absolute().parent), str(folder.resolve().parent))
    for trace in [place for place in places if place != "/"] + [f'"{platform.node()}"']:
        if trace.encode() in data:
            path, fix = str(folder / name), "remove it from the file, or the file from the folder"
            why = f"{path} is not uploaded: it contains {trace}, which is of this machine"
            raise UsageError(why, kind="private-path", fix=fix, path=path)
