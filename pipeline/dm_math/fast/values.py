"""Exact stand-ins for the sympy expressions that upstream builds only to evaluate and print.

- `Univariate`, `Multivariate`, `Surd`, `Power`, `Applied` and `Combination` print as the equal
  sympy expression would.
- `value_of` evaluates a tree of upstream `ops` with them; it replaces the `sympy` methods of ops.

Usage: `str(value_of(op))` equals `str(sympy.expand(op.sympy()))` of the unpatched package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import sympy

from tangobench.pipeline.dm_math.fast.text import (
    combination_text,
    polynomial_text,
    power_text,
    ratio,
    surd_text,
    univariate_text,
)


class Univariate:
    """A polynomial in one variable: coefficients in ascending order."""

    __slots__ = ("coefficients", "name")

    def __init__(self, coefficients: Sequence[Any], name: str) -> None:
        self.coefficients: Final = coefficients
        self.name: Final = name

    def __str__(self) -> str:
        return univariate_text(self.coefficients, self.name)

    @property
    def degree(self) -> int:
        """The highest power with a non-zero coefficient; 0 for constants, zero included."""
        for power in range(len(self.coefficients) - 1, 0, -1):
            if self.coefficients[power] != 0:
                return power
        return 0

    @property
    def is_zero(self) -> bool:
        """Whether all coefficients are zero."""
        return not any(self.coefficients)

    def expand(self) -> Univariate:
        """The polynomial itself: it is always expanded."""
        return self

    def subs(self, _variable: Any, value: Any) -> Any:
        """The value at an integer, or the composition with another polynomial (Horner)."""
        result: Any = Univariate([0], self.name) if isinstance(value, Univariate) else 0
        for coefficient in reversed(self.coefficients):
            result = result * value + int(coefficient)
        return result

    def __add__(self, other: Any) -> Univariate:
        if isinstance(other, int):
            return Univariate([self.coefficients[0] + other, *self.coefficients[1:]], self.name)
        short, long = sorted((self.coefficients, other.coefficients), key=len)
        total = [a + b for a, b in zip(short, long, strict=False)]
        return Univariate([*total, *long[len(short) :]], self.name)

    def __mul__(self, other: Univariate) -> Univariate:
        product = [0] * (len(self.coefficients) + len(other.coefficients) - 1)
        for i, a in enumerate(self.coefficients):
            if a:
                for j, b in enumerate(other.coefficients):
                    product[i + j] += a * b
        return Univariate(product, self.name)

    def all_coeffs(self) -> list[Any]:
        """Coefficients from the highest power down, as `sympy.Poly.all_coeffs` lists them."""
        return list(reversed(self.coefficients[: self.degree + 1]))


class Multivariate:
    """A polynomial in several variables, only ever printed."""

    __slots__ = ("names", "terms")

    def __init__(self, terms: Mapping[tuple[int, ...], Any], names: Sequence[str]) -> None:
        self.terms: Final = terms
        self.names: Final = names

    def __str__(self) -> str:
        return polynomial_text(self.terms, self.names)

    def expand(self) -> Multivariate:
        """The polynomial itself."""
        return self


class Surd:
    """A rational combination of square roots: square-free radicand → multiple."""

    __slots__ = ("parts",)

    def __init__(self, parts: Mapping[int, Fraction]) -> None:
        self.parts: Final = {radicand: part for radicand, part in parts.items() if part}

    def __str__(self) -> str:
        radicands = [radicand for radicand in self.parts if radicand != 1]
        if len(radicands) > 1:
            raise ValueError(f"more than one square root is left: {self.parts}")
        radicand = radicands[0] if radicands else 2
        zero = Fraction(0)
        return surd_text(self.parts.get(1, zero), self.parts.get(radicand, zero), radicand)

    def __eq__(self, other: object) -> bool:
        if other == 0:
            return not self.parts
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __add__(self, other: Surd) -> Surd:
        total = dict(self.parts)
        for radicand, part in other.parts.items():
            total[radicand] = total.get(radicand, Fraction(0)) + part
        return Surd(total)

    def __neg__(self) -> Surd:
        return Surd({radicand: -part for radicand, part in self.parts.items()})

    def __mul__(self, other: Surd) -> Surd:
        total: dict[int, Fraction] = {}
        for a, x in self.parts.items():
            for b, y in other.parts.items():
                outside, inside = square_part(a * b)
                total[inside] = total.get(inside, Fraction(0)) + x * y * outside
        return Surd(total)

    def inverse(self) -> Surd:
        """1 / self; upstream only divides by a rational multiple of one square root."""
        ((radicand, part),) = self.parts.items()
        return Surd({radicand: 1 / (part * radicand)})


class Power:
    """A rational power of a positive symbol."""

    __slots__ = ("exponent", "name")

    def __init__(self, name: str, exponent: Fraction) -> None:
        self.name: Final = name
        self.exponent: Final = exponent

    def __str__(self) -> str:
        return power_text(self.name, self.exponent)

    def __mul__(self, other: Power) -> Power:
        return Power(self.name, self.exponent + other.exponent)

    def inverse(self) -> Power:
        """1 / self."""
        return Power(self.name, -self.exponent)


class Applied:
    """A function applied to something, like `f(g(x))`."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text: Final = text

    def __str__(self) -> str:
        return self.text

    def __rmul__(self, coefficient: Any) -> Combination:
        return Combination([(coefficient, self.text)])


class Combination:
    """A sum like `2*f(x) + a*g(x)`: coefficients are integers or symbols."""

    __slots__ = ("terms",)

    def __init__(self, terms: list[tuple[Any, str]]) -> None:
        self.terms: Final = terms

    def __add__(self, other: Combination) -> Combination:
        return Combination(self.terms + other.terms)

    def __str__(self) -> str:
        return combination_text(self.terms)


@lru_cache(maxsize=65536)
def square_part(value: int) -> tuple[int, int]:
    """(a, b) with value = a² · b and b square-free."""
    outside = 1
    for prime, count in sympy.factorint(value).items():
        outside *= int(prime) ** (count // 2)
    return outside, value // (outside * outside)


def value_of(op: Any) -> Any:
    """The exact value of a tree of upstream ops (replaces their `sympy` methods)."""
    return _RULES[type(op).__name__](op)


def _constant(op: Any) -> Any:
    value = op.value
    if isinstance(value, sympy.Symbol):
        return Power(value.name, Fraction(1))
    return Surd({1: Fraction(*ratio(value))})


def _sum(op: Any) -> Any:
    first, *rest = (value_of(child) for child in op.children)
    for value in rest:
        first = first + value
    return first


def _product(op: Any) -> Any:
    first, *rest = (value_of(child) for child in op.children)
    for value in rest:
        first = first * value
    return first


def _power(op: Any) -> Any:
    base, exponent = value_of(op.children["a"]), op.children["b"].value
    if isinstance(base, Power):
        return Power(base.name, base.exponent * Fraction(*ratio(exponent)))
    return base * base  # surds are only ever squared


def _square_root(op: Any) -> Surd:
    outside, inside = square_part(int(op.children["a"].value))
    return Surd({inside: Fraction(outside)})


_RULES: Final[dict[str, Callable[[Any], Any]]] = {
    "Add": _sum,
    "Constant": _constant,
    "Div": lambda op: value_of(op.children["numer"]) * value_of(op.children["denom"]).inverse(),
    "Mul": _product,
    "PolynomialOp": lambda op: op.sympy(),
    "Pow": _power,
    "Sqrt": _square_root,
    "Sub": lambda op: value_of(op.children["left"]) + -value_of(op.children["right"]),
}
