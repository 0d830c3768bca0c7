"""Data preparation: a spec goes in, hashed Arrow shards and a lock come out.

- `build` and `open_dataset` are the two public doors.

Usage: `from tangobench.pipeline import build, open_dataset`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tangobench.pipeline.api import build as build
    from tangobench.pipeline.reading import open_dataset as open_dataset

_DOORS: Final = {"build": "api", "open_dataset": "reading"}


def __getattr__(name: str) -> Any:
    """A door, loaded when it is first used: importing this package loads nothing."""
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_DOORS[name]}"), name)
