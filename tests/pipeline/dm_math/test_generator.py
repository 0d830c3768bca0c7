"""The private copy of the generator: complete, repeatable, and invisible from outside."""

import random
import sys

import numpy as np
import pytest
import sympy
import sympy.core.random
from sympy.core.cache import clear_cache
from sympy.ntheory import factor_
from sympy.ntheory.generate import randprime

from tangobench.pipeline.dm_math import generator as official
from tangobench.pipeline.dm_math.spec import MODULES, NAMES


@pytest.fixture(scope="module")
def generator():
    return official.load()


def examples(generator, module, level, seeds=range(3)):
    found = []
    for seed in seeds:
        generator.seed(seed, seed, seed)
        problem = generator.problem(module, level)
        found.append((str(problem.question), str(problem.answer)))
    return found


def test_the_56_modules_are_the_ones_that_are_numbered(generator):
    assert tuple(sorted({m for m, level in generator.samplers if level < 3})) == MODULES
    assert len(MODULES) == 56
    assert len(set(NAMES)) == 168
    assert NAMES[:3] == tuple(f"algebra__linear_1d/{level}" for level in official.LEVELS)


def test_levels_are_the_thirds_of_the_entropy_range():
    thirds = [official.entropy_third(level)((3, 10)) for level in range(3)]
    assert thirds[0][0] == 3
    assert thirds[2][1] == pytest.approx(10)
    assert [b - a for a, b in thirds] == pytest.approx([7 / 3] * 3)
    assert thirds[0][1] == thirds[1][0]


def test_loading_and_drawing_leave_the_process_as_it_was():
    def outside():
        numpy_state = np.random.get_state()
        return (
            random.getstate(),
            numpy_state[1].tobytes(),
            numpy_state[2],
            sorted(name for name in sys.modules if name.startswith(official.PACKAGE)),
            hasattr(sys.modules["sympy.solvers.diophantine"], "base_solution_linear"),
            sympy.factorint,
            hasattr(np.ndarray, "itemset"),
        )

    before = outside()
    fresh = official.load()
    for module in ("numbers__is_prime", "algebra__polynomial_roots", "polynomials__add"):
        examples(fresh, module, 2)
    assert outside() == before


def test_sympys_own_generator_is_not_read(generator):
    """sympy's algorithms may draw from it, so it cannot be kept still; it must not matter."""
    found = []
    for seed in (1, 2):
        sympy.core.random.seed(seed)
        found.append(
            [examples(generator, module, 2) for module in ("numbers__is_prime", "polynomials__add")]
        )
    assert found[0] == found[1]


def test_two_copies_do_not_share_their_generators(generator):
    other = official.load()
    generator.seed(1, 2, 3)
    other.seed(4, 5, 6)
    first = str(generator.problem("comparison__sort", 1).question)
    generator.seed(1, 2, 3)
    other.problem("comparison__sort", 1)
    assert str(generator.problem("comparison__sort", 1).question) == first


def test_randprime_is_sympys(generator):
    ours = generator.sympy.ntheory.generate.randprime
    for seed in range(40):
        generator.seed(0, 0, seed)
        sympy.core.random.seed(seed)
        low = 2 + seed * seed
        assert ours(low / 2, low * 2) == randprime(low / 2, low * 2)


def test_factors_do_not_depend_on_what_was_factored_before(generator):
    """sympy's `factor_cache` changes the order of `factorint`: gcd/hard is where it shows."""
    seeds = range(200)
    warm = examples(generator, "numbers__gcd", 2, seeds)
    for value in range(2, 3000):
        sympy.factorint(value)
    after = examples(generator, "numbers__gcd", 2, seeds)
    clear_cache()
    factor_.factor_cache.cache_clear()
    assert warm == after == examples(generator, "numbers__gcd", 2, seeds)


def test_factors_ascend():
    assert list(official.ascending_factors(-(2**3) * 7 * 101)) == [-1, 2, 7, 101]


def test_bounds_may_be_whole_floats(generator):
    generator.seed(1, 1, 1)
    values = {generator.random.randint(-2.0, 2.0) for _ in range(200)}
    assert values == {-2, -1, 0, 1, 2}


@pytest.mark.parametrize("level", range(3), ids=official.LEVELS)
def test_every_module_gives_text(generator, level):
    for module in MODULES:
        generator.seed(level, 5, 6)
        problem = generator.problem(module, level)
        assert str(problem.question) and str(problem.answer)
