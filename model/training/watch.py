"""What a person sees of a run while it trains: validation NLL, utilisation, a profile.

- The validation rows are a fixed subset, evenly spaced over the split, chosen by the recipe alone
  and small enough to add about 5% to a run. Nothing is selected by their NLL; scores come from
  `eval`.
- Utilisation is useful arithmetic over time × the GEMM rate that this device reached just before:
  three forward passes by the paper's formulas, causal pairs only, output rows of targets only.
- Nothing here draws random numbers or touches weights.

Usage: `watch = Validation(dataset, recipe); watch.nll(model, 4)`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tangobench.model.config import SCALING, ModelConfig, formula
from tangobench.model.language import LanguageModel
from tangobench.model.training.loader import Batch, Stream, configs_of
from tangobench.model.training.precision import autocast
from tangobench.model.training.recipes import Recipe
from tangobench.pipeline.reading import Dataset

POINTS: Final = 20  # measurements of a run
_MOST_ROWS: Final = 256
_SHARE: Final = 0.05  # of a run's time; a forward pass is a third of a step
_TRACED: Final = 3  # steps of a profile, after one that warms up
_GEMM: Final = 768
_REPETITIONS: Final = 8
_CAUSAL: Final = {"tango", "recurrent_transformer", "untied_transformer", "gau"}
DTYPES: Final = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


class Validation:
    """The fixed validation rows of a run; configs without validation rows are left out."""

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        configs = [c for c in configs_of(dataset) if "validation" in dataset.lock.splits(c)]
        budget = int(_SHARE * 3 * recipe.steps * recipe.batch / POINTS / max(1, len(configs)))
        self._precision = recipe.precision
        self._batches: dict[str, Batch] = {}
        for config in configs:
            stream = Stream(dataset, config, "validation", context=recipe.context)
            count = min(len(stream), _MOST_ROWS, max(4, budget))
            rows = np.linspace(0, max(0, len(stream) - 1), count).astype(np.int64)
            if count:
                self._batches[config] = stream.batch(rows)
            stream.close()

    @torch.no_grad()
    def nll(self, model: LanguageModel, microbatch: int) -> dict[str, float]:
        """Mean NLL of the subset's targets in nats, by config, some rows at once."""
        device = next(model.parameters()).device
        found = {}
        for config, whole in self._batches.items():
            total, count = 0.0, 0
            for batch in whole.microbatches(microbatch):
                tokens, places = batch.on(device, model.config.vocabulary)
                with autocast(device.type, self._precision):
                    nll = model.loss_at(tokens, places)
                total, count = total + float(nll), count + batch.targets
            if count:
                found[config] = total / count
        return found


class Meter:
    """Tokens per second and utilisation since the start of this process."""

    def __init__(self, recipe: Recipe, device: str) -> None:
        self._config = recipe.model_config()
        self._rate = gemm_rate(device, recipe.precision)
        self._flop = self._seconds = 0.0
        self._tokens = 0

    def add(self, batch: Batch, seconds: float) -> None:
        """Count one step."""
        self._flop += useful_flop(self._config, batch.lengths_B.tolist(), batch.targets)
        self._seconds += seconds
        self._tokens += batch.tokens

    def __str__(self) -> str:
        seconds = max(self._seconds, 1e-9)
        rate = f"{self._tokens / seconds:,.0f} tokens/s"
        share = self._flop / seconds / self._rate
        return f"{rate} · {share:.0%} of the GEMM rate" if share else rate


def gemm_rate(device: str, precision: str) -> float:
    """FLOP/s of a square product on a device."""
    a = torch.ones(_GEMM, _GEMM, device=device, dtype=DTYPES[precision])
    return 2.0 * _GEMM**3 / best(lambda: float((a @ a)[0, 0]))  # waits for a GPU


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some repetitions; of one thread on a CPU, those it computed."""
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


class Trace:
    """A torch profile of the first steps after one that warms up, as a file for chrome://tracing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._steps = 0
        self._profile: Any = None

    def step(self) -> None:
        """Called after every step."""
        self._steps += 1
        if self._steps == 1:
            self._profile = torch.profiler.profile(profile_memory=True)
            self._profile.__enter__()
        elif self._steps == 1 + _TRACED:
            self.close()

    def close(self) -> None:
        """Write what there is."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.__exit__(None, None, None)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            profile.export_chrome_trace(str(self.path))
