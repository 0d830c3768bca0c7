"""Wall-clock and memory of training and decoding, with the analytical operation counts beside.

- A measurement is a process of its own, so that its peak is its own: on a CPU the peak of resident
  memory above that of the imported libraries, on CUDA what the allocator handed out at most. The
  peak of decoding leaves out the prompt's parallel pass, as its seconds do (where there is no Linux
  and no CUDA, the mark cannot be set back, and the pass is part of it).
- Training is loss, backward and optimizer step on rows of T tokens, `TOKENS` per step or one row;
  decoding is one token after another behind T tokens, one sequence, the prompt not timed.
- Seconds are wall-clock, the best of the repetitions after one that is not counted. They belong to
  this machine; MACs per token are the paper's formulas of a parallel pass at T and carry over. They
  give a rate for training only: a decoded token of WANGO or FLASH needs fewer operations.
- `disturbed` marks a measurement on a CPU that got less than `UNDISTURBED` CPU seconds per second,
  or whose median repetition took more than `STEADY` times the best (`spread`): measure again.
"""

from __future__ import annotations

import ctypes
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

import torch

from tangobench.errors import ResourceError, UsageError
from tangobench.eval.costs import macs
from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.model import build
from tangobench.model.config import ARCHS, Arch, ModelConfig
from tangobench.model.language import LanguageModel
from tangobench.model.training import plan
from tangobench.model.training.optim import autocast, make_optimizer
from tangobench.model.training.recipes import RECIPES, Precision, Recipe

Task = Literal["train", "decode"]
Size = Literal["mini", "published"]
TASKS: Final[tuple[Task, ...]] = get_args(Task)

TOKENS: Final = 2048  # per training step: rows of the paper's shortest context fit eight times
DECODED: Final = 16  # few, so that T is about the same in all repetitions
REPETITIONS: Final[dict[Task, int]] = {"train": 3, "decode": 5}
LENGTHS: Final = (256, 1024, 4096)
UNDISTURBED: Final = 0.9  # several threads wait for each other too, so this asks for one alone
STEADY: Final = 1.2
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
_RECIPES: Final = {"mini": "mini-dm_math-{arch}", "published": "dm_math-{arch}-4"}


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
        for name, value, allowed in (
            ("arch", self.arch, ARCHS),
            ("task", self.task, TASKS),
            ("size", self.size, get_args(Size)),
            ("precision", self.precision, ("fp32", "bf16")),
        ):
            if value not in allowed:
                _bad(name, value, f"one of {', '.join(allowed)}")
        if self.length < 1:
            _bad("length", self.length, "at least 1")
        if self.device != "cpu" and not torch.cuda.is_available():
            _bad("device", self.device, "cpu: this machine has no CUDA device")

    @property
    def recipe(self) -> Recipe:
        """The DeepMind Mathematics recipe: its small vocabulary leaves the blocks to be seen."""
        return RECIPES[_RECIPES[self.size].format(arch=self.arch)]

    def config(self) -> ModelConfig:
        """The recipe's model, with room for T tokens and those decoded."""
        decoded = (1 + REPETITIONS["decode"]) * DECODED
        return replace(self.recipe.model_config(), context=self.length + decoded)


def _bad(name: str, value: object, expected: str) -> None:
    raise UsageError(
        f"speed: {name} = {value!r}, expected {expected}",
        kind="usage",
        fix=f"give {expected}",
    )


def jobs(archs: Sequence[Arch], lengths: Sequence[int], **fields: Any) -> Iterator[Job]:
    """Every task of every architecture at every length, shortest first."""
    for length in lengths:
        for task in TASKS:
            for arch in archs:
                yield Job(arch=arch, task=task, length=length, **fields)


def measure(job: Job) -> dict[str, Any]:
    """One job in a process of its own, with its operation counts."""
    command = [sys.executable, "-m", "tangobench.eval.costs.speed", json.dumps(asdict(job))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit {done.returncode}"]
        raise ResourceError(
            f"speed of {job.arch} at T = {job.length:,} ({job.task}): {last[0]}",
            kind="out-of-memory" if done.returncode < 0 else "measurement-failed",
            fix="measure shorter sequences, or on a machine with more memory",
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    terms = macs.formula(job.config(), job.length)
    return {
        **asdict(job),
        **found,
        "forward_macs_per_token": sum(terms.values()) // job.length,
        "scaling": macs.SCALING[job.arch],
    }


def measure_here(job: Job) -> dict[str, Any]:
    """Inside the process: seconds and bytes."""
    forget_peak()
    before = resident_peak()
    model = build(job.config(), seed=17, device=job.device)
    run, tokens = _training(job, model) if job.task == "train" else _decoding(job, model)
    timed = [_timed(run, job.device) for _ in range(1 + REPETITIONS[job.task])][1:]
    seconds, cpu_seconds = min(timed)
    spread = statistics.median(wall for wall, _ in timed) / seconds
    on_cpu = job.device == "cpu"
    peak = resident_peak() - before if on_cpu else torch.cuda.max_memory_allocated()
    return {
        "tokens": tokens,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "spread": spread,
        "disturbed": on_cpu and (cpu_seconds < UNDISTURBED * seconds or spread > STEADY),
        "tokens_per_second": tokens / seconds,
        "peak_bytes": peak,
        "threads": torch.get_num_threads(),
    }


def _training(job: Job, model: LanguageModel) -> tuple[Callable[[], None], int]:
    optimizer = make_optimizer(model, job.recipe)
    rows = max(1, TOKENS // job.length)
    tokens = torch.arange(rows * job.length, device=job.device).view(rows, -1)
    tokens = tokens * 31 % model.config.vocabulary
    marks = torch.ones_like(tokens)
    size = plan.microbatch(model, rows, job.length, job.precision)

    def step() -> None:
        optimizer.zero_grad()
        for part, mark in zip(tokens.split(size), marks.split(size), strict=True):
            with autocast(job.device, job.precision):
                nll, _ = model.loss(part, mark)
            (nll / tokens.numel()).backward()
        optimizer.step()

    return step, tokens.numel()


def _decoding(job: Job, model: LanguageModel) -> tuple[Callable[[], None], int]:
    token = torch.zeros(1, dtype=torch.long, device=job.device)
    with torch.no_grad(), autocast(job.device, job.precision):
        _, state = model.prefill(token.expand(1, job.length))
    forget_peak()

    def decode() -> None:
        with autocast(job.device, job.precision):
            for _ in range(DECODED):
                model.step(token, state)

    return decode, DECODED


def _timed(run: Callable[[], None], device: str) -> tuple[float, float]:
    """Wall-clock and CPU seconds."""
    began, worked = time.perf_counter(), time.process_time()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began, time.process_time() - worked


def resident_peak() -> int:
    """Most bytes that this process had in memory at once.

    Linux's ru_maxrss would do, but it begins with the size of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (x for x in status.read_text().splitlines() if x.startswith("VmHWM:"))
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def forget_peak() -> None:
    """Set the peak back to what is in memory now."""
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    mark = Path("/proc/self/clear_refs")
    if mark.exists():
        # glibc keeps freed blocks of up to 32 MB: give them back first.
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
        mark.write_text("5")  # VmHWM, see proc(5)


def machine(device: str) -> dict[str, Any]:
    """What the seconds belong to."""
    name = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        lines = (line.partition(":") for line in cpus.read_text().splitlines())
        name = next((value.strip() for key, _, value in lines if "model name" in key), name)
    if device != "cpu":
        name = torch.cuda.get_device_name()
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}


def speed_tables(measured: dict[str, Any]) -> Iterator[Table]:
    """Training, then decoding: a row per model and length."""
    for task, name in (("train", "Training"), ("decode", "Decoding")):
        cases = [case for case in measured["cases"] if case["task"] == task]
        cases.sort(key=lambda case: (ARCHS.index(case["arch"]), case["length"]))
        if cases:
            yield Table(
                title=f"{name}: tokens per second, peak memory and operations",
                columns=[*_COLUMNS, *(["GFLOP/s by the formula"] if task == "train" else [])],
                rows=[_row(case) for case in cases],
                note=f"Ours; the paper has none. {cases[0]['size']} models on "
                f"{machine_text(measured)}. {_NOTES[task]}",
            )


def machine_text(measured: dict[str, Any]) -> str:
    """Where a file's seconds were measured."""
    machine, first = measured["machine"], measured["cases"][0]
    rounds = first.get("rounds", 1)
    return (
        f"{machine['device']}, {first['threads']} thread(s), {first['precision']}, "
        f"PyTorch {machine['torch']}{f', fastest of {rounds} rounds' if rounds > 1 else ''}"
    )


def _row(case: dict[str, Any]) -> list[str]:
    # Two operations per MAC, and backward is twice forward.
    work = 6e-9 * case["tokens_per_second"] * case["forward_macs_per_token"]
    return [
        LABELS[case["arch"]],
        f"{case['length']:,}",
        f"{case['tokens_per_second']:,.0f}{' (disturbed)' if case['disturbed'] else ''}",
        f"{case['peak_bytes'] / 1e6:,.0f} MB",
        f"{case['forward_macs_per_token'] / 1e6:,.2f}M",
        *([f"{work:,.1f}"] if case["task"] == "train" else []),
    ]


if __name__ == "__main__":
    print(json.dumps(measure_here(Job(**json.loads(sys.argv[1])))))
