"""Text to token ids; here are the keys of a manifest that choose a tokenizer.

At their defaults they are left out of the recorded spec: GPT-2's roots do not know them. Where a
tokenizer is read from is recorded nowhere; its sha256 is, and a manifest may pin that.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TypeVar

from tangobench.errors import MismatchError
from tangobench.pipeline.core.spec import LATER, UNHASHED


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerKeys:
    """Which tokenizer, and which of its special tokens ends a text."""

    tokenizer: str = field(default="gpt2", metadata=UNHASHED)
    """gpt2, the name of a tiktoken encoding, or the path of a Hugging Face tokenizer.json."""
    eot: str = field(default="<|endoftext|>", metadata=LATER)
    tokenizer_sha256: str = field(default="", metadata=LATER)


S = TypeVar("S", bound=TokenizerKeys)


def resolve(spec: S) -> S:
    """The spec with the sha256 of the tokenizer that it names."""
    if spec.tokenizer == "gpt2" and not spec.tokenizer_sha256:
        return spec
    from tangobench.pipeline.tokenizer.use import read_definition

    found = read_definition(spec.tokenizer)
    require_same(spec, found.sha256)
    return dataclasses.replace(spec, tokenizer_sha256=found.sha256)


def require_same(spec: TokenizerKeys, sha256: str) -> None:
    if spec.tokenizer_sha256 not in ("", sha256):
        wanted, fix = spec.tokenizer_sha256, "restore the file, or remove tokenizer_sha256"
        why = f"tokenizer {spec.tokenizer} has sha256 {sha256}, expected {wanted}"
        kind = "tokenizer-mismatch"
        raise MismatchError(why, kind=kind, fix=fix, found=sha256, expected=wanted)
