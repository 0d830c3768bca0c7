"""The pre-generated files of DeepMind Mathematics (v1.0) as a source instead of the generator.

- Every line is checked: an odd number of lines, an empty or over-long line and a character outside
  the 69 are errors that name file and line. Memory does not depend on the size of a file.
- The question's hash decides its side as for generated examples; the first accepted ones of a file
  are taken, in file order. Files are named by their sha256, so a root does not depend on the place.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, TypedDict

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Arguments, Job, Output, Stage, Unit
from tangobench.pipeline.core.hashing import canonical_json
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.dm_math import vocabulary
from tangobench.pipeline.dm_math.combinations import (
    LEVELS,
    MAX_ANSWER,
    MAX_QUESTION,
    AnySplit,
    Group,
    Split,
    side_of,
    split_of,
)
from tangobench.pipeline.dm_math.draw import REJECTIONS, Draw
from tangobench.pipeline.dm_math.stages import DrawResult, rows_unit

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


class Scanned(TypedDict):
    """A file's sha256, its examples, and how many of them each side may have."""

    sha256: str
    examples: int
    train: int
    validation: int


class MathFile(NamedTuple):
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
        return [self.file.scanned["sha256"], self.file.name, self.split, self.count]


def path_of(folder: Path, name: str) -> Path:
    """Where the examples of `MODULE/DIFFICULTY` are."""
    module, _, difficulty = name.partition("/")
    part = f"train-{difficulty}" if difficulty in LEVELS else difficulty
    return folder / part / f"{module}.txt"


def found_files(source: str, groups: Sequence[Group]) -> dict[str, ScanArgs]:
    """The files of some groups by combination; all must be there."""
    folder = Path(source).expanduser().absolute()
    found = {}
    for name in (name for group in groups for name in group.names):
        path = path_of(folder, name)
        if not path.is_file():
            raise InputError(
                f"{path} is missing",
                kind="math-file-missing",
                fix="give the unpacked folder mathematics_dataset-v1.0 with --source",
                path=str(path),
            )
        status = path.stat()
        found[name] = ScanArgs(path, status.st_size, status.st_mtime_ns)
    return found


def scan_files(source: str, groups: Sequence[Group], job: Job) -> list[MathFile]:
    """Check every line of every file and count what each side may have."""
    found = found_files(source, groups)
    records = job.run(SCAN, [SCAN.unit(name, args, args.size) for name, args in found.items()])
    return [
        MathFile(name, args, record.result)
        for (name, args), record in zip(found.items(), records, strict=True)
    ]


def read_units(files: Sequence[MathFile], groups: Sequence[Group]) -> list[Unit]:
    """Units that read the first accepted examples of each file of each group."""
    by_name = {file.name: file for file in files}
    units = []
    for group, file in [(g, by_name[name]) for g in groups for name in g.names]:
        there = file.scanned[side_of(group.split)]
        if there < group.each:
            raise InputError(
                f"{file.args.path} has {there:,} examples for {group.split}, {group.each:,} are "
                "asked for",
                kind="too-few-examples",
                fix="ask for fewer of each with --set",
                path=str(file.args.path),
            )
        args = ReadArgs(file, group.split, group.each)
        units.append(READ.unit(f"{group.split} {file.name}", args, group.each))
    return units


def identity(files: Sequence[MathFile]) -> dict[str, Any]:
    """What the lock says of the source."""
    return {
        "files": "mathematics_dataset-v1.0",
        "contents": [
            [f.name, f.scanned["sha256"], f.args.size, f.scanned["examples"]] for f in files
        ],
    }


def scan_file(args: ScanArgs, _store: Store) -> Output[Scanned]:
    """Read a whole file once."""
    hasher = hashlib.sha256()
    result: Scanned = {"sha256": "", "examples": 0, "train": 0, "validation": 0}
    for data, question, _ in _pairs(args):
        hasher.update(data)
        result["examples"] += 1
        result[split_of(question)] += 1
    result["sha256"] = hasher.hexdigest()
    return Output(canonical_json(result), result)


def read_file(args: ReadArgs, _store: Store) -> Output[DrawResult]:
    """Rows of the first accepted examples; what came before them is counted."""
    accepted = islice(_accepted(args.file.args, side_of(args.split)), args.count)
    return rows_unit((args.file.name, example) for example in accepted)


def _accepted(file: ScanArgs, side: Split) -> Iterator[Draw]:
    rejected = dict.fromkeys(REJECTIONS, 0)
    for _, question, answer in _pairs(file):
        if split_of(question) == side:
            yield Draw(question, answer, dict(rejected))
            rejected["other_split"] = 0
        else:
            rejected["other_split"] += 1


def _pairs(file: ScanArgs) -> Iterator[tuple[bytes, str, str]]:
    """The bytes of two lines, and the question and answer on them."""
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
            texts = (
                _checked(question, MAX_QUESTION, file.path, number),
                _checked(answer, MAX_ANSWER, file.path, number + 1),
            )
            yield question + answer, *texts
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
