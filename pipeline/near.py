"""Near-duplicates between the splits."""
from __future__ import annotations
from typing import Any
def audit(job: Any, decided: Any, reading: Any, *, mode: str) -> tuple[list[list[int]], dict[str, Any]]:
    """Placeholder."""
    return [[] for _ in decided], {"mode": mode}
