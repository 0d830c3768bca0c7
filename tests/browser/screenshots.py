"""Pictures of the report for the README: `python tests/browser/screenshots.py OUT docs/images`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import Browser

from tangobench.eval.report.site import write_report

# name, page, element to bring near the top, width, height, dark
SHOTS = (
    ("overview", "index", "h1", 1180, 880, False),
    ("rows", "lean-*", ".tokens", 1180, 760, False),
    ("models", "models", "figure", 1180, 700, True),
    ("phone", "dm_math-*", "h1", 390, 844, True),
)


def main(out: Path, images: Path) -> None:
    """Write the report of OUT to a temporary folder and photograph it."""
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        site = write_report(out, Path(folder)).parent
        for name, file, place, width, height, dark in SHOTS:
            page = browser.open(
                next(site.glob(f"{file}.html")).as_uri(), width=width, height=height, dark=dark
            )
            top = page.run(f"document.querySelector('{place}').getBoundingClientRect().top")
            page.run(f"scrollTo({{top: {top} - 190, behavior: 'instant'}})")
            # The end of a long row: that is where its target is.
            page.run("document.querySelectorAll('.tokens').forEach(t => t.scrollTop = 1e6)")
            page.screenshot(images / f"report-{name}.png")
            page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
