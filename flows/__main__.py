"""`python -m tangobench.flows`: what `make data-*` calls. The same options as `tangobench build`.

- Every dataset is a Prefect flow run: on the configured API, or recorded in `.state/prefect`; the
  first line says where.
- Options, output and exit codes are those of `tangobench build`; the last line printed is the root.
- Several datasets are built in one process, with one server.

Usage: `python -m tangobench.flows lean --profile sample --workers 2`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from tangobench import cli
from tangobench.cli import OUTPUT, add_options
from tangobench.commands import data
from tangobench.errors import TangobenchError
from tangobench.flows.local.place import Place
from tangobench.flows.local.recording import LOST, LOUD, IsLost, recorded
from tangobench.pipeline.api import WAIT_SECONDS, Built, Request, Where
from tangobench.pipeline.core.lock import read_lock
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.core.store import place_of


def _parser(_: Sequence[str]) -> cli.Parser:
    parser = cli.Parser(prog="python -m tangobench.flows", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_options(parser, data.SEVERAL + OUTPUT, data.TYPES)
    parser.set_defaults(run=_run, workers=os.cpu_count() or 1, wait=WAIT_SECONDS)
    return parser


def _run(args: argparse.Namespace) -> int:
    each = [argparse.Namespace(**{**vars(args), "dataset": name}) for name in args.dataset]
    where = Where(workers=args.workers, runner=args.runner, address=args.address)
    where.check()
    for one in each:
        data.settle(one)
        data.request(one).spec()  # report a wrong option before anything starts

    def say(line: str) -> None:
        if line.startswith(LOUD) or not (args.quiet or args.json):
            print(line, file=sys.stderr, flush=True)

    if args.runner == "processes":  # workers load their modules while Prefect loads its own
        where.open(*(one.kind or one.dataset for one in each))
    # The terminal shows the build's own lines; Prefect's go to its log, its notice nowhere.
    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
    os.environ["PREFECT_LOGGING_INTERNAL_LEVEL"] = "CRITICAL"
    with recorded(Place(root=Path.cwd().resolve()), say) as is_lost:
        for one in each:
            one.began = time.monotonic()
            data.build(one, lambda request, reporter: _build(is_lost, request, where, reporter))
    return 0


def _build(is_lost: IsLost | None, request: Request, where: Where, reporter: Reporter) -> Built:
    if is_lost is None:
        return where.build(request, reporter)
    try:
        return through_flow(request, where, reporter)
    except TangobenchError:
        raise
    except Exception as error:
        if not is_lost():
            raise
        reporter.say(f"{LOUD}: the Prefect server is gone ({type(error).__name__})")
        return where.build(request, reporter)


def parameters_of(request: Request, where: Where) -> dict[str, Any]:
    """The parameters by which a flow builds this request there; defaults are left out."""
    implied = {"wait_seconds"} if request.kind else {"name", "wait_seconds"}
    return {
        field.name: value
        for part in (request, where)
        for field in fields(part)
        if (value := getattr(part, field.name)) != field.default and field.name not in implied
    }


def through_flow(request: Request, where: Where, reporter: Reporter) -> Built:
    """Build as a flow run of the configured API; `reporter` shows its progress too."""
    from prefect import tags

    from tangobench.flows import deployments

    flow = deployments.BUILDS[deployments.OWN_DATA if request.kind else request.name]
    deployments.terminal = reporter
    try:
        with tags(*deployments.tags_of(request.name, request.profile)):
            state: Any = flow(**parameters_of(request, where), return_state=True)
    finally:
        deployments.terminal = None
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    folder = place_of(result["folder"])
    return Built(folder, read_lock(folder), result["reused"])


def main(argv: Sequence[str] | None = None) -> int:
    code = cli.main(argv, _parser)
    if LOST.is_set():
        sys.stdout.flush()
        os._exit(code)  # an orderly exit waits for minutes until Prefect has given up
    return code


if __name__ == "__main__":
    sys.exit(main())
