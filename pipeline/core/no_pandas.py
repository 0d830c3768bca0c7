"""Importing this stops pyarrow from importing pandas at its first conversion (0.25 s per process).

Series and frames given to `pa.array` are then not recognised, so it is for our own programs only.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa


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
