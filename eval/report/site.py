"""The report: one static site of everything that a folder of datasets and results holds.

- What does not exist, such as a folder without a lock, is shown as "not built yet" with the command
  for it; a damaged one is an error.
- Results and measurements that come with the project are shown too, unless the folder has a run of
  the same name.
- Every page holds its style and script; it needs no server, no network and no other file.
- No clock, host, path or order of a set reaches a page: equal inputs give equal bytes. Timings,
  hosts and dates stay in each dataset's run.json.
- Only pages that an earlier report wrote are ever removed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tangobench import __version__
from tangobench.catalogue import CATALOGUE, TEST_SETS, title_of
from tangobench.errors import InputError, TangobenchError, printable
from tangobench.eval.costs.speed import read_speed
from tangobench.eval.render import Table, tabled
from tangobench.eval.report.charts import NARROW, WIDE, around, c, joined, short
from tangobench.eval.report.datasets import dataset_context, totals
from tangobench.eval.report.pages import models_context, results_context
from tangobench.eval.scoring.result_files import read_results, shipped_results
from tangobench.pipeline import api
from tangobench.pipeline.core.cards import flatten
from tangobench.pipeline.core.files import read_untrusted, write_atomic
from tangobench.pipeline.core.hashing import digest
from tangobench.pipeline.core.lock import LOCK_NAME, Lock, committed_lock
from tangobench.pipeline.core.spec import PROFILES, as_dict, manifest_file
from tangobench.pipeline.reading import Dataset, open_dataset

_GENERATOR: Final = b'<meta name="generator" content="tangobench report">'
_TABS: Final = ("Overview", "Models", "Results", "Look inside", "Provenance")
# Code hash to the first commit whose sources give it, for runs made before commits were recorded.
_COMMITS: Final = {
    "805bb6fc42f8": "df73ded3798eb2885944b6f59424b246679bd25c",
    "3091c83a2960": "58fe4d3a25b605e26061e96ed566c1907435bc44",
}
# Commits of shipped runs that were rewritten before they were merged: no commit has their code.
_REWRITTEN: Final = ("2c5db40d5661", "245fb604137c")


def _order(lock: Lock) -> tuple[int, str, int, str]:
    names, profiles = [*CATALOGUE, lock.name], [*PROFILES, lock.profile]
    return names.index(lock.name), lock.name, profiles.index(lock.profile), lock.profile


def _speed(path: Path) -> dict[str, Any]:
    try:
        return read_speed(path) if path.is_file() else {}
    except ValueError as error:
        why = f"{path} holds no measurements: {error}"
        fix = f"measure again: tangobench model speed --save {path}"
        raise InputError(why, kind="speed-unreadable", fix=fix) from None


def page_of(lock: Lock) -> str:
    return f"{lock.name}-{lock.profile}.html"


def build_command(name: str, profile: str = "sample") -> str:
    return f"tangobench build {name}" + ("" if profile == "sample" else f" --profile {profile}")


def committed_state(lock: Lock) -> str:
    """Whether the project ships a lock for this profile, and whether the roots agree."""
    committed = committed_lock(lock.name, lock.profile)
    if committed is None:
        return "absent"
    ours, theirs = ((x.root, x.content_root) for x in (lock, committed))
    return "equal" if ours == theirs else "different"


def _environment(nav: Sequence[tuple[str, str, str]]) -> Any:
    """The templates, with what all pages share, such as the links (key, label, address)."""
    import jinja2

    jinja = jinja2.Environment(
        loader=jinja2.PackageLoader("tangobench.eval.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"number": _number, "short": short, "lowest": _lowest}
    jinja.filters |= {"c": c, "joined": joined}
    jinja.globals |= {"nav": nav, "version": __version__, "around": around}
    jinja.globals["widths"] = (WIDE, NARROW)
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
    opened = (open_dataset(path.parent) for path in sorted(out.glob(f"*/{LOCK_NAME}")))
    datasets = sorted(opened, key=lambda dataset: _order(dataset.lock))
    names = dict.fromkeys([*CATALOGUE, *(dataset.lock.name for dataset in datasets)])
    cards = [_card(name, [d for d in datasets if d.lock.name == name]) for name in names]
    runs = read_results([out / "results", shipped_results()])
    own = {run["run"] for run in read_results([out / "results"])}
    shipped = frozenset(run["run"] for run in runs if run["run"] not in own)
    project = manifest_file("").parent / "bench" / "results" / "speed.json"
    results = results_context(runs, shipped)
    models = models_context(own=_speed(out / "speed.json"), shipped=_speed(project))
    contexts = {
        "Overview": {"cards": cards, "results": results, "models": models},
        "Models": models,
        "Results": results,
        "Provenance": {**provenance_context(datasets, runs, shipped), "groups": results["groups"]},
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
            about["state"] = committed_state(dataset.lock)
            yield page_of(dataset.lock), render("dataset", card["name"], title, about)
        if not profiles:
            yield card["href"], render("missing", card["name"], card["title"], {"card": card})


def _card(name: str, built: list[Dataset]) -> dict[str, Any]:
    """A dataset: its largest profile, or the command that builds it."""
    known = (CATALOGUE | TEST_SETS).get(name)
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


def provenance_context(
    datasets: Sequence[Dataset], runs: Sequence[dict[str, Any]], shipped: frozenset[str]
) -> dict[str, Any]:
    return {
        "datasets": [_provenance(dataset.lock) for dataset in datasets],
        "runs": _runs([run for run in runs if run["run"] not in shipped]),
        "shipped_runs": _runs([run for run in runs if run["run"] in shipped]),
    }


def _provenance(lock: Lock) -> dict[str, Any]:
    state = committed_state(lock)
    against = " --against committed" if state != "absent" else ""
    pins = {
        "Effective spec": lock.spec,
        "Source identity": lock.data["source"],
        "Tokenizer": lock.data["tokenizer"] or {},
        "Versions at build time (not part of the root)": lock.data["environment"],
    }
    return {
        "title": title_of(lock.name),
        "lock": lock,
        "href": page_of(lock),
        "state": state,
        "own_spec": not follows_profile(lock),
        "pins": {label: flatten(values) for label, values in pins.items()},
        "commands": [
            build_command(lock.name, lock.profile),
            f"tangobench verify out/{lock.name}-{lock.profile}{against}",
        ],
    }


def follows_profile(lock: Lock) -> bool:
    """Whether the spec is the project's own for this profile: the command alone rebuilds it."""
    try:
        spec = api.Request(name=lock.name, profile=lock.profile).spec()
    except TangobenchError:
        return False
    return bool(digest(as_dict(spec)) == lock.data["spec_sha256"])


def _runs(results: list[dict[str, Any]]) -> Table | None:
    """What every scored run was trained on, what it became and which code made it."""

    def lock(data: dict[str, Any]) -> str:
        committed = committed_lock(data["name"], data.get("profile", ""))
        if committed is None or committed.root != data["root"]:
            return "not committed"
        return f"{data['name']}.{data['profile']}"

    cells: dict[str, Callable[[dict[str, Any]], str]] = {
        "Run": lambda run: run["run"],
        "Steps": lambda run: f"{run['step']:,}",
        "Data root": lambda run: f"{run['data']['root'][:12]}…",
        "Committed lock": lambda run: lock(run["data"]),
        "Checkpoint": lambda run: f"{run['checkpoint_sha256'][:12]}…",
        "Code": lambda run: f"{run['trained_with']['code_sha256'][:12]}…",
        "Commit": lambda run: commit_of(run["trained_with"]),
    }
    return tabled("", results, cells) if results else None


def commit_of(made_with: dict[str, Any]) -> str:
    """The commit that a run recorded, or the first one in this history with the same code."""
    found = made_with.get("commit") or _COMMITS.get(made_with["code_sha256"][:12])
    if found is None:
        return "–"
    mark = "+" if str(found).endswith("+") else "*" if str(found)[:12] in _REWRITTEN else ""
    return str(found)[:12] + mark
