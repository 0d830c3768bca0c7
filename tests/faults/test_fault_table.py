"""The tables of docs/guarantees.md, from a small report and small logs."""

from __future__ import annotations

import sys

import fault_table
import fuzz_table
import pytest

REPORT = """<testsuites><testsuite>
<testcase classname="tests.faults.test_a" name="x" time="1.5"/>
<testcase classname="tests.faults.test_a" name="y" time="2.5"><properties>
<property name="faults" value="200"/></properties><failure/></testcase>
<testcase classname="tests.flows.test_b.TestC" name="z" time="0">
<skipped message="no root"/></testcase>
<testcase classname="" name="tests.model.test_hf" time="0"><skipped message="no extra"/></testcase>
</testsuite></testsuites>"""


def test_groups_are_counted_and_the_page_is_changed_between_its_marks_only(tmp_path, monkeypatch):
    report, page = tmp_path / "a.xml", tmp_path / "a.md"
    report.write_text(REPORT)
    page.write_text(f"before\n{fault_table.BEGIN}\nold\n{fault_table.END}\nafter\n")
    monkeypatch.setattr("sys.argv", ["fault_table.py", str(report), str(page)])
    with pytest.raises(SystemExit, match=r"^z: no root\nthese faults were not injected"):
        fault_table.main()
    text = page.read_text()
    assert "| faults/test_a | 2 | 201 | 1 | 0 | 4 |" in text
    assert "| flows/test_b | 1 | 1 | 0 | 1 | 0 |" in text
    assert "| all | 3 | 202 | 1 | 1 | 4 |" in text
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    sys.argv.append("--skips-allowed")
    fault_table.main()
    report.write_text(REPORT.replace('<skipped message="no root"/>', ""))
    sys.argv.pop()
    fault_table.main()


def test_runs_of_a_fuzzer_without_a_finding_are_counted(tmp_path, monkeypatch):
    end = b"stat::number_of_executed_units: %d\n"
    (tmp_path / "url.log").write_bytes(
        b"#7\tNEW    cov: 1 ft: 2 corp: 3/4b\n"
        b"#1000000\tDONE   cov: 26 ft: 1059 corp: 22/801b lim: 1024 exec/s: 14492 rss: 125Mb\n"
        + end
        % 1_000_000
    )
    found = b"#9497\tNEW    cov: 5 ft: 6 corp: 7/8b\n\xff\n==1== ERROR: libFuzzer: deadly signal\n"
    (tmp_path / "lock.log").write_bytes(found + end % 9498)
    page = tmp_path / "a.md"
    old = "| lock | 5 | 1 | 1 | 1 |\n| spec | 7 | 1 | 1 | 1 |\n| url | 9 | 1 | 1 | 1 |"
    old = "\n".join([*fuzz_table.HEAD, old])
    page.write_text(f"before\n{fuzz_table.BEGIN}\n{old}\n{fuzz_table.END}\nafter\n")
    monkeypatch.setattr("sys.argv", ["fuzz_table.py", str(tmp_path), str(page)])
    fuzz_table.main()
    lines = page.read_text().splitlines()
    assert lines[4] == "| spec | 7 | 1 | 1 | 1 |"  # no log: the row stays
    assert lines[5:] == ["| url | 1,000,000 | 26 | 1,059 | 22 |", fuzz_table.END, "after"]
    assert lines[0] == "before"
