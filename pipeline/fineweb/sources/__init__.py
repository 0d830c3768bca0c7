"""Where input files come from: a path, a folder, a glob, any fsspec URL, or the Hugging Face hub.

- A file is known by its bytes: names and places never reach a root, and files are taken in the
  order of their sha256, so a hub, a mirror and a download folder give the same dataset.
- A hub repository is named with a prefix (`hub:OWNER/NAME`): a mistyped path never goes there.
- A network that fails for a while is waited for, up to a limit (`patience`), in every read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError, ResourceError, TangobenchError
from tangobench.pipeline.core.build import Arguments
from tangobench.pipeline.core.remote import PATIENCE, PatientFile, patiently

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


def list_files(source: str, patience: float = PATIENCE) -> Listing:
    """Parquet files at a path, folder, glob or fsspec URL."""
    found = _list_url(source, patience) if "://" in source else _list_local(source)
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


def _list_url(source: str, seconds: float) -> list[SourceFile]:
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(source)
        fs.invalidate_cache()
        found = _found(fs, path, partial(patiently, seconds=seconds, what=source))
        return [SourceFile(n, fs.unstrip_protocol(n), size) for n, size in found]
    except TangobenchError:
        raise
    except FileNotFoundError as error:
        what = f"{source} does not exist: {error.__cause__ or error}"
        fix = "check the address and the bucket's name"
        raise InputError(what, kind="source-missing", fix=fix, source=source) from error
    except Exception as error:  # clients have errors of their own
        what = f"{source} cannot be listed: {error}"
        fix = "check the URL, the network and that the protocol's package is installed"
        raise ResourceError(what, kind="source-unreachable", fix=fix, source=source) from error


def _found(fs: Any, path: str, ask: Callable[..., Any]) -> Iterator[tuple[str, int]]:
    """Name and size of the file at a path, of those that match it, or of Parquet files below it."""
    from fsspec.utils import glob_translate

    # In an address of the web, `?` begins the query.
    magic = (re.compile(r"[*[]") if path.startswith("http") else _MAGIC).search(path)
    if magic:
        top = path[: path.rfind("/", 0, magic.start()) + 1]
        wanted, depth = glob_translate(path), path.count("/", len(top))
        files = _below(fs, top, ask, 1000 if "**" in path else depth)
    elif (info := ask(lambda: fs.info(path)))["type"] == "file":
        files, wanted = iter([info]), ""
    else:
        files, wanted = _below(fs, path, ask, 1000), r".*\.parquet$"
    for info in files:
        if re.match(wanted, name := info["name"]):
            size = info["size"]
            yield name, int((ask(partial(fs.size, name)) if size is None else size) or 0)


def _below(fs: Any, folder: str, ask: Callable[..., Any], depth: int) -> Iterator[dict[str, Any]]:
    """Files in a folder; fsspec's own walk silently leaves out folders whose listing fails."""
    for info in ask(partial(fs.ls, folder, detail=True)):
        if info["type"] != "directory":
            yield info
        elif depth and info["name"].strip("/") != folder.strip("/"):
            yield from _below(fs, info["name"], ask, depth - 1)


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
