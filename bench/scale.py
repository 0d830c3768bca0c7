"""A FineWeb build on a Dask cluster with its units in an object store, over powers of ten.

- Documents of about 500 bytes (`plan.py`'s short ones), default settings, near-duplicates included.
- Scheduler, workers, driver and an S3 server (moto) are processes of their own on loopback. CPU
  seconds and the peak of private memory are those of driver and workers, without the S3 server.
- Runs of other sizes stay in the result file until they are measured again.

Usage: `make bench-scale`, or `python bench/scale.py 200_000 2_000_000 20_000_000 --workers 2`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from distributed import Client

sys.path.insert(0, str(Path(__file__).parent))
from plan import SHAPES, make
from side_by_side import HOME, ONE_THREAD, RESULTS, exponent, look, save

BIN: Final = Path(sys.executable).parent
PLACE: Final = HOME / "scale"


def port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def running(words: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block; its log is for whoever looks for a failure."""
    with (PLACE / "log.txt").open("ab") as log:
        process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, cwd=PLACE)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def answering(address: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", address)):
            return
        time.sleep(0.1)
    raise SystemExit(f"nothing answers at port {address}: see {PLACE / 'log.txt'}")


def build(documents: int, workers: int) -> dict[str, Any]:
    """One build from nothing."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    source = make("short", documents * SHAPES["short"][0] // 1_000_000)
    s3, scheduler = port(), port()
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    there = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**os.environ, **ONE_THREAD, **keys, **there}
    address = f"tcp://127.0.0.1:{scheduler}"
    with contextlib.ExitStack() as stack:
        start = [str(BIN / "moto_server"), "-H", "127.0.0.1", "-p", str(s3)]
        stack.enter_context(running(start, environment))
        answering(s3)
        bucket = "import boto3; boto3.client('s3').create_bucket(Bucket='units')"
        subprocess.run([sys.executable, "-c", bucket], env=environment, check=True)
        start = [str(BIN / "dask"), "scheduler", "--host", "127.0.0.1", "--port", str(scheduler)]
        stack.enter_context(running([*start, "--no-dashboard"], environment))
        answering(scheduler)
        start = [str(BIN / "dask"), "worker", address, "--nthreads", "1", "--no-dashboard"]
        start += ["--nworkers", str(workers), "--memory-limit", "0"]
        cluster = stack.enter_context(running(start, environment))
        with Client(address, timeout=600) as client:
            client.wait_for_workers(workers, timeout=600)
        command = [str(BIN / "tangobench"), "build", "fineweb", "--profile", "paper", "--quiet"]
        command += ["--source", str(source), "--out", str(PLACE / "out"), "--set"]
        command += ["allow_fewer=true", "--store", "s3://units/scale", "--runner", "dask"]
        driver = stack.enter_context(running([*command, "--address", address], environment))
        return watch(documents, driver, cluster)


def watch(documents: int, driver: Any, cluster: Any) -> dict[str, Any]:
    """CPU seconds of driver and workers and the peak memory of each, until the driver ends."""
    began, cpu = time.monotonic(), dict[int, float]()
    peaks = {"driver_mb": 0.0, "workers_mb": 0.0}
    while driver.poll() is None:
        for name, root in (("driver_mb", driver.pid), ("workers_mb", cluster.pid)):
            peaks[name] = max(peaks[name], look(root, cpu))
        time.sleep(0.2)
    if driver.returncode:
        raise SystemExit(f"the build failed: see {PLACE / 'log.txt'}")
    wall = round(time.monotonic() - began)
    rounded = {name: round(peak) for name, peak in peaks.items()}
    return {"documents": documents, "cpu_seconds": round(sum(cpu.values()), 1),
            "wall_seconds": wall, "load": round(os.getloadavg()[0], 1), **rounded}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", type=int, nargs="*", default=[200_000, 2_000_000])
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    for documents in sorted(args.documents):
        add(build(documents, args.workers))
    shutil.rmtree(PLACE)


def add(run: dict[str, Any]) -> None:
    """Put a run beside those of other sizes in the result file, with the exponents of all."""
    path = RESULTS / "scale.json"
    known = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = [*(r for r in known if r["documents"] != run["documents"]), run]
    runs.sort(key=lambda r: int(r["documents"]))
    sizes = [r["documents"] for r in runs]
    names = ("cpu_seconds", "driver_mb", "workers_mb") if len(runs) > 1 else ()
    exponents = {name: exponent(sizes, [r[name] for r in runs]) for name in names}
    print(json.dumps({**run, "exponents": exponents}), flush=True)
    save("scale", [], {"runs": runs, "exponents": exponents})


if __name__ == "__main__":
    main()
