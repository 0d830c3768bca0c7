"""What `tangobench plan` says of a FineWeb build beside what the build takes.

- Corpora of invented prose: web pages (4 kB), short (500 B) and long (40 kB) documents, and pages
  of which three quarters are copies, beside each other or anywhere. The prose repeats its words,
  which flatters the encoder.
- One worker; CPU seconds and anonymous memory of the whole process tree, disk with units, and the
  bytes that are read of the input, which `strace` counts.
- Cases of earlier runs stay in the result file until they are measured again; `--planned` only
  plans them again, beside what their builds took.

Usage: `make bench-plan`, `python bench/plan.py 100 1000 --only web`.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.manifests.fineweb_sample import Draw, article

sys.path.insert(0, str(Path(__file__).parent))
from side_by_side import HOME, RESULTS, measure, save

SHAPES: Final = {
    "web": (4000, 0.0),
    "short": (500, 0.0),
    "long": (40_000, 0.0),
    "copies": (4000, 0.75),
    "scattered": (4000, 0.75),
}
DUMPS: Final = ("CC-MAIN-2022-40", "CC-MAIN-2023-06", "CC-MAIN-2023-40", "CC-MAIN-2023-50")
GROUP: Final = 1000
PAST: Final = 20_000  # texts that a scattered copy is of


def make(shape: str, megabytes: int) -> Path:
    """About so many megabytes of text as one Parquet file."""
    path = HOME / f"plan-{shape}-{megabytes}.parquet"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    size, copies = SHAPES[shape]
    draw = random.Random(megabytes)
    pool = [article(Draw("plan", n), 120) for n in range(3000)]
    if size < 700:  # an article is longer: cut short, all would be near copies of a few
        pool = sorted({line for text in pool for line in re.split(r"(?<=[.!?])\s+", text)})
    mean = sum(map(len, pool)) // len(pool)
    names = ("text", "id", "dump", "url", "date")
    schema = pa.schema([(name, pa.string()) for name in names])
    partial, past = path.with_suffix(".partial"), collections.deque[str](maxlen=PAST)
    with pq.ParquetWriter(partial, schema, compression="snappy") as writer:
        for first in range(0, max(1, megabytes * 1_000_000 // size), GROUP):
            rows: dict[str, list[str]] = {name: [] for name in names}
            for number in range(first, first + GROUP):
                last = "" if not past else draw.choice(past) if shape == "scattered" else past[-1]
                if not past or draw.random() >= copies:
                    length = int(size * draw.uniform(0.5, 1.5))
                    parts = draw.choices(pool, k=2 + length // mean)
                    last = f"Page {number}. " + "\n\n".join(parts)[:length]
                    past.append(last)
                rows["text"].append(last)
                rows["id"].append(f"<urn:uuid:{draw.getrandbits(128):032x}>")
                rows["dump"].append(DUMPS[number % len(DUMPS)])
                rows["url"].append(f"https://site{number % 997}.example/page-{number}")
                rows["date"].append(f"2023-{1 + number % 12:02d}-01T00:00:00Z")
            writer.write_table(pa.table(rows, schema=schema))
    partial.rename(path)
    return path


def command(kind: str, source: Path) -> list[str]:
    program = str(Path(sys.executable).parent / "tangobench")
    words = [program, kind, "fineweb", "--profile", "paper", "--source", str(source)]
    return [*words, "--workers", "1", "--set", "allow_fewer=true"]


def planned(source: Path) -> dict[str, float]:
    told = json.loads(measure([*command("plan", source), "--json"])["stdout"])
    names = {"memory_mb": "memory_bytes", "disk_mb": "disk_bytes", "read_mb": "read_bytes"}
    return {"core_seconds": told["core_seconds"], **{n: told[k] / 1e6 for n, k in names.items()}}


def built(source: Path, out: Path) -> dict[str, float]:
    """What a build takes, and the load meanwhile."""
    log = HOME / "plan-reads.txt"
    trace = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=read,pread64"]
    trace += ["-P", str(source), "-o", str(log)]
    run = measure([*trace, *command("build", source), "--out", str(out), "--quiet"], out)
    read = sum(map(int, re.findall(r"= (\d+)$", log.read_text(), re.MULTILINE)))
    files = {p.stat().st_ino: p.stat().st_size for p in out.rglob("*") if p.is_file()}
    shutil.rmtree(out)
    sizes = {"disk_mb": sum(files.values()) / 1e6, "read_mb": read / 1e6}
    return {"core_seconds": run["cpu_seconds"], "memory_mb": run["anonymous_mb"], **sizes,
            "load": run["load"]}  # fmt: skip


def compare(shape: str, megabytes: int, known: dict[str, Any] | None) -> dict[str, Any]:
    """A case, measured, or with what is known of its build."""
    source, out = make(shape, megabytes), HOME / f"plan-out-{shape}-{megabytes}"
    plan = planned(source)
    took = {n: known[n][1] for n in plan} | {"load": known["load"]} if known else built(source, out)
    found: dict[str, Any] = {"shape": shape, "megabytes": megabytes, "load": took["load"]}
    for name, value in plan.items():
        found[name] = [round(value, 1), round(took[name], 1), round(value / took[name], 2)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megabytes", type=int, nargs="*", default=[100, 1000])
    parser.add_argument("--only", action="append", choices=list(SHAPES))
    parser.add_argument("--planned", action="store_true")
    args = parser.parse_args()
    path = RESULTS / "plan.json"
    known = json.loads(path.read_text())["cases"] if path.exists() else []
    found = {(case["megabytes"], case["shape"]): case for case in known}
    cases = (
        list(found)
        if args.planned
        else [(m, s) for m in args.megabytes for s in args.only or SHAPES]
    )
    for megabytes, shape in cases:
        old = found[megabytes, shape] if args.planned else None
        case = found[megabytes, shape] = compare(shape, megabytes, old)
        print(json.dumps(case), flush=True)
        save("plan", [], {"cases": [found[key] for key in sorted(found)]})


if __name__ == "__main__":
    main()
