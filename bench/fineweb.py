"""FineWeb builds against datatrove and the usual scripts, on the same real English text.

- Read, dedup, encode, pack, write, hash, on one core. Peers run in an environment of their own;
  their documents and tokens are compared with ours before a ratio is written.
- Our side takes seconds and is run three times, the median by wall time counts; each peer, which
  takes minutes, is run once.
- `--scaling` compares one worker with two on 1.2 GB, `--growth` measures our build from 12 MB to
  1.2 GB, `--bounds` what this machine could do at most.

Usage: `make bench-fineweb`, or `python bench/fineweb.py --only script`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
import xxhash

sys.path.insert(0, str(Path(__file__).parent))
from corpus import corpus_of, text_bytes
from side_by_side import (
    HOME,
    RESULTS,
    exponent,
    measure,
    own_versions,
    peer_python,
    peer_versions,
    row,
    save,
    vocabulary,
)

JOB: Final = "FineWeb build, read to shards"
PEERS: Final = {
    "datatrove": ("datatrove's own blocks", "≥ 10", ("datatrove", "tokenizers")),
    "script": ("datasets.map + tiktoken", "≥ 15", ("datasets", "tiktoken")),
    "tokenizers": ("datasets.map + HF tokenizers", "≥ 50", ("datasets", "tokenizers")),
}
GROWTH: Final = (12, 38, 120, 380, 1200)
REPEATS: Final = 3
_STAGE: Final = re.compile(r"^(fineweb-[\w-]+): .* in (?:(\d+) m )?([\d.]+) s", re.MULTILINE)


def own(corpus: Path, workers: int) -> dict[str, Any]:
    """Our build, with shards of the usual size."""
    out = HOME / f"out-{workers}"
    manifest = HOME / "bench.toml"
    source = Path(__file__).parent.parent / "manifests" / "fineweb.toml"
    manifest.write_text(source.read_text().replace("shard_rows = 128", "shard_rows = 4_096"))
    command = [sys.executable, "-m", "tangobench", "build", "fineweb", "--source", str(corpus)]
    command += ["--out", str(out), "--workers", str(workers), "--manifest", str(manifest)]
    run = measure(command, out)
    run["stages"] = {s: 60 * int(m or 0) + float(t) for s, m, t in _STAGE.findall(run["stderr"])}
    lock = json.loads((out / "fineweb-sample" / "manifest.lock.json").read_text())
    run |= {"root": lock["root"], "tokens": lock["counts"]["tokens"]}
    run["documents"] = sum(part["kept"] for part in lock["counts"]["documents"].values())
    shutil.rmtree(out, ignore_errors=True)
    return _without_output(run)


def usual(corpus: Path, workers: int) -> dict[str, Any]:
    """The median of some runs by wall time; `all_seconds` has the CPU and wall seconds of each."""
    runs = [own(corpus, workers) for _ in range(REPEATS)]
    runs.sort(key=lambda run: float(run["wall_seconds"]))
    every = [[run["cpu_seconds"], run["wall_seconds"]] for run in runs]
    return {**runs[REPEATS // 2], "all_seconds": every}


def _without_output(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in ("stdout", "stderr")}


def all_tokens(corpus: Path) -> int:
    """Tokens of every distinct text with one EOT each: what each peer must find."""
    from tangobench.pipeline.tokenizer.gpt2 import gpt2

    keys: set[bytes] = set()
    total = 0
    for batch in pq.ParquetFile(corpus).iter_batches(1000, columns=["text"]):
        texts = {xxhash.xxh3_128_digest(t.encode()): t for t in batch.column("text").to_pylist()}
        new = [text for key, text in texts.items() if key not in keys]
        keys.update(texts)
        total += len(gpt2().encode_batch(new)[0]) + len(new)
    return total


def peer(name: str, corpus: Path) -> dict[str, Any]:
    out = HOME / f"out-{name}"
    script = str(Path(__file__).parent / "peers_fineweb.py")
    command = [peer_python("fineweb"), script, name, str(corpus), str(out), str(vocabulary())]
    run = measure(command, out)
    run |= json.loads((out / "summary.json").read_text())
    shutil.rmtree(out, ignore_errors=True)
    return _without_output(run)


def compare(which: list[str], megabytes: int) -> None:
    """Run the named sides on one corpus; ratios are taken where both sides are known."""
    corpus = corpus_of(megabytes)
    size = text_bytes(corpus)
    path = RESULTS / "fineweb.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    if known.get("text_bytes") != size:
        known = {}
    runs: dict[str, Any] = known.get("runs", {})
    for name in which:
        if name in ("one", "two"):
            runs[name] = usual(corpus, 1 if name == "one" else 2)
        else:
            runs[name] = peer(name, corpus)
        runs[name]["mb_per_cpu_second"] = round(size / 1e6 / runs[name]["cpu_seconds"], 2)
        print(name, runs[name])
    if "one" in runs and "tokens_of_all" not in known:
        known["tokens_of_all"] = all_tokens(corpus)
    save("fineweb", list(_rows(runs, known.get("tokens_of_all"))), {
        "text_bytes": size, "runs": runs, "tokens_of_all": known.get("tokens_of_all"),
    })  # fmt: skip


def _rows(runs: dict[str, Any], tokens: int | None) -> Any:
    one = runs.get("one")
    for name, (label, aim, packages) in PEERS.items():
        if one is None or name not in runs:
            continue
        theirs = runs[name]
        found = (theirs["documents"], theirs["tokens"])
        assert found == (one["documents"], tokens), (name, found, one["documents"], tokens)
        yield row(
            JOB, label, theirs["cpu_seconds"] / one["cpu_seconds"], aim,
            ours=f"{one['mb_per_cpu_second']} MB/s", theirs=f"{theirs['mb_per_cpu_second']} MB/s",
            command="make bench-fineweb",
            versions=own_versions("pyarrow", "polars", "gigatoken")
            | peer_versions(peer_python("fineweb"), packages),
        )  # fmt: skip
    if one is not None and "two" in runs:
        yield _wall_row("one worker against two", one, runs["two"])


def _wall_row(label: str, one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    assert one["root"] == two["root"]
    return row(
        f"{JOB}, wall time", label, one["wall_seconds"] / two["wall_seconds"], "≥ 1.8",
        ours=f"{two['wall_seconds']} s", theirs=f"{one['wall_seconds']} s",
        command="make bench-fineweb", versions=own_versions("pyarrow", "polars", "gigatoken"),
    )  # fmt: skip


def scaling() -> None:
    """One worker against two where the start, which cannot be shared out, weighs less."""
    corpus = corpus_of(GROWTH[-1])
    runs = {"one": usual(corpus, 1), "two": usual(corpus, 2)}
    label = f"one worker against two, {GROWTH[-1]:,} MB"
    detail = {"text_bytes": text_bytes(corpus), "runs": runs}
    save("fineweb", [_wall_row(label, runs["one"], runs["two"])], {"scaling": detail})


def growth() -> None:
    """CPU seconds and peak memory of our build over two orders of magnitude of input."""
    points = []
    for megabytes in GROWTH:
        corpus = corpus_of(megabytes)
        run = own(corpus, 1)
        points.append({"megabytes": round(text_bytes(corpus) / 1e6, 1), **_point(run)})
        print(points[-1])
    sizes = [point["megabytes"] for point in points]
    seconds = [point["cpu_seconds"] for point in points]
    slope, start = np.polyfit(sizes, seconds, 1)
    fitted = {
        "points": points,
        "cpu_seconds": f"{start:.2f} + {slope:.5f} per MB",
        "time_exponent_after_start": exponent(sizes, np.maximum(np.array(seconds) - start, 0.01)),
        "memory_exponent": exponent(sizes, [point["anonymous_mb"] for point in points]),
        "command": "python bench/fineweb.py --growth",
    }
    save("fineweb", [], {"growth": fitted})
    print({k: v for k, v in fitted.items() if k != "points"})


def _point(run: dict[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in ("cpu_seconds", "wall_seconds", "anonymous_mb", "load")}


def _rate(size: int, work: Any, cpu: bool = True) -> float:
    clock = time.process_time if cpu else time.monotonic
    best = 0.0
    for _ in range(3):
        began = clock()
        work()
        best = max(best, size / 1e6 / max(clock() - began, 1e-9))
    return round(best, 1)


def bounds(megabytes: int) -> None:
    """What each stage could reach at most: hashing, copying, decoding, encoding, disk."""
    from tangobench.pipeline.core.files import write_atomic
    from tangobench.pipeline.tokenizer.gpt2 import gpt2

    corpus = corpus_of(megabytes)
    block = np.random.default_rng(1).integers(0, 256, 1 << 28, np.uint8)
    target = np.empty_like(block)
    file = pq.ParquetFile(corpus)
    some = file.read_row_groups(range(3), columns=["text"])["text"].combine_chunks()
    gpt2().encode_arrow(some)
    decoded = text_bytes(corpus)

    def decode() -> None:
        for _ in file.iter_batches(1024, columns=["text"], use_threads=False):
            pass

    found = {
        "sha256_mb_per_second": _rate(block.nbytes, lambda: hashlib.sha256(block)),
        "xxh3_128_mb_per_second": _rate(block.nbytes, lambda: xxhash.xxh3_128_digest(block)),
        "memcpy_mb_per_second": _rate(block.nbytes, lambda: np.copyto(target, block)),
        "durable_write_mb_per_second": _rate(
            block.nbytes, lambda: write_atomic(HOME / "block", block), cpu=False
        ),
        "parquet_text_mb_per_second": _rate(decoded, decode),
        "encoder_mb_per_second": _rate(some.nbytes, lambda: gpt2().encode_arrow(some)),
    }
    (HOME / "block").unlink(missing_ok=True)
    print(found)
    save("fineweb", [], {"bounds": {**found, "command": "python bench/fineweb.py --bounds"}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=379)
    parser.add_argument("--peers", action="store_true", help="beside the peers")
    parser.add_argument("--only", choices=["one", "two", *PEERS], action="append")
    parser.add_argument("--scaling", action="store_true")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--bounds", action="store_true")
    args = parser.parse_args()
    everything = not (args.peers or args.only or args.scaling or args.growth or args.bounds)
    if everything or args.peers or args.only:
        compare(args.only or ["one", "two", *PEERS], args.megabytes)
    if everything or args.scaling:
        scaling()
    if everything or args.growth:
        growth()
    if everything or args.bounds:
        bounds(args.megabytes)


if __name__ == "__main__":
    main()
