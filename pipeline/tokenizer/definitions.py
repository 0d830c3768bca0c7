"""Definitions: all that makes a tokenizer, as one file that a dataset folder carries.

- A Hugging Face `tokenizer.json` stays one, in canonical JSON: its sha256 does not depend on
  spaces or the order of keys. A tiktoken encoding becomes `tiktoken.json`: pattern, ranks and
  special tokens.
- GPT-2 needs none: its two files are known by their published sha256.

Usage: `definition = read_definition("path/to/tokenizer.json")`.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tangobench.errors import InputError, TangobenchError, UsageError
from tangobench.pipeline.core.files import read_untrusted
from tangobench.pipeline.core.hashing import canonical_json, sha256_bytes

HUGGING_FACE: Final = "tokenizer.json"
TIKTOKEN: Final = "tiktoken.json"
_LARGEST: Final = 1 << 26  # bytes; Gemma's 256,000 tokens take 33 MB


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
    if name.endswith(".json") or "/" in name or path.is_file():
        return Definition(HUGGING_FACE, canonical_json(parsed(_bytes_of(path), name)))
    return Definition(TIKTOKEN, canonical_json(_tiktoken(name)))


def _bytes_of(path: Path) -> bytes:
    try:
        return read_untrusted(path, limit=_LARGEST, links=True)
    except OSError as error:
        raise InputError(
            f"cannot read tokenizer {path}: {error.strerror}",
            kind="tokenizer-unreadable",
            fix="name a tokenizer.json that you may read; `tangobench tokenizer train` makes one",
            path=str(path),
        ) from None


def parsed(data: bytes, name: str) -> dict[str, Any]:
    """A definition's JSON object; a key that occurs twice is refused."""
    try:
        found = json.loads(data, object_pairs_hook=_once)
        canonical_json(found)  # no NaN, no lone surrogate
    except (ValueError, RecursionError) as error:
        raise not_a_tokenizer(name, str(error)) from None
    if not isinstance(found, dict):
        raise not_a_tokenizer(name, "it is no JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
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


def not_a_tokenizer(name: str, why: str) -> TangobenchError:
    """The error for a file that defines no tokenizer."""
    return InputError(
        f"{name} is not a usable tokenizer: {why[:200]}",
        kind="not-a-tokenizer",
        fix="give a Hugging Face tokenizer.json; `tangobench tokenizer train` makes one",
    )
