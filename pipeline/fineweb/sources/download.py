"""Downloads from the hub into its own cache: each byte once, several files at a time.

- Through Xet where the hub and this machine have it, else over HTTP; an HTTP download that was
  interrupted, even by a kill, resumes inside the file.
- A file enters the cache only with the sha256 that the hub's index claims.
- Errors that pass (429, 5xx, resets, time-outs) are waited for, per file, as `patience` describes.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

from tangobench.errors import InputError, ResourceError, TangobenchError
from tangobench.pipeline.core.files import FULL, exclusive, free_bytes
from tangobench.pipeline.core.hashing import sha256_file
from tangobench.pipeline.core.progress import Reporter, size
from tangobench.pipeline.core.remote import Patience, is_http, stall
from tangobench.pipeline.fineweb.sources import Listing, SourceFile, endpoint
from tangobench.pipeline.fineweb.sources.hub import (
    cache_folder,
    changed,
    hint,
    located,
    part_path,
    require_commit,
)

_AT_ONCE: Final = 4
_FOREVER: Final = 1e9
_GROUP_BYTES: Final = 3_000_000  # FineWeb-Edu has row groups of 1,000 rows
_TAIL: Final = 8  # the length of the footer, and the end mark


def download(listing: Listing, reporter: Reporter, seconds: float) -> Listing:
    """The files of the hub as files of its cache; those that it lacks are fetched into it."""
    repository, commit = listing.origin.get("repository", ""), listing.origin.get("commit", "")
    if missing := _afar(listing):
        needed = sum(map(_travels, missing))
        if needed > free_bytes(cache_folder(repository)):
            raise _no_room(repository, needed)
        try:
            Transfer(repository, commit, reporter, seconds).run(missing)
        except ResourceError as error:
            lacks = [file.name for file in _afar(located(listing))]
            raise ResourceError(
                f"{error.message}; of {len(listing.files)} files the cache lacks "
                f"{', '.join(lacks)}",
                kind=error.kind,
                fix=f"{error.fix}; or, {hint(repository, commit, lacks)}",
                missing=lacks,
            ) from error
    return located(listing)


def _afar(listing: Listing) -> list[SourceFile]:
    return [file for file in located(listing).files if file.url.startswith("hf://")]


def _travels(file: SourceFile) -> int:
    """About how many bytes of a file are wanted."""
    return min(file.size or 0, file.groups * _GROUP_BYTES or file.size or 0)


def _no_room(repository: str, needed: int, why: str = "") -> ResourceError:
    folder = cache_folder(repository)
    what = f"the download needs {size(needed)}, {folder} has {size(free_bytes(folder))} free{why}"
    fix = "set HF_HOME to a larger disk, or read in ranges with --stream; downloads resume"
    return ResourceError(what, kind="disk-full", fix=fix, bytes_needed=needed)


class Transfer:
    """Some files on their way into the cache."""

    def __init__(self, repository: str, commit: str, reporter: Reporter, seconds: float) -> None:
        self._repository, self._commit = repository, commit
        self._reporter, self._seconds = reporter, seconds
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._total = self._bytes = 0

    def run(self, files: list[SourceFile]) -> None:
        """Fetch all of them; the first failure stops the others."""
        self._total = sum(map(_travels, files))
        self._reporter.start("download", len(files), float(self._total), noun="file")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            try:
                for _ in pool.map(self._get, files):
                    self._arrived(0, done=1)
            finally:
                self._stop.set()
        self._reporter.finish()

    def _arrived(self, count: int, *, done: int = 0) -> None:
        with self._lock:
            self._bytes += count
            label = f"{size(self._bytes)} of {size(self._total)}"
            self._reporter.advance(float(count), label=label, count=done)

    def _get(self, file: SourceFile) -> None:
        patience = Patience(self._seconds, f"{file.name} at {endpoint()}", self._stop.wait)
        seen = -1
        while not self._stop.is_set():
            try:
                return self._once(file, patience)
            except (TangobenchError, CancelledError):
                raise
            except Exception as error:
                if isinstance(error, OSError) and error.errno in FULL:
                    why = f": {os.strerror(error.errno or 0)}"
                    raise _no_room(self._repository, _travels(file), why) from error
                if _expired(error) and seen != self._bytes:
                    seen = self._bytes
                    continue
                try:
                    patience.wait(error)
                except Exception as lasting:
                    raise _lost(file, lasting) if is_http(lasting) else lasting from error

    def _once(self, file: SourceFile, patience: Patience) -> None:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.utils._runtime import is_xet_available

        remote = self._look(file)
        if file.groups:
            return self._fetch_part(file, remote, patience)
        if remote.xet_file_data is None or not is_xet_available():
            self._fetch(file, remote, patience)
        # Xet's own transfer, or only a link to the blob that is there now.
        hf_hub_download(
            self._repository,
            file.name,
            repo_type="dataset",
            revision=self._commit,
            endpoint=endpoint(),
            tqdm_class=_counter(self._arrived),
        )

    def _look(self, file: SourceFile) -> Any:
        """What the hub says about the file now; its address may be signed for minutes only."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        url = hf_hub_url(
            self._repository,
            file.name,
            repo_type="dataset",
            revision=self._commit,
            endpoint=endpoint(),
        )
        found = get_hf_file_metadata(url, endpoint=endpoint(), timeout=stall(self._seconds))
        require_commit(self._repository, str(found.commit_hash), self._commit)
        if found.size != file.size or file.sha256 not in (None, found.etag):
            raise changed(file, f"{found.size or 0:,} bytes with sha256 {found.etag}")
        return found

    def _fetch(self, file: SourceFile, remote: Any, patience: Patience) -> None:
        """Download to `blobs/ETAG`, resuming after the bytes of an earlier, interrupted try."""
        blob = cache_folder(self._repository) / "blobs" / remote.etag
        partial = blob.with_name(f"{remote.etag}.tangobench.incomplete")
        with exclusive(blob.with_name(f"{remote.etag}.tangobench.lock"), wait_seconds=_FOREVER):
            if blob.exists() and blob.stat().st_size != remote.size:
                blob.unlink()  # cut short since it was downloaded
            while not blob.exists():
                continued = partial.exists()
                with partial.open("ab") as target:
                    self._append(target, remote, patience, stop=remote.size)
                if partial.stat().st_size == remote.size and (
                    file.sha256 is None or sha256_file(partial) == file.sha256
                ):
                    partial.rename(blob)
                    return
                partial.unlink()
                if not continued:  # what an earlier run left may have been the fault
                    raise changed(file, "other bytes")

    def _fetch_part(self, file: SourceFile, remote: Any, patience: Patience) -> None:
        """The footer and the first row groups, in a file with a hole between them."""
        place = part_path(self._repository, self._commit, file)
        partial = place.with_name(f"{place.name}.incomplete")

        def end_from(start: int) -> bytes:
            found = io.BytesIO()
            self._append(found, remote, patience, base=start, stop=remote.size)
            return found.getvalue()

        with exclusive(place.with_name(f"{place.name}.lock"), wait_seconds=_FOREVER):
            length = int.from_bytes(end_from(remote.size - _TAIL)[:4], "little")
            footer = max(0, remote.size - _TAIL - length)
            tail = end_from(footer)
            with partial.open("ab") as target:  # longer if it was interrupted before its new name
                self._append(target, remote, patience, stop=_end_of_groups(file, tail))
            with partial.open("r+b") as whole:
                whole.seek(footer)
                whole.write(tail)
            partial.rename(place)

    def _append(
        self, target: Any, remote: Any, patience: Patience, *, stop: int, base: int = 0
    ) -> None:
        """Ask for what `target` lacks of the file from `base` to `stop`, until it has it."""
        from huggingface_hub.utils._headers import build_hf_headers
        from huggingface_hub.utils._http import get_session, hf_raise_for_status

        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if urlsplit(remote.location).netloc != urlsplit(endpoint()).netloc:
            headers.pop("authorization", None)  # the token is the hub's, not its storage's
        limit = stall(self._seconds)  # the client's own is none
        while (start := base + target.tell()) < stop:
            headers["Range"] = f"bytes={start}-{stop - 1}"
            with get_session().stream(
                "GET", remote.location, headers=headers, timeout=limit
            ) as response:
                hf_raise_for_status(response)
                if response.status_code != 206:
                    if stop - base < remote.size:
                        raise TimeoutError("the hub's storage does not answer ranges")
                    target.truncate(start := 0)
                for chunk in response.iter_bytes():  # of no fixed size: would lose a last part
                    target.write(chunk)
                    self._arrived(len(chunk))
                    patience.progressed()
                    if self._stop.is_set():
                        raise CancelledError
            if base + target.tell() == start:
                raise TimeoutError("the connection closed before its first byte")


def _end_of_groups(file: SourceFile, tail: bytes) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(io.BytesIO(b"PAR1" + tail))
        groups = [metadata.row_group(n) for n in range(min(file.groups, metadata.num_row_groups))]
    except (pa.ArrowException, ValueError, OSError):
        raise changed(file, "a file without a Parquet footer") from None
    stop = 4
    for column in (group.column(at) for group in groups for at in range(group.num_columns)):
        first = column.data_page_offset
        begin = min(first, column.dictionary_page_offset or first)
        stop = max(stop, begin + column.total_compressed_size)
    return stop


def _expired(error: Exception) -> bool:
    """Whether the hub's storage refuses an address, which may have been signed for minutes."""
    response = getattr(error, "response", None)
    if getattr(response, "status_code", None) not in (401, 403):
        return False
    return urlsplit(str(getattr(response, "url", ""))).netloc != urlsplit(endpoint()).netloc


def _lost(file: SourceFile, error: Exception) -> InputError:
    what = f"{file.name} cannot be downloaded: {str(error).strip().splitlines()[0][:300]}"
    fix = "check HF_TOKEN and that the repository is open to you"
    return InputError(what, kind="hub-unavailable", fix=fix, file=file.name)


def _counter(arrived: Callable[[int], None]) -> Any:
    """In the place of the client's progress bar: the build's own line shows bytes and time."""

    class Counter(contextlib.ExitStack):  # for `with`, and nothing to leave
        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__()

        def update(self, count: float | None = 1) -> None:
            arrived(int(count or 0))

    return Counter
