"""What a plan sees of its input, and what reading it costs."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tangobench.pipeline.fineweb import parquet
from tangobench.pipeline.fineweb.sources import SourceFile


def write(path, texts):
    columns = {name: [f"{name}-{n}" for n in range(len(texts))] for name in ("id", "dump", "url")}
    pq.write_table(pa.table({**columns, "text": texts}), path, row_group_size=50)
    return parquet.inspect(SourceFile(path.name, str(path), path.stat().st_size)).file


@pytest.mark.parametrize(
    ("copies", "low", "high"),
    [("none", 1, 1), ("beside", 3, 5), ("anywhere", 3, 6), ("one text", 2000, 2100)],
)
def test_copies_are_seen_wherever_they_are(tmp_path, copies, low, high):
    draw = random.Random(1)
    number = {
        "none": lambda n: n,
        "beside": lambda n: n // 4,
        "anywhere": lambda n: draw.randrange(500),
        "one text": lambda n: 7,
    }[copies]
    file = write(tmp_path / "a.parquet", [f"Text {number(n)}." for n in range(2000)])
    assert low <= parquet.occurrences(file) <= high


def test_nothing_to_look_into_is_no_copy(tmp_path):
    assert parquet.occurrences(write(tmp_path / "empty.parquet", pa.array([], pa.string()))) == 1
    assert parquet.occurrences(write(tmp_path / "null.parquet", pa.nulls(3, pa.string()))) == 3


def test_a_footer_is_parsed_once_for_the_units_of_a_file(tmp_path, monkeypatch):
    """A file of 2,500 row groups has 10 MB of footer and 300 units: read each time, 3 GB."""
    parsed, really = [], pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda *w, **k: parsed.append(w) or really(*w, **k))
    monkeypatch.setattr(parquet, "_FOOTERS", {})
    path = tmp_path / "a.parquet"
    texts = [f"Text {n}." for n in range(200)]
    first = write(path, texts)
    for group in range(4):
        (table,) = parquet.read(first, [group], ["text"])
        assert table["text"].to_pylist() == [
            f"Text {n}." for n in range(50 * group, 50 * group + 50)
        ]
    assert len(parsed) == 1
    second = write(path, ["another"])  # the same place, other bytes
    assert [t["text"].to_pylist() for t in parquet.read(second, [0], ["text"])] == [["another"]]
    assert len(parsed) == 2
