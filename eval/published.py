"""The paper's figures, as data, to stand beside ours.

- NLL is (mean, sample standard deviation over three runs) as printed; MACs are strings because the
  paper prints rounded ones; parameter counts are the exact integers of its parameter table.
- Nothing here is computed, and nothing computed here is ever mixed with it.

Usage: `NLL[4]["tango"]["dm_math"]  # (0.473, 0.008)`.
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

_DEPTH4: Final[dict[str, dict[str, Figure]]] = {
    "tango": {
        "fineweb": (3.293, 0.005),
        "lean_joint": (1.719, 0.026),
        "lean_source": (1.883, 0.035),
        "lean_proof": (1.556, 0.018),
        "dm_math": (0.473, 0.008),
    },
    "wango": {
        "fineweb": (3.355, 0.005),
        "lean_joint": (2.271, 0.017),
        "lean_source": (2.544, 0.017),
        "lean_proof": (1.998, 0.023),
        "dm_math": (0.487, 0.006),
    },
    "recurrent_transformer": {
        "fineweb": (3.392, 0.003),
        "lean_joint": (2.530, 0.041),
        "lean_source": (2.875, 0.053),
        "lean_proof": (2.185, 0.029),
        "dm_math": (0.537, 0.003),
    },
    "untied_transformer": {
        "fineweb": (3.318, 0.006),
        "lean_joint": (2.138, 0.033),
        "lean_source": (2.387, 0.043),
        "lean_proof": (1.889, 0.025),
        "dm_math": (0.556, 0.005),
    },
    "gau": {
        "fineweb": (3.484, 0.003),
        "lean_joint": (2.337, 0.043),
        "lean_source": (2.624, 0.051),
        "lean_proof": (2.050, 0.036),
        "dm_math": (0.515, 0.037),
    },
    "flash": {
        "fineweb": (3.465, 0.020),
        "lean_joint": (2.377, 0.030),
        "lean_source": (2.697, 0.040),
        "lean_proof": (2.058, 0.024),
        "dm_math": (0.557, 0.005),
    },
}
_DEPTH8: Final[dict[str, dict[str, Figure]]] = {
    "tango": {
        "fineweb": (3.212, 0.016),
        "lean_joint": (1.563, 0.024),
        "lean_source": (1.695, 0.025),
        "lean_proof": (1.432, 0.023),
    },
    "wango": {
        "fineweb": (3.282, 0.001),
        "lean_joint": (2.231, 0.021),
        "lean_source": (2.515, 0.026),
        "lean_proof": (1.948, 0.016),
    },
    "recurrent_transformer": {
        "fineweb": (3.325, 0.007),
        "lean_joint": (2.364, 0.013),
        "lean_source": (2.678, 0.026),
        "lean_proof": (2.051, 0.014),
    },
    "untied_transformer": {
        "fineweb": (3.277, 0.010),
        "lean_joint": (1.803, 0.073),
        "lean_source": (1.990, 0.082),
        "lean_proof": (1.616, 0.063),
    },
    "gau": {
        "fineweb": (3.323, 0.018),
        "lean_joint": (2.412, 0.062),
        "lean_source": (2.717, 0.078),
        "lean_proof": (2.107, 0.047),
    },
    "flash": {
        "fineweb": (3.342, 0.006),
        "lean_joint": (2.314, 0.031),
        "lean_source": (2.603, 0.038),
        "lean_proof": (2.024, 0.025),
    },
}
NLL: Final = {4: _DEPTH4, 8: _DEPTH8}

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
SCALING: Final = {
    "tango": "quadratic",
    "wango": "linear",
    "recurrent_transformer": "quadratic",
    "untied_transformer": "quadratic",
    "gau": "quadratic",
    "flash": "linear",
}

# The paper's orderings: (lower, higher).
CLAIMS: Final = (
    *(("tango", other) for other in LABELS if other != "tango"),
    ("wango", "recurrent_transformer"),
    ("wango", "flash"),
)
