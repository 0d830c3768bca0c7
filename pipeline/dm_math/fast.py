"""The math generator with exact speed-ups: same draws, same bytes, several times as fast.

- Polynomials are coefficients by exponents with an own printer, probabilities are counted instead
  of listed, and arithmetic on plain numbers skips sympy's generic layers. Everything else is sympy.
- `load` replaces names in one private copy of the package; sympy itself is not touched. sympy's
  Integer and Rational stay the currency between modules.
- A sort of which the values alone show that the answer is too long ends in `LongAnswer`.
- Shuffles happen on as many items as upstream's, so every later draw is the same. Every replacement
  is proved by comparison with `generator.load()`: same question, answer and state of the generators
  afterwards (tests on every combination, `bench/dm_math.py` at length).
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from types import FunctionType, SimpleNamespace
from typing import Any

import sympy
from sympy import Integer, Rational, Symbol

from tangobench.pipeline.dm_math import generator as official
from tangobench.pipeline.dm_math.generator import Generator, ascending_factors, namespace
from tangobench.pipeline.dm_math.spec import MAX_ANSWER, MAX_QUESTION

# "Put … in descending order." around a list that is as long as the answer.
_LONGEST_SORTED = MAX_QUESTION - len("Put  in descending order.")

_integer_of = lru_cache(maxsize=65536)(Integer)


class LongAnswer(Exception):
    """The draw has an answer over the limit and a question within it; it was not finished."""


def load() -> Generator:
    """A private, deterministic and fast copy of the package."""
    generator = official.load()
    _numbers(generator)
    _sorting(generator)
    _probability(generator)
    _polynomials(generator)
    generator.collect_samplers()
    return generator


def _numbers(generator: Generator) -> None:
    factors = lru_cache(maxsize=65536)(ascending_factors)
    vars(generator.sympy).update(
        factorint=lambda value: dict(factors(int(value))),  # fresh: upstream deletes from it
        gcd=_of_integers(math.gcd),
        lcm=_of_integers(math.lcm),
        numer=_part("p", sympy.numer),
        denom=_part("q", sympy.denom),
        # The determinant of a 1×1 or 2×2 integer matrix, `sympy.det(sympy.Matrix(rows))`.
        Matrix=lambda rows: rows,
        det=_determinant,
    )
    _own_sympy(generator, "comparison", FiniteSet=_distinct)
    for name in ("modules.arithmetic", "modules.comparison", "modules.polynomials", "util.display"):
        vars(generator.modules[name])["round"] = _rounded
    composition = generator.modules["util.composition"]
    expand: Callable[..., tuple[str, dict[str, Any]]] = composition.expand_entities

    def expand_entities(context: Any, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        description, values = expand(context, **kwargs)
        return description, {key: _text(value) for key, value in values.items()}

    vars(composition)["expand_entities"] = expand_entities


def _distinct(*values: Any) -> set[Any]:
    """A `sympy.FiniteSet` of which only the size is asked: sympy would sort its elements first."""
    return {v if isinstance(v, Rational) else sympy.sympify(v) for v in values}


def _sorting(generator: Generator) -> None:
    """Of `comparison__sort_more`, 199 draws in 200 have too long an answer: end those early."""
    comparison = generator.modules["modules.comparison"]
    sort, unique_values = comparison.sort, comparison._unique_values

    def values_to_sort(*args: Any, **kwargs: Any) -> Any:
        values = unique_values(*args, **kwargs)
        if MAX_ANSWER < len(", ".join(map(_text, values))) <= _LONGEST_SORTED:
            raise LongAnswer
        return values

    own = vars(comparison) | {"_unique_values": values_to_sort}
    sort_more = FunctionType(sort.__code__, own, argdefs=sort.__defaults__)
    vars(comparison)["sort"] = lambda *args, **count: (sort_more if count else sort)(*args, **count)


def _of_integers(function: Callable[..., int]) -> Callable[..., Integer]:
    """sympy's `gcd` or `lcm` of integers, given one by one or as a list."""
    return lambda *values: _integer_of(
        function(*map(int, values[0] if len(values) == 1 else values))
    )


def _part(name: str, slow: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`sympy.numer` or `sympy.denom` of a number."""
    return lambda x: _integer_of(getattr(x, name)) if isinstance(x, Rational) else slow(x)


def _rounded(value: Any) -> Any:
    """`round(value)`, ties to even; exact for rationals of the 15 digits that sympy looks at."""
    if not isinstance(value, Rational) or abs(value.p) >= 10**13:
        return round(value)
    low, rest = divmod(value.p, value.q)
    return low + (2 * rest > value.q or (2 * rest == value.q and low % 2 == 1))


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


def _ratio(value: Any) -> tuple[int, int]:
    """Numerator and denominator of an integer or a sympy rational."""
    return (value.p, value.q) if isinstance(value, Rational) else (int(value), 1)


def _text(value: Any) -> str:
    """`str` of anything, without sympy's printer for its rationals and symbols."""
    if isinstance(value, Rational):
        return str(value.p) if value.q == 1 else f"{value.p}/{value.q}"
    return str(value.name) if isinstance(value, Symbol) else str(value)


@dataclass(slots=True, eq=False)
class Polynomial:
    """Coefficients by exponents, which follow `names`; arithmetic is for one variable.

    It prints as the equal expression of sympy 1.14 does: terms in lexicographic order of the
    alphabetic variables, `45 - 2*x` (not `-2*x + 45`) for a positive number and one negative
    multiple, rational coefficients as `3*x/2`. Coefficients are sympy numbers or integers.
    """

    terms: Mapping[tuple[int, ...], Any]
    names: Sequence[str]

    def __str__(self) -> str:
        order = sorted(range(len(self.names)), key=self.names.__getitem__)
        names = [self.names[place] for place in order]
        terms = sorted(
            (
                (tuple(exponents[place] for place in order), *_ratio(coefficient))
                for exponents, coefficient in self.terms.items()
                if coefficient != 0
            ),
            reverse=True,
        )
        if not terms:
            return "0"
        if len(terms) == 2:
            (first, p, _), (last, constant, _) = terms
            if p < 0 < constant and sum(map(bool, first)) == 1 and not any(last):
                terms.reverse()
        signs = [" - " if p < 0 else " + " for _, p, _ in terms]
        signs[0] = "-" if terms[0][1] < 0 else ""
        return "".join(map(operator.add, signs, (_unsigned(names, *term) for term in terms)))

    @property
    def degree(self) -> int:
        """The highest power with a non-zero coefficient; 0 for constants, zero included."""
        return max((power for (power,), c in self.terms.items() if c != 0), default=0)

    @property
    def is_zero(self) -> bool:  # upstream asks, of any number of variables
        return not any(self.terms.values())

    def expand(self) -> Polynomial:
        return self

    def subs(self, _variable: Any, value: Any) -> Any:
        """The value at an integer, or the composition with another polynomial (Horner)."""
        result: Any = Polynomial({}, self.names) if isinstance(value, Polynomial) else 0
        for coefficient in self.all_coeffs():
            result = result * value + int(coefficient)
        return result

    def __add__(self, other: Polynomial | int) -> Polynomial:
        total = dict(self.terms)
        added = {(0,): other} if isinstance(other, int) else other.terms
        for powers, coefficient in added.items():
            total[powers] = total.get(powers, 0) + coefficient
        return Polynomial(total, self.names)

    def __mul__(self, other: Polynomial) -> Polynomial:
        product: dict[tuple[int, ...], Any] = {}
        for (i,), a in self.terms.items():
            for (j,), b in other.terms.items():
                product[i + j,] = product.get((i + j,), 0) + a * b
        return Polynomial(product, self.names)

    def all_coeffs(self) -> list[Any]:
        """Coefficients from the highest power down, as `sympy.Poly.all_coeffs` lists them."""
        return [self.terms.get((power,), 0) for power in range(self.degree, -1, -1)]


def _unsigned(names: Sequence[str], exponents: Sequence[int], p: int, q: int) -> str:
    """A term without its sign: `3*x**2/2`."""
    powers = [
        name if exponent == 1 else f"{name}**{exponent}"
        for name, exponent in zip(names, exponents, strict=True)
        if exponent
    ]
    factors = [str(abs(p))] if abs(p) != 1 or not powers else []
    return "*".join(factors + powers) + ("" if q == 1 else f"/{q}")


def _polynomials(generator: Generator) -> None:
    """Sums of monomials keep coefficients; a tree of ops is built only if something asks for it."""
    sample, ops = generator.modules["sample.polynomials"], generator.modules["sample.ops"]
    base: Any = ops.Add

    class Sum(base):  # type: ignore[misc]
        """A sum of monomials given as (coefficient, variables, powers), in print order."""

        def __init__(self, *monomials: tuple[Any, Any, Any]) -> None:
            self._monomials = monomials

        @functools.cached_property
        def _children(self) -> tuple[Any, ...]:
            made = [sample.monomial(*monomial) for monomial in self._monomials]
            return tuple(m if isinstance(m, ops.Op) else ops.Constant(m) for m in made)

        def sympy(self) -> Polynomial:
            terms: dict[tuple[int, ...], Any] = {}
            for coefficient, _, powers in self._monomials:
                place = powers if isinstance(powers, tuple) else (powers,)
                terms[place] = terms.get(place, 0) + _plain(coefficient)
            variables: Any = self._monomials[0][1] if self._monomials else ()
            several = isinstance(variables, (list, tuple))
            return Polynomial(terms, [v.name for v in (variables if several else [variables])])

    for name in ("sample_with_small_evaluation", "coefficients_to_polynomial"):
        own = vars(sample) | {"monomial": lambda *of: of, "ops": SimpleNamespace(Add=Sum)}
        vars(sample)[name] = FunctionType(vars(sample)[name].__code__, own)
    vars(sample)["_degree_of_variable"] = lambda op, _variable: op.sympy().degree
    for kind, combine in ((ops.Add, operator.add), (ops.Mul, operator.mul)):
        kind.sympy = _combined(combine)
    _own_sympy(generator, "polynomials", expand=lambda op: op.sympy(), Poly=lambda op: op.sympy())
    # What ops combine is simple enough for `expand`, which follows.
    _own_sympy(generator, "arithmetic", simplify=lambda op: op.sympy())
    _own_sympy(
        *(generator, "algebra"),
        factor=lambda op: _factored(op.sympy()),
        prod=lambda factors: reduce(operator.mul, map(sympy.Poly, factors)),
        Poly=lambda polynomial: polynomial,
    )


def _combined(combine: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    return lambda op: reduce(combine, (child.sympy() for child in op.children))


def _factored(value: Polynomial) -> Any:
    return sympy.factor(sympy.Poly(value.all_coeffs(), Symbol(value.names[0])).as_expr())


def _own_sympy(generator: Generator, name: str, **names: Any) -> None:
    module = generator.modules[f"modules.{name}"]
    own = namespace(module.sympy)
    vars(own).update(names)
    module.sympy = own  # type: ignore[attr-defined]


def _plain(value: Any) -> Any:
    """Python's integer for a whole number: sums of them are ten times as fast."""
    return value if isinstance(value, Rational) and value.q != 1 else int(value)
