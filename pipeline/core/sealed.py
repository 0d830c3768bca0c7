"""JSON that carries a checksum of itself: locks, checkpoints, results, unit records, log lines.

An object has one spelling per form, so a changed byte that changes no value is refused too.
"""

from __future__ import annotations

import functools
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tangobench.pipeline.core.hashing import canonical_json, digest


class Broken(ValueError):
    """Bytes that are not a sealed object."""


@dataclass(frozen=True, slots=True)
class Form:
    """How an object is spelt, and how many hex digits its checksum has."""

    spell: Callable[[dict[str, Any]], bytes]
    digits: int = 64


def pretty_json(value: Any, indent: str = "") -> str:
    """Readable, diffable JSON: sorted keys, one per line, lists of scalars on one line."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        items = [
            f"{deeper}{json.dumps(key, ensure_ascii=False)}: {pretty_json(value[key], deeper)}"
            for key in sorted(value)
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        items = [deeper + pretty_json(item, deeper) for item in value]
        return "[\n" + ",\n".join(items) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def case_json(report: dict[str, Any]) -> str:
    """A report of measurements, one line per case: items of each top-level value on own lines."""

    line = functools.partial(json.dumps, ensure_ascii=False)
    parts = []
    for key, value in report.items():
        text = line(value)
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(map(line, value)) + "\n ]"
        elif isinstance(value, dict) and value:
            cases = (f"{line(k)}: {line(v)}" for k, v in value.items())
            text = "{\n  " + ",\n  ".join(cases) + "\n }"
        parts.append(f"{line(key)}: {text}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


DOCUMENT: Final = Form(lambda value: f"{pretty_json(value)}\n".encode())
LINE: Final = Form(lambda value: json.dumps(value, allow_nan=False).encode() + b"\n", digits=16)
RECORD: Final = Form(canonical_json)
CASES: Final = Form(lambda value: case_json(value).encode())


def seal(body: dict[str, Any], form: Form = DOCUMENT) -> bytes:
    return form.spell({**body, "checksum": checksum(body, form)})


def checksum(body: dict[str, Any], form: Form = DOCUMENT) -> str:
    # Lines may hold generated text, whose bytes need not be UTF-8: lone surrogates.
    return digest(body, errors="surrogatepass" if form is LINE else "strict")[: form.digits]


def unseal(raw: bytes, form: Form = DOCUMENT) -> dict[str, Any]:
    """The object without its checksum; `Broken` if a byte of it was changed."""
    try:
        body = json.loads(raw)
        if not isinstance(body, dict) or not isinstance(body.get("checksum"), str):
            raise Broken("it is no JSON object with a checksum")
        stored = body.pop("checksum")
        found = checksum(body, form)
        if not hmac.compare_digest(stored.encode(), found.encode()):
            raise Broken(f"its checksum is {stored[:16]}…, its content has {found[:16]}…")
        if seal(body, form) != raw:
            raise Broken("its values are right but not its bytes")
    except RecursionError:
        raise Broken("it is nested too deeply") from None
    except Broken:
        raise
    except (ValueError, TypeError):
        raise Broken("it is not JSON, or holds values that JSON does not have") from None
    return body
