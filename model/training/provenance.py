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
import subprocess
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tangobench import __version__
from tangobench.pipeline.core.hashing import digest, sha256_bytes

# What trains and scores; the rest of `eval` only shows results.
_DECIDING: Final = ("model", "eval/scoring")


def deciding_files() -> dict[str, bytes]:
    """Sources of the packages that decide weights and scores, sub-packages included."""
    root = Path(str(importlib.resources.files("tangobench.model"))).parent
    folders = {name: root / name for name in _DECIDING}
    return {
        f"{name}/{file.relative_to(folder).as_posix()}": file.read_bytes()
        for name, folder in folders.items()
        for file in sorted(folder.rglob("*.py"))
    }


@functools.cache
def code_sha256() -> str:
    """One hash over every module that trains and scores."""
    return digest({name: sha256_bytes(data) for name, data in deciding_files().items()})


@functools.cache
def commit() -> str | None:
    """The git commit of the running sources, `+` behind it if they were changed; None elsewhere."""
    root = Path(str(importlib.resources.files("tangobench.model"))).parent
    if not (root / ".git").exists():
        return None
    asked = (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    try:
        head, changed = (
            subprocess.run(
                ["git", "-C", str(root), *words],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            ).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head + ("+" if changed else "")


def provenance(device: str) -> dict[str, Any]:
    """Versions and the machine, for checkpoints and results."""
    return {
        "tangobench": __version__,
        "code_sha256": code_sha256(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "device": device if device == "cpu" else torch.cuda.get_device_name(device),
        "threads": torch.get_num_threads(),
    }
