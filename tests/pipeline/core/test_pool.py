from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pool_jobs
import pytest

from tangobench.catalogue import CATALOGUE
from tangobench.errors import InputError, ResourceError
from tangobench.pipeline import api
from tangobench.pipeline.core.build import SerialRunner
from tangobench.pipeline.core.pool import ProcessRunner, make_runner

SUPPORT = Path(pool_jobs.__file__).parent


def labels(items) -> list[str]:
    return [f"item {item}" for item in items]


def gone(pid: int, seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def pool():
    with ProcessRunner(2) as runner:
        yield runner


@pytest.mark.parametrize("workers", [1, 2])
def test_results_in_order(workers):
    runner = make_runner(workers)
    items = list(range(30))
    assert list(runner.map(pool_jobs.square, items, labels(items))) == [n * n for n in items]
    runner.close()


def test_one_worker_needs_no_process():
    assert isinstance(make_runner(1), SerialRunner)
    assert list(SerialRunner().map(pool_jobs.process_id, [1], ["a"])) == [os.getpid()]


def test_workers_are_kept_between_calls(pool):
    one = set(pool.map(pool_jobs.process_id, range(8), labels(range(8))))
    other = set(pool.map(pool_jobs.process_id, range(8), labels(range(8))))
    assert other <= one
    assert os.getpid() not in one


def test_a_killed_worker_fails_the_run_at_once_and_names_its_work(pool):
    list(pool.map(pool_jobs.square, range(4), labels(range(4))))
    began = time.monotonic()
    with pytest.raises(ResourceError) as caught:
        list(pool.map(pool_jobs.die_at_seven, range(100), labels(range(100))))
    assert time.monotonic() - began < 10
    assert caught.value.kind == "worker-died"
    assert "item 7" in caught.value.details["units"]
    # The next call starts new workers.
    assert list(pool.map(pool_jobs.square, [3], ["x"])) == [9]


def test_a_stopped_worker_is_named(capsys, monkeypatch):
    monkeypatch.setattr("tangobench.pipeline.core.pool._SILENT_SECONDS", 0.2)
    with ProcessRunner(1) as runner:
        (pid,) = runner.map(pool_jobs.process_id, [1], ["a"])
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(2, os.kill, (pid, signal.SIGCONT))
        timer.start()
        assert list(runner.map(pool_jobs.square, [3], ["item\x1b"])) == [9]
        timer.join()
    said = f"waiting for item\\x1b: worker {pid} is stopped, `kill -CONT {pid}`"
    assert capsys.readouterr().err.count(said) == 1


def test_an_error_arrives_whole(pool):
    with pytest.raises(InputError) as caught:
        list(pool.map(pool_jobs.fail_at_seven, range(20), labels(range(20))))
    assert (caught.value.kind, caught.value.fix) == ("odd", "use eight")
    assert caught.value.details == {"row": 7}


def test_an_error_that_cannot_travel_does_not_hang(pool):
    with pytest.raises(Exception, match=r"worker process died|a"):
        list(pool.map(pool_jobs.fail_unportably, [1, 2], ["a", "b"]))


def test_large_results_and_many_items_do_not_hang(pool):
    assert sum(map(len, pool.map(pool_jobs.big, range(40), labels(range(40))))) == 120_000_000


def test_a_reader_that_stops_early_stops_the_workers():
    with ProcessRunner(2) as runner:
        results = runner.map(pool_jobs.process_id, range(1000), labels(range(1000)))
        pids = {next(results) for _ in range(4)}
        results.close()
        assert all(gone(pid) for pid in pids)


def test_an_interrupt_waits_for_no_worker_that_saves_a_checkpoint(tmp_path):
    """The other worker dies of its SIGTERM while it holds the lock of the queue of work."""
    script = (
        f"import os, pathlib, signal, sys, threading, time; sys.path.insert(0, {str(SUPPORT)!r})\n"
        "import pool_jobs\n"
        "from tangobench.pipeline.core.pool import ProcessRunner\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "def interrupt():\n"
        "    while not (folder / 'training').exists():\n"
        "        time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "try:\n"
        "    list(ProcessRunner(2).map(pool_jobs.train_or_rest, [str(folder), ''], 'ab'))\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == "interrupted\n"


def test_workers_of_a_dataset_start_with_its_encoder():
    for name, dataset in CATALOGUE.items():
        assert api.preload_of(name)[0] == f"{dataset.package}.build"
    script = (
        f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n"
        "import pool_jobs\n"
        "from tangobench.pipeline.api import preload_of\n"
        "from tangobench.pipeline.core.pool import make_runner\n"
        "runner = make_runner(2, preload=preload_of('lean'))\n"
        "print(*runner.map(pool_jobs.has_encoder, [1], ['a']))\n"
        "runner.close()\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout == "True\n"


def test_no_worker_outlives_a_killed_main_process(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\n"
        "import pool_jobs\n"
        "from tangobench.pipeline.core.pool import ProcessRunner\n"
        "runner = ProcessRunner(2)\n"
        f"list(runner.map(pool_jobs.sleep_long, [{str(tmp_path / 'pid')!r}] * 2, ['a', 'b']))\n"
    )
    main = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(started := list(tmp_path.glob("pid.*"))) < 2:
        assert main.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    main.send_signal(signal.SIGKILL)
    main.wait()
    assert all(gone(int(path.suffix[1:])) for path in started)
