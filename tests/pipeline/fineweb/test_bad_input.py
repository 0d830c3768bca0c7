"""Everything that can be wrong with an input: a typed error, or a counted drop. Nothing partial."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tangobench.errors import InputError
from tangobench.pipeline import api
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer.base import gpt2

TRAIN, VALIDATION = "CC-MAIN-2023-14", "CC-MAIN-2023-50"


def documents(count=40, **columns):
    base = {
        "text": [f"Document {n}: " + "word " * 60 for n in range(count)],
        "id": [f"<urn:uuid:{n:04d}>" for n in range(count)],
        "dump": [TRAIN if n % 3 else VALIDATION for n in range(count)],
        "url": [f"https://a.example/{n}" for n in range(count)],
    }
    return {**base, **columns}


def write(path: Path, columns, types=None) -> Path:
    types = types or {}
    arrays = {
        name: values if isinstance(values, pa.Array) else pa.array(values, types.get(name))
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), path, row_group_size=16)
    return path


def build(path: Path, out: Path, **overrides):
    return api.build("fineweb", out=str(out), source=str(path),
                     overrides={"context": 64, "near_duplicates": "off", **overrides})  # fmt: skip


def refused(path: Path, out: Path) -> InputError:
    with pytest.raises(InputError) as caught:
        build(path, out)
    assert not (out / "fineweb-sample").exists()  # nothing was published
    assert path.name in caught.value.message or path.is_dir()
    assert caught.value.fix
    return caught.value


@pytest.fixture
def good(tmp_path):
    return write(tmp_path / "good.parquet", documents())


@pytest.mark.parametrize("keep", [0, 3, 200, -1, -9])
def test_truncated_file(good, tmp_path, keep):
    bad = tmp_path / "cut.parquet"
    bad.write_bytes(good.read_bytes()[:keep])
    assert refused(bad, tmp_path / "out").kind == "parquet-corrupt"


def test_a_file_that_is_something_else(tmp_path):
    bad = tmp_path / "page.parquet"
    bad.write_text("<html>404</html>")
    assert refused(bad, tmp_path / "out").kind == "parquet-corrupt"


def test_damaged_pages(good, tmp_path):
    """Zeroed data behind an intact footer; the error names the row groups."""
    data = bytearray(good.read_bytes())
    data[60:900] = bytes(840)
    bad = tmp_path / "zeroed.parquet"
    bad.write_bytes(data)
    error = refused(bad, tmp_path / "out")
    assert error.kind == "parquet-corrupt" and "row groups" in error.message


@pytest.mark.parametrize("column", ["text", "id", "dump", "url"])
def test_missing_column(tmp_path, column):
    columns = documents()
    del columns[column]
    error = refused(write(tmp_path / "bad.parquet", columns), tmp_path / "out")
    assert error.kind == "column-missing" and error.details["column"] == column


@pytest.mark.parametrize(
    ("column", "kind"), [("text", pa.binary()), ("id", pa.int64()), ("url", pa.list_(pa.string()))]
)
def test_other_type(tmp_path, column, kind):
    values = pa.nulls(40, kind)
    error = refused(
        write(tmp_path / "bad.parquet", documents(**{column: values})), tmp_path / "out"
    )
    assert error.kind == "column-type" and error.details["column"] == column


@pytest.mark.parametrize("column", ["text", "url", "date"])
def test_a_column_twice(tmp_path, column):
    columns = documents(date=["2023-01-01"] * 40)
    arrays = [pa.array(values) for values in (*columns.values(), columns[column])]
    pq.write_table(pa.table(arrays, names=[*columns, column]), tmp_path / "bad.parquet")
    error = refused(tmp_path / "bad.parquet", tmp_path / "out")
    assert error.kind == "column-twice" and error.details["column"] == column


def test_a_date_may_be_a_day(tmp_path):
    days = [f"2023-01-{1 + n % 28:02d}" for n in range(40)]
    texts = write(tmp_path / "texts.parquet", documents(date=days))
    typed = pa.array(days).cast(pa.date32())
    plain = build(texts, tmp_path / "o1")
    dated = build(write(tmp_path / "days.parquet", documents(date=typed)), tmp_path / "o2")
    assert plain.lock.data["content_root"] == dated.lock.data["content_root"]
    assert plain.lock.data["counts"] == dated.lock.data["counts"]


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_other_string_types_are_fine(good, tmp_path, kind):
    columns = documents()
    wide = {n: pa.array(v).cast(kind) for n, v in columns.items()}
    one = build(good, tmp_path / "o1")
    two = build(write(tmp_path / "wide.parquet", wide), tmp_path / "o2")
    assert one.lock.data["content_root"] == two.lock.data["content_root"]


@pytest.mark.parametrize(
    "value", [None, "", "CC-MAIN-2023", "cc-main-2023-14", "news", "CC-MAIN-٢٠٢٣-14"]
)
def test_unknown_dump_names_the_row(tmp_path, value):
    dumps = documents()["dump"]
    dumps[21] = value
    error = refused(write(tmp_path / "bad.parquet", documents(dump=dumps)), tmp_path / "out")
    assert error.kind == "dump-unknown" and error.details["row"] == 21


def test_null_id_names_the_row(tmp_path):
    ids = documents()["id"]
    ids[33] = None
    error = refused(write(tmp_path / "bad.parquet", documents(id=ids)), tmp_path / "out")
    assert error.kind == "id-null" and error.details["row"] == 33


def raw_strings(values: list[bytes | None]) -> pa.Array:
    """Bytes in a string column, as a careless writer leaves them."""
    binary = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), binary.buffers(), binary.null_count)


@pytest.mark.parametrize("column", ["id", "dump"])
def test_invalid_utf8_in_a_name_is_refused(tmp_path, column):
    values = [value.encode() for value in documents()[column]]
    values[5] = b"\xff"
    path = write(tmp_path / "bad.parquet", documents(**{column: raw_strings(values)}))
    error = refused(path, tmp_path / "out")
    assert error.kind == f"{column}-not-utf8" and error.details["row"] == 5


def test_lone_surrogates_in_urls_and_dates_are_harmless(tmp_path):
    urls = [url.encode() for url in documents()["url"]]
    urls[3] = urls[4] = b"https://a.example/\xed\xa0\x80"
    dates = [b"2023-01-01"] * 39 + [b"\xff"]
    columns = documents(url=raw_strings(urls), date=raw_strings(dates))
    counts = build(write(tmp_path / "in.parquet", columns), tmp_path / "o").lock.data["counts"]
    assert counts["input"]["url_unparsable"] == 2
    assert sum(part["kept"] for part in counts["documents"].values()) == 40


def test_unusable_texts_are_dropped_and_counted(tmp_path):
    texts: list[bytes | None] = [t.encode() for t in documents()["text"]]
    texts[1], texts[2], texts[4], texts[5] = None, b"", b"bad \xff byte", b"lone \xed\xa0\x80"
    texts[7] = b"nul \x00 inside " + b"x " * 50
    done = build(write(tmp_path / "in.parquet", documents(text=raw_strings(texts))), tmp_path / "o")
    assert done.lock.data["drops"] == {"text-null": 1, "text-empty": 1, "text-not-utf8": 2}
    rows = open_dataset(done.folder).rows("default", "train")
    text = gpt2().decode_bytes(np.concatenate([rows.tokens(n) for n in range(len(rows))]))
    assert b"nul \x00 inside" in text and b"\xff" not in text


def test_unusable_urls_are_kept_counted_and_link_nothing(tmp_path):
    urls: list[bytes | None] = [u.encode() for u in documents()["url"]]
    urls[1] = urls[2] = None
    urls[4] = urls[5] = b""
    urls[7] = urls[8] = b"same nonsense"
    urls[10] = urls[11] = b"http://a.example/\xff"
    path = write(tmp_path / "in.parquet", documents(url=raw_strings(urls)))
    counts = build(path, tmp_path / "o").lock.data["counts"]
    assert counts["input"] == {"rows": 40, "url_null": 2, "url_empty": 2, "url_unparsable": 4}
    assert sum(p["kept"] for p in counts["documents"].values()) == 40


def test_literal_end_of_text_is_ordinary_text(tmp_path):
    texts = [f"{n} <|endoftext|> " + "word " * 70 for n in range(40)]
    done = build(write(tmp_path / "in.parquet", documents(text=texts)), tmp_path / "out")
    rows = open_dataset(done.folder).rows("default", "validation")
    assert len(rows) and all(50256 not in rows.tokens(n) for n in range(len(rows)))


def test_a_million_spaces_and_a_hundred_megabytes(tmp_path):
    texts = documents()["text"]
    texts[0] = "x" + " " * 1_100_000 + "y"
    texts[1] = "long words " * 9_100_000
    path = write(tmp_path / "in.parquet", documents(text=texts))
    done = build(path, tmp_path / "out", context=8192, shard_rows=1 << 16)
    assert done.lock.data["counts"]["rows"] == {"train": 2221, "validation": 134}


@pytest.mark.parametrize("source", ["nowhere.parquet", "nowhere/*.parquet", "empty"])
def test_no_files(tmp_path, source, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError) as caught:
        build(tmp_path / source, tmp_path / "out")
    assert caught.value.kind in {"source-missing", "source-empty"}


def test_no_rows(tmp_path):
    path = write(tmp_path / "in.parquet", documents(0), dict.fromkeys(documents(0), pa.string()))
    with pytest.raises(InputError) as caught:
        build(path, tmp_path / "out")
    assert caught.value.kind == "source-empty"


def test_only_ignored_dumps_give_an_empty_dataset(tmp_path):
    path = write(tmp_path / "in.parquet", documents(dump=["CC-MAIN-2024-10"] * 40))
    done = build(path, tmp_path / "out")
    assert done.lock.data["drops"] == {"dump-ignored": 40}
    assert done.lock.data["counts"]["rows"] == {"train": 0, "validation": 0}


def test_texts_of_ignored_dumps_do_not_matter(tmp_path):
    dumps = [TRAIN] * 16 + ["CC-MAIN-2024-10"] * 16 + [VALIDATION] * 8
    texts = [t.encode() for t in documents()["text"]]
    texts[20] = b"\xff"
    path = write(tmp_path / "in.parquet", documents(dump=dumps, text=raw_strings(texts)))
    drops = build(path, tmp_path / "out").lock.data["drops"]
    assert drops == {"dump-ignored": 16}


BOMB = """
import re, sys
from tangobench.pipeline import api
api.build("fineweb", out=sys.argv[2], source=sys.argv[1], overrides={"context": 64})
# Not ru_maxrss: that starts from the memory of the process that started this one.
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def test_a_parquet_bomb_stays_small(tmp_path):
    """A small file that decodes to 600 MB: equal texts, dictionary-encoded."""
    count, text = 6000, "boom " * 20_000
    columns = {
        "text": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array([text])),
        "id": [f"{n}" for n in range(count)],
        "dump": [TRAIN] * count,
        "url": pa.nulls(count, pa.string()),
    }
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=count)
    assert path.stat().st_size < 500_000
    run = subprocess.run(
        [sys.executable, "-c", BOMB, str(path), str(tmp_path / "out")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert int(run.stdout) < 900_000  # kilobytes; libraries alone take 300 MB, all texts 1.2 GB
