"""Cutting the examples of the math dataset into units of similar time.

- All examples of a split, combination after combination, form one line; it is cut at equal cost.
  A unit is a few *pieces* (combination, start, stop): many cheap combinations, or a slice of one.
- Costs only place the cuts: they decide neither a row nor a root.
- `Placement` finds the rows of any (combination, index range) again.

Usage: `units = cut("train", 32_000); placement = Placement(units, addresses)`
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tangobench.pipeline.dm_draw import MODULES, NAMES, Split

UNIT_SECONDS: Final = 4.0
# One draw in 16 is a validation question, 15 in 16 are training questions.
ATTEMPTS: Final = {"train": 16 / 15, "validation": 16.0}

# Microseconds per draw on one core, mean of the three levels; only the ratios matter.
COSTS: Final = {
    "algebra__linear_1d": 190,
    "algebra__linear_1d_composed": 620,
    "algebra__linear_2d": 420,
    "algebra__linear_2d_composed": 1530,
    "algebra__polynomial_roots": 220,
    "algebra__polynomial_roots_composed": 1730,
    "algebra__sequence_next_term": 70,
    "algebra__sequence_nth_term": 90,
    "arithmetic__add_or_sub": 120,
    "arithmetic__add_or_sub_in_base": 130,
    "arithmetic__add_sub_multiple": 120,
    "arithmetic__div": 60,
    "arithmetic__mixed": 180,
    "arithmetic__mul": 80,
    "arithmetic__mul_div_multiple": 210,
    "arithmetic__nearest_integer_root": 90,
    "arithmetic__simplify_surd": 210,
    "calculus__differentiate": 960,
    "calculus__differentiate_composed": 1540,
    "comparison__closest": 240,
    "comparison__closest_composed": 550,
    "comparison__kth_biggest": 200,
    "comparison__kth_biggest_composed": 500,
    "comparison__pair": 80,
    "comparison__pair_composed": 480,
    "comparison__sort": 160,
    "comparison__sort_composed": 590,
    "measurement__conversion": 380,
    "measurement__time": 20,
    "numbers__base_conversion": 60,
    "numbers__div_remainder": 100,
    "numbers__div_remainder_composed": 700,
    "numbers__gcd": 80,
    "numbers__gcd_composed": 710,
    "numbers__is_factor": 50,
    "numbers__is_factor_composed": 570,
    "numbers__is_prime": 130,
    "numbers__is_prime_composed": 600,
    "numbers__lcm": 110,
    "numbers__lcm_composed": 530,
    "numbers__list_prime_factors": 80,
    "numbers__list_prime_factors_composed": 560,
    "numbers__place_value": 60,
    "numbers__place_value_composed": 630,
    "numbers__round_number": 80,
    "numbers__round_number_composed": 610,
    "polynomials__add": 1140,
    "polynomials__coefficient_named": 640,
    "polynomials__collect": 320,
    "polynomials__compose": 870,
    "polynomials__evaluate": 220,
    "polynomials__evaluate_composed": 770,
    "polynomials__expand": 970,
    "polynomials__simplify_power": 170,
    "probability__swr_p_level_set": 190,
    "probability__swr_p_sequence": 110,
}


class Piece(NamedTuple):
    """Examples `start` to `stop` of one combination."""

    combination: int
    start: int
    stop: int


def seconds_per_example(split: Split, combination: int) -> float:
    """Expected time of one accepted example."""
    return COSTS[MODULES[combination // 3]] * 1e-6 * ATTEMPTS[split]


def cut(split: Split, per_combination: int) -> list[list[Piece]]:
    """The units of a split, in order."""
    units: list[list[Piece]] = []
    unit: list[Piece] = []
    room = UNIT_SECONDS
    for combination in range(len(NAMES)):
        cost = seconds_per_example(split, combination)
        start = 0
        while start < per_combination:
            stop = min(per_combination, start + max(1, int(room / cost)))
            unit.append(Piece(combination, start, stop))
            room -= (stop - start) * cost
            start = stop
            if room < cost:
                units.append(unit)
                unit, room = [], UNIT_SECONDS
    return [*units, unit] if unit else units


def seconds(split: Split, pieces: Sequence[Piece]) -> float:
    """Expected time of some pieces."""
    return sum((p.stop - p.start) * seconds_per_example(split, p.combination) for p in pieces)


@dataclass(frozen=True, slots=True)
class Found:
    """Rows `first` to `last` of a stored unit."""

    address: str
    first: int
    last: int


class Placement:
    """Where each example of a split lies in the stored units."""

    def __init__(self, units: Sequence[Sequence[Piece]], addresses: Sequence[str]) -> None:
        self._places: dict[int, list[tuple[Piece, str, int]]] = {}
        for unit, address in zip(units, addresses, strict=True):
            row = 0
            for piece in unit:
                self._places.setdefault(piece.combination, []).append((piece, address, row))
                row += piece.stop - piece.start

    def find(self, combination: int, start: int, stop: int) -> Iterator[Found]:
        """The stored rows of these examples, in order."""
        for piece, address, row in self._places[combination]:
            low, high = max(start, piece.start), min(stop, piece.stop)
            if low < high:
                yield Found(address, row + low - piece.start, row + high - piece.start)
