"""The report: one static site of everything that a folder of datasets and results holds.

- Works with whatever exists; what does not is shown as "not built yet" with the command for it.
- No server and no network: every page opens from disk.
- The same inputs give the same bytes; nothing of the clock, the host or a path is written.

Usage: `write_report(Path("out"), Path("out/report"))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tangobench.catalogue import CATALOGUE, title_of
from tangobench.eval.report.datasets import dataset_context
from tangobench.eval.report.gather import Found, committed_state, gather, page_of
from tangobench.eval.report.models import models_context
from tangobench.eval.report.pages import NavItem, Site
from tangobench.eval.report.provenance import provenance_context
from tangobench.eval.report.results import results_context
from tangobench.eval.report.speed import speed_context


def write_report(out: Path, site: Path, look: Sequence[str] = ()) -> Path:
    """Write the site for everything in `out` and return its first page.

    `look` names one or two finished runs that a page of its own looks inside.
    """
    found = gather(out)
    pages = Site(site, _nav(found, look=bool(look)))
    for dataset in found.datasets:
        name = dataset.lock.name
        pages.page(
            page_of(dataset.lock),
            "dataset.html.j2",
            title=f"{title_of(name)} ({dataset.lock.profile})",
            current=name,
            blurb=_about(name),
            sample=_sample_note(name) if dataset.lock.profile == "sample" else "",
            profiles=_profiles(found, name),
            **dataset_context(dataset),
        )
    for name in CATALOGUE:
        if not found.of(name):
            _missing(pages, name)
    models = models_context(found)
    results = results_context(found)
    pages.page(
        "index.html",
        "overview.html.j2",
        title="Overview",
        current="overview",
        cards=_cards(found),
        models=models,
        results=results,
    )
    pages.page("models.html", "models.html.j2", title="Models", current="models", **models)
    pages.page("results.html", "results.html.j2", title="Results", current="results", **results)
    pages.page(
        "speed.html", "speed.html.j2", title="Speed", current="speed", **speed_context(found)
    )
    pages.page(
        "provenance.html",
        "provenance.html.j2",
        title="Provenance",
        current="provenance",
        **provenance_context(found),
    )
    if look:
        from tangobench.eval.report.look import look_context

        context = look_context(out, look)
        pages.page("look.html", "look.html.j2", title="Look inside", current="look", **context)
    pages.write()
    return site / "index.html"


def _about(name: str) -> str:
    return CATALOGUE[name].about if name in CATALOGUE else ""


def _sample_note(name: str) -> str:
    return CATALOGUE[name].sample if name in CATALOGUE else ""


def build_command(name: str, profile: str = "sample") -> str:
    """The command that builds a dataset."""
    return f"tangobench build {name}" + ("" if profile == "sample" else f" --profile {profile}")


def _nav(found: Found, *, look: bool) -> list[NavItem]:
    names = [*CATALOGUE, *dict.fromkeys(d.lock.name for d in found.datasets)]
    items = [NavItem("overview", "Overview", "index.html")]
    for name in dict.fromkeys(names):
        built = found.of(name)
        href = page_of(built[-1].lock) if built else f"{name}.html"
        items.append(NavItem(name, CATALOGUE[name].label if name in CATALOGUE else name, href))
    return [
        *items,
        NavItem("models", "Models", "models.html"),
        NavItem("results", "Results", "results.html"),
        *([NavItem("look", "Look inside", "look.html")] if look else []),
        NavItem("speed", "Speed", "speed.html"),
        NavItem("provenance", "Provenance", "provenance.html"),
    ]


def _profiles(found: Found, name: str) -> list[dict[str, str]]:
    return [{"profile": d.lock.profile, "href": page_of(d.lock)} for d in found.of(name)]


def _missing(pages: Site, name: str) -> None:
    pages.page(
        f"{name}.html",
        "missing.html.j2",
        title=title_of(name),
        current=name,
        heading=title_of(name),
        blurb=_about(name),
        command=build_command(name),
    )


def _cards(found: Found) -> list[dict[str, Any]]:
    cards = []
    names = [*CATALOGUE, *dict.fromkeys(d.lock.name for d in found.datasets)]
    for name in dict.fromkeys(names):
        built = found.of(name)
        card: dict[str, Any] = {
            "title": title_of(name),
            "blurb": _about(name),
            "command": build_command(name),
            "built": bool(built),
        }
        if built:
            lock = built[-1].lock
            card |= {
                "href": page_of(lock),
                "profile": lock.profile,
                "root": lock.root,
                "state": committed_state(lock),
                "rows": sum(shard["rows"] for shard in lock.shards),
                "tokens": sum(shard["tokens"] for shard in lock.shards),
            }
        cards.append(card)
    return cards
