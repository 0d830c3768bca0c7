"""`python -m tangobench.flows`: what `make data-*` calls.

- With a Prefect API configured the build is a flow run there; without one it runs in this process,
  at work within 3 s, and says so.
- Exit codes are those of `tangobench`; the last line printed is the root.

Usage: `python -m tangobench.flows lean --profile sample --workers 2`.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tangobench.errors import TangobenchError, UsageError
from tangobench.flows import _api
from tangobench.flows._build import Where, in_process
from tangobench.flows._runner import check
from tangobench.flows._summary import lock_table
from tangobench.pipeline.api import DATASETS, Request
from tangobench.pipeline.manifest import read_lock
from tangobench.pipeline.progress import Reporter


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tangobench.flows", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("dataset", choices=DATASETS)
    parser.add_argument("--profile", choices=("sample", "mini", "paper"), default="sample")
    parser.add_argument("--source", help="input instead of the profile's own")
    parser.add_argument("--out", default="out", help="parent folder of the dataset")
    parser.add_argument("--store", help="unit store: a folder or fsspec address")
    parser.add_argument("--workers", type=int, help="processes (default: one per core)")
    parser.add_argument("--runner", choices=("processes", "dask"), default="processes")
    parser.add_argument("--address", help="Dask scheduler, tcp://HOST:PORT")
    return parser


def _through_api(url: str, args: argparse.Namespace) -> Path:
    """Run the flow against the configured API; the dataset's folder."""
    if not _api.answers(url):
        raise UsageError(
            f"the configured Prefect API {url} does not answer",
            kind="prefect-unreachable",
            fix="start it (`make deploy`), or `make undeploy` and unset PREFECT_API_URL",
        )
    print(f"flow run on {url}", file=sys.stderr)
    module = importlib.import_module(f"tangobench.flows.{args.dataset}_flow")
    flow: Any = getattr(module, f"build_{args.dataset}")
    options = {name: value for name, value in vars(args).items() if name != "dataset"}
    state = flow(**options, return_state=True)
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return Path(result["folder"])


def _here(args: argparse.Namespace) -> Path:
    """Run the same plan in this process."""
    print("no Prefect API is configured: building in this process", file=sys.stderr, flush=True)
    request = Request(
        name=args.dataset,
        profile=args.profile,
        source=args.source,
        out=args.out,
        store=args.store,
    )
    where = Where(workers=args.workers, runner=args.runner, address=args.address)
    return in_process(request, where, Reporter()).folder


def _run(args: argparse.Namespace) -> int:
    if args.workers is not None and args.workers < 1:
        raise UsageError(f"--workers is {args.workers}", kind="workers", fix="use 1 or more")
    check(args.runner, args.address)
    url = _api.configured_url(Path.cwd())
    folder = _through_api(url, args) if url else _here(args)
    lock = read_lock(folder)
    for row in lock_table(lock):
        print(f"{row['what']:<24} {row['value']}", file=sys.stderr)
    print(folder, file=sys.stderr)
    print(lock.root)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Build one dataset and return the exit code."""
    args = _parser().parse_args(argv)
    # A polite kill should leave as clean a state as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(args)
    except TangobenchError as error:
        print(f"tangobench: {error.message}", file=sys.stderr)
        print(f"  try: {error.fix}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
