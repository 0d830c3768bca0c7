"""Predictions: what models of the paper's size will show, written down before anybody ran them.

- Made once from the small runs, dated, and sealed with the hash of the results that they follow
  from (`results/predictions.json`); results that come later judge them and never change them.
- A difference of the small models is scaled by the ratio of TANGO's NLLs (the paper's over ours),
  and its interval is doubled for the step in size. Where the paper gives the difference too, the
  interval covers both, and the estimate is the middle of the two. The effect of more operations is
  extrapolated from the training curve of the small Untied Transformer++.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tangobench.errors import UsageError
from tangobench.eval.comparison.analysis import analyse, scores_of
from tangobench.eval.comparison.runs import estimate
from tangobench.eval.comparison.studies import STUDIES, Result, Study, orderings
from tangobench.eval.intervals import two_way
from tangobench.eval.published import LABELS, NLL
from tangobench.eval.render import Table, tabled
from tangobench.eval.scoring.packed import RUNS
from tangobench.eval.scoring.result_files import read_result, shipped_results, write_result
from tangobench.model.training.recipes import RECIPES, runs

FORMAT: Final = "tangobench-predictions/1"
FILE: Final = "predictions.json"
_WIDER: Final = 2.0  # for the step from 0.77 to 44 million parameters
_SLOPES: Final = (0.25, 0.6, 1.25)  # of the small curve's slope per doubling: low, middle, high


def predict(results: Sequence[Result], date: str) -> dict[str, Any]:
    """The predictions that follow from some results."""
    packed = (shipped_results() / RUNS).read_bytes()
    small = STUDIES["sharing"]("mini")
    shared = tuple(c for c in small.contrasts if c.name.startswith("Sharing in TANGO"))
    sharing = replace(small, contrasts=shared)
    return {
        "format": FORMAT,
        "date": date,
        "results_sha256": hashlib.sha256(packed).hexdigest(),
        "size": "44 million parameters, 84,000 steps of DeepMind Mathematics, three seed pairs",
        "predictions": [
            *_scaled(sharing, "large-untied", "TANGO, shared", results),
            _compute(results),
            *_scaled(orderings("mini"), "large-orderings", "TANGO", results),
        ],
    }


def write_predictions(path: Path, results: Sequence[Result], date: str) -> Path:
    """Write them once; what was predicted is never written again."""
    if path.exists():
        raise UsageError(
            f"{path} is there already, and predictions do not change",
            kind="usage",
            fix="name another file",
        )
    return write_result(path, predict(results, date))


def read_predictions(folder: Path | None = None) -> dict[str, Any]:
    """The predictions that come with the package."""
    return read_result((folder or shipped_results()) / FILE, FORMAT)


def _entry(study: str, contrast: str, basis: str, interval: Sequence[float]) -> dict[str, Any]:
    low, middle, high = sorted(round(value, 4) for value in interval)
    return {
        "study": study,
        "contrast": contrast,
        "estimate": middle,
        "low": low,
        "high": high,
        "basis": basis,
        "command": f"tangobench replicate --study {study}",
    }


def _scaled(
    small: Study, large: str, tango: str, results: Sequence[Result]
) -> Iterator[dict[str, Any]]:
    """The contrasts of a small study that a large one has too, at the paper's size."""
    scores = scores_of(small, results)
    layout = two_way(scores)
    if layout is None:
        raise UsageError(
            f"study {small.name} has too few runs to predict from",
            kind="result-missing",
            fix=f"tangobench replicate --study {small.name}",
        )
    scale = NLL[4]["tango"]["dm_math"][0] / statistics.fmean(scores[tango].values())
    for contrast, tested in zip(small.contrasts, STUDIES[large]("mini").contrasts, strict=True):
        middle, low, high = (scale * value for value in layout.contrast(contrast.weights))
        half = _WIDER * (high - low) / 2
        basis = f"{small.name} at the mini size, two-way layout, scaled by {scale:.3f} and doubled"
        low, high = middle - half, middle + half
        if known := _paper(tested.weights):
            low, high = min(low, known[0]), max(high, known[2])
            middle = (middle + known[1]) / 2
            basis += f"; the paper's difference {known[1]:+.3f}"
        yield _entry(large, tested.name, basis, (low, middle, high))


def _paper(weights: Mapping[str, float]) -> tuple[float, float, float] | None:
    """The paper's own difference with twice its standard error over three seeds."""
    by_label = {LABELS[arch]: figures["dm_math"] for arch, figures in NLL[4].items()}
    if not weights.keys() <= by_label.keys():
        return None
    middle = sum(weight * by_label[name][0] for name, weight in weights.items())
    error = 2 * math.sqrt(sum(by_label[name][1] ** 2 for name in weights) / 3)
    return middle - error, middle, middle + error


def _compute(results: Sequence[Result]) -> dict[str, Any]:
    """Untied Transformer++ with TANGO's operations against TANGO, from the small training curve."""
    archs = ("tango", "untied_transformer")
    hashes = {r.sha256 for r in runs("mini", "dm_math") if r.recipe.arch == archs[1]}
    drops = []
    for result in (result for result in results if result["run_sha256"] in hashes):
        points = [loss for _, loss in result["curve"]["default"]]
        middle, tenth = len(points) // 2, max(1, len(points) // 10)
        half, end = points[middle - tenth : middle], points[-tenth:]
        drops.append(math.log(statistics.fmean(half) / statistics.fmean(end)))
    tango, untied = (RECIPES[f"dm_math-{arch}-4"].step_macs for arch in archs)
    doublings, slope = math.log2(tango / untied), statistics.fmean(drops)
    aim, ours = (NLL[4][arch]["dm_math"][0] for arch in archs)
    study = STUDIES["large-compute"]("mini")
    basis = (
        f"training loss of {len(drops)} small runs falls by {1 - math.exp(-slope):.0%} in its last "
        f"doubling; {_SLOPES[0]:g} to {_SLOPES[2]:g} times that for {doublings:.2f} doublings"
    )
    interval = [aim - ours * math.exp(-share * slope * doublings) for share in _SLOPES]
    return _entry(study.name, study.contrasts[0].name, basis, interval)


def prediction_table(found: dict[str, Any], results: Sequence[Result]) -> Table:
    """Every prediction with its interval, and what runs of that size say so far."""
    return tabled(
        f"Predictions of {found['date']} for {found['size']}",
        found["predictions"],
        {
            "Comparison": lambda one: one["contrast"],
            "Predicted difference in NLL": lambda one: estimate(
                [one[key] for key in ("estimate", "low", "high")]
            ),
            "Outcome": lambda one: _outcome(one, results),
            "Tested by": lambda one: f"`{one['command']}`",
        },
        f"From results with sha256 {found['results_sha256'][:16]}…; an interval that does not "
        "hold the mean difference of the runs is a failed prediction.",
    )


def _outcome(one: dict[str, Any], results: Sequence[Result]) -> str:
    contrasts = analyse(STUDIES[one["study"]]("mini"), results)["contrasts"]
    per_seed = next(c["per_seed"] for c in contrasts if c["contrast"] == one["contrast"])
    if not per_seed:
        return "not run"
    mean = statistics.fmean(per_seed)
    verdict = "holds" if one["low"] <= mean <= one["high"] else "failed"
    return f"{verdict}: {mean:+.3f} ({len(per_seed)} seed pairs)"
