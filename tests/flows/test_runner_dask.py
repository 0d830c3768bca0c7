"""The same units on a Dask cluster: equal roots, a killed worker, shared folder, object store."""

from __future__ import annotations

import threading
import time

import pytest
from samples import LOCKED

from tangobench.errors import InputError, UsageError
from tangobench.pipeline import api
from tangobench.pipeline.api import Request, Where
from tangobench.pipeline.core import pool
from tangobench.pipeline.core.lock import committed_lock

pytestmark = [pytest.mark.dask, pytest.mark.xdist_group("prefect")]


@pytest.fixture
def expected(toy, tmp_path):
    return api.build("lean", out=str(tmp_path / "library")).lock.root


def on_cluster(cluster, out, **options):
    where = Where(runner="dask", address=cluster.address)
    return where.build(Request(name="lean", out=str(out), **options))


def test_a_cluster_gives_the_root_of_a_library_call(dask_cluster, expected, tmp_path):
    assert on_cluster(dask_cluster, tmp_path / "dask").lock.root == expected


def test_a_units_error_arrives_as_itself(dask_cluster, toy, tmp_path):
    toy.FAULTS["bad"] = 7
    with pytest.raises(InputError, match="number 7 is odd") as caught:
        on_cluster(dask_cluster, tmp_path / "dask")
    assert caught.value.details["unit"] == "part 7"


def in_flow(cluster, out):
    from tangobench.flows.deployments import build_lean

    options = {"out": str(out), "runner": "dask", "address": cluster.address}
    state = build_lean(**options, return_state=True)
    assert state.is_completed(), state.message
    return state.result()["root"]


def without_flow(cluster, out):
    return on_cluster(cluster, out).lock.root


@pytest.mark.prefect
@pytest.mark.parametrize("way", [in_flow, without_flow])
def test_a_worker_killed_in_the_middle_changes_nothing(
    way, prefect_server, dask_cluster, toy, expected, tmp_path
):
    log = tmp_path / "log"
    toy.FAULTS.update(seconds=0.4, log=str(log))
    victim = dask_cluster.add_worker()

    def kill():
        while not log.exists() or len(log.read_text().split()) < 6:
            time.sleep(0.05)
        victim.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    root = way(dask_cluster, tmp_path / "dask")
    killer.join()
    assert victim.wait() == -9
    assert root == expected
    assert len(log.read_text().split()) >= 12


@pytest.mark.parametrize(
    "dataset", [pytest.param(n, marks=() if n == "fineweb" else pytest.mark.slow) for n in LOCKED]
)
def test_units_shared_through_an_object_store(dask_cluster, bucket, dataset, tmp_path):
    """Workers get nothing but the store's address: no folder of the driver is used."""
    where = Where(runner="dask", address=dask_cluster.address)
    request = Request(name=dataset, out=str(tmp_path / "a"), store=bucket)
    assert where.build(request).lock.root == committed_lock(dataset, "sample").root
    assert not (tmp_path / "a" / ".units").exists()


def test_an_address_without_a_scheduler_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(pool, "_CONNECT_SECONDS", 0.5)
    with pytest.raises(UsageError, match="no Dask scheduler answers") as caught:
        pool.DaskRunner("tcp://127.0.0.1:9")
    assert caught.value.exit_code == 2
