"""Several hosts on one machine: network namespaces on one switch, each with its own address.

A host runs programs, can be cut off, slowed down or made to lose packets; `gate` is an HTTP proxy
in front of the store that can answer 503 and wait before it answers. Packets that a host
dropped or held back are counted: a test must see that the fault was there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

NET = "10.77.0"


def usable() -> bool:
    """Whether this machine lets us make hosts."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "nft"))):
        return False
    probe = f"tbprobe{os.getpid()}"  # test processes ask at the same moment
    made = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True)
    subprocess.run(["ip", "netns", "del", probe], check=False, capture_output=True)
    return made.returncode == 0


def namespace(name: str) -> str:
    """A name that no other test process on this machine uses."""
    return f"tangobench-{os.getpid()}-{name}"


def run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class Host:
    """One network namespace."""

    def __init__(self, name: str, number: int, log: Path, switch: str) -> None:
        self.name, self.address, self.log = namespace(name), f"{NET}.{number}", log
        self.link, self.switch = name, switch
        self.processes: list[subprocess.Popen] = []
        run("ip", "netns", "add", self.name)
        run("ip", "link", "add", "eth0", "netns", self.name, "type", "veth", "peer", "name",
            self.link, "netns", switch)  # fmt: skip
        run("ip", "-n", switch, "link", "set", self.link, "master", "bridge", "up")
        for words in (
            ["addr", "add", f"{self.address}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
        ):
            run("ip", "-n", self.name, *words)

    def start(self, *words: object, **environment: str) -> subprocess.Popen:
        """A program on this host."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *map(str, words)],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=self.log.open("ab"),
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def cut(self) -> None:
        """Pull the plug: packets vanish, no connection is closed."""
        run("ip", "-n", self.switch, "link", "set", self.link, "down")

    def mend(self) -> None:
        """Put the plug back."""
        run("ip", "-n", self.switch, "link", "set", self.link, "up")

    def slow(self, rate: str) -> None:
        """Limit what this host sends."""
        run("tc", "-n", self.name, "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate,
            "burst", "4kb", "latency", "2s")  # fmt: skip

    def lose(self, percent: int) -> None:
        """Drop a share of the packets that arrive."""
        rules = (
            "table inet faults {\n chain incoming {\n  type filter hook input priority 0;\n"
            f'  iifname "eth0" numgen random mod 100 < {percent} counter drop;\n }}\n}}\n'
        )
        run("ip", "netns", "exec", self.name, "nft", rules)

    def lost(self) -> int:
        """How many packets were dropped."""
        words = ("ip", "netns", "exec", self.name, "nft", "list", "table", "inet", "faults")
        return int(re.findall(r"counter packets (\d+)", run(*words))[0])

    def held_back(self) -> int:
        """How many times the limit of `slow` made a packet wait."""
        words = ("tc", "-n", self.name, "-s", "qdisc", "show", "dev", "eth0")
        return int(re.findall(r"overlimits (\d+)", run(*words))[0])

    def stop(self) -> None:
        """End every process and remove the host."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


class Network:
    """A switch, a store behind a gate, a Dask scheduler, two workers and a driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.switch = namespace("switch")
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        names = ("driver", "sched", "one", "two", "store")
        self.hosts = {
            name: Host(name, number, folder / f"{name}.log", self.switch)
            for number, name in enumerate(names, 2)
        }
        self.gate_file = folder / "gate"
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://{self.hosts['store'].address}:5001",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "secret-word",
            "AWS_DEFAULT_REGION": "us-east-1",
            # A worker that is silent for so long is given up; Dask's own values are 300 and 30.
            "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "15s",
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__TCP": "12s",
            "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "10s",
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "10",
        }
        self.start_store()
        self.start_scheduler()
        self.workers = {name: self.start_worker(name) for name in ("one", "two")}

    @property
    def scheduler(self) -> str:
        return f"tcp://{self.hosts['sched'].address}:8786"

    def start_store(self) -> None:
        host = self.hosts["store"]
        server = Path(sys.executable).with_name("moto_server")
        host.start(server, "-H", "127.0.0.1", "-p", "5000")
        gate = [sys.executable, Path(__file__).with_name("gate.py"), host.address, self.gate_file]
        host.start(*gate)
        script = "import boto3; boto3.client('s3').create_bucket(Bucket='shelf')"
        self.wait_for(lambda: self.on("driver", sys.executable, "-c", script).wait() == 0)

    def start_scheduler(self) -> subprocess.Popen:
        host = self.hosts["sched"]
        words = ("scheduler", "--host", host.address, "--port", "8786", "--no-dashboard")
        self.scheduler_process = self.on("sched", sys.executable, "-m", "dask", *words)
        return self.scheduler_process

    def start_worker(self, name: str, **environment: str) -> subprocess.Popen:
        words = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--death-timeout", "120")
        host = ("--host", self.hosts[name].address)
        return self.on(
            name, sys.executable, "-m", "dask", "worker", self.scheduler, *words, *host,
            **environment,
        )  # fmt: skip

    def on(self, name: str, *words: object, **environment: str) -> subprocess.Popen:
        return self.hosts[name].start(*words, **{**self.environment, **environment})

    def build(self, dataset: str, out: Path, store: str, **environment: str) -> subprocess.Popen:
        """The build command of a user who sits at the driver."""
        words = ("build", dataset, "--out", out, "--store", store, "--quiet", "--json")
        dask = ("--runner", "dask", "--address", self.scheduler)
        return self.on("driver", sys.executable, "-m", "tangobench", *words, *dask, **environment)

    def counted(self) -> dict[str, int]:
        """What the gate counted so far."""
        counts = self.folder / "gate.json"
        return json.loads(counts.read_text()) if counts.exists() else {}

    def stored(self, *names: str) -> int:
        """How many objects the store took from these hosts so far; from all, if none is named."""
        chosen = [self.hosts[name].address for name in names or self.hosts]
        return sum(self.counted().get(address, 0) for address in chosen)

    @staticmethod
    def wait_for(condition, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "gave up waiting"
            time.sleep(0.1)

    def stop(self) -> None:
        for host in self.hosts.values():
            host.stop()
        subprocess.run(["ip", "netns", "del", self.switch], check=False, capture_output=True)
