"""A FineWeb build on a Dask cluster with its units in an object store, over powers of ten.

- Documents of about 500 bytes (`plan.py`'s short ones), default settings, near-duplicates included.
- Scheduler, workers, driver and an S3 server are processes of their own on loopback. CPU seconds
  and the peak of private memory are those of driver and workers, without the S3 server.
- The server is moto, with large objects as mapped files: on its own, it copies a whole object for
  every range that is asked for.
- Runs of other sizes stay in the result file until they are measured again, and inputs are kept:
  the command continues with the size at which it was stopped. `--make` only makes the inputs.

Usage: `make bench-scale`, or `python bench/scale.py 200_000 2_000_000 20_000_000 --workers 2`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
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
MAPPED: Final = 1 << 16  # bytes beyond which the S3 server has an object in a file


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


def serve(port: int) -> None:
    """An S3 server in this process."""
    os.environ["MOTO_S3_DEFAULT_KEY_BUFFER_SIZE"] = str(MAPPED)
    from moto import server
    from moto.s3 import models, responses

    read, respond = models.FakeKey.value.fget, responses.S3Response.get_object

    def value(key: Any) -> Any:
        if key.contentsize <= MAPPED:
            return read(key)
        return mmap.mmap(key._value_buffer.fileno(), 0, access=mmap.ACCESS_READ)

    def get_object(self: Any) -> Any:
        status, headers, body = respond(self)
        return status, headers, body if "range" in self.headers else body[:]

    models.FakeKey.value = models.FakeKey.value.getter(value)
    responses.S3Response.get_object = get_object
    server.main(["-H", "127.0.0.1", "-p", str(port)])


def source(documents: int) -> Path:
    return make("short", documents * SHAPES["short"][0] // 1_000_000)


def build(documents: int, workers: int) -> dict[str, Any]:
    """One build from nothing."""
    given = source(documents)
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    s3, scheduler = port(), port()
    keys = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench"}
    there = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{s3}", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = {**os.environ, **ONE_THREAD, **keys, **there, "TMPDIR": str(PLACE)}
    address = f"tcp://127.0.0.1:{scheduler}"
    with contextlib.ExitStack() as stack:
        start = [sys.executable, __file__, "--serve", str(s3)]
        server = stack.enter_context(running(start, environment))
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
        command += ["--source", str(given), "--out", str(PLACE / "out"), "--set"]
        command += ["allow_fewer=true", "--store", "s3://units/scale", "--runner", "dask"]
        driver = stack.enter_context(running([*command, "--address", address], environment))
        return watch(documents, driver, cluster, server)


def watch(documents: int, driver: Any, cluster: Any, server: Any) -> dict[str, Any]:
    """CPU seconds of driver and workers and the peak memory of each, until the driver ends."""
    began, cpu, theirs = time.monotonic(), dict[int, float](), dict[int, float]()
    peaks = {"driver_mb": 0.0, "workers_mb": 0.0}
    while driver.poll() is None:
        look(server.pid, theirs)
        for name, root in (("driver_mb", driver.pid), ("workers_mb", cluster.pid)):
            peaks[name] = max(peaks[name], look(root, cpu))
        time.sleep(0.2)
    if driver.returncode:
        raise SystemExit(f"the build failed: see {PLACE / 'log.txt'}")
    wall = round(time.monotonic() - began)
    rounded = {name: round(peak) for name, peak in peaks.items()}
    return {"documents": documents, "cpu_seconds": round(sum(cpu.values()), 1),
            "s3_cpu_seconds": round(sum(theirs.values()), 1), "wall_seconds": wall,
            "load": round(os.getloadavg()[0], 1), **rounded}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("documents", type=int, nargs="*", default=[200_000, 2_000_000])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
    for documents in sorted(args.documents):
        print(source(documents)) if args.make else add(build(documents, args.workers))
    shutil.rmtree(PLACE, ignore_errors=True)


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
