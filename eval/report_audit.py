"""What a build's audit of leakage between the splits found, in one sentence, with its numbers.

- The sentence is made from the lock's notes; a lock without them has no audit, and the page is
  silent about it.
- Whether a finding is good is decided by zero alone: a shared key or question never is.

Usage: `audit(read_lock(Path("out/fineweb-sample")))`.
"""

from __future__ import annotations

from typing import Any, Final

from tangobench.pipeline.cards import flatten
from tangobench.pipeline.manifest import Lock

_SHOWN: Final = 40


def audit(lock: Lock) -> dict[str, Any] | None:
    """Headline, whether it is clean, and the numbers behind it."""
    leakage = lock.notes.get("leakage")
    finding = _FINDINGS.get(lock.name, lambda _lock: None)(lock)
    if finding is None and not leakage:
        return None
    clean, text = finding or (True, "")
    facts = [(label, value) for label, value in flatten(leakage or {}) if value not in ("", None)]
    return {"clean": clean, "text": text, "facts": facts[:_SHOWN]}


def _fineweb(lock: Lock) -> tuple[bool, str] | None:
    found = lock.notes.get("leakage", {})
    if "shared_keys" not in found:
        return None
    shared = found["shared_keys"]
    return shared == 0, (
        f"{shared:,} of {found['validation_keys']:,} address and content keys of validation occur "
        f"among the {found['train_keys']:,} of training."
    )


def _lean(lock: Lock) -> tuple[bool, str] | None:
    found = lock.notes.get("leakage", {})
    if "proofs_also_in_training" not in found:
        return None
    repeated, total = found["proofs_also_in_training"], found["validation_proofs"]
    long, long_total = (
        found["proofs_over_30_tokens_also_in_training"],
        found["validation_proofs_over_30_tokens"],
    )
    return long == 0, (
        f"No file is in both splits. {repeated:,} of {total:,} validation proofs also occur word "
        f"for word in training; of the {long_total:,} longer than 30 tokens, {long:,} do."
    )


def _dm_math(lock: Lock) -> tuple[bool, str] | None:
    if "combinations" not in lock.notes:
        return None
    return True, (
        "No validation question occurs in training: the last hex digit of a question's sha256 "
        "decides its split, and the build compares both splits and publishes nothing shared."
    )


_FINDINGS: Final = {"fineweb": _fineweb, "lean": _lean, "dm_math": _dm_math}
