"""Several hosts, cut apart: a scheduler, two workers, a store and a driver, each with its address.

Whatever happens to one of them, the dataset is whole with the committed root, or there is none and
one line says why; the same command then finishes it. Nothing waits longer than `LONGEST`.
"""

from __future__ import annotations

import subprocess
import time
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
    """Start the build at the driver and wait until it has stored some units."""
    store = f"s3://shelf/{request.node.name.replace('[', '-').replace(']', '')}"

    def beginning(objects: int = 2) -> subprocess.Popen:
        before = network.stored()
        process = network.build(DATASET, tmp_path / "out", store)
        network.wait_for(lambda: network.stored() >= before + objects or process.poll() is not None)
        return process

    return beginning


def root_of(process: subprocess.Popen, folder: Path) -> str:
    out, _ = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, (folder / "driver.log").read_text()
    return out.strip().splitlines()[-1]


def assert_whole(process: subprocess.Popen, tmp_path: Path) -> None:
    expected = committed_lock(DATASET, "sample").root
    assert root_of(process, tmp_path) == expected
    assert verify(tmp_path / "out" / f"{DATASET}-sample").root == expected


def assert_refused(process: subprocess.Popen, tmp_path: Path, codes: set[int]) -> None:
    process.communicate(timeout=LONGEST)
    log = (tmp_path / "driver.log").read_text()
    assert process.returncode in codes, log
    assert "Traceback" not in log
    assert not (tmp_path / "out" / f"{DATASET}-sample" / LOCK_NAME).exists()


def test_undisturbed_hosts_give_the_committed_root(begin, tmp_path):
    assert_whole(begin(), tmp_path)


def test_a_worker_cut_off_in_the_middle(network, begin, tmp_path):
    process = begin()
    network.hosts["one"].cut()
    assert_whole(process, tmp_path)


def test_a_slow_link(network, begin, tmp_path):
    network.hosts["one"].slow("2mbit")
    assert_whole(begin(), tmp_path)


def test_five_percent_of_packets_lost(network, begin, tmp_path):
    for name in ("one", "driver"):
        network.hosts[name].lose(5)
    assert_whole(begin(), tmp_path)


def test_the_scheduler_is_killed_and_started_again(network, begin, tmp_path):
    process = begin()
    network.scheduler_process.kill()
    network.scheduler_process.wait()
    assert_refused(process, tmp_path, {7})
    network.start_scheduler()
    for name, worker in network.workers.items():
        worker.kill()
        worker.wait()
        network.workers[name] = network.start_worker(name)
    assert_whole(begin(0), tmp_path)


def test_the_store_answers_503_for_a_minute(network, begin, tmp_path):
    process = begin()
    network.gate_file.write_text("503")
    time.sleep(60)
    network.gate_file.write_text("")
    try:
        assert_whole(process, tmp_path)
    except AssertionError:
        assert_refused(process, tmp_path, {7})
        assert_whole(begin(0), tmp_path)


def test_a_store_that_answers_late(network, begin, tmp_path):
    network.gate_file.write_text("0.3")
    assert_whole(begin(), tmp_path)


@pytest.mark.skipif(not FAKETIME, reason="needs libfaketime")
def test_a_worker_whose_clock_is_a_day_ahead(network, begin, tmp_path):
    network.workers["one"].kill()
    network.workers["one"].wait()
    environment = {"LD_PRELOAD": str(FAKETIME[0]), "FAKETIME": "+1d"}
    network.workers["one"] = network.start_worker("one", **environment)
    assert_whole(begin(), tmp_path)
