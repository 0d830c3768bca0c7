from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest

from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import Arguments, Job, Output, Stage, Unit
from tangobench.pipeline.core.store import open_store

ROW = np.dtype([("key", "<u8"), ("place", "<u4")])


def test_sections_give_back_what_was_packed(tmp_path):
    rows = np.array([(1, 2), (2**64 - 1, 3)], ROW)
    parts = [
        {"a": np.arange(5, dtype=np.uint16), "rows": rows},
        {},
        {"a": np.empty(0, np.uint16), **shards.pack_texts("id", ["", "é", "日本"])},
    ]
    data, bounds = shards.pack_sections(parts)
    assert bounds[-1] == len(data) and len(bounds) == 4
    store = open_store(str(tmp_path))
    address = store.put("k" * 64, data, {}).address
    for n, part in enumerate(parts):
        section = shards.Section(address, bounds[n], bounds[n + 1] - bounds[n])
        found = shards.read(section, store)
        assert list(found) == list(part)
        for name, array in part.items():
            assert found[name].dtype == array.dtype and np.array_equal(found[name], array)


@pytest.mark.parametrize("cut", [(0, 4), (1, 3), (4, 4)])
def test_arrow_texts_are_those_of_the_list(cut):
    texts = pa.array(["one", None, "zwölf", ""], pa.large_string())[slice(*cut)]
    plain = [text or "" for text in texts.to_pylist()]
    found = shards.unpack(shards.pack(shards.pack_texts("t", texts)))
    assert shards.unpack_texts(found, "t") == plain
    assert shards.arrow_texts(found, "t").to_pylist() == plain
    assert shards.pack(shards.pack_texts("t", plain)) == shards.pack(found)


@dataclass(frozen=True, slots=True)
class Args(Arguments):
    what: str
    where: str

    def key(self) -> list[str]:
        return [self.what]


def test_only_the_key_of_arguments_decides(tmp_path):
    ran = []

    def run(args: Args, store: object) -> Output:
        ran.append(args.where)
        return Output(args.what.encode(), {})

    job, stage = Job(open_store(str(tmp_path))), Stage("typed", 1, run)
    first = job.run(stage, [stage.unit("a", Args("x", "here"))])
    assert job.run(stage, [stage.unit("b", Args("x", "there"), weight=5.0)]) == first
    assert job.run(stage, [Unit("plain", (["x"],))]) == first
    both = Stage("typed", 1, lambda one, two, _: Output(f"{one.what}{two}".encode(), {}))
    assert job.run(both, [both.unit("two", Args("x", ""), 3)])[0].size == 2
    job.run(stage, [stage.unit("c", Args("y", "elsewhere"))])
    assert ran == ["here", "elsewhere"]


@dataclass(frozen=True, slots=True)
class Inner(Arguments):
    number: int


@dataclass(frozen=True, slots=True)
class Outer(Arguments):
    one: Inner
    args: Args
    many: tuple[Inner, ...]
    none: tuple[Inner, ...] = ()


def test_all_fields_are_the_key_unless_arguments_say_otherwise():
    outer = Outer(Inner(1), Args("x", "here"), (Inner(2), Inner(3)))
    assert outer.key() == [1, ["x"], [2, 3], ()]
