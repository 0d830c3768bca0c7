"""Which tokenizer a build, a dataset folder or a run uses, and those made from a definition.

- A definition is a Hugging Face `tokenizer.json` or a tiktoken encoding: one file of canonical JSON
  that a dataset folder carries. GPT-2 needs none.
- It is refused unless every text comes back: a normaliser, a prefix space, a missing byte or
  truncation would lose some. A probe of every byte that UTF-8 has is encoded at once, and later
  each text's bytes are counted again in its ids.
- In a build the definition is an object of the unit store: workers load it from there. A run keeps
  the tokenizer of its dataset, to write text without it.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from tangobench.errors import CorruptionError, InputError, MismatchError, UsageError
from tangobench.pipeline.core import hashing
from tangobench.pipeline.core.build import Arguments, Job, SideFile
from tangobench.pipeline.core.files import read_untrusted, write_atomic
from tangobench.pipeline.core.hashing import canonical_json, digest, sha256_bytes
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.shard_reader import broken, map_checked
from tangobench.pipeline.core.store import Place, Store
from tangobench.pipeline.tokenizer import TokenizerKeys
from tangobench.pipeline.tokenizer.base import (
    EOT_TEXT,
    Ids,
    Tokenizer,
    byte_alphabet,
    gpt2,
    is_panic,
    utf8_of,
)

_SAVED: Final = "tokenizer.sealed.json"
_FORMAT: Final = "tangobench-tokenizer/1"
S = TypeVar("S", bound=TokenizerKeys)
HUGGING_FACE: Final = "tokenizer.json"
TIKTOKEN: Final = "tiktoken.json"
_LARGEST: Final = 1 << 26  # bytes; Gemma's 256,000 tokens take 33 MB
_MOST: Final = 1 << 22  # ids
_BYTE: Final = re.compile("<0x([0-9A-F]{2})>")
# Every character below U+0800, then some for each first byte of longer ones: all bytes of UTF-8.
# Around them what normalisers and trimmers change.
_PROBE: Final = (
    "  \r\n\t A\u0301 e\u0301 ﬁ ＡＢ ▁Ġ "
    + "".join(map(chr, range(0x800)))
    + "".join(chr(i) for i in range(0x800, 0x10000, 0x3F1) if not 0xD800 <= i < 0xE000)
    + "".join(chr(i) for i in range(0x10000, 0x110000, 0x7FF3))
    + " x  \n "
)


@dataclass(frozen=True, slots=True)
class Definition:
    """The file's name in a dataset folder, and its bytes."""

    file: str
    data: bytes

    @property
    def sha256(self) -> str:
        return sha256_bytes(self.data)


def read_definition(name: str) -> Definition:
    """The definition of a tiktoken encoding, or of the tokenizer.json at a path."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - Path's raises for an unknown user
    if not (name.endswith(".json") or "/" in name or path.is_file()):
        return Definition(TIKTOKEN, canonical_json(_tiktoken(name)))
    try:
        data = read_untrusted(path, limit=_LARGEST, links=True)
    except OSError as error:
        why = f"cannot read tokenizer {path}: {error.strerror}"
        fix = "name a tokenizer.json that you may read; `tangobench tokenizer train` makes one"
        raise InputError(why, kind="tokenizer-unreadable", fix=fix, path=str(path)) from None
    return Definition(HUGGING_FACE, canonical_json(_parsed(data, name)))


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    """A definition's JSON object; of a key that occurs twice, the last."""
    try:
        found = json.loads(data)
        canonical_json(found)  # no NaN, no lone surrogate
    except (ValueError, RecursionError) as error:
        raise _not_a_tokenizer(name, str(error)) from None
    if not isinstance(found, dict):
        raise _not_a_tokenizer(name, "it is no JSON object")
    return found


def _tiktoken(name: str) -> dict[str, Any]:
    import tiktoken

    known = ", ".join(sorted(tiktoken.list_encoding_names()))
    if name not in tiktoken.list_encoding_names():
        why = f"no tiktoken encoding is called {name!r}"
        fix = f"use {known}, or the path of a tokenizer.json"
        raise UsageError(why, kind="tokenizer-unknown", fix=fix)
    try:
        found = tiktoken.get_encoding(name)
    except Exception as error:
        why = f"tiktoken's encoding {name} cannot be loaded: {error}"
        fix = "fill TIKTOKEN_CACHE_DIR on a machine with a network and copy it here"
        raise InputError(why, kind="vocabulary-missing", fix=fix) from error
    ranks = found._mergeable_ranks
    return {
        "name": name,
        "pattern": found._pat_str,
        "ranks": {base64.b64encode(token).decode(): rank for token, rank in ranks.items()},
        "special": found._special_tokens,
    }


def _not_a_tokenizer(name: str, why: str) -> InputError:
    fix = "give a Hugging Face tokenizer.json; `tangobench tokenizer train` makes one"
    why = f"{name} is not a usable tokenizer: {why[:200]}"
    return InputError(why, kind="not-a-tokenizer", fix=fix)


class Defined(Tokenizer):
    """A tokenizer of a definition; subclasses fill in bytes and special tokens, and encode."""

    title = "huggingface"

    def __init__(self, definition: Definition, eot: str) -> None:
        self.definition = definition
        self.document = _parsed(definition.data, definition.file)
        bytes_of, special = self._tables()
        super().__init__(bytes_of, special, eot)
        own = {"name": self.title, "entries": self.size, "eot": eot, "eot_id": self.eot}
        self.identity = {**own, "file": definition.file, "sha256": definition.sha256}
        for text in (_PROBE, "".join(special)):
            self.check(text, self.encode_again(text), "of the probe")

    @abstractmethod
    def _tables(self) -> tuple[list[bytes], dict[str, int]]:
        """The bytes of every id, and the special tokens."""

    @abstractmethod
    def _ids(self, texts: Sequence[str]) -> list[Any]:
        """What the library answers."""

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, none of whose bytes are lost."""
        sizes = [len(data) for data in utf8_of(texts)]
        try:
            found = [np.array(ids, np.uint32) for ids in self._ids(texts)]
        except BaseException as error:
            if not is_panic(error) and not isinstance(error, Exception):
                raise
            why = f"the tokenizer failed on one of {len(texts)} texts: {error}"[:300]
            fix = "drop or shorten texts with very long runs of one character"
            raise InputError(why, kind="text-not-encodable", fix=fix) from None
        for text, size, ids in zip(texts, sizes, found, strict=True):
            if int(self.token_bytes.take(ids).sum(dtype=np.int64)) != size:
                raise self.loses(text, ids)
        return found


class HuggingFace(Defined):
    """A `tokenizer.json`, encoded by the `tokenizers` library."""

    def _tables(self) -> tuple[list[bytes], dict[str, int]]:
        for key in ("truncation", "padding"):
            if self.document.get(key) is not None:
                raise _not_a_tokenizer(HUGGING_FACE, f"it has {key}; set it to null")
        model = self.document.get("model")
        if not isinstance(model, dict) or model.get("dropout"):
            raise _not_a_tokenizer(HUGGING_FACE, "it has no model, or a model with dropout")
        self._library = _library(self.definition.data)
        added = self._library.get_added_tokens_decoder()
        for entry in self.document.get("added_tokens") or []:
            if self._library.token_to_id(entry["content"]) != entry["id"]:
                why = f"{entry['content']!r} has not the id {entry['id']} in its model"
                raise _not_a_tokenizer(HUGGING_FACE, why)
        vocabulary = self._library.get_vocab(True)
        ids = sorted(vocabulary.values())
        if not ids or ids != list(range(len(ids))):
            wrong = next((n for n, i in enumerate(ids) if n != i), 0)
            why = f"ids have a gap or are used twice, first at {wrong}" if ids else "it is empty"
            raise _not_a_tokenizer(HUGGING_FACE, why)
        cutter = self.document.get("pre_tokenizer") or {}
        parts = json.dumps([cutter, self.document.get("decoder")])
        alphabet = byte_alphabet() if '"ByteLevel"' in parts else None
        tables = [b""] * len(ids)
        for token, ident in vocabulary.items():
            tables[ident] = _token_bytes(token, alphabet, bool(model.get("byte_fallback")))
        for ident, token in added.items():
            tables[ident] = token.content.encode()
        gpt2_cuts = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        self.gpt2_boundaries = (
            {k: v for k, v in cutter.items() if k != "trim_offsets"} == gpt2_cuts
            and all(token.special for token in added.values())
            and self.document.get("normalizer") is None
            and model.get("type") == "BPE"
        )
        return tables, {t.content: ident for ident, t in sorted(added.items()) if t.special}

    def _ids(self, texts: Sequence[str]) -> list[Any]:
        found = self._library.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]


class Tiktoken(Defined):
    """A tiktoken encoding."""

    def _tables(self) -> tuple[list[bytes], dict[str, int]]:
        import tiktoken
        from tiktoken_ext.openai_public import r50k_pat_str

        try:
            ranks = {base64.b64decode(t): int(i) for t, i in self.document["ranks"].items()}
            special = {str(name): int(i) for name, i in self.document["special"].items()}
            pattern, self.title = str(self.document["pattern"]), str(self.document["name"])
            ids = [*ranks.values(), *special.values()]
            if not ranks or b"" in ranks or len({*ids}) < len(ids) or min(ids) < 0:
                raise ValueError("ids are used twice, negative, or have no bytes")
            if max(ids) >= _MOST:
                raise ValueError(f"it has an id of {max(ids)}")
            self._library = tiktoken.Encoding(
                self.title, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
            )
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            raise _not_a_tokenizer(TIKTOKEN, str(error)) from None
        tables = [b""] * (max(ids) + 1)
        for token, ident in ranks.items():
            tables[ident] = token
        self.gpt2_boundaries = pattern == r50k_pat_str
        return tables, special

    def _ids(self, texts: Sequence[str]) -> list[Any]:
        return [self._library.encode_ordinary(text) for text in texts]


@lru_cache(maxsize=4)
def make(definition: Definition, eot: str) -> Defined:
    kind = HuggingFace if definition.file == HUGGING_FACE else Tiktoken
    return kind(definition, eot)


def _library(data: bytes) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a build has its own workers
    from tokenizers import Tokenizer as Library

    try:
        library = Library.from_str(data.decode())
    except BaseException as error:
        if not is_panic(error) and not isinstance(error, Exception):
            raise
        raise _not_a_tokenizer(HUGGING_FACE, str(error)) from None
    if library.get_vocab_size() > _MOST:
        raise _not_a_tokenizer(HUGGING_FACE, f"it has more than {_MOST:,} tokens")
    library.encode_special_tokens = True
    return library


def _token_bytes(token: str, alphabet: dict[int, int] | None, byte_fallback: bool) -> bytes:
    if byte_fallback and (match := _BYTE.fullmatch(token)):
        return bytes([int(match[1], 16)])
    if alphabet is not None:
        try:
            return token.translate(alphabet).encode("latin-1")
        except UnicodeEncodeError:
            pass  # no text leads to it
    return token.encode()


def resolve(spec: S) -> S:
    """The spec with the sha256 of the tokenizer that it names."""
    if spec.tokenizer == "gpt2" and not spec.tokenizer_sha256:
        return spec
    found = read_definition(spec.tokenizer)
    require_same(spec, found.sha256)
    return replace(spec, tokenizer_sha256=found.sha256)


def require_same(spec: TokenizerKeys, sha256: str) -> None:
    if spec.tokenizer_sha256 not in ("", sha256):
        wanted, fix = spec.tokenizer_sha256, "restore the file, or remove tokenizer_sha256"
        why = f"tokenizer {spec.tokenizer} has sha256 {sha256}, expected {wanted}"
        kind = "tokenizer-mismatch"
        raise MismatchError(why, kind=kind, fix=fix, found=sha256, expected=wanted)


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
        return make(Definition(self.file, bytes(store.read(self.address))), self.eot)

    def side_files(self) -> list[SideFile]:
        return [SideFile(self.file, "tokenizer", self.address, 0, "")] if self.address else []


GPT2: Final = Choice()


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
    make(definition, spec.eot)  # refused before anything is read
    key = digest(["tokenizer", 1, [definition.file, definition.sha256]])
    return Choice(definition.file, job.store.put(key, definition.data, {}).address, spec.eot)


def tokenizer_of(folder: Place, lock: Lock) -> Tokenizer | None:
    """The tokenizer of a dataset folder; None where tokens are not of a text tokenizer."""
    identity = lock.data["tokenizer"] or {}
    if "file" not in identity:
        return gpt2() if identity.get("name") == "gpt2" else None
    entry = next(e for e in lock.side_files if e["path"] == identity["file"])
    data = bytes(map_checked(folder, entry, "tokenizer"))
    found = make(Definition(identity["file"], data), str(identity["eot"]))
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
        write_atomic(folder / _SAVED, hashing.seal(body))


def saved(folder: Path) -> Defined | None:
    """The tokenizer that a run kept, if it did."""
    path = folder / _SAVED
    if not path.is_file():
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        body = hashing.unseal(read_untrusted(path))
        identity = body["identity"]
        definition = Definition(identity["file"], body["definition"].encode())
        found = make(definition, identity["eot"])
        if body["format"] == _FORMAT and found.identity == identity:
            return found
    why, fix = f"{path} is damaged or edited", "copy it from another run on the same dataset"
    raise CorruptionError(why, kind="tokenizer-corrupt", fix=fix, path=str(path))
