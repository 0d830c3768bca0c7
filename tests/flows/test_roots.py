"""One result however it is run: flow, cluster and cluster under a flow give the committed roots.

Library calls and the command line are compared with the same locks in their own tests.
"""

from __future__ import annotations

import pytest
from trees import hashes

from tangobench.pipeline.api import DATASETS, Request, Where
from tangobench.pipeline.core.lock import committed_lock

pytestmark = [
    pytest.mark.faults,
    pytest.mark.prefect,
    pytest.mark.dask,
    pytest.mark.xdist_group("prefect"),
]


def run_flow(dataset, out, **options):
    from tangobench.flows.deployments import BUILDS

    state = BUILDS[dataset](out=str(out), return_state=True, **options)
    assert state.is_completed(), state.message
    return state.result()["root"]


@pytest.mark.parametrize(
    ("dataset", "workers"),
    [
        *((name, 2) for name in DATASETS),
        *(pytest.param("lean", n, marks=pytest.mark.slow) for n in (1, 4)),
    ],
)
def test_a_flow_gives_the_committed_root(dataset, workers, prefect_server, sample, tmp_path):
    assert run_flow(dataset, tmp_path, workers=workers) == committed_lock(dataset, "sample").root
    if workers != 2:
        name = f"{dataset}-sample"
        assert hashes(tmp_path / name) == hashes(sample(dataset) / name)


# `test_units_shared_through_an_object_store` builds FineWeb's on the same cluster.
@pytest.mark.parametrize(
    "dataset",
    [pytest.param(n, marks=() if n == "lean" else pytest.mark.slow) for n in DATASETS],
)
def test_a_cluster_gives_the_committed_root(dataset, dask_cluster, tmp_path):
    where = Where(runner="dask", address=dask_cluster.address)
    built = where.build(Request(name=dataset, out=str(tmp_path)))
    assert built.lock.root == committed_lock(dataset, "sample").root


@pytest.mark.slow
def test_a_flow_on_a_cluster_gives_the_committed_root(prefect_server, dask_cluster, tmp_path):
    dataset = "dm_math"
    root = run_flow(dataset, tmp_path, runner="dask", address=dask_cluster.address)
    assert root == committed_lock(dataset, "sample").root
