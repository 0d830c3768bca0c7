"""What wrote pipeline/fineweb/sample.parquet: school texts with every hard case of dedup planted.

- The file is what builds read; a test compares it with what this makes.
- Document n is a pure function of (seed, n): any range can be made alone, on any machine.
- Facts and forms recur, so that a small model has something to learn; every sentence is original.
- Names carry their facts: whoever mentions the river Oslen gives it the same source and length.
- Planted: exact copies, URL variants of one page, chains that only transitive linking resolves,
  near misses that must stay apart, unusable URLs, empty texts, documents beyond 8,192 tokens.

Usage: `python manifests/fineweb_sample.py` in a clone.
"""

from __future__ import annotations

import unicodedata
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

T = TypeVar("T")

SEED: Final = 20231
ORDINARY: Final = 4000

TRAIN_DUMPS: Final = (
    "CC-MAIN-2022-40",
    "CC-MAIN-2022-49",
    "CC-MAIN-2023-06",
    "CC-MAIN-2023-14",
    "CC-MAIN-2023-23",
    "CC-MAIN-2023-40",
)
VALIDATION_DUMP: Final = "CC-MAIN-2023-50"
LATER_DUMPS: Final = ("CC-MAIN-2024-10", "CC-MAIN-2024-18")
_DUMPS: Final = (*TRAIN_DUMPS, VALIDATION_DUMP, *LATER_DUMPS)

SCHEMA: Final = pa.schema(dict.fromkeys(("text", "id", "dump", "url", "date"), pa.string()))

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
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, limit: int) -> int:
        return (self.bits() * limit) >> 64

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]


def _name(draw: Draw) -> str:
    return draw.pick(_ONSETS) + draw.pick(_MIDDLES) + draw.pick(_ENDS)


def _river(name: str, _: Draw) -> tuple[str, ...]:
    facts = Draw("river", name)
    source, length = _name(facts), 20 + facts.below(600)
    way, town, month = facts.pick(_DIRECTIONS), _name(facts), facts.pick(_SEASONS)
    return (
        f"The river {name} rises near {source} and runs {way} for {length} kilometres.",
        f"At {town} the {name} turns {way} and becomes wide enough for boats.",
        f"Every {month} the river {name} floods the fields below {town}.",
        f"How long is the river {name}? It is {length} kilometres long.",
    )


def _town(name: str, _: Draw) -> tuple[str, ...]:
    facts = Draw("town", name)
    people, trade = 200 + 50 * facts.below(400), facts.pick(_TRADES)
    river, year = _name(facts), 1100 + facts.below(800)
    return (
        f"{name} is a town of {people} people on the river {river}.",
        f"Since {year} the workshops of {name} have made {trade}.",
        f"The people of {name} are known for their {trade}.",
        f"A bridge over the {river} was built in {name} in {year + 40}.",
    )


def _bird(name: str, _: Draw) -> tuple[str, ...]:
    facts = Draw("bird", name)
    colour, food, season = facts.pick(_COLOURS), facts.pick(_FOODS), facts.pick(_SEASONS)
    eggs = 2 + facts.below(6)
    return (
        f"The {name.lower()} is a bird with {colour} wings that feeds on {food}.",
        f"In {season} the {name.lower()} lays {eggs} eggs.",
        f"Because it eats {food}, the {name.lower()} stays close to water in {season}.",
        f"You can tell the {name.lower()} by its {colour} wings.",
    )


def _mineral(name: str, _: Draw) -> tuple[str, ...]:
    facts = Draw("mineral", name)
    hardness, colour, melting = 1 + facts.below(9), facts.pick(_COLOURS), 300 + facts.below(1500)
    return (
        f"{name}ite is a {colour} mineral of hardness {hardness}.",
        f"When it is heated to {melting} degrees, {name.lower()}ite melts.",
        f"With a hardness of {hardness}, {name.lower()}ite can "
        f"{'' if hardness > 5 else 'not '}scratch glass.",
    )


def _sum(_: str, draw: Draw) -> tuple[str, ...]:
    a, b = 2 + draw.below(40), 2 + draw.below(40)
    return (
        f"If one basket holds {a} apples and another {b}, together they hold {a + b}.",
        f"A wall of {a} rows with {b} stones each needs {a * b} stones.",
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
    thing, sentences = draw.pick(_TOPICS)
    names = [_name(draw) for _ in range(1 + words // 120)]
    paragraphs = [f"All about the {thing}: {names[0]}"]
    written = 0
    while written < words:
        name = draw.pick(names)
        lines = [draw.pick(sentences(name, draw)) for _ in range(3 + draw.below(4))]
        if draw.below(5) == 0:
            lines.append(_list(thing, draw))
        paragraphs.append(" ".join(lines))
        written += paragraphs[-1].count(" ") + 1
    return "\n\n".join(paragraphs)


@dataclass(frozen=True, slots=True)
class Page:
    """What a document is made of: its text comes from `text_seed` unless `edit` changes it."""

    number: int
    dump: str
    url: str | None
    text_seed: int
    words: int = 140
    edit: str = ""


def _plain(number: int) -> Page:
    draw = Draw(SEED, "page", number)
    dump = draw.pick((*_DUMPS, *TRAIN_DUMPS, VALIDATION_DUMP))
    host = f"{draw.pick(('lessons', 'atlas', 'museum', 'field-notes'))}{draw.below(40)}.example"
    url = f"https://{host}/{draw.pick(('rivers', 'towns', 'birds'))}/page-{number}"
    return Page(number, dump, url, number, words=60 + draw.below(180))


_VARIANTS: Final[tuple[Callable[[str], str], ...]] = (
    lambda url: url.replace("https://", "HTTPS://"),
    lambda url: url.replace(".example/", ".EXAMPLE:443/"),
    lambda url: url + "#section-2",
    lambda url: url.replace("/page-", "/./%70age-"),
    lambda url: url.replace("/page-", "/old/../page%2d"),
)
_MISSES: Final[tuple[Callable[[str], str], ...]] = (
    lambda url: url + "/",
    lambda url: url.replace("https://", "http://"),
    lambda url: url.replace("https://", "https://www."),
    lambda url: url + "?utm_source=feed",
    lambda url: url.replace("/page-", "/Page-"),
)
_EDITS: Final[dict[str, Callable[[str], str]]] = {
    "nfd": lambda text: unicodedata.normalize("NFD", text),
    "space": lambda text: text + " ",
    "case": str.upper,
    "newline": lambda text: text.replace("\n", "\r\n"),
}
_ODD: Final[tuple[dict[str, Any], ...]] = (
    {"url": None},
    {"url": "not a url"},
    {"edit": "empty"},
    {"words": 9000},
)


def _recrawl(number: int, original: Page, draw: Draw, **changes: Any) -> Page:
    return replace(original, number=number, dump=draw.pick(_DUMPS[:7]), **changes)


def _planted(count: int) -> list[Page]:
    pages: list[Page] = []
    number = ORDINARY
    for plant in range(count):
        draw = Draw(SEED, "plant", plant)
        base = _plain(draw.below(ORDINARY))
        fresh = f"https://mirror{draw.below(60)}.example/copy-{plant}"
        kind = plant % 8
        variant = _VARIANTS[plant // 8 % len(_VARIANTS)](base.url or "")
        if kind == 0:  # exact copy elsewhere
            pages.append(_recrawl(number, base, draw, url=fresh))
        elif kind == 1:  # the same page again, unchanged
            pages.append(_recrawl(number, base, draw, url=variant))
        elif kind in (2, 3):  # the same page again, its text revised
            pages.append(_recrawl(number, base, draw, url=variant, edit=f"revised {plant}"))
        elif kind == 4:  # a page that only looks the same
            url = _MISSES[plant // 8 % len(_MISSES)](base.url or "")
            pages.append(_recrawl(number, base, draw, url=url, text_seed=number))
        elif kind == 5:  # a text that only looks the same
            edit = [*_EDITS][plant // 8 % len(_EDITS)]
            pages.append(_recrawl(number, base, draw, url=fresh, edit=edit))
        elif kind == 6:  # a chain: training page - same URL - same text - same URL
            pages.extend(_chain(number, plant, base, draw))
        else:
            pages.append(_odd(number, plant, fresh))
        number = ORDINARY + len(pages)
    return pages


def _chain(number: int, plant: int, base: Page, draw: Draw) -> list[Page]:
    """Links that lead from `base` over validation documents; one hop finds only the first."""
    pages = [replace(base, number=number, edit=f"chain {plant}", dump=VALIDATION_DUMP)]
    for step in range(1, 2 + draw.below(3)):
        last = pages[-1]
        if step % 2:
            changes: dict[str, Any] = {"url": f"https://chain{plant}.example/step-{step}"}
        else:
            changes = {"edit": f"chain {plant} step {step}"}
        pages.append(replace(last, number=number + step, **changes))
    return pages


def _odd(number: int, plant: int, fresh: str) -> Page:
    """Unusable URLs, empty texts and long documents, mostly in the validation dump."""
    case = plant // 8 % 10
    if case >= len(_ODD):
        words = 7600 + 1300 * (plant // 80 % 9)
        return Page(number, VALIDATION_DUMP, fresh, number, words)
    return replace(Page(number, TRAIN_DUMPS[-1], fresh, number), **_ODD[case])


@lru_cache(maxsize=1)
def pages() -> tuple[Page, ...]:
    """All documents in row order: plants lie scattered among the others."""
    everyone = [_plain(number) for number in range(ORDINARY)] + _planted(560)
    return tuple(sorted(everyone, key=lambda page: Draw(SEED, "row", page.number).bits()))


def _text(page: Page) -> str:
    if page.edit == "empty":
        return ""
    text = article(Draw(SEED, "text", page.text_seed), page.words)
    if page.edit in _EDITS:
        return _EDITS[page.edit](text)
    return f"{text}\n\nRevision note: {page.edit}." if page.edit else text


def _row(page: Page) -> dict[str, Any]:
    ident = xxhash.xxh3_128_hexdigest(f"sample {page.number}".encode(), SEED)
    uuid = "-".join((ident[:8], ident[8:12], ident[12:16], ident[16:20], ident[20:]))
    year, week = int(page.dump[8:12]), int(page.dump[13:])
    month, day = min(12, 1 + week * 7 // 31), 1 + page.number % 28
    return {
        "text": _text(page),
        "id": f"<urn:uuid:{uuid}>",
        "dump": page.dump,
        "url": page.url,
        "date": f"{year}-{month:02d}-{day:02d}T{page.number % 24:02d}:00:00Z",
    }


def sample_table() -> pa.Table:
    return pa.Table.from_pylist([_row(page) for page in pages()], schema=SCHEMA)


def write(path: Path) -> None:
    """Ids as 16 bytes: as text they would be a sixth of the file."""
    table = sample_table()
    ids = [uuid.UUID(name[10:-1]).bytes for name in table["id"].to_pylist()]
    table = table.set_column(1, "id", pa.array(ids, pa.binary(16)))
    how: Any = {"compression": "brotli", "compression_level": 11, "data_page_size": 1 << 26}
    pq.write_table(table, path, use_dictionary=["dump", "date"], write_statistics=False, **how)


if __name__ == "__main__":
    write(Path(__file__).parents[1] / "pipeline" / "fineweb" / "sample.parquet")
