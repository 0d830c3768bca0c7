"""The driver at the size of all of FineWeb-Edu, on a cluster that does nothing.

One level of the shuffle, put back, must break the bounds: they can fail.
"""

from __future__ import annotations

import pytest
from simulated_cluster import Bounds, Cluster, Corpus, Exceeded

from tangobench.pipeline.core.spec import load_spec
from tangobench.pipeline.fineweb import build as stages
from tangobench.pipeline.fineweb.spec import Spec

WHOLE = (
    Corpus(documents=1_260_000_000, units=6_030, rows=150_000_000),
    Bounds(memory=4 << 30, seconds=300, reads=10_000_000),
)
# A tenth of the units and of the buckets: a hundredth of their pairs.
SMALL = (
    Corpus(documents=126_000_000, units=603, rows=15_000_000),
    Bounds(memory=400 << 20, seconds=60, reads=800_000),
)
sizes = pytest.mark.parametrize(
    "size", [SMALL, pytest.param(WHOLE, marks=pytest.mark.slow)], ids=["small", "whole"]
)


def simulate(folder, size):
    corpus, bounds = size
    for number in range(corpus.units):
        (folder / f"{number:05d}.parquet").touch()
    spec = load_spec(Spec, "fineweb", "paper", {"train_rows": corpus.rows})
    cluster = Cluster(corpus, bounds)
    return cluster, lambda: stages.build(spec, str(folder), cluster.job())


@sizes
def test_the_driver_stays_within_its_bounds(tmp_path, size):
    corpus, _ = size
    cluster, run = simulate(tmp_path, size)
    result = run()
    assert result.counts["rows"] == {"train": corpus.rows, "validation": 2048}
    assert len(result.shards) == -(-corpus.rows // 4096) + 1
    assert cluster.tasks["fineweb-merge-tokens"] > 100
    print(f"{cluster.peak / 1e9:.2f} GB, {cluster.reads:,} range reads, {cluster.tasks}")


@sizes
def test_one_level_breaks_the_bounds(tmp_path, size, monkeypatch):
    monkeypatch.setattr(stages, "ONE_LEVEL", 1 << 60)
    _, run = simulate(tmp_path, size)
    with pytest.raises(Exceeded):
        run()
