"""Inside the process that measures: seconds and bytes of one job.

- The peak is that of resident memory above the imported libraries on a CPU, on CUDA what the
  allocator handed out at most. The peak of decoding leaves out the prompt's parallel pass, as its
  seconds do (where there is no Linux and no CUDA, the mark cannot be set back, and the pass is part
  of it).
- Training is loss, backward and optimizer step on rows of T tokens, `TOKENS` per step or one row;
  decoding is one token after another behind T tokens, one sequence, the prompt not timed.
- Seconds are the best of the repetitions after one that is not counted. `disturbed` marks a
  measurement on a CPU that got less than `UNDISTURBED` CPU seconds per second, or whose median
  repetition took more than `STEADY` times the best (`spread`): measure again.
"""

from __future__ import annotations

import ctypes
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch

from tangobench.eval.costs import speed
from tangobench.model import build
from tangobench.model.language import LanguageModel
from tangobench.model.training import loader
from tangobench.model.training.optim import autocast, make_optimizer

UNDISTURBED: Final = 0.9  # several threads wait for each other too, so this asks for one alone
STEADY: Final = 1.2


def main() -> None:
    print(json.dumps(measure_here(speed.Job(**json.loads(sys.argv[1])))))


def measure_here(job: speed.Job) -> dict[str, Any]:
    forget_peak()
    before = resident_peak()
    model = build(job.config(), seed=17, device=job.device)
    run, tokens = _training(job, model) if job.task == "train" else _decoding(job, model)
    timed = [_timed(run, job.device) for _ in range(1 + speed.REPETITIONS[job.task])][1:]
    seconds, cpu_seconds = min(timed)
    spread = statistics.median(wall for wall, _ in timed) / seconds
    on_cpu = job.device == "cpu"
    return {
        "tokens": tokens,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "spread": spread,
        "disturbed": on_cpu and (cpu_seconds < UNDISTURBED * seconds or spread > STEADY),
        "tokens_per_second": tokens / seconds,
        "peak_bytes": resident_peak() - before if on_cpu else torch.cuda.max_memory_allocated(),
        "threads": torch.get_num_threads(),
    }


def _training(job: speed.Job, model: LanguageModel) -> tuple[Callable[[], None], int]:
    optimizer = make_optimizer(model, job.recipe)
    rows = max(1, speed.TOKENS // job.length)
    tokens = torch.arange(rows * job.length, device=job.device).view(rows, -1)
    tokens = tokens * 31 % model.config.vocabulary
    marks = torch.ones_like(tokens)
    size = loader.rows_at_once(model, rows, job.length, job.precision)

    def step() -> None:
        optimizer.zero_grad()
        for part, mark in zip(tokens.split(size), marks.split(size), strict=True):
            with autocast(job.device, job.precision):
                nll, _ = model.loss(part, mark)
            (nll / tokens.numel()).backward()
        optimizer.step()

    return step, tokens.numel()


def _decoding(job: speed.Job, model: LanguageModel) -> tuple[Callable[[], None], int]:
    token = torch.zeros(1, dtype=torch.long, device=job.device)
    with torch.no_grad(), autocast(job.device, job.precision):
        _, state = model.prefill(token.expand(1, job.length))
    forget_peak()

    def decode() -> None:
        with autocast(job.device, job.precision):
            for _ in range(speed.DECODED):
                model.step(token, state)

    return decode, speed.DECODED


def _timed(run: Callable[[], None], device: str) -> tuple[float, float]:
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
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    mark = Path("/proc/self/clear_refs")
    if mark.exists():
        # glibc keeps freed blocks of up to 32 MB: give them back first.
        getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
        mark.write_text("5")  # VmHWM, see proc(5)


def machine(device: str) -> dict[str, Any]:
    cpus = Path("/proc/cpuinfo")
    name = platform.processor() or platform.machine()
    if device != "cpu":
        name = torch.cuda.get_device_name()
    elif cpus.exists():
        lines = (line.partition(":") for line in cpus.read_text().splitlines())
        name = next((value.strip() for key, _, value in lines if "model name" in key), name)
    return {"device": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
