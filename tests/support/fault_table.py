"""The table of docs/guarantees.md from a run of `make test-faults`.

A group is a test file. A test that harms many times says how often with
`record_property("faults", N)`; any other counts once. A test that was skipped injected nothing, so
it ends the program with 1 unless `--skips-allowed`.

Usage: `python tests/support/fault_table.py build/faults.xml docs/guarantees.md [--skips-allowed]`.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

BEGIN, END = "<!-- table of the last run -->", "<!-- end of the table -->"


def cases(report: Path) -> Iterator[tuple[str, ElementTree.Element]]:
    """The tests of a JUnit report, each with the name of its module."""
    for case in ElementTree.parse(report).iter("testcase"):
        # A module that is skipped as a whole has no class name; those elsewhere need other extras.
        name = case.get("classname") or case.get("name", "")
        if case.get("classname") or name.startswith("tests.faults."):
            yield name, case


def skipped(report: Path) -> list[str]:
    """A line for every test that was skipped, with the reason."""
    found = ((case, case.find("skipped")) for _, case in cases(report))
    return [f"{case.get('name')}: {why.get('message')}" for case, why in found if why is not None]


def table(report: Path) -> str:
    """The Markdown table of a JUnit report."""
    rows: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0, 0, 0.0])
    for name, case in cases(report):
        group = name.split(".Test")[0].removeprefix("tests.")
        row = rows[group.replace(".", "/")]
        faults = case.find("properties/property[@name='faults']")
        bad = case.find("failure") is not None or case.find("error") is not None
        row[0] += 1
        row[1] += int(faults.get("value", "1")) if faults is not None else 1
        row[2] += bad
        row[3] += case.find("skipped") is not None
        row[4] += float(case.get("time", "0"))
    lines = [
        "| fault group | tests | faults | failed | skipped | seconds |",
        "|---|---|---|---|---|---|",
    ]
    total = [sum(column) for column in zip(*rows.values(), strict=True)]
    for group, (tests, faults, failed, skipped, seconds) in [*sorted(rows.items()), ("all", total)]:
        lines.append(
            f"| {group} | {tests:,} | {faults:,} | {failed} | {skipped} | {seconds:,.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    report, page = map(Path, sys.argv[1:3])
    text = page.read_text(encoding="utf-8")
    whole = f"{BEGIN}\n{table(report)}\n{END}"
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: whole, text, flags=re.S), encoding="utf-8")
    print(whole)
    if (missed := skipped(report)) and "--skips-allowed" not in sys.argv:
        lines = "\n".join(missed)
        sys.exit(f"{lines}\nthese faults were not injected: run as root, or with SKIPS=allowed")


if __name__ == "__main__":
    main()
