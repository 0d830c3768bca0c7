"""Charts as a page draws them."""

from __future__ import annotations

import functools
from typing import Any

from tangobench.eval.report import site
from tangobench.eval.report.charts import WIDE, Figure


@functools.cache
def _template() -> Any:
    return site._environment([]).get_template("chart.svg.j2").module


def svg(figure: Figure, width: int = WIDE) -> str:
    return str(_template().drawing(figure, width))
