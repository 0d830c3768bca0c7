"""The Lean build beside its parts and beside a simple extractor.

- CPU time (own and that of git) of reading, cutting, encoding, row assembly and the whole build, in
  one process; the bar is the whole build at most twice reading plus encoding.
- Wall time with one and with two workers on the same units; needs an otherwise idle machine.
- The simple extractor takes lines that start with `theorem` or `lemma`, the first `:=`, and cuts at
  the next line with text in column 0: the way of most public scripts. Its proofs are compared.

Usage: `python bench/lean.py --source MATHLIB`; results in bench/results/lean.json
"""

import argparse
import os
import platform
import re
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tangobench.pipeline import api
from tangobench.pipeline.lean_fetch import open_repository
from tangobench.pipeline.lean_git import list_files, read_files
from tangobench.pipeline.lean_proofs import Declaration, extract
from tangobench.pipeline.lean_spec import Spec
from tangobench.pipeline.lean_tokens import prompt_seam
from tangobench.pipeline.manifest import pretty_json
from tangobench.pipeline.spec import load_spec
from tangobench.pipeline.tokens import gpt2

RESULTS = Path(__file__).parent / "results" / "lean.json"
_HEAD = re.compile(
    r"^(?:@\[.*?\]\s*)?(?:private |protected )?(theorem|lemma)\s+(\S+)", re.MULTILINE
)
_NEXT = re.compile(r"^\S", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description="the Lean build, stage by stage")
    parser.add_argument("--source", help="a Mathlib repository (default: fetched, cached)")
    parser.add_argument("--profile", default="paper")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the fastest counts")
    parser.add_argument("--scaling", action="store_true", help="also one against two workers")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    report = measure(options.source, options.profile, options.repeat)
    if options.scaling:
        report["load_before_scaling"] = os.getloadavg()[0]
        report["two_workers_over_one"] = scaling(options.source, options.profile, options.repeat)
    print(pretty_json(report))
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(pretty_json(report) + "\n")


def cpu() -> float:
    """Seconds of this process and of finished children (git)."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def timed(work: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """The least CPU time of some runs, and the last answer."""
    best, answer = float("inf"), None
    for _ in range(repeat):
        before = cpu()
        answer = work()
        best = min(best, cpu() - before)
    return best, answer


def measure(source: str | None, profile: str, repeat: int) -> dict[str, Any]:
    spec = load_spec(Spec, "lean", profile)
    git_dir = open_repository(source or spec.repository, spec.commit, root=spec.root)
    vocabulary = gpt2()

    def read() -> list[bytes]:
        listing = list_files(git_dir, spec.commit, spec.root)
        return list(read_files(git_dir, listing.files))

    def encode() -> int:
        parts = [data.decode() for data in files]
        for data, found in zip(files, declared, strict=True):
            for d in found:
                parts.append(data[prompt_seam(data, d) : d.proof_start].decode())
                parts.append(data[d.proof_start : d.proof_end].decode())
        return len(vocabulary.encode_batch(parts)[0])

    seconds: dict[str, float] = {}
    seconds["read"], files = timed(read, repeat)
    seconds["extract"], declared = timed(lambda: [extract(data) for data in files], repeat)
    seconds["encode"], tokens = timed(encode, repeat)
    seconds["simple extractor"], simple = timed(
        lambda: [simple_extractor(data.decode()) for data in files], repeat
    )
    seconds["whole build"], _ = timed(lambda: build(source, profile, 1), repeat)
    size = sum(map(len, files))
    return {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "files": len(files),
        "bytes": size,
        "tokens_encoded": tokens,
        "cpu_seconds": {name: round(value, 2) for name, value in seconds.items()},
        "megabytes_per_cpu_second": {
            name: round(size / value / 1e6, 1) for name, value in seconds.items()
        },
        "files_per_cpu_second": round(len(files) / seconds["whole build"]),
        "share_of_build": {
            name: round(seconds[name] / seconds["whole build"], 3)
            for name in ("read", "extract", "encode")
        },
        "build_over_read_and_encode": round(
            seconds["whole build"] / (seconds["read"] + seconds["encode"]), 2
        ),
        "simple_extractor": compare(files, declared, simple),
    }


def build(source: str | None, profile: str, workers: int) -> None:
    with tempfile.TemporaryDirectory(prefix="bench-lean-") as folder:
        api.build("lean", profile, workers=workers, out=folder, source=source)


def scaling(source: str | None, profile: str, repeat: int) -> float:
    """Wall time with one worker over wall time with two."""
    best = {}
    for workers in (1, 2):
        walls = []
        for _ in range(repeat):
            start = time.perf_counter()
            build(source, profile, workers)
            walls.append(time.perf_counter() - start)
        best[workers] = min(walls)
    return round(best[1] / best[2], 2)


def simple_extractor(text: str) -> list[tuple[str, str]]:
    """Name and proof, the simple way."""
    found = []
    for head in _HEAD.finditer(text):
        body = text.find(":=", head.end())
        if body < 0:
            continue
        following = _NEXT.search(text, body)
        end = following.start() if following else len(text)
        found.append((head.group(2), text[body + 2 : end].strip()))
    return found


def compare(
    files: list[bytes], declared: list[list[Declaration]], simple: list[list[tuple[str, str]]]
) -> dict[str, int]:
    """How many of our proofs the simple way finds whole, and how many it makes up."""
    ours = same = made_up = 0
    for data, found, other in zip(files, declared, simple, strict=True):
        mine = {(d.name, d.proof(data).strip()) for d in found}
        names = {d.name for d in found}
        ours += len(found)
        same += sum(row in mine for row in other)
        made_up += sum(name not in names for name, _ in other)
    return {"our_proofs": ours, "the_same": same, "declarations_made_up": made_up}


if __name__ == "__main__":
    main()
