"""The official DeepMind Mathematics generator, running and deterministic on today's libraries.

`mathematics_dataset` 1.0.1 was written for numpy 1 and sympy 1.2 and leaves its order to hash
seeds, object addresses and sympy's caches. This module imports a *private* copy of the package and
replaces names inside that copy only; each copy owns its generators. After `seed(s)`, a draw is a
function of (combination, s) alone: not of PYTHONHASHSEED, earlier draws, caches or the process.
docs/dm_math.md lists what is replaced, and why.
"""

import importlib
import importlib.metadata
import importlib.util
import random
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
import sympy

from tangobench.errors import InputError
from tangobench.pipeline.core.hashing import digest, sha256_file
from tangobench.pipeline.dm_math.spec import LEVELS

PACKAGE: Final = "mathematics_dataset"
# Raised whenever a change here or in fast/ changes one byte of output.
PATCH_VERSION: Final = 1

_IMPORTING = threading.Lock()


class _Random(random.Random):
    """`random` for the upstream modules; whole floats are accepted as bounds, as before 3.12."""

    def randint(self, a: Any, b: Any) -> int:
        if isinstance(a, float) or isinstance(b, float):
            a, b = int(a), int(b)
        return super().randint(a, b)


class _InsertionSet(dict[tuple[int, ...], None]):
    """The set that `sample_coefficients` fills and lists, in insertion order."""

    def add(self, item: tuple[int, ...]) -> None:
        self[item] = None


class _Array(np.ndarray[Any, Any]):
    """An array with numpy 1's `itemset`; `np.asarray` makes it an ordinary one again."""

    def itemset(self, index: tuple[int, ...], value: Any) -> None:
        self[tuple(index)] = value


class Generator:
    """One private copy of the package with its own three generators."""

    def __init__(self, modules: dict[str, ModuleType]) -> None:
        self.modules: Final = modules
        self.random: Final = _Random(0)
        self.numpy_random: Final = np.random.RandomState(0)
        self.sympy_random: Final = random.Random()
        self.sympy: Final = namespace(sympy)
        self.samplers: dict[tuple[str, int], Callable[[], Any]] = {}

    def seed(self, python: int, numpy: int, sympy: int) -> None:
        """Seed all three generators; `numpy` has 32 bits."""
        self.random.seed(python)
        self.numpy_random.seed(numpy)
        self.sympy_random.seed(sympy)

    def problem(self, module: str, level: int) -> Any:
        """One upstream `Problem` (question, answer), before upstream's length limits.

        `level` is an index of DIFFICULTIES: easy, medium, hard, interpolate, extrapolate.
        """
        return self.samplers[module, level]()

    def collect_samplers(self) -> None:
        """Ask the copy for its training modules at the three levels, then for its test modules."""
        upstream = self.modules["modules.modules"]
        groups = [upstream.train(entropy_third(level)) for level in range(len(LEVELS))]
        for level, found in enumerate([*groups, upstream.test(), upstream.test_extra()]):
            for group, members in found.items():
                for name, sampler in members.items():
                    self.samplers[f"{group}__{name}", level] = sampler


def entropy_third(level: int) -> Callable[[tuple[float, float]], tuple[float, float]]:
    """The easy, medium or hard third of an entropy range (upstream's `_make_entropy_fn`)."""
    lower, upper = level / len(LEVELS), (level + 1) / len(LEVELS)

    def third(full: tuple[float, float]) -> tuple[float, float]:
        length = full[1] - full[0]
        return full[0] + lower * length, full[0] + upper * length

    return third


def load() -> Generator:
    """A private, deterministic copy without the speed-ups of fast/: the reference."""
    generator = Generator(_import_private_copy())
    _own_generators(generator)
    _repair_numpy(generator)
    _fix_order(generator)
    generator.collect_samplers()
    return generator


def _import_private_copy() -> dict[str, ModuleType]:
    """Fresh modules by name below the package, leaving `sys.modules` as it was."""
    with _IMPORTING:
        before = _take_package_modules()
        diophantine = importlib.import_module("sympy.solvers.diophantine")
        moved = importlib.import_module("sympy.solvers.diophantine.diophantine")
        diophantine.base_solution_linear = moved.base_solution_linear  # type: ignore[attr-defined]
        try:
            importlib.import_module(f"{PACKAGE}.modules.modules")
        finally:
            del diophantine.base_solution_linear
            fresh = _take_package_modules()
            sys.modules.update(before)
    return {name.removeprefix(f"{PACKAGE}."): module for name, module in fresh.items()}


def _take_package_modules() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name.split(".")[0] == PACKAGE]
    return {name: sys.modules.pop(name) for name in names}


def namespace(module: ModuleType) -> ModuleType:
    """A stand-in for a library module whose names can be replaced without touching it."""
    copy = ModuleType(module.__name__)
    copy.__dict__.update(vars(module))
    return copy


def _own_generators(generator: Generator) -> None:
    numpy = namespace(np)
    numpy.random = generator.numpy_random  # type: ignore[attr-defined]
    stand_ins = {"random": generator.random, "np": numpy, "sympy": generator.sympy}
    for module in generator.modules.values():
        for name, stand_in in stand_ins.items():
            if isinstance(getattr(module, name, None), ModuleType):
                setattr(module, name, stand_in)
    generate = sympy.ntheory.generate

    def randprime(a: Any, b: Any) -> int:
        """sympy's `randprime`, drawing from this copy's generator."""
        low, high = int(a), int(b)
        prime = int(generate.nextprime(generator.sympy_random.randint(low - 1, high)))
        return prime if prime < high else int(generate.prevprime(high))

    private = SimpleNamespace(randprime=randprime, nextprime=generate.nextprime)
    generator.sympy.ntheory = SimpleNamespace(generate=private)  # type: ignore[attr-defined]


def _repair_numpy(generator: Generator) -> None:
    """numpy 2 has neither `np.object` nor `ndarray.itemset`."""

    def settable(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda shape, dtype: make(shape, dtype=dtype).view(_Array)

    polynomials = generator.modules["sample.polynomials"]
    numpy = namespace(polynomials.np)
    vars(numpy).update(object=object, zeros=settable(np.zeros), empty=settable(np.empty))
    polynomials.np = numpy  # type: ignore[attr-defined]


def _fix_order(generator: Generator) -> None:
    """Letters sorted, entities and index sets in order of insertion, factors ascending."""
    composition = generator.modules["util.composition"]
    allowed = sorted(composition._ALLOWED_SYMBOLS)
    draw = generator.random

    def pop(self: Any) -> str:
        used = self._relation_symbols | self._self_symbols | self._child_symbols
        free = [symbol for symbol in allowed if symbol not in used]
        if not free:
            raise ValueError("Ran out of symbols")
        symbol: str = draw.choice(free)
        self._self_symbols.add(symbol)
        return symbol

    def expand_entities(context: Any, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        entities = dict.fromkeys(context.child_entities)
        for key, value in kwargs.items():
            if isinstance(value, composition.Entity):
                entities[value] = None
                kwargs[key] = value.handle
        order = list(entities)
        draw.shuffle(order)
        parts = []
        for entity in order:
            own = "" if entity.expression_used else entity.description
            parts += [entity.child_description, own]
        return " ".join(filter(None, parts)), kwargs

    composition.Context.pop = pop
    composition.expand_entities = expand_entities  # type: ignore[attr-defined]
    generator.sympy.factorint = ascending_factors  # type: ignore[attr-defined]
    generator.modules["sample.polynomials"].set = _InsertionSet  # type: ignore[attr-defined]


def identity() -> dict[str, Any]:
    """What decides the rows besides the spec."""
    return {
        "generator": PACKAGE,
        "version": importlib.metadata.version(PACKAGE),
        "files_sha256": _package_digest(),
        "sympy": importlib.metadata.version("sympy"),
        "patch": PATCH_VERSION,
    }


@cache
def _package_digest() -> str:
    """Digest of the generator's own source files, tests left out."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        message = f"package {PACKAGE} is not installed"
        raise InputError(message, kind="generator-missing", fix="make setup")
    root = Path(found.submodule_search_locations[0])
    every = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.py"))
    kept = [name for name in every if not name.endswith("_test.py")]
    return digest([[name, sha256_file(root / name)] for name in kept])


def ascending_factors(value: Any) -> dict[int, int]:
    """`sympy.factorint` with its factors in ascending order."""
    return dict(sorted(sympy.factorint(value).items()))
