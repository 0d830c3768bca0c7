"""The table that `make test-faults` writes, from a small report."""

from __future__ import annotations

import fault_table

REPORT = """<testsuites><testsuite>
<testcase classname="tests.faults.test_a" name="x" time="1.5"/>
<testcase classname="tests.faults.test_a" name="y" time="2.5"><properties>
<property name="faults" value="200"/></properties><failure/></testcase>
<testcase classname="tests.flows.test_b.TestC" name="z" time="0"><skipped/></testcase>
</testsuite></testsuites>"""


def test_groups_are_counted_and_the_page_is_changed_between_its_marks_only(tmp_path, monkeypatch):
    report, page = tmp_path / "a.xml", tmp_path / "a.md"
    report.write_text(REPORT)
    page.write_text(f"before\n{fault_table.BEGIN}\nold\n{fault_table.END}\nafter\n")
    monkeypatch.setattr("sys.argv", ["fault_table.py", str(report), str(page)])
    fault_table.main()
    text = page.read_text()
    assert "| faults/test_a | 2 | 201 | 1 | 0 | 4 |" in text
    assert "| flows/test_b | 1 | 1 | 0 | 1 | 0 |" in text
    assert "| all | 3 | 202 | 1 | 1 | 4 |" in text
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
