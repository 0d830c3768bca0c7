"""The FineWeb-Edu spec: what `manifests/fineweb.toml` may say, and what is refused.

Every value that decides a byte of the output is here and in the lock. Where the input is read
(`source`, `hub`) and how work is cut (`unit_bytes`) are here too, but in no lock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from tangobench.pipeline.core.spec import UNHASHED, bad_value
from tangobench.pipeline.tokenizer import TokenizerKeys

Duplicates = Literal["drop", "reassign"]
NearEngine = Literal["rensa", "datasketch"]
NearMode = Literal["off", "report", "drop"]
_DUMP: Final = re.compile(r"CC-MAIN-([0-9]{4})-([0-9]{2})")


def dump_order(name: str) -> int | None:
    """Year and week as one number, 202350 for CC-MAIN-2023-50; None for any other name."""
    match = _DUMP.fullmatch(name)
    return int(match[1] + match[2]) if match else None


def dump_name(order: int) -> str:
    return f"CC-MAIN-{order // 100:04d}-{order % 100:02d}"


def config_folder(name: str) -> str:
    """The folder of a config of FineWeb-Edu (`default`, `sample-10BT`, a dump), or of itself."""
    if name == "default":
        return "data"
    if name.startswith("sample-"):
        return name.replace("-", "/", 1)
    return f"data/{name}" if dump_order(name) else name


class Part(NamedTuple):
    """A config or folder of the repository: its first files, of each the first row groups.

    0 means all of them.
    """

    config: str
    files: int
    groups: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Hub:
    """Which parts of the dataset repository are read; 0 files or row groups of each means all."""

    repository: str
    revision: str
    train: str
    validation: str
    train_files: int = 0
    validation_files: int = 0
    train_groups: int = 0
    validation_groups: int = 0

    @property
    def validation_dump(self) -> str | None:
        """The dump that validation is read from, if it is a single one."""
        name = config_folder(self.validation).removeprefix("data/")
        return name if dump_order(name) else None

    def parts(self) -> tuple[Part, ...]:
        """Both sides; a file that is in both is read as the first says."""
        return (
            Part(self.train, self.train_files, self.train_groups),
            Part(self.validation, self.validation_files, self.validation_groups),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentKeys(TokenizerKeys):
    """What documents of your own share with FineWeb-Edu."""

    seed: int = 1729
    url_folding: Literal["standard", "aggressive"] = "standard"
    duplicates: Duplicates = "drop"
    near_duplicates: NearMode = "report"
    near_engine: NearEngine = "rensa"
    shard_rows: int = 4_096
    unit_bytes: int = field(default=1 << 25, metadata=UNHASHED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec(DocumentKeys):
    """Everything that decides the dataset, with the input's content."""

    source: Literal["sample", "hub"] = field(metadata=UNHASHED)
    train_through: str
    hub: Hub = field(metadata=UNHASHED)
    validation_dumps: tuple[str, ...] = ()
    """If not given: the dump that `hub.validation` names."""
    context: int = 8192
    train_rows: int = 183_104
    validation_rows: int = 2_048
    allow_fewer: bool = False

    def __post_init__(self) -> None:
        for key in ("train_rows", "validation_rows", "shard_rows", "unit_bytes"):
            if getattr(self, key) < 1:
                raise bad_value(key, getattr(self, key), "a count of at least 1")
        if not 2 <= self.context <= 1 << 16:
            raise bad_value("context", self.context, "a length from 2 to 65,536")
        if not 0 <= self.seed < 1 << 64:
            raise bad_value("seed", self.seed, "a number from 0 to 2^64 - 1")
        for key in ("train_files", "validation_files", "train_groups", "validation_groups"):
            if getattr(self.hub, key) < 0:
                raise bad_value(f"hub.{key}", getattr(self.hub, key), "0 (all) or a count")
        last = dump_order(self.train_through)
        if last is None:
            raise bad_value("train_through", self.train_through, "a dump like CC-MAIN-2023-40")
        if not self.validation_dumps and self.hub.validation_dump is not None:
            object.__setattr__(self, "validation_dumps", (self.hub.validation_dump,))
        for dump in self.validation_dumps:
            if (dump_order(dump) or 0) <= last:
                raise bad_value("validation_dumps", dump, f"dumps after {self.train_through}")
        if not self.validation_dumps:
            raise bad_value("validation_dumps", [], "at least one dump, as hub.validation is none")

    @property
    def last_train(self) -> int:
        return dump_order(self.train_through) or 0

    @property
    def validation_orders(self) -> list[int]:
        return sorted(dump_order(dump) or 0 for dump in self.validation_dumps)
