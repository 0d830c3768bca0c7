"""The files of a dataset repository on the Hugging Face hub, and what the local cache has of them.

- The hub is pinned to a revision and reached through `HF_ENDPOINT`; a hub that answers with another
  revision is refused. Configs and their files are what the repository's own YAML says.
- A commit never changes, so its listing is kept in the hub's own cache (`HF_HOME`) and used where
  the hub cannot be reached; files that the cache has are read there.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tangobench.errors import InputError, ResourceError, printable
from tangobench.pipeline.core.cards import NOT_STATED
from tangobench.pipeline.core.files import write_atomic
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.remote import is_http, patiently, stall
from tangobench.pipeline.fineweb.sources import Listing, SourceFile, endpoint
from tangobench.pipeline.fineweb.spec import Part, config_folder

_CARD: Final = "README.md"
_MOST_FILES: Final = 200_000  # FineWeb-Edu has about 2,500
_LARGEST_CARD: Final = 4 << 20  # bytes
_FULL_ID: Final = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubParts:
    """Parts of a dataset repository at a revision."""

    repository: str
    revision: str
    parts: tuple[Part, ...]

    def of(self, commit: str, tree: dict[str, Any], card: str) -> list[SourceFile]:
        found: dict[str, SourceFile] = {}
        for part, limit, groups in self.parts:
            names = files_of(part, tree, card) or [n for n in tree if n.startswith(f"{part}/")]
            names = sorted(name for name in names if name.endswith(".parquet"))
            if not names:
                raise self.refused(f"it has no config and no folder {part} with Parquet files")
            for name in names[: limit or None]:
                url = f"hf://datasets/{self.repository}@{commit}/{name}"
                size, sha256 = tree[name].size, tree[name].lfs_sha256
                file = SourceFile(name, url, size, sha256, groups=groups)
                found.setdefault(name, file)
        return list(found.values())

    def refused(self, why: str) -> InputError:
        """The error for a hub that answers, but not with these files."""
        fix = hint(self.repository, self.revision, self.patterns())
        return InputError(f"{self.cannot} {why}", kind="hub-unavailable", fix=fix)

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit, not a branch or tag."""
        return _FULL_ID.fullmatch(self.revision) is not None

    @property
    def cannot(self) -> str:
        return f"the hub at {endpoint()} cannot give {self.repository} at {self.revision}:"

    def patterns(self) -> list[str]:
        """What matches the wanted files where there is no listing: the repository has both names.

        The n-th file of a folder is called NNN_00000, 000_NNNNN or train-NNNNN-of-TOTAL.
        """
        found: dict[str, None] = {}
        for part, limit, _ in self.parts:
            folder = config_folder(part)
            names = [f"{n:03d}_00000.*|000_{n:05d}.*|train-{n:05d}-of-*" for n in range(limit)]
            words = "|".join(names or ["*.parquet"]).split("|")
            found |= dict.fromkeys(f"{folder}/{word}" for word in words)
        return list(found)


def files_of(name: str, tree: Iterable[str], card: str) -> list[str] | None:
    """Paths of a config's files in the repository; None if the card names no such config.

    No rule of ours guesses a folder: `datasets` resolves the card's patterns against empty files
    with the names of the listing. Patterns that lead to other machines name no config.
    """
    import datasets

    patterns = str(getattr(_stated(card), "configs", None))
    if re.search("://|::", patterns):
        return None
    with tempfile.TemporaryDirectory(prefix="tangobench-") as place:
        root = Path(place).resolve()
        try:
            for path in tree:
                if not {"", ".", ".."} & set(path.split("/")):
                    (root / path).parent.mkdir(parents=True, exist_ok=True)
                    (root / path).touch()
            (root / "README.md").write_text(card, encoding="utf-8")
            if name not in datasets.get_dataset_config_names(str(root)):
                return None
            builder = datasets.load_dataset_builder(
                str(root), name=name, cache_dir=str(root / ".cache")
            )
        except Exception as error:
            unread = (ValueError, OSError, datasets.exceptions.DatasetsError)
            if isinstance(error, unread) or type(error).__module__.startswith("yaml."):
                return None  # a card, a name or a layout that cannot be read names no config
            raise
        files = builder.config.data_files or {}
        paths = {
            Path(path).relative_to(root).as_posix() for part in files.values() for path in part
        }
    return sorted(paths) if paths <= {*tree} else None  # `../` leads to files of this machine


def hint(repository: str, revision: str, names: Sequence[str]) -> str:
    include = "".join(f' --include "{name}"' for name in names)
    return (
        f"where there is a network: hf download {repository} --repo-type dataset "
        f"--revision {revision}{include} --local-dir fineweb-edu; "
        "then build with --source fineweb-edu"
    )


def list_hub(wanted: HubParts, seconds: float) -> Listing:
    """The Parquet files of some configs or folders of a dataset repository at a fixed revision."""
    try:
        commit, tree = _tree(wanted, seconds)
        card = _card(wanted, commit, tree, seconds)
    except ResourceError as error:
        commit, tree, card = _cached_listing(wanted, error)
    return located(Listing(wanted.of(commit, tree, card), _origin(wanted, commit, card)))


def _tree(wanted: HubParts, seconds: float) -> tuple[str, dict[str, Any]]:
    """The commit and all its files; asked of the hub unless the cache has this very commit."""
    from huggingface_hub._tree_cache import TreeCacheEntry, read_tree_cache, write_tree_cache

    folder = str(cache_folder(wanted.repository))
    if wanted.pinned and (known := read_tree_cache(folder, wanted.revision)) is not None:
        return wanted.revision, known
    commit, listed = _ask(wanted, seconds)
    tree = {
        f.path: TreeCacheEntry(
            size=f.size,
            blob_id=f.blob_id,
            lfs_sha256=f.lfs.sha256 if f.lfs else None,
            lfs_size=f.lfs.size if f.lfs else None,
            xet_hash=f.xet_hash,
        )
        for f in listed
    }
    write_tree_cache(folder, commit, tree)
    if not wanted.pinned:  # as the client does: which commit a branch was
        write_atomic(Path(folder) / "refs" / wanted.revision, commit.encode())
    return commit, tree


def _ask(wanted: HubParts, seconds: float) -> tuple[str, list[Any]]:
    """The revision's commit and its files, as the hub names them."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    what, limit = f"the hub at {endpoint()}", stall(seconds)
    api = HfApi(endpoint=endpoint())
    asked = partial(api.dataset_info, wanted.repository, revision=wanted.revision, timeout=limit)
    try:
        commit = str(patiently(asked, seconds, what).sha)
        if wanted.pinned:
            require_commit(wanted.repository, commit, wanted.revision)
        tree = f"api/datasets/{wanted.repository}/tree/{quote(commit, safe='')}"
        pages = _pages(f"{endpoint()}/{tree}?recursive=true", seconds, what)
        listed = list(islice(pages, _MOST_FILES + 1))
    except Exception as error:
        if not is_http(error):
            raise
        # No such repository or revision, no permission, redirects without end.
        raise wanted.refused(str(error).strip().splitlines()[0][:300]) from error
    if len(listed) > _MOST_FILES:
        raise wanted.refused(f"it has more than {_MOST_FILES:,} files")
    if odd := [f["path"] for f in listed if printable(f["path"]) != f["path"]]:
        raise wanted.refused(f"it has a file with the name {printable(odd[0][:200])}")
    kind: Any = RepoFile  # which has no annotations
    return commit, [kind(**entry) for entry in listed if entry["type"] == "file"]


def _pages(url: str, seconds: float, what: str) -> Iterator[dict[str, Any]]:
    """The entries of a listing; the client's own `list_repo_tree` may wait for a page for ever."""
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils._http import get_session, hf_raise_for_status

    def page() -> Any:
        answer = get_session().get(url, headers=build_hf_headers(), timeout=stall(seconds))
        hf_raise_for_status(answer)
        return answer

    while url:
        answer = patiently(page, seconds, what)
        yield from answer.json()
        url = answer.links.get("next", {}).get("url", "")


def _stated(card: str) -> Any:
    """The metadata of a card; None if it has no YAML or a broken one."""
    from huggingface_hub import DatasetCard

    with contextlib.suppress(Exception):
        return DatasetCard(card, ignore_metadata_errors=True).data
    return None


def _origin(wanted: HubParts, commit: str, card: str) -> dict[str, Any]:
    """Where the files are, with the title and licence that the repository itself states."""
    stated = _stated(card)
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
    from tangobench.pipeline.fineweb.sources.download import Transfer

    if _CARD not in tree or (tree[_CARD].size or 0) > _LARGEST_CARD:
        return ""
    file = SourceFile(_CARD, _CARD, tree[_CARD].size)
    if cached(wanted.repository, commit, file) is None:
        Transfer(wanted.repository, commit, Reporter(quiet=True), seconds).run([file])
    return _read_card(cached(wanted.repository, commit, file))


def _read_card(path: Path | None) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path else ""


def require_commit(repository: str, found: str, expected: str) -> None:
    """Refuse a hub that answers with another commit than the one asked for."""
    if found != expected:
        what = f"the hub at {endpoint()} gives {repository} at {found}, asked for {expected}"
        fix = "use a hub or mirror that has this revision, or build from files with --source"
        raise InputError(what, kind="hub-moved", fix=fix, found=found, expected=expected)


def _cached_listing(wanted: HubParts, error: ResourceError) -> tuple[str, dict[str, Any], str]:
    """The commit, its files and its card from the cache, instead of the hub's."""
    from huggingface_hub._tree_cache import read_tree_cache

    folder = cache_folder(wanted.repository)
    reference = folder / "refs" / wanted.revision
    commit = reference.read_text().strip() if reference.is_file() else wanted.revision
    tree = read_tree_cache(str(folder), commit) or {}
    card = cached(wanted.repository, commit, SourceFile(_CARD, _CARD))
    if not tree or (card is None and _CARD in tree):
        missing = wanted.patterns() if not tree else [_CARD]
        raise ResourceError(
            f"{wanted.cannot} {error.message}; the cache lacks {', '.join(missing)}",
            kind="source-unreachable",
            fix=f"{error.fix}; or, {hint(wanted.repository, wanted.revision, missing)}",
            missing=missing,
        ) from error
    return commit, tree, _read_card(card)


def located(listing: Listing) -> Listing:
    """The listing with the cache's own path of every file that it has."""
    origin = listing.origin

    def here(file: SourceFile) -> SourceFile:
        path = cached(origin["repository"], origin["commit"], file)
        return replace(file, url=str(path)) if path else file

    files = [here(file) if file.url.startswith("hf://") else file for file in listing.files]
    return Listing(files, origin)


def cache_folder(repository: str) -> Path:
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    name = repo_folder_name(repo_id=repository, repo_type="dataset")
    return Path(constants.HF_HUB_CACHE) / name


def cached(repository: str, commit: str, file: SourceFile) -> Path | None:
    """A file of a commit, if the cache has all that is wanted of it."""
    path = cache_folder(repository) / "snapshots" / commit / file.name
    if path.is_file() and file.size in (None, path.stat().st_size):
        return path
    path = part_path(repository, commit, file)
    return path if file.groups and path.is_file() else None


def part_path(repository: str, commit: str, file: SourceFile) -> Path:
    return cache_folder(repository) / "tangobench" / commit / f"{file.name}.first-{file.groups}"


def changed(file: SourceFile, found: str) -> InputError:
    """The error for a file that is not what the hub's index says."""
    says = f"{file.size or 0:,} bytes with sha256 {file.sha256}"
    what = f"{file.name}: the hub's index says {says}, it serves {found}"
    fix = "the hub or a proxy serves another file: get it elsewhere and use --source"
    details = {"file": file.name, "expected": file.sha256}
    return InputError(what, kind="source-changed", fix=fix, **details)
