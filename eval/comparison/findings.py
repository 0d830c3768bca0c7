"""docs/findings.md: what the studies say, generated from results; no number is typed by hand.

- A study without a run is named as not run, with its plan.
- The page is a function of the results alone: a test compares it with the committed one.

Usage: `Path("docs/findings.md").write_text(findings(read_results([shipped_results()])))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tangobench.catalogue import CATALOGUE, title_of
from tangobench.eval.comparison.claims import replications
from tangobench.eval.comparison.designs import STUDIES
from tangobench.eval.comparison.studies import (
    Study,
    analyse,
    plan,
    prior_residual,
    results_of,
)
from tangobench.eval.comparison.study_tables import plan_table, study_tables
from tangobench.eval.published import LABELS
from tangobench.eval.render import render
from tangobench.model.config import TARGET_PARAMS
from tangobench.model.training.recipes import RECIPES

Result = dict[str, Any]

_HEAD: Final = """# What the studies say

The paper ranks models of equal parameters. These studies ask what sharing, gating and operations
each contribute, at a size that two cores can train ({small} parameters, {dataset}).
Questions and comparisons were written down before the runs, together with the difference that each
design can see. `make results` writes this page from `results/`; no number is typed by hand.
"""
_LIMITS: Final = """## What this does not say

- Models of {small} parameters trained for minutes: nothing here is a claim about {large}.
- Learning rates are not tuned per model; the study `rates` shows what that would gain.
- The width rule moves untied models in steps that miss the common parameter count; the column
  "Off the target" says by how much.
- On Lean the vocabulary of {vocabulary:,} tokens outweighs the blocks at this size: those runs
  measure the embedding more than the blocks.
"""


def findings(results: Sequence[Result]) -> str:
    """The page."""
    facts = {
        "small": f"{RECIPES['mini-dm_math-tango'].target_params / 1e6:.2f} million",
        "large": f"{TARGET_PARAMS / 1e6:.0f} million",
        "dataset": CATALOGUE["dm_math"].title,
        "vocabulary": CATALOGUE["lean"].vocabulary,
    }
    parts = [_HEAD.format(**facts), _orderings(results)]
    small = [make("mini") for name, make in STUDIES.items() if not name.startswith("large")]
    parts += [_section(study, results) for study in small]
    return "\n".join([*parts, _LIMITS.format(**facts)])


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


def _section(study: Study, results: Sequence[Result]) -> str:
    command = f"```sh\ntangobench replicate --study {study.name}\n```\n"
    head = f"## {study.name.capitalize()}\n\n**Question.** {study.question}\n"
    prior = prior_residual(results, study)
    found = analyse(study, results)
    own = {run.sha256 for run in study.runs if run.recipe.family == "study"}
    ran = any(
        result["run_sha256"] in own
        for cells in results_of(study, results).values()
        for result in cells.values()
    )
    if not ran:
        planned = plan(study, results, prior)
        body = "Not run yet. The plan:\n\n" + render([plan_table(planned)], "markdown")
        return "\n".join([head, command, body])
    said = [_sentence(contrast) for contrast in found["contrasts"] if contrast["two_way"]]
    tables = render(study_tables(study, results), "markdown")
    stated = render([plan_table(plan(study, [], prior))], "markdown")
    detail = f"<details><summary>Stated before the runs</summary>\n\n{stated}\n</details>\n"
    return "\n".join([head, command, *said, "", tables, detail])


def _sentence(contrast: dict[str, Any]) -> str:
    middle, low, high = (f"{value:+.3f}" for value in contrast["two_way"])
    return f"- {contrast['contrast']}: {middle} ({low} … {high}), {contrast['verdict']}."
