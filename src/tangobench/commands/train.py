"""`train`: one run of a recipe, resumable; and the list of all runs."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from tangobench.commands._common import add_output_options, emit_json
from tangobench.errors import UsageError


def add(commands: Any) -> None:
    """Add the command to the program."""
    trainer = commands.add_parser(
        "train",
        help="train one run; run again to resume",
        description="Train OUT/runs/RUN on OUT/DATASET-PROFILE. A killed run goes on from its last "
        "checkpoint with the same command. With more than one GPU or machine: "
        "torchrun --nproc-per-node N -m tangobench train …",
    )
    trainer.add_argument("--recipe", metavar="NAME", help="a recipe or a run, see --list")
    trainer.add_argument(
        "--seed-pair",
        metavar="A,B",
        help="seeds of initialisation and data order (default: 17,101)",
    )
    trainer.add_argument("--out", default="out", metavar="DIR", help="parent folder (default: out)")
    add_compute_options(trainer)
    trainer.add_argument(
        "--microbatch",
        default="auto",
        metavar="N",
        help="rows at once; 'auto' (default) is by the recipe on a CPU, by free memory on a GPU. "
        "It changes the rounding, no more",
    )
    trainer.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        help="steps (default: a 40th of the run, 10 to 1,000)",
    )
    trainer.add_argument("--stop-at", type=int, metavar="STEP", help="stop there, resume later")
    trainer.add_argument("--tensorboard", action="store_true", help="also write TensorBoard events")
    trainer.add_argument("--list", action="store_true", help="name all recipes and runs")
    add_output_options(trainer)
    trainer.set_defaults(run=_train)


def add_compute_options(parser: argparse.ArgumentParser) -> None:
    """Where to compute."""
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="cpu, cuda or auto (default)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: OMP_NUM_THREADS or all)"
    )


def compute_device(args: argparse.Namespace) -> str:
    """The device that was asked for, checked; also sets the threads."""
    import torch

    if args.threads is not None:
        if args.threads < 1:
            raise UsageError(f"--threads is {args.threads}", kind="usage", fix="use 1 or more")
        torch.set_num_threads(args.threads)
    there = torch.cuda.is_available()
    if args.device == "auto":
        return "cuda" if there else "cpu"
    if args.device not in ("cpu", "cuda"):
        raise UsageError(f"no device {args.device!r}", kind="usage", fix="use cpu, cuda or auto")
    if args.device == "cuda" and not there:
        raise UsageError("there is no CUDA device", kind="no-cuda", fix="use --device cpu")
    return str(args.device)


def parse_pair(text: str | None) -> tuple[int, int] | None:
    """`"17,101"` as two seeds."""
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 2 or not all(re.fullmatch(r" *[0-9]{1,18} *", part) for part in parts):
        raise UsageError(
            f"--seed-pair {text!r} is not two numbers of at most 18 digits",
            kind="usage",
            fix="write --seed-pair 17,101",
        )
    return int(parts[0]), int(parts[1])


def _microbatch(text: str) -> int | None:
    if text == "auto":
        return None
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise UsageError(
            f"--microbatch is {text!r}", kind="usage", fix="use auto or a count of at least 1"
        )
    return int(text)


def _positive(name: str, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise UsageError(f"{name} is {value}", kind="usage", fix="use 1 or more")
    return value


def _train(args: argparse.Namespace) -> int:
    if args.list:
        return _list(args)
    if args.recipe is None:
        raise UsageError("--recipe is missing", kind="usage", fix="`tangobench train --list`")
    from tangobench.model.recipes import find

    run = find(args.recipe, parse_pair(args.seed_pair))
    from tangobench.model.train import Options, train
    from tangobench.pipeline.progress import Reporter

    options = Options(
        out=Path(args.out),
        device=compute_device(args),
        microbatch=_microbatch(args.microbatch),
        checkpoint_every=_positive("--checkpoint-every", args.checkpoint_every),
        stop_at=_positive("--stop-at", args.stop_at),
        tensorboard=args.tensorboard,
    )
    folder = train(run, options, Reporter(quiet=args.quiet or args.json))
    if args.json:
        emit_json({"run": run.name, "folder": str(folder)})
    else:
        print(folder)
    return 0


def _list(args: argparse.Namespace) -> int:
    from tangobench.model.recipes import runs

    rows = [
        {
            "run": run.name,
            "recipe": run.recipe.name,
            "family": run.recipe.family,
            "steps": run.recipe.steps,
            "batch": run.recipe.batch,
            "context": run.recipe.context,
            "dataset": run.recipe.folder,
        }
        for run in runs()
    ]
    if args.json:
        emit_json(rows)
        return 0
    for row in rows:
        print(
            f"{row['run']:<48} {row['family']:<10} {row['steps']:>6} steps × {row['batch']:>3} rows"
            f" × {row['context']:>4} tokens of {row['dataset']}"
        )
    return 0
