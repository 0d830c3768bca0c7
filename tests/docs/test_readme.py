"""The numbers that README states, taken again from the results and the paper's figures."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

from tangobench.eval.comparison.analysis import analyse
from tangobench.eval.comparison.studies import STUDIES
from tangobench.eval.published import NLL
from tangobench.eval.scoring.result_files import read_results, shipped_results
from tangobench.model.config import ARCHS
from tangobench.model.training.recipes import RECIPES, SEED_PAIRS

ROOT = Path(__file__).parents[2]
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
ROWS = {"DeepMind Mathematics": ("dm_math", "dm_math"), "Lean joint": ("lean", "lean_joint")}


def row(name: str, whose: str) -> list[float]:
    found = re.search(rf"\| {name}, {whose} \([^)]*\)((?: \| [*.\d]+)+)", README)
    assert found
    return [float(cell.strip(" *")) for cell in found[1].split("|")[1:]]


def test_the_table_has_the_means_of_the_results_and_the_papers():
    scores = {found["run"]: found["scores"] for found in read_results([shipped_results()])}
    for name, (dataset, metric) in ROWS.items():
        ours, paper = row(name, "ours"), row(name, "paper")
        for index, arch in enumerate(ARCHS):
            runs = [f"mini-{dataset}-{arch}-s{a}-{b}" for a, b in SEED_PAIRS]
            mean = statistics.mean(scores[run][metric]["nll"] for run in runs)
            assert f"{mean:.3f}" == f"{ours[index]:.3f}"
            assert NLL[4][arch][metric][0] == paper[index]


def test_the_orderings_are_counted_as_the_page_of_findings_judges_them():
    words = {"two": 2, "five": 5}
    rule = r"(\w+) hold on mathematics and (\w+) are undecided; on Lean, (\w+) hold and (\w+)"
    text = re.search(rule, README)
    assert text
    page = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    parts = page.split("### The paper's orderings, ")[1:]
    verdicts = ("| holds |", "| undecided,")
    judged = [part.count(verdict) for part in parts for verdict in verdicts]
    assert [words[word] for word in text.groups()] == judged


def test_the_comparison_at_equal_operations():
    tango, untied = (RECIPES[f"mini-dm_math-{arch}"] for arch in ("tango", "untied_transformer"))
    found = analyse(STUDIES["compute"]("mini"), read_results([shipped_results()]))
    per_seed = {contrast["contrast"]: contrast["per_seed"] for contrast in found["contrasts"]}
    quarter = statistics.mean(per_seed["TANGO minus Untied Transformer++ at 0.25"])
    assert f"takes {tango.step_macs / untied.step_macs:.1f} times the operations" in README
    assert f"is ahead on mathematics by {quarter:.3f}" in README
