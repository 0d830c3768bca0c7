"""Errors a user can act on, each with the exit code of its class.

- Every error names what was found, what was expected and the next step (`fix`).
- `kind` is a stable name for programs (`--json`); `details` carries the values behind the message.
- Anything that is not a `TangobenchError` is a bug and exits with 1.
- No message carries a secret: passwords in addresses and tokens are taken out here, whoever
  composed the text.

Usage: `raise InputError("row 7 of a.parquet has no text", kind="text-null", fix="drop the row")`.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final

_SECRETS: Final = (
    (re.compile(r"://[^/\s\"@]+@"), "://…@"),  # https://user:password@host
    (re.compile(r"\bhf_[A-Za-z0-9]{16,}"), "hf_…"),  # tokens of the Hugging Face hub
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 …"),
    (
        # ?token=…&X-Amz-Signature=…, and --token … of a command line
        re.compile(
            r"(?i)([\w-]*(?:token|password|passwd|secret|signature|credential|api[_-]?key)"
            r"[\w-]*=)[^&\s\"',;]+"
        ),
        r"\1…",
    ),
)


def without_secrets(text: str) -> str:
    """The text without user names, passwords and tokens."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class TangobenchError(Exception):
    """Base of all expected errors; never raised itself."""

    exit_code: ClassVar[int] = 1
    meaning: ClassVar[str] = "unexpected: a bug, please report it"

    def __init__(self, message: str, *, kind: str, fix: str = "", **details: Any) -> None:
        self.message = without_secrets(message)
        super().__init__(self.message)
        self.kind = kind
        self.fix = without_secrets(fix)
        self.details = {
            key: without_secrets(value) if isinstance(value, str) else value
            for key, value in details.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel from worker processes, and keyword-only arguments do not pickle by default.
        return (_rebuild, (type(self), self.message, self.kind, self.fix, self.details))

    def as_json(self) -> dict[str, Any]:
        """The error as one JSON object, for `--json`."""
        return {
            "error": self.kind,
            "message": self.message,
            "fix": self.fix,
            "exit_code": self.exit_code,
            "details": self.details,
        }


def _rebuild(
    cls: type[TangobenchError], message: str, kind: str, fix: str, details: dict[str, Any]
) -> TangobenchError:
    return cls(message, kind=kind, fix=fix, **details)


class UsageError(TangobenchError):
    """A wrong command line or a bad spec."""

    exit_code = 2
    meaning = "usage or bad spec"


class MismatchError(TangobenchError):
    """Another root, spec or lock than expected."""

    exit_code = 3
    meaning = "mismatch: another root, spec or lock than expected"


class CorruptionError(TangobenchError):
    """A byte, a shard or a lock is damaged, missing, extra or swapped."""

    exit_code = 4
    meaning = "corruption: a shard or a lock is damaged, missing, extra or swapped"


class InputError(TangobenchError):
    """The input data cannot be used as it is."""

    exit_code = 5
    meaning = "bad input"


class BusyError(TangobenchError):
    """Somebody else is building the same target."""

    exit_code = 6
    meaning = "busy: another build holds the target"


class ResourceError(TangobenchError):
    """Out of disk, memory or another resource."""

    exit_code = 7
    meaning = "out of a resource (disk, memory)"


EXIT_CODES: dict[int, str] = {
    0: "fine",
    1: TangobenchError.meaning,
    **{
        cls.exit_code: cls.meaning
        for cls in (
            UsageError,
            MismatchError,
            CorruptionError,
            InputError,
            BusyError,
            ResourceError,
        )
    },
    130: "interrupted",
}
