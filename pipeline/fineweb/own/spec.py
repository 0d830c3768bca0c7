"""What a manifest of your own documents may say.

- `files` says where the input is and is no part of the identity: its bytes are.
- The split is by hash and share, by a time column and a cut, or by dump.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from tangobench.errors import UsageError
from tangobench.pipeline.core.spec import UNHASHED, bad_value
from tangobench.pipeline.fineweb import spec as fineweb

TRAIN, VALIDATION = "CC-MAIN-0001-01", "CC-MAIN-0002-01"  # the sides of a split without dumps


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """Names of the input's columns; without `id`, a document's id is the hash of text and URL."""

    text: str = "text"
    id: str | None = None
    url: str | None = None
    time: str | None = None
    dump: str | None = None

    def named(self) -> dict[str, str]:
        return {kind: name for kind, name in asdict(self).items() if name is not None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """How documents are divided; components with a training member are training."""

    by: Literal["hash", "time", "dump"] = "hash"
    share: float = 0.05
    cut: str | None = None
    """Documents from this time on are validation."""
    train_through: str | None = None
    validation_dumps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise bad_value("split.share", self.share, "a share between 0 and 1, such as 0.05")
        if self.by == "time" and self.cut is None:
            raise _missing("split", 'cut = "2024-01-01"', "a time")
        if self.by == "dump" and self.train_through is None:
            raise _missing("split", 'train_through = "CC-MAIN-2023-40"', "a dump")
        if self.cut is not None:
            self.moment()

    def moment(self) -> str:
        """The cut as `in_order` writes times."""
        try:
            return in_order(self.cut)
        except (ValueError, TypeError, OverflowError):
            raise bad_value("split.cut", self.cut, "a time, such as 2024-01-01") from None


def _missing(table: str, line: str, expected: str) -> UsageError:
    """The error for a key that the kind of split needs."""
    key = f"{table}.{line.split(maxsplit=1)[0]}"
    fix = f"in the manifest, under [{table}]: {line}"
    return UsageError(
        f"spec key {key!r} is missing: {expected}", kind="spec-value", fix=fix, key=key
    )


def in_order(value: Any) -> str:
    """A time as text whose alphabetical order is that of time; without a zone it is UTC."""
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value.strip())
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value = datetime.datetime.fromtimestamp(value, datetime.UTC)
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    if not isinstance(value, datetime.datetime):
        raise TypeError(type(value).__name__)
    zoned = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
    return f"{zoned.astimezone(datetime.UTC):%Y-%m-%dT%H:%M:%S.%f}".rjust(26, "0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec(fineweb.DocumentKeys):
    """Everything that decides the dataset, with the input's content."""

    files: str = field(default="", metadata=UNHASHED)
    columns: Columns = field(default_factory=Columns)
    split: Split = field(default_factory=Split)
    licence: str = "unknown"
    context: int = 1024
    train_rows: int = 1_000_000_000
    validation_rows: int = 1_000_000_000
    """At most so many rows; the defaults take all there are."""

    def __post_init__(self) -> None:
        needed = {"time": self.columns.time, "dump": self.columns.dump, "hash": ""}[self.split.by]
        if needed is None:
            by = self.split.by
            raise _missing("columns", f'{by} = "COLUMN"', f"the column to split by {by}")
        self.fineweb()

    def fineweb(self) -> fineweb.Spec:
        by_dump = self.split.by == "dump"
        shared = {f.name for f in fields(self)} & {f.name for f in fields(fineweb.Spec)}
        nowhere = fineweb.Hub(repository="own/files", revision="main", train="", validation="")
        return fineweb.Spec(
            source="hub",
            hub=nowhere,
            allow_fewer=True,
            train_through=(by_dump and self.split.train_through) or TRAIN,
            validation_dumps=self.split.validation_dumps if by_dump else (VALIDATION,),
            **{name: getattr(self, name) for name in shared},
        )
