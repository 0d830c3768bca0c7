"""Results: one JSON object per scored run, with all that is needed to believe it or redo it.

- A result carries the recipe, the seeds, the lock's root, the checkpoint's hash, code and versions,
  and a checksum of itself. Only a finished run has one: the final checkpoint, no selection.
- Timings are kept apart under `training`; everything else is the same whenever it is made again.
- Scoring the same checkpoint on the same dataset again keeps what else was measured of it;
  `measured_with` says with which code, if with another.
- A run can also be scored on a test set, a dataset whose configs have the split `test`, in tokens
  of the run's own tokenizer. Stored are sums and counts by module, and both datasets' roots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from tangobench.errors import CorruptionError, InputError, MismatchError, UsageError
from tangobench.eval.scoring.generate import exact_match
from tangobench.eval.scoring.nll import bits_per_byte, breakdowns, score
from tangobench.eval.scoring.probes import probes
from tangobench.eval.scoring.result_files import FORMAT, read_result, write_result
from tangobench.eval.scoring.tally import MatchReport, Scored, Tally
from tangobench.model import build
from tangobench.model.language import LanguageModel
from tangobench.model.training import checkpoint
from tangobench.model.training.loader import Stream, configs_of
from tangobench.model.training.recipes import RECIPES, Run
from tangobench.model.training.runs import provenance, read_metrics
from tangobench.model.training.train import dataset_of
from tangobench.pipeline.core.lock import require_data
from tangobench.pipeline.reading import Dataset, open_dataset

_EXTRAS: Final = ("exact_match", "probes", "proof_check", "tests")
_CURVE_POINTS: Final = 100
_TEST: Final = "test"


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run: its last checkpoint, and what belongs to it in OUT."""

    path: Path
    trained: checkpoint.Checkpoint
    run: Run

    @property
    def result(self) -> Path:
        return self.path.parents[3] / "results" / f"{self.run.name}.json"

    @property
    def sha256(self) -> str:
        return str(self.trained.meta["tensors"]["sha256"])

    def dataset(self) -> Dataset:
        """Its dataset; another one than it was trained on is refused."""
        dataset = dataset_of(self.run, self.path.parents[3])
        where = f"{dataset.folder} (scored with {self.path})"
        require_data(dataset.lock, self.trained.meta["loader"], where)
        return dataset

    def model(self, device: str = "cpu") -> LanguageModel:
        model = build(self.run.recipe.model_config(), seed=self.run.init_seed, device=device)
        checkpoint.restore_weights(model, self.trained, self.path)
        return model.eval()


def final_checkpoint(folder: Path) -> Finished:
    """The run that a folder in OUT/runs holds, if it is finished."""
    path = checkpoint.latest(folder.absolute() / "checkpoints")
    if path is None or path.parents[2].name != "runs":
        why = f"{folder} has no checkpoint" if path is None else f"{folder} is not in OUT/runs"
        raise UsageError(why, kind="run-missing", fix="name a folder in OUT/runs")
    found = checkpoint.load(path)
    run = checkpoint.run_of(found, path)
    if found.step != run.recipe.steps:
        name = run.recipe.name if run.recipe.name in RECIPES else folder / "recipe.toml"
        raise UsageError(
            f"{folder} is at step {found.step} of {run.recipe.steps}",
            kind="run-unfinished",
            fix=f"tangobench train --recipe {name} --seed-pair {run.init_seed},"
            f"{run.order_seed} --out {path.parents[3]}",
        )
    return Finished(path, found, run)


def load_model(folder: Path, device: str = "cpu") -> LanguageModel:
    return final_checkpoint(folder).model(device)


def evaluate(folder: Path, *, match_answers: bool = False, probe: bool = False, **how: Any) -> Path:
    """Score a finished run on its validation rows; writes OUT/results/RUN.json.

    `match_answers` also generates an answer to every DeepMind Mathematics question; `probe` also
    looks for what training holds of every validation row, and divides the NLL by it. `how` is the
    `device`, and `tokens_at_once` and `reporter` of `score`.
    """
    found = final_checkpoint(folder)
    dataset = found.dataset()
    if match_answers:
        require_questions(dataset)
    model, scored = _scorer(found, **how)
    body = _body(found, dataset, folder)
    body |= _scores(model, scored, dataset, found.run.recipe.context, probe, match_answers)
    body["scored_with"] = provenance(how.get("device", "cpu"))
    before = _earlier(found, dataset)
    for key in _EXTRAS:  # what else was measured of it stays
        if key in before and key not in body:
            code = before.get("measured_with", {}).get(key, before["scored_with"])
            add_extra(body, key, before[key], code)
    return write_result(found.result, body)


def _earlier(found: Finished, dataset: Dataset) -> dict[str, Any]:
    """The result of this very checkpoint on its dataset; empty if there is none."""
    try:
        result = read_result(found.result)
    except CorruptionError:  # none, or one that scoring again is to replace
        return {}
    same = (result["checkpoint_sha256"], result["data"]) == (found.sha256, _data_of(dataset))
    return result if same else {}


def add_extra(body: dict[str, Any], key: str, value: Any, code: dict[str, Any]) -> None:
    """Put a measurement into a result, with its code if that is not the scores' own."""
    body[key] = value
    others = {name: c for name, c in body.pop("measured_with", {}).items() if name != key}
    others |= {} if code == body["scored_with"] else {key: code}
    body |= {"measured_with": others} if others else {}


def _scorer(
    found: Finished, device: str = "cpu", **how: Any
) -> tuple[LanguageModel, Callable[[Stream, str], Scored]]:
    """The run's model, and what scores a split with it; scores that are no numbers are refused."""
    model, run = found.model(device), found.run

    def scored(stream: Stream, name: str) -> Scored:
        found = score(model, stream, precision=run.recipe.precision, label=name, **how)
        bad = np.flatnonzero(~np.isfinite(found.nll))
        if len(bad):
            raise InputError(
                f"{run.name}: the NLL of {name} is not finite, first in validation row "
                f"{found.row[bad[0]]}; nothing was written",
                kind="score-not-finite",
                fix="the last step spoilt the weights: train with a lower learning rate",
            )
        return found

    return model, scored


def _scores(
    model: LanguageModel,
    scored: Callable[[Stream, str], Scored],
    dataset: Dataset,
    context: int,
    probe: bool,
    match: bool,
) -> dict[str, Any]:
    """NLL, bits per byte where tokens are texts, breakdowns, probes and answers of every config."""
    scores: dict[str, Any] = {}
    parts: dict[str, Any] = {}
    probed: dict[str, Any] = {}
    for config in configs_of(dataset):
        stream = Stream(dataset, config, "validation", context=context)
        name = dataset.lock.name if config == "default" else f"{dataset.lock.name}_{config}"
        if not len(stream):
            why = f"{dataset.folder}: no validation rows of {name}, expected at least one"
            fix = "build the dataset with other options; `tangobench plan` says what to expect"
            raise InputError(why, kind="no-validation-rows", fix=fix)
        found = scored(stream, name)
        scores[name] = found.tally().as_json()
        if dataset.tokenizer is not None:
            scores[name] |= bits_per_byte(found, stream, dataset.tokenizer.token_bytes)
        parts[name] = {
            kind: {label: tally.as_json() for label, tally in tallies.items()}
            for kind, tallies in breakdowns(found, stream, dataset.lock).items()
        }
        if probe:
            probed[name] = {p.name: p.measure(found) for p in probes(dataset, config)}
        if match:
            answers = exact_match(model, dataset, found)
        stream.close()
    if len(scores) == 2:
        # The paper's joint score: both tasks count the same, whatever their numbers of tokens.
        scores[f"{dataset.lock.name}_joint"] = {"nll": sum(s["nll"] for s in scores.values()) / 2}
    body = {"scores": scores, "breakdowns": parts} | ({"probes": probed} if probe else {})
    return body | ({"exact_match": answers.as_json()} if match else {})


def require_questions(dataset: Dataset) -> None:
    if dataset.lock.name != "dm_math":
        why = f"exact match needs questions and answers, {dataset.folder} is {dataset.lock.name}"
        raise UsageError(why, kind="dataset-unfit", fix="use --exact-match with a dm_math run")


def _data_of(dataset: Dataset) -> dict[str, str]:
    return {key: getattr(dataset.lock, key) for key in ("name", "profile", "root", "content_root")}


def _body(found: Finished, dataset: Dataset, folder: Path) -> dict[str, Any]:
    run, recipe, step = found.run, found.run.recipe, found.trained.step
    config = recipe.model_config()
    rows = read_metrics(folder / "metrics.jsonl", steps=step)
    seconds = sum(row["seconds"] for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    validated = validation_curve(rows)
    sizes = ("width", "nonembedding_params", "total_params")
    return {
        "format": FORMAT,
        "run": run.name,
        **{key: getattr(recipe, key) for key in ("family", "dataset", "arch", "depth")},
        "seeds": {"initialisation": run.init_seed, "data_order": run.order_seed},
        "recipe": recipe.as_json(),
        "run_sha256": run.sha256,
        "data": _data_of(dataset),
        "model": {key: getattr(config, key) for key in sizes},
        "step": step,
        "checkpoint_sha256": found.sha256,
        "curve": curve(rows),
        **({"validation_curve": validated} if validated else {}),
        "training": {
            "seconds": round(seconds, 1),
            "tokens": tokens,
            "tokens_per_second": round(tokens / seconds, 1) if seconds else None,
        },
        "trained_with": found.trained.meta["provenance"],
    }


def curve(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The training loss in about a hundred means over equal numbers of steps, per config."""
    found: dict[str, Any] = {}
    for config in sorted({row["config"] for row in rows}):
        chosen = [(row["step"] + 1, row["loss"]) for row in rows if row["config"] == config]
        size = max(1, len(chosen) // _CURVE_POINTS)
        for part in (chosen[i : i + size] for i in range(0, len(chosen), size)):
            mean = round(sum(loss for _, loss in part) / len(part), 6)
            found.setdefault(config, []).append([part[-1][0], mean])
    return found


def validation_curve(rows: list[dict[str, Any]]) -> dict[str, list[list[float]]]:
    """The NLL of the validation subset at the steps that measured it, per config."""
    found: dict[str, list[list[float]]] = {}
    for row in rows:
        for config, value in row.get("validation_nll", {}).items():
            found.setdefault(config, []).append([row["step"] + 1, round(value, 6)])
    return found


def score_on(folder: Path, place: str, **how: Any) -> Path:
    """Add a test set's scores to the result of a run; the run is scored first if it was not."""
    found = final_checkpoint(folder)
    own, tests = found.dataset(), open_dataset(place)
    require_test_set(tests, own)
    if not _earlier(found, own):
        evaluate(folder, **how)
    model, score_split = _scorer(found, **how)
    tested: dict[str, Any] = {"data": _data_of(tests), "scores": {}, "modules": {}}
    for config in tests.lock.configs:
        stream = Stream(tests, config, _TEST, context=found.run.recipe.context)
        scored = score_split(stream, config)
        tested["scores"][config] = scored.tally().as_json()
        numbers = stream.table.column("combination").astype(np.int64)[scored.row]
        stream.close()
        names = tests.lock.notes["combinations"]  # MODULE/PART
        matches = exact_match(model, tests, scored, config=config, split=_TEST, keep_wrong=0)
        tested["modules"][config] = _modules(names, scored.by(numbers, names), matches)
    body = read_result(found.result)
    tests_of = {**body.get("tests", {}), tests.lock.name: tested}
    add_extra(body, "tests", tests_of, provenance(how.get("device", "cpu")))
    return write_result(found.result, body)


def require_test_set(tests: Dataset, own: Dataset) -> None:
    """Refuse what is no test set, and one in other tokens than the run's."""
    if any(not tests.lock.shards_of(config, _TEST) for config in tests.lock.configs):
        raise UsageError(
            f"{tests.folder} is no test set: {tests.lock.name} has no split {_TEST!r}",
            kind="dataset-unfit",
            fix="build one with `tangobench build dm_math_tests`; a run is scored on its own "
            "validation rows without --on",
        )
    wanted, found = (dataset.lock.data["tokenizer"] or {} for dataset in (own, tests))
    if found != wanted:
        names = [
            f"{of.get('name', 'no named tokenizer')} ({str(of.get('sha256'))[:16]}…)"
            for of in (found, wanted)
        ]
        raise MismatchError(
            f"{tests.folder} is in tokens of {names[0]}, the run's are of {names[1]}",
            kind="tokenizer-mismatch",
            fix="build the test set with the tokenizer of the training data",
            found=names[0],
            expected=names[1],
        )


def _modules(
    names: list[str], tallies: dict[str, Tally], matches: MatchReport
) -> dict[str, dict[str, Any]]:
    return {
        name.partition("/")[0]: {
            **{"sum": tallies[name].sum, "count": tallies[name].count},
            **{"correct": matches.correct[number], "tried": matches.tried[number]},
        }
        for number, name in enumerate(names)
        if name in tallies
    }
