"""Places inside a line where a word of a given list may start, found without `re`.

Nearly every command starts a line. Those that do not stand behind one of ten million blanks, and
`re` takes 50 ns for each of them; here all bytes are looked at a few at a time by table.

- Nothing is missed; what is found may still be something else and must be matched.
- Time is linear in the text, whatever it holds.

Usage: `Finder(b" ;", [(b"e", b"n", b"d")])(code)` gives the offsets of the bytes before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

NDArray = np.ndarray[Any, Any]

_LOOKED_AT: Final = 5  # bytes of a word
_ANY: Final = bytes(range(256))


class Finder:
    """Looks for words, each given as the bytes possible at its first five places."""

    def __init__(self, before: bytes, words: Iterable[tuple[bytes, ...]]) -> None:
        """`before` are the bytes a word may stand behind; a short word goes on with anything."""
        groups: dict[bytes, int] = {}
        self._first = np.zeros((256, 256), np.uint32)
        self._second, self._third = np.zeros_like(self._first), np.zeros_like(self._first)
        for word in words:
            places = [*word, *([_ANY] * _LOOKED_AT)][:_LOOKED_AT]
            # One bit per first byte, so that the rest is not matched with that of another word.
            bit = np.uint32(1 << groups.setdefault(places[0], len(groups)) % 32)
            pairs = ((before, places[0]), places[1:3], places[3:5])
            tables = (self._first, self._second, self._third)
            for table, (left, right) in zip(tables, pairs, strict=True):
                table[np.ix_(list(right), list(left))] |= bit
        self._any_first = self._first != 0

    def __call__(self, text: bytes) -> list[int]:
        """Offsets of the bytes before possible words, in order."""
        halves = [self._half(text, start) for start in (0, 1)]
        found: list[int] = np.sort(np.concatenate(halves)).tolist()
        return found

    def _half(self, text: bytes, start: int) -> NDArray:
        """Those at even or at odd offsets: two bytes at a time make one index."""
        padded = text[start:] + bytes(_LOOKED_AT + 1)
        pairs = np.frombuffer(padded, "<u2", len(padded) // 2)
        at = np.flatnonzero(self._any_first.take(pairs[:-2]))
        marks = self._first.take(pairs[at])
        marks &= self._second.take(pairs[at + 1]) & self._third.take(pairs[at + 2])
        found: NDArray = 2 * at[marks != 0] + start
        return found
