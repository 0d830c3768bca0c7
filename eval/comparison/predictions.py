"""Predictions: what models of the paper's size will show, written down before anybody ran them.

- Made once from the small runs, dated, and sealed with the hash of the results that they follow
  from (`results/predictions.json`); results that come later judge them and never change them.
- A difference of the small models is scaled by the ratio of TANGO's NLLs (the paper's over ours),
  and its interval is doubled for the step in size. Where the paper gives the difference too, the
  interval covers both, and the estimate is the middle of the two. The effect of more operations is
  extrapolated from the training curve of the small Untied Transformer++.
- Each names the study whose contrast tests it, and the one command that runs that study.

Usage: `render([prediction_table(read_predictions(), results)], "markdown")`.
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
from tangobench.eval.comparison.designs import STUDIES, orderings
from tangobench.eval.comparison.studies import Result, Study, analyse, scores_of
from tangobench.eval.intervals import two_way
from tangobench.eval.published import LABELS, NLL
from tangobench.eval.render import Table
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
    return {
        "format": FORMAT,
        "date": date,
        "results_sha256": hashlib.sha256(packed).hexdigest(),
        "size": "44 million parameters, 84,000 steps of DeepMind Mathematics, three seed pairs",
        "predictions": [*_sharing(results), _compute(results), *_orderings(results)],
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
    low, estimate, high = sorted(round(value, 4) for value in interval)
    return {
        "study": study,
        "contrast": contrast,
        "estimate": estimate,
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
        interval = (middle - half, middle, middle + half)
        if known := _paper(tested.weights):
            interval = (
                min(interval[0], known[0]),
                (middle + known[1]) / 2,
                max(interval[2], known[2]),
            )
            basis += f"; the paper's difference {known[1]:+.3f}"
        yield _entry(large, tested.name, basis, interval)


def _paper(weights: Mapping[str, float]) -> tuple[float, float, float] | None:
    """The paper's own difference with twice its standard error over three seeds."""
    by_label = {LABELS[arch]: figures["dm_math"] for arch, figures in NLL[4].items()}
    if not weights.keys() <= by_label.keys():
        return None
    middle = sum(weight * by_label[name][0] for name, weight in weights.items())
    error = 2 * math.sqrt(sum(by_label[name][1] ** 2 for name in weights) / 3)
    return middle - error, middle, middle + error


def _sharing(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    small = STUDIES["sharing"]("mini")
    chosen = tuple(c for c in small.contrasts if c.name.startswith("Sharing in TANGO"))
    yield from _scaled(replace(small, contrasts=chosen), "large-untied", "TANGO, shared", results)


def _orderings(results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    yield from _scaled(orderings("mini"), "large-orderings", "TANGO", results)


def _compute(results: Sequence[Result]) -> dict[str, Any]:
    """Untied Transformer++ with TANGO's operations against TANGO, from the small training curve."""
    hashes = {run.sha256 for run in runs("mini", "dm_math")}
    chosen = [r for r in results if r["run_sha256"] in hashes and r["arch"] == "untied_transformer"]
    drops = []
    for result in chosen:
        points = [loss for _, loss in result["curve"]["default"]]
        tenth = max(1, len(points) // 10)
        end = statistics.fmean(points[-tenth:])
        half = statistics.fmean(points[len(points) // 2 - tenth : len(points) // 2])
        drops.append(math.log(half / end))
    one, other = (RECIPES[f"dm_math-{arch}-4"] for arch in ("tango", "untied_transformer"))
    doublings = math.log2(one.step_macs / other.step_macs)
    slope = statistics.fmean(drops)
    ours, tango = (NLL[4][arch]["dm_math"][0] for arch in ("untied_transformer", "tango"))
    ends = [tango - ours * math.exp(-share * slope * doublings) for share in _SLOPES]
    study = STUDIES["large-compute"]("mini")
    basis = (
        f"training loss of {len(drops)} small runs falls by {1 - math.exp(-slope):.0%} in its last "
        f"doubling; {_SLOPES[0]:g} to {_SLOPES[2]:g} times that for {doublings:.2f} doublings"
    )
    return _entry(study.name, study.contrasts[0].name, basis, ends)


def prediction_table(found: dict[str, Any], results: Sequence[Result]) -> Table:
    """Every prediction with its interval, and what runs of that size say so far."""
    rows = []
    for one in found["predictions"]:
        analysis = analyse(STUDIES[one["study"]]("mini"), results)
        judged = next(c for c in analysis["contrasts"] if c["contrast"] == one["contrast"])
        rows.append(
            [
                one["contrast"],
                f"{one['estimate']:+.3f} ({one['low']:+.3f} … {one['high']:+.3f})",
                _outcome(one, judged["per_seed"]),
                f"`{one['command']}`",
            ]
        )
    return Table(
        title=f"Predictions of {found['date']} for {found['size']}",
        columns=["Comparison", "Predicted difference in NLL", "Outcome", "Tested by"],
        rows=rows,
        note=f"From results with sha256 {found['results_sha256'][:16]}…; an interval that does not "
        "hold the mean difference of the runs is a failed prediction.",
    )


def _outcome(one: dict[str, Any], per_seed: Sequence[float]) -> str:
    if not per_seed:
        return "not run"
    mean = statistics.fmean(per_seed)
    verdict = "holds" if one["low"] <= mean <= one["high"] else "failed"
    return f"{verdict}: {mean:+.3f} ({len(per_seed)} seed pairs)"
