"""Importing this loads the GPT-2 encoder: the fork server does, and its workers inherit it."""

from __future__ import annotations

import contextlib

from tangobench.errors import TangobenchError
from tangobench.pipeline.tokenizer.base import gpt2

with contextlib.suppress(TangobenchError):
    # Both engines. If they cannot be loaded, the first unit that needs them raises the error.
    gpt2().check("", gpt2().encode(""), "of the preload")
