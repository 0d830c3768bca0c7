"""Planned and measured CPU time of a training step, all six architectures.

The six alternate, and every round measures the machine's rates anew, so that other load hits plan
and step alike. Prints medians, and the ratio's median and range over the rounds; a plan is good to
within a factor of 1.5.

Usage: `OMP_NUM_THREADS=1 python bench/model_plan.py [--size mini|sample] [--length 256]`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from tangobench.model import build
from tangobench.model.config import ARCHS
from tangobench.model.training import loader, plan
from tangobench.model.training.loader import Batch
from tangobench.model.training.optim import World, make_optimizer
from tangobench.model.training.recipes import RECIPES, Recipe
from tangobench.model.training.train import accumulate


def stepper(recipe: Recipe, length: int, microbatch: int) -> Callable[[], float]:
    """What makes one step on full rows and gives its CPU seconds."""
    model = build(recipe.model_config(), seed=17)
    optimizer = make_optimizer(model, recipe)
    shape = (recipe.batch, length)
    tokens = np.arange(shape[0] * shape[1], dtype=np.int32).reshape(shape) * 31
    tokens %= model.config.vocabulary
    marks = np.ones(shape, bool)
    marks[:, 0] = False
    batch = Batch(0, "default", np.arange(shape[0]), tokens, marks, np.full(shape[0], length))

    def step() -> float:
        began = time.process_time()
        accumulate(model, batch, microbatch=microbatch, precision=recipe.precision, peers=World())
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        return time.process_time() - began

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="mini", choices=("mini", "sample"))
    parser.add_argument("--dataset", default="dm_math")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    # A profile that the project ships no lock of: rows are full.
    full = {"context": args.length, "profile": "full"}
    recipes = [
        dataclasses.replace(RECIPES[f"{args.size}-{args.dataset}-{a}"], **full) for a in ARCHS
    ]
    steps = [stepper(r, args.length, loader.rows_on_cpu(r.batch, args.length)) for r in recipes]
    times: dict[str, list[tuple[float, float]]] = {arch: [] for arch in ARCHS}
    for counted in range(args.rounds + 1):  # the first warms up
        plan._this_cpu.cache_clear()
        for arch, recipe, step in zip(ARCHS, recipes, steps, strict=True):
            found = plan.plan(recipe, plan.chip("cpu"))["step_seconds"], step()
            times[arch] += [found] if counted else []
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    print(f"{args.rounds} rounds; load averages at the end {load} on {os.cpu_count()} cores")
    print(f"{'architecture':<24}{'planned':>10}{'measured':>10}{'ratio':>8}   range")
    for arch, found in times.items():
        planned, measured = (statistics.median(side) for side in zip(*found, strict=True))
        ratios = sorted(a / b for a, b in found)
        numbers = f"{planned:>9.2f}s{measured:>9.2f}s{statistics.median(ratios):>8.2f}"
        print(f"{arch:<24}{numbers}   {ratios[0]:.2f} to {ratios[-1]:.2f}")


if __name__ == "__main__":
    main()
