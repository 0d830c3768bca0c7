"""CPython's `random` methods without their argument checks, on the copy's own generator.

- Same bits in the same order as `random.Random`: each is the method of CPython ≥ 3.11 written out.

Usage: `dm_fast_random.install(generator)`
"""

from collections.abc import MutableSequence, Sequence
from typing import Any, TypeVar

from tangobench.pipeline.dm_math.generator import Generator

T = TypeVar("T")


def install(generator: Generator) -> None:
    """Shadow `randint`, `choice` and `shuffle` on the generator's `random`."""
    getrandbits = generator.random.getrandbits

    def below(n: int) -> int:
        bits = n.bit_length()
        value = getrandbits(bits)
        while value >= n:
            value = getrandbits(bits)
        return value

    def randint(a: Any, b: Any) -> int:
        low = int(a)
        return low + below(int(b) - low + 1)

    def choice(items: Sequence[T]) -> T:
        return items[below(len(items))]

    def shuffle(items: MutableSequence[Any]) -> None:
        for i in range(len(items) - 1, 0, -1):
            j = below(i + 1)
            items[i], items[j] = items[j], items[i]

    vars(generator.random).update(randint=randint, choice=choice, shuffle=shuffle)
