"""Errors a user can act on, each with the exit code of its class.

- Every error names what was found, what was expected and the next step (`fix`); `kind` is a stable
  name for programs (`--json`), `details` carries the values behind the message.
- No message carries a secret: user names and query strings of addresses, passwords and tokens are
  taken out here, whoever composed the text; tracebacks pass the same filter.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterable
from typing import Any, ClassVar, Final

# Repetitions before the telling part of a pattern are bounded: the time is linear in the text.
_ADDRESS: Final = re.compile(r"\b([a-zA-Z][\w+.-]{0,40}://)([^\s\"'<>|]*)")
_QUOTED_PASSWORD: Final = re.compile(  # a password may have what else ends an address
    r"\b([a-zA-Z][\w+.-]{0,40}://)[^\s\"'<>|/@:]{0,200}:[^\s/]{0,200}@"
)
_WORDS: Final = (  # `tokens` and `tokenizer` are words of this project
    r"token(?![a-z])|password|passwd|passphrase|secret|signature|credential|api[_-]?key"
    r"|account[_-]?key|access[_-]?key|auth[_-]?string|connection[_-]?string|sessionid"
)
_HEADERS: Final = (  # `token: x` alone is how messages here name a token of a text
    r"password|passwd|passphrase|secret|secret[_-]access[_-]key|api[_-]?key|account[_-]?key|cookie"
    r"|(?:hub|hf|access|auth|session|security)[_-]token"
)
_SECRETS: Final = tuple(  # what group 1 matches stays
    re.compile(pattern)
    for pattern in (
        # Tokens of Hugging Face, GitHub, GitLab, Prefect, Slack, OpenAI, npm, PyPI, Google, AWS.
        r"\b(hf_|gh[a-z]_|pn[a-z]_|xox[a-z]-|sk-|glpat-|npm_|pypi-|dckr_pat_)[\w-]{8,}",
        r"\b(AIza|eyJ)[\w-]{16,}(?:\.[\w-]+){0,2}",
        r"\b(github_pat_)\w{8,}",
        r"\b(tangobench:)[\w-]{43}",  # what the local Prefect server asks for
        r"(?s)(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).+?(?=-----END|\Z)",
        r"\b(AKIA|ASIA)[A-Z0-9]{12,}",
        r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}",
        r"(?i)\b(authorization[\"']?\s?[:=]\s?[\"']?)[^\"'\n]{8,}",
        # token="…", token=…, "AccountKey=…;", password: …, {'password': '…'}, --hub-token …
        rf"(?i)((?:{_WORDS})[\w-]{{0,40}} ?= ?([\"']))(?:\\.|(?!\2).)+",
        rf"(?i)((?:{_WORDS})[\w-]{{0,40}} ?= ?[\"']?)[^&\s\"',;}}]+",
        rf"(?i)((?:{_HEADERS}): ?)[^\s\"']+",
        rf"(?i)((?:{_WORDS})([\"'])\s*:\s*\2)(?:\\.|(?!\2).)+",
        rf"(?i)((?<!-)--(?=\w)[\w-]{{0,40}}(?:{_WORDS})[\w-]{{0,40}}\s+)(?:'[^']+|\"[^\"]+|[^\s\"']+)",
        r"(?i)\b((?:sig|sv|se|skoid)=)[^&\s\"']{6,}",  # an Azure signature alone
    )
)
# Characters that a terminal obeys or that reorder a line: C0 and C1 controls, line and paragraph
# separators, bidirectional overrides, lone surrogates.
_ODD: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def _bare(match: re.Match[str]) -> str:
    """An address without user, password and query."""
    scheme, rest = match.groups()
    rest, question, _ = rest.partition("?")
    authority, slash, path = rest.partition("/")
    port = authority.rpartition("@")[2].rpartition(":")[2]
    if "@" in path and ":" in authority and not port.isdigit():
        authority, slash, path = rest, "", ""  # the password has a slash
    host = authority.rpartition("@")[2]
    shown = f"…@{host}" if "@" in authority else host
    return f"{scheme}{shown}{slash}{path}{'?…' if question else ''}"


def without_secrets(text: str) -> str:
    """The text without user names, passwords, tokens and query strings of addresses."""
    text = _ADDRESS.sub(_bare, _QUOTED_PASSWORD.sub(r"\1…@", text))
    for pattern in _SECRETS:
        text = pattern.sub(r"\1…", text)
    return text


def _filtered(value: Any) -> Any:
    """The strings of a value without secrets, whatever it is made of."""
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {_filtered(key): _filtered(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_filtered(inner) for inner in value]
    return value


def printable(text: str, keep: str = "") -> str:
    """The text with every character escaped that a terminal would obey, but those in `keep`.

    For everything that comes from input: ids, paths, names, messages about them.
    """
    return _ODD.sub(lambda odd: odd[0] if odd[0] in keep else ascii(odd[0])[1:-1], text)


class TangobenchError(Exception):
    """Base of all expected errors; never raised itself."""

    exit_code: ClassVar[int] = 1
    meaning: ClassVar[str] = "unexpected: a bug, please report it"

    def __init__(self, message: str, *, kind: str, fix: str = "", **details: Any) -> None:
        self.message = without_secrets(message)
        super().__init__(self.message)
        self.kind = kind
        self.fix = without_secrets(fix)
        self.details = {key: _filtered(value) for key, value in details.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors travel from worker processes, and keyword-only arguments do not pickle by default.
        given = {"kind": self.kind, "fix": self.fix, **self.details}
        return functools.partial(type(self), **given), (self.message,)

    def as_json(self) -> dict[str, Any]:
        return {
            "error": self.kind,
            "message": self.message,
            "fix": self.fix,
            "exit_code": self.exit_code,
            "details": self.details,
        }


class UsageError(TangobenchError):
    """A wrong command line or a bad spec."""

    exit_code = 2
    meaning = "usage or bad spec"

    def __init__(self, message: str, *, kind: str = "usage", fix: str = "", **details: Any) -> None:
        super().__init__(message, kind=kind, fix=fix, **details)


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
    meaning = "out of a resource (disk, memory, network)"


EXIT_CODES: Final = {
    0: "fine",
    1: TangobenchError.meaning,
    **{cls.exit_code: cls.meaning for cls in TangobenchError.__subclasses__()},
    130: "interrupted",
}


class Clean:
    """A stream that escapes control characters of input; `unfiltered` is for the program's own."""

    def __init__(self, raw: Any) -> None:
        if isinstance(raw, io.TextIOWrapper):
            raw.reconfigure(errors="backslashreplace")  # a terminal that cannot show a letter
        self.unfiltered = raw

    def write(self, text: str) -> int:
        self.unfiltered.write(printable(text, keep="\n\t"))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)
