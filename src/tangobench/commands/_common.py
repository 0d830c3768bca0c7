"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any, Final

PROFILE_HELP: Final = (
    "sample: embedded input, seconds, no network (default); mini: real sources, minutes; "
    "paper: the published sizes"
)


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--quiet`."""
    parser.add_argument("--json", action="store_true", help="results and errors as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """What to build and from what."""
    parser.add_argument("dataset", help="fineweb, lean or dm_math")
    parser.add_argument("--profile", default="sample", metavar="NAME", help=PROFILE_HELP)
    parser.add_argument("--out", default="out", metavar="DIR", help="parent folder (default: out)")
    parser.add_argument("--source", metavar="WHERE", help="input instead of the profile's own")
    parser.add_argument("--workers", type=count, default=1, metavar="N", help="processes")
    parser.add_argument("--manifest", metavar="TOML", help="a spec of your own")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key of the spec (TOML value), may be repeated",
    )
    parser.add_argument(
        "--config",
        metavar="NAME",
        help="fineweb: train on this config of the hub (sample-10BT, default: all of it, a dump)",
    )
    parser.add_argument("--commit", metavar="SHA", help="lean: another commit than the spec's")
    parser.add_argument("--root", metavar="DIR", help="lean: another folder of the repository")
    parser.add_argument(
        "--holdout",
        action="append",
        metavar="DIR",
        help="lean: a folder that becomes validation, instead of the hashed share; may be repeated",
    )


def count(word: str) -> int:
    """An argument that is at least 1."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def seconds(word: str) -> float:
    """An argument that is a time span."""
    number = float(word)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{word} is no number of seconds")
    return number


def overrides_of(words: list[str]) -> dict[str, Any]:
    """`["a.b=1"]` as `{"a": {"b": 1}}`; values are TOML, or plain words."""
    import tomllib

    from tangobench.errors import UsageError

    found: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(
                f"--set {word!r} has no '='", kind="usage", fix="write --set KEY=VALUE"
            )
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            parsed = value
        *parents, last = key.split(".")
        table = found
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise UsageError(
                    f"--set {word!r}: {parent} is already a value",
                    kind="usage",
                    fix="set the key or the table's keys, not both",
                )
        table[last] = parsed
    return found


def request_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """`--set`, and the options that are short for it."""
    short = {key: getattr(args, key) for key in ("commit", "root", "holdout")}
    given = {key: value for key, value in short.items() if value is not None}
    overrides = {**overrides_of(args.set), **given}
    if args.config is not None:
        overrides["source"] = "hub"
        overrides["hub"] = {**overrides.get("hub", {}), "train": args.config}
    return overrides


def emit_json(value: Any) -> None:
    """One JSON document on standard output; escaped, so that any terminal and any path will do."""
    json.dump(value, sys.stdout, indent=1)
    print()
