"""The `tangobench` program: the one place that sees everything, and imports it late.

A user's mistake is one or two lines on standard error and an exit code of its class; a traceback is
a bug. `--json` makes results and errors readable for programs.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from tangobench import __version__
from tangobench.commands._common import add_commands
from tangobench.errors import (
    EXIT_CODES,
    ResourceError,
    TangobenchError,
    UsageError,
    printable,
    without_secrets,
)

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
