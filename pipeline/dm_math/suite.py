"""The dataset `dm_math_tests`: interpolation and extrapolation of DeepMind Mathematics.

Configs `interpolate` (56 modules) and `extrapolate` (15), one split `test` each; everything but the
spec is shared with `dm_math`.
"""

from tangobench.pipeline.dm_math.build import build
from tangobench.pipeline.dm_math.plan import plan
from tangobench.pipeline.dm_math.spec import TestsSpec as Spec
from tangobench.pipeline.dm_math.why import record, why

__all__ = ["Spec", "build", "plan", "record", "why"]
