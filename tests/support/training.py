"""A run as small as one can be: seconds to train, every file that a real one has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import Options

STEPS = 8
EVERY = 2


def tiny_run(name: str = "tiny", **fields: object) -> Run:
    """Eight steps of a model of 30,000 weights."""
    small = {"steps": STEPS, "batch": 4, "warmup": 2, "target_params": 30_000, "name": name}
    recipe = dataclasses.replace(RECIPES["sample-dm_math-tango"], **{**small, **fields})
    return Run(recipe, 17, 101)


def options(out: Path) -> Options:
    """A checkpoint after every second step."""
    return Options(out=out, checkpoint_every=EVERY, microbatch=4)
