"""Tables of what the paper does not report: bits per byte, exact match, proofs, probes, ablations.

- Everything here is ours; there is no figure of the paper to stand beside it.
- A table is about one group of runs (dataset, family, depth and root), or it is not made: what no
  run measured has no table, what some runs lack is counted.
- Runs of one group answer the same questions. So the interval of a share over several runs is that
  of the mean share as if each question were asked once, not as often as there are runs; it says
  nothing about the difference of two models, which is paired by seed in a table of its own.
- Proofs: shares are of those that Lean checked; what was not checked is counted with its reasons.
  Only runs that were judged alike (same checker, same theorems) share a row. Where runs differ,
  the interval is that of the fewest theorems that one of them had checked.

Usage: `render(list(beyond_tables(read_results([Path("out/results")]))), "html")`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tangobench.eval.comparison.ablations import ablation_tables, differences
from tangobench.eval.comparison.runs import Group, Result, groups, label_of, metric_title
from tangobench.eval.comparison.tables import MISSING, ONE_LEVEL, marked, share_text, spread
from tangobench.eval.intervals import paired_t
from tangobench.eval.published import CLAIMS, LABELS
from tangobench.eval.render import Table

_LEVELS: Final = ("easy", "medium", "hard")
_PROBES: Final = {
    "near_twin": "near twins in training",
    "proof": "proofs in training",
    "proof_length": "proofs in training, by length",
    "novelty": "novelty of the question",
}


def beyond_tables(results: Sequence[Result]) -> Iterator[Table]:
    """All tables that some results allow."""
    for group in groups(results):
        yield from group_tables(group)
    yield from ablation_tables(differences(results))


def group_tables(group: Group) -> list[Table]:
    """The tables of one group of runs; ablations are compared across groups."""
    matched = (exact(group), exact_pairs(group), exact_by_module(group))
    tables = (bits(group), *matched, proof_table(group), *probe_tables(group))
    return [table for table in tables if table is not None]


def bits(group: Group) -> Table | None:
    """Bits per byte of every metric that has bytes."""

    def values(runs: Sequence[Result], metric: str) -> list[float]:
        found = [run["scores"].get(metric, {}).get("bits_per_byte") for run in runs]
        return [float(value) for value in found if value is not None]

    everyone = [run for runs in group.by_model.values() for run in runs]
    metrics = [metric for metric in group.metrics if values(everyone, metric)]
    if not metrics:
        return None
    return Table(
        title=group.title("Bits per byte"),
        columns=["Model", *(metric_title(metric) for metric in metrics)],
        rows=[
            [label_of(arch), *(spread(values(runs, metric), group.expected) for metric in metrics)]
            for arch, runs in group.by_model.items()
        ],
        note=group.note(
            "Summed NLL over ln 2 and over the UTF-8 bytes of the scored tokens; mean ± sample "
            "standard deviation over seeds. Lower is better.",
        ),
    )


def _shares(runs: Sequence[Result], name: str) -> list[dict[str, Any]]:
    matched = [run["exact_match"]["shares"] for run in runs if "exact_match" in run]
    return [shares[name] for shares in matched if name in shares]


def _share_cell(group: Group, runs: Sequence[Result], name: str, digits: int = 1) -> str:
    return share_text(_shares(runs, name), digits, group.expected)


def _measured(group: Group) -> Result | None:
    runs = [run for runs in group.by_model.values() for run in runs]
    return next((run for run in runs if "exact_match" in run), None)


def exact(group: Group) -> Table | None:
    """Exact match over all questions and by difficulty."""
    first = _measured(group)
    if first is None:
        return None
    shares = first["exact_match"]["shares"]
    names = ["all", *(f"difficulty:{level}" for level in _LEVELS)]
    names = [name for name in names if name in shares]
    heads = [
        f"{name.rpartition(':')[2].capitalize()} ({shares[name]['tried']:,} questions)"
        for name in names
    ]
    return Table(
        title=group.title("Exact match of generated answers"),
        columns=["Model", *heads],
        rows=[
            [
                label_of(arch),
                *(share_text(_shares(runs, name), expected=group.expected) for name in names),
            ]
            for arch, runs in group.by_model.items()
        ],
        note=group.note(
            "Greedy decoding; an answer counts if it equals the generator's to the last character "
            "and then ends. Mean over seeds; the 95% Wilson interval is that of the questions, "
            "seeds left aside. Models answer the same ones: compare them by their differences.",
        ),
    )


def exact_pairs(group: Group) -> Table | None:
    """Differences of exact match in the pairs of models that the paper orders, seed by seed."""
    rows = []
    for better, worse in CLAIMS:
        ours, theirs = (_points_by_seeds(group.by_model.get(arch, ())) for arch in (better, worse))
        points = [ours[seeds] - theirs[seeds] for seeds in sorted(ours.keys() & theirs.keys())]
        if found := paired_t(points):
            mean, low, high = (f"{value:+.2f}" for value in found)
            per_seed = ", ".join(f"{value:+.2f}" for value in points)
            pair = f"{LABELS[better]} minus {LABELS[worse]}"
            rows.append([pair, mean, f"{low} … {high}", per_seed])
    if not rows:
        return None
    return Table(
        title=group.title("Differences of exact match"),
        columns=["Models", "Percentage points", "95% interval", "Per seed"],
        rows=rows,
        note=group.note("The same questions, paired by seed; Student's t over seeds."),
    )


def _points_by_seeds(runs: Sequence[Result]) -> dict[tuple[int, int], float]:
    """Right answers in percent, by seed pair."""
    matched = [(run["seeds"], share) for run in runs for share in _shares([run], "all")]
    return {
        (seeds["initialisation"], seeds["data_order"]): 100 * share["correct"] / share["tried"]
        for seeds, share in matched
        if share["tried"]
    }


def exact_by_module(group: Group) -> Table | None:
    """Exact match by module, a column per architecture."""
    first = _measured(group)
    if first is None:
        return None
    modules = [name for name in first["exact_match"]["shares"] if name.startswith("module:")]
    return Table(
        title=group.title("Exact match by module"),
        columns=["Module", *(label_of(arch) for arch in group.by_model)],
        rows=[
            [
                marked(name.removeprefix("module:")),
                *(
                    share_text(_shares(runs, name), 0, group.expected)
                    for runs in group.by_model.values()
                ),
            ]
            for name in modules
        ],
        note=group.note(f"Mean over seeds, 95% Wilson interval of the questions. {ONE_LEVEL}"),
    )


def probe_tables(group: Group) -> Iterator[Table]:
    """NLL by what training holds of a row, a table per probe."""
    runs = [run for runs in group.by_model.values() for run in runs]
    first: dict[str, Any] = next((run["probes"] for run in runs if "probes" in run), {})
    for metric, probes in first.items():
        for name, probe in probes.items():
            yield Table(
                title=group.title(f"NLL by {_PROBES.get(name, name)}", metric),
                columns=["Model", *(_head(*item) for item in probe["groups"].items())],
                rows=[
                    [label_of(arch), *_cells(chosen, metric, name, probe["groups"])]
                    for arch, chosen in group.by_model.items()
                ],
                note=group.note(f"{probe['definition']}{_fed(group)}"),
            )


def _fed(group: Group) -> str:
    if group.family == "published":
        return ""
    return " Groups go by the whole training split, of which these runs were fed a part."


def _head(name: str, found: dict[str, Any]) -> str:
    return f"{name.capitalize()} ({found['rows']:,} row{'' if found['rows'] == 1 else 's'})"


def _cells(runs: Sequence[Result], metric: str, probe: str, names: dict[str, Any]) -> list[str]:
    cells = []
    for name, found in names.items():
        groups = [run["probes"][metric][probe]["groups"][name] for run in runs if "probes" in run]
        scores = [group["nll"] for group in groups if group["nll"] is not None]
        cells.append(spread(scores) if found["count"] else "–")
    return cells


def proof_table(group: Group) -> Table | None:
    """Proved, failed and unchecked proofs of each architecture."""
    judged = {
        arch: [run["proof_check"] for run in runs if "proof_check" in run]
        for arch, runs in group.by_model.items()
    }
    if not any(judged.values()):
        return None
    columns = ["Model", "Checker", "Theorems", "Proved", "Checked per run"]
    text = (
        "Greedy proofs of the validation theorems in place of the originals; mean over seeds, 95% "
        "Wilson interval over what was checked. Reasons are summed over seeds."
    )
    return Table(
        title=group.title("Proofs that Lean accepts"),
        columns=[*columns, "Why they failed", "Why they were not checked"],
        rows=[
            [label_of(arch), *cells]
            for arch, found in judged.items()
            for cells in _proof_rows(found)
        ],
        note=group.note(text),
    )


def _proof_rows(found: Sequence[Result]) -> list[list[str]]:
    """One row for each way in which runs were judged."""
    alike: dict[tuple[str, str], list[Result]] = {}
    for one in found:
        tried = f"first {one['generated']:,}" if one.get("limit") else f"{one['generated']:,}"
        alike.setdefault((one["checker"], tried), []).append(one)
    rows = [[*way, *_proof_cells(chosen)] for way, chosen in sorted(alike.items())]
    return rows or [[MISSING] * 6]


def _proof_cells(found: Sequence[Result]) -> list[str]:
    checked = statistics.fmean(one["checked"] for one in found)
    reasons = [_reasons(found, outcome) for outcome in ("failed", "unchecked")]
    return [_proof_share(found), f"{checked:,.0f}", *reasons]


def _reasons(found: Sequence[Result], outcome: str) -> str:
    total = sum((Counter(one[outcome]) for one in found), Counter[str]())
    return ", ".join(f"{reason} {count:,}" for reason, count in sorted(total.items())) or "–"


def _proof_share(found: Sequence[Result]) -> str:
    """Mean share and interval of the runs in which anything was checked."""
    counted = [one for one in found if one["checked"]]
    if not counted:
        return "–"
    tried = min(one["checked"] for one in counted)
    shares = [one["proved"] / one["checked"] for one in counted]
    return share_text([{"correct": share * tried, "tried": tried} for share in shares])
