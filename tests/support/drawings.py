"""Charts as a page draws them."""

from __future__ import annotations

import functools
from typing import Any

from tangobench.eval.report import site
from tangobench.eval.report.charts import WIDE, Figure


@functools.cache
def _templates() -> Any:
    return site._environment([])


def svg(figure: Figure, width: int = WIDE) -> str:
    return str(_templates().get_template("chart.svg.j2").module.drawing(figure, width))


def sentence(rows: list[Any]) -> str:
    return str(_templates().get_template("macros.html.j2").module.sentence(rows))


def heat(chart: dict[str, Any]) -> str:
    return str(_templates().get_template("macros.html.j2").module.heat(chart))
