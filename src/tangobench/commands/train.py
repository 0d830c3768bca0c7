"""`train`: one run of a recipe, resumable; and the list of all runs."""

from __future__ import annotations

import argparse
import os
import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangobench.commands._common import command, finished, reporter_of, show
from tangobench.errors import UsageError

if TYPE_CHECKING:
    from tangobench.model.training.recipes import Run


def add(commands: Any) -> None:
    """Add the command to the program."""
    trainer = command(
        commands, "train", _train, "train one run; run again to resume",
        "train --recipe sample-dm_math-tango",
        "train --recipe mini-dm_math-tango --set d_model=128 --name small --seed-pair 1,2",
        "train --recipe mine.toml --data out/my-corpus-full",
        about="Train OUT/runs/RUN on OUT/DATASET-PROFILE. A killed run resumes from its last "
        "checkpoint with the same command. With more than one GPU or machine: "
        "torchrun --nproc-per-node N -m tangobench train …",
    )  # fmt: skip
    trainer.add_argument(
        "--recipe", metavar="NAME", help="a recipe of `tangobench recipes`, a run or a TOML file"
    )
    trainer.add_argument(
        "--data", metavar="FOLDER", help="train on this dataset (default: OUT/DATASET-PROFILE)"
    )
    trainer.add_argument("--name", help="what to call the recipe, if it is your own")
    trainer.add_argument(
        "--seed-pair",
        metavar="A,B",
        help="seeds of initialisation and data order (default: 17,101)",
    )
    trainer.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of the recipe, e.g. lr_peak=1e-3, d_model=256, match_params=1_000_000 "
        "or shared=false; the run is named after it. May be repeated",
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
        "--precision",
        choices=("fp32", "bf16", "fp64"),
        help="short for --set precision=…: bf16 is faster on GPUs and on CPUs with avx512_bf16 or "
        "AMX (default: the recipe's)",
    )
    trainer.add_argument(
        "--checkpoint-every",
        type=int,
        metavar="N",
        help="steps (default: a 40th of the run, 10 to 1,000)",
    )
    trainer.add_argument("--stop-at", type=int, metavar="STEP", help="stop there, resume later")
    trainer.add_argument("--tensorboard", action="store_true", help="also write TensorBoard events")
    trainer.add_argument(
        "--validate-every",
        type=int,
        metavar="N",
        help="steps between measurements of a fixed validation subset (default: 20 times a run; "
        "0: never). Nothing is selected by it",
    )
    trainer.add_argument(
        "--trace", action="store_true", help="also write a torch profile: OUT/runs/RUN/trace.json"
    )
    trainer.add_argument("--list", action="store_true", help="name all recipes and runs")


def add_compute_options(parser: argparse.ArgumentParser) -> None:
    """Where to compute."""
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="cpu, cuda, cuda:1 or auto (default)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads (default: OMP_NUM_THREADS or all)"
    )
    add_kernel_option(parser)


def add_kernel_option(parser: argparse.ArgumentParser) -> None:
    """How to compute."""
    parser.add_argument(
        "--kernel",
        metavar="NAME",
        help="auto, strips, batched or triton: the same function at another speed "
        "(default: TANGOBENCH_KERNEL or auto)",
    )


def compute_device(args: argparse.Namespace) -> str:
    """The device that was asked for, checked; also sets the threads."""
    import torch

    from tangobench.model.kernels import select

    select.request(args.kernel)
    if args.threads is not None:
        if args.threads < 1:
            raise UsageError(f"--threads is {args.threads}", kind="usage", fix="use 1 or more")
        torch.set_num_threads(args.threads)
    there = torch.cuda.device_count()
    if args.device == "auto":
        return "cuda" if there else "cpu"
    match = re.fullmatch("cpu|cuda(?::([0-9]{1,3}))?", args.device)
    if match is None:
        fix = "use cpu, cuda, cuda:1 or auto"
        raise UsageError(f"no device {args.device!r}", kind="usage", fix=fix)
    if args.device != "cpu" and int(match[1] or 0) >= there:
        found = "there is no CUDA device" if not there else f"there are {there} CUDA devices"
        raise UsageError(f"{args.device}: {found}", kind="no-cuda", fix="use --device cpu")
    if match[1]:
        torch.cuda.set_device(args.device)
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


def parse_fields(pairs: Sequence[str]) -> dict[str, Any]:
    """`["shared=false"]` as fields of a recipe: TOML values, and words without quotes."""
    fields: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not text or name in fields:
            raise UsageError(
                f"--set {pair!r} is not one FIELD=VALUE, or its field is set twice",
                kind="usage",
                fix="write --set shared=false",
            )
        try:
            fields[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            fields[name] = text
    return fields


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
    run = _run(args)
    from tangobench.model.training.train import Options, train

    options = Options(
        out=Path(args.out),
        device=compute_device(args),
        microbatch=_microbatch(args.microbatch),
        checkpoint_every=_positive("--checkpoint-every", args.checkpoint_every),
        stop_at=_positive("--stop-at", args.stop_at),
        tensorboard=args.tensorboard,
        data=args.data,
        trace=args.trace,
        validate_every=args.validate_every and _positive("--validate-every", args.validate_every),
    )
    folder = train(run, options, reporter_of(args))
    if os.environ.get("RANK", "0") != "0":
        return 0
    then = "the same command without --stop-at" if args.stop_at else f"tangobench eval {folder}"
    finished(args, f"trained {run.name}", then)
    return show(args, {"run": run.name, "folder": str(folder)}, str(folder))


def named_run(name: str | None, changes: Sequence[str], pair: str | None = None) -> Run:
    """A run by the name of a recipe, a run or a TOML file, with fields changed."""
    from tangobench.model.training import recipe_files
    from tangobench.model.training.recipes import SEED_PAIRS, Run, find

    if name is None:
        raise UsageError("--recipe is missing", kind="usage", fix="`tangobench recipes`")
    seeds = parse_pair(pair)
    if name.endswith(".toml"):
        run = Run(recipe_files.read_recipe(Path(name)), *(seeds or SEED_PAIRS[0]))
    else:
        run = find(name, seeds)
    if changes:
        run = replace(run, recipe=recipe_files.changed(run.recipe, parse_fields(changes)))
    return run


def _run(args: argparse.Namespace) -> Run:
    """The run that the options name: a recipe, changed, on a dataset, under a name."""
    from tangobench.model.training import recipe_files
    from tangobench.pipeline.reading import open_dataset

    changes = [*args.set, *([f"precision={args.precision}"] if args.precision else [])]
    run = named_run(args.recipe, changes, args.seed_pair)
    recipe = run.recipe
    if args.data is not None:
        recipe = recipe_files.on_dataset(recipe, open_dataset(args.data).lock)
    return replace(run, recipe=recipe_files.named(recipe, args.name or recipe.name))


def _list(args: argparse.Namespace) -> int:
    from tangobench.model.training.recipes import runs

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
    lines = (
        f"{row['run']:<48} {row['family']:<10} {row['steps']:>6} steps × {row['batch']:>3} rows"
        f" × {row['context']:>4} tokens of {row['dataset']}"
        for row in rows
    )
    return show(args, rows, *lines)
