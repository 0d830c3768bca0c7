"""docs/findings.md and its pictures: what the studies say; no number is typed by hand.

- A study without a run is named as not run, with its plan.
- Page and pictures are functions of the results alone: tests compare them with the committed ones.
- A picture is one self-contained SVG, with colours for light and dark pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, title_of
from tangobench.eval.comparison.analysis import (
    analyse,
    plan,
    plan_table,
    prior_residual,
    studies_in,
    study_tables,
)
from tangobench.eval.comparison.predictions import prediction_table
from tangobench.eval.comparison.recall import QUESTION, recall_runs, recall_table
from tangobench.eval.comparison.replications import replications
from tangobench.eval.comparison.runs import estimate
from tangobench.eval.comparison.studies import STUDIES, Result, Study
from tangobench.eval.intervals import Interval
from tangobench.eval.published import LABELS
from tangobench.eval.render import render
from tangobench.model.config import TARGET_PARAMS
from tangobench.model.training.recipes import RECIPES

_HEAD: Final = """# What the studies say

The paper ranks models of equal parameters. These studies ask what sharing, gating and operations
each contribute, at a size that two cores can train ({small} parameters, {dataset}).
Questions and comparisons were written down before the runs, together with the difference that each
design can see. `make results` writes this page from `results/`; no number is typed by hand.
"""
_RECALL_LIMITS: Final = (
    "Rows are synthetic, models have 0.1 million parameters and 600 steps: who has not learnt "
    "the task by then may learn it later. Shares compare models at equal parameters and "
    "steps.\n"
)
_LIMITS: Final = """## What this does not say

- Models of {small} parameters trained for minutes: only the predictions say anything
  about {large}.
- Learning rates are not tuned per model; the study `rates` shows what that would gain.
- All models but two are within 0.1% of the common parameter count. The width rule moves untied
  TANGO and WANGO in steps: they have {off:.1%} fewer.
- On Lean the vocabulary of {vocabulary:,} tokens outweighs the blocks at this size: those runs
  measure the embedding more than the blocks.
"""
_NOT_RUN: Final = """## Not run

- The study `context` (long-context text: mdn/content in yearly snapshots) is not built.
- {runs}
"""
_LEFT, _WIDTH, _TALL, _TOP = 430, 900, 30, 60
_STYLE: Final = (
    "text{font:14px system-ui,sans-serif;fill:#222}.m{text-anchor:middle;font-size:12px}"
    ".e{text-anchor:end}.t{font-weight:600}line{stroke:#999}.i{stroke:#1b6ca8;stroke-width:3}"
    ".u{stroke:#999;stroke-width:3}circle{fill:#1b6ca8}.v{fill:#999}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}line{stroke:#777}"
    ".i{stroke:#6db3e8}circle{fill:#6db3e8}}"
)


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
    parts = [_HEAD.format(**facts), _orderings(results)]
    parts += [_section(study.name, study.question, _said(study, results)) for study in small]
    tested = [recall_table(dict(recall), recall_runs())] if recall else []
    body = render(tested, "markdown") or "Not run.\n"
    parts.append(_section("recall", QUESTION, f"{body}\n{_RECALL_LIMITS}"))
    if predicted is not None:
        table = render([prediction_table(predicted, results)], "markdown")
        parts.append(f"## Predictions\n\n```sh\ntangobench results predictions\n```\n\n{table}")
    return "\n".join([*parts, _LIMITS.format(**facts), _not_run(small, results)])


def _section(name: str, question: str, body: str) -> str:
    command = f"```sh\ntangobench replicate --study {name}\n```\n"
    return f"## {name.capitalize()}\n\n**Question.** {question}\n\n{command}\n{body}"


def _not_run(small: Sequence[Study], results: Sequence[Result]) -> str:
    """Planned runs without a result, by name."""
    done = {result["run_sha256"] for result in results}
    missing = {s.name: [r.name for r in s.runs if r.sha256 not in done] for s in small}
    told = [
        f"`{name}`: {len(names)} runs" + (f" ({', '.join(names)})" if len(names) <= 12 else "")
        for name, names in missing.items()
        if names
    ]
    return _NOT_RUN.format(runs="\n- ".join(told) or "Every other planned run has a result.")


def _orderings(results: Sequence[Result]) -> str:
    """The paper's own orderings at this size, in sentences."""
    lines = ["## Which of the paper's orderings hold here", ""]
    for summary in replications(results):
        by_verdict: dict[str, list[str]] = {}
        for claim in summary["claims"]:
            pair = f"{LABELS[claim['lower']]} < {LABELS[claim['higher']]} ({claim['mean']:+.3f})"
            by_verdict.setdefault(claim["verdict"], []).append(pair)
        if by_verdict:
            title = f"{title_of(summary['dataset'])}, {summary['profile']} runs"
            lines += [f"**{title}** (`tangobench tables`)", ""]
            lines += [f"- {name}: {', '.join(pairs)}" for name, pairs in by_verdict.items()]
            lines.append("")
    return "\n".join(lines)


def _said(study: Study, results: Sequence[Result]) -> str:
    prior = prior_residual(results, study)
    if not study.own & {result["run_sha256"] for result in results}:
        planned = plan_table(plan(study, results, prior))
        return "Not run yet. The plan:\n\n" + render([planned], "markdown")
    said = [f"![Differences with intervals](images/findings-{study.name}.svg)", ""]
    said += [
        f"- {contrast['contrast']}: {estimate(contrast['two_way'])}, {contrast['verdict']}."
        for contrast in analyse(study, results)["contrasts"]
        if contrast["two_way"]
    ]
    tables = render(study_tables(study, results), "markdown")
    stated = render([plan_table(plan(study, [], prior))], "markdown")
    detail = f"<details><summary>Stated before the runs</summary>\n\n{stated}\n</details>\n"
    return "\n".join([*said, "", tables, detail])


def pictures(results: Sequence[Result]) -> dict[str, str]:
    """The page's pictures by file name: the stated comparisons of every study that ran."""
    found = {}
    for study, analysis in studies_in(results):
        rows = [(c["contrast"], c["two_way"]) for c in analysis["contrasts"] if c["two_way"]]
        if rows:
            progress = f"{analysis['runs']} of {analysis['planned']} planned runs"
            title = f"Differences of NLL, 95% intervals ({progress})"
            found[f"findings-{study.name}.svg"] = forest(title, rows, "nats")
    return found


def forest(title: str, rows: Sequence[tuple[str, Interval]], unit: str) -> str:
    """A line per difference with its interval; grey where the interval holds zero."""
    numbers = [0.0, *(value for _, interval in rows for value in interval)]
    low, high = min(numbers), max(numbers)
    room = 0.05 * (high - low or 1.0)
    low, high = low - room, high + room

    def x(value: float) -> str:
        return f"{_LEFT + (_WIDTH - _LEFT - 20) * (value - low) / (high - low):.1f}"

    bottom = _TOP + _TALL * len(rows)
    parts = [
        f'<text class="t" x="10" y="24">{escape(title)}</text>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="{_TOP - 16}" y2="{bottom}"/>',
        f'<text class="m" x="{x(0)}" y="{bottom + 18}">0 {escape(unit)}</text>',
    ]
    for number, (label, (middle, left, right)) in enumerate(rows):
        y = _TOP + _TALL * number
        line, dot = ("i", "") if left * right > 0 else ("u", "v")
        parts += [
            f'<text class="e" x="{_LEFT - 12}" y="{y + 5}">{escape(label)}</text>',
            f'<line class="{line}" x1="{x(left)}" x2="{x(right)}" y1="{y}" y2="{y}"/>',
            f'<circle class="{dot}" cx="{x(middle)}" cy="{y}" r="5"/>',
            f'<text class="m" x="{x(middle)}" y="{y - 8}">{middle:+.3f}</text>',
        ]
    size = f'viewBox="0 0 {_WIDTH} {bottom + 30}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )
