"""FineWeb builds against datatrove and the usual scripts, on the same real English text.

- Read, dedup, encode, pack, write, hash, on one core; near-duplicates, which no peer looks for, are
  off. Peers run in an environment of their own; their documents and tokens are compared with ours
  before a ratio is written.
- Sides alternate, five times; medians count, ranges are recorded. datatrove and the script with HF
  tokenizers, which take minutes, are run once.
- The bound is what no build can do without: decoding once, encoding what is packed, one sha256 of
  each byte of the output. A second row adds what this build does besides, each part measured alone
  (bench/fineweb_parts.py). The start is a build of one document.
- `--scaling` compares one worker with two on 1.2 GB, `--growth` measures our build from 12 MB to
  1.2 GB, `--bounds` what this machine could do at most, and a build beside its parts.

Usage: `make bench-fineweb`, or `python bench/fineweb.py --megabytes 70 --only one --only script`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq
import xxhash

sys.path.insert(0, str(Path(__file__).parent))
from corpus import corpus_of, text_bytes
from fineweb_parts import UNIT, byte_parts, first_use, text_parts, without_texts
from side_by_side import (
    COMPILED,
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

from tangobench.pipeline.core.files import write_atomic

JOB: Final = "FineWeb build, read to shards"
PEERS: Final = {
    "datatrove": ("datatrove's own blocks", "≥ 10", ("datatrove", "tokenizers")),
    "script": ("datasets.map + tiktoken", "≥ 16", ("datasets", "tiktoken")),
    "tokenizers": ("datasets.map + HF tokenizers", "≥ 50", ("datasets", "tokenizers")),
}
ONCE: Final = ("datatrove", "tokenizers")
GROWTH: Final = (12, 38, 120, 380, 1200)
REPEATS: Final = 5
USUAL: Final = 379
AIMS: Final = {(70, "script"): "≥ 10"}
_STAGE: Final = re.compile(r"^(fineweb-[\w-]+): .* in (?:(\d+) m )?([\d.]+) s", re.MULTILINE)


def own(corpus: Path, workers: int, place: str = "", unit: int = UNIT) -> dict[str, Any]:
    """Our build, with shards of the usual size."""
    out = HOME / f"out-{workers}{place}"
    manifest = HOME / "bench.toml"
    source = Path(__file__).parent.parent / "manifests" / "fineweb.toml"
    manifest.write_text(source.read_text().replace("shard_rows = 128", "shard_rows = 4_096"))
    command = [sys.executable, "-m", "tangobench", "build", "fineweb", "--source", str(corpus)]
    command += ["--out", str(out), "--workers", str(workers), "--manifest", str(manifest)]
    command += ["--set", "near_duplicates=off", "--set", f"unit_bytes={unit}"]
    run = measure(command, out, COMPILED)
    run["stages"] = {s: 60 * int(m or 0) + float(t) for s, m, t in _STAGE.findall(run["stderr"])}
    folder = out / "fineweb-sample"
    lock = json.loads((folder / "manifest.lock.json").read_text())
    run |= {"root": lock["root"], "tokens": lock["counts"]["tokens"]}
    run["documents"] = sum(part["kept"] for part in lock["counts"]["documents"].values())
    run["output_bytes"] = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    shutil.rmtree(out, ignore_errors=True)
    return _without_output(run)


def alternate(
    sides: dict[str, Callable[[], dict[str, Any]]], repeats: int = REPEATS
) -> dict[str, dict[str, Any]]:
    """Each side's run of median CPU time; `all_seconds` has the CPU and wall seconds of each."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for turn in range(repeats):
        for name, side in sides.items():
            if turn == 0 or name not in ONCE:
                runs[name].append(side())
                print(name, *(runs[name][-1][f"{kind}_seconds"] for kind in ("cpu", "wall")))
    return {name: _median(some) for name, some in runs.items()}


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    every = [[run["cpu_seconds"], run["wall_seconds"]] for run in runs]
    runs = sorted(runs, key=lambda run: float(run["cpu_seconds"]))
    return {**runs[len(runs) // 2], "all_seconds": every}


def _without_output(run: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in run.items() if key not in ("stdout", "stderr")}


def all_tokens(corpus: Path) -> int:
    """Tokens of every distinct text with one EOT each: what each peer must find."""
    from tangobench.pipeline.tokenizer.base import gpt2

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


def compare(which: list[str], megabytes: int, repeats: int) -> None:
    """Run the named sides on one corpus; ratios are taken where both sides are known."""
    corpus = corpus_of(megabytes)
    size = text_bytes(corpus)
    path = RESULTS / "fineweb.json"
    known = json.loads(path.read_text()).get("sizes", {}) if path.exists() else {}
    runs: dict[str, Any] = known.get(str(megabytes), {}).get("runs", {})
    runs |= alternate(
        {name: partial(own, corpus, 1) if name == "one" else partial(peer, name, corpus)
         for name in which},
        repeats,
    )  # fmt: skip
    found: dict[str, Any] = {"text_bytes": size, "runs": runs}
    rows = list(_rows(runs, all_tokens(corpus), megabytes, size))
    if "one" in which:
        found["bound"] = bound(corpus, runs["one"])
        rows += _bound_rows(runs["one"], found["bound"], megabytes)
    save("fineweb", rows, {"sizes": {**known, str(megabytes): found}})


def _rows(runs: dict[str, Any], tokens: int, megabytes: int, size: int) -> Any:
    one, job = runs.get("one"), _job(megabytes)
    for name, (label, aim, packages) in PEERS.items():
        if one is None or name not in runs:
            continue
        theirs = runs[name]
        found = (theirs["documents"], theirs["tokens"])
        assert found == (one["documents"], tokens), (name, found, one["documents"], tokens)
        yield row(
            job, label, theirs["cpu_seconds"] / one["cpu_seconds"],
            AIMS.get((megabytes, name), aim), ours=_rate_of(one, size),
            theirs=_rate_of(theirs, size),
            command="make bench-fineweb",
            versions=own_versions("pyarrow", "polars", "gigatoken")
            | peer_versions(peer_python("fineweb"), packages),
        )  # fmt: skip


def _job(megabytes: int) -> str:
    return JOB if megabytes == USUAL else f"{JOB}, {megabytes:,} MB"


def _rate_of(run: dict[str, Any], size: int) -> str:
    """MB of text per CPU second: the median, and from the slowest to the fastest run."""
    rates = sorted(size / 1e6 / cpu for cpu, _ in run["all_seconds"])
    middle = f"{size / 1e6 / run['cpu_seconds']:.3g} MB/s"
    return f"{middle} ({rates[0]:.3g} to {rates[-1]:.3g})" if len(rates) > 1 else middle


def bound(corpus: Path, run: dict[str, Any]) -> dict[str, float]:
    """CPU seconds of each part of a build, alone; the first three are what none can do without."""
    texts = text_parts(corpus)
    parts = [texts, byte_parts(run["output_bytes"], corpus.stat().st_size)]
    bare, unit = without_texts(corpus)
    rest = alternate({"without texts": partial(own, bare, 1, unit=unit)})["without texts"]
    parts += [first_use(run["anonymous_mb"] - rest["anonymous_mb"])]
    parts += [{"the documents without texts": rest["cpu_seconds"]}]
    found = {name: seconds for part in parts for name, seconds in part.items()}
    first = {name: found.pop(name) for name in ("decode", "encode", "sha256")}
    return first | found


def _bound_rows(
    one: dict[str, Any], parts: dict[str, float], megabytes: int
) -> Iterator[dict[str, Any]]:
    usual = megabytes == USUAL  # in less, libraries are a third
    for peer, count, aim in (
        ("decode once, encode, sha256 of the output", 3, "at most 2.1" if usual else "–"),
        ("the same with libraries, all hashes and writes", len(parts), "–"),
    ):
        some = dict(list(parts.items())[:count])
        total = sum(some.values())
        yield row(
            _job(megabytes), peer, one["cpu_seconds"] / total, aim, ours=f"{one['cpu_seconds']} s",
            theirs=f"{total:.2f} s: " + ", ".join(f"{name} {s:.2f}" for name, s in some.items()),
            command="make bench-fineweb", versions=own_versions("pyarrow", "gigatoken"),
        )  # fmt: skip


def start() -> None:
    """A build of one document: imports, the encoder, every stage, publishing and the exit."""
    table = pq.ParquetFile(corpus_of(USUAL)).read_row_group(0).slice(0, 1)
    corpus = HOME / "one.parquet"
    pq.write_table(table, corpus)
    run = alternate({"one": partial(own, corpus, 1)})["one"]
    times = sorted(cpu for cpu, _ in run["all_seconds"])
    line = row(
        "FineWeb build of one document", "CPU seconds", run["cpu_seconds"], "at most 0.45",
        ours=f"{run['cpu_seconds']} s ({times[0]} to {times[-1]})", theirs="–",
        command="python bench/fineweb.py --start", versions=own_versions("pyarrow", "gigatoken"),
    )  # fmt: skip
    save("fineweb", [line], {"start": run})


def scaling(repeats: int) -> None:
    """One worker against two where the start, which cannot be shared out, weighs less.

    Two builds at once, which share nothing but the machine, bound what two workers can gain.
    """
    corpus = corpus_of(GROWTH[-1])
    sides = {"one": partial(own, corpus, 1), "two": partial(own, corpus, 2)}
    runs = alternate({**sides, "both": partial(both, corpus)}, repeats)
    assert runs["one"]["root"] == runs["two"]["root"]
    walls = {name: sorted(wall for _, wall in run["all_seconds"]) for name, run in runs.items()}
    middle = {name: some[len(some) // 2] for name, some in walls.items()}
    told = {name: f"{middle[name]} s ({w[0]} to {w[-1]})" for name, w in walls.items()}
    size = f"{GROWTH[-1]:,} MB"
    lines = [
        row(
            f"{JOB}, wall time", peer, ratio, aim, ours=told[ours], theirs=told["one"],
            command="make bench-fineweb", versions=own_versions("pyarrow", "polars", "gigatoken"),
        )
        for peer, ratio, aim, ours in (
            (f"one worker against two, {size}", middle["one"] / middle["two"], "≥ 1.8", "two"),
            (f"one build against two at once, {size} each", 2 * middle["one"] / middle["both"],
             "–", "both"),
        )
    ]  # fmt: skip
    save("fineweb", lines, {"scaling": {"text_bytes": text_bytes(corpus), "runs": runs}})


def both(corpus: Path) -> dict[str, Any]:
    """Two builds of one worker at once; the wall time of the longer."""
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda place: own(corpus, 1, place), ("a", "b")))
    cpu = round(sum(run["cpu_seconds"] for run in runs), 2)
    return {**max(runs, key=lambda run: float(run["wall_seconds"])), "cpu_seconds": cpu}


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
    from tangobench.pipeline.tokenizer.base import gpt2

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
    one = alternate({"one": partial(own, corpus, 1)})["one"]
    rows = list(_bound_rows(one, bound(corpus, one), megabytes))
    save("fineweb", rows, {"bounds": {**found, "command": "python bench/fineweb.py --bounds"}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, action="append")
    parser.add_argument("--only", choices=["one", *PEERS], action="append")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    for name in ("start", "scaling", "growth", "bounds"):
        parser.add_argument(f"--{name}", action="store_true")
    args = parser.parse_args()
    parts = {"start": start, "scaling": partial(scaling, args.repeats), "growth": growth,
             "bounds": partial(bounds, USUAL)}  # fmt: skip
    named = [part for name, part in parts.items() if getattr(args, name)]
    if args.only or args.megabytes or not named:
        for megabytes in args.megabytes or (USUAL, 70):
            everyone = ["one", *PEERS] if megabytes == USUAL else ["one", "script"]
            compare(args.only or everyone, megabytes, args.repeats)
    everything = not (args.only or args.megabytes)
    for part in named or (parts.values() if everything else ()):
        part()


if __name__ == "__main__":
    main()
