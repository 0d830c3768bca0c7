"""Specs: what a dataset should be, read from `manifests/NAME.toml` into a frozen dataclass.

The file's top-level keys hold for every profile; `[profiles.PROFILE]` overrides them. The effective
spec is what a lock records and a root covers. A bad key or value is one error that names it.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import importlib.resources
import json
import math
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tangobench.errors import UsageError
from tangobench.pipeline.core.files import read_untrusted

T = TypeVar("T")

PROFILES: Final = ("sample", "mini", "paper")
_LARGEST_FILE: Final = 1 << 20
_MOST_DOTS: Final = 1000  # in a line: tomllib's time grows with the square of a key's parts


def bad_value(key: str, value: object, expected: str, where: str = "") -> UsageError:
    """The error for a value that cannot be meant, or, in the file `where`, has another type."""
    key_is = f"{where}: key {key!r} is" if where else f"spec key {key!r} is"
    found = f"{shown(value)} ({type(value).__name__})" if where else shown(value)
    kind, fix = "spec-type" if where else "spec-value", f"set {key} to {expected}"
    return UsageError(f"{key_is} {found}, expected {expected}", kind=kind, fix=fix, key=key)


def manifest_file(name: str) -> Path:
    return Path(str(importlib.resources.files("tangobench.manifests"))) / name


def load_spec(
    cls: type[T], name: str, profile: str, overrides: Mapping[str, Any] | None = None
) -> T:
    return read_spec(cls, manifest_file(f"{name}.toml"), profile, overrides)


def read_spec(
    cls: type[T], path: Path, profile: str, overrides: Mapping[str, Any] | None = None
) -> T:
    """The effective spec of one profile of a TOML file; without profiles it is any of them."""
    document = read_document(path)
    document.pop("kind", None)
    profiles = document.pop("profiles", {profile: {}})
    if not isinstance(profiles, dict) or profile not in profiles:
        known = ", ".join(profiles) if isinstance(profiles, dict) else ""
        why = f"{path} has no profile {profile!r} (it has: {known or 'none'})"
        fix = f"choose one of: {known}" if known else f"add [profiles.{profile}] to {path}"
        raise UsageError(why, kind="spec-profile", fix=fix)
    where = f"{path.name} [{profile}]"
    if not isinstance(profiles[profile], dict):
        raise bad_value(f"profiles.{profile}", profiles[profile], "a table", where)
    merged = _merge(_merge(document, profiles[profile]), dict(overrides or {}))
    return parse(cls, merged, where=where)


def read_document(path: Path, what: str = "spec") -> dict[str, Any]:
    try:
        return parsed_toml(read_untrusted(path, limit=_LARGEST_FILE, links=True))
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        why = f"no {what} at {path}" if missing else f"cannot read {what} {path}: {error.strerror}"
        fix = "name a TOML file that exists and that you may read"
        raise UsageError(why, kind="spec-missing", fix=fix) from None
    except (ValueError, RecursionError) as error:
        why = f"{path} is not valid TOML: {error}"
        raise UsageError(why, kind="spec-syntax", fix="mend that line") from None


def parsed_toml(data: bytes) -> dict[str, Any]:
    """The tables of a TOML file; a `ValueError` or `RecursionError` for anything else."""
    for number, line in enumerate(data.splitlines(), 1):
        if line.count(b".") > _MOST_DOTS:
            raise ValueError(f"line {number} has more than {_MOST_DOTS:,} dots")
    return tomllib.loads(data.decode())


def _merge(base: Any, over: Any) -> Any:
    """Tables are merged key by key; anything else replaces what it is over."""
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return base | {key: _merge(base.get(key), value) for key, value in over.items()}


def parse(cls: type[T], values: Mapping[str, Any], *, where: str, prefix: str = "") -> T:
    hints = get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key[:80], fields, n=1, cutoff=0.5)
            fix = f"did you mean {prefix}{near[0]}?" if near else f"known keys: {', '.join(fields)}"
            why = f"{where}: unknown key {shown(prefix + key)}"
            raise UsageError(why, kind="spec-key", fix=fix, key=prefix + key)
    parsed: dict[str, Any] = {}
    for name, field in fields.items():
        if name in values:
            parsed[name] = _convert(hints[name], values[name], where, prefix + name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            why, fix = f"{where}: key {prefix + name!r} is missing", f"add {prefix}{name} = …"
            raise UsageError(why, kind="spec-key", fix=fix, key=prefix + name)
    return cls(**parsed)


def _convert(hint: Any, value: Any, where: str, key: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        inner = [arg for arg in get_args(hint) if arg is not type(None)]
        return None if value is None else _convert(inner[0], value, where, key)
    if origin is Literal:
        if value in get_args(hint) and type(value) in {type(arg) for arg in get_args(hint)}:
            return value
        choices = ", ".join(repr(choice) for choice in get_args(hint))
        raise bad_value(key, value, f"one of {choices}", where)
    if origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_convert(get_args(hint)[0], item, where, f"{key}[]") for item in value)
        raise bad_value(key, value, "a list", where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, dict):
            return parse(hint, value, where=where, prefix=f"{key}.")
        raise bad_value(key, value, "a table", where)
    return _scalar(hint, value, where, key)


def _scalar(hint: Any, value: Any, where: str, key: str) -> Any:
    if hint is str and isinstance(value, datetime.date):
        value = value.isoformat()  # `cut = 2024-01-01` is a date in TOML
    if hint is float and type(value) is int:
        value = float(value) if abs(value) < 2**53 else math.inf
    if type(value) is not hint:
        raise bad_value(key, value, f"a value of type {hint.__name__}", where)
    if hint is float and not math.isfinite(value):
        raise bad_value(key, value, "a finite number", where)
    if hint is int and abs(value) >= 2**63:
        raise bad_value(key, value, "a number of 64 bits", where)
    if hint is str and any(x == "\0" or "\ud800" <= x <= "\udfff" for x in value):
        raise bad_value(key, value, "text in UTF-8 without null characters", where)
    return value


def shown(value: object) -> str:
    """The value on one line, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:79]}…"


UNHASHED: Final = {"hashed": "never"}
"""Metadata of a field that says where or how to work: no lock records it, no root covers it."""
LATER: Final = {"hashed": "unless default"}
"""Metadata of a field that came after the first locks: left out at its default, so they hold."""


def as_dict(spec: Any) -> dict[str, Any]:
    """The spec as a lock records it: plain JSON values, tuples as lists."""
    found = {}
    for field in dataclasses.fields(spec):
        value, rule = getattr(spec, field.name), field.metadata.get("hashed")
        if rule != "never" and not (rule == "unless default" and value == field.default):
            found[field.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return as_dict(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def assignments(words: Sequence[str]) -> dict[str, Any]:
    """`--set KEY=VALUE` and `--set TABLE.KEY=VALUE` as TOML reads them; quotes may be left away."""
    lines = []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {word!r} has no '='", fix="write --set KEY=VALUE")
        try:
            if len(tomllib.loads(f"value = {text}")) > 1:  # a second line would set another key
                raise ValueError
        except (ValueError, RecursionError):
            text = json.dumps(text, ensure_ascii=False)
        lines.append(f"{key} = {text}")
    try:
        return tomllib.loads("\n".join(lines))
    except ValueError as error:
        fix = "set each key once, a table's keys or the table"
        raise UsageError(f"--set {' '.join(words)}: {error}", fix=fix) from None
