"""Integers and probabilities of the math generator without sympy's machinery.

- Same draws in the same order from the copy's generators, same values, same types where a type is
  looked at later (sympy's Integer and Rational stay the currency between modules).
- `install` replaces names in one private copy; sympy itself is not touched.
"""

import math
import operator
from collections import Counter
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import sympy
from sympy import Float, Integer, Rational

from tangobench.pipeline.dm_math.generator import Generator, ascending_factors

_SMALL_PRIMES = tuple(sympy.primerange(2, 1000))
# Beyond this numerator sympy's rounding, which works on 15 digits, may see a tie where none is.
_ROUND_LIMIT = 10**13

_COMPARISONS = ("Lt", "Le", "Gt", "Ge", "Eq", "Ne")
_ROUNDING = ("modules.arithmetic", "modules.comparison", "modules.polynomials", "util.display")

integer_of = lru_cache(maxsize=65536)(Integer)


@lru_cache(maxsize=65536)
def _factors(value: int) -> tuple[tuple[int, int], ...]:
    if not 0 < value < 10**12:
        return tuple(ascending_factors(value).items())
    found = []
    for prime in _SMALL_PRIMES:
        if prime * prime > value:
            break
        if value % prime == 0:
            count = 0
            while value % prime == 0:
                value //= prime
                count += 1
            found.append((prime, count))
    if 1 < value < 10**6:
        found.append((value, 1))
    elif value > 1:
        found.extend(ascending_factors(value).items())
    return tuple(found)


def factorint(value: Any) -> dict[int, int]:
    """Ascending prime factors, a fresh dictionary (upstream deletes from it)."""
    return dict(_factors(int(value)))


@lru_cache(maxsize=65536)
def coprime_density(value: int) -> float:
    """Density of the integers coprime to `value`, multiplied up in upstream's order."""
    density = 1.0
    for prime, _ in _factors(value):
        density *= 1 - 1 / prime
    return density


def _of_integers(function: Callable[..., int]) -> Callable[..., Integer]:
    """sympy's `gcd` or `lcm` of integers, given one by one or as a list."""
    return lambda *values: integer_of(
        function(*map(int, values[0] if len(values) == 1 else values))
    )


def numer(value: Any) -> Any:
    """`sympy.numer` of a number."""
    return integer_of(value.p) if isinstance(value, Rational) else sympy.numer(value)


def denom(value: Any) -> Any:
    """`sympy.denom` of a number."""
    return integer_of(value.q) if isinstance(value, Rational) else sympy.denom(value)


def nearest(value: Any) -> Any:
    """`round(value)`, ties to even; exact for rationals, as sympy's is below `_ROUND_LIMIT`."""
    if isinstance(value, Float):
        number = float(value)
        below = math.floor(number)
        fraction = number - below
        # Roots of integers below 10¹¹; only near a tie could sympy's 15 digits decide otherwise.
        return below + (fraction > 0.5) if abs(fraction - 0.5) > 1e-6 else round(value)
    if not isinstance(value, Rational) or abs(value.p) >= _ROUND_LIMIT:
        return round(value)
    low, rest = divmod(value.p, value.q)
    if 2 * rest > value.q or (2 * rest == value.q and low % 2):
        low += 1
    return low


def as_rational(value: Any) -> Any:
    """The sympy number behind an integer, a rational or an upstream `Decimal`."""
    if isinstance(value, Rational):
        return value
    inner = getattr(value, "value", None)
    return inner if inner is not None else sympy.sympify(value)


def install(generator: Generator) -> None:
    """Replace the number helpers of one private copy."""
    vars(generator.sympy).update(factorint=factorint, numer=numer, denom=denom)
    vars(generator.sympy).update(gcd=_of_integers(math.gcd), lcm=_of_integers(math.lcm))
    vars(generator.modules["sample.number"]).update(_number_functions(generator))
    for name in _ROUNDING:
        vars(generator.modules[name])["round"] = nearest
    _comparisons(generator)
    # The determinant of a 1×1 or 2×2 integer matrix, `sympy.det(sympy.Matrix(rows))`.
    vars(generator.sympy).update(Matrix=lambda rows: rows, det=_determinant)
    _probability(generator)


def _number_functions(generator: Generator) -> dict[str, Any]:
    randint = generator.random.randint

    def integer(entropy: float, signed: bool, min_abs: int = 0, coprime_to: Any = 1) -> Integer:
        coprime = abs(int(coprime_to))
        top = math.pow(10, entropy) + min_abs
        if coprime >= 2:
            top = top / coprime_density(coprime) + 1
        top = math.ceil(top / 2) if signed else math.ceil(top)
        bottom = -top if signed else min_abs
        while True:
            value = randint(bottom, top)
            if abs(value) >= min_abs and (coprime == 1 or math.gcd(value, coprime) == 1):
                return integer_of(value)

    return {"integer": integer}


def _comparisons(generator: Generator) -> None:
    def holds(compare: Callable[[int, int], bool], left: Any, right: Any) -> bool:
        a, b = as_rational(left), as_rational(right)
        return compare(a.p * b.q, b.p * a.q)

    def finite_set(*values: Any) -> list[Any]:
        return list(dict.fromkeys(as_rational(value) for value in values))

    vars(generator.sympy).update(
        {name: partial(holds, getattr(operator, name.lower())) for name in _COMPARISONS},
        FiniteSet=finite_set,
    )
    sort_key = {"_entity_sort_key": lambda entity: as_rational(entity.value)}
    vars(generator.modules["modules.comparison"]).update(sort_key)


def _determinant(rows: list[list[Any]]) -> Any:
    if len(rows) == 1:
        return rows[0][0].p
    (a, b), (c, d) = rows
    return a.p * d.p - b.p * c.p


class _Bag:
    """Replaces the letters on the balls (`DiscreteRandomVariable`)."""

    def __init__(self, letter_of_ball: dict[int, str]) -> None:
        self.counts = Counter(letter_of_ball.values())


class _Space:
    """Replaces `SampleWithoutReplacementSpace`."""

    def __init__(self, weights: dict[int, int], n_samples: int) -> None:
        self.n_samples = n_samples
        self.orders = math.perm(len(weights), n_samples)

    def probability(self, event: Any) -> Rational:
        """The exact probability of a counted event."""
        return Rational(event.favourable, self.orders)


def _probability(generator: Generator) -> None:
    """Sampling without replacement by counting, where upstream lists every sequence of balls.

    All balls are equally likely: P(event) = (orders of distinct balls in it) / (all orders).
    Upstream's "too big" rule (over 200,000 sequences) never applies: 20⁴ = 160,000 is the most.
    """
    library = generator.modules["util.probability"]
    base: Any = library.FiniteProductEvent

    class Counted(base):  # type: ignore[misc]
        """An event that knows its number of orders; without `events` it is never too big."""

        def __init__(self, favourable: int) -> None:
            super().__init__(())
            self.favourable = favourable

    class Draws:
        """Replaces several draws from one bag (`FiniteProductRandomVariable`)."""

        description: str

        def __init__(self, bags: list[_Bag]) -> None:
            self.counts = bags[0].counts

        def inverse(self, event: Any) -> Counted:
            return Counted(_favourable(event, self.counts))

    vars(library).update(
        DiscreteRandomVariable=_Bag,
        FiniteProductRandomVariable=Draws,
        SampleWithoutReplacementSpace=_Space,
    )


def _favourable(event: Any, available: Counter[str]) -> int:
    """Ordered draws of distinct balls in an event: m·(m−1)…(m−c+1) ways for c of m equal balls."""
    if hasattr(event, "events"):  # one letter per draw
        wanted = Counter(letter for single in event.events for letter in single.values)
        orders = 1
    else:
        wanted = Counter(event.counts)
        orders = math.factorial(wanted.total()) // math.prod(map(math.factorial, wanted.values()))
    return orders * math.prod(
        math.perm(available[letter], count) for letter, count in wanted.items()
    )
