"""Cutting the examples of a group into units of similar time, and finding their rows again.

- All examples, combination after combination, form one line; it is cut at equal cost. A unit is a
  few *pieces* (combination, start, stop): many cheap combinations, or a slice of one.
- Costs only place the cuts: they decide neither a row nor a root.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tangobench.pipeline.dm_math.combinations import CONFIGS, LEVELS, MODULES, AnySplit, Group

UNIT_SECONDS: Final = 4.0
# One draw in 16 is a validation question, 15 in 16 are training questions.
_ATTEMPTS: Final[dict[AnySplit, float]] = {"train": 16 / 15, "validation": 16.0, "test": 16.0}
RARE: Final = "comparison__sort_more/extrapolate"  # 1 answer in 200 has at most 30 characters
RAREST: Final = 3200.0  # its draws per accepted example

# Microseconds per draw on one core, mean of the three levels; only the ratios matter.
_MODULES: Final = (
    *(190, 620, 420, 1530, 220, 1730, 70, 90, 120, 130, 120, 60, 180, 80),
    *(210, 90, 210, 960, 1540, 240, 550, 200, 500, 80, 480, 160, 590, 380),
    *(20, 60, 100, 700, 80, 710, 50, 570, 130, 600, 110, 530, 80, 560),
    *(60, 630, 80, 610, 1140, 640, 320, 870, 220, 770, 970, 170, 190, 110),
)
_EXTRAPOLATED: Final = (230, 80, 260, 60, 430, 80, 520, 400, 410, 410, 110, 60, 100, 220, 140)
_MICROSECONDS: Final = {
    f"{module}/{level}": cost
    for module, cost in zip(MODULES, _MODULES, strict=True)
    for level in (*LEVELS, "interpolate")
} | dict(zip(CONFIGS["extrapolate"], _EXTRAPOLATED, strict=True))


class Piece(NamedTuple):
    """Examples `start` to `stop` of one combination of a group."""

    combination: int
    start: int
    stop: int


def cost_of(name: str, split: AnySplit) -> float:
    """Expected seconds of one accepted example of a combination."""
    return _MICROSECONDS[name] * 1e-6 * (RAREST if name == RARE else _ATTEMPTS[split])


def cut(group: Group) -> list[list[Piece]]:
    """The units of a group, in order."""
    units: list[list[Piece]] = []
    unit: list[Piece] = []
    room = UNIT_SECONDS
    for combination, name in enumerate(group.names):
        cost, start = cost_of(name, group.split), 0
        while start < group.each:
            stop = min(group.each, start + max(1, int(room / cost)))
            unit.append(Piece(combination, start, stop))
            room -= (stop - start) * cost
            start = stop
            if room < cost:
                units.append(unit)
                unit, room = [], UNIT_SECONDS
    return [*units, unit] if unit else units


def seconds(group: Group, pieces: Sequence[Piece]) -> float:
    """Expected time of some pieces."""
    return sum(
        (p.stop - p.start) * cost_of(group.names[p.combination], group.split) for p in pieces
    )


class Found(NamedTuple):
    """Rows `first` to `last` of a stored unit."""

    address: str
    first: int
    last: int


class Placement:
    """The place of each example of a group in the stored units."""

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
