"""What a run takes on a device: how many rows fit at once, and memory, launches, bytes and hours.

- A step is counted on tensors without storage (`model/counting.py`); a chip's rates turn each
  operation into seconds: the longest of arithmetic, bytes and launch on a GPU, their sum on a CPU.
- `CHIPS` are data-sheet peaks; nothing was measured on a GPU. A CPU is measured when asked.
- Rows have the mean length of the project's lock, every token is a target, GPUs run `batched`.
- Utilisation is useful arithmetic (three forward passes by the paper's formulas, causal pairs and
  rows of targets only) over time × the GEMM rate that this device reached just before.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from tangobench.errors import UsageError
from tangobench.model.config import SCALING, ModelConfig, formula
from tangobench.model.counting import Op, optimizer_work, step_work
from tangobench.model.kernels import crossgate
from tangobench.model.training.loader import Batch, power_of_two, rows_on_cpu
from tangobench.model.training.recipes import Precision, Recipe
from tangobench.pipeline.core.lock import committed_lock
from tangobench.pipeline.core.progress import duration, size, units

BOUNDS: Final = ("arithmetic", "bytes", "launches")
SHARE: Final = 0.85  # of a GPU's free memory; the rest is for libraries and fragmentation


@dataclass(frozen=True, kw_only=True, slots=True)
class Chip:
    """Peak rates of a device, and the share of them that plans assume."""

    name: str
    source: str
    flops: dict[torch.dtype, float]  # of products, by the dtype of their inputs; TF32 stays off
    bandwidth: float
    slow_bandwidth: float  # bytes/s of exp and the like
    link: float  # bytes/s between host and device
    memory: float
    launch: float  # seconds of an empty operation
    product_share: float
    bytes_share: float

    @property
    def type(self) -> str:
        return "cpu" if self.name == "cpu" else "cuda"

    def seconds(self, op: Op) -> tuple[float, float, float]:
        """Seconds of an operation's arithmetic, bytes and launch, each by itself."""
        bandwidth = self.slow_bandwidth if op.kind == "slow" else self.bandwidth
        rate = self.flops.get(op.dtype, self.flops[torch.float32]) * self.product_share
        return op.flop / rate, op.bytes / (bandwidth * self.bytes_share), self.launch


def _gpu(name: str, source: str, *peaks: float) -> Chip:
    bf16, fp32, bandwidth, link = peaks
    flops = {torch.bfloat16: bf16, torch.float32: fp32, torch.float64: fp32 / 2}
    rates = {"bandwidth": bandwidth, "slow_bandwidth": bandwidth, "link": link, "memory": 80e9}
    shares = {"product_share": 0.6, "bytes_share": 0.75, "launch": 5e-6}
    return Chip(name=name, source=source, flops=flops, **rates, **shares)


CHIPS: Final = {
    "h100": _gpu("h100", "NVIDIA H100 data sheet, SXM5 80 GB: 989 TFLOP/s bf16 without sparsity, "
                 "67 fp32, 3.35 TB/s, PCIe 5 x16", 989e12, 67e12, 3.35e12, 50e9),
    "a100": _gpu("a100", "NVIDIA A100 data sheet, SXM4 80 GB: 312 TFLOP/s bf16 without sparsity, "
                 "19.5 fp32, 2.04 TB/s, PCIe 4 x16", 312e12, 19.5e12, 2.04e12, 25e9),
}  # fmt: skip


def chip(name: str) -> Chip:
    """A device by name; `cpu` is this machine, measured."""
    if name == "cpu":
        return _this_cpu()
    if name not in CHIPS:
        known = f"use one of {', '.join(CHIPS)} or cpu"
        raise UsageError(f"no rates of a device {name!r}", kind="usage", fix=known)
    return CHIPS[name]


def chip_name(device: str) -> str:
    if device == "cpu":
        return "cpu"
    name = torch.cuda.get_device_name().lower() if torch.cuda.is_available() else "h100"
    return next((known for known in CHIPS if known in name), "h100")


@functools.cache
def _this_cpu() -> Chip:
    small, large = torch.zeros(4), torch.rand(1 << 22)  # beyond the second-level cache
    moved = 2 * large.nbytes / best(lambda: torch.mul(large, 1.5))
    return Chip(
        name="cpu",
        source=f"measured on this machine with {units(torch.get_num_threads(), 'thread')}",
        flops={DTYPES[name]: gemm_rate("cpu", name) for name in ("fp32", "bf16", "fp64")},
        bandwidth=moved,
        slow_bandwidth=2 * large.nbytes / best(lambda: torch.exp(large)),
        link=moved,
        memory=float("inf"),
        launch=best(lambda: [small.add(small) for _ in range(100)]) / 100,
        product_share=0.8,
        bytes_share=1.0,
    )


def plan(recipe: Recipe, on: Chip, microbatch: int | None = None) -> dict[str, Any]:
    """The whole plan as plain values; steps of several configs are averaged."""
    config, bf16 = recipe.model_config(), recipe.precision == "bf16"
    if on.type == "cpu":
        fit = Fit(rows_on_cpu(recipe.batch, recipe.context), False, 0)
    else:
        free = int(on.memory)
        fit = fitting(config, recipe.batch, recipe.context, recipe.precision, free)
    rows = microbatch or fit.rows
    lengths = row_lengths(recipe)
    parts: dict[str, dict[str, Any]] = {}
    with crossgate.using("strips" if on.type == "cpu" else "batched", recompute=fit.recomputes):
        peak = step_work(config, rows, recipe.context, bf16=bf16).peak_bytes
        for length in lengths.values():
            work = step_work(config, rows, length, bf16=bf16)
            times = -(-recipe.batch // rows)
            for name, ops in work.parts.items():
                _add(parts, name, ops, on, times / len(lengths))
            _add(parts, "optimiser", optimizer_work(config, on.type), on, 1 / len(lengths))
            copy = Op("link", "", torch.int64, 0, 9 * recipe.batch * length)
            _add(parts, "data", Counter({copy: 1}), on, 1 / len(lengths))
    seconds = sum(part["seconds"] for part in parts.values())
    return {
        "recipe": recipe.name,
        "device": on.name,
        "source": on.source,
        "assumed_share": {"products": on.product_share, "bytes": on.bytes_share},
        "kernel": "strips" if on.type == "cpu" else "batched",
        "precision": recipe.precision,
        "microbatch": rows,
        "recomputes": fit.recomputes,
        "row_tokens": lengths,
        "peak_bytes": peak,
        "fits": peak <= SHARE * on.memory,
        "parts": parts,
        "step_seconds": seconds,
        "steps": recipe.steps,
        "hours": seconds * recipe.steps / 3600,
        "hours_arithmetic": recipe.steps / 3600 * sum(p["arithmetic"] for p in parts.values()),
    }


def _add(
    parts: dict[str, dict[str, Any]], name: str, ops: Counter[Op], on: Chip, times: float
) -> None:
    """Add operations to a part: what they are, how long they take, and what they wait for."""
    part = parts.setdefault(name, dict.fromkeys(("launches", "flop", "bytes", "arithmetic"), 0))
    waits: dict[str, float] = part.setdefault("waits", dict.fromkeys(BOUNDS, 0.0))
    for op, number in ops.items():
        alone = on.seconds(op)
        if op.kind == "link":
            alone = (0.0, op.bytes / on.link, on.launch)
        longest = max(range(3), key=alone.__getitem__)
        taken = max(alone) if on.type == "cuda" else sum(alone)
        waits[BOUNDS[longest]] += times * number * taken
        part["arithmetic"] += times * number * alone[0]
        part["launches"] += times * number
        part["flop"] += times * number * op.flop
        part["bytes"] += times * number * op.bytes
    part["seconds"] = sum(waits.values())
    part["bound"] = max(waits, key=waits.__getitem__)


def lines(planned: dict[str, Any]) -> list[str]:
    share, tokens = planned["assumed_share"], planned["row_tokens"]
    rows = ", ".join(f"{count:,} tokens ({name})" for name, count in tokens.items())
    again = ", activations recomputed" if planned["recomputes"] else ""
    table = [("part", "launches", "TFLOP", "GB", "seconds", "bound by")]
    for name, part in planned["parts"].items():
        numbers = (part["flop"] / 1e12, part["bytes"] / 1e9, part["seconds"])
        cells = [f"{part['launches']:,.0f}", *(f"{number:,.3f}" for number in numbers)]
        table.append((name, *cells, part["bound"]))
    return [
        f"recipe   {planned['recipe']} on {planned['device']}, {planned['precision']}, "
        f"kernel {planned['kernel']}",
        f"rows     {rows}; {planned['microbatch']} at once{again}",
        f"memory   {size(planned['peak_bytes'])}" + ("" if planned["fits"] else " DOES NOT FIT"),
        f"time     {duration(3600 * planned['hours'])}: {planned['steps']:,} steps of "
        f"{planned['step_seconds']:,.3f} s, assuming {share['products']:.0%} of the peak rate of "
        f"products and {share['bytes']:.0%} of the bandwidth; arithmetic alone "
        f"{duration(3600 * planned['hours_arithmetic'])}",
        f"rates    {planned['source']}",
        "",
        *(f"{row[0]:<16}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in table),
    ]


def row_lengths(recipe: Recipe) -> dict[str, int]:
    """Mean tokens of a training row by config, as the project's own lock says, or full rows."""
    lock = committed_lock(recipe.dataset, recipe.profile)
    if lock is None:
        return {"full rows": recipe.context}
    found = {}
    for config in lock.configs:
        shards = lock.shards_of(config, "train")
        mean = sum(s["tokens"] for s in shards) / sum(s["rows"] for s in shards)
        found[config] = min(recipe.context, round(mean))
    return found


class Fit(NamedTuple):
    """A microbatch and what it takes on a GPU."""

    rows: int
    recomputes: bool
    peak_bytes: int


def fitting(config: ModelConfig, rows: int, context: int, precision: Precision, free: int) -> Fit:
    """The most rows whose peak is below a share of `free` bytes; one row if none is."""
    bf16 = precision == "bf16"
    for recompute in (False, True):
        with crossgate.using("batched", recompute=recompute):
            one, two = (step_work(config, n, context, bf16=bf16).peak_bytes for n in (1, 2))
        if one <= SHARE * free or recompute:
            break
    fits = power_of_two(min(rows, 1 + max(0, int((SHARE * free - one) / max(1, two - one)))))
    return Fit(fits, recompute, one + (fits - 1) * (two - one))


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory ran out, on a GPU or in the CPU's allocator."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


_TRACED: Final = 3  # steps of a profile, after one that warms up
_GEMM: Final = 768
_REPETITIONS: Final = 8
_CAUSAL: Final = {"tango", "recurrent_transformer", "untied_transformer", "gau"}
DTYPES: Final = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


class Meter:
    """Tokens per second and utilisation since the start of this process."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self._config = recipe.model_config()
        self._rate = gemm_rate(device, recipe.precision)
        self._flop = self._seconds = 0.0
        self._tokens = 0

    def add(self, batch: Batch, seconds: float) -> None:
        self._flop += useful_flop(self._config, batch.lengths_B.tolist(), batch.targets)
        self._seconds += seconds
        self._tokens += batch.tokens

    def __str__(self) -> str:
        seconds = max(self._seconds, 1e-9)
        rate = f"{self._tokens / seconds:,.0f} tokens/s"
        share = self._flop / seconds / self._rate
        return f"{rate} · {share:.0%} of the GEMM rate" if share else rate


def gemm_rate(device: str, precision: str) -> float:
    a = torch.ones(_GEMM, _GEMM, device=device, dtype=DTYPES[precision])
    return 2.0 * _GEMM**3 / best(lambda: float((a @ a)[0, 0]))  # waits for a GPU


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest repetition: CPU time with one thread and no GPU, else wall time."""
    clock = time.perf_counter if torch.get_num_threads() > 1 else time.thread_time
    if torch.cuda.is_initialized():
        clock = time.perf_counter
    times = []
    for _ in range(_REPETITIONS):
        began = clock()
        work()
        times.append(clock() - began)
    return max(min(times), 1e-9)


def useful_flop(config: ModelConfig, lengths: list[int], targets: int) -> float:
    """Arithmetic of one step that no implementation can do without; 0 if there is no formula."""
    if config.arch not in SCALING:
        return 0.0
    total = float(targets * config.d_model * config.vocabulary)
    for length, rows in Counter(lengths).items():
        terms = formula(config, length)
        pairs = terms["pairs"] * ((length + 1) / (2 * length) if config.arch in _CAUSAL else 1)
        total += rows * (terms["projections"] + pairs + terms.get("state", 0))
    return 2 * 3 * total


def trace(path: Path) -> torch.profiler.profile:
    """A profile of some steps after one that warms up, as a file for chrome://tracing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=_TRACED, repeat=1),
        on_trace_ready=lambda profile: profile.export_chrome_trace(str(path)),
        profile_memory=True,
    )
