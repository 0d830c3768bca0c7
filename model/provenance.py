"""Which code and which machine gave a number.

- `code_sha256` covers the sources that decide weights and scores, so that two results can be told
  to come from the same code also where there is no git.
- None of this decides whether a checkpoint may be continued; it is there to be read.

Usage: `provenance("cpu")["code_sha256"]`.
"""

from __future__ import annotations

import functools
import importlib.resources
import platform
from typing import Any, Final

import numpy as np
import torch

from tangobench import __version__
from tangobench.pipeline.hashing import digest, sha256_bytes

_SHOWING: Final = ("charts", "report", "render", "tables", "published")


@functools.cache
def code_sha256() -> str:
    """One hash over the modules that train and score; what only shows results is left out."""
    return digest(
        {
            f"{package}/{file.name}": sha256_bytes(file.read_bytes())
            for package in ("model", "eval")
            for file in importlib.resources.files(f"tangobench.{package}").iterdir()
            if file.name.endswith(".py") and not file.name.startswith(_SHOWING)
        }
    )


def provenance(device: str) -> dict[str, Any]:
    """Versions and the machine, for checkpoints and results."""
    return {
        "tangobench": __version__,
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "threads": torch.get_num_threads(),
    }
