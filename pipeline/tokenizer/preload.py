"""Importing this loads the GPT-2 encoder; the fork server does, and its workers inherit it.

- If the vocabulary cannot be loaded, this import stays silent; the first unit that needs it raises.

Usage: `multiprocessing.set_forkserver_preload(["tangobench.pipeline.tokenizer.preload"])`.
"""

from __future__ import annotations

import contextlib

from tangobench.errors import TangobenchError
from tangobench.pipeline.tokenizer.gpt2 import gpt2

with contextlib.suppress(TangobenchError):
    gpt2()
