"""The table of docs/guarantees.md from what libFuzzer itself said at the end of each run.

A log is `TARGET.log` in a folder; a run that ended with a finding has no row.

Usage: `python tests/support/fuzz_table.py build/fuzz docs/guarantees.md`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

BEGIN, END = "<!-- table of the fuzzers -->", "<!-- end of the fuzzers -->"
CASES = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
REACHED = re.compile(r"^#\d+\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/", re.MULTILINE)


def table(folder: Path) -> str:
    """The Markdown table of the logs in a folder."""
    lines = ["| target | cases | branches reached | features | inputs |", "|---|---|---|---|---|"]
    for path in sorted(folder.glob("*.log")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if (cases := CASES.findall(text)) and "ERROR: libFuzzer" not in text:
            numbers = (cases[-1], *REACHED.findall(text)[-1])
            lines.append(f"| {path.stem} | {' | '.join(f'{int(n):,}' for n in numbers)} |")
    return "\n".join(lines)


def main() -> None:
    logs, page = map(Path, sys.argv[1:])
    text = page.read_text(encoding="utf-8")
    whole = f"{BEGIN}\n{table(logs)}\n{END}"
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: whole, text, flags=re.S), encoding="utf-8")
    print(whole)


if __name__ == "__main__":
    main()
