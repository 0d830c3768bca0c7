"""Options and output that several commands share."""

from __future__ import annotations

import argparse
import json
import math
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from tangobench.catalogue import CATALOGUE, TEST_SETS

if TYPE_CHECKING:
    from tangobench.pipeline.core.progress import Reporter

Run = Callable[[argparse.Namespace], int]

PROFILE_HELP: Final = (
    "sample: embedded input, seconds, no network (default); mini: real sources, minutes; "
    "paper: the published sizes"
)


def command(
    commands: Any, name: str, run: Run | None, summary: str, *examples: str, about: str = ""
) -> argparse.ArgumentParser:
    """A command with `--json`, `--quiet` and examples; without `run` it is a group of commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(about or f"{summary[0].upper()}{summary[1:]}.", 88),
        epilog="\n  tangobench ".join(["examples:", *examples]) if examples else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if run is not None:
        add_output_options(parser)
        parser.set_defaults(run=run)
    return parser


def add_output_options(parser: argparse.ArgumentParser) -> None:
    """`--json` and `--quiet`."""
    parser.add_argument("--json", action="store_true", help="results and errors as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the result")


def show(args: argparse.Namespace, value: Any, *lines: str) -> int:
    """Print a command's result: the value as JSON for programs, or the lines for people."""
    if args.json:
        emit_json(value)
    else:
        print("\n".join(lines), flush=True)
    return 0


def finished(args: argparse.Namespace, made: str, then: str = "") -> None:
    """The closing line of a command that made something: what, where, how long, what next."""
    from tangobench.pipeline.core.progress import duration

    if not (args.quiet or args.json):
        took = duration(time.monotonic() - args.began)
        print(f"{made} in {took}" + (f" · next: {then}" if then else ""), file=sys.stderr)


def reporter_of(args: argparse.Namespace) -> Reporter:
    """Progress on standard error, unless it was not asked for."""
    from tangobench.pipeline.core.progress import Reporter

    return Reporter(quiet=args.quiet or args.json)


def add_request_options(
    parser: argparse.ArgumentParser, datasets: Literal["+"] | None = None
) -> None:
    """What to build and from what; `datasets` is "+" for a command that builds several."""
    names = ", ".join(CATALOGUE | TEST_SETS)
    parser.add_argument(
        "dataset",
        nargs=datasets,
        help=f"{names} or a manifest of your own (see `init`): FILE.toml",
    )
    parser.add_argument("--profile", metavar="NAME", help=PROFILE_HELP)
    parser.add_argument(
        "--out", default="out", metavar="DIR", help="parent folder, or s3://… (default: out)"
    )
    parser.add_argument("--source", metavar="WHERE", help="input instead of the profile's own")
    parser.add_argument(
        "--stream", action="store_true", help="fineweb: read in ranges instead of downloading once"
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long a source may send nothing before the build gives up (default: 120)",
    )
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
    parser.add_argument(
        "--commit", metavar="REV", help="lean: a commit id, HEAD, a tag or a branch"
    )
    parser.add_argument("--root", metavar="DIR", help="lean: another folder of the repository")
    parser.add_argument(
        "--holdout",
        action="append",
        metavar="PATH",
        help="lean: a folder or file that becomes validation, instead of the hashed share; may be "
        "repeated",
    )


def count(word: str) -> int:
    """An argument that is at least 1."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def place(word: str) -> Any:
    """A dataset folder, here or in an object store."""
    from tangobench.pipeline.core.remote import place_of

    return place_of(word)


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
    from tangobench.pipeline.api import spec_overrides

    short = {key: getattr(args, key) for key in ("config", "commit", "root", "holdout")}
    return spec_overrides(overrides_of(args.set), **short)


def settle(args: argparse.Namespace) -> None:
    """Fill in what an own manifest decides: name and kind of the dataset, default profile."""
    args.kind, profiles = None, ["sample"]
    if args.dataset.endswith(".toml"):
        from tangobench.errors import UsageError
        from tangobench.pipeline.api import DATASETS, OWN
        from tangobench.pipeline.core.spec import read_document

        args.manifest = args.dataset
        document = read_document(Path(args.manifest))
        args.kind = document.get("kind")
        if args.kind not in (*OWN, *DATASETS):
            raise UsageError(
                f"{args.manifest} says kind = {args.kind!r}",
                kind="spec-kind",
                fix=f"set kind to one of {', '.join((*OWN, *DATASETS))}; "
                "`tangobench init documents my-corpus.toml` writes a template",
            )
        args.dataset = Path(args.manifest).stem
        named = document.get("profiles", {})
        profiles = list(named) if isinstance(named, dict) and named else ["full"]
    args.profile = args.profile or profiles[0]


def emit_json(value: Any) -> None:
    """One JSON document on standard output; escaped, so that any terminal and any path will do."""
    json.dump(value, sys.stdout, indent=1)
    print()
