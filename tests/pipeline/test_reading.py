from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.errors import CorruptionError, UsageError
from tangobench.pipeline.core.hashing import sha256_bytes
from tangobench.pipeline.core.lock import LOCK_NAME, Lock, read_lock, seal, sign
from tangobench.pipeline.core.shard_reader import Shard
from tangobench.pipeline.core.shards import rules_of
from tangobench.pipeline.reading import open_dataset


def test_rows_equal_what_arrow_reads(toy_original):
    dataset = open_dataset(toy_original)
    for config in ("wide", "long"):
        for split in ("train", "validation"):
            rows = dataset.rows(config, split)
            files = [s["path"] for s in dataset.lock.shards_of(config, split)]
            table = pa.concat_tables(
                pa.ipc.open_stream(pa.memory_map(str(toy_original / f))).read_all() for f in files
            )
            assert len(rows) == table.num_rows == dataset.lock.rows(config, split)
            for index, (ours, theirs) in enumerate(zip(rows, table.to_pylist(), strict=True)):
                assert {**ours, "tokens": ours["tokens"].tolist()} == theirs
                assert rows.tokens(index).tolist() == theirs["tokens"]
            for name in set(table.column_names) - {"tokens"}:
                assert rows.column(name).tolist() == table[name].to_pylist()
                assert rows.value(3, name) == table[name][3].as_py()


def test_tokens_are_views_of_the_file(toy_original):
    tokens = open_dataset(toy_original).rows("wide", "train").tokens(0)
    assert not tokens.flags.owndata
    assert not tokens.flags.writeable


@pytest.mark.parametrize("row", [-1, 10, 10**9])
def test_rows_out_of_range(toy_original, row):
    with pytest.raises(IndexError, match=f"row {row} of 10"):
        open_dataset(toy_original).rows("wide", "train").tokens(row)


def test_a_split_that_is_not_there(toy_original):
    with pytest.raises(UsageError) as caught:
        open_dataset(toy_original).rows("wide", "test")
    assert "long/train, long/validation, wide/train" in caught.value.fix


def test_a_shard_is_checked_when_first_opened_and_only_then(toy_folder):
    rows = open_dataset(toy_folder).rows("wide", "train")
    rows.tokens(0)  # opens the first shard
    for path in (toy_folder / "wide").glob("train-*"):
        data = bytearray(path.read_bytes())
        data[-40] ^= 4
        path.unlink()  # a new file, as a copying tool would make
        path.write_bytes(data)
    rows.tokens(1)  # still the file that was verified
    with pytest.raises(CorruptionError, match="train-00001-of-00002"):
        rows.tokens(9)
    with pytest.raises(CorruptionError, match="train-00000-of-00002"):
        open_dataset(toy_folder).rows("wide", "train").open_all()


def relock(folder, change) -> None:
    """A lock that someone wrote to fit: right checksum, right roots, wrong facts."""
    data = json.loads((folder / LOCK_NAME).read_text())
    del data["checksum"]
    change(data)
    (folder / LOCK_NAME).write_bytes(sign(seal(data)).to_bytes())


def forge(folder, content: bytes) -> None:
    (folder / "wide" / "train-00000-of-00002.arrow").write_bytes(content)

    def change(data):
        shard = next(s for s in data["shards"] if s["path"] == "wide/train-00000-of-00002.arrow")
        shard |= {"bytes": len(content), "sha256": sha256_bytes(content)}
        shard |= {"rows": 1, "tokens": 1, "batch_rows": 1, "batch_offsets": [0]}

    relock(folder, change)


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"x" * 500,
        b"\xff\xff\xff\xff" * 100,
        b"ARROW1\0\0" + b"\0" * 600,
    ],
    ids=["short", "text", "ones", "file format"],
)
def test_a_shard_that_is_none_is_refused_even_with_a_lock_to_fit(toy_folder, content):
    forge(toy_folder, content)
    with pytest.raises(CorruptionError) as caught:
        list(open_dataset(toy_folder).rows("wide", "train"))
    assert caught.value.kind == "shard-corrupt"
    assert "wide/train-00000-of-00002.arrow" in caught.value.message


@pytest.mark.parametrize("kind", ["no tokens", "tokens of text", "tokens of floats"])
def test_a_shard_with_other_columns_is_refused(toy_folder, kind):
    column = {"no tokens": [1], "tokens of text": ["a"], "tokens of floats": [[0.5]]}[kind]
    table = pa.table({"x" if kind == "no tokens" else "tokens": column})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    forge(toy_folder, sink.getvalue().to_pybytes())
    with pytest.raises(CorruptionError, match="tokens"):
        open_dataset(toy_folder).rows("wide", "train").tokens(0)


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_no_change_of_a_shard_crashes_a_reader(toy_original, tmp_path_factory, data):
    """Flips, cuts and insertions with a lock to fit: read or refused, never a crash."""
    folder = tmp_path_factory.mktemp("fuzz")
    lock = read_lock(toy_original)
    name = data.draw(st.sampled_from(["wide", "long"]))
    entry = dict(lock.shards_of(name, "train")[0])
    content = bytearray((toy_original / entry["path"]).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=8))
    (folder / name).mkdir()
    (folder / entry["path"]).write_bytes(content)
    entry |= {"bytes": len(content), "sha256": sha256_bytes(bytes(content))}
    try:
        shard = Shard(folder, entry, rules_of(lock, name))
        for row in range(entry["rows"]):
            assert isinstance(shard.tokens(row), np.ndarray)
        shard.check_rows()
    except CorruptionError:
        pass


def test_lock_of_a_dataset_is_a_lock(toy_original):
    assert isinstance(open_dataset(str(toy_original)).lock, Lock)
