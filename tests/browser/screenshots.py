"""Pictures of the report for README and docs: `make screenshots`.

- Shipped results are photographed from the report of an empty folder, so that they do not depend on
  OUT; the others from the report of OUT, which needs the samples and two runs (`make reproduce`).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from chromium import Browser

from tangobench.eval.report.site import write_report

# name, site, page, element to bring near the top, width, height, dark
SHOTS = (
    ("standings", "none", "index", "#dm_math-mini-4-b4d0b16f .standings", 1180, 532, False),
    ("rows", "out", "lean-*", ".tokens", 1180, 760, False),
    ("look", "out", "look", ".look", 1180, 900, False),
    ("models", "out", "models", "figure", 1180, 700, True),
)
LOOK = ("sample-dm_math-tango-s17-101", "sample-dm_math-wango-s17-101")


def main(out: Path, images: Path) -> None:
    """Write the report of OUT to a temporary folder and photograph it."""
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        write_report(out, Path(folder) / "out", LOOK)
        write_report(Path(folder) / "nothing", Path(folder) / "none")
        for name, site, file, place, width, height, dark in SHOTS:
            address = next((Path(folder) / site).glob(f"{file}.html")).as_uri()
            page = browser.open(address, width=width, height=height, dark=dark)
            top = page.run(f"document.querySelector('{place}').getBoundingClientRect().top")
            page.run(f"scrollTo({{top: {top} - 78, behavior: 'instant'}})")
            page.run("document.querySelectorAll('.look .tokens i')[12]?.click()")
            # The end of a long row: that is where its target is.
            page.run("document.querySelectorAll('.tokens').forEach(t => t.scrollTop = 1e6)")
            page.screenshot(images / f"report-{name}.png")
            page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
