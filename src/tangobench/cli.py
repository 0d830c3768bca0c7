"""The `tangobench` program: how commands are declared, and how one is run.

- A command's docstring is its help: summary, description, `options:` and `examples:`. Two spaces
  end the form of an option: `--size N =4096` has a type (`_TYPES`, or as the decorator says) and a
  default, `folder=DIR*` a name and a metavar; `?`, `*` and `+` are argparse's; `!` is required,
  `...` may be repeated.
- Only the module of the asked-for command is loaded.
- A user's mistake is one or two lines on standard error and an exit code of its class; a traceback
  is a bug. `--json` makes results and errors readable for programs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import inspect
import json
import math
import os
import re
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from tangobench import __version__
from tangobench.errors import (
    EXIT_CODES,
    Clean,
    ResourceError,
    TangobenchError,
    UsageError,
    without_secrets,
)

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
        why = "Python runs with -OO, which removes the docstrings that hold the options"
        raise UsageError(why, fix="leave -OO away and unset PYTHONOPTIMIZE")
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


_MODULES: Final = {
    "data": "init plan build tokenizer lean",
    "rows": "verify diff inspect why export push",
    "train": "recipes train generate attest",
    "score": "eval check-proofs results",
    "compare": "tables compare report replicate",
    "machine": "doctor model",
}
"""Where commands are, in the order of `--help`; only the module of the asked-for one is loaded."""
_IMPORT: Final = "TANGOBENCH_IMPORT"
_RESUME: Final = "the same command resumes"
_PATHS: Final = {"out", "source", "store", "manifest", "data", "folder", "site", "samples", "save"}
# glibc keeps memory between steps, in large pages: no bit changes, and a mini TANGO step takes four
# fifths of the CPU time. Read by the C library when a process starts.
_TUNABLES: Final = "hugetlb=1", "mmap_threshold=4294967296", "trim_threshold=8589934592"
_REPORT: Final = "this is a bug: please report it with the lines above"


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ours, so that `--json` holds for them too."""

    def __init__(self, **options: Any) -> None:
        # `--js` for `--json` would work today and break with the next option.
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, kind="usage", fix=f"see `{self.prog} --help`")


def parser(words: Sequence[str] = ()) -> Parser:
    """The parser of all commands, or of the one that `words` begin with."""
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    top = Parser(
        prog="tangobench",
        description="Rebuild the data and the six-way comparison of the TANGO paper, and check "
        "every number.",
        epilog=f"exit codes:\n{codes}\n\nfirst steps:\n"
        "  tangobench doctor\n"
        "  tangobench build lean                 # the sample profile, seconds, no network\n"
        "  tangobench verify out/lean-sample\n"
        "  tangobench inspect out/lean-sample --config proof --row 0",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"tangobench {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    named = {module: names for module, names in _MODULES.items() if {*names.split()} & {*words[:1]}}
    for module in named or _MODULES:
        importlib.import_module(f"tangobench.commands.{module}")
    add_commands(commands, " ".join((named or _MODULES).values()).split())
    return top


def main(
    argv: Sequence[str] | None = None, make: Callable[[Sequence[str]], Parser] = parser
) -> int:
    """Run one command and return its exit code; `make` gives the command line."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    if argv is None and words[:1] in (["train"], ["replicate"]):
        _keep_memory()
    elif argv is None:  # imports make objects that stay: 0.03 s of looking for cycles among them
        gc.set_threshold(50_000)
    # A polite kill should leave as clean a state as Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    out: Any = Clean(sys.stdout)
    err: Any = Clean(sys.stderr)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return _main(words, as_json, make)
    finally:  # a kill while the interpreter exits would be a traceback of some library's
        signal.signal(signal.SIGTERM, before)


def _keep_memory() -> None:
    """Start this command again with `_TUNABLES`, unless the user has set their own."""
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = ":".join(f"glibc.malloc.{name}" for name in _TUNABLES)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _main(words: list[str], as_json: bool, make: Callable[[Sequence[str]], Parser]) -> int:
    try:
        code = _run(words, make(words))
        sys.stdout.flush()
        gc.freeze()  # else the interpreter looks for cycles among a million objects: 0.15 s
        return code
    except TangobenchError as error:
        return report(error, as_json)
    except KeyboardInterrupt:
        return report(_Interrupted("interrupted", kind="interrupted", fix=_RESUME), as_json)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error, but nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        print(without_secrets(traceback.format_exc()), end="", file=sys.stderr)
        bug = TangobenchError(f"{type(error).__name__}: {error}", kind="unexpected", fix=_REPORT)
        return report(bug, as_json)


def _run(words: list[str], parser: Parser) -> int:
    began = time.monotonic()
    args = parser.parse_args(words)
    args.began = began
    _import_own()
    for name in _PATHS & vars(args).keys():  # shells leave `--out=~/x` and quotes alone
        value = getattr(args, name)
        if isinstance(value, str | Path) and str(value).startswith("~"):
            setattr(args, name, type(value)(Path(value).expanduser()))
    try:
        code: int = args.run(args)
        return code
    except (MemoryError, RuntimeError) as error:
        if not _ran_out(error):
            raise
        raise ResourceError(
            "out of memory", kind="out-of-memory", fix=f"try {_smaller(args)}; what is done stays"
        ) from None


def _import_own() -> None:
    """Import the modules that TANGOBENCH_IMPORT names, such as one that registers a model."""
    if names := os.environ.get(_IMPORT):
        # `python -m` looks in the working directory, the installed program does not.
        sys.path += [str(Path.cwd())]
        try:
            for name in names.split(","):
                importlib.import_module(name)
        except ImportError as error:
            fix = "name modules of this folder or of PYTHONPATH, with commas between them"
            raise UsageError(f"{_IMPORT}={names}: {error}", kind="usage", fix=fix) from None


def _ran_out(error: BaseException) -> bool:
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from tangobench.model.training.plan import ran_out

    return ran_out(error)


def _smaller(args: argparse.Namespace) -> str:
    """The command's option that saves memory."""
    options = {
        "workers": "fewer --workers",
        "microbatch": "a smaller --microbatch",
        "tokens_at_once": "a smaller --tokens-at-once",
    }
    return next((text for name, text in options.items() if hasattr(args, name)), "more memory")


class _Interrupted(TangobenchError):
    exit_code = 130


def report(error: TangobenchError, as_json: bool) -> int:
    if as_json:
        print(json.dumps(error.as_json(), default=str))
    else:
        # A terminal shows ^C, or a progress line, where the cursor is.
        fresh = "\n" if isinstance(error, _Interrupted) and sys.stderr.isatty() else ""
        print(f"{fresh}tangobench: {error.message}", file=sys.stderr)
        if error.fix:
            print(f"  try: {error.fix}", file=sys.stderr)
    return error.exit_code
