"""A finished run on a test set: NLL and exact match by module, beside the run's validation scores.

- A test set is a dataset whose configs have the split `test` (`dm_math_tests`). Its tokenizer must
  be the one of the run's own dataset; every other dataset is refused here as everywhere.
- Both datasets are recorded by `root` and `content_root`: the run's own in the result's `data`, the
  test set's here.
- Stored are sums and counts by module; means, shares and intervals follow from them.

Usage: `score_on(folder, "out/dm_math_tests-paper")`, then `read_result(path)["tests"]`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from tangobench.errors import CorruptionError, MismatchError, UsageError
from tangobench.eval.scoring.generate import exact_match
from tangobench.eval.scoring.nll import TOKENS_AT_ONCE, score
from tangobench.eval.scoring.result_files import read_result, write_result
from tangobench.eval.scoring.results import (
    add_extra,
    data_of,
    evaluate,
    final_checkpoint,
    model_of,
    require_finite,
    require_root,
)
from tangobench.model.language import LanguageModel
from tangobench.model.training.loader import Stream
from tangobench.model.training.provenance import provenance
from tangobench.model.training.recipes import Run
from tangobench.model.training.train import dataset_of
from tangobench.pipeline.core.progress import Reporter
from tangobench.pipeline.reading import Dataset, open_dataset

TESTS: Final = "tests"
_SPLIT: Final = "test"


def score_on(
    folder: Path,
    place: str,
    *,
    device: str = "cpu",
    tokens_at_once: int = TOKENS_AT_ONCE,
    reporter: Reporter | None = None,
) -> Path:
    """Add a test set's scores to the result of a run; the run is scored first if it was not."""
    reporter = reporter or Reporter(quiet=True)
    path, trained, run = final_checkpoint(folder)
    own, tests = dataset_of(run, path.parents[3]), open_dataset(place)
    require_root(trained, own, path)
    require_test_set(tests, own)
    target = path.parents[3] / "results" / f"{run.name}.json"
    if not _is_of(target, trained.meta["tensors"]["sha256"], own):
        evaluate(folder, device=device, tokens_at_once=tokens_at_once, reporter=reporter)
    model = model_of(path, trained, run, device)
    found: dict[str, Any] = {"data": data_of(tests), "scores": {}, "modules": {}}
    for config in tests.lock.configs:
        tally, modules = _measure(model, tests, config, run, tokens_at_once, reporter)
        found["scores"][config], found["modules"][config] = tally, modules
    body = read_result(target)
    add_extra(body, TESTS, {**body.get(TESTS, {}), tests.lock.name: found}, provenance(device))
    return write_result(target, body)


def require_test_set(tests: Dataset, own: Dataset) -> None:
    """Refuse what is no test set, and one in other tokens than the run's."""
    if any(not tests.lock.shards_of(config, _SPLIT) for config in tests.lock.configs):
        raise UsageError(
            f"{tests.folder} is no test set: {tests.lock.name} has no split {_SPLIT!r}",
            kind="dataset-unfit",
            fix="build one with `tangobench build dm_math_tests`; a run is scored on its own "
            "validation rows without --on",
        )
    wanted, found = (dataset.lock.data["tokenizer"] for dataset in (own, tests))
    if found != wanted:
        raise MismatchError(
            f"{tests.folder} is in tokens of {_name(found)}, the run's are of {_name(wanted)}",
            kind="tokenizer-mismatch",
            fix="build the test set with the tokenizer of the training data",
            found=_name(found),
            expected=_name(wanted),
        )


def _name(tokenizer: dict[str, Any] | None) -> str:
    if tokenizer is None:
        return "no named tokenizer"
    sha256 = tokenizer.get("sha256")
    return str(tokenizer.get("name")) + (f" ({sha256[:16]}…)" if sha256 else "")


def _is_of(path: Path, checkpoint_sha256: str, dataset: Dataset) -> bool:
    """Whether a result is that of a checkpoint on its dataset."""
    try:
        found = read_result(path)
    except CorruptionError:
        return False
    same = found["checkpoint_sha256"] == checkpoint_sha256
    return bool(same and found["data"] == data_of(dataset))


def _measure(
    model: LanguageModel,
    tests: Dataset,
    config: str,
    run: Run,
    tokens_at_once: int,
    reporter: Reporter,
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The tally of a config, and NLL and right answers by module."""
    stream = Stream(tests, config, _SPLIT, context=run.recipe.context)
    how = {"precision": run.recipe.precision, "tokens_at_once": tokens_at_once}
    scored = score(model, stream, reporter=reporter, label=config, **how)  # type: ignore[arg-type]
    require_finite(scored, config, run)
    names = tests.lock.notes["combinations"]  # MODULE/PART
    numbers = stream.table.column("combination").astype(np.int64)[scored.row]
    matches = exact_match(model, tests, config=config, split=_SPLIT, reporter=reporter)
    tallies = scored.by(numbers, names)
    modules = {
        name.partition("/")[0]: {
            **{"sum": tallies[name].sum, "count": tallies[name].count},
            **{"correct": matches.correct[number], "tried": matches.tried[number]},
        }
        for number, name in enumerate(names)
        if name in tallies
    }
    stream.close()
    return scored.tally().as_json(), modules
