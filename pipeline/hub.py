"""Where input files come from: a path, a folder, a glob, any fsspec URL, or the Hugging Face hub.

- A file is known by its bytes: names and places never reach a root, and files are taken in the
  order of their sha256, so a hub, a mirror and a download folder give the same dataset.
- The hub is pinned to a revision and reached through `HF_ENDPOINT`; a hub that answers with
  another revision is refused. The sha256 in its index (Git LFS) are claims until somebody hashed
  the bytes.
- Without a network the hub's local cache is used; else the error names what is missing and the
  command that gets it.

Usage: `listing = list_files("data/*.parquet"); open_input(listing.files[0].url)`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tangobench.errors import InputError

_MAGIC: Final = re.compile(r"[*?\[]")
_FULL_ID: Final = re.compile("[0-9a-f]{40}")
_HUB_NAME: Final = re.compile(
    r"(?:hub:|hf://datasets/)?(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One input file; `sha256` is None until somebody has read it."""

    name: str
    url: str
    size: int | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """Input files and, for run.json, where they are."""

    files: list[SourceFile]
    origin: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFolders:
    """Part of a dataset repository: folders, each with how many of its files (0: all)."""

    repository: str
    revision: str
    folders: tuple[tuple[str, int], ...] = field(default_factory=tuple)

    def patterns(self) -> list[str]:
        """The folders as download patterns."""
        return [f"{folder}/*.parquet" for folder, _ in self.folders]


def hub_name(source: str) -> tuple[str, str | None] | None:
    """(repository, revision) if the source names a hub repository and not a local path."""
    match = _HUB_NAME.fullmatch(source)
    explicit = source.startswith(("hub:", "hf://"))
    if match is None or (not explicit and Path(source).exists()):
        return None
    return match["repository"], match["revision"]


def list_files(source: str) -> Listing:
    """Parquet files at a path, folder, glob or fsspec URL."""
    found = _list_url(source) if "://" in source else _list_local(source)
    if not found:
        raise InputError(
            f"no Parquet file at {source}",
            kind="source-empty",
            fix="name a .parquet file, a folder that holds some, or a quoted glob",
            source=source,
        )
    return Listing(sorted(found, key=lambda file: file.name), {"kind": "files", "source": source})


def _list_local(source: str) -> list[SourceFile]:
    path = Path(source)
    if path.is_file():
        return [SourceFile(path.name, str(path.absolute()), path.stat().st_size)]
    if path.is_dir():
        names = [str(p) for p in path.rglob("*.parquet")]
    elif _MAGIC.search(source):
        names = glob.glob(source, recursive=True)  # noqa: PTH207 - absolute patterns too
    else:
        raise InputError(
            f"{source} does not exist", kind="source-missing", fix="check the path", source=source
        )
    files = [Path(name) for name in names if Path(name).is_file()]
    return [SourceFile(str(p), str(p.absolute()), p.stat().st_size) for p in files]


def _list_url(source: str) -> list[SourceFile]:
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(source)
        if _MAGIC.search(path):
            names = fs.glob(path)
        elif fs.isfile(path):
            names = [path]
        else:
            names = [name for name in fs.find(path) if name.endswith(".parquet")]
        return [SourceFile(n, fs.unstrip_protocol(n), int(fs.size(n) or 0)) for n in names]
    except (OSError, ImportError, ValueError) as error:
        raise InputError(
            f"{source} cannot be listed: {error}",
            kind="source-unreachable",
            fix="check the URL, the network and that the protocol's package is installed",
            source=source,
        ) from error


def endpoint() -> str:
    """The hub's address, read now and not when a library was imported."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def list_hub(wanted: HubFolders) -> Listing:
    """The Parquet files of some folders of a dataset repository at a fixed revision."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint())
    try:
        commit = api.dataset_info(wanted.repository, revision=wanted.revision).sha
        files = [
            SourceFile(entry.path, _hub_url(wanted.repository, commit, entry.path), entry.size, sha)
            for folder, limit in wanted.folders
            for entry, sha in _tree(api, wanted.repository, commit, folder, limit)
        ]
    except Exception as error:  # the client raises its own, httpx's and OSError
        return _from_cache(wanted, error)
    if _FULL_ID.fullmatch(wanted.revision) and commit != wanted.revision:
        raise InputError(
            f"the hub at {endpoint()} gives {wanted.repository} at {commit}, asked for revision "
            f"{wanted.revision}",
            kind="hub-moved",
            fix="use a hub or mirror that has this revision, or build from files with --source",
            found=commit,
            expected=wanted.revision,
        )
    missing = [f for f, _ in wanted.folders if not any(s.name.startswith(f) for s in files)]
    if missing:
        raise _hub_error(wanted, f"it has no Parquet files under {', '.join(missing)}")
    origin = {"kind": "hub", "endpoint": endpoint(), "commit": commit}
    return Listing(files, {**origin, "repository": wanted.repository})


def _tree(
    api: Any, repository: str, commit: str | None, folder: str, limit: int
) -> list[tuple[Any, str | None]]:
    entries = api.list_repo_tree(
        repository, folder, recursive=True, revision=commit, repo_type="dataset"
    )
    files = sorted(
        (e for e in entries if getattr(e, "size", None) and e.path.endswith(".parquet")),
        key=lambda entry: str(entry.path),
    )
    chosen = files[:limit] if limit else files
    return [(entry, entry.lfs.sha256 if entry.lfs else None) for entry in chosen]


def _hub_url(repository: str, commit: str | None, path: str) -> str:
    return f"hf://datasets/{repository}@{commit}/{path}"


def _from_cache(wanted: HubFolders, error: Exception) -> Listing:
    """What an earlier download of exactly this revision left in the hub's cache."""
    from huggingface_hub import constants

    name = "datasets--" + wanted.repository.replace("/", "--")
    snapshot = Path(constants.HF_HUB_CACHE) / name / "snapshots" / wanted.revision
    files: list[SourceFile] = []
    missing: list[str] = []
    for folder, limit in wanted.folders:
        found = sorted((snapshot / folder).rglob("*.parquet"))
        if not found or len(found) < limit:
            missing.append(f"{folder}/*.parquet")
        for path in found[: limit or None]:
            relative = PurePosixPath(path.relative_to(snapshot)).as_posix()
            files.append(SourceFile(relative, str(path), path.stat().st_size))
    if missing:
        found_text = f"; in the local cache are {len(files)} files" if files else ""
        raise _hub_error(
            wanted, f"{_first_line(error)}{found_text}; missing: {', '.join(missing)}", missing
        ) from error
    return Listing(files, {"kind": "hub-cache", "snapshot": str(snapshot)})


def _hub_error(wanted: HubFolders, what: str, missing: Sequence[str] = ()) -> InputError:
    include = " ".join(f'"{pattern}"' for pattern in (missing or wanted.patterns()))
    return InputError(
        f"the hub at {endpoint()} cannot give {wanted.repository} at {wanted.revision}: {what}",
        kind="hub-unavailable",
        fix=f"where there is a network: hf download {wanted.repository} --repo-type dataset "
        f"--revision {wanted.revision} --include {include} --local-dir fineweb-edu; "
        "then build with --source fineweb-edu",
        missing=list(missing),
    )


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def open_input(url: str) -> Any:
    """A readable, seekable binary file."""
    if url.startswith("hf://"):
        from huggingface_hub import HfFileSystem

        return HfFileSystem(endpoint=endpoint()).open(url, "rb", block_size=1 << 22)
    if "://" in url:
        import fsspec

        return fsspec.open(url, "rb").open()
    import pyarrow as pa

    return pa.OSFile(url)
