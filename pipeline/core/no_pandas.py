"""Importing this keeps pyarrow from importing pandas, for programs that hold nothing of pandas.

- At its first conversion pyarrow imports pandas to know its types: 0.25 s of CPU in every process.
- It asks once. Later `to_pandas()` works as always; series and frames given to `pa.array` or
  `pa.table` would not be recognised, so this is for our own programs, never for a library.

Usage: `import tangobench.pipeline.core.no_pandas`.
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
    pa.array([])
finally:
    sys.meta_path.remove(_Absent)
