"""Wall-clock and memory of training and decoding, with the analytical operation counts beside.

- A measurement is a process of its own (`timing`), so that its peak is its own.
- Seconds are wall-clock and belong to this machine; MACs per token are the paper's formulas of a
  parallel pass at T and carry over. They give a rate for training only: a decoded token of WANGO or
  FLASH needs fewer operations.
- A registered architecture takes TANGO's recipe and has no formula. Reading files loads no torch.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, get_args

from pydantic import Field
from typing_extensions import TypedDict

from tangobench.errors import ResourceError
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.eval.scoring.result_files import Number, checked
from tangobench.model.config import ARCHS, SCALING, Arch, ModelConfig, formula
from tangobench.model.training.recipes import RECIPES, Precision, Recipe
from tangobench.pipeline.core.files import read_untrusted
from tangobench.pipeline.core.lock import Count, Name
from tangobench.pipeline.core.progress import units

Task = Literal["train", "decode"]
Size = Literal["mini", "published"]
TASKS: Final[tuple[Task, ...]] = get_args(Task)

TOKENS: Final = 2048  # per training step: rows of the paper's shortest context fit eight times
DECODED: Final = 16  # few, so that T is about the same in all repetitions
REPETITIONS: Final[dict[Task, int]] = {"train": 3, "decode": 5}
LENGTHS: Final = (256, 1024, 4096)
_NOTES: Final = {
    "train": "The formula counts every pair of positions, as the paper does; the code skips masked "
    "ones, so its own rate is lower.",
    "decode": "The formula is that of a parallel pass over T tokens. FLASH is timed at the start "
    "of a chunk; its last tokens cost more.",
}
_COLUMNS: Final = (
    *("Model", "T", "Tokens/s, measured", "Peak memory, measured"),
    "Forward MACs per token, formula",
)
_RECIPES: Final = {"mini": "mini-dm_math-{}", "published": "dm_math-{}-4"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What one process measures."""

    arch: Arch
    task: Task
    length: int
    size: Size = "mini"
    device: str = "cpu"
    precision: Precision = "fp32"

    def __post_init__(self) -> None:
        self.config()  # refuses an unknown architecture

    @property
    def recipe(self) -> Recipe:
        """The DeepMind Mathematics recipe: its small vocabulary leaves the blocks to be seen."""
        own = _RECIPES[self.size].format(self.arch)
        return RECIPES.get(own) or replace(
            RECIPES[_RECIPES[self.size].format("tango")], name=own, arch=self.arch
        )

    def config(self) -> ModelConfig:
        """The recipe's model, with room for T tokens and those decoded."""
        decoded = (1 + REPETITIONS["decode"]) * DECODED
        return replace(self.recipe.model_config(), context=self.length + decoded)


def jobs(archs: Sequence[Arch], lengths: Sequence[int], **fields: Any) -> list[Job]:
    cases = itertools.product(lengths, TASKS, archs)
    return [Job(arch=arch, task=task, length=length, **fields) for length, task, arch in cases]


def measure(job: Job) -> dict[str, Any]:
    """One job in a process of its own, with its operation counts."""
    from tangobench.model.language import BLOCKS

    # The module of a registered block registers it there too.
    modules = f"{BLOCKS[job.arch].__module__}, tangobench.eval.costs.timing"
    program = f"import sys; sys.path[:] = {sys.path!r}; import {modules} as timing; timing.main()"
    command = [sys.executable, "-c", program, json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        raise ResourceError(
            f"speed of {job.arch} at T = {job.length:,} ({job.task}): {last[0]}",
            kind="out-of-memory" if done.returncode < 0 else "measurement-failed",
            fix="measure shorter sequences, or on a machine with more memory",
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    known = job.arch in SCALING
    macs = sum(formula(job.config(), job.length).values()) // job.length if known else None
    counts = {"forward_macs_per_token": macs, "scaling": SCALING.get(job.arch)}
    return {**asdict(job), **found, **counts}


class _Case(TypedDict):  # One measurement; what the tables and figures use of it
    task: Task
    arch: Name
    size: str
    precision: str
    length: Annotated[Count, Field(ge=1)]
    threads: Count
    tokens_per_second: Annotated[Number, Field(gt=0)]
    forward_macs_per_token: Number | None
    peak_bytes: Count
    disturbed: bool
    rounds: NotRequired[Count]


class _Measured(TypedDict):
    machine: dict[str, str | int]
    cases: Annotated[list[_Case], Field(min_length=1)]


def read_speed(path: Path) -> dict[str, Any]:
    """The measurements of a file that anybody may have written; else a ValueError."""
    try:
        found: dict[str, Any] = json.loads(read_untrusted(path, links=True))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except OSError as error:
        raise ValueError(error.strerror) from None
    if not {"device", "torch"} <= checked(_Measured, found)["machine"].keys():
        raise ValueError("it does not name its machine")
    return found


def speed_tables(measured: dict[str, Any]) -> Iterator[Table]:
    order = {arch: place for place, arch in enumerate(ARCHS)}
    for task, name in (("train", "Training"), ("decode", "Decoding")):
        cases = [case for case in measured["cases"] if case["task"] == task]
        cases.sort(key=lambda case: (order.get(case["arch"], 99), case["arch"], case["length"]))
        if cases:
            yield Table(
                title=f"{name}: tokens per second, peak memory and operations",
                columns=[*_COLUMNS, *(["GFLOP/s by the formula"] if task == "train" else [])],
                rows=[_row(case) for case in cases],
                note=f"Ours; the paper has none. {cases[0]['size']} models on "
                f"{machine_text(measured)}. {_NOTES[task]}",
            )


def machine_text(measured: dict[str, Any]) -> str:
    machine, first = measured["machine"], measured["cases"][0]
    rounds = first.get("rounds", 1)
    return (
        f"{machine['device']}, {units(first['threads'], 'thread')}, {first['precision']}, "
        f"PyTorch {machine['torch']}{f', fastest of {rounds} rounds' if rounds > 1 else ''}"
    )


def _row(case: dict[str, Any]) -> list[str]:
    rate, macs = case["tokens_per_second"], case["forward_macs_per_token"]
    counted = "–" if macs is None else f"{macs / 1e6:,.2f}M"
    work = "–" if macs is None else f"{6e-9 * rate * macs:,.1f}"  # 2 per MAC; backward is 2 forward
    return [
        LABELS.get(case["arch"], case["arch"]),
        f"{case['length']:,}",
        f"{rate:,.0f}{' (disturbed)' if case['disturbed'] else ''}",
        f"{case['peak_bytes'] / 1e6:,.0f} MB",
        *([counted, work] if case["task"] == "train" else [counted]),
    ]
