"""Background processes: identity, descendants, exact stops."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time

from tangobench.flows.local import process as _process

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(60)
"""


def start(script, tmp_path):
    log = tmp_path / "log"
    process = _process.start([sys.executable, "-c", script], env=os.environ, cwd=tmp_path, log=log)
    deadline = time.monotonic() + 20
    while not log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process, log.read_text().strip()


def test_a_family_is_stopped_and_nobody_else(tmp_path):
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process, child = start(PARENT, tmp_path)
        (found,) = _process.descendants(process)
        assert found.pid == int(child)
        _process.stop(process, seconds=5)
        assert not _process.alive(process) and not _process.alive(found)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_that_ignores_sigterm_is_killed(tmp_path):
    process, _ = start(STUBBORN, tmp_path)
    _process.stop(process, seconds=0.4)
    assert not _process.alive(process)


def test_a_reused_pid_is_never_signalled():
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        real = _process.identify(bystander.pid)
        assert real is not None
        stale = dataclasses.replace(real, started=real.started - 60)
        assert _process.alive(real) and not _process.alive(stale)
        assert _process.descendants(stale) == []
        _process.stop(stale, seconds=0.2)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_zombie_is_not_alive():
    child = subprocess.Popen([sys.executable, "-c", ""])
    process = None
    deadline = time.monotonic() + 20
    while (process := _process.identify(child.pid)) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert process is None
    child.wait()
