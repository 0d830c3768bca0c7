"""Six language models of the TANGO paper: exact, compact, fast on a CPU.

- CUDA paths are there and tested on a CPU; none of them has run on a GPU yet (docs/gpu.md).
- The state dict's names are stable and documented in docs/models.md.
"""

from tangobench.model.config import build

__all__ = ["build"]
