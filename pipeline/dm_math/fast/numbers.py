"""Integer work of the math generator without sympy's generic machinery.

- Same draws in the same order from the copy's generators, same values, same types where a type is
  looked at later (sympy's Integer and Rational stay the currency between modules).
- `install` replaces names in one private copy; sympy itself is not touched.

Usage: `dm_fast_numbers.install(generator)`
"""

import decimal
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import sympy
from sympy import Float, Integer, Rational

from tangobench.pipeline.dm_math.generator import Generator, ascending_factors

_SMALL_PRIMES = tuple(sympy.primerange(2, 1000))
# Beyond this numerator sympy's rounding, which works on 15 digits, may see a tie where none is.
_ROUND_LIMIT = 10**13

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


def gcd(*values: Any) -> Integer:
    """`sympy.gcd` of integers, given one by one or as a list."""
    return integer_of(math.gcd(*map(int, _flat(values))))


def lcm(*values: Any) -> Integer:
    """`sympy.lcm` of integers, given one by one or as a list."""
    return integer_of(math.lcm(*map(int, _flat(values))))


def _flat(values: tuple[Any, ...]) -> Iterable[Any]:
    return values[0] if len(values) == 1 else values


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
    vars(generator.sympy).update(factorint=factorint, gcd=gcd, lcm=lcm, numer=numer, denom=denom)
    number = generator.modules["sample.number"]
    vars(number).update(_number_functions(generator))
    _decimal(generator)
    for name in _ROUNDING:
        vars(generator.modules[name])["round"] = nearest
    _comparisons(generator)
    _matrices(generator)


def _number_functions(generator: Generator) -> dict[str, Any]:
    randint, uniform = generator.random.randint, generator.random.uniform

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

    def non_integer_rational(entropy: float, signed: bool) -> Rational:
        numer_entropy = uniform(0, entropy)
        numerator = integer(numer_entropy, signed, min_abs=1)
        denominator = integer(entropy - numer_entropy, False, min_abs=2, coprime_to=numerator)
        return Rational.from_coprime_ints(numerator.p, denominator.p)

    return {"integer": integer, "non_integer_rational": non_integer_rational}


def _decimal(generator: Generator) -> None:
    """`display.Decimal` without factoring the denominator."""

    def initialise(self: Any, value: Any) -> None:
        number = value if isinstance(value, Rational) else Rational(value)
        rest: int = number.q
        while rest % 10 == 0:
            rest //= 10
        while rest % 2 == 0:
            rest //= 2
        while rest % 5 == 0:
            rest //= 5
        if rest != 1:
            raise ValueError(f"Cannot represent {value} as a non-recurring decimal.")
        self._value = number
        self._decimal = decimal.Decimal(number.p) / decimal.Decimal(number.q)

    generator.modules["util.display"].Decimal.__init__ = initialise


def _comparisons(generator: Generator) -> None:
    def difference(left: Any, right: Any) -> int:
        a, b = as_rational(left), as_rational(right)
        return int(a.p * b.q - b.p * a.q)

    def finite_set(*values: Any) -> list[Any]:
        return list(dict.fromkeys(as_rational(value) for value in values))

    def sort_key(entity: Any) -> Any:
        return as_rational(entity.value)

    vars(generator.sympy).update(
        Lt=lambda a, b: difference(a, b) < 0,
        Le=lambda a, b: difference(a, b) <= 0,
        Gt=lambda a, b: difference(a, b) > 0,
        Ge=lambda a, b: difference(a, b) >= 0,
        Eq=lambda a, b: difference(a, b) == 0,
        Ne=lambda a, b: difference(a, b) != 0,
        FiniteSet=finite_set,
    )
    vars(generator.modules["modules.comparison"])["_entity_sort_key"] = sort_key


def _matrices(generator: Generator) -> None:
    """The determinant of a 1×1 or 2×2 integer matrix (`sympy.det(sympy.Matrix(rows))`)."""

    def determinant(rows: list[list[Any]]) -> Any:
        if len(rows) == 1:
            return rows[0][0].p
        (a, b), (c, d) = rows
        return a.p * d.p - b.p * c.p

    vars(generator.sympy).update(Matrix=lambda rows: rows, det=determinant)
