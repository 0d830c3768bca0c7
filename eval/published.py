"""The paper's figures, as data, to be shown beside ours.

- NLL is (mean, sample standard deviation over three runs) as printed; MACs are strings because the
  paper prints rounded ones; parameter counts are the exact integers of its parameter table.
- Nothing here is computed, and nothing computed is ever mixed with it.
"""

from __future__ import annotations

from typing import Final

Figure = tuple[float, float]

LABELS: Final = {
    "tango": "TANGO",
    "wango": "WANGO",
    "recurrent_transformer": "Recurrent Transformer++",
    "untied_transformer": "Untied Transformer++",
    "gau": "Full-attention GAU",
    "flash": "FLASH",
}

_METRICS: Final = ("fineweb", "lean_joint", "lean_source", "lean_proof", "dm_math")


def _figures(table: str) -> dict[str, dict[str, Figure]]:
    """By architecture and metric: the mean and deviation of each pair of numbers."""
    found = {}
    for arch, *numbers in map(str.split, table.strip().splitlines()):
        pairs = zip(map(float, numbers[::2]), map(float, numbers[1::2]), strict=True)
        found[arch] = dict(zip(_METRICS, pairs, strict=False))
    return found


# Columns are those of _METRICS; at depth 8 the paper has no DeepMind Mathematics.
_DEPTH4: Final = """
tango                 3.293 0.005  1.719 0.026  1.883 0.035  1.556 0.018  0.473 0.008
wango                 3.355 0.005  2.271 0.017  2.544 0.017  1.998 0.023  0.487 0.006
recurrent_transformer 3.392 0.003  2.530 0.041  2.875 0.053  2.185 0.029  0.537 0.003
untied_transformer    3.318 0.006  2.138 0.033  2.387 0.043  1.889 0.025  0.556 0.005
gau                   3.484 0.003  2.337 0.043  2.624 0.051  2.050 0.036  0.515 0.037
flash                 3.465 0.020  2.377 0.030  2.697 0.040  2.058 0.024  0.557 0.005
"""
_DEPTH8: Final = """
tango                 3.212 0.016  1.563 0.024  1.695 0.025  1.432 0.023
wango                 3.282 0.001  2.231 0.021  2.515 0.026  1.948 0.016
recurrent_transformer 3.325 0.007  2.364 0.013  2.678 0.026  2.051 0.014
untied_transformer    3.277 0.010  1.803 0.073  1.990 0.082  1.616 0.063
gau                   3.323 0.018  2.412 0.062  2.717 0.078  2.107 0.047
flash                 3.342 0.006  2.314 0.031  2.603 0.038  2.024 0.025
"""
NLL: Final = {4: _figures(_DEPTH4), 8: _figures(_DEPTH8)}

# (architecture, dataset): F or E, and nonembedding parameters, with four block applications. The
# paper lists GAU per dataset, because its relative-position parameters depend on the context.
PARAMETERS: Final[dict[tuple[str, str], tuple[int, int]]] = {
    ("tango", "fineweb"): (28_480, 44_270_624),
    ("wango", "fineweb"): (28_480, 44_270_624),
    ("recurrent_transformer", "fineweb"): (28_144, 44_279_296),
    ("untied_transformer", "fineweb"): (6_528, 44_306_944),
    ("gau", "fineweb"): (7_136, 44_237_564),
    ("gau", "lean"): (7_152, 44_286_844),
    ("gau", "dm_math"): (7_152, 44_272_508),
    ("flash", "fineweb"): (7_152, 44_274_556),
}

# One forward pass over 8,192 tokens of FineWeb-Edu.
MACS: Final = {
    "tango": "9.44T",
    "wango": "1.90T",
    "recurrent_transformer": "1.94T",
    "untied_transformer": "848.60B",
    "gau": "2.52T",
    "flash": "693.98B",
}

# The paper's orderings: (lower, higher).
CLAIMS: Final = (
    *(("tango", other) for other in LABELS if other != "tango"),
    ("wango", "recurrent_transformer"),
    ("wango", "flash"),
)
