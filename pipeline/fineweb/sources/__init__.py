"""Where input files come from: a path, a folder, a glob, any fsspec URL, or the Hugging Face hub.

- A file is known by its bytes: names and places never reach a root, and files are taken in the
  order of their sha256, so a hub, a mirror and a download folder give the same dataset.
- A hub repository is named with a prefix (`hub:OWNER/NAME`): a mistyped path never goes there.
- A network that fails for a while is waited for, up to a limit (`patience`), in every read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError, ResourceError
from tangobench.pipeline.core.build import Arguments
from tangobench.pipeline.core.remote import PATIENCE, PatientFile

_MAGIC: Final = re.compile(r"[*?\[]")
_HUB_NAME: Final = re.compile(
    r"(?:hub:|hf://datasets/)(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, slots=True)
class SourceFile(Arguments):
    """One input file; `sha256` is what the hub's index claims, None if there is no claim.

    `groups` is how many of its row groups are read, the first ones; 0 means all.
    """

    name: str
    url: str
    size: int | None = None
    sha256: str | None = None
    patience: float = PATIENCE
    groups: int = 0

    def key(self) -> Any:
        return [self.sha256, self.size]

    @property
    def afar(self) -> bool:
        return "://" in self.url


@dataclass(frozen=True, slots=True)
class Listing:
    """Input files and, for run.json, where they are."""

    files: list[SourceFile]
    origin: dict[str, Any]


def hub_name(source: str) -> tuple[str, str | None] | None:
    """(repository, revision) if the source names a hub repository."""
    match = _HUB_NAME.fullmatch(source)
    return (match["repository"], match["revision"]) if match else None


def list_files(source: str) -> Listing:
    """Parquet files at a path, folder, glob or fsspec URL."""
    found = _list_url(source) if "://" in source else _list_local(source)
    if not found:
        what = f"no Parquet file at {source}"
        fix = "name a .parquet file, a folder that holds some, or a quoted glob"
        raise InputError(what, kind="source-empty", fix=fix, source=source)
    return Listing(sorted(found, key=lambda file: file.name), {"kind": "files", "source": source})


def find_paths(source: str, fix: str) -> tuple[list[Path], bool]:
    """The file at a path, all in a folder or all of a glob; True if the source names each."""
    path = Path(source)
    if path.is_file():
        return [path], True
    if path.is_dir():
        return [found for found in path.rglob("*") if found.is_file()], False
    if _MAGIC.search(source):
        return [found for found in _matching(path.parts) if found.is_file()], True
    what = f"{source} does not exist"
    raise InputError(what, kind="source-missing", fix=fix, source=source)


def _matching(parts: tuple[str, ...]) -> Iterator[Path]:
    """Paths of a pattern: `**` follows no links, which may lead in circles; `*` hides dot files."""
    first = next(n for n, part in enumerate(parts) if _MAGIC.search(part))
    pattern = [part if part == "**" else re.sub(r"\*+", "*", part) for part in parts[first:]]
    hidden = any(part.startswith(".") for part in pattern)
    for found in Path(*parts[:first]).glob("/".join(pattern)):
        if hidden or not any(part.startswith(".") for part in found.parts[first:]):
            yield found


def _list_local(source: str) -> list[SourceFile]:
    fix = "check the path; a repository on the hub is hub:OWNER/NAME"
    paths, named = find_paths(source, fix)
    short = len(paths) == 1 and paths[0] == Path(source)
    return [
        SourceFile(path.name if short else str(path), str(path.absolute()), path.stat().st_size)
        for path in paths
        if named or path.suffix == ".parquet"
    ]


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
    except FileNotFoundError as error:
        what, fix = f"{source} does not exist: {error}", "check the address and the bucket's name"
        raise InputError(what, kind="source-missing", fix=fix, source=source) from error
    except (OSError, ImportError, ValueError) as error:
        what = f"{source} cannot be listed: {error}"
        fix = "check the URL, the network and that the protocol's package is installed"
        raise ResourceError(what, kind="source-unreachable", fix=fix, source=source) from error


def endpoint() -> str:
    """The hub's address, read now and not when a library was imported."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def open_input(url: str, patience: float = PATIENCE) -> Any:
    if "://" not in url:
        import pyarrow as pa

        return pa.OSFile(url)
    import fsspec

    hub = {"endpoint": endpoint(), "block_size": 1 << 22} if url.startswith("hf://") else {}
    return PatientFile(lambda: fsspec.open(url, "rb", **hub).open(), patience, url)
