"""The table of docs/guarantees.md from what libFuzzer itself said at the end of each run.

A log is `TARGET.log` in a folder. A run that ended with a finding gives no row, and a target that
has no log keeps the row that it has.

Usage: `python tests/support/fuzz_table.py build/fuzz docs/guarantees.md`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

BEGIN, END = "<!-- table of the fuzzers -->", "<!-- end of the fuzzers -->"
HEAD = ["| target | cases | branches reached | features | inputs |", "|---|---|---|---|---|"]
CASES = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)
REACHED = re.compile(r"^#\d+\s+\w+\s+cov: (\d+) ft: (\d+) corp: (\d+)/", re.MULTILINE)


def table(folder: Path, before: str) -> str:
    """The Markdown table of the logs in a folder, and of an earlier table where there is no log."""
    rows = {line.split(" ")[1]: line for line in before.splitlines()[2:]}
    for path in folder.glob("*.log"):
        text = path.read_text(encoding="utf-8", errors="replace")
        rows.pop(path.stem, None)
        if (cases := CASES.findall(text)) and "ERROR: libFuzzer" not in text:
            numbers = (cases[-1], *REACHED.findall(text)[-1])
            rows[path.stem] = f"| {path.stem} | {' | '.join(f'{int(n):,}' for n in numbers)} |"
    return "\n".join([*HEAD, *(rows[target] for target in sorted(rows))])


def main() -> None:
    logs, page = map(Path, sys.argv[1:])
    text = page.read_text(encoding="utf-8")
    head, before, rest = re.split(f"{BEGIN}\n(.*)\n{END}", text, flags=re.S)
    whole = f"{BEGIN}\n{table(logs, before)}\n{END}"
    page.write_text(head + whole + rest, encoding="utf-8")
    print(whole)


if __name__ == "__main__":
    main()
