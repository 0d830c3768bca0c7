"""Generated proofs of validation theorems, judged by Lean.

- The prompt is the row up to its first target, cut on the left to leave room for half a context of
  new tokens (or a whole proof). The greedily decoded text replaces the original proof in its file.
- Shares are of the proofs that were checked. What could not be checked (no such Lean, a missing
  import, an original that does not pass) is counted apart and never as failed.
- Texts and verdicts are kept as they come, so a killed check ends as if it had not been killed.
  Unchecked proofs are not kept: the same command tries them again.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow.compute as pc

from tangobench.errors import CorruptionError, InputError, UsageError
from tangobench.eval.intervals import wilson
from tangobench.eval.proofs.tasks import (
    Decided,
    Task,
    Verdict,
    original_fails,
    refusal,
    theorem_at,
)
from tangobench.eval.scoring.generate import continuations
from tangobench.model.training.runs import code_sha256
from tangobench.pipeline.core import hashing
from tangobench.pipeline.core.files import (
    LOG_BYTES,
    explain_os_errors,
    read_untrusted,
    write_untrusted,
)
from tangobench.pipeline.core.hashing import LINE, digest
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.lean.fetch import open_repository
from tangobench.pipeline.lean.git import list_files, read_files
from tangobench.pipeline.lean.why import declarations
from tangobench.pipeline.reading import Dataset
from tangobench.pipeline.tokenizer.base import Tokenizer

_SHOWN: Final = 100
_BATCH: Final = 16


class Checker(Protocol):
    """Something that lets Lean judge.

    `prepare` raises `lean-unavailable` if there is no Lean to ask. `check` calls `decided` with
    each task's number and verdict, once, as they come.
    """

    @property
    def name(self) -> str: ...
    def prepare(self) -> None: ...
    def check(self, tasks: Sequence[Task], decided: Decided) -> None: ...


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
        self._key = digest(about)[:16]
        if self._path is None or not os.path.lexists(self._path):
            return
        try:
            *lines, rest = read_untrusted(self._path, limit=LOG_BYTES).split(b"\n")
        except OSError as error:
            message, path = f"cannot read {self._path}: {error.strerror}", str(self._path)
            fix = f"remove {path}: the check then starts again"
            raise CorruptionError(message, kind="proofs-unreadable", fix=fix, path=path) from None
        for entry in _entries(lines, self._key):
            if "verdict" in entry:
                self.verdicts[entry["row"]] = Verdict(*entry["verdict"])
            else:
                self.texts[entry["row"]] = entry.get("text")
        if rest:  # cut short: what comes next is a line of its own
            self._append(b"\n")

    def add_texts(self, texts: Mapping[int, str | None]) -> None:
        """Keep generated texts; None is one that never ended."""
        self.texts |= texts
        self._add({"row": row, "text": text} for row, text in texts.items())

    def add_verdict(self, row: int, verdict: Verdict) -> None:
        self.verdicts[row] = verdict
        if verdict.outcome != "unchecked":
            self._add([{"row": row, "verdict": astuple(verdict)}])

    def _add(self, entries: Iterable[dict[str, Any]]) -> None:
        self._append(b"".join(hashing.seal({"key": self._key, **entry}, LINE) for entry in entries))

    def _append(self, data: bytes) -> None:
        if self._path is None:
            return
        with explain_os_errors(self._path, len(data)), write_untrusted(self._path, "ab") as file:
            file.write(data)


def _entries(lines: Iterable[bytes], key: str) -> Iterator[dict[str, Any]]:
    """The lines with this key that are undamaged and of a kind that is written here."""
    for line in lines:
        with contextlib.suppress(hashing.Broken):
            entry = hashing.unseal(line + b"\n", LINE)
            said = entry.get("verdict", [entry.get("text") or ""] * 3)
            strings = isinstance(said, list) and [type(word) for word in said] == [str] * 3
            if entry.get("key") == key and type(entry.get("row")) is int and strings:
                yield entry


def _report(tasks: Sequence[Task], verdicts: Sequence[Verdict]) -> dict[str, Any]:
    by_outcome = {
        outcome: Counter(v.reason for v in verdicts if v.outcome == outcome)
        for outcome in ("proved", "failed", "unchecked")
    }
    proved = by_outcome["proved"].total()
    checked = proved + by_outcome["failed"].total()
    low, high = wilson(proved, checked)
    return {
        "generated": len(verdicts),
        "checked": checked,
        "proved": proved,
        "share": proved / checked if checked else None,
        "low": low,
        "high": high,
        **{key: dict(sorted(by_outcome[key].items())) for key in ("failed", "unchecked")},
        "proofs": [
            {
                "path": task.path,
                "declaration": task.theorem.name,
                "generated": task.proof.encode(errors="replace").decode(),
                **asdict(verdict),
            }
            for task, verdict in zip(tasks[:_SHOWN], verdicts, strict=False)
        ],
    }


def check_proofs(
    model: Any,
    dataset: Dataset,
    checker: Checker,
    *,
    source: str | None = None,
    context: int | None = None,
    limit: int | None = None,
    log: ProofLog | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Generate a proof for each validation theorem (or the first `limit`) and have it judged."""
    if dataset.lock.name != "lean":
        message = f"proofs need Lean theorems, {dataset.folder} is {dataset.lock.name}"
        raise UsageError(message, kind="dataset-unfit", fix="use check-proofs with a lean run")
    checker.prepare()
    log, reporter = log or ProofLog(), reporter or Reporter(quiet=True)
    count = len(dataset.rows("proof", "validation"))
    rows = range(count if limit is None else min(limit, count))
    roots = f"{dataset.lock.root} {dataset.lock.content_root}"
    log.begin(root=roots, checker=checker.name, theorems=len(rows))
    places = theorems(dataset, source, rows)
    context = context or dataset.lock.configs["proof"]["context"]
    texts = generated(model, dataset, rows, context, log, reporter)
    tasks = [replace(task, proof=text or "") for task, text in zip(places, texts, strict=True)]
    verdicts = judged(tasks, texts, checker, log, reporter)
    tried = len(rows) if len(rows) < count else None
    return {"checker": checker.name, "limit": tried, **_report(tasks, verdicts)}


def judged(
    tasks: Sequence[Task],
    texts: Sequence[str | None],
    checker: Checker,
    log: ProofLog,
    reporter: Reporter,
) -> list[Verdict]:
    """Refuse what must not reach Lean, and let Lean judge the rest.

    In place of what is refused Lean sees the original: only if that passes is the theorem one that
    can be checked here. So the number of checked proofs is the same for every model.
    """
    refused = [
        Verdict("failed", "no-end") if text is None else refusal(task)
        for task, text in zip(tasks, texts, strict=True)
    ]
    left = [row for row in range(len(tasks)) if row not in log.verdicts]
    asked = [tasks[row] if refused[row] is None else original(tasks[row]) for row in left]

    def decided(place: int, answer: Verdict) -> None:
        before = refused[left[place]]  # if so, the answer is about the original
        if before is not None:
            answer = before if answer.outcome == "proved" else original_fails(answer)
        log.add_verdict(left[place], answer)
        reporter.advance(1.0)

    reporter.start("check", len(tasks), len(tasks), noun="proof")
    for _ in range(len(tasks) - len(left)):
        reporter.advance(1.0, reused=True)
    if asked:
        checker.check(asked, decided)
    reporter.finish()
    return [log.verdicts[row] for row in range(len(tasks))]


def original(task: Task) -> Task:
    return replace(task, proof=task.theorem.proof(task.source))


def theorems(dataset: Dataset, source: str | None, rows: Sequence[int]) -> list[Task]:
    """The theorem of each validation row with its original proof, from the commit itself."""
    table = declarations(dataset.folder, dataset.lock)
    table = table.filter(pc.equal(table["split"], "validation"))
    columns = (table[name].to_pylist() for name in ("row", "path", "proof_start"))
    places = {row: (path, start) for row, path, start in zip(*columns, strict=True)}
    texts = _sources(dataset, source, {path for path, _ in places.values()})
    found = []
    for row in rows:
        path, start = places.get(row, (f"row {row}", -1))
        theorem = theorem_at(texts[path], start) if path in texts else None
        if theorem is None:
            fix = "build the dataset again with this version"
            raise InputError(f"{path} has no proof at byte {start}", kind="not-found", fix=fix)
        found.append(original(Task(path, texts[path], theorem, "")))
    return found


def _sources(dataset: Dataset, source: str | None, paths: set[str]) -> dict[str, bytes]:
    commit, root = (dataset.lock.data["source"][key] for key in ("commit", "root"))
    where = source or dataset.lock.spec["repository"]
    git_dir = open_repository(where, commit, root=root)
    files = [file for file in list_files(git_dir, commit, root).files if file.path in paths]
    return dict(zip((file.path for file in files), read_files(git_dir, files), strict=True))


def generated(
    model: Any,
    dataset: Dataset,
    rows: Sequence[int],
    context: int,
    log: ProofLog,
    reporter: Reporter,
) -> list[str | None]:
    """The model's proof of each row, greedily decoded; None without an end."""
    longest = min(dataset.lock.spec["proof_tokens"] + 1, context // 2)
    table = dataset.rows("proof", "validation")
    prompts = {
        row: table.tokens(row)[: table.value(row, "target_start")][longest - context :]
        for row in rows
    }
    order = sorted(rows, key=lambda row: (len(prompts[row]), row))  # similar lengths together
    reporter.start("generate", len(rows), len(rows), noun="proof")
    for start in range(0, len(order), _BATCH):
        part = order[start : start + _BATCH]
        kept = all(row in log.texts for row in part)
        if not kept:
            chosen = [prompts[row] for row in part]
            texts = _decoded(model, chosen, longest, dataset.text_tokenizer)
            log.add_texts(dict(zip(part, texts, strict=True)))
        for _ in part:
            reporter.advance(1.0, reused=kept)
    reporter.finish()
    return [log.texts[row] for row in rows]


def _decoded(
    model: Any, prompts: Sequence[Any], longest: int, tokenizer: Tokenizer
) -> list[str | None]:
    """The text before EOT; invalid UTF-8 becomes surrogates, which `refusal` rejects."""
    eot = tokenizer.eot
    ended = [
        tokenizer.decode_bytes(tokens[: tokens.index(eot)]) if eot in tokens else None
        for tokens in continuations(model, prompts, longest, stop=eot)
    ]
    return [None if text is None else text.decode("utf-8", "surrogateescape") for text in ended]
