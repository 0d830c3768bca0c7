"""The files of a dataset repository on the Hugging Face hub, and what the local cache has of them.

- The hub is pinned to a revision and reached through `HF_ENDPOINT`; a hub that answers with another
  revision is refused. The sha256 in its index (Git LFS) are claims until somebody hashed the bytes.
- Configs and their files are what the repository's own YAML says.
- A commit never changes, so its listing is kept in the hub's own cache (`HF_HOME`). Without the
  hub, the cache is used only if it holds every wanted file of that listing; else the missing files
  are named.

Usage: `listing = list_hub(wanted, 120.0)`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError, ResourceError
from tangobench.pipeline.core.cards import NOT_STATED
from tangobench.pipeline.core.files import write_atomic
from tangobench.pipeline.core.patience import patiently
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.fineweb.sources import Listing, SourceFile, endpoint
from tangobench.pipeline.fineweb.sources.configs import files_of

_CARD: Final = "README.md"
_FULL_ID: Final = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubParts:
    """Parts of a dataset repository: configs or folders, each with how many files (0: all)."""

    repository: str
    revision: str
    parts: tuple[tuple[str, int], ...]

    def of(self, tree: dict[str, Any], card: str) -> list[str]:
        """The wanted files among those of a repository."""
        found: dict[str, None] = {}
        for part, limit in self.parts:
            names = files_of(part, tree, card) or [n for n in tree if n.startswith(f"{part}/")]
            names = sorted(name for name in names if name.endswith(".parquet"))
            if not names:
                raise self.refused(f"it has no config and no folder {part} with Parquet files")
            found |= dict.fromkeys(names[: limit or None])
        return list(found)

    def refused(self, why: str) -> InputError:
        """The error for a hub that answers, but not with these files."""
        return InputError(f"{self._cannot} {why}", kind="hub-unavailable", fix=self.fix())

    def unreachable(self, error: ResourceError, why: str, missing: list[str]) -> ResourceError:
        """The error for files that are neither in the cache nor can be downloaded now."""
        return ResourceError(
            f"{self._cannot} {error.message}; {why}",
            kind="source-unreachable",
            fix=f"{error.fix}; or, {self.fix(missing)}",
            missing=missing,
        )

    @property
    def _cannot(self) -> str:
        return f"the hub at {endpoint()} cannot give {self.repository} at {self.revision}:"

    def fix(self, missing: list[str] | None = None) -> str:
        """How to get the files on a machine with a network."""
        include = "".join(f' --include "{name}"' for name in missing or ())
        return (
            f"where there is a network: hf download {self.repository} --repo-type dataset "
            f"--revision {self.revision}{include} --local-dir fineweb-edu; "
            "then build with --source fineweb-edu"
        )


def list_hub(wanted: HubParts, seconds: float) -> Listing:
    """The Parquet files of some configs or folders of a dataset repository at a fixed revision."""
    try:
        commit, tree = _tree(wanted, seconds)
        card = _card(wanted, commit, tree, seconds)
    except ResourceError as error:
        return _whole_cache(wanted, error)
    names = wanted.of(tree, card)
    files = [
        SourceFile(
            name, _url(wanted.repository, commit, name), tree[name].size, tree[name].lfs_sha256
        )
        for name in names
    ]
    return Listing(files, _origin(wanted, commit, card))


def _tree(wanted: HubParts, seconds: float) -> tuple[str, dict[str, Any]]:
    """The commit and all its files; asked of the hub unless the cache has this very commit."""
    from huggingface_hub import HfApi
    from huggingface_hub._tree_cache import TreeCacheEntry, read_tree_cache, write_tree_cache
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.hf_api import RepoFile

    folder, what = str(cache_folder(wanted.repository)), f"the hub at {endpoint()}"
    pinned = _FULL_ID.fullmatch(wanted.revision) is not None
    if pinned and (known := read_tree_cache(folder, wanted.revision)) is not None:
        return wanted.revision, known
    api = HfApi(endpoint=endpoint())
    try:
        info = patiently(
            lambda: api.dataset_info(wanted.repository, revision=wanted.revision), seconds, what
        )
        commit = str(info.sha)
        if pinned:
            require_commit(wanted.repository, commit, wanted.revision)
        listed = patiently(
            lambda: list(
                api.list_repo_tree(
                    wanted.repository, recursive=True, revision=commit, repo_type="dataset"
                )
            ),
            seconds,
            what,
        )
    except HfHubHTTPError as error:  # no such repository or revision, no permission
        raise wanted.refused(str(error).strip().splitlines()[0][:300]) from error
    tree = {
        f.path: TreeCacheEntry(
            size=f.size,
            blob_id=f.blob_id,
            lfs_sha256=f.lfs.sha256 if f.lfs else None,
            lfs_size=f.lfs.size if f.lfs else None,
            xet_hash=f.xet_hash,
        )
        for f in listed
        if isinstance(f, RepoFile)
    }
    write_tree_cache(folder, commit, tree)
    if not pinned:  # as the client does: which commit a branch was
        write_atomic(Path(folder) / "refs" / wanted.revision, commit.encode())
    return commit, tree


def _origin(wanted: HubParts, commit: str, card: str) -> dict[str, Any]:
    """Where the files are, with the title and licence that the repository itself states."""
    from huggingface_hub import DatasetCard

    try:
        stated = DatasetCard(card, ignore_metadata_errors=True).data
    except ValueError:  # no YAML: the repository states nothing
        stated = None
    licence = getattr(stated, "license", None)
    return {
        "kind": "hub",
        "endpoint": endpoint(),
        "repository": wanted.repository,
        "commit": commit,
        "title": getattr(stated, "pretty_name", None) or wanted.repository,
        "licence": licence if isinstance(licence, str) else NOT_STATED,
    }


def _card(wanted: HubParts, commit: str, tree: dict[str, Any], seconds: float) -> str:
    """The repository's own card, whose YAML names its configs."""
    from tangobench.pipeline.fineweb.sources.download import fetch

    if _CARD not in tree:
        return ""
    size = tree[_CARD].size
    if cached(wanted.repository, commit, _CARD, size) is None:
        file = SourceFile(_CARD, _url(wanted.repository, commit, _CARD), size)
        fetch(wanted.repository, commit, [file], Reporter(quiet=True), seconds)
    path = cached(wanted.repository, commit, _CARD, size)
    return path.read_text(encoding="utf-8") if path else ""


def require_commit(repository: str, found: str, expected: str) -> None:
    """Refuse a hub that answers with another commit than the one asked for."""
    if found != expected:
        raise InputError(
            f"the hub at {endpoint()} gives {repository} at {found}, asked for revision {expected}",
            kind="hub-moved",
            fix="use a hub or mirror that has this revision, or build from files with --source",
            found=found,
            expected=expected,
        )


def _whole_cache(wanted: HubParts, error: ResourceError) -> Listing:
    """The cache instead of the hub, if it is known to hold every wanted file."""
    from huggingface_hub._tree_cache import read_tree_cache

    folder = cache_folder(wanted.repository)
    reference = folder / "refs" / wanted.revision
    commit = reference.read_text().strip() if reference.is_file() else wanted.revision
    tree = read_tree_cache(str(folder), commit)
    if tree is None:
        why = "the cache has no listing of this revision"
        raise wanted.unreachable(error, why, [part for part, _ in wanted.parts]) from error
    card = cached(wanted.repository, commit, _CARD, None)
    if card is None and _CARD in tree:
        why = f"the cache lacks {_CARD}, which names the configs"
        raise wanted.unreachable(error, why, [_CARD]) from error
    text = card.read_text(encoding="utf-8") if card else ""
    names = wanted.of(tree, text)
    paths = {name: cached(wanted.repository, commit, name, tree[name].size) for name in names}
    missing = [name for name in names if paths[name] is None]
    if missing:
        why = f"of {len(names)} files the cache lacks {', '.join(missing)}"
        raise wanted.unreachable(error, why, missing) from error
    files = [SourceFile(n, str(paths[n]), tree[n].size, tree[n].lfs_sha256) for n in names]
    return Listing(files, _origin(wanted, commit, text))


def cache_folder(repository: str) -> Path:
    """Where the hub's client keeps a repository."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=repository, repo_type="dataset")
    return Path(constants.HF_HUB_CACHE) / name


def cached(repository: str, commit: str, name: str, expected: int | None) -> Path | None:
    """A file of a commit, if the cache has all of it."""
    path = cache_folder(repository) / "snapshots" / commit / name
    return path if path.is_file() and expected in (None, path.stat().st_size) else None


def _url(repository: str, commit: str, name: str) -> str:
    return f"hf://datasets/{repository}@{commit}/{name}"


def changed(file: SourceFile, found: str) -> InputError:
    """The error for a file that is not what the hub's index says."""
    return InputError(
        f"{file.name}: the hub's index says {file.size or 0:,} bytes with sha256 {file.sha256}, "
        f"it serves {found}",
        kind="source-changed",
        fix="the hub or a proxy serves another file: get it elsewhere and use --source",
        file=file.name,
        expected=file.sha256,
    )
