"""A public extractor on the same files, run by bench/lean.py in an environment of its own.

itp-interface is what COPRA and ProofWala use; of all that can run without Lean it is the most used.
It gives names and statements up to the first `:=`, no proofs, so those are what is compared.

Usage: `python bench/peers_lean.py FOLDER OUT.json` (needs `pip install --no-deps itp-interface`).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(folder: Path, out: Path) -> None:
    from itp_interface.lean_server.lean4_utils import Lean4Utils

    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.lean"))]
    start = time.process_time()
    found = [Lean4Utils.find_theorems(Lean4Utils.remove_comments(text)) for text in texts]
    seconds = time.process_time() - start
    out.write_text(json.dumps({"cpu_seconds": seconds, "found": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
