"""Upstream's expression trees (`sample/ops.py`) without abstract base classes in the hot paths.

- Same trees, same text, same order of constants; only the bookkeeping is lighter: an `isinstance`
  against an abstract class and sympy's printer cost more than the work they guard.
"""

from collections.abc import Callable
from typing import Any

from sympy import Rational, Symbol

from tangobench.pipeline.dm_math.fast.numbers import integer_of
from tangobench.pipeline.dm_math.fast.values import number_text
from tangobench.pipeline.dm_math.generator import Generator


def install(generator: Generator) -> None:
    """Replace constructors, printing and searching of the ops of one private copy."""
    ops = generator.modules["sample.ops"]
    ops.Op.is_op = True
    _constants(ops)
    _constructors(ops)
    ops.Add.expanded_signs_and_terms = _expanded_signs_and_terms
    vars(ops).update(
        bracketed=_bracketed(ops.Constant),
        number_constants=_number_constants(ops, generator.modules["util.display"].Decimal),
    )
    _entities(generator)


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


def _constructors(ops: Any) -> None:
    constant = ops.Constant

    def wrap(child: Any) -> Any:
        return child if getattr(child, "is_op", False) else constant(child)

    def many(self: Any, *children: Any) -> None:
        self._children = [wrap(child) for child in children]

    def one(key: str) -> Callable[..., None]:
        def initialise(self: Any, child: Any) -> None:
            self._children = {key: wrap(child)}

        return initialise

    def two(first: str, second: str) -> Callable[..., None]:
        def initialise(self: Any, a: Any, b: Any) -> None:
            self._children = {first: wrap(a), second: wrap(b)}

        return initialise

    ops.Add.__init__ = ops.Mul.__init__ = many
    ops.Identity.__init__ = ops.Neg.__init__ = one("input")
    ops.Sqrt.__init__ = one("a")
    ops.Pow.__init__ = two("a", "b")
    ops.Sub.__init__ = ops.Eq.__init__ = two("left", "right")
    denominator_first = two("denom", "numer")  # children are visited in the order of their keys
    ops.Div.__init__ = lambda self, a, b: denominator_first(self, b, a)


def _expanded_signs_and_terms(self: Any) -> list[tuple[bool, Any]]:
    expanded: list[tuple[bool, Any]] = []
    for child in self._children:
        inner = getattr(child, "expanded_signs_and_terms", None)
        if inner is None:
            expanded.append((True, child))
        else:
            expanded += inner()
    return expanded


def _bracketed(constant: Any) -> Callable[[Any, Any, bool], str]:
    def bracketed(child: Any, parent: Any, bracket_if_same_precedence: bool) -> str:
        if not getattr(child, "is_op", False):
            child = constant(child)
        inner, outer = child.precedence, parent.precedence
        if outer > inner or (outer == inner and not bracket_if_same_precedence):
            return str(child)
        return f"({child})"

    return bracketed


def _number_constants(ops: Any, decimal: Any) -> Callable[[Any], list[Any]]:
    constant = ops.Constant
    is_number = ops.number.is_integer_or_rational_or_decimal

    def collect(op: Any, found: list[Any]) -> None:
        if type(op) is constant:
            value = op._value
            if isinstance(value, (Rational, decimal)) or is_number(value):
                found.append(op)
            return
        children = op._children
        for child in children.values() if isinstance(children, dict) else children:
            collect(child, found)

    def number_constants(expressions: Any) -> list[Any]:
        found: list[Any] = []
        for op in [expressions] if getattr(expressions, "is_op", False) else expressions:
            collect(op, found)
        return found

    return number_constants


def _entities(generator: Generator) -> None:
    """Numbers and symbols become text before they reach `str.format` and sympy's printer."""
    composition = generator.modules["util.composition"]
    expand: Callable[..., tuple[str, dict[str, Any]]] = composition.expand_entities

    def expand_entities(context: Any, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        description, values = expand(context, **kwargs)
        return description, {key: number_text(value) for key, value in values.items()}

    vars(composition)["expand_entities"] = expand_entities

    def list_text(self: Any) -> str:
        return ", ".join(map(number_text, self._numbers))

    generator.modules["util.display"].NumberList.__str__ = list_text
