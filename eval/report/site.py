"""The report: one static site of everything that a folder of datasets and results holds.

- What does not exist is shown as "not built yet" with the command for it.
- Every page holds its style and script; it needs no server, no network and no other file.
- No clock, host, path or order of a set reaches a page: equal inputs give equal bytes.
- Only pages that an earlier report wrote are ever removed.
"""

from __future__ import annotations

import contextlib
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from markupsafe import Markup

from tangobench import __version__
from tangobench.catalogue import CATALOGUE, title_of
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
from tangobench.eval.report.models import models_context, speed_context
from tangobench.eval.report.results import results_context
from tangobench.pipeline.core.files import read_untrusted, write_atomic

_GENERATOR: Final = b'<meta name="generator" content="tangobench report">'
# Two arcs passing a gate between them: the cross-token update, as small as an icon can say it.
_MARK: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke-width="2.6" '
    'stroke-linecap="round" aria-hidden="true"><path stroke="{blue}" d="M3 15a6 6 0 0 1 12 0"/>'
    '<path stroke="{red}" d="M21 9a6 6 0 0 1-12 0"/></svg>'
)


class NavItem(NamedTuple):
    """A link in the header."""

    key: str
    label: str
    href: str


class Site:
    """Writes pages that share a header, a style and a script."""

    def __init__(self, folder: Path, nav: list[NavItem]) -> None:
        import jinja2

        templates = Path(str(importlib.resources.files("tangobench.eval.report"))) / "templates"
        self._folder = folder
        self._jinja = jinja2.Environment(
            loader=jinja2.FileSystemLoader(templates),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.filters |= {"number": _number, "short": short}
        files = {"style": "style.css", "script": "site.js", "look": "look.js"}
        self._jinja.globals |= {
            "nav": nav,
            "version": __version__,
            **{k: Markup((templates / file).read_text("utf-8")) for k, file in files.items()},
            "mark": Markup(_MARK.format(blue="var(--tango)", red="var(--wango)")),
            "icon": quote(_MARK.format(blue="#0a5fa8", red="#c2440c")),
        }
        self._pages: dict[str, bytes] = {}

    def page(self, file: str, template: str, title: str, current: str, **context: Any) -> None:
        """Render a page; nothing is written before `write`."""
        page = self._jinja.get_template(f"{template}.html.j2")
        self._pages[file] = page.render(title=title, current=current, **context).encode()

    def write(self) -> None:
        """Put every page in place and remove those that an earlier report left."""
        for name, data in self._pages.items():
            write_atomic(self._folder / name, data)
        for path in sorted(self._folder.glob("*.html")):
            if path.name not in self._pages and _is_ours(path):
                path.unlink()


def _number(value: float) -> str:
    """A count with separators, a fraction with at most four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _is_ours(path: Path) -> bool:
    """Whether an earlier report wrote a page."""
    with contextlib.suppress(OSError):
        return _GENERATOR in read_untrusted(path)[:1000]
    return False


def write_report(out: Path, site: Path, look: Sequence[str] = ()) -> Path:
    """Write the site for everything in `out` and return its first page.

    `look` names one or two finished runs that a page of its own looks inside.
    """
    found = gather(out)
    nav = _nav(found, look=bool(look))
    pages = Site(site, nav)
    for name in _names(found):
        _dataset_pages(pages, name, found)
    contexts: dict[str, dict[str, Any]] = {
        "models": models_context(found),
        "results": results_context(found),
        "speed": speed_context(found),
        "provenance": provenance_context(found),
    }
    if look:
        from tangobench.eval.report.look import look_context  # with torch

        contexts["look"] = look_context(out, look)
    contexts["overview"] = {
        "cards": [_card(found, name) for name in _names(found)],
        **{name: contexts[name] for name in ("models", "results")},
    }
    for item in nav:
        if item.key in contexts:
            pages.page(item.href, item.key, item.label, item.key, **contexts[item.key])
    pages.write()
    return site / "index.html"


def _names(found: Found) -> list[str]:
    """Every dataset of the catalogue, then those of the folder that are not in it."""
    return list(dict.fromkeys([*CATALOGUE, *(d.lock.name for d in found.datasets)]))


def _nav(found: Found, *, look: bool) -> list[NavItem]:
    items = [NavItem("overview", "Overview", "index.html")]
    for name in _names(found):
        built = found.of(name)
        href = page_of(built[-1].lock) if built else f"{name}.html"
        items.append(NavItem(name, CATALOGUE[name].label if name in CATALOGUE else name, href))
    others = ("Models", "Results", *(("Look inside",) if look else ()), "Speed", "Provenance")
    keys = {label: label.split()[0].lower() for label in others}
    return [*items, *(NavItem(key, label, f"{key}.html") for label, key in keys.items())]


def _dataset_pages(pages: Site, name: str, found: Found) -> None:
    """A page for each built profile of a dataset, or one that says how to build it."""
    title, about = title_of(name), CATALOGUE[name].about if name in CATALOGUE else ""
    profiles = [{"profile": d.lock.profile, "href": page_of(d.lock)} for d in found.of(name)]
    for dataset in found.of(name):
        profile, sample = dataset.lock.profile, CATALOGUE[name].sample if name in CATALOGUE else ""
        pages.page(
            page_of(dataset.lock),
            "dataset",
            f"{title} ({profile})",
            name,
            blurb=about,
            sample=sample if profile == "sample" else "",
            profiles=profiles,
            **dataset_context(dataset),
        )
    if not profiles:
        words = {"heading": title, "blurb": about, "command": build_command(name)}
        pages.page(f"{name}.html", "missing", title, name, **words)


def _card(found: Found, name: str) -> dict[str, Any]:
    """A dataset on the overview: its largest profile, or the command that builds it."""
    built = found.of(name)
    card: dict[str, Any] = {
        "title": title_of(name),
        "blurb": CATALOGUE[name].about if name in CATALOGUE else "",
        "command": build_command(name),
        "built": bool(built),
    }
    if built:
        lock = built[-1].lock
        card |= {"href": page_of(lock), "lock": lock, "state": committed_state(lock)}
        card |= totals(lock.shards)
    return card
