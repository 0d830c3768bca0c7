"""Exact stand-ins for the sympy expressions that upstream builds only to evaluate and print.

- Each prints as the equal expression of sympy 1.14 does: terms in lexicographic order of the
  alphabetic variables, `45 - 2*x` (not `-2*x + 45`) for a positive number and one negative
  multiple, rational coefficients as `3*x/2`. Coefficients are sympy numbers or integers.
- `value_of` evaluates a tree of upstream `ops` with them; it replaces the `sympy` methods of ops.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import Any, Final

import sympy
from sympy import Rational, Symbol

Term = tuple[int, int, str, int]  # numerator, denominator, monomial, number of its variables


def ratio(value: Any) -> tuple[int, int]:
    """Numerator and denominator of an integer or a sympy rational."""
    try:
        return value.p, value.q
    except AttributeError:
        return int(value), 1


def number_text(value: Any) -> str:
    """`str` of anything, without sympy's printer for its rationals and symbols."""
    if isinstance(value, Rational):
        return str(value.p) if value.q == 1 else f"{value.p}/{value.q}"
    if isinstance(value, Symbol):
        return str(value.name)
    return str(value)


def _sum(terms: list[Term]) -> str:
    """Terms in print order, joined."""
    if not terms:
        return "0"
    if len(terms) == 2 and terms[0][0] < 0 and terms[0][3] == 1:
        (p, _, monomial, _) = terms[1]
        if p > 0 and not monomial:
            terms.reverse()
    signs = [" - " if term[0] < 0 else " + " for term in terms]
    signs[0] = "-" if terms[0][0] < 0 else ""
    return "".join(sign + _unsigned(term) for sign, term in zip(signs, terms, strict=True))


def _unsigned(term: Term) -> str:
    p, q, monomial, _ = term
    p = abs(p)
    text = monomial or str(p)
    if monomial and p != 1:
        text = f"{p}*{monomial}"
    return text if q == 1 else f"{text}/{q}"


def _power_text(base: str, exponent: int) -> str:
    return base if exponent == 1 else f"{base}**{exponent}"


@dataclass(slots=True, eq=False)
class Univariate:
    """A polynomial in one variable: coefficients in ascending order."""

    coefficients: Sequence[Any]
    name: str

    def __str__(self) -> str:
        terms = []
        for power in range(len(self.coefficients) - 1, -1, -1):
            p, q = ratio(self.coefficients[power])
            if p:
                text = _power_text(self.name, power) if power else ""
                terms.append((p, q, text, int(power > 0)))
        return _sum(terms)

    @property
    def degree(self) -> int:
        """The highest power with a non-zero coefficient; 0 for constants, zero included."""
        powers = range(len(self.coefficients) - 1, 0, -1)
        return next((power for power in powers if self.coefficients[power] != 0), 0)

    @property
    def is_zero(self) -> bool:
        """Whether all coefficients are zero; upstream asks."""
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


@dataclass(slots=True, eq=False)
class Multivariate:
    """A polynomial in several variables, only ever printed; exponent tuples follow `names`."""

    terms: Mapping[tuple[int, ...], Any]
    names: Sequence[str]

    def __str__(self) -> str:
        order = sorted(range(len(self.names)), key=self.names.__getitem__)
        kept = [
            (tuple(exponents[place] for place in order), ratio(coefficient))
            for exponents, coefficient in self.terms.items()
            if coefficient != 0
        ]
        kept.sort(reverse=True)
        names = [self.names[place] for place in order]
        return _sum([(*pq, _monomial(key, names), sum(map(bool, key))) for key, pq in kept])

    def expand(self) -> Multivariate:
        """The polynomial itself."""
        return self


def _monomial(exponents: Sequence[int], names: Sequence[str]) -> str:
    powers = zip(names, exponents, strict=True)
    return "*".join(_power_text(name, exponent) for name, exponent in powers if exponent)


def factored_text(leading: Any, roots: Sequence[Any], name: str) -> str:
    """`leading` × the product of (x − root), factored over the integers as sympy does."""
    p, q = ratio(leading)
    counts: dict[tuple[int, int], int] = {}
    for root in roots:
        numerator, denominator = ratio(root)
        q *= denominator
        factor = (denominator, -numerator)  # denominator*x - numerator
        counts[factor] = counts.get(factor, 0) + 1
    content = Fraction(p, q)
    power_of_variable = counts.pop((1, 0), 0)
    parts = [str(abs(content.numerator))] if abs(content.numerator) != 1 else []
    if power_of_variable:
        parts.append(_power_text(name, power_of_variable))
    for (slope, constant), count in sorted(counts.items()):
        parts.append(_power_text(f"({Univariate((constant, slope), name)})", count))
    text = ("-" if content < 0 else "") + "*".join(parts)
    return text if content.denominator == 1 else f"{text}/{content.denominator}"


@dataclass(slots=True, eq=False)
class Surd:
    """A rational combination of square roots: square-free radicand → multiple."""

    parts: dict[int, Fraction]

    def __post_init__(self) -> None:
        self.parts = {radicand: part for radicand, part in self.parts.items() if part}

    def __str__(self) -> str:
        radicands = [radicand for radicand in self.parts if radicand != 1]
        if len(radicands) > 1:
            raise ValueError(f"more than one square root is left: {self.parts}")
        terms: list[Term] = [
            (*part.as_integer_ratio(), "" if radicand == 1 else f"sqrt({radicand})", radicand > 1)
            for radicand, part in sorted(self.parts.items())
        ]
        # Both are numbers to sympy, which then orders the terms by value, the smaller first,
        # unless the number is positive and the surd negative.
        if len(terms) > 1 and not terms[0][0] > 0 > terms[1][0]:
            number, multiple = self.parts[1], self.parts[radicands[0]]
            if float(number) > float(multiple) * sqrt(radicands[0]):
                terms.reverse()
        return _sum(terms)

    def __eq__(self, other: object) -> bool:
        return not self.parts if other == 0 else NotImplemented

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


@dataclass(slots=True, eq=False)
class Power:
    """A rational power of a positive symbol."""

    name: str
    exponent: Fraction

    def __str__(self) -> str:
        p, q = self.exponent.as_integer_ratio()
        if p == 0:
            return "1"
        if q == 2 and abs(p) == 1:
            return f"sqrt({self.name})" if p > 0 else f"1/sqrt({self.name})"
        if q != 1:
            return f"{self.name}**({p}/{q})"
        if p == -1:
            return f"1/{self.name}"
        return _power_text(self.name, p) if p > 0 else f"{self.name}**({p})"

    def __mul__(self, other: Power) -> Power:
        return Power(self.name, self.exponent + other.exponent)

    def inverse(self) -> Power:
        """1 / self."""
        return Power(self.name, -self.exponent)


@dataclass(slots=True, eq=False)
class Applied:
    """A function applied to something, like `f(g(x))`."""

    text: str

    def __str__(self) -> str:
        return self.text

    def __rmul__(self, coefficient: Any) -> Combination:
        return Combination([(coefficient, self.text)])


@dataclass(slots=True, eq=False)
class Combination:
    """A sum like `2*f(x) + a*g(x)` of distinct functions; coefficients are integers or symbols."""

    terms: list[tuple[Any, str]]

    def __add__(self, other: Combination) -> Combination:
        return Combination(self.terms + other.terms)

    def __str__(self) -> str:
        printed: list[tuple[tuple[int, str], Term]] = []
        for coefficient, function in self.terms:
            name = getattr(coefficient, "name", None)
            if name is not None:  # sympy sorts symbols before functions
                printed.append(((0, name), (1, 1, f"{name}*{function}", 2)))
            else:
                printed.append(((1, function), (int(coefficient), 1, function, 1)))
        return _sum([term for _, term in sorted(printed)])


@functools.lru_cache(maxsize=65536)
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
    if isinstance(value, Symbol):
        return Power(value.name, Fraction(1))
    return Surd({1: Fraction(*ratio(value))})


def _power(op: Any) -> Any:
    base, exponent = value_of(op.children["a"]), op.children["b"].value
    if isinstance(base, Power):
        return Power(base.name, base.exponent * Fraction(*ratio(exponent)))
    return base * base  # surds are only ever squared


def _square_root(op: Any) -> Surd:
    outside, inside = square_part(int(op.children["a"].value))
    return Surd({inside: Fraction(outside)})


_RULES: Final[dict[str, Callable[[Any], Any]]] = {
    "Add": lambda op: functools.reduce(operator.add, map(value_of, op.children)),
    "Constant": _constant,
    "Div": lambda op: value_of(op.children["numer"]) * value_of(op.children["denom"]).inverse(),
    "Mul": lambda op: functools.reduce(operator.mul, map(value_of, op.children)),
    "PolynomialOp": lambda op: op.sympy(),
    "Pow": _power,
    "Sqrt": _square_root,
    "Sub": lambda op: value_of(op.children["left"]) + -value_of(op.children["right"]),
}
