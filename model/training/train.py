"""Training one run: the paper's protocol, resumable after any step.

- A step's gradient is Σ NLL of its rows / its number of targets, whatever the microbatches and
  ranks; it is clipped once, then AdamW takes one step at the schedule's rate.
- Killed at any point, the same command continues from the last checkpoint and reaches bit-identical
  weights on a CPU. SIGTERM saves a checkpoint after the current step, then the run ends.
- A loss or gradient that is not finite stops the run before the weights change.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tangobench.errors import InputError, ResourceError, UsageError
from tangobench.model import build
from tangobench.model.kernels import crossgate
from tangobench.model.language import LanguageModel
from tangobench.model.training import checkpoint, optim, plan
from tangobench.model.training.loader import POINTS, Batch, Loader, Validation, rows_at_once
from tangobench.model.training.optim import World, world
from tangobench.model.training.recipe_files import as_toml
from tangobench.model.training.recipes import RECIPES, Precision, Run
from tangobench.model.training.runs import (
    DATASET,
    MetricsLog,
    dataset_place,
    provenance,
    require_tensorboard,
    run_folder,
)
from tangobench.pipeline.core.files import exclusive, explain_os_errors, write_atomic
from tangobench.pipeline.core.progress import Reporter, units
from tangobench.pipeline.core.store import place_of
from tangobench.pipeline.reading import Dataset, open_dataset
from tangobench.pipeline.tokenizer.use import save

CHECKPOINTS_PER_RUN: Final = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Where and how a run is trained; device and microbatch change the rounding, no more."""

    out: Path
    device: str = "cpu"
    microbatch: int | None = None  # rows at once; None: `rows_at_once`, halved where memory ends
    checkpoint_every: int | None = None
    stop_at: int | None = None  # a checkpoint, and the end, after so many steps of the run
    tensorboard: bool = False
    validate_every: int | None = None  # steps between validations; 0: never, None: 20 times a run
    trace: bool = False  # a torch profile of three steps in trace.json
    data: str | None = None  # None: OUT/DATASET-PROFILE, or where the run has begun


def train(run: Run, options: Options, reporter: Reporter | None = None) -> Path:
    """Train a run to its end (or `stop_at`), resuming if it was begun; gives its folder."""
    folder = run_folder(options.out, run)
    dataset = dataset_of(run, options.out, options.data)
    if options.tensorboard:
        require_tensorboard()
    with contextlib.ExitStack() as stack:
        peers = stack.enter_context(world(options.device))
        if peers.leads:
            stack.enter_context(exclusive(folder / ".lock"))
            _note(run, options, folder, dataset)
        sizes = {"batch": run.recipe.batch, "context": run.recipe.context}
        loader = stack.enter_context(Loader(dataset, seed=run.order_seed, **sizes))
        trainer = Trainer(run, options, loader, peers, reporter or Reporter(quiet=True))
        if peers.leads and options.validate_every != 0:
            trainer.validation = Validation(dataset, run.recipe)
        stack.enter_context(_stopped_by_sigterm(trainer))
        trainer.train()
    return folder


@contextlib.contextmanager
def _stopped_by_sigterm(trainer: Trainer) -> Iterator[None]:
    """SIGTERM, however often, ends the run after the current step, with a checkpoint."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        trainer.stopping = True

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _note(run: Run, options: Options, folder: Path, dataset: Dataset) -> None:
    """Keep what a later command cannot know by the run's name."""
    with explain_os_errors(folder, 0):
        save(dataset.folder, dataset.lock, folder)
        if options.data is not None:
            place = place_of(options.data)
            place = place.absolute() if isinstance(place, Path) else place
            if place != (options.out / run.recipe.folder).absolute():
                write_atomic(folder / DATASET, str(place).encode("utf-8", "surrogateescape"))
        if run.recipe.name not in RECIPES:
            write_atomic(folder / "recipe.toml", as_toml(run.recipe).encode())


def dataset_of(run: Run, out: Path, data: str | None = None) -> Dataset:
    """The dataset of a run; refused if the recipe was not made for it."""
    recipe = run.recipe
    place = dataset_place(out, run) if data is None else place_of(data)
    if isinstance(place, Path) and not place.is_dir():
        why = f"run {run.name} needs the dataset {place}, which is not there"
        fix = f"tangobench build {recipe.dataset} --profile {recipe.profile} --out {out}"
        raise UsageError(why, kind="dataset-missing", fix=fix)
    dataset = open_dataset(str(place))
    lock, vocabulary = dataset.lock, recipe.model_config().vocabulary
    most = max(rows["vocabulary"] for rows in lock.configs.values())
    if lock.name != recipe.dataset or most > vocabulary:
        raise UsageError(
            f"{dataset.folder} does not fit recipe {recipe.name}: it is {lock.name} with {most:,} "
            f"token ids, the recipe needs {recipe.dataset} with at most {vocabulary:,}",
            kind="dataset-unfit",
            fix=f"put a {recipe.dataset} dataset there, or name another with `train --data`",
        )
    return dataset


class Trainer:
    """One process of a run."""

    def __init__(
        self, run: Run, options: Options, loader: Loader, peers: World, reporter: Reporter
    ) -> None:
        self.run, self.options, self.loader, self.peers = run, options, loader, peers
        self.reporter = reporter if peers.leads else Reporter(quiet=True)
        self.folder = run_folder(options.out, run)
        self.checkpoints = self.folder / "checkpoints"
        recipe = run.recipe
        dtype = torch.float64 if recipe.precision == "fp64" else torch.float32
        config, device = recipe.model_config(), options.device
        self.model = build(config, seed=run.init_seed, device=device, dtype=dtype)
        self.optimizer = optim.make_optimizer(self.model, recipe)
        rows = -(-recipe.batch // peers.size)
        self.microbatch = options.microbatch or rows_at_once(
            self.model, rows, recipe.context, recipe.precision
        )
        default = min(1000, max(10, recipe.steps // CHECKPOINTS_PER_RUN))
        self.checkpoint_every = options.checkpoint_every or default
        self.validate_every = options.validate_every or max(1, recipe.steps // POINTS)
        self.validation: Validation | None = None
        # Nothing draws from the global generator; seeded, its state in checkpoints is a constant.
        torch.manual_seed(run.init_seed)
        self._resume()
        peers.agree(self.loader.step, self._state_sha256())
        self.stopping = False

    def train(self) -> None:
        """Take every step that is left."""
        last = min(self.run.recipe.steps, self.options.stop_at or self.run.recipe.steps)
        first = self.loader.step
        if first >= last:
            self.reporter.say(f"{self.run.name} is at step {first:,} already: nothing to do")
            return
        if first:
            self.reporter.say(f"{self.run.name}: going on from step {first:,}")
        meter = None if self.reporter.quiet else plan.Meter(self.run.recipe, self.options.device)
        self.reporter.start(self.run.name, last, last, noun="step")
        for _ in range(first):
            self.reporter.advance(1.0, reused=True)
        with contextlib.ExitStack() as stack:
            log = profile = None
            if self.peers.leads:
                path, sinks = self.folder / "metrics.jsonl", self.options.tensorboard
                log = MetricsLog(path, first_step=first, tensorboard=sinks)
                stack.enter_context(contextlib.closing(log))
            if self.options.trace:
                profile = stack.enter_context(plan.trace(self.folder / "trace.json"))
            while self.loader.step < last:
                row = self._logged_step(next(self.loader), last, log, meter)
                if profile is not None:
                    profile.step()
        self.reporter.finish()
        self.reporter.say(f"{self.run.name}: {self._state(row)} · {meter}")

    def _logged_step(
        self, batch: Batch, last: int, log: MetricsLog | None, meter: plan.Meter | None
    ) -> dict[str, Any]:
        """A step with all that is written down about it, and a checkpoint where it is due."""
        row = self._step(batch)
        stop, done = bool(row.pop("stop")), self.loader.step
        self._validate(row, done, last)
        if log is not None:
            log.write(row)
        if meter is not None:
            meter.add(batch, row["seconds"])
            self.reporter.advance(1.0, label=f"loss {row['loss']:.3f} · {meter}")
        if done % self.checkpoint_every == 0 or done == last or stop:
            self._save(log)
        if stop and done < last:
            raise KeyboardInterrupt
        return row

    def _validate(self, row: dict[str, Any], done: int, last: int) -> None:
        """Add the validation NLL to a step's row, where it is due."""
        if self.validation is None or (done % self.validate_every and done != last):
            return
        if found := self.validation.nll(self.model, self.microbatch):
            row["validation_nll"] = found
            if done != last:
                self.reporter.say(f"step {done:,}: {self._state(row)}")

    def _state(self, row: dict[str, Any]) -> str:
        """Loss and, where it was measured, validation NLL of a step."""
        found, loss = row.get("validation_nll", {}), f"loss {row['loss']:.4f}"
        if self.validation is None or not found:
            return loss
        parts = [
            f"{name} {nll:.4f}" if len(found) > 1 else f"{nll:.4f}" for name, nll in found.items()
        ]
        return f"{loss} · validation NLL {', '.join(parts)} on {units(self.validation.rows, 'row')}"

    def _step(self, batch: Batch) -> dict[str, Any]:
        began = time.monotonic()
        recipe = self.run.recipe
        rate = optim.learning_rate(recipe, batch.step)
        # Asked to stop on one rank, all stop after the same step.
        mine = self._accumulate(batch)
        asked = torch.tensor(float(self.stopping), dtype=mine.dtype).to(mine.device)
        totals = self.peers.summed(torch.stack((mine, asked)))
        self.peers.sum_gradients(self.model)
        clipped = torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        # The one wait for a device in a step.
        loss, stop, norm = torch.cat((totals, clipped.double()[None])).tolist()
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise self._not_finite(batch, loss, norm)
        optim.set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        seconds = time.monotonic() - began
        return {
            "step": batch.step,
            "config": batch.config,
            "loss": loss,
            "lr": rate,
            "gradient_norm": norm,
            "targets": batch.targets,
            "tokens": batch.tokens,
            "seconds": round(seconds, 4),
            "stop": stop,
        }

    def _accumulate(self, batch: Batch) -> torch.Tensor:
        """The batch's gradient, with smaller microbatches if memory runs out and none was asked."""
        precision, peers = self.run.recipe.precision, self.peers
        while True:
            try:
                return accumulate(
                    self.model, batch, microbatch=self.microbatch, precision=precision, peers=peers
                )
            except (MemoryError, RuntimeError) as error:
                if not plan.ran_out(error):
                    raise
                if self.options.microbatch is not None or self.microbatch == 1:
                    raise self._out_of_memory(batch) from None
            self.microbatch = max(1, self.microbatch // 2)
            torch.cuda.empty_cache()  # nothing without a GPU
            self.reporter.say(f"out of memory: going on with microbatch {self.microbatch}")

    def _resume(self) -> None:
        path = checkpoint.latest(self.checkpoints)
        if path is None:
            return
        found = checkpoint.load(path)
        checkpoint.require_run(found, self.run, path)
        self.loader.restore(found.meta["loader"])
        checkpoint.restore_weights(self.model, found, path)
        checkpoint.restore_optimizer(self.model, self.optimizer, found, path)

    def _tensors(self) -> dict[str, torch.Tensor]:
        tensors = {f"model.{n}": t for n, t in self.model.state_dict().items()}
        moments = optim.optimizer_tensors(self.model, self.optimizer)
        return tensors | {f"optimizer.{n}": t for n, t in moments.items()}

    def _state_sha256(self) -> str:
        """One hash of all that ranks must have in common; only computed where there are several."""
        hashed = hashlib.sha256(self.run.sha256.encode())
        if self.peers.size > 1:
            for name, tensor in sorted(self._tensors().items()):
                hashed.update(name.encode())
                hashed.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        return hashed.hexdigest()

    def _save(self, log: MetricsLog | None) -> None:
        if log is not None:
            log.sync()
        if self.peers.leads:
            loader = self.loader.state()
            how = {
                "world_size": self.peers.size,
                "microbatch": self.microbatch,
                "kernel": crossgate.chosen(self.model.embed),
                "precision": self.run.recipe.precision,
            }
            machine = provenance(self.options.device)
            meta = checkpoint.describe(self.run, loader, machine | how)
            tensors = self._tensors() | {"generator.cpu": torch.get_rng_state()}
            checkpoint.save(self.checkpoints, checkpoint.Checkpoint(meta=meta, tensors=tensors))
        self.peers.wait()

    def _not_finite(self, batch: Batch, loss: float, norm: float) -> InputError:
        path = checkpoint.latest(self.checkpoints)
        kept = f"the last good checkpoint is {path}" if path else "there is no checkpoint yet"
        return InputError(
            f"{self.run.name}: loss {loss}, gradient norm {norm} at step {batch.step}, "
            f"{batch.config} rows {', '.join(map(str, batch.rows.tolist()))}; the weights were not "
            f"changed and {kept}",
            kind="loss-not-finite",
            fix="look at these rows with `tangobench inspect`, or lower the learning rate",
            step=batch.step,
            config=batch.config,
            rows=batch.rows.tolist(),
        )

    def _out_of_memory(self, batch: Batch) -> ResourceError:
        smaller = self.microbatch // 2
        fix = f"try --microbatch {smaller}" if smaller else "one row does not fit: add memory"
        return ResourceError(
            f"{self.run.name}: out of memory at step {batch.step} with microbatch "
            f"{self.microbatch} ({batch.tokens_BT.shape[1]:,} positions per row); nothing is lost",
            kind="out-of-memory",
            fix=fix,
            microbatch=self.microbatch,
        )


def accumulate(
    model: LanguageModel, batch: Batch, *, microbatch: int, precision: Precision, peers: World
) -> torch.Tensor:
    """Leave this rank's part of the batch's gradient in `.grad`; gives its part of the mean NLL."""
    model.zero_grad(set_to_none=True)
    targets = batch.targets
    device = next(model.parameters()).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for part in batch.microbatches(microbatch, rank=peers.rank, world=peers.size):
        tokens, places = part.on(device, model.config.vocabulary)
        with optim.autocast(device.type, precision):
            nll = model.loss_at(tokens, places)
        (nll / targets).backward()
        total += nll.detach().double() / targets
    return total
