"""The speed-ups give what upstream and sympy give: draw by draw, and part by part."""

import random
from fractions import Fraction
from math import prod

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.pipeline.dm_math import fast
from tangobench.pipeline.dm_math import generator as official
from tangobench.pipeline.dm_math.combinations import MODULES
from tangobench.pipeline.dm_math.draw import draw
from tangobench.pipeline.dm_math.fast import numbers
from tangobench.pipeline.dm_math.fast.values import (
    Combination,
    Multivariate,
    Power,
    Surd,
    Univariate,
    factored_text,
    square_part,
)

SMALL = st.integers(-60, 60)
NONZERO = SMALL.filter(bool)
RATIONALS = st.builds(sympy.Rational, SMALL, st.integers(1, 12))
NAMES = st.permutations("abcxyz")


@pytest.fixture(scope="module")
def upstream():
    return official.load()


@pytest.fixture(scope="module")
def ours():
    return fast.load()


def state(generator):
    numpy_state = generator.numpy_random.get_state(legacy=False)["state"]
    return generator.random.getstate(), numpy_state["pos"], numpy_state["key"].tobytes()


@pytest.mark.parametrize("module", MODULES)
def test_same_examples_and_same_state_as_upstream(module, upstream, ours):
    first = 3 * MODULES.index(module)
    for combination in range(first, first + 3):
        for index in range(4):
            theirs = draw(11, "train", combination, index, upstream)
            mine = draw(11, "train", combination, index, ours)
            assert mine == theirs
            assert state(ours) == state(upstream)


def test_the_comparison_notices_one_draw_too_many(ours, upstream):
    ours.seed(1, 2, 3)
    upstream.seed(1, 2, 3)
    assert state(ours) == state(upstream)
    ours.numpy_random.dirichlet([1, 1])
    assert state(ours) != state(upstream)


@given(seed=st.integers(0, 2**64 - 1), sizes=st.lists(st.integers(1, 10**12), min_size=1))
def test_random_methods_are_cpythons(ours, seed, sizes):
    reference = random.Random(seed)
    ours.seed(seed, 0, 0)
    for size in sizes:
        assert ours.random.randint(-size, size) == reference.randint(-size, size)
        items = list(range(size % 20 + 1))
        assert ours.random.choice(items) == reference.choice(items)
        expected = list(items)
        reference.shuffle(expected)
        ours.random.shuffle(items)
        assert items == expected


@given(
    names=NAMES,
    terms=st.dictionaries(st.tuples(*[st.integers(0, 3)] * 2), RATIONALS, min_size=1, max_size=5),
)
def test_polynomials_print_as_sympys(names, terms):
    variables = sympy.symbols(names[:2])
    expression = sum(
        c * prod(v**e for v, e in zip(variables, powers, strict=True))
        for powers, c in terms.items()
    )
    assert str(Multivariate(terms, names[:2])) == str(expression)


@given(coefficients=st.lists(RATIONALS, min_size=1, max_size=5), names=NAMES)
def test_univariate_polynomials_print_as_sympys(coefficients, names):
    x = sympy.Symbol(names[0])
    assert str(Univariate(coefficients, names[0])) == str(
        sum(c * x**power for power, c in enumerate(coefficients))
    )


@settings(max_examples=60)
@given(
    roots=st.lists(
        st.builds(sympy.Rational, st.integers(-9, 9), st.integers(1, 4)), min_size=2, max_size=5
    ),
    leading=RATIONALS.filter(bool),
)
def test_factorisations_print_as_sympys(roots, leading):
    x = sympy.Symbol("x")
    expanded = sympy.expand(leading * sympy.prod([x - root for root in roots]))
    assert factored_text(leading, roots, "x") == str(sympy.factor(expanded))


@given(a=RATIONALS, b=RATIONALS, radicand=st.sampled_from([2, 3, 5, 7, 11, 13, 17, 19]))
def test_surds_print_as_sympys(a, b, radicand):
    parts = Fraction(a.p, a.q), Fraction(b.p, b.q)
    assert str(Surd({1: parts[0], radicand: parts[1]})) == str(a + b * sympy.sqrt(radicand))


@given(exponent=RATIONALS)
def test_powers_print_as_sympys(exponent):
    x = sympy.Symbol("x", positive=True)
    assert str(Power("x", Fraction(exponent.p, exponent.q))) == str(x**exponent)


@given(
    names=NAMES,
    coefficients=st.tuples(
        NONZERO.map(sympy.Integer) | st.just(sympy.Symbol("k")),
        NONZERO.map(sympy.Integer) | st.just(sympy.Symbol("m")),
    ),
)
def test_combinations_of_functions_print_as_sympys(names, coefficients):
    x = sympy.Symbol("t")
    functions = [sympy.Function(name)(x) for name in names[:2]]
    expected = sum(c * f for c, f in zip(coefficients, functions, strict=True))
    terms = [(c, str(f)) for c, f in zip(coefficients, functions, strict=True)]
    assert str(Combination(terms)) == str(expected)


@given(p=st.integers(-(10**12), 10**12), q=st.integers(1, 10**6))
def test_rounding_is_sympys(p, q):
    assert numbers.nearest(sympy.Rational(p, q)) == round(sympy.Rational(p, q))


@given(m=st.integers(-(10**6), 10**6))
def test_ties_round_to_even(m):
    assert numbers.nearest(sympy.Rational(2 * m + 1, 2)) == round(m + 0.5)


@given(value=st.integers(1, 10**7), root=st.integers(2, 10))
def test_roots_round_as_sympys(value, root):
    power = sympy.Integer(value) ** (1 / root)
    assert int(numbers.nearest(power)) == round(power)


@given(value=st.integers(-(10**13), 10**13).filter(bool))
def test_factors_are_sympys(value):
    assert list(numbers.factorint(value).items()) == sorted(sympy.factorint(value).items())


@given(value=st.integers(1, 10**6))
def test_square_parts(value):
    outside, inside = square_part(value)
    assert outside**2 * inside == value
    assert max(sympy.factorint(inside).values(), default=1) == 1
