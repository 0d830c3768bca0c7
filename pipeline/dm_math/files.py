"""The pre-generated files of DeepMind Mathematics (v1.0) as a source instead of the generator.

- Layout: `train-easy/MODULE.txt`, `train-medium/`, `train-hard/`, `interpolate/`, `extrapolate/`;
  question and answer on alternating lines.
- Every line is checked: an odd number of lines, an empty or over-long line and a character outside
  the 69 are errors that name file and line. Memory does not depend on the size of a file.
- The question's hash decides its side as for generated examples; the first accepted ones of a file
  are taken, in file order. Files are named by their sha256, so a root does not depend on the place.

Usage: `scanned = scan_files(folder, NAMES, job)`, then `read_files(scanned, "train", 500, job)`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Arguments, Job, Output, Record, Stage, UnitResult
from tangobench.pipeline.core.hashing import canonical_json
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.dm_math.combinations import (
    LEVELS,
    MAX_ANSWER,
    MAX_QUESTION,
    AnySplit,
    split_of,
)
from tangobench.pipeline.dm_math.draw import Draw
from tangobench.pipeline.dm_math.stages import Rows

_ALLOWED: Final = vocabulary.CHARACTERS.encode()
_LONGEST_LINE: Final = 4096  # bytes read at once; a question has 160


@dataclass(frozen=True, slots=True)
class ScanArgs(Arguments):
    """A file as it is now; another size or time of change means another scan."""

    path: Path
    size: int
    changed: int

    def key(self) -> Any:
        """The file's content is not known before it is read; nothing of this enters a root."""
        return [str(self.path), self.size, self.changed]


@dataclass(frozen=True, slots=True)
class Scanned(UnitResult):
    """A file's sha256, its examples, and how many of them each side may have."""

    sha256: str
    examples: int
    train: int
    validation: int

    def accepted(self, split: AnySplit) -> int:
        """Examples that a split may have."""
        return self.train if split == "train" else self.validation


@dataclass(frozen=True, slots=True)
class MathFile:
    """A scanned file of one combination or test module."""

    name: str
    args: ScanArgs
    scanned: Scanned


@dataclass(frozen=True, slots=True)
class ReadArgs(Arguments):
    """The first `count` examples of a file that belong to a split."""

    file: MathFile
    split: AnySplit
    count: int

    def key(self) -> Any:
        """Content, not place."""
        return [self.file.scanned.sha256, self.file.name, self.split, self.count]


def path_of(folder: Path, name: str) -> Path:
    """Where the examples of `MODULE/DIFFICULTY` are."""
    module, _, difficulty = name.partition("/")
    part = f"train-{difficulty}" if difficulty in LEVELS else difficulty
    return folder / part / f"{module}.txt"


def found_files(source: str, names: Sequence[str]) -> list[ScanArgs]:
    """The files of some combinations; all must be there."""
    found = []
    for path in (path_of(Path(source).expanduser().absolute(), name) for name in names):
        if not path.is_file():
            raise InputError(
                f"{path} is missing",
                kind="math-file-missing",
                fix="give the unpacked folder mathematics_dataset-v1.0 with --source",
                path=str(path),
            )
        status = path.stat()
        found.append(ScanArgs(path, status.st_size, status.st_mtime_ns))
    return found


def scan_files(source: str, names: Sequence[str], job: Job) -> list[MathFile]:
    """Check every line of every file and count what each side may have."""
    found = found_files(source, names)
    units = [SCAN.unit(name, args, args.size) for name, args in zip(names, found, strict=True)]
    return [
        MathFile(name, args, Scanned.of(record))
        for name, args, record in zip(names, found, job.run(SCAN, units), strict=True)
    ]


def read_files(files: Sequence[MathFile], split: AnySplit, count: int, job: Job) -> list[Record]:
    """The first `count` accepted examples of each file."""
    for file in files:
        there = file.scanned.accepted(split)
        if there < count:
            raise InputError(
                f"{file.args.path} has {there:,} examples for {split}, {count:,} are asked for",
                kind="too-few-examples",
                fix="ask for fewer of each with --set",
                path=str(file.args.path),
            )
    units = [READ.unit(f"{split} {f.name}", ReadArgs(f, split, count), count) for f in files]
    return job.run(READ, units)


def identity(files: Sequence[MathFile]) -> dict[str, Any]:
    """What the lock says of the source."""
    return {
        "files": "mathematics_dataset-v1.0",
        "contents": [[f.name, f.scanned.sha256, f.args.size, f.scanned.examples] for f in files],
    }


def scan_file(args: ScanArgs, _store: Store) -> Output:
    """Read a whole file once."""
    hasher = hashlib.sha256()
    sides = {"train": 0, "validation": 0}
    for number, question, answer in _pairs(args):
        hasher.update(question)
        hasher.update(answer)
        sides[split_of(_checked(question, MAX_QUESTION, args.path, number))] += 1
        _checked(answer, MAX_ANSWER, args.path, number + 1)
    result = Scanned(hasher.hexdigest(), sum(sides.values()), sides["train"], sides["validation"])
    return Output(canonical_json(result.plain()), result.plain())


def read_file(args: ReadArgs, _store: Store) -> Output:
    """Rows of the first accepted examples; what came before them is counted."""
    rows, taken, other = Rows(), 0, 0
    side = "train" if args.split == "train" else "validation"
    path = args.file.args.path
    for number, question, answer in _pairs(args.file.args):
        text = _checked(question, MAX_QUESTION, path, number)
        if split_of(text) != side:
            other += 1
            continue
        given = _checked(answer, MAX_ANSWER, path, number + 1)
        none = {"long_question": 0, "long_answer": 0, "unfinished": 0}
        rows.add(args.file.name, Draw(question=text, answer=given, other_split=other, **none))
        taken, other = taken + 1, 0
        if taken == args.count:
            break
    return rows.output()


def _pairs(file: ScanArgs) -> Iterator[tuple[int, bytes, bytes]]:
    """Line number of the question, and both lines as they are."""
    with file.path.open("rb") as opened:
        status = os.fstat(opened.fileno())
        if (status.st_size, status.st_mtime_ns) != (file.size, file.changed):
            raise InputError(
                f"{file.path} changed while it was read",
                kind="source-changed",
                fix="run again when nothing writes to it",
                path=str(file.path),
            )
        number = 1
        while question := opened.readline(_LONGEST_LINE):
            answer = opened.readline(_LONGEST_LINE)
            if not answer:
                raise _broken(file.path, number, "a question without an answer ends the file")
            yield number, question, answer
            number += 2


def _checked(line: bytes, most: int, path: Path, number: int) -> str:
    """The text of a line without its end."""
    text = line.removesuffix(b"\n")
    if not text:
        raise _broken(path, number, "the line is empty")
    if len(text) > most:
        raise _broken(path, number, f"more than {most} characters")
    if strange := text.translate(None, _ALLOWED):
        raise _broken(path, number, f"character {strange[:1]!r} is not among the 69")
    return text.decode("ascii")


def _broken(path: Path, number: int, what: str) -> InputError:
    return InputError(
        f"{path}, line {number}: {what}",
        kind="math-file-broken",
        fix="unpack the archive again; question and answer are on alternating lines",
        path=str(path),
        row=number,
    )


SCAN: Final = Stage("dm-scan", 1, scan_file)
READ: Final = Stage("dm-read", 1, read_file)
