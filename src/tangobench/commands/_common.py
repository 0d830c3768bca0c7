"""What commands share: a decorator that reads their docstring, types of options, output.

A command's docstring is its help: summary, description, `options:` and `examples:`. Two spaces end
the form of an option: `--size N =4096` has a type (`_TYPES`, or as the decorator says) and a
default, `folder=DIR*` a name and a metavar; `?`, `*` and `+` are argparse's; `!` is required,
`...` may be repeated.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tangobench.errors import UsageError

if TYPE_CHECKING:
    from tangobench.pipeline.core.progress import Reporter

Run = Callable[[argparse.Namespace], int]


class Command(NamedTuple):
    """What the decorator was given."""

    run: Run
    options: Sequence[str]
    types: Mapping[str, Any]


COMMANDS: Final[dict[str, Command]] = {}
"""Every command by its words, of the modules that are loaded."""
_GROUPS: Final = {
    "lean": "tools for Lean sources",
    "model": "the six architectures: sizes and costs",
    "results": "pack the results of many runs into two files, or unpack them",
    "tokenizer": "train a tokenizer on a dataset's documents",
}

OUTPUT: Final = """
--json   results and errors as JSON
--quiet  no progress, only the result
"""
COMPUTE: Final = """
--device NAME =auto  cpu, cuda, cuda:1 or auto (default)
--threads N          CPU threads (default: OMP_NUM_THREADS or all)
--kernel NAME        auto, strips, batched or triton: the same function at another speed
                     (default: TANGOBENCH_KERNEL or auto)
"""
EXTRAS: Final = """
--exact-match  also generate an answer to every question (dm_math) and compare it
--probes       also give the NLL by what training holds of a validation row
"""
FORMS: Final = ("markdown", "latex", "csv", "html")
FORMAT: Final = f"--format {{{','.join(FORMS)}}}  of the tables"


def command(words: str, *options: str, **types: Any) -> Callable[[Run], Run]:
    """Register a command; a type is a function of the word, or a collection of choices."""

    def register(run: Run) -> Run:
        COMMANDS[words] = Command(run, options, types)
        return run

    return register


def add_commands(top: Any, names: Sequence[str]) -> None:
    """Add the commands that begin with these names, in their order."""
    if sys.flags.optimize > 1:
        raise UsageError(
            "Python runs with -OO, which removes the docstrings that hold the options",
            fix="leave -OO away and unset PYTHONOPTIMIZE",
        )
    groups: dict[tuple[str, ...], Any] = {(): top}
    wanted = (words for words in COMMANDS if words.split()[0] in names)
    for words in sorted(wanted, key=lambda words: names.index(words.split()[0])):
        entry = COMMANDS[words]
        *group, name = words.split()
        if tuple(group) not in groups:
            parser = _parser(top, group[0], _GROUPS[group[0]])
            inner = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)
            groups[tuple(group)] = inner
        summary, *blocks = inspect.cleandoc(entry.run.__doc__ or "").split("\n\n")
        parts = {"about": summary, "options": "", "examples": ""}
        for block in blocks:
            head, _, rest = block.partition(":\n")
            parts |= {head: rest} if head in parts else {"about": block}
        summary = summary[0].lower() + summary[1:].removesuffix(".")
        parser = _parser(groups[tuple(group)], name, summary, parts["about"], parts["examples"])
        for text in (OUTPUT, parts["options"], *entry.options):
            add_options(parser, text, entry.types)
        parser.set_defaults(run=entry.run)


def _parser(
    commands: Any, name: str, summary: str, about: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    lines = textwrap.dedent(examples).splitlines()
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=textwrap.fill(about or f"{summary[0].upper()}{summary[1:]}.", 88),
        epilog="\n  tangobench ".join(["examples:", *lines]) if lines else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def add_options(
    parser: argparse.ArgumentParser, text: str, types: Mapping[str, Any] | None = None
) -> None:
    for name, given in options(text, types or {}):
        parser.add_argument(name, **given)


def options(text: str, types: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of a table's options and what argparse takes; what is indented continues a line."""
    for line in filter(None, re.sub(r"\n +", "  ", textwrap.dedent(text)).splitlines()):
        form, explanation = line.split("  ", 1)
        name, *details = form.split(" " if form.startswith("-") else "=")
        given: dict[str, Any] = {"help": " ".join(explanation.split())}
        for detail in details:
            if detail.startswith("="):
                given["default"] = detail[1:]
            elif detail == "!":
                given["required"] = True
            elif detail == "...":
                given |= {"action": "append", "default": []}
            elif detail.startswith("{"):
                given["choices"] = tuple(detail[1:-1].split(","))
            else:
                given |= _metavar(detail)
        dest = name.lstrip("-").replace("-", "_")
        kind = types.get(dest, _TYPES.get(given.get("metavar", "")))
        if kind is not None:
            given |= {"type": kind} if callable(kind) else {"choices": kind}
        elif name.startswith("-") and not details:
            given["action"] = "store_true"
        yield name, given


def _metavar(word: str) -> dict[str, str]:
    if word[-1] not in "?*+":
        return {"metavar": word}
    # An option without its file means stdout.
    return {"metavar": word[:-1], "nargs": word[-1]} | ({"const": "-"} if word[-1] == "?" else {})


def count(word: str) -> int:
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def place(word: str) -> Any:
    """A dataset folder, here or in an object store."""
    from tangobench.pipeline.core.store import place_of

    return place_of(word)


def seconds(word: str) -> float:
    number = float(word)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{word} is no number of seconds")
    return number


_TYPES: Final = {"N": count, "SECONDS": seconds, "DIR": Path, "FILE": Path}


def assignments(words: Sequence[str]) -> dict[str, Any]:
    """`--set KEY=VALUE` and `--set TABLE.KEY=VALUE` as TOML reads them; quotes may be left away."""
    import tomllib  # for most commands nothing is set

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


def show(args: argparse.Namespace, value: Any, *lines: str) -> int:
    """Print a command's result: the value as JSON for programs, or the lines for people."""
    if args.json:
        emit_json(value)
    else:
        print("\n".join(lines), flush=True)
    return 0


def emit_json(value: Any) -> None:
    """One JSON document on standard output; escaped, so that any terminal and any path will do."""
    json.dump(value, sys.stdout, indent=1)
    print()


def finished(args: argparse.Namespace, made: str, then: str = "") -> None:
    """The closing line of a command that made something: what, where, how long, what next."""
    from tangobench.pipeline.core.progress import duration

    if not (args.quiet or args.json):
        took = duration(time.monotonic() - args.began)
        print(f"{made} in {took}" + (f" · next: {then}" if then else ""), file=sys.stderr)


def reporter_of(args: argparse.Namespace) -> Reporter:
    from tangobench.pipeline.core.progress import Reporter

    return Reporter(quiet=args.quiet or args.json)
