"""The speed-ups give what upstream and sympy give: draw by draw, and part by part."""

import random
from math import prod

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from tangobench.pipeline.dm_math import fast
from tangobench.pipeline.dm_math import generator as official
from tangobench.pipeline.dm_math.fast import Polynomial
from tangobench.pipeline.dm_math.spec import MODULES
from tangobench.pipeline.dm_math.stages import draw

SMALL = st.integers(-60, 60)
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
    assert str(Polynomial(terms, names[:2])) == str(expression)


@given(coefficients=st.lists(RATIONALS, min_size=1, max_size=5), names=NAMES)
def test_univariate_polynomials_print_as_sympys(coefficients, names):
    x = sympy.Symbol(names[0])
    terms = {(power,): c for power, c in enumerate(coefficients)}
    assert str(Polynomial(terms, names[:1])) == str(
        sum(c * x**power for power, c in enumerate(coefficients))
    )


@given(p=st.integers(-(10**12), 10**12), q=st.integers(1, 10**6))
def test_rounding_is_sympys(p, q):
    assert fast._rounded(sympy.Rational(p, q)) == round(sympy.Rational(p, q))


@given(m=st.integers(-(10**6), 10**6))
def test_ties_round_to_even(m):
    assert fast._rounded(sympy.Rational(2 * m + 1, 2)) == round(m + 0.5)


@given(value=st.integers(-(10**13), 10**13).filter(bool))
def test_factors_are_sympys(ours, value):
    assert list(ours.sympy.factorint(value).items()) == sorted(sympy.factorint(value).items())
