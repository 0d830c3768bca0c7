"""Recipes and runs: what can be trained, training it, and what a trained model writes."""

from __future__ import annotations

import argparse
import fnmatch
import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tangobench.cli import (
    COMPUTE,
    command,
    count,
    emit_json,
    finished,
    reporter_of,
    show,
)
from tangobench.errors import UsageError

if TYPE_CHECKING:
    from tangobench.model.training.recipes import Recipe, Run


_WARM_UP: Final = 5  # steps whose time does not count in `attest`


@command("recipes")
def _recipes(args: argparse.Namespace) -> int:
    """List the training recipes; `recipes show NAME` prints one (or a file's) as TOML.

    `recipes` lists all, `recipes PATTERN` those whose name fits (mini-*, tango). `recipes show NAME
    > mine.toml` gives a file for `train --recipe mine.toml`; a file may also say base = "NAME" and
    only what differs.

    options:
      words=[show] PATTERN*  a name or a pattern

    examples:
      recipes sample-
      recipes show mini-dm_math-tango > mine.toml
    """
    from tangobench.model.training.recipe_files import as_toml
    from tangobench.model.training.recipes import RECIPES

    if args.words[:1] == ["show"] and len(args.words) == 2:
        recipe = named_run(args.words[1], ()).recipe
        # Without its name: a file is named after itself.
        return show(args, recipe.as_json(), *as_toml(recipe).splitlines()[1:])
    if len(args.words) > 1 or args.words == ["show"]:
        why = f"recipes {' '.join(args.words)}: one pattern, or show and one name"
        raise UsageError(why, fix="tangobench recipes show sample-dm_math-tango")
    pattern = "".join(args.words)
    found = [r for r in RECIPES.values() if pattern in r.name or fnmatch.fnmatch(r.name, pattern)]
    if not found:
        raise UsageError(
            f"no recipe fits {pattern!r}", kind="no-such-recipe", fix="tangobench recipes"
        )
    return _listed(args, [{"recipe": r.name, **_sizes(r)} for r in found])


def _sizes(recipe: Recipe) -> dict[str, Any]:
    names = ("family", "steps", "batch", "context")
    sizes = {name: getattr(recipe, name) for name in names}
    params = recipe.model_config().nonembedding_params
    return {**sizes, "dataset": recipe.folder, "params": params}


def _listed(args: argparse.Namespace, rows: list[dict[str, Any]]) -> int:
    lines = (
        f"{row.get('run', row['recipe']):<40} {row['params']:>12,} params {row['steps']:>7,} steps"
        f" × {row['batch']:>3} rows × {row['context']:>5,} tokens of {row['dataset']}"
        for row in rows
    )
    return show(args, rows, *lines)


def _microbatch(word: str) -> int | None:
    return None if word == "auto" else count(word)


def _interval(word: str) -> int:
    """Steps between two events; 0 is never."""
    return 0 if word == "0" else count(word)


_TRAIN: Final = """
--recipe NAME          a recipe of `tangobench recipes`, a run or a TOML file
--data FOLDER          train on this dataset (default: OUT/DATASET-PROFILE)
--name NAME            what to call the recipe, if it is your own
--seed-pair A,B        seeds of initialisation and data order (default: 17,101)
--set FIELD=VALUE ...  change a field of the recipe, e.g. lr_peak=1e-3, d_model=256,
                       match_params=1_000_000 or shared=false; the run is named after it. May be
                       repeated
--out DIR =out         parent folder (default: out)
--microbatch N =auto   rows at once; 'auto' (default) is by the recipe on a CPU, by free memory on a
                       GPU. It changes the rounding, no more
--precision {fp32,bf16,fp64}
                       short for --set precision=…: bf16 is faster on GPUs and on CPUs with
                       avx512_bf16 or AMX (default: the recipe's)
--checkpoint-every N   steps (default: a 40th of the run, 10 to 1,000)
--stop-at STEP         stop there, resume later
--tensorboard          also write TensorBoard events
--validate-every N     steps between measurements of a fixed validation subset (default: 20 times a
                       run; 0: never). Nothing is selected by it
--trace                also write a torch profile: OUT/runs/RUN/trace.json
--list                 name all recipes and runs
"""


@command("train", _TRAIN, COMPUTE, microbatch=_microbatch, validate_every=_interval, stop_at=count)
def _train(args: argparse.Namespace) -> int:
    """Train one run; run again to resume.

    Train OUT/runs/RUN on OUT/DATASET-PROFILE. A killed run resumes from its last checkpoint with
    the same command. With more than one GPU or machine: torchrun --nproc-per-node N -m tangobench
    train …

    examples:
      train --recipe sample-dm_math-tango
      train --recipe mini-dm_math-tango --set d_model=128 --name small --seed-pair 1,2
      train --recipe mine.toml --data out/my-corpus-full
    """
    if args.list:
        from tangobench.model.training.recipes import runs

        named = [{"run": r.name, "recipe": r.recipe.name, **_sizes(r.recipe)} for r in runs()]
        return _listed(args, named)
    run = _chosen_run(args)
    if os.environ.get("RANK", "0") == "0":
        reporter_of(args).say(f"training {run.name} …")  # torch takes seconds to load
    from tangobench.model.training import checkpoint
    from tangobench.model.training.runs import run_folder
    from tangobench.model.training.train import Options, train

    checkpoints = run_folder(args.out, run) / "checkpoints"
    before = checkpoint.latest(checkpoints)
    names = ("out", "microbatch", "checkpoint_every", "stop_at", "tensorboard", "data", "trace")
    given = {name: getattr(args, name) for name in (*names, "validate_every")}
    folder = train(run, Options(device=compute_device(args), **given), reporter_of(args))
    if os.environ.get("RANK", "0") != "0":
        return 0
    then = "the same command without --stop-at" if args.stop_at else f"tangobench eval {folder}"
    done = "checked" if checkpoint.latest(checkpoints) == before else "trained"
    finished(args, f"{done} {run.name}", then)
    return show(args, {"run": run.name, "folder": str(folder)}, str(folder))


def _chosen_run(args: argparse.Namespace) -> Run:
    """The run that the options name: a recipe, changed, on a dataset, under a name."""
    changes = [*args.set, *([f"precision={args.precision}"] if args.precision else [])]
    run = named_run(args.recipe, changes, args.seed_pair)
    if args.data is None and args.name is None and not changes:
        return run
    from tangobench.model.training import recipe_files
    from tangobench.pipeline.reading import open_dataset

    recipe = run.recipe
    if args.data is not None:
        recipe = recipe_files.on_dataset(recipe, open_dataset(args.data).lock)
    return replace(run, recipe=recipe_files.named(recipe, args.name or recipe.name))


def named_run(name: str | None, changes: Sequence[str], pair: str | None = None) -> Run:
    """A run by the name of a recipe, a run or a TOML file, with fields changed."""
    from tangobench.model.training.recipes import SEED_PAIRS, Run, find

    if name is None:
        raise UsageError("--recipe is missing", fix="`tangobench recipes`")
    seeds = _pair(pair)
    if name.endswith(".toml"):
        from tangobench.model.training import recipe_files

        run = Run(recipe_files.read_recipe(Path(name)), *(seeds or SEED_PAIRS[0]))
    else:
        run = find(name, seeds)
    if changes:
        from tangobench.model.training import recipe_files
        from tangobench.pipeline.core.spec import assignments

        run = replace(run, recipe=recipe_files.changed(run.recipe, assignments(changes)))
    return run


def _pair(text: str | None) -> tuple[int, int] | None:
    """`"17,101"` as two seeds."""
    found = re.fullmatch(r" *([0-9]{1,18}) *, *([0-9]{1,18}) *", text or "17,101")
    if found is None:
        fix = "write --seed-pair 17,101"
        raise UsageError(f"--seed-pair {text!r} is not two numbers of at most 18 digits", fix=fix)
    return None if text is None else (int(found[1]), int(found[2]))


def compute_device(args: argparse.Namespace) -> str:
    """The device that was asked for, checked; also sets the threads and the kernel."""
    import torch

    from tangobench.model.kernels import crossgate

    crossgate.request(args.kernel)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    if args.device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if ":" in checked_device(args.device):
        torch.cuda.set_device(args.device)
    return str(args.device)


def checked_device(name: str) -> str:
    """A device that this machine has, by name."""
    match = re.fullmatch("cpu|cuda(?::([0-9]{1,3}))?", name)
    if match is None:
        raise UsageError(f"no device {name!r}", fix="use cpu, cuda or cuda:1")
    if name != "cpu":
        import torch

        there = torch.cuda.device_count()
        if int(match[1] or 0) >= there:
            found = "there is no CUDA device" if not there else f"there are {there} CUDA devices"
            raise UsageError(f"{name}: {found}", kind="no-cuda", fix="use cpu")
    return name


@command("generate", COMPUTE, temperature=float, seed=int)
def _generate(args: argparse.Namespace) -> int:
    """What a trained model writes after a prompt.

    A model of DeepMind Mathematics gets the prompt as a question and answers it; any other
    continues the text. Greedy unless --temperature is given.

    options:
      run_folder=RUN      a folder in OUT/runs, or its name
      prompt              for example "What is 12 + 30?"
      --out DIR =out      where a name is looked up
      --tokens N =128     at most (128)
      --temperature T =0  default: 0
      --seed SEED =0      of sampling (default: 0)

    examples:
      generate sample-dm_math-tango-s17-101 "What is 12 + 30?"
    """
    reporter_of(args).say(f"loading {args.run_folder} …")
    from tangobench.eval.scoring.generate import answer
    from tangobench.eval.scoring.results import load_model
    from tangobench.model.training.runs import find_run_folder
    from tangobench.pipeline.tokenizer.use import saved

    if not 0 <= args.temperature <= 100 or not 0 <= args.seed < 1 << 63:
        fix = "use a temperature from 0 to 100 and a seed of at least 0"
        raise UsageError("--temperature or --seed is out of range", fix=fix)
    folder = find_run_folder(args.run_folder, args.out)
    model = load_model(folder, compute_device(args))
    sampling = {"longest": args.tokens, "temperature": args.temperature, "seed": args.seed}
    found = answer(model, args.prompt, saved(folder), **sampling)
    return show(args, {"prompt": args.prompt, "answer": found, **sampling}, found)


@command("attest", COMPUTE)
def _attest(args: argparse.Namespace) -> int:
    """Check kernels, speed and a root on this machine; prints one JSON to send back.

    Checks the kernels, takes some steps, compares their time with the plan and the dataset's root
    with the committed one. The JSON names the device, versions and commit, no host and no path.

    options:
      --recipe NAME =mini-dm_math-tango  what to run (default: mini-dm_math-tango)
      --steps N =200  default: 200
      --out DIR =out  where datasets are

    examples:
      attest --recipe sample-dm_math-tango --steps 10
      attest --device cuda > attested.json
    """
    reporter_of(args).say("checking the kernels …")  # torch takes seconds to load
    emit_json(_attested(args, named_run(args.recipe, []), compute_device(args)))
    return 0


def _attested(args: argparse.Namespace, run: Run, device: str) -> dict[str, Any]:
    import torch

    from tangobench.eval.comparison.replicate import provided
    from tangobench.model.kernels import crossgate
    from tangobench.model.training.plan import chip, chip_name, plan
    from tangobench.model.training.runs import provenance, read_metrics
    from tangobench.model.training.train import Options, train
    from tangobench.pipeline.core.lock import committed_lock

    recipe, reporter = run.recipe, reporter_of(args)
    root = provided(run, args.out, reporter=reporter, workers=2).root
    committed = committed_lock(recipe.dataset, recipe.profile)
    kernel = crossgate.chosen(torch.empty(0, device=device))
    refused = None if device == "cpu" else crossgate.refusal(device)
    place, data = args.out / "attest", str(args.out / recipe.folder)
    options = Options(out=place, device=device, stop_at=args.steps, validate_every=0, data=data)
    rows = read_metrics(train(run, options, reporter) / "metrics.jsonl")[: args.steps]
    planned = plan(recipe, chip(chip_name(device)))
    return {
        "format": "tangobench-attest/1",
        "machine": provenance(device),
        "kernel": {"chosen": kernel, "refused": refused},
        "training": {
            "run": run.name,
            "steps": len(rows),
            "first_loss": rows[0]["loss"],
            "last_loss": rows[-1]["loss"],
            "step_seconds": statistics.median(r["seconds"] for r in rows[_WARM_UP:] or rows),
            "planned_step_seconds": planned["step_seconds"],
            "planned_for": planned["device"],
        },
        "data": {
            "dataset": recipe.folder,
            "root": root,
            "as_committed": committed is not None and committed.root == root,
        },
    }
