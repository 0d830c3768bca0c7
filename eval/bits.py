"""Bits per byte: the same NLL, in a unit that no tokenizer can change.

- Bits are the summed NLL of the scored tokens over ln 2; bytes are the UTF-8 bytes of the text
  that these tokens stand for. A token that is not scored adds neither.
- EOT stands for no text. Where it is a target (Lean), the bits for ending are paid, for no bytes.

Usage: `bits_per_byte(scored, stream, gpt2().token_bytes)["bits_per_byte"]`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tangobench.eval.nll import Scored
from tangobench.model.loader import Stream

NDArray = np.ndarray[Any, Any]


def bits_per_byte(scored: Scored, stream: Stream, token_bytes: NDArray) -> dict[str, Any]:
    """Bits per byte and the bytes that they were divided by; null where there is no byte."""
    count = scored_bytes(stream, token_bytes)
    bits = scored.tally().sum / math.log(2)
    return {"bits_per_byte": bits / count if count else None, "bytes": count}


def scored_bytes(stream: Stream, token_bytes: NDArray) -> int:
    """Bytes of all targets of a split; `token_bytes` has one length per token id."""
    total = 0
    for row in range(len(stream)):
        tokens, is_target = stream.row(row)
        total += int(token_bytes[tokens[is_target]].sum(dtype=np.int64))
    return total
