"""The site's files: templates in, self-contained HTML pages out.

- Every page holds its style and script; it needs no server, no network and no other file.
- No clock, host, path or order of a set reaches a page: equal inputs give equal bytes.
- Only pages that an earlier report wrote are ever removed.

Usage: `site = Site(Path("out/report"), nav); site.page("index.html", "overview.html.j2", …)`.
"""

from __future__ import annotations

import contextlib
import importlib.resources
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from markupsafe import Markup

from tangobench import __version__
from tangobench.eval.report.charts_scale import short
from tangobench.pipeline.core.files import read_untrusted, write_atomic

_GENERATOR: Final = b'<meta name="generator" content="tangobench report">'
# Two arcs passing a gate between them: the cross-token update, as small as an icon can say it.
_MARK: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke-width="2.6" '
    'stroke-linecap="round" aria-hidden="true"><path stroke="{blue}" d="M3 15a6 6 0 0 1 12 0"/>'
    '<path stroke="{red}" d="M21 9a6 6 0 0 1-12 0"/></svg>'
)


@dataclass(frozen=True, slots=True)
class NavItem:
    """A link in the header."""

    key: str
    label: str
    href: str


def number(value: float) -> str:
    """A count with separators, a fraction with at most four digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


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
        self._jinja.filters |= {"number": number, "short": short}
        self._jinja.globals |= {
            "nav": nav,
            "version": __version__,
            "style": Markup((templates / "style.css").read_text(encoding="utf-8")),
            "script": Markup((templates / "site.js").read_text(encoding="utf-8")),
            "look": Markup((templates / "look.js").read_text(encoding="utf-8")),
            "mark": Markup(_MARK.format(blue="var(--tango)", red="var(--wango)")),
            "icon": quote(_MARK.format(blue="#0a5fa8", red="#c2440c")),
        }
        self._pages: dict[str, bytes] = {}

    def page(self, file: str, template: str, **context: Any) -> None:
        """Render a page; nothing is written before `write`."""
        self._pages[file] = self._jinja.get_template(template).render(context).encode()

    def write(self) -> None:
        """Put every page in place and remove those that an earlier report left."""
        for name, data in self._pages.items():
            write_atomic(self._folder / name, data)
        for path in sorted(self._folder.glob("*.html")):
            if path.name not in self._pages and _is_ours(path):
                path.unlink()


def _is_ours(path: Path) -> bool:
    """Whether an earlier report wrote a page."""
    with contextlib.suppress(OSError):
        return _GENERATOR in read_untrusted(path)[:1000]
    return False
