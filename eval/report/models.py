"""The page of models: counts beside the paper's, and measured speed.

- Counts come from the configs and the formulas, not from a table, so a difference would show.
- Seconds belong to one machine; the page says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from tangobench.catalogue import CATALOGUE
from tangobench.eval import published as paper
from tangobench.eval.comparison.runs import operations
from tangobench.eval.comparison.tables import parameters
from tangobench.eval.costs.speed import machine_text, speed_tables
from tangobench.eval.render import Table
from tangobench.eval.report.charts import plot
from tangobench.eval.report.drawing import Axis, Figure, Series, short
from tangobench.eval.report.gather import Found
from tangobench.model.config import ARCHS, SCALING, Arch, printed, published

Case = dict[str, Any]

_LENGTHS: Final = tuple(2**power for power in range(8, 17))  # 256 … 65,536
_PAPER_DM_MATH: Final = {"tango": "52.94B", "wango": "52.91B"}  # §5.1, the only two it prints
_LENGTH_AXIS: Final = Axis(label="sequence length T", log=2)


def models_context(found: Found) -> dict[str, Any]:
    return {
        "parameters": parameters(),
        "operations": operation_table(),
        "macs_figure": macs_figure(),
        "own_speed": speed(found.own_speed, "yours"),
        "speed": speed(found.shipped_speed, "ours"),
    }


def operation_table() -> Table:
    """MACs of one sequence at every dataset's context."""
    rows = []
    for arch in ARCHS:
        here = {n: printed(operations(published(arch, n), d.context)) for n, d in CATALOGUE.items()}
        ours = (here["lean"], here["dm_math"], _PAPER_DM_MATH.get(arch, "–"), SCALING[arch])
        rows.append((paper.LABELS[arch], here["fineweb"], paper.MACS[arch], *ours))
    head = (
        *("Model", "FineWeb-Edu, here", "paper", "Lean, here"),
        *("DM Math, here", "paper", "Growth with length"),
    )
    return Table(columns=head, rows=rows)


def macs_figure() -> Figure:
    def counted(arch: Arch, length: int) -> float:
        config = published(arch, "fineweb")
        return operations(replace(config, context=max(length, config.context)), length)

    series = [
        Series(key=a, label=paper.LABELS[a], x=_LENGTHS, y=[counted(a, t) for t in _LENGTHS])
        for a in ARCHS
    ]
    return plot(
        "Operations for one sequence",
        series,
        x=_LENGTH_AXIS,
        y=Axis(label="MACs, one forward pass", log=10, text=short),
        note="The published FineWeb-Edu models, counted from the equations; the output projection "
        "is included. WANGO and FLASH stay linear, the others grow quadratically.",
    )


def speed(results: dict[str, Any], whose: str) -> dict[str, Any] | None:
    """Tokens per second and peak memory of training and decoding; None if not measured."""
    cases: list[Case] = results.get("cases", [])
    if not cases:
        return None
    tasks = {case["task"] for case in cases}
    return {
        "figures": [
            _speed_figure([case for case in cases if case["task"] == task], name, whose)
            for task, name in (("train", "Training"), ("decode", "Decoding"))
            if task in tasks
        ],
        "tables": list(speed_tables(results)),
        "machine": machine_text(results),
        "size": cases[0]["size"],
    }


def _speed_figure(cases: Sequence[Case], name: str, whose: str) -> Figure:
    series = []
    names = dict.fromkeys([*ARCHS, *(case["arch"] for case in cases)])  # registered ones last
    for number, arch in enumerate(names):
        kept = sorted((c["length"], c["tokens_per_second"]) for c in cases if c["arch"] == arch)
        if kept:
            lengths, values = zip(*kept, strict=True)
            key, label = ARCHS[number % len(ARCHS)], paper.LABELS.get(arch, arch)
            series.append(Series(key=key, label=label, x=lengths, y=values))
    return plot(
        f"{name}: tokens per second, {whose}",
        series,
        x=_LENGTH_AXIS,
        y=Axis(label="tokens/s", log=10),
        note="Whole model, four block applications: compare slopes and distances.",
        dots="dot",
    )
