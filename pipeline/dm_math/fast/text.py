"""How sympy 1.14 prints the few shapes of expression that the math generator answers with.

- Each function returns exactly what `str` of the equal sympy expression returns, without sympy:
  terms in lexicographic order of the alphabetic variables, `45 - 2*x` (not `-2*x + 45`) for a
  positive number and one negative multiple, rational coefficients as `3*x/2`.
- Coefficients are anything with `p` and `q` (sympy numbers) or integers.

Usage: `polynomial_text({(2,): 3, (0,): -1}, ["x"])` → `"3*x**2 - 1"`
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import sqrt
from typing import Any

from sympy import Rational, Symbol


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


def polynomial_text(terms: Mapping[tuple[int, ...], Any], names: Sequence[str]) -> str:
    """A sum of monomials; exponent tuples follow `names`. Zero coefficients may be present."""
    order = sorted(range(len(names)), key=names.__getitem__)
    kept = []
    for exponents, coefficient in terms.items():
        if coefficient != 0:
            key = tuple(exponents[place] for place in order)
            kept.append((key, ratio(coefficient)))
    kept.sort(reverse=True)
    ordered = [names[place] for place in order]
    return _sum([(p, q, _monomial(key, ordered), sum(map(bool, key))) for key, (p, q) in kept])


def univariate_text(coefficients: Sequence[Any], name: str) -> str:
    """A polynomial in one variable from its coefficients in ascending order."""
    terms = []
    for power in range(len(coefficients) - 1, -1, -1):
        p, q = ratio(coefficients[power])
        if p:
            if power > 1:
                terms.append((p, q, f"{name}**{power}", 1))
            else:
                terms.append((p, q, name, 1) if power else (p, q, "", 0))
    return _sum(terms)


def _monomial(exponents: Sequence[int], names: Sequence[str]) -> str:
    return "*".join(
        name if exponent == 1 else f"{name}**{exponent}"
        for name, exponent in zip(names, exponents, strict=True)
        if exponent
    )


def _sum(terms: list[tuple[int, int, str, int]]) -> str:
    """Join (p, q, monomial, number of variables) in print order."""
    if not terms:
        return "0"
    if len(terms) == 2 and terms[0][0] < 0 and terms[0][3] == 1:
        (p, _, monomial, _) = terms[1]
        if p > 0 and not monomial:
            terms.reverse()
    first = terms[0]
    parts = ["-" if first[0] < 0 else "", _unsigned(first)]
    for term in terms[1:]:
        parts.append(" - " if term[0] < 0 else " + ")
        parts.append(_unsigned(term))
    return "".join(parts)


def _unsigned(term: tuple[int, int, str, int]) -> str:
    p, q, monomial, _ = term
    p = abs(p)
    text = monomial or str(p)
    if monomial and p != 1:
        text = f"{p}*{monomial}"
    return text if q == 1 else f"{text}/{q}"


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
    parts = []
    if abs(content.numerator) != 1:
        parts.append(str(abs(content.numerator)))
    if power_of_variable:
        parts.append(_power(name, power_of_variable))
    for (slope, constant), count in sorted(counts.items()):
        parts.append(_power(f"({univariate_text((constant, slope), name)})", count))
    text = ("-" if content < 0 else "") + "*".join(parts)
    return text if content.denominator == 1 else f"{text}/{content.denominator}"


def _power(base: str, exponent: int) -> str:
    return base if exponent == 1 else f"{base}**{exponent}"


def surd_text(rational: Fraction, multiple: Fraction, radicand: int) -> str:
    """`rational + multiple*sqrt(radicand)` with a square-free radicand."""
    number = (rational.numerator, rational.denominator, "", 0)
    surd = (multiple.numerator, multiple.denominator, f"sqrt({radicand})", 1)
    if not multiple:
        return _sum([number] if rational else [])
    if not rational:
        return _sum([surd])
    if rational > 0 > multiple:
        return _sum([number, surd])
    # Both are numbers to sympy, which then orders the terms by value, the smaller first.
    smaller_first = float(rational) <= float(multiple) * sqrt(radicand)
    return _sum([number, surd] if smaller_first else [surd, number])


def power_text(name: str, exponent: Fraction) -> str:
    """A power of a positive symbol."""
    p, q = exponent.numerator, exponent.denominator
    if p == 0:
        return "1"
    if q == 2 and abs(p) == 1:
        return f"sqrt({name})" if p > 0 else f"1/sqrt({name})"
    if q != 1:
        return f"{name}**({p}/{q})"
    if p == -1:
        return f"1/{name}"
    return _power(name, p) if p > 0 else f"{name}**({p})"


def combination_text(terms: Sequence[tuple[Any, str]]) -> str:
    """A sum of applied functions with distinct names, times integers or single symbols.

    sympy sorts symbols before functions, so a term with a symbol comes first.
    """
    printed = []
    for coefficient, function in terms:
        if hasattr(coefficient, "name"):
            printed.append(((0, coefficient.name), (1, 1, f"{coefficient.name}*{function}", 2)))
        else:
            printed.append(((1, function), (int(coefficient), 1, function, 1)))
    printed.sort()
    return _sum([term for _, term in printed])
