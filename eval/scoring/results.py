"""Results: one JSON object per scored run, with all that is needed to believe it or redo it.

- A result carries the recipe, the seeds, the lock's root, the checkpoint's hash, code and versions,
  and a checksum of itself: an edited number is noticed, and so is a byte that changes no value.
- Only a finished run has a result: the final checkpoint, no selection.
- Timings are kept apart under `training`; everything else is the same whenever it is made again.
- Scoring the same checkpoint on the same dataset again keeps what else was measured of it;
  `measured_with` says with which code, if with another.

Usage: `path = evaluate(Path("out/runs/sample-dm_math-tango-s17-101"))`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from tangobench.errors import CorruptionError, InputError, UsageError
from tangobench.eval.scoring.breakdowns import breakdowns
from tangobench.eval.scoring.generate import exact_match
from tangobench.eval.scoring.nll import TOKENS_AT_ONCE, bits_per_byte, score
from tangobench.eval.scoring.probes import probes
from tangobench.eval.scoring.result_files import FORMAT, read_result, write_result
from tangobench.eval.scoring.tally import Scored
from tangobench.model import build
from tangobench.model.language import LanguageModel
from tangobench.model.training import checkpoint
from tangobench.model.training.loader import Stream, configs_of
from tangobench.model.training.metrics import read_metrics
from tangobench.model.training.provenance import provenance
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.train import dataset_of
from tangobench.pipeline.core.lock import require_data
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.reading import Dataset

_EXTRAS: Final = ("exact_match", "probes", "proof_check", "tests")
_CURVE_POINTS: Final = 100


def evaluate(
    folder: Path,
    *,
    device: str = "cpu",
    tokens_at_once: int = TOKENS_AT_ONCE,
    match_answers: bool = False,
    probe: bool = False,
    reporter: Reporter | None = None,
) -> Path:
    """Score a finished run on its validation rows; writes OUT/results/RUN.json.

    `match_answers` also generates an answer to every DeepMind Mathematics question; `probe` also
    looks for what training holds of every validation row, and divides the NLL by it.
    """
    reporter = reporter or Reporter(quiet=True)
    path, trained, run = final_checkpoint(folder)
    out = path.parents[3]
    dataset = dataset_of(run, out)
    require_root(trained, dataset, path)
    if match_answers:
        require_questions(dataset)
    model = model_of(path, trained, run, device)
    body = _body(run, trained, dataset, folder)
    body |= _scores(model, dataset, run, tokens_at_once, reporter, probe=probe)
    if match_answers:
        body["exact_match"] = exact_match(model, dataset, reporter=reporter).as_json()
    body["scored_with"] = provenance(device)
    target = out / "results" / f"{run.name}.json"
    _keep_measured(target, body)
    return write_result(target, body)


def _keep_measured(path: Path, body: dict[str, Any]) -> None:
    """Take over what an earlier result of the same checkpoint and dataset holds beyond scores."""
    try:
        found = read_result(path)
    except CorruptionError:  # none, or one that scoring again is to mend
        return
    if all(found.get(key) == body[key] for key in ("checkpoint_sha256", "data")):
        for key in _EXTRAS:
            if key in found and key not in body:
                code = found.get("measured_with", {}).get(key, found["scored_with"])
                add_extra(body, key, found[key], code)


def add_extra(body: dict[str, Any], key: str, value: Any, code: dict[str, Any]) -> None:
    """Put a measurement into a result, with its code if that is not the scores' own."""
    body[key] = value
    others = {name: c for name, c in body.pop("measured_with", {}).items() if name != key}
    others |= {} if code == body["scored_with"] else {key: code}
    body |= {"measured_with": others} if others else {}


def _scores(
    model: LanguageModel,
    dataset: Dataset,
    run: Run,
    tokens_at_once: int,
    reporter: Reporter,
    *,
    probe: bool,
) -> dict[str, Any]:
    """NLL, bits per byte where tokens are texts, breakdowns and probes of every config."""
    scores: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    probed: dict[str, Any] = {}
    for config in configs_of(dataset):
        stream = Stream(dataset, config, "validation", context=run.recipe.context)
        name = dataset.lock.name if config == "default" else f"{dataset.lock.name}_{config}"
        _require_rows(stream, name, dataset)
        found = score(
            model,
            stream,
            precision=run.recipe.precision,
            tokens_at_once=tokens_at_once,
            reporter=reporter,
            label=name,
        )
        require_finite(found, name, run)
        scores[name] = found.tally().as_json()
        if dataset.tokenizer is not None:
            scores[name] |= bits_per_byte(found, stream, dataset.tokenizer.token_bytes)
        parts[name] = {
            kind: {label: tally.as_json() for label, tally in tallies.items()}
            for kind, tallies in breakdowns(found, stream, dataset.lock).items()
        }
        if probe:
            probed[name] = {p.name: p.measure(found) for p in probes(dataset, config)}
        stream.close()
    if len(scores) == 2:
        # The paper's joint score: both tasks count the same, whatever their numbers of tokens.
        scores[f"{dataset.lock.name}_joint"] = {"nll": sum(s["nll"] for s in scores.values()) / 2}
    return {"scores": scores, "breakdowns": parts} | ({"probes": probed} if probe else {})


def _require_rows(stream: Stream, name: str, dataset: Dataset) -> None:
    if not len(stream):
        raise InputError(
            f"{dataset.folder}: no validation rows of {name}, expected at least one",
            kind="no-validation-rows",
            fix="build the dataset with other options; `tangobench plan` says what to expect",
        )


def require_finite(found: Scored, name: str, run: Run) -> None:
    """Refuse scores that are no numbers."""
    bad = np.flatnonzero(~np.isfinite(found.nll))
    if len(bad):
        raise InputError(
            f"{run.name}: the NLL of {name} is not finite, first in validation row "
            f"{found.row[bad[0]]}; nothing was written",
            kind="score-not-finite",
            fix="the last step spoilt the weights: train with a lower learning rate",
        )


def require_questions(dataset: Dataset) -> None:
    """Refuse a dataset whose rows are not questions with one right answer."""
    if dataset.lock.name != "dm_math":
        raise UsageError(
            f"exact match needs questions and answers, {dataset.folder} is {dataset.lock.name}",
            kind="dataset-unfit",
            fix="use --exact-match with a dm_math run",
        )


def final_checkpoint(folder: Path) -> tuple[Path, checkpoint.Checkpoint, Run]:
    """The last checkpoint of a finished run and the run it belongs to."""
    path = checkpoint.latest(folder.absolute() / "checkpoints")
    if path is None or path.parents[2].name != "runs":
        raise UsageError(
            f"{folder} has no checkpoint" if path is None else f"{folder} is not in OUT/runs",
            kind="run-missing",
            fix="name a folder in OUT/runs",
        )
    found = checkpoint.load(path)
    run = checkpoint.run_of(found, path)
    if found.step != run.recipe.steps:
        raise UsageError(
            f"{folder} is at step {found.step} of {run.recipe.steps}",
            kind="run-unfinished",
            fix=f"tangobench train --recipe {_source(run, folder)} --seed-pair {run.init_seed},"
            f"{run.order_seed} --out {path.parents[3]}",
        )
    return path, found, run


def _source(run: Run, folder: Path) -> str:
    """What `train --recipe` takes to continue a run."""
    return run.recipe.name if run.recipe.name in RECIPES else str(folder / "recipe.toml")


def load_model(folder: Path, device: str = "cpu") -> LanguageModel:
    """The model of a finished run."""
    return model_of(*final_checkpoint(folder), device)


def model_of(path: Path, trained: checkpoint.Checkpoint, run: Run, device: str) -> LanguageModel:
    """The model of a checkpoint."""
    model = build(run.recipe.model_config(), seed=run.init_seed, device=device)
    checkpoint.restore_weights(model, trained, path)
    return model.eval()


def require_root(trained: checkpoint.Checkpoint, dataset: Dataset, path: Path) -> None:
    """The dataset must be the one that the checkpoint was trained on."""
    require_data(dataset.lock, trained.meta["loader"], f"{dataset.folder} (scored with {path})")


def data_of(dataset: Dataset) -> dict[str, str]:
    """What a result says of a dataset."""
    return {key: getattr(dataset.lock, key) for key in ("name", "profile", "root", "content_root")}


def _body(
    run: Run, trained: checkpoint.Checkpoint, dataset: Dataset, folder: Path
) -> dict[str, Any]:
    config = run.recipe.model_config()
    rows = read_metrics(folder / "metrics.jsonl", steps=trained.step)
    seconds = sum(row["seconds"] for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    return {
        "format": FORMAT,
        "run": run.name,
        "family": run.recipe.family,
        "dataset": run.recipe.dataset,
        "arch": run.recipe.arch,
        "depth": run.recipe.depth,
        "seeds": {"initialisation": run.init_seed, "data_order": run.order_seed},
        "recipe": run.recipe.as_json(),
        "run_sha256": run.sha256,
        "data": data_of(dataset),
        "model": {
            "width": config.width,
            "nonembedding_params": config.nonembedding_params,
            "total_params": config.total_params,
        },
        "step": trained.step,
        "checkpoint_sha256": trained.meta["tensors"]["sha256"],
        "curve": curve(rows),
        **({"validation_curve": found} if (found := validation_curve(rows)) else {}),
        "training": {
            "seconds": round(seconds, 1),
            "tokens": tokens,
            "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
        },
        "trained_with": trained.meta["provenance"],
    }


def curve(rows: list[dict[str, Any]], points: int = _CURVE_POINTS) -> dict[str, Any]:
    """The training loss in about `points` means over equal numbers of steps, per config."""
    found: dict[str, Any] = {}
    for config in sorted({row["config"] for row in rows}):
        chosen = [row for row in rows if row["config"] == config]
        size = max(1, len(chosen) // points)
        groups = [chosen[i : i + size] for i in range(0, len(chosen), size)]
        found[config] = [
            [group[-1]["step"] + 1, round(sum(row["loss"] for row in group) / len(group), 6)]
            for group in groups
        ]
    return found


def validation_curve(rows: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """The NLL of the validation subset at the steps that measured it, per config."""
    found: dict[str, list[list[float]]] = {}
    for row in rows:
        for config, value in row.get("validation_nll", {}).items():
            found.setdefault(config, []).append([row["step"] + 1, round(value, 6)])
    return found
