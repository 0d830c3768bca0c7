"""What a check of proofs has so far: generated texts and verdicts, one JSON line each.

- Lines are only added, and carry a checksum: what a kill cut short or a disk changed is no line.
- A line counts only for the same code, checkpoint, dataset root, checker and number of theorems.
- Unchecked proofs are not kept: whoever mends the reason and runs the command again gets verdicts.

Usage: `log = ProofLog(path, checkpoint=sha256); log.begin(root=root, checker="wasm", theorems=97)`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tangobench.errors import CorruptionError
from tangobench.eval.proofs.tasks import Verdict
from tangobench.model.training.provenance import code_sha256
from tangobench.pipeline.core import sealed
from tangobench.pipeline.core.files import LOG_BYTES, explain_os_errors, read_untrusted, write_all
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.sealed import LINE

_DIGITS: Final = 16


class ProofLog:
    """Texts and verdicts by row, in memory and, if there is a path, in a file."""

    def __init__(self, path: Path | None = None, *, checkpoint: str = "") -> None:
        self.texts: dict[int, str | None] = {}
        self.verdicts: dict[int, Verdict] = {}
        self._path = path
        self._checkpoint = checkpoint
        self._key = ""

    def begin(self, *, root: str, checker: str, theorems: int) -> None:
        """Load the texts and verdicts that an interrupted run of the same check left."""
        about = {"root": root, "checker": checker, "theorems": theorems}
        about |= {"checkpoint": self._checkpoint, "code": code_sha256()}
        self._key = digest(about)[:_DIGITS]
        if self._path is None or not os.path.lexists(self._path):
            return
        *lines, rest = _read(self._path).split(b"\n")
        for entry in filter(None, map(_entry, lines)):
            if entry["key"] == self._key and "text" in entry:
                self.texts[entry["row"]] = entry["text"]
            elif entry["key"] == self._key:
                self.verdicts[entry["row"]] = Verdict(*entry["verdict"])
        if rest:  # cut short: what comes next is a line of its own
            self._append(b"\n")

    def add_texts(self, texts: Mapping[int, str | None]) -> None:
        """Keep generated texts; None is one that never ended."""
        self.texts |= texts
        self._add({"row": row, "text": text} for row, text in texts.items())

    def add_verdict(self, row: int, verdict: Verdict) -> None:
        """Keep a verdict, unless there is none."""
        self.verdicts[row] = verdict
        if verdict.outcome != "unchecked":
            said = [verdict.outcome, verdict.reason, verdict.detail]
            self._add([{"row": row, "verdict": said}])

    def _add(self, entries: Iterable[dict[str, Any]]) -> None:
        self._append(b"".join(sealed.seal({"key": self._key, **entry}, LINE) for entry in entries))

    def _append(self, data: bytes) -> None:
        if self._path is None:
            return
        with explain_os_errors(self._path, len(data)):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(self._path, flags, 0o666)
            try:
                write_all(descriptor, data)
            finally:
                os.close(descriptor)


def _read(path: Path) -> bytes:
    try:
        return read_untrusted(path, limit=LOG_BYTES)
    except OSError as error:
        raise CorruptionError(
            f"cannot read {path}: {error.strerror}",
            kind="proofs-unreadable",
            fix=f"remove {path}: the check then begins anew",
            path=str(path),
        ) from None


def _entry(line: bytes) -> dict[str, Any] | None:
    """What a line holds; None if it is damaged."""
    try:
        entry = sealed.unseal(line + b"\n", LINE)
    except sealed.Broken:
        return None
    said = entry.get("verdict", ["", "", ""])
    whole = (
        type(entry.get("row")) is int
        and isinstance(entry.get("text", ""), str | None)
        and isinstance(said, list)
        and [type(word) for word in said] == [str, str, str]
    )
    return entry if whole and "key" in entry and ("text" in entry) != ("verdict" in entry) else None
