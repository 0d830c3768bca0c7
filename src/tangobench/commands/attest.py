"""`attest`: check the kernels and measure some steps on this machine, as one JSON to send back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tangobench.commands._common import command, count, emit_json, reporter_of
from tangobench.commands.train import add_compute_options, compute_device, named_run


def add(commands: Any) -> None:
    """Add the command to the program."""
    parser = command(
        commands, "attest", _attest,
        "check kernels, speed and a root on this machine; prints one JSON to send back",
        "attest --recipe sample-dm_math-tango --steps 10",
        "attest --device cuda > attested.json",
        about="Checks the kernels, takes some steps, compares their time with the plan and the "
        "dataset's root with the committed one. The JSON names the device, versions and commit, "
        "no host and no path. docs/attested.md lists what came back.",
    )  # fmt: skip
    parser.add_argument(
        "--recipe", default="mini-dm_math-tango", metavar="NAME", help="what to run"
    )
    parser.add_argument("--steps", type=count, default=200, metavar="N", help="default: 200")
    parser.add_argument("--out", default="out", metavar="DIR", help="where datasets are")
    add_compute_options(parser)


def _attest(args: argparse.Namespace) -> int:
    from tangobench.eval.comparison.attest import attest

    run, device = named_run(args.recipe, []), compute_device(args)
    reporter = reporter_of(args)
    emit_json(attest(run, Path(args.out), device=device, steps=args.steps, reporter=reporter))
    return 0
