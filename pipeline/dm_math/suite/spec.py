"""The spec of `dm_math_tests`: how many examples of each test module to draw.

Usage: `load_spec(Spec, "dm_math_tests", "paper")`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tangobench.pipeline.core.spec import bad_value
from tangobench.pipeline.dm_math.combinations import Part
from tangobench.pipeline.dm_math.spec import LONGEST


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What to draw."""

    seed: int
    context: int
    interpolate_per_module: int
    extrapolate_per_module: int
    batch_rows: int

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise bad_value("seed", self.seed, "an integer of at least 0")
        if self.context < LONGEST:
            raise bad_value("context", self.context, f"at least {LONGEST}, the longest row")
        for key in ("interpolate_per_module", "extrapolate_per_module", "batch_rows"):
            if getattr(self, key) < 1:
                raise bad_value(key, getattr(self, key), "a count of at least 1")

    def per_module(self, part: Part) -> int:
        """Examples of each module of a part."""
        if part == "interpolate":
            return self.interpolate_per_module
        return self.extrapolate_per_module
