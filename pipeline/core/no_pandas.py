"""Importing this fits pyarrow and malloc to our own programs; others keep their processes as is.

- pyarrow does not import pandas at its first conversion (0.25 s per process); series and frames
  given to `pa.array` are then not recognised.
- Freed memory is kept for the next batch. Arrow's own allocator returns it after 10 ms and asks for
  huge pages: the kernel cleared 1 GB, a tenth of the CPU time, in a build that uses 0.2 GB.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import Any, Final

_MALLOPT: Final = {-3: 1 << 25, -1: 1 << 27}  # sizes that glibc maps, and from which it trims

with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
    for option, value in _MALLOPT.items():
        ctypes.CDLL(None).mallopt(option, value)
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
import pyarrow as pa  # noqa: E402 - reads the variable


class _Absent:
    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ImportError(name)


sys.meta_path.insert(0, _Absent)
try:
    pa.array([])  # pyarrow looks for pandas once
finally:
    sys.meta_path.remove(_Absent)
