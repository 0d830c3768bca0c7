"""The report: one static site of everything that a folder of datasets and results holds.

- What does not exist is shown as "not built yet" with the command for it.
- Every page holds its style and script; it needs no server, no network and no other file.
- No clock, host, path or order of a set reaches a page: equal inputs give equal bytes.
- Only pages that an earlier report wrote are ever removed.
"""

from __future__ import annotations

import contextlib
import importlib.resources
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from tangobench import __version__
from tangobench.catalogue import CATALOGUE, TEST_SETS, title_of
from tangobench.errors import printable
from tangobench.eval.render import Table
from tangobench.eval.report.datasets import dataset_context, totals
from tangobench.eval.report.drawing import short
from tangobench.eval.report.gather import (
    Found,
    build_command,
    committed_state,
    gather,
    page_of,
    provenance_context,
)
from tangobench.eval.report.models import models_context
from tangobench.eval.report.results import results_context
from tangobench.pipeline.core.files import read_untrusted, write_atomic

_GENERATOR: Final = b'<meta name="generator" content="tangobench report">'
# Two arcs passing a gate between them: the cross-token update, as small as an icon can say it.
_MARK: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke-width="2.6" '
    'stroke-linecap="round" aria-hidden="true"><path stroke="{blue}" d="M3 15a6 6 0 0 1 12 0"/>'
    '<path stroke="{red}" d="M21 9a6 6 0 0 1-12 0"/></svg>'
)


_TABS: Final = ("Overview", "Models", "Results", "Look inside", "Provenance")


def _environment(nav: Sequence[tuple[str, str, str]]) -> Any:
    """The templates, with what all pages share: links (key, label, address), style and scripts."""
    import jinja2

    templates = Path(str(importlib.resources.files("tangobench.eval.report"))) / "templates"
    jinja = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"number": _number, "short": short, "lowest": _lowest}
    files = {"style": "style.css", "script": "site.js", "look_script": "look.js"}
    jinja.globals |= {
        "nav": nav,
        "version": __version__,
        **{k: Markup((templates / file).read_text("utf-8")) for k, file in files.items()},
        "mark": Markup(_MARK.format(blue="var(--tango)", red="var(--wango)")),
        "icon": quote(_MARK.format(blue="#0a5fa8", red="#c2440c")),
    }
    return jinja


def _render(jinja: Any, template: str, current: str, title: str, context: dict[str, Any]) -> str:
    shown = jinja.get_template(f"{template}.html.j2")
    return str(shown.render(context, current=current, title=title))


def _number(value: float) -> str:
    """A count with separators, a fraction with at most four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _lowest(table: Table) -> list[set[str]]:
    """For each column, the cells whose leading number is the column's minimum."""
    found: list[set[str]] = []
    for column in zip(*table.rows, strict=True):
        numbers = {cell: float(m[0]) for cell in column if (m := re.match(r"[\d.]+", cell))}
        found.append({cell for cell, n in numbers.items() if n == min(numbers.values())})
    return found


def _is_ours(path: Path) -> bool:
    """Whether an earlier report wrote a page."""
    with contextlib.suppress(OSError):
        return _GENERATOR in read_untrusted(path)[:1000]
    return False


def write_report(out: Path, site: Path, look: Sequence[str] = ()) -> Path:
    """Write the site for everything in `out` and return its first page.

    `look` names one or two finished runs that a page of its own looks inside.
    """
    pages = dict(_pages(out, look))  # nothing is written before all are rendered
    for name, text in pages.items():
        write_atomic(site / name, printable(text, keep="\n\t").encode())
    for path in sorted(site.glob("*.html")):
        if path.name not in pages and _is_ours(path):
            path.unlink()
    return site / "index.html"


def _pages(out: Path, look: Sequence[str]) -> Iterator[tuple[str, str]]:
    """File names and texts of all pages."""
    found = gather(out)
    names = list(dict.fromkeys([*CATALOGUE, *(d.lock.name for d in found.datasets)]))
    cards = [_card(found, name) for name in names]
    results, models = results_context(found), models_context(found)
    contexts = {
        "Overview": {"cards": cards, "results": results, "models": models},
        "Models": models,
        "Results": results,
        "Provenance": {**provenance_context(found), "groups": results["groups"]},
    }
    if look:
        from tangobench.eval.report.look import look_context  # with torch

        contexts["Look inside"] = look_context(out, look)
    first, *others = [label for label in _TABS if label in contexts]
    nav = [("overview", first, "index.html")]
    nav += [(card["name"], card["label"], card["href"]) for card in cards]
    nav += [(key := label.split()[0].lower(), label, f"{key}.html") for label in others]
    render = partial(_render, _environment(nav))
    for key, label, file in nav:
        if label in contexts:
            yield file, render(key, key, label, contexts[label])
    for card in cards:
        profiles = [(d.lock.profile, page_of(d.lock)) for d in card["built"]]
        for dataset in card["built"]:
            title = f"{card['title']} ({dataset.lock.profile})"
            about = dataset_context(dataset) | {"card": card, "profiles": profiles}
            yield page_of(dataset.lock), render("dataset", card["name"], title, about)
        if not profiles:
            yield card["href"], render("missing", card["name"], card["title"], {"card": card})


def _card(found: Found, name: str) -> dict[str, Any]:
    """A dataset: its largest profile, or the command that builds it."""
    known, built = (CATALOGUE | TEST_SETS).get(name), found.of(name)
    lock = built[-1].lock if built else None
    card = {
        "name": name,
        "label": known.label if known else name,
        "title": title_of(name),
        "blurb": known.about if known else "",
        "sample": known.sample if known else "",
        "href": page_of(lock) if lock else f"{name}.html",
        "command": build_command(name),
        "built": built,
        "lock": lock,
    }
    return card | ({"state": committed_state(lock), **totals(lock.shards)} if lock else {})
