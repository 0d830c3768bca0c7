"""Writes docs/findings.md and its pictures, from the results alone: `make results`.

- Tests compare the committed page and pictures with what this makes.
- Predictions of what models of the paper's size will show are made once, dated, and sealed with the
  hash of the results that they follow from (`--predict`). _PREDICTED says how.

Usage: `python docs/findings.py` in a clone.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any, Final

from tangobench.catalogue import CATALOGUE
from tangobench.errors import UsageError
from tangobench.eval.comparison import analysis, design
from tangobench.eval.comparison import recall as probe
from tangobench.eval.comparison.design import PREDICTIONS, PREDICTIONS_NAME
from tangobench.eval.comparison.studies import STUDIES, Result, Study, Weights, orderings
from tangobench.eval.comparison.tables import replications, summary_tables
from tangobench.eval.intervals import two_way
from tangobench.eval.published import LABELS, NLL
from tangobench.eval.render import render
from tangobench.eval.scoring.result_files import RUNS, read_results, shipped_results, write_result
from tangobench.model.config import TARGET_PARAMS
from tangobench.model.training.recipes import RECIPES, runs
from tangobench.pipeline.core.files import write_atomic
from tangobench.pipeline.core.progress import units

_HEAD: Final = """# What the studies found

The paper ranks models with equal numbers of parameters. These studies ask what sharing, gating and
operations each contribute, at a size that two cores can train ({small} parameters,
{dataset}). Questions and comparisons were written down before the runs.

- *Shared* is one block applied four times, *untied* four independent blocks. *At 0.25* means with
  a quarter of the operations (MACs, multiply-accumulates) of TANGO's 600 steps.
- Scores are validation NLL in nats per token: "A minus B" above zero means that B is better.
- Differences are on equal seeds and have two 95% intervals, paired t and two-way layout ([how runs
  are judged](reproducing.md#how-orderings-are-judged)). "Above zero", "below zero" and "holds" need
  both; otherwise the verdict is "undecided". Only Tukey's intervals, in the tables, are corrected
  for the number of comparisons.

All tables are in [results/tables.md](../results/tables.md). `make results` writes this page.
"""
_ORDERINGS: Final = """## Which of the paper's orderings hold here

```sh
tangobench tables --all
```
"""
_RECALL_LIMITS: Final = (
    "Rows are synthetic: four pairs of key and value, each asked for again later, and filler. "
    "Models have 0.1 million parameters and 600 steps; a model that has not learnt the task by "
    "then may learn it later.\n"
)
_LIMITS: Final = """## What this does not say

- These models have {small} parameters and were trained for minutes: only the predictions
  say anything about {large}.
- The paper's claims about WANGO are about texts of 8,192 tokens. The longest rows here have 1,024,
  in the studies `context` and `recall`.
- Learning rates are not tuned per model; the study `rates` shows what that would gain.
- All models but untied TANGO and WANGO are within 0.1% of the common parameter count; these two
  have {off:.1%} fewer.
- On Lean the vocabulary of {vocabulary:,} tokens outweighs the blocks at this size: those runs
  measure the embedding more than the blocks.
"""
_PREDICTED: Final = """## Predictions

```sh
tangobench results predictions
```

Each prediction is a difference of the small models times the ratio of TANGO's NLLs (the paper's
over ours), with the interval doubled for the step in size. Where the paper prints the difference
too, the estimate is the middle of both and the interval covers both. What more operations give
Untied Transformer++ is extrapolated from its training curve.

"""
HERE: Final = Path(__file__).parent
_LEFT, _WIDTH, _TALL, _TOP = 430, 900, 30, 60
_STYLE: Final = (
    "text{font:14px system-ui,sans-serif;fill:#222}.m{text-anchor:middle;font-size:12px}"
    ".e{text-anchor:end}.t{font-weight:600}line{stroke:#999}.i{stroke:#1b6ca8;stroke-width:3}"
    ".u{stroke:#999;stroke-width:3}circle{fill:#1b6ca8}.v{fill:#999}"
    ".c{fill:none;stroke:#1b6ca8;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}line{stroke:#777}"
    ".i{stroke:#6db3e8}circle{fill:#6db3e8}}"
)
_WIDER: Final = 2.0  # for the step from 0.77 to 44 million parameters
_SLOPES: Final = (0.25, 0.6, 1.25)  # of the small curve's slope per doubling: low, middle, high


def findings(
    results: Sequence[Result],
    recall: Mapping[str, Result] | None = None,
    predicted: Result | None = None,
) -> str:
    """The page, from scored runs, runs of the recall study and predictions."""
    untied = STUDIES["sharing"]("mini").arms[3].recipe.model_config()
    facts: dict[str, Any] = {
        "off": -(untied.deviation or 0.0),
        "small": f"{RECIPES['mini-dm_math-tango'].target_params / 1e6:.2f} million",
        "large": f"{TARGET_PARAMS / 1e6:.0f} million",
        "dataset": CATALOGUE["dm_math"].title,
        "vocabulary": CATALOGUE["lean"].vocabulary,
    }
    small = [make("mini") for name, make in STUDIES.items() if not name.startswith("large")]
    claims = [table for found in replications(results) for table in summary_tables(found)[1:]]
    parts = [_HEAD.format(**facts), f"{_ORDERINGS}\n{render(claims, 'markdown')}"]
    parts += [_section(study.name, study.question, _said(study, results)) for study in small]
    asked = probe.recall()
    tested = probe.recall_tables(recall, asked) if recall else []
    body = render(tested, "markdown") or "Not run.\n"
    parts.append(_section(asked.name, asked.question, f"{body}\n{_RECALL_LIMITS}"))
    if predicted is not None:
        table = render([design.prediction_table(predicted, results)], "markdown")
        parts.append(_PREDICTED + table)
    return "\n".join([*parts, _LIMITS.format(**facts), _not_run(small, results)])


def _section(name: str, question: str, body: str) -> str:
    command = f"```sh\ntangobench replicate --study {name}\n```\n"
    return f"## {name.capitalize()}\n\n**Question.** {question}\n\n{command}\n{body}"


def _not_run(small: Sequence[Study], results: Sequence[Result]) -> str:
    done = {result["run_sha256"] for result in results}
    told = []
    for study in small:
        if names := [run.name for run in study.runs if run.sha256 not in done]:
            which = f" ({', '.join(names)})" if len(names) <= 12 else ""
            told.append(f"- `{study.name}`: {units(len(names), 'run')}{which}")
    return "\n".join(["## Not run", "", *(told or ["Every planned run has a result."]), ""])


def _said(study: Study, results: Sequence[Result]) -> str:
    prior = design.prior_residual(results, study)
    planned = _planned(design.plan(study, [], prior))
    if not study.has_run(results):
        return f"Not run yet. {planned}"
    tables = analysis.study_tables(study, results, brief=True)
    names = {"": "Differences with intervals", "-curves": "NLL by operations"}
    made = pictures([*results], [study])
    seen = [
        f"![{text}](images/findings-{study.name}{end}.svg)\n\n"
        for end, text in names.items()
        if f"findings-{study.name}{end}.svg" in made
    ]
    return f"{''.join(seen)}{planned}\n{render(tables, 'markdown')}"


def _planned(plan: Mapping[str, Any]) -> str:
    """What the design asked for and could detect; `--plan` lists it in full."""
    said = (
        f"Planned: {units(len(plan['runs']), 'run')} of {plan['core_hours']:.1f} core-hours in all"
    )
    if plan["contrasts"]:
        said += f", {units(len(plan['contrasts']), 'comparison')} (`--plan` lists them)"
    if seen := sorted({f"{c['detectable']:.3f}" for c in plan["contrasts"] if c["detectable"]}):
        smallest = " to ".join(seen[:: len(seen) - 1 or 1])
        said += f", which detect a difference of {smallest} in 80% of repetitions"
    return f"{said}.\n"


def pictures(results: Sequence[Result], studies: Iterable[Study] | None = None) -> dict[str, str]:
    """The page's pictures by file name: stated comparisons, and curves over several budgets."""
    pages = {}
    for study in studies or [make("mini") for make in STUDIES.values()]:
        found = analysis.analyse(study, results) if study.has_run(results) else {"contrasts": []}
        if rows := [contrast for contrast in found["contrasts"] if contrast["two_way"]]:
            progress = f"{found['runs']} of {found['planned']} planned runs"
            title = f"NLL differences, 95% by the two-way layout; grey: undecided ({progress})"
            pages[f"findings-{study.name}.svg"] = forest(title, rows)
        lines = {m: c for m, c in analysis.by_budget(study, results).items() if len(c) > 1}
        if lines:
            title = "NLL by operations, in units of TANGO's 600 steps (log scale)"
            pages[f"findings-{study.name}-curves.svg"] = curves(title, lines)
    return pages


def curves(title: str, scores: Mapping[str, Mapping[float, Mapping[Any, float]]]) -> str:
    """A line per model through its mean NLL at every budget (log scale), named where it ends."""
    lines = {
        model: [(budget, statistics.fmean(nlls.values())) for budget, nlls in by_budget.items()]
        for model, by_budget in scores.items()
    }
    points = [point for line in lines.values() for point in line]
    budgets, nlls = ({point[i] for point in points} for i in (0, 1))
    low, high = math.log2(min(budgets)), math.log2(max(budgets))
    top, tall = max(nlls), 300 / (max(nlls) - min(nlls))

    def place(budget: float, nll: float) -> tuple[float, float]:
        return 60 + 560 * (math.log2(budget) - low) / (high - low), _TOP + tall * (top - nll)

    parts = [f'<text class="t" x="10" y="24">{escape(title)}</text>']
    for budget in sorted(budgets):
        x = place(budget, top)[0]
        parts.append(f'<text class="m" x="{x:.1f}" y="{_TOP + 330}">{budget:g}</text>')
    free = 0.0  # for the next name, below those before
    for model, line in sorted(lines.items(), key=lambda item: -item[1][-1][1]):
        places = [place(*point) for point in line]
        (x, y), (_, nll) = places[-1], line[-1]
        free = max(free + 18, y)
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        parts.append(f'<polyline class="c" points="{path}"/>')
        parts.append(f'<text x="{x + 8:.1f}" y="{free + 5:.1f}">{escape(model)} {nll:.3f}</text>')
    return _svg(title, _TOP + 350, parts)


def forest(title: str, contrasts: Sequence[Mapping[str, Any]]) -> str:
    """A line per difference with its interval; grey without a verdict."""
    numbers = [0.0, *(value for contrast in contrasts for value in contrast["two_way"])]
    low, high = min(numbers), max(numbers)
    room = 0.05 * (high - low or 1.0)
    low, high = low - room, high + room

    def x(value: float) -> str:
        return f"{_LEFT + (_WIDTH - _LEFT - 20) * (value - low) / (high - low):.1f}"

    bottom = _TOP + _TALL * len(contrasts)
    parts = [
        f'<text class="t" x="10" y="24">{escape(title)}</text>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="{_TOP - 16}" y2="{bottom}"/>',
        f'<text class="m" x="{x(0)}" y="{bottom + 18}">0 nats</text>',
    ]
    for number, contrast in enumerate(contrasts):
        y, (middle, left, right) = _TOP + _TALL * number, contrast["two_way"]
        line, dot = ("i", "") if contrast["verdict"].endswith("zero") else ("u", "v")
        parts += [
            f'<text class="e" x="{_LEFT - 12}" y="{y + 5}">{escape(contrast["contrast"])}</text>',
            f'<line class="{line}" x1="{x(left)}" x2="{x(right)}" y1="{y}" y2="{y}"/>',
            f'<circle class="{dot}" cx="{x(middle)}" cy="{y}" r="5"/>',
            f'<text class="m" x="{x(middle)}" y="{y - 8}">{middle:+.3f}</text>',
        ]
    return _svg(title, bottom + 30, parts)


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def predict(results: Sequence[Result], date: str) -> dict[str, Any]:
    packed = (shipped_results() / RUNS).read_bytes()
    small = STUDIES["sharing"]("mini")
    shared = {n: w for n, w in small.contrasts.items() if n.startswith("Sharing in TANGO")}
    sharing = replace(small, contrasts=shared)
    return {
        "format": PREDICTIONS,
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
    scores = analysis.scores_of(small, results)
    layout = two_way(scores)
    if layout is None:
        raise UsageError(
            f"study {small.name} has too few runs to predict from",
            kind="result-missing",
            fix=f"tangobench replicate --study {small.name}",
        )
    scale = NLL[4]["tango"]["dm_math"][0] / statistics.fmean(scores[tango].values())
    tested = STUDIES[large]("mini").contrasts
    for ours, (name, weights) in zip(small.contrasts.values(), tested.items(), strict=True):
        middle, low, high = (scale * value for value in layout.contrast(ours))
        half = _WIDER * (high - low) / 2
        basis = f"{small.name} at the mini size, two-way layout, scaled by {scale:.3f} and doubled"
        low, high = middle - half, middle + half
        if known := _paper(weights):
            low, high = min(low, known[0]), max(high, known[2])
            middle = (middle + known[1]) / 2
            basis += f"; the paper's difference {known[1]:+.3f}"
        yield _entry(large, name, basis, (low, middle, high))


def _paper(weights: Weights) -> tuple[float, float, float] | None:
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
    losses = [r["curve"]["default"] for r in results if r["run_sha256"] in hashes]
    slope = statistics.fmean(_last_drop([loss for _, loss in curve]) for curve in losses)
    (aim, tango), (ours, untied) = (
        (NLL[4][arch]["dm_math"][0], RECIPES[f"dm_math-{arch}-4"].step_macs) for arch in archs
    )
    doublings = math.log2(tango / untied)
    study = STUDIES["large-compute"]("mini")
    basis = (
        f"training loss of {len(losses)} small runs falls by {1 - math.exp(-slope):.0%} in its last"
        f" doubling; {_SLOPES[0]:g} to {_SLOPES[2]:g} times that for {doublings:.2f} doublings"
    )
    interval = [aim - ours * math.exp(-share * slope * doublings) for share in _SLOPES]
    return _entry(study.name, next(iter(study.contrasts)), basis, interval)


def _last_drop(points: Sequence[float]) -> float:
    """Logarithm of the loss half-way over that at the end."""
    middle, tenth = len(points) // 2, max(1, len(points) // 10)
    half, end = points[middle - tenth : middle], points[-tenth:]
    return math.log(statistics.fmean(half) / statistics.fmean(end))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--predict", metavar="YYYY-MM-DD", help="instead: write the predictions")
    day = parser.parse_args().predict
    folder = shipped_results()
    results = read_results([folder])
    if day:
        print(write_predictions(folder / PREDICTIONS_NAME, results, day))
        return
    for name, picture in pictures(results).items():
        write_atomic(HERE / "images" / name, picture.encode())
    page = findings(results, probe.read_recall([folder]), design.read_predictions())
    write_atomic(HERE / "findings.md", page.encode())


if __name__ == "__main__":
    main()
