"""Which tokenizer a build, a dataset folder or a run uses.

In a build the definition is an object of the unit store: workers load it from there, and it is
published beside the shards. A run keeps the tokenizer of its dataset, to write text without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from tangobench.errors import CorruptionError, InputError
from tangobench.pipeline.core import sealed
from tangobench.pipeline.core.build import Arguments, Job, SideFile
from tangobench.pipeline.core.files import read_untrusted, write_atomic
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.remote import Place
from tangobench.pipeline.core.shard_reader import broken, map_checked
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.tokenizer import TokenizerKeys, require_same
from tangobench.pipeline.tokenizer.base import EOT_TEXT, Tokenizer
from tangobench.pipeline.tokenizer.defined import Defined, Definition, make, read_definition
from tangobench.pipeline.tokenizer.gpt2 import gpt2

_SAVED: Final = "tokenizer.sealed.json"
_FORMAT: Final = "tangobench-tokenizer/1"


@dataclass(frozen=True, slots=True)
class Choice(Arguments):
    """A tokenizer by the address of its definition in the unit store; GPT-2 without one."""

    file: str = ""
    address: str = ""
    eot: str = EOT_TEXT

    def key(self) -> Any:
        """What decides ids; nothing for GPT-2, whose units are older than this key."""
        return [self.file, self.address, self.eot] if self.address else []

    def load(self, store: Store) -> Tokenizer:
        if not self.address:
            return gpt2()
        return _loaded(Definition(self.file, bytes(store.read(self.address))), self.eot)

    def side_files(self) -> list[SideFile]:
        return [SideFile(self.file, "tokenizer", self.address, 0, "")] if self.address else []


GPT2: Final = Choice()


_loaded = lru_cache(maxsize=4)(make)


def choose(spec: TokenizerKeys, job: Job) -> Choice:
    """The tokenizer of a build, checked and put where workers find it."""
    if spec.tokenizer == "gpt2":
        if spec.eot != EOT_TEXT:
            why = f"GPT-2 has no special token {spec.eot!r}"
            fix = f'set eot = "{EOT_TEXT}", or name another tokenizer'
            raise InputError(why, kind="eot-missing", fix=fix)
        return GPT2
    definition = read_definition(spec.tokenizer)
    require_same(spec, definition.sha256)
    _loaded(definition, spec.eot)  # refused before anything is read
    key = digest(["tokenizer", 1, [definition.file, definition.sha256]])
    return Choice(definition.file, job.store.put(key, definition.data, {}).address, spec.eot)


def tokenizer_of(folder: Place, lock: Lock) -> Tokenizer | None:
    """The tokenizer of a dataset folder; None where tokens are not of a text tokenizer."""
    identity = lock.data["tokenizer"] or {}
    if "file" not in identity:
        return gpt2() if identity.get("name") == "gpt2" else None
    entry = next(e for e in lock.side_files if e["path"] == identity["file"])
    data = bytes(map_checked(folder, entry, "tokenizer"))
    found = _loaded(Definition(identity["file"], data), str(identity["eot"]))
    if found.identity != identity:
        raise broken(folder / entry["path"], "corrupt", "it is not what the lock says", "tokenizer")
    return found


def save(dataset: Place, lock: Lock, folder: Path) -> None:
    """Keep a dataset's tokenizer in a run's folder, unless it is known without."""
    if "file" in (lock.data["tokenizer"] or {}):
        tokenizer = tokenizer_of(dataset, lock)
        assert isinstance(tokenizer, Defined)  # it has a file
        text = tokenizer.definition.data.decode()
        body = {"format": _FORMAT, "identity": dict(tokenizer.identity), "definition": text}
        write_atomic(folder / _SAVED, sealed.seal(body))


def saved(folder: Path) -> Defined | None:
    """The tokenizer that a run kept, if it did."""
    path = folder / _SAVED
    if not path.is_file():
        return None
    try:
        body = sealed.unseal(read_untrusted(path))
        identity = body["identity"]
        definition = Definition(identity["file"], body["definition"].encode())
        found = _loaded(definition, identity["eot"])
        if body["format"] == _FORMAT and found.identity == identity:
            return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    fix = "restore it, or copy it from another run on the same dataset"
    why = f"{path} is damaged or edited"
    raise CorruptionError(why, kind="tokenizer-corrupt", fix=fix, path=str(path))
