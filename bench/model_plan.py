"""Planned and measured CPU time of a training step, all six architectures.

Usage: `OMP_NUM_THREADS=1 python bench/model_plan.py [--size mini|sample] [--length 256]`.
Prints both and their ratio; a plan is good to within a factor of 1.5.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import numpy as np
import torch

from tangobench.model import build
from tangobench.model.config import ARCHS
from tangobench.model.training import plan
from tangobench.model.training.distributed import World
from tangobench.model.training.loader import Batch
from tangobench.model.training.optim import make_optimizer
from tangobench.model.training.recipes import RECIPES, Recipe
from tangobench.model.training.train import accumulate


def measured(recipe: Recipe, length: int, microbatch: int, repeat: int) -> float:
    """Median CPU seconds of a step on full rows."""
    model = build(recipe.model_config(), seed=17)
    optimizer = make_optimizer(model, recipe)
    shape = (recipe.batch, length)
    tokens = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape) * 31
    tokens %= model.config.vocabulary
    marks = np.ones(shape, bool)
    marks[:, 0] = False
    batch = Batch(0, "default", np.arange(shape[0]), tokens, marks, np.full(shape[0], length))
    times = []
    for _ in range(repeat + 1):
        began = time.process_time()
        accumulate(model, batch, microbatch=microbatch, precision=recipe.precision, peers=World())
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        times.append(time.process_time() - began)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="mini", choices=("mini", "sample"))
    parser.add_argument("--dataset", default="dm_math")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    print(f"{'architecture':<24}{'planned':>10}{'measured':>10}{'ratio':>8}   bound by")
    for arch in ARCHS:
        recipe = RECIPES[f"{args.size}-{args.dataset}-{arch}"]
        # A profile that the project ships no lock of: rows are full.
        recipe = dataclasses.replace(recipe, context=args.length, profile="full")
        planned = plan.plan(recipe, plan.chip("cpu"))
        found = measured(recipe, args.length, planned["microbatch"], args.repeat)
        seconds = planned["step_seconds"]
        name, part = max(planned["parts"].items(), key=lambda item: item[1]["seconds"])
        numbers = f"{seconds:>9.2f}s{found:>9.2f}s{seconds / found:>8.2f}"
        print(f"{arch:<24}{numbers}   {name}: {part['bound']}")


if __name__ == "__main__":
    main()
