"""Input that means harm: damaged and bloated Parquet, odd texts."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tangobench.errors import InputError
from tangobench.pipeline import api
from tangobench.pipeline.fineweb.parquet import inspect, read
from tangobench.pipeline.fineweb.sources import SourceFile
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer.base import gpt2

pytestmark = pytest.mark.faults
TRAIN = "CC-MAIN-2023-14"


def table(texts, count: int | None = None) -> pa.Table:
    count = count or len(texts)
    return pa.table(
        {
            "text": texts,
            "id": [f"<urn:uuid:{n:04d}>" for n in range(count)],
            "dump": [TRAIN] * count,
            "url": [f"https://a.example/{n}" for n in range(count)],
        }
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("parquet") / "whole.parquet"
    texts = [f"Document {n}. " + "word " * 60 for n in range(60)]
    pq.write_table(table(texts), path, row_group_size=12, compression="zstd")
    return path


def read_all(path: Path) -> int:
    file = SourceFile(path.name, str(path))
    info = inspect(file)
    groups = range(len(info.groups))
    tables = read(file, groups, ["id", "dump", "url", "text"])
    return sum(part.num_rows for part in tables)


def boundaries(path: Path) -> list[int]:
    """Where row groups and their column chunks begin and end, and the footer."""
    found = {4, path.stat().st_size - 8}
    metadata = pq.ParquetFile(path).metadata
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in range(group.num_columns):
            chunk = group.column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            found |= {start, start + chunk.total_compressed_size}
    return sorted(found)


def test_a_file_cut_at_every_boundary_is_refused(whole, tmp_path):
    data, cut = whole.read_bytes(), tmp_path / "cut.parquet"
    assert read_all(whole) == 60
    places = boundaries(whole)
    assert len(places) > 20
    for place in places:
        for size in (place - 1, place, place + 1):
            cut.write_bytes(data[:size])
            with pytest.raises(InputError, match=r"cut\.parquet") as caught:
                read_all(cut)
            assert caught.value.kind == "parquet-corrupt"


def test_a_hole_at_every_boundary_behind_a_whole_footer(whole, tmp_path):
    """Bytes lost in the middle, as by a download that was resumed at the wrong place."""
    data, bad = whole.read_bytes(), tmp_path / "hole.parquet"
    places = boundaries(whole)[:-1]
    for place in places[:-1]:
        bad.write_bytes(data[:place] + bytes(16) + data[place + 16 :])
        with pytest.raises(InputError, match=r"hole\.parquet"):
            read_all(bad)


def test_600_flipped_bits_are_read_or_refused(whole, tmp_path):
    """Never a crash: run in a child, because a decoder that fails hard takes its process along."""
    data, bad = bytearray(whole.read_bytes()), tmp_path / "flipped.parquet"
    rng, footer = random.Random(4), int.from_bytes(data[-8:-4], "little") + 8
    child = os.fork()
    if child == 0:
        try:
            for _ in range(600):
                first = rng.choice([0, len(data) - footer])  # half of them in the footer
                place, bit = rng.randrange(first, len(data)), 1 << rng.randrange(8)
                data[place] ^= bit
                bad.write_bytes(data)
                try:
                    read_all(bad)
                except InputError as error:
                    assert "flipped.parquet" in error.message
                data[place] ^= bit
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


BUILD = """
import resource, sys
from tangobench.errors import TangobenchError
from tangobench.pipeline import api
from tangobench.pipeline.fineweb import build
from tangobench.pipeline.tokenizer.base import gpt2
limit = int(sys.argv[3])
gpt2()
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    api.build("fineweb", out=sys.argv[2], source=sys.argv[1], overrides={"context": 64})
except TangobenchError as error:
    print(error.kind, error.message)
    sys.exit(error.exit_code)
"""


def limited_build(path: Path, out: Path, gigabytes: float) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", BUILD, str(path), str(out), str(int(gigabytes * 2**30))],
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "POLARS_MAX_THREADS": "1",
            "ARROW_DEFAULT_MEMORY_POOL": "system",
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_dictionary_bomb_under_a_memory_limit(tmp_path):
    """60 kB of Parquet that stand for 1.2 GB of text, within 1.2 GB of private memory."""
    count = 12_000
    texts = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), pa.array(["boom " * 20_000]))
    path = tmp_path / "bomb.parquet"
    pq.write_table(table(texts, count), path, row_group_size=count)
    assert path.stat().st_size < 500_000
    done = limited_build(path, tmp_path / "out", 1.2)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_a_zstd_bomb_under_a_memory_limit(tmp_path):
    """One text of 600 MB in 60 kB, more than there is: one error that says so."""
    path = tmp_path / "bomb.parquet"
    text = pa.array([b" " * 600_000_000], pa.large_binary()).view(pa.large_string())
    pq.write_table(table(text, 1), path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 500_000
    done = limited_build(path, tmp_path / "out", 0.8)
    assert done.returncode in (5, 7), done.stdout + done.stderr
    assert "bomb.parquet" in done.stdout
    assert not (tmp_path / "out" / "fineweb-sample").exists()


ODD = {
    "nul": "a\0b\0\0c",
    "bom": "\ufeffwith a mark\ufeff",
    "separators": "one\u2028two\u2029three\x85four\x0b",
    "special tokens": "<|endoftext|> and <|endoftext|><|endoftext|>",
    "spaces": " " * 1_000_000,
    "one letter": "a" * 1_000_000,
    "astral": "𝔸🏳️‍🌈" * 2000,
    "combining": "e" + "\u0301" * 20_000,
    "directions": "\u202etxet\u202c \u2066x\u2069",
    "control": "".join(map(chr, range(1, 32))),
    "not characters": "\uffff\ufdd0\U0010ffff",
    "private": "\ue000\U000f0000",
}


def test_odd_texts_come_back_byte_by_byte(tmp_path):
    """Whatever UTF-8 can hold is kept; EOT between documents is never in one of them."""
    texts = [*ODD.values(), *(f"filler {n} " * 99 for n in range(40))]
    path = tmp_path / "odd.parquet"
    pq.write_table(table(texts), path)
    built = api.build("fineweb", out=str(tmp_path), source=str(path), overrides={"context": 64})
    rows = open_dataset(built.folder).rows("default", "train")
    tokens = np.concatenate([rows.tokens(n) for n in range(len(rows))])
    parts = np.split(tokens, np.flatnonzero(tokens == 50256) + 1)
    found = {gpt2().decode_bytes(part[:-1]) for part in parts}
    missing = [name for name, text in ODD.items() if text.encode() not in found]
    assert len(missing) <= 1  # the last document of the stream loses its ragged end


def test_text_that_is_no_utf8_is_dropped_and_counted(tmp_path):
    bad = [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"ok \xe2\x82"]
    good = [b"fine " * 200] * 3
    joined = pa.array([*bad, *good], pa.binary())
    path = tmp_path / "bad.parquet"
    strings = pa.StringArray.from_buffers(len(joined), *joined.buffers()[1:])
    pq.write_table(table(strings, len(joined)), path)
    built = api.build("fineweb", out=str(tmp_path), source=str(path), overrides={"context": 64})
    assert built.lock.drops["text-not-utf8"] == len(bad)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("letter", ["a", " "])
def test_a_line_of_100_megabytes(tmp_path, letter):
    text = letter * (100_000_000 // len(letter.encode()))
    path = tmp_path / "line.parquet"
    pq.write_table(table(pa.array([text], pa.large_string()), 1), path, compression="zstd")
    built = api.build("fineweb", out=str(tmp_path), source=str(path), overrides={"context": 8192})
    shards = built.lock.shards_of("default", "train")
    assert sum(shard["tokens"] for shard in shards) > 90_000_000 / 130


def test_the_limit_is_one():
    """A check that cannot fail is none: this address space does not hold the bomb."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
        try:
            bytes(2**31)
        except MemoryError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
