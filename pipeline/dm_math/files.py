"""The pre-generated files of DeepMind Mathematics (v1.0) as a source instead of the generator.

- Every line is checked: an odd number of lines, an empty or over-long line and a character outside
  the 69 are errors that name file and line. Memory does not depend on the size of a file.
- The question's hash decides its side as for generated examples; the first accepted ones of a file
  are taken, in file order. Files are named by their sha256, so a root does not depend on the place.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Arguments, Output, Record, Stage, Unit
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.dm_math import spec, vocabulary
from tangobench.pipeline.dm_math.spec import AnySplit, Group, side_of, split_of
from tangobench.pipeline.dm_math.stages import REJECTIONS, Draw, DrawResult, rows_unit

_ALLOWED: Final = vocabulary.CHARACTERS.encode()
_LONGEST_LINE: Final = 4096  # bytes read at once; a question has 160


class File(NamedTuple):
    """A file as it is now; another size or time of change means another file."""

    path: Path
    size: int
    changed: int


@dataclass(frozen=True, slots=True)
class ReadArgs(Arguments):
    """The first `count` examples of a file that belong to a split."""

    file: File
    name: str
    split: AnySplit
    count: int

    def key(self) -> Any:
        """Path, size and time of change stand for the content, unknown until read (in no root)."""
        place, size, changed = self.file
        return [str(place), size, changed, self.name, self.split, self.count]


class ReadResult(DrawResult):
    """The whole file: its sha256, and how many examples it has."""

    sha256: str
    examples: int


def path_of(folder: Path, name: str) -> Path:
    """Where the examples of `MODULE/DIFFICULTY` are."""
    module, _, difficulty = name.partition("/")
    part = f"train-{difficulty}" if difficulty in spec.LEVELS else difficulty
    return folder / part / f"{module}.txt"


def read_units(source: str, groups: Sequence[Group]) -> list[Unit]:
    """Units that read the first accepted examples of each file of each group; all must be there."""
    folder = Path(source).expanduser().absolute()
    units = []
    for group, name in ((each, name) for each in groups for name in each.names):
        path = path_of(folder, name)
        if not path.is_file():
            fix = "give the unpacked folder mathematics_dataset-v1.0 with --source"
            raise _wrong(path, " is missing", "math-file-missing", fix)
        status = path.stat()
        file = File(path, status.st_size, status.st_mtime_ns)
        args = ReadArgs(file, name, group.split, group.each)
        units.append(READ.unit(f"{group.split} {name}", args, weight=file.size))
    return units


def identity(units: Sequence[Unit], records: Sequence[Record[ReadResult]]) -> dict[str, Any]:
    """What the lock says of the source."""
    contents = {}  # a file is read once for each split
    for unit, record in zip(units, records, strict=True):
        args, result = unit.args[0], record.result
        contents[args.name] = [args.name, result["sha256"], args.file.size, result["examples"]]
    return {"files": "mathematics_dataset-v1.0", "contents": [*contents.values()]}


def read_file(args: ReadArgs, _store: Store) -> Output[ReadResult]:
    """Check every line; rows of the first accepted examples, and what was passed over before."""
    hasher, side = hashlib.sha256(), side_of(args.split)
    kept: list[Draw] = []
    examples = there = others = 0
    for data, question, answer in _pairs(args.file):
        hasher.update(data)
        examples += 1
        if split_of(question) != side:
            others += 1
            continue
        there += 1
        if there <= args.count:
            rejected = dict.fromkeys(REJECTIONS, 0) | {"other_split": others}
            kept.append(Draw(question, answer, rejected))
            others = 0
    if there < args.count:
        what = f" has {there:,} examples for {args.split}, {args.count:,} are asked for"
        fix = "ask for fewer of each with --set"
        raise _wrong(args.file.path, what, "too-few-examples", fix)
    rows = rows_unit([kept])
    whole: ReadResult = {**rows.result, "sha256": hasher.hexdigest(), "examples": examples}
    return Output(rows.data, whole)


def _pairs(file: File) -> Iterator[tuple[bytes, str, str]]:
    """The bytes of two lines, and the question and answer on them."""
    with file.path.open("rb") as opened:
        status = os.fstat(opened.fileno())
        if (status.st_size, status.st_mtime_ns) != (file.size, file.changed):
            fix = "run again when nothing writes to it"
            raise _wrong(file.path, " changed while it was read", "source-changed", fix)
        for number in itertools.count(1, 2):
            if not (question := opened.readline(_LONGEST_LINE)):
                return
            answer = opened.readline(_LONGEST_LINE)
            if not answer:
                raise _broken(file.path, number, "a question without an answer ends the file")
            first = _checked(question, spec.MAX_QUESTION, file.path, number)
            second = _checked(answer, spec.MAX_ANSWER, file.path, number + 1)
            yield question + answer, first, second


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
    fix = "unpack the archive again; question and answer are on alternating lines"
    return _wrong(path, f", line {number}: {what}", "math-file-broken", fix, row=number)


def _wrong(path: Path, what: str, kind: str, fix: str, **more: int) -> InputError:
    return InputError(f"{path}{what}", kind=kind, fix=fix, path=str(path), **more)


READ: Final = Stage("dm-read", 2, read_file)
