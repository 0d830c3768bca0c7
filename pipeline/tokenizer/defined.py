"""Tokenizers that a definition makes: a Hugging Face `tokenizer.json`, or a tiktoken encoding.

- A definition is one file that a dataset folder carries, in canonical JSON. GPT-2 needs none.
- It is refused unless every text comes back: a normaliser, a prefix space, a missing byte or
  truncation would lose some. A probe of every byte that UTF-8 has is encoded at once, and later
  each text's bytes are counted again in its ids.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tangobench.errors import InputError, MismatchError, UsageError
from tangobench.pipeline.core.files import read_untrusted
from tangobench.pipeline.core.hashing import canonical_json, sha256_bytes
from tangobench.pipeline.tokenizer.base import Ids, Tokenizer, is_panic, utf8_of
from tangobench.pipeline.tokenizer.gpt2 import byte_alphabet

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
        """Of the canonical bytes."""
        return sha256_bytes(self.data)


def read_definition(name: str) -> Definition:
    """The definition of a tiktoken encoding, or of the tokenizer.json at a path."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - Path's raises for an unknown user
    if not (name.endswith(".json") or "/" in name or path.is_file()):
        return Definition(TIKTOKEN, canonical_json(_tiktoken(name)))
    try:
        data = read_untrusted(path, limit=_LARGEST, links=True)
    except OSError as error:
        raise InputError(
            f"cannot read tokenizer {path}: {error.strerror}",
            kind="tokenizer-unreadable",
            fix="name a tokenizer.json that you may read; `tangobench tokenizer train` makes one",
            path=str(path),
        ) from None
    return Definition(HUGGING_FACE, canonical_json(_parsed(data, name)))


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    """A definition's JSON object; a key that occurs twice is refused."""
    try:
        found = json.loads(data, object_pairs_hook=_once)
        canonical_json(found)  # no NaN, no lone surrogate
    except (ValueError, RecursionError) as error:
        raise _not_a_tokenizer(name, str(error)) from None
    if not isinstance(found, dict):
        raise _not_a_tokenizer(name, "it is no JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} occurs twice")
    return found


def _tiktoken(name: str) -> dict[str, Any]:
    import tiktoken

    if name not in tiktoken.list_encoding_names():
        raise UsageError(
            f"no tiktoken encoding is called {name!r}",
            kind="tokenizer-unknown",
            fix=f"use {', '.join(sorted(tiktoken.list_encoding_names()))}, or the path of a "
            "tokenizer.json",
        )
    try:
        found = tiktoken.get_encoding(name)
    except Exception as error:
        raise InputError(
            f"tiktoken's encoding {name} cannot be loaded: {error}",
            kind="vocabulary-missing",
            fix="fill TIKTOKEN_CACHE_DIR on a machine with a network and copy it here",
        ) from error
    ranks = found._mergeable_ranks
    return {
        "name": name,
        "pattern": found._pat_str,
        "ranks": {base64.b64encode(token).decode(): rank for token, rank in ranks.items()},
        "special": found._special_tokens,
    }


def _not_a_tokenizer(name: str, why: str) -> InputError:
    return InputError(
        f"{name} is not a usable tokenizer: {why[:200]}",
        kind="not-a-tokenizer",
        fix="give a Hugging Face tokenizer.json; `tangobench tokenizer train` makes one",
    )


class Defined(Tokenizer):
    """A tokenizer of a definition; subclasses fill in bytes and special tokens, and encode."""

    def __init__(self, definition: Definition, eot: str) -> None:
        self.definition = definition
        self.document = _parsed(definition.data, definition.file)
        self.title = "huggingface"
        self.bytes_of, special = self._tables()
        self._texts = {ident: name.encode() for name, ident in special.items()}
        lengths = np.array([len(token) for token in self.bytes_of], np.uint32)
        lengths[list(special.values())] = 0
        self.token_bytes = lengths
        if eot not in special:
            known = ", ".join(list(special)[:8]) or "none"
            raise InputError(
                f"the tokenizer has no special token {eot!r} to end a text with (it has: {known})",
                kind="eot-missing",
                fix='set eot to one of them, such as eot = "<|endoftext|>", or add it to the file',
            )
        self.eot = special[eot]
        self.identity = {
            "name": self.title,
            "file": definition.file,
            "sha256": definition.sha256,
            "entries": self.size,
            "eot": eot,
            "eot_id": self.eot,
        }
        for text in (_PROBE, "".join(special)):
            self.check(text, self.encode_all([text])[0], "of the probe")

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
            raise InputError(
                f"the tokenizer failed on one of {len(texts)} texts: {error}"[:300],
                kind="text-not-encodable",
                fix="drop or shorten texts with very long runs of one character",
            ) from None
        for text, size, ids in zip(texts, sizes, found, strict=True):
            if int(self.token_bytes.take(ids).sum(dtype=np.int64)) != size:
                raise self._loses(text, ids)
        return found

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The exact bytes of some ids; special tokens are written by name."""
        plain = np.asarray(ids).tolist()
        return b"".join(self._texts.get(ident) or self.bytes_of[ident] for ident in plain)

    def check(self, text: str, found: Ids, name: str) -> None:
        """Raise unless these ids are the library's and give back the text."""
        if not np.array_equal(found, self.encode_all([text])[0]):
            raise MismatchError(
                f"text {name}: a second encoding gives other ids",
                kind="token-mismatch",
                fix="report the text and the tokenizer",
            )
        if self.decode_bytes(found) != text.encode():
            raise self._loses(text, found)

    def _loses(self, text: str, ids: Ids) -> InputError:
        there, here = self.decode_bytes(ids), text.encode()
        at = next((i for i, (a, b) in enumerate(zip(there, here, strict=False)) if a != b), 0)
        return InputError(
            f"the tokenizer does not give back a text: {here[max(0, at - 8) : at + 24]!r} becomes "
            f"{there[max(0, at - 8) : at + 24]!r}",
            kind="tokenizer-loses-text",
            fix='use a byte-level tokenizer with "normalizer": null and "add_prefix_space": false; '
            "`tangobench tokenizer train` makes one",
        )


class HuggingFace(Defined):
    """A `tokenizer.json`, encoded by the `tokenizers` library."""

    def _tables(self) -> tuple[list[bytes], dict[str, int]]:
        for key in ("truncation", "padding"):
            if self.document.get(key) is not None:
                raise _not_a_tokenizer(HUGGING_FACE, f"it has {key}; set it to null")
        model = self.document.get("model")
        if not isinstance(model, dict) or model.get("dropout"):
            raise _not_a_tokenizer(HUGGING_FACE, "it has no model, or a model with dropout")
        self._library = _loaded(self.definition.data)
        added = self._library.get_added_tokens_decoder()
        for entry in self.document.get("added_tokens") or []:
            if self._library.token_to_id(entry["content"]) != entry["id"]:
                raise _not_a_tokenizer(
                    HUGGING_FACE, f"{entry['content']!r} has not the id {entry['id']} in its model"
                )
        vocabulary = self._library.get_vocab(True)
        ids = sorted(vocabulary.values())
        if not ids or ids != list(range(len(ids))):
            wrong = next((n for n, i in enumerate(ids) if n != i), 0)
            why = f"ids have a gap or are used twice, first at {wrong}" if ids else "it is empty"
            raise _not_a_tokenizer(HUGGING_FACE, why)
        parts = json.dumps([self.document.get("pre_tokenizer"), self.document.get("decoder")])
        alphabet = byte_alphabet() if '"ByteLevel"' in parts else None
        tables = [b""] * len(ids)
        for token, ident in vocabulary.items():
            tables[ident] = _token_bytes(token, alphabet, bool(model.get("byte_fallback")))
        for ident, token in added.items():
            tables[ident] = token.content.encode()
        plain = [token for token in added.values() if not token.special]
        cut = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        found = self.document.get("pre_tokenizer") or {}
        self.gpt2_boundaries = (
            {k: v for k, v in found.items() if k != "trim_offsets"} == cut
            and not plain
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


def make(definition: Definition, eot: str) -> Defined:
    """The tokenizer of a definition."""
    kind = HuggingFace if definition.file == HUGGING_FACE else Tiktoken
    return kind(definition, eot)


def _loaded(data: bytes) -> Any:
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
