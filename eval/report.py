"""The report: one static site of everything that a folder of datasets and results holds.

- Works with whatever exists; what does not is shown as "not built yet" with the command for it.
- No server and no network: every page opens from disk.
- The same inputs give the same bytes; nothing of the clock, the host or a path is written.

Usage: `write_report(Path("out"), Path("out/report"))`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from tangobench.eval.report_datasets import dataset_context
from tangobench.eval.report_gather import TITLES, Found, committed_state, gather, page_of, title_of
from tangobench.eval.report_models import models_context
from tangobench.eval.report_provenance import provenance_context
from tangobench.eval.report_results import results_context
from tangobench.eval.report_site import NavItem, Site
from tangobench.eval.report_speed import speed_context

BLURBS: Final = {
    "fineweb": "Educational web text, split by the date of the crawl and not by chance: later "
    "documents are validation, and none of them was seen in training under any address.",
    "lean": "Every source file of Mathlib at one commit, and every proof in it as a prompt with "
    "a completion.",
    "dm_math": "Generated school mathematics in 56 modules at three levels. The question's own "
    "hash decides its split, so no validation question can occur in training.",
}
# A sample has the shape of the real thing and must not be taken for it.
SAMPLES: Final = {
    "fineweb": "This sample is made of invented texts that come with tangobench.",
    "lean": "This sample is a small Lean library that comes with tangobench, not Mathlib.",
    "dm_math": "This sample has few examples of each combination; the generator is the real one.",
}
_NAV_LABELS: Final = {"fineweb": "FineWeb-Edu", "lean": "Lean", "dm_math": "DM Math"}


def write_report(out: Path, site: Path) -> Path:
    """Write the site for everything in `out` and return its first page."""
    found = gather(out)
    pages = Site(site, _nav(found))
    for dataset in found.datasets:
        name = dataset.lock.name
        pages.page(
            page_of(dataset.lock),
            "dataset.html.j2",
            title=f"{title_of(name)} ({dataset.lock.profile})",
            current=name,
            blurb=BLURBS.get(name, ""),
            sample=SAMPLES.get(name, "") if dataset.lock.profile == "sample" else "",
            profiles=_profiles(found, name),
            **dataset_context(dataset),
        )
    for name in TITLES:
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
    pages.write()
    return site / "index.html"


def build_command(name: str, profile: str = "sample") -> str:
    """The command that builds a dataset."""
    return f"tangobench build {name}" + ("" if profile == "sample" else f" --profile {profile}")


def _nav(found: Found) -> list[NavItem]:
    names = [*TITLES, *dict.fromkeys(d.lock.name for d in found.datasets)]
    items = [NavItem("overview", "Overview", "index.html")]
    for name in dict.fromkeys(names):
        built = found.of(name)
        href = page_of(built[-1].lock) if built else f"{name}.html"
        items.append(NavItem(name, _NAV_LABELS.get(name, name), href))
    return [
        *items,
        NavItem("models", "Models", "models.html"),
        NavItem("results", "Results", "results.html"),
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
        blurb=BLURBS[name],
        command=build_command(name),
    )


def _cards(found: Found) -> list[dict[str, Any]]:
    cards = []
    names = [*TITLES, *dict.fromkeys(d.lock.name for d in found.datasets)]
    for name in dict.fromkeys(names):
        built = found.of(name)
        card: dict[str, Any] = {
            "title": title_of(name),
            "blurb": BLURBS.get(name, ""),
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
