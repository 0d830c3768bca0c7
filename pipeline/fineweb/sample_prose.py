"""Invented school prose: small articles about rivers, towns, birds, minerals and festivals.

- A draw is a pure function of its seeds (splitmix64 over an xxh3 hash), equal on every machine.
- Names carry their facts: whoever mentions the river Oslen gives it the same source and length.

Usage: `article(Draw(1, "text", 7), 120)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import xxhash

T = TypeVar("T")

_MASK: Final = (1 << 64) - 1
_ONSETS: Final = ("Br", "Ca", "Do", "El", "Fa", "Gre", "Ha", "Is", "Ka", "Lo", "Me", "Né", "Os")
_MIDDLES: Final = ("bri", "den", "lan", "mar", "rin", "sta", "tel", "vor", "wen")
_ENDS: Final = ("a", "beck", "dale", "en", "ford", "holm", "is", "mouth", "um", "wick")
_COLOURS: Final = ("grey", "copper", "green", "white", "dark blue", "pale yellow", "brown")
_SEASONS: Final = ("spring", "summer", "autumn", "winter")
_DIRECTIONS: Final = ("north", "south", "east", "west")
_FOODS: Final = ("seeds", "small fish", "insects", "berries", "snails", "reeds")
_TRADES: Final = ("glass", "paper", "wool", "salt", "timber", "bells", "clocks")
_ORDINALS: Final = ("First", "Second", "Third", "Fourth", "Finally")
_STEPS: Final = (
    "measure the {thing} and write the number down",
    "draw the {thing} from two sides",
    "compare the {thing} with the one from last week",
    "ask a neighbour what they know about the {thing}",
    "explain in one sentence why the {thing} matters",
)


class Draw:
    """A stream of draws that depends on its seeds alone."""

    def __init__(self, *seeds: object) -> None:
        self._state = xxhash.xxh3_64_intdigest("\0".join(map(str, seeds)).encode())

    def bits(self) -> int:
        """64 random bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, limit: int) -> int:
        """A number from 0 to limit - 1."""
        return (self.bits() * limit) >> 64

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices."""
        return choices[self.below(len(choices))]


def _name(draw: Draw) -> str:
    return draw.pick(_ONSETS) + draw.pick(_MIDDLES) + draw.pick(_ENDS)


def _river(name: str, draw: Draw) -> str:
    facts = Draw("river", name)
    source, length = _name(facts), 20 + facts.below(600)
    way, town, month = facts.pick(_DIRECTIONS), _name(facts), facts.pick(_SEASONS)
    return draw.pick(
        (
            f"The river {name} rises near {source} and runs {way} for {length} kilometres.",
            f"At {town} the {name} turns {way} and becomes wide enough for boats.",
            f"Every {month} the river {name} floods the fields below {town}.",
            f"How long is the river {name}? It is {length} kilometres long.",
        )
    )


def _town(name: str, draw: Draw) -> str:
    facts = Draw("town", name)
    people, trade = 200 + 50 * facts.below(400), facts.pick(_TRADES)
    river, year = _name(facts), 1100 + facts.below(800)
    return draw.pick(
        (
            f"{name} is a town of {people} people on the river {river}.",
            f"Since {year} the workshops of {name} have made {trade}.",
            f"The people of {name} are known for their {trade}.",
            f"A bridge over the {river} was built in {name} in {year + 40}.",
        )
    )


def _bird(name: str, draw: Draw) -> str:
    facts = Draw("bird", name)
    colour, food, season = facts.pick(_COLOURS), facts.pick(_FOODS), facts.pick(_SEASONS)
    eggs = 2 + facts.below(6)
    return draw.pick(
        (
            f"The {name.lower()} is a bird with {colour} wings that feeds on {food}.",
            f"In {season} the {name.lower()} lays {eggs} eggs.",
            f"Because it eats {food}, the {name.lower()} stays close to water in {season}.",
            f"You can tell the {name.lower()} by its {colour} wings.",
        )
    )


def _mineral(name: str, draw: Draw) -> str:
    facts = Draw("mineral", name)
    hardness, colour, melting = 1 + facts.below(9), facts.pick(_COLOURS), 300 + facts.below(1500)
    return draw.pick(
        (
            f"{name}ite is a {colour} mineral of hardness {hardness}.",
            f"When it is heated to {melting} degrees, {name.lower()}ite melts.",
            f"With a hardness of {hardness}, {name.lower()}ite can "
            f"{'' if hardness > 5 else 'not '}scratch glass.",
        )
    )


def _sum(_: str, draw: Draw) -> str:
    a, b = 2 + draw.below(40), 2 + draw.below(40)
    return draw.pick(
        (
            f"If one basket holds {a} apples and another {b}, together they hold {a + b}.",
            f"A wall of {a} rows with {b} stones each needs {a * b} stones.",
        )
    )


_TOPICS: Final = (
    ("river", _river),
    ("town", _town),
    ("bird", _bird),
    ("mineral", _mineral),
    ("number", _sum),
)


def _list(thing: str, draw: Draw) -> str:
    start = draw.below(len(_STEPS))
    steps = [_STEPS[(start + i) % len(_STEPS)].format(thing=thing) for i in range(len(_ORDINALS))]
    return " ".join(f"{word}, {step}." for word, step in zip(_ORDINALS, steps, strict=True))


def article(draw: Draw, words: int) -> str:
    """A text of about so many words: a title, paragraphs, now and then a list of steps."""
    thing, sentence = draw.pick(_TOPICS)
    names = [_name(draw) for _ in range(1 + words // 120)]
    paragraphs = [f"All about the {thing}: {names[0]}"]
    written = 0
    while written < words:
        name = draw.pick(names)
        lines = [sentence(name, draw) for _ in range(3 + draw.below(4))]
        if draw.below(5) == 0:
            lines.append(_list(thing, draw))
        paragraphs.append(" ".join(lines))
        written += paragraphs[-1].count(" ") + 1
    return "\n\n".join(paragraphs)
