"""Polynomials and constants of the math generator, where upstream goes through sympy.

- A polynomial op keeps its coefficients; its tree of monomials is built only if something prints
  or searches it, its value (`op.sympy()`) is a `Univariate` or `Multivariate`.
- Shuffles happen on the same number of items as upstream's, so every later draw is the same.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import product
from types import ModuleType
from typing import Any

import numpy as np
from sympy import Rational, Symbol

from tangobench.pipeline.dm_math.fast.numbers import integer_of
from tangobench.pipeline.dm_math.fast.values import (
    Applied,
    Multivariate,
    Univariate,
    factored_text,
    number_text,
    value_of,
)
from tangobench.pipeline.dm_math.generator import Generator, namespace

symbol_of = lru_cache(maxsize=64)(Symbol)


class _Rooted(list[Any]):
    """Coefficients of a polynomial whose roots are known."""

    roots: Sequence[Any]


def install(generator: Generator) -> None:
    """Replace the polynomial helpers of one private copy."""
    sample = generator.modules["sample.polynomials"]
    _constants(generator.modules["sample.ops"])
    _entities(generator)
    polynomial_op = _polynomial_op(generator)
    vars(sample).update(
        _sampling(generator, polynomial_op),
        _degree_of_variable=lambda op, _variable: value_of(op).degree,
    )
    vars(generator.sympy)["var"] = symbol_of
    ops = generator.modules["sample.ops"]
    for name in ("Add", "Sub", "Mul", "Div", "Pow", "Sqrt"):
        getattr(ops, name).sympy = value_of
    _composition(generator)
    _algebra(generator)
    _own_sympy(generator.modules["modules.polynomials"], expand=value_of, Poly=value_of)
    _own_sympy(generator.modules["modules.arithmetic"], expand=lambda v: v, simplify=value_of)


def _constants(ops: Any) -> None:
    def initialise(self: Any, value: Any) -> None:
        self._children = []
        self._value = integer_of(value) if isinstance(value, int) else value

    slow_precedence: Callable[[Any], int] = ops.Constant.precedence.fget
    simple, like_product = ops._CONSTANT_PRECEDENCE, ops._MUL_PRECEDENCE

    def precedence(self: Any) -> int:
        value = self._value
        if isinstance(value, Rational):
            return int(simple if value.q == 1 and value.p >= 0 else like_product)
        return int(simple) if isinstance(value, Symbol) else slow_precedence(self)

    ops.Constant.__init__ = initialise
    ops.Constant.__str__ = lambda self: number_text(self._value)
    ops.Constant.precedence = property(precedence)


def _entities(generator: Generator) -> None:
    """Numbers and symbols become text before they reach `str.format` and sympy's printer."""
    composition = generator.modules["util.composition"]
    expand: Callable[..., tuple[str, dict[str, Any]]] = composition.expand_entities

    def expand_entities(context: Any, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        description, values = expand(context, **kwargs)
        return description, {key: number_text(value) for key, value in values.items()}

    vars(composition)["expand_entities"] = expand_entities


def _own_sympy(module: ModuleType, **names: Any) -> None:
    own = namespace(module.sympy)
    vars(own).update(names)
    module.sympy = own  # type: ignore[attr-defined]


def _polynomial_op(generator: Generator) -> Any:
    """The class of polynomial ops of one copy."""
    sample = generator.modules["sample.polynomials"]
    base: Any = generator.modules["sample.ops"].Add

    class PolynomialOp(base):  # type: ignore[misc]
        """A sum of monomials given as (coefficient, powers), in print order."""

        def __init__(self, monomials: list[tuple[Any, Any]], variables: Sequence[Any]) -> None:
            self._monomials = monomials
            self._variables = variables
            self._built: tuple[Any, ...] | None = None
            self._roots: Sequence[Any] | None = None

        @property
        def _children(self) -> tuple[Any, ...]:
            if self._built is None:
                constant = generator.modules["sample.ops"].Constant
                op = generator.modules["sample.ops"].Op
                made = [sample.monomial(c, self._variables, p) for c, p in self._monomials]
                self._built = tuple(m if isinstance(m, op) else constant(m) for m in made)
            return self._built

        def sympy(self) -> Univariate | Multivariate:
            names = [variable.name for variable in self._variables]
            if len(names) > 1:
                return Multivariate(_collected(self._monomials), names)
            coefficients: list[Any] = [0] * (1 + max(p[0] for _, p in self._monomials))
            for coefficient, (power,) in self._monomials:
                coefficients[power] += _plain(coefficient)
            return Univariate(coefficients, names[0])

        def factored(self) -> str:
            """The factorisation, from the known roots."""
            value = self.sympy()
            assert isinstance(value, Univariate) and self._roots is not None
            return factored_text(value.coefficients[-1], self._roots, value.name)

    return PolynomialOp


def _collected(monomials: list[tuple[Any, tuple[int, ...]]]) -> dict[tuple[int, ...], Any]:
    terms: dict[tuple[int, ...], Any] = {}
    for coefficient, powers in monomials:
        terms[powers] = terms.get(powers, 0) + _plain(coefficient)
    return terms


def _plain(value: Any) -> Any:
    """Python's integer for a whole number: sums of them are ten times as fast."""
    return value if isinstance(value, Rational) and value.q != 1 else int(value)


@lru_cache(maxsize=256)
def _grid(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(product(*map(range, shape)))


def _sampling(generator: Generator, polynomial_op: Any) -> dict[str, Callable[..., Any]]:
    sample = generator.modules["sample.polynomials"]
    shuffle, dirichlet = generator.random.shuffle, generator.numpy_random.dirichlet

    def coefficients_to_polynomial(coefficients: Any, variables: Any) -> Any:
        roots = getattr(coefficients, "roots", None)
        grid = np.asarray(coefficients)
        if not isinstance(variables, (list, tuple)):
            variables = [variables]
        monomials: list[tuple[Any, tuple[int, ...]]] = []
        for powers, entry in zip(_grid(grid.shape), grid.ravel().tolist(), strict=True):
            if isinstance(entry, list):
                monomials.extend((coefficient, powers) for coefficient in entry)
            else:
                monomials.append((entry, powers))
        shuffle(monomials)
        op = polynomial_op(monomials, variables)
        op._roots = roots
        return op

    def sample_with_small_evaluation(
        variable: Any, degree: int, max_abs_input: int, entropy: float
    ) -> Any:
        entropies = entropy * dirichlet(np.ones(degree + 1))
        monomials = []
        for power in range(degree + 1):
            delta = 0.5 * (degree - 2 * power) * math.log10(max_abs_input)
            least = 1 if power == degree else 0
            integer = sample.number.integer
            coefficient = integer(entropies[power] + delta, signed=True, min_abs=least)
            monomials.append((coefficient, (power,)))
        return polynomial_op(monomials, [variable])

    return {
        "coefficients_to_polynomial": coefficients_to_polynomial,
        "sample_with_small_evaluation": sample_with_small_evaluation,
        "integers_with_sum": _integers_with_sum(generator),
    }


def _integers_with_sum(generator: Generator) -> Callable[..., list[Any]]:
    number = generator.modules["sample.number"]
    shuffle, dirichlet = generator.random.shuffle, generator.numpy_random.dirichlet

    def integers_with_sum(value: Any, count: int, entropy: float) -> list[Any]:
        count = int(count)  # numpy's integers would overflow
        if count == 0:
            assert value == 0 and entropy == 0
            return []
        if count == 1:
            assert entropy == 0
            return [value]
        entropy *= count / (count - 1)
        least = max(1, number.entropy_of_value(math.ceil(value / count)))
        entropies = np.maximum(least, entropy * dirichlet(np.ones(count)))
        terms = [number.integer(each, signed=True).p for each in entropies.tolist()]
        delta = int(value) - sum(terms)
        terms = [integer_of(term + (delta + i) // count) for i, term in enumerate(terms)]
        shuffle(terms)
        return terms

    return integers_with_sum


def _composition(generator: Generator) -> None:
    """Function handles and polynomial entities are only printed: text replaces expressions."""
    composition = generator.modules["util.composition"]
    sample = generator.modules["sample.polynomials"]

    def initialise(self: Any, *functions: Any) -> None:
        self._functions = []
        for function in functions:
            self._functions += (
                [function] if isinstance(function, str) else function.handle.functions
            )

    def apply(self: Any, *inputs: Any) -> Applied:
        text = ", ".join(map(str, inputs))
        for name in reversed(self._functions):
            text = f"{name}({text})"
        return Applied(text)

    composition.FunctionHandle.__init__ = initialise
    composition.FunctionHandle.apply = apply

    def polynomial_entity(value: Any, context: Any) -> Any:
        variables = [symbol_of(context.pop()) for _ in range(value.coefficients.ndim)]
        name = context.pop()
        handle = composition.FunctionHandle(name)
        op = sample.coefficients_to_polynomial(value.coefficients, variables)
        text = str(op.sympy())
        return composition.Entity(
            context=context,
            value=value,
            expression=text,
            polynomial_variables=variables,
            description="Let {function} = {polynomial}.",
            handle=handle,
            function=handle.apply(*variables),
            polynomial=text,
        )

    vars(composition)["_polynomial_entity"] = polynomial_entity


def _algebra(generator: Generator) -> None:
    algebra = generator.modules["modules.algebra"]
    number = generator.modules["sample.number"]

    def coefficients_with_roots(roots: Sequence[Any], scale_entropy: float) -> _Rooted:
        # Π (q·x − p), ascending: the integer polynomial that upstream reaches with the lcm of the
        # denominators, because a product of primitive polynomials is primitive.
        expanded = [1]
        for root in roots:
            low = [-root.p * c for c in expanded]
            high = [root.q * c for c in expanded]
            expanded = [a + b for a, b in zip([*low, 0], [0, *high], strict=True)]
        scale: Any = 1
        if scale_entropy > 0:
            while True:
                scale = number.integer_or_rational(scale_entropy, signed=True)
                if scale != 0:
                    break
        result = _Rooted(integer_of(coefficient) * scale for coefficient in expanded)
        result.roots = roots
        return result

    vars(algebra)["_polynomial_coeffs_with_roots"] = coefficients_with_roots
    _own_sympy(algebra, factor=lambda op: op.factored())
