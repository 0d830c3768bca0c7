"""Builds: stages of independent units, each a pure function of its inputs.

- A unit's key is the digest of (stage name, stage version, its arguments); a finished unit is found
  again under its key, so the same command resumes where a killed one stopped.
- A unit returns one whole object and a small JSON record, never data through the runner.
- Where and how units run (processes, Prefect, Dask) cannot change a byte: results are ordered.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypedDict, TypeVar, TypeVarTuple

from tangobench.errors import ResourceError, TangobenchError
from tangobench.pipeline.core import shards
from tangobench.pipeline.core.files import FULL
from tangobench.pipeline.core.hashing import Sink, digest
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.remote import PATIENCE
from tangobench.pipeline.core.store import R, R_co, Store
from tangobench.pipeline.core.store import Record as Record  # noqa: PLC0414 - re-exported

Args = TypeVarTuple("Args")
Item = TypeVar("Item")
Value = TypeVar("Value")


class Runner(Protocol):
    """Anything that can map a function over items: processes here, Prefect or Dask in `flows`."""

    def map(
        self, function: Callable[[Item], Value], items: Sequence[Item], labels: Sequence[str]
    ) -> Iterator[Value]:
        """Results in the order of `items`; `labels` name them in errors and logs."""
        ...

    def close(self) -> None: ...


class SerialRunner:
    """Runs everything in this process."""

    def map(
        self, function: Callable[[Item], Value], items: Sequence[Item], labels: Sequence[str]
    ) -> Iterator[Value]:
        for item in items:
            yield function(item)

    def close(self) -> None:
        """Nothing to release."""


class Nothing(TypedDict):
    """The result of a unit whose object says it all."""


@dataclass(frozen=True, slots=True)
class Output(Generic[R_co]):
    """What a unit's function returns: one whole object and its small record, a `TypedDict`."""

    data: Any
    result: R_co


class Arguments:
    """Base of frozen dataclasses that are arguments of a stage, or in them; they can be pickled."""

    __slots__ = ()

    def key(self) -> Any:
        """What decides the output, as JSON: all fields in order, or the one, but never a place."""
        return _keys([getattr(self, f.name) for f in dataclasses.fields(self)])  # type: ignore[arg-type]


def _keys(values: Sequence[Any]) -> Any:
    return [_key(value) for value in values] if len(values) > 1 else _key(values[0])


def _key(value: Any) -> Any:
    if isinstance(value, Arguments):
        return value.key()
    if isinstance(value, tuple) and value and isinstance(value[0], Arguments):
        return [item.key() for item in value]
    return value


@dataclass(frozen=True, slots=True)
class Streamed(Generic[R_co]):
    """What it returns if the object is large: a function that writes about `size` bytes."""

    write: Callable[[Sink], R_co]
    size: int


class ShardResult(TypedDict):
    """The result of a unit whose object is a shard."""

    shard: shards.ShardInfo


class TableResult(TypedDict):
    """The result of a unit whose object is a table beside the shards."""

    rows: int
    rows_sha256: str


def shard_unit(columns: dict[str, shards.Column], *, batch_rows: int) -> Streamed[ShardResult]:
    """What it returns if the object is a shard."""

    def write(sink: Sink) -> ShardResult:
        return {"shard": shards.write_shard(columns, sink, batch_rows=batch_rows)}

    return Streamed(write, shards.shard_size(columns, batch_rows=batch_rows))


@dataclass(frozen=True, slots=True)
class Unit:
    """One independent piece of a stage, made by `Stage.unit`; `weight` is its relative cost."""

    label: str
    args: tuple[Any, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Stage(Generic[*Args, R_co]):
    """A named step; raise `version` whenever its output may change for equal arguments.

    These decide the output: JSON, or `Arguments`, which may carry a place or the like as well.
    """

    name: str
    version: int
    run: Callable[[*Args, Store], Output[R_co] | Streamed[R_co]]

    def unit(self, label: str, *args: *Args, weight: float = 1.0) -> Unit:
        return Unit(label, args, weight)


@dataclass(frozen=True, slots=True)
class Task:
    """A unit with all that a worker needs to run it anywhere."""

    stage: Stage[*tuple[Any, ...], Any]
    unit: Unit
    key: str
    store: Store
    shown: str
    """The stage's name for people."""

    @property
    def where(self) -> str:
        return f"in stage {self.shown}, unit {self.unit.label}"


# Faults of a line or a device that may be gone a moment later; network libraries raise OSErrors
# without a number.
_PASSING: Final = {
    *(None, errno.EIO, errno.ESTALE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT, errno.ECONNRESET),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTUNREACH),
    *("store-unreachable", "disk-error"),
}
_PAUSES: Final = (1.0, 5.0)  # seconds before the second and the third try


def execute(task: Task) -> tuple[Record[Any], bool]:
    """Run a unit unless its result is already in the store; True if it was.

    A passing I/O fault is tried again here, where the unit runs, so that every runner has it.
    """
    pauses = iter(_PAUSES)
    while True:
        try:
            return _attempt(task)
        except (OSError, TangobenchError) as error:
            code = error.errno if isinstance(error, OSError) else error.kind
            if code not in _PASSING or (pause := next(pauses, None)) is None:
                raise _told(error, task) from None
        time.sleep(pause)


def _attempt(task: Task) -> tuple[Record[Any], bool]:
    if (record := task.store.get(task.key)) is not None:
        return record, True
    unit = task.unit
    try:
        output = task.stage.run(*unit.args, task.store)
        if isinstance(output, Streamed):
            return task.store.put_streamed(task.key, output.write, output.size), False
        return task.store.put(task.key, output.data, output.result), False
    except (OSError, TangobenchError):
        raise
    except MemoryError:
        why = f"out of memory {task.where}"
        fix = "run again with fewer --workers; finished units are kept"
        raise ResourceError(why, kind="out-of-memory", fix=fix, unit=unit.label) from None
    except Exception as error:
        raise _portable(error, task.where) from None


def _told(error: OSError | TangobenchError, task: Task) -> Exception:
    """An OSError is a full temporary disk, a limit or a broken device: no bug of ours."""
    if isinstance(error, TangobenchError):
        error.details.setdefault("unit", task.unit.label)
        return error
    if error.errno is None:
        return _portable(error, task.where)
    why = f"{os.strerror(error.errno)}: {error.filename or 'no file named'}, {task.where}"
    kind, fix = "system-error", "check that file, its disk and the system's limits"
    if error.errno in FULL:
        kind, fix = "disk-full", "free space there or set TMPDIR to a larger disk"
    fix += "; the same command resumes"
    return ResourceError(why, kind=kind, fix=fix, unit=task.unit.label)


def _portable(error: Exception, where: str) -> Exception:
    """The error with a note; as plain text if it could not travel to the main process."""
    try:
        copy.copy(error)  # by the same means as between processes
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(where)
    return error


@dataclass(frozen=True, slots=True)
class Job:
    """One running build; `stream` and `patience` say how remote input is read, as in `Request`."""

    store: Store
    runner: Runner = field(default_factory=SerialRunner)
    reporter: Reporter = field(default_factory=lambda: Reporter(quiet=True))
    name: str = ""
    stream: bool = False
    patience: float = PATIENCE
    stages: list[dict[str, Any]] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.reporter.say(line)

    def run(self, stage: Stage[*Args, R], units: Sequence[Unit]) -> list[Record[R]]:
        """All records of a stage, in the order of its units."""
        kind, _, step = stage.name.partition("-")
        shown = f"{self.name or kind}-{step}" if step else kind  # the dataset's name, not its kind
        keys = (digest([stage.name, stage.version, _keys(unit.args)]) for unit in units)
        tasks = [Task(stage, u, key, self.store, shown) for u, key in zip(units, keys, strict=True)]
        self.reporter.start(shown, len(units), sum(unit.weight for unit in units))
        records: list[Record[R]] = []
        reused = 0
        results = self.runner.map(execute, tasks, [f"{shown}: {u.label}" for u in units])
        for unit, (record, was_there) in zip(units, results, strict=True):
            records.append(record)
            reused += was_there
            self.reporter.advance(unit.weight, reused=was_there, label=unit.label)
        self.reporter.finish()
        self.stages.append({"stage": stage.name, "units": len(units), "reused": reused})
        return records


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard to publish."""

    path: str
    config: str
    split: str
    record: Record[ShardResult]


@dataclass(frozen=True, slots=True)
class SideFile:
    """A file beside the shards, such as decisions; only its rows are part of the root."""

    path: str
    kind: str
    address: str
    rows: int
    rows_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a dataset's build returns: all of it goes into the lock, but `origin` and `card`."""

    source: dict[str, Any]
    """Identity of the input's content; part of the root, so never a path or an address."""
    origin: dict[str, Any]
    """Where the input came from; goes to run.json only."""
    tokenizer: dict[str, Any] | None
    configs: dict[str, dict[str, Any]]
    """Config name to `context`, `vocabulary`, `masked_target` (or None) and `pad`."""
    counts: dict[str, Any]
    drops: dict[str, Any]
    notes: dict[str, Any]
    shards: list[ShardFile]
    side_files: list[SideFile] = field(default_factory=list)
    card: dict[str, Any] = field(default_factory=dict)
    """`title`, `licence`, `description` and `sources` for the dataset card."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Worth knowing and not identity, such as a project's toolchain; outside the root."""
