"""The embedded FineWeb-Edu sample: invented school texts with every hard case of dedup planted.

- Document n is a pure function of (seed, n): any range can be made alone, on any machine.
- The text has facts and forms that recur (a river keeps its source and length wherever it is
  named), so that a small model has something to learn. Every sentence is original.
- Planted: exact copies, URL variants of one page, chains that only transitive linking resolves,
  near misses that must stay apart, unusable URLs, empty texts, documents beyond 8,192 tokens.

Usage: `table = sample_table(0, DOCUMENTS)` has FineWeb-Edu's columns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import xxhash

from tangobench.pipeline.fineweb.sample_prose import Draw, article

VERSION: Final = 1
SEED: Final = 20231
ORDINARY: Final = 4000
BLOCK: Final = 640  # documents per unit

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

SCHEMA: Final = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("dump", pa.string()),
        ("url", pa.string()),
        ("date", pa.string()),
        ("file_path", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("token_count", pa.int64()),
        ("score", pa.float64()),
        ("int_score", pa.int64()),
    ]
)


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
_EDITS: Final = ("nfd", "space", "case", "newline")


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
        if kind == 0:  # exact copy elsewhere
            pages.append(_recrawl(number, base, draw, url=fresh))
        elif kind == 1:  # the same page again, unchanged
            variant = _VARIANTS[plant // 8 % len(_VARIANTS)]
            pages.append(_recrawl(number, base, draw, url=variant(base.url or "")))
        elif kind in (2, 3):  # the same page again, its text revised
            variant = _VARIANTS[plant // 8 % len(_VARIANTS)]
            url = variant(base.url or "")
            pages.append(_recrawl(number, base, draw, url=url, edit=f"revised {plant}"))
        elif kind == 4:  # a page that only looks the same
            url = _MISSES[plant // 8 % len(_MISSES)](base.url or "")
            pages.append(_recrawl(number, base, draw, url=url, text_seed=number))
        elif kind == 5:  # a text that only looks the same
            edit = _EDITS[plant // 8 % len(_EDITS)]
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
    dump = VALIDATION_DUMP if case >= 4 else TRAIN_DUMPS[-1]
    page = Page(number, dump, fresh, number)
    if case == 0:
        return replace(page, url=None)
    if case == 1:
        return replace(page, url="not a url")
    if case == 2:
        return replace(page, edit="empty")
    if case == 3:
        return replace(page, words=9000)
    return replace(page, words=7600 + 1300 * (plant // 80 % 9))


@lru_cache(maxsize=1)
def pages() -> tuple[Page, ...]:
    """All documents in row order: plants lie scattered among the others."""
    everyone = [_plain(number) for number in range(ORDINARY)] + _planted(560)
    return tuple(sorted(everyone, key=lambda page: Draw(SEED, "row", page.number).bits()))


def count() -> int:
    """How many documents there are."""
    return len(pages())


def _text(page: Page) -> str:
    if page.edit == "empty":
        return ""
    text = article(Draw(SEED, "text", page.text_seed), page.words)
    if page.edit == "nfd":
        return unicodedata.normalize("NFD", text)
    if page.edit == "space":
        return text + " "
    if page.edit == "case":
        return text.upper()
    if page.edit == "newline":
        return text.replace("\n", "\r\n")
    return f"{text}\n\nRevision note: {page.edit}." if page.edit else text


def _row(page: Page) -> dict[str, Any]:
    ident = xxhash.xxh3_128_hexdigest(f"sample {page.number}".encode(), SEED)
    uuid = "-".join((ident[:8], ident[8:12], ident[12:16], ident[16:20], ident[20:]))
    year, week = int(page.dump[8:12]), int(page.dump[13:])
    month, day = min(12, 1 + week * 7 // 31), 1 + page.number % 28
    draw = Draw(SEED, "score", page.number)
    text = _text(page)
    score = 2.5 + draw.below(2000) / 1000
    return {
        "text": text,
        "id": f"<urn:uuid:{uuid}>",
        "dump": page.dump,
        "url": page.url,
        "date": f"{year}-{month:02d}-{day:02d}T{page.number % 24:02d}:00:00Z",
        "file_path": f"sample/{page.dump}/{page.number // 1000:05d}.warc.gz",
        "language": "en",
        "language_score": 0.9 + draw.below(100) / 1000,
        "token_count": len(text) // 5,
        "score": score,
        "int_score": round(score),
    }


def sample_table(start: int, stop: int) -> pa.Table:
    """Documents start..stop-1 with FineWeb-Edu's columns."""
    return pa.Table.from_pylist([_row(page) for page in pages()[start:stop]], schema=SCHEMA)
