"""The leak audit: it finds planted leaks, and costs little where validation is large."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tangobench.errors import CorruptionError
from tangobench.pipeline.core import shards
from tangobench.pipeline.core.build import Job, Stage
from tangobench.pipeline.core.store import open_store
from tangobench.pipeline.fineweb import decisions
from tangobench.pipeline.fineweb.keys import KEY_ROW, pack_keys
from tangobench.pipeline.fineweb.parquet import read_sample
from tangobench.pipeline.fineweb.resolve import decide_unit
from tangobench.pipeline.fineweb.units import DocumentUnit

NO_URLS = {"url_null": 0, "url_empty": 0, "url_unparsable": 0}


def make_unit(store, dumps, url, content, base=0):
    """A unit whose documents have these keys, each decided by its own dump."""
    count = len(dumps)
    table = pa.table(
        {
            "id": pa.array([f"d{base + n}" for n in range(count)], pa.large_string()),
            "dump": np.array(dumps, np.int32),
            "date": pa.nulls(count, pa.large_string()),
            "status": np.zeros(count, np.uint8),
            **{
                f"{kind}_{half}": keys[:, at]
                for kind, keys in (("url", url), ("content", content))
                for at, half in enumerate(("high", "low"))
            },
            "size": np.full(count, 9, np.uint64),
        }
    )
    made = pack_keys(table, 1, NO_URLS)
    keys = store.put(f"keys {base}".ljust(64, "0"), made.data, made.result)
    unit = DocumentUnit(read_sample(base, base + 1), shards.Section.of(keys, 0), base, count)
    decided = decide_unit(unit, (), 202340, store)
    address = store.put(f"decided {base}".ljust(64, "0"), decided.data, {}).address
    return replace(unit, decided=address)


def audit(store, units):
    decided, _ = decisions.decide(Job(store), units)
    return decisions.audit_leaks(Job(store), units, decided)


def random_keys(count, seed):
    return np.random.default_rng(seed).integers(1, 1 << 63, (count, 2), np.uint64)


@pytest.mark.parametrize("parts", [1, 6])
@pytest.mark.parametrize("leak", ["none", "url", "content", "half"])
def test_a_leak_is_found_and_half_a_key_is_none(tmp_path, monkeypatch, leak, parts):
    monkeypatch.setattr(decisions, "FILE_ROWS", 60 // parts)
    monkeypatch.setattr(decisions, "TOGETHER", 16)  # three units of two partitions each
    store = open_store(str(tmp_path))
    url, content = random_keys(60, 1), random_keys(60, 2)
    url[5] = 0  # no URL: links nothing, on either side
    url[45] = 0
    if leak == "url":
        url[44] = url[7]
    elif leak == "content":
        content[50] = content[3]
    elif leak == "half":
        content[50, 0], url[44, 0] = content[3, 0], url[7, 0]
    dumps = [202314] * 40 + [202350] * 20
    first = make_unit(store, dumps[:30], url[:30], content[:30])
    second = make_unit(store, dumps[30:], url[30:], content[30:], base=30)
    if leak in ("none", "half"):
        told = audit(store, [first, second])
        assert told == {"train_keys": 79, "validation_keys": 39, "shared_keys": 0}
        return
    with pytest.raises(CorruptionError) as caught:
        audit(store, [first, second])
    assert caught.value.kind == "split-leak"
    assert ("d7" if leak == "url" else "d3") in caught.value.message


class Counted:
    """A store that counts the bytes that are read."""

    def __init__(self, store):
        self.store, self.bytes = store, 0

    def read(self, *section):
        data = self.store.read(*section)
        self.bytes += len(data)
        return data


def test_a_unit_of_the_audit_reads_no_more_when_validation_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(decisions, "FILE_ROWS", 100)
    monkeypatch.setattr(decisions, "TOGETHER", 200)
    read: list[int] = []

    def counted(validation, train, store):
        counting = Counted(store)
        output = decisions.find_leaks(validation, train, counting)
        read.append(counting.bytes)
        return output

    monkeypatch.setattr(decisions, "AUDIT", Stage("counted", 1, counted))
    most = []
    for late in (1000, 10_000):
        read.clear()
        store = open_store(str(tmp_path / str(late)))
        url, content = random_keys(500 + late, 1), random_keys(500 + late, 2)
        dumps = [202314] * 500 + [202350] * late
        steps = [slice(base, base + 250) for base in range(0, 500 + late, 250)]
        units = [make_unit(store, dumps[s], url[s], content[s], s.start) for s in steps]
        assert audit(store, units)["validation_keys"] == 2 * late
        assert sum(read) == KEY_ROW.itemsize * 2 * (500 + late)  # every key once
        most.append(max(read))
    assert most[1] < 1.2 * most[0]


def _measure(folder, sides, sender):
    store = open_store(folder)
    decisions.find_leaks(*sides, store)  # imports and the first page faults
    before = _resident()
    began = time.process_time()
    decisions.find_leaks(*sides, store)
    sender.send((time.process_time() - began, before, _resident()))


def _resident() -> int:
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


@pytest.mark.slow
def test_the_audit_of_a_unit_at_paper_size(tmp_path):
    """13 million validation documents: 300 MB, and 0.1 s of CPU per unit of the input."""
    store = open_store(str(tmp_path))
    sides, tasks = list[tuple[shards.Section, ...]](), 26_000_000 / decisions.TOGETHER
    for documents in (13_000_000, 9_700_000):  # a dump, and the training documents of a sample
        units = documents // 12_000  # documents in 32 MiB of text
        keys = np.zeros(round(2 * documents / tasks), KEY_ROW)
        keys["high"], keys["low"] = random_keys(len(keys), documents).T
        address = store.put(f"{documents}".ljust(64, "0"), keys, {}).address
        cuts = (np.linspace(0, len(keys), units + 1).astype(int) * keys.itemsize).tolist()
        sides.append(tuple(shards.Section(address, a, b - a) for a, b in pairwise(cuts)))
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(str(tmp_path), sides, sender))
    process.start()
    seconds, before, peak = receiver.recv()
    process.join()
    print(f"{seconds:.3f} s, {before / 1e6:.0f} MB before, {peak / 1e6:.0f} MB at its peak")
    assert seconds * tasks < 0.1 * sum(map(len, sides))
    assert peak < 300e6
