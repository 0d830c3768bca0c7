"""Several hosts, cut apart: a scheduler, two workers, a store and a driver, each with its address.

Whatever happens to one of them, the dataset is whole with the committed root, or there is none and
one line says why; the same command then finishes it. Nothing waits longer than `LONGEST`.
"""

from __future__ import annotations

import json
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import hosts
import pytest

from tangobench.pipeline.core.lock import LOCK_NAME, committed_lock
from tangobench.pipeline.core.shard_reader import verify

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.dask,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("hosts"),
    pytest.mark.skipif(not hosts.usable(), reason="needs root, iproute2 and nftables"),
]
LONGEST = 180  # seconds until a build has ended, whatever was done to it
DATASET = "lean"
FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))


@pytest.fixture
def network(tmp_path):
    made = hosts.Network(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def begin(network, tmp_path, request):
    """Start the build at the driver and wait until it has stored some units, but not all."""
    store = f"s3://shelf/{request.node.name.replace('[', '-').replace(']', '')}"

    def beginning(objects: int = 2) -> subprocess.Popen:
        before = network.stored()
        process = network.build(DATASET, tmp_path / "out", store)

        def is_under_way() -> bool:
            assert_runs(process, tmp_path)
            return network.stored() >= before + objects

        network.wait_for(is_under_way)
        return process

    return beginning


def assert_runs(process: subprocess.Popen, tmp_path: Path) -> None:
    assert process.poll() is None, (tmp_path / "driver.log").read_text() or "it is over"


def said(process: subprocess.Popen, tmp_path: Path) -> dict:
    """What the command ended with, and nothing beside it: no line of a library, no traceback."""
    out, _ = process.communicate(timeout=LONGEST)
    assert (tmp_path / "driver.log").read_text() == ""
    return json.loads(out)


def assert_whole(process: subprocess.Popen, tmp_path: Path) -> None:
    expected = committed_lock(DATASET, "sample").root
    found = said(process, tmp_path)
    assert (process.returncode, found.get("root")) == (0, expected), found
    assert verify(tmp_path / "out" / f"{DATASET}-sample").root == expected


def assert_refused(process: subprocess.Popen, tmp_path: Path, kind: str) -> None:
    found = said(process, tmp_path)
    assert (process.returncode, found["error"]) == (7, kind), found
    assert found["fix"] and "\n" not in found["message"]
    assert not (tmp_path / "out" / f"{DATASET}-sample" / LOCK_NAME).exists()


def test_undisturbed_hosts_give_the_committed_root(network, begin, tmp_path):
    assert_whole(begin(), tmp_path)
    assert network.stored("one") and network.stored("two")


def test_a_worker_cut_off_in_the_middle(network, begin, tmp_path):
    process = begin()
    network.hosts["one"].cut()
    assert_runs(process, tmp_path)
    assert_whole(process, tmp_path)
    # It had units: without them the build would not have waited until it was given up.
    log = (tmp_path / "sched.log").read_text()
    assert (
        0
        < log.find(f"Remove worker addr: tcp://{network.hosts['one'].address}")
        < log.find("Remove client")
    )


def test_a_slow_link(network, begin, tmp_path):
    network.hosts["one"].slow("128kbit")  # it sends 80 kB
    assert_whole(begin(), tmp_path)
    assert network.hosts["one"].held_back() and network.stored("one")


def test_five_percent_of_packets_lost(network, begin, tmp_path):
    for name in ("one", "driver"):
        network.hosts[name].lose(5)
    assert_whole(begin(), tmp_path)
    assert network.hosts["one"].lost() and network.hosts["driver"].lost()
    assert network.stored("one")


def test_the_scheduler_is_killed_and_started_again(network, begin, tmp_path):
    process = begin()
    network.scheduler_process.kill()
    network.scheduler_process.wait()
    assert_refused(process, tmp_path, "scheduler-lost")
    network.start_scheduler()
    for name, worker in network.workers.items():
        worker.kill()
        worker.wait()
        network.workers[name] = network.start_worker(name)
    assert_whole(begin(0), tmp_path)


def test_the_store_answers_503_for_a_minute(network, begin, tmp_path):
    process = begin()
    network.gate_file.write_text("503")
    assert_runs(process, tmp_path)
    time.sleep(60)
    network.gate_file.write_text("")
    assert network.counted().get("refused", 0) > 0
    process.wait(timeout=LONGEST)
    if process.returncode == 0:
        assert_whole(process, tmp_path)
    else:
        assert_refused(process, tmp_path, "store-unreachable")
        assert_whole(begin(0), tmp_path)


def test_a_store_that_answers_late(network, begin, tmp_path):
    network.gate_file.write_text("0.3")
    assert_whole(begin(), tmp_path)


@pytest.mark.skipif(not FAKETIME, reason="needs libfaketime")
def test_a_worker_whose_clock_is_a_day_ahead(network, begin, tmp_path):
    network.workers["one"].kill()
    network.workers["one"].wait()
    environment = {"LD_PRELOAD": str(FAKETIME[0]), "FAKETIME": "+1d"}
    began = datetime.now()
    network.workers["one"] = network.start_worker("one", **environment)
    assert_whole(begin(), tmp_path)
    days = {f"{moment + timedelta(days=1):%Y-%m-%d} " for moment in (began, datetime.now())}
    log = (tmp_path / "one.log").read_text()
    assert network.stored("one") and any(log.count(f"\n{day}") for day in days)
