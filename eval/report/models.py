"""The models' page: parameters and operation counts computed here beside those the paper prints.

- Counts come from the configs and the formulas, not from a table, so a difference would show.
- Measured speed and memory appear only where a benchmark has written them.

Usage: `models_context(gather(Path("out")))`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, cast

from tangobench.catalogue import CATALOGUE, title_of
from tangobench.eval import published as paper
from tangobench.eval.comparison.runs import operations
from tangobench.eval.report.charts import Axis, Figure, Series, Table, lines
from tangobench.eval.report.charts_scale import paper_macs, short
from tangobench.eval.report.gather import Found
from tangobench.eval.report.measured import measured, speed
from tangobench.model.config import ARCHS, Arch, published

_LENGTHS: Final = tuple(2**power for power in range(8, 17))  # 256 … 65,536
_PAPER_DM_MATH: Final = {"tango": "52.94B", "wango": "52.91B"}  # §5.1, the only two it prints


def models_context(found: Found) -> dict[str, Any]:
    """Everything that the models page shows."""
    return {
        "parameters": parameters(),
        "operations": operation_table(),
        "macs_figure": macs_figure(),
        "own_speed": speed(found.own_speed, "yours"),
        "speed": speed(found.measurements.get("speed", {}), "ours"),
        "measured": measured(found.measurements.get("model", {})),
    }


def parameters() -> Table:
    """Widths and nonembedding parameters of the published configs beside the paper's."""
    rows = []
    for (arch, dataset), (width, count) in paper.PARAMETERS.items():
        config = published(cast(Arch, arch), dataset)
        rows.append(
            (
                paper.LABELS[arch] + (f", {title_of(dataset)}" if arch == "gau" else ""),
                "one, applied 4 times" if config.shared else "four",
                f"{config.width:,}",
                f"{width:,}",
                f"{config.nonembedding_params:,}",
                f"{count:,}",
            )
        )
    head = ("Model", "Blocks", "Width, here", "Width, paper", "Parameters, here", "paper")
    return Table(columns=head, rows=rows)


def operation_table() -> Table:
    """MACs of one sequence at every dataset's context."""
    rows = []
    for arch in ARCHS:
        counts = {
            name: paper_macs(operations(published(arch, name), data.context))
            for name, data in CATALOGUE.items()
        }
        rows.append(
            (
                *(paper.LABELS[arch], counts["fineweb"], paper.MACS[arch]),
                *(counts["lean"], counts["dm_math"], _PAPER_DM_MATH.get(arch, "–")),
                paper.SCALING[arch],
            )
        )
    head = (
        *("Model", "FineWeb-Edu, here", "paper", "Lean, here"),
        *("DM Math, here", "paper", "Growth with length"),
    )
    return Table(columns=head, rows=rows)


def macs_figure() -> Figure:
    """Operation counts against sequence length."""
    series = [
        Series(
            key=arch,
            label=paper.LABELS[arch],
            x=_LENGTHS,
            y=[operations(_stretched(arch, length), length) for length in _LENGTHS],
        )
        for arch in ARCHS
    ]
    return lines(
        "Operations for one sequence",
        series,
        x=Axis(label="sequence length T (log scale)", log=True, base=2),
        y=Axis(label="MACs, one forward pass (log scale)", log=True, text=short, rounded=True),
        description="Multiply–accumulate operations of one forward pass against sequence length "
        "for the six published FineWeb-Edu models. TANGO, both Transformers and GAU grow "
        "quadratically; WANGO and FLASH linearly.",
        note="The published FineWeb-Edu models, counted from the equations; the output projection "
        "is included. WANGO and FLASH stay linear.",
    )


def _stretched(arch: Arch, length: int) -> Any:
    config = published(arch, "fineweb")
    return replace(config, context=max(length, config.context))
