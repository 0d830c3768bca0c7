"""Cutting the examples of the math dataset into units of similar time.

- All examples of a split, combination after combination, form one line; it is cut at equal cost.
  A unit is a few *pieces* (combination, start, stop): many cheap combinations, or a slice of one.
- Costs only place the cuts: they decide neither a row nor a root.
- `Placement` finds the rows of any (combination, index range) again.

Usage: `units = cut(costs_of("train"), 32_000); placement = Placement(units, addresses)`
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tangobench.pipeline.dm_math.combinations import (
    EXTRAPOLATED,
    MODULES,
    NAMES,
    PARTS,
    AnySplit,
    Part,
    Split,
)

UNIT_SECONDS: Final = 4.0
# One draw in 16 is a validation question, 15 in 16 are training questions.
ATTEMPTS: Final[dict[AnySplit, float]] = {"train": 16 / 15, "validation": 16.0, "test": 16.0}
RARE: Final = "comparison__sort_more"  # 1 draw in 200 has an answer of at most 30 characters
RAREST: Final = 3200.0  # its draws per accepted example

# Microseconds per draw on one core, mean of the three levels; only the ratios matter.
_MICROSECONDS: Final = (
    *(190, 620, 420, 1530, 220, 1730, 70, 90, 120, 130, 120, 60, 180, 80),
    *(210, 90, 210, 960, 1540, 240, 550, 200, 500, 80, 480, 160, 590, 380),
    *(20, 60, 100, 700, 80, 710, 50, 570, 130, 600, 110, 530, 80, 560),
    *(60, 630, 80, 610, 1140, 640, 320, 870, 220, 770, 970, 170, 190, 110),
)
_EXTRAPOLATED: Final = dict(
    zip(
        EXTRAPOLATED,
        (230, 80, 260, 60, 430, 80, 520, 400, 410, 410, 110, 60, 100, 220, 140),
        strict=True,
    )
)
COSTS: Final = dict(zip(MODULES, _MICROSECONDS, strict=True))


class Piece(NamedTuple):
    """Examples `start` to `stop` of one combination."""

    combination: int
    start: int
    stop: int


def seconds_per_example(split: Split, combination: int) -> float:
    """Expected time of one accepted example."""
    return COSTS[MODULES[combination // 3]] * 1e-6 * ATTEMPTS[split]


def costs_of(split: Split) -> list[float]:
    """Expected time of one example of each combination."""
    return [seconds_per_example(split, combination) for combination in range(len(NAMES))]


def costs_of_tests(part: Part) -> list[float]:
    """Expected time of one example of each module of a test part."""
    costs = COSTS if part == "interpolate" else _EXTRAPOLATED
    return [
        costs[name] * 1e-6 * (RAREST if name == RARE else ATTEMPTS["test"]) for name in PARTS[part]
    ]


def cut(costs: Sequence[float], each: int) -> list[list[Piece]]:
    """The units of `each` examples of every combination, in order."""
    units: list[list[Piece]] = []
    unit: list[Piece] = []
    room = UNIT_SECONDS
    for combination, cost in enumerate(costs):
        start = 0
        while start < each:
            stop = min(each, start + max(1, int(room / cost)))
            unit.append(Piece(combination, start, stop))
            room -= (stop - start) * cost
            start = stop
            if room < cost:
                units.append(unit)
                unit, room = [], UNIT_SECONDS
    return [*units, unit] if unit else units


def seconds(costs: Sequence[float], pieces: Sequence[Piece]) -> float:
    """Expected time of some pieces."""
    return sum((p.stop - p.start) * costs[p.combination] for p in pieces)


class Found(NamedTuple):
    """Rows `first` to `last` of a stored unit."""

    address: str
    first: int
    last: int


class Placement:
    """The place of each example of a split in the stored units."""

    def __init__(self, units: Sequence[Sequence[Piece]], addresses: Sequence[str]) -> None:
        self._places: dict[int, list[tuple[Piece, str, int]]] = {}
        for unit, address in zip(units, addresses, strict=True):
            row = 0
            for piece in unit:
                self._places.setdefault(piece.combination, []).append((piece, address, row))
                row += piece.stop - piece.start

    def find(self, combination: int, start: int, stop: int) -> tuple[Found, ...]:
        """The stored rows of these examples, in order."""
        found = []
        for piece, address, row in self._places[combination]:
            low, high = max(start, piece.start), min(stop, piece.stop)
            if low < high:
                found.append(Found(address, row + low - piece.start, row + high - piece.start))
        return tuple(found)
