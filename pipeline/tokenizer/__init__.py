"""Text to token ids; here are the keys of a manifest that choose a tokenizer.

At their defaults they are left out of the recorded spec: GPT-2's roots do not know them. Where a
tokenizer is read from is recorded nowhere; its sha256 is, and a manifest may pin that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tangobench.pipeline.core.spec import LATER, UNHASHED


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerKeys:
    """Which tokenizer, and which of its special tokens ends a text."""

    tokenizer: str = field(default="gpt2", metadata=UNHASHED)
    """gpt2, the name of a tiktoken encoding, or the path of a Hugging Face tokenizer.json."""
    eot: str = field(default="<|endoftext|>", metadata=LATER)
    tokenizer_sha256: str = field(default="", metadata=LATER)
