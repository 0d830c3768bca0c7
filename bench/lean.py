"""The Lean build beside its parts and beside other extractors.

- CPU time (own and that of git) of reading, cutting, encoding, row assembly and the whole build, in
  one process, with tiktoken and with the fast encoder; the aim is the whole build at most twice
  reading plus encoding, 4.5 times with the fast encoder.
- Wall time of the build and of the whole command with one and with two workers; needs an otherwise
  idle machine.
- The simple extractor takes lines that start with `theorem` or `lemma`, the first `:=`, and cuts at
  the next line with text in column 0: the way of most public scripts. Its proofs are compared.
- itp-interface is a public extractor; its names and statements are compared on a sample of files.

Usage: `python bench/lean.py --source MATHLIB`; results in bench/results/lean.json
"""

import argparse
import functools
import gc
import hashlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tangobench.pipeline import api
from tangobench.pipeline.core.hashing import case_json, pretty_json
from tangobench.pipeline.core.spec import load_spec
from tangobench.pipeline.lean.encode import prompt_seam
from tangobench.pipeline.lean.fetch import open_repository
from tangobench.pipeline.lean.git import list_files, read_files
from tangobench.pipeline.lean.lexer import mask
from tangobench.pipeline.lean.proofs import Declaration, extract
from tangobench.pipeline.lean.spec import Spec
from tangobench.pipeline.tokenizer.base import ENGINE_VARIABLE, gpt2

RESULTS = Path(__file__).parent / "results" / "lean.json"
_HEAD = re.compile(
    r"^(?:@\[.*?\]\s*)?(?:private |protected )?(theorem|lemma)\s+(\S+)", re.MULTILINE
)
_NEXT = re.compile(r"^\S", re.MULTILINE)
PEER = "itp-interface==1.12.0"
PEER_FILES = 300


def main() -> None:
    parser = argparse.ArgumentParser(description="the Lean build, stage by stage")
    parser.add_argument("--source", help="a Mathlib repository (default: fetched, cached)")
    parser.add_argument("--profile", default="paper")
    parser.add_argument("--repeat", type=int, default=2, help="runs; the fastest counts")
    parser.add_argument("--scaling", action="store_true", help="also one against two workers")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    gc.set_threshold(50_000)  # as the command line sets it
    report: dict[str, Any] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    for engine in ("reference", "fast"):
        os.environ[ENGINE_VARIABLE] = engine
        report[engine] = measure(options.source, options.profile, options.repeat)
    report["extractors"] = extractors(options.source, options.profile, options.repeat)
    if options.scaling:
        report["wall_seconds"] = scaling(options.source, options.profile, options.repeat)
    report["rows"] = rows(report)
    print(pretty_json(report))
    if options.write:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(case_json(report))


def rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The measurements as lines of the report's table."""
    found, lines = report["extractors"], []
    for engine, name, aim in (("reference", "tiktoken", 2), ("fast", "gigatoken", 4.5)):
        spent = report[engine]["cpu_seconds"]
        ours, theirs = spent["whole build"], spent["read"] + spent["encode"]
        ratio = report[engine]["build_over_read_and_encode"]
        peer = f"reading and encoding alone, {name}"
        texts = f"{ours:.1f} s of CPU", f"{theirs:.1f} s of CPU"
        lines.append(("whole build of Mathlib", peer, ratio, f"at most {aim}", *texts))
    rate = found["ours"]["megabytes_per_cpu_second"]
    for name, other in found.items():
        if name != "ours":
            theirs = other["megabytes_per_cpu_second"]
            whole = other.get("our_proofs") or other["our_statements"]
            counts = f"{other['the_same']:,} of {whole:,} the same"
            peer = f"{name}: {counts}, {other['declarations_made_up']:,} made up"
            texts = f"{rate} MB/s", f"{theirs} MB/s"
            lines.append(("cutting proofs", peer, round(rate / theirs, 2), "–", *texts))
    for what, (one, two) in report.get("wall_seconds", {}).items():
        job = f"whole {what}, wall time"
        ratio = round(one / two, 2)
        lines.append((job, "one worker, by two", ratio, "≥ 1.7", f"{two} s", f"{one} s"))
    shared = {
        "command": "make bench-lean SOURCE=/path/to/mathlib4",
        "versions": {"python": report["python"]},
    }
    keys = ("job", "peer", "ratio", "aim", "ours", "theirs")
    return [{**dict(zip(keys, line, strict=True)), **shared} for line in lines]


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


def contents(source: str | None, profile: str) -> dict[str, bytes]:
    spec = load_spec(Spec, "lean", profile)
    git_dir = open_repository(source or spec.repository, spec.commit, root=spec.root)
    listing = list_files(git_dir, spec.commit, spec.root)
    paths = [file.path for file in listing.files]
    return dict(zip(paths, read_files(git_dir, listing.files), strict=True))


def measure(source: str | None, profile: str, repeat: int) -> dict[str, Any]:
    """One encoder: the parts, the whole, and their ratio."""
    vocabulary = gpt2()
    files = list(contents(source, profile).values())
    declared = [extract(data) for data in files]
    gc.collect()
    gc.freeze()  # what this bench holds is not looked through while the build works

    def encode() -> int:
        parts = [data.decode() for data in files]
        for data, found in zip(files, declared, strict=True):
            for d in found:
                parts.append(data[prompt_seam(data, d) : d.proof_start].decode())
                parts.append(data[d.proof_start : d.proof_end].decode())
        return len(vocabulary.encode_batch(parts)[0])

    seconds: dict[str, float] = {}
    seconds["read"], _ = timed(lambda: contents(source, profile), repeat)
    seconds["extract"], _ = timed(lambda: [extract(data) for data in files], repeat)
    seconds["encode"], tokens = timed(encode, repeat)
    seconds["whole build"] = whole_build(source, profile, repeat)
    size, whole = sum(map(len, files)), seconds["whole build"]
    shares = {name: seconds[name] / whole for name in ("read", "extract", "encode")}
    shares["rows, hashes, audit, files"] = 1 - sum(shares.values())
    return {
        "files": len(files),
        "bytes": size,
        "tokens_encoded": tokens,
        "cpu_seconds": {name: round(value, 2) for name, value in seconds.items()},
        "megabytes_per_cpu_second": {
            name: round(size / value / 1e6, 1) for name, value in seconds.items()
        },
        "files_per_cpu_second": round(len(files) / whole),
        "share_of_build": {name: round(share, 3) for name, share in shares.items()},
        "build_over_read_and_encode": round(whole / (seconds["read"] + seconds["encode"]), 2),
    }


def extractors(source: str | None, profile: str, repeat: int) -> dict[str, Any]:
    """Ours, the simple one and the public one, on the same files."""
    files = contents(source, profile)
    datas = list(files.values())
    ours, declared = timed(lambda: [extract(data) for data in datas], repeat)
    other, simple = timed(lambda: [simple_extractor(data.decode()) for data in datas], repeat)
    size = sum(map(len, datas))
    return {
        "ours": {"megabytes_per_cpu_second": round(size / ours / 1e6, 1)},
        "simple": {
            "megabytes_per_cpu_second": round(size / other / 1e6, 1),
            **compare(datas, declared, simple),
        },
        PEER: peer(files),
    }


def peer(files: dict[str, bytes]) -> dict[str, Any]:
    """The public extractor in an environment of its own, on a fixed sample of files."""
    order = sorted(files, key=lambda path: hashlib.sha256(path.encode()).digest())[:PEER_FILES]
    with tempfile.TemporaryDirectory(prefix="bench-lean-peer-") as name:
        folder = Path(name)
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "pip", "install", *quiet, "--no-deps", PEER], check=True)
        for i, path in enumerate(order):
            (folder / f"{i:04}.lean").write_bytes(files[path])
        script = Path(__file__).with_name("peers_lean.py")
        subprocess.run([python, script, folder, folder / "out.json"], check=True)
        answer = json.loads((folder / "out.json").read_text())
    size = sum(len(files[path]) for path in order)
    ours = same = made_up = 0
    for path, found in zip(order, answer["found"], strict=True):
        mine = statements(files[path])
        names = {name for name, _ in mine}
        ours += len(mine)
        same += len({(name, _words(text)) for name, text in found} & mine)
        made_up += sum(name not in names for name, _ in found)
    return {
        "files": len(order),
        "megabytes_per_cpu_second": round(size / answer["cpu_seconds"] / 1e6, 2),
        "our_statements": ours,
        "the_same": same,
        "found": sum(map(len, answer["found"])),
        "declarations_made_up": made_up,
    }


def statements(data: bytes) -> set[tuple[str, str]]:
    """Names and statements without comments, as our extractor cuts them."""
    code = bytes(
        0x20 if hidden == 0x20 else byte for byte, hidden in zip(data, mask(data), strict=True)
    )
    found = set()
    for d in extract(data):
        text = code[d.kw_start : d.proof_start].decode()
        rest = text[text.index(d.name) + len(d.name) :].strip().removesuffix(":=")
        found.add((d.name, _words(rest)))
    return found


def _words(text: str) -> str:
    return " ".join(text.strip().strip(":").split())


def whole_build(source: str | None, profile: str, repeat: int) -> float:
    """CPU seconds of the build in this process, without removing what it wrote."""
    best = float("inf")
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="bench-lean-") as folder:
            work = functools.partial(api.build, "lean", profile, out=folder, source=source)
            best = min(best, timed(work, 1)[0])
    return best


def scaling(source: str | None, profile: str, repeat: int) -> dict[str, list[float]]:
    """Least wall time of the build, and of the command around it, with one and two workers."""

    def walls(workers: int) -> tuple[float, float]:
        with tempfile.TemporaryDirectory(prefix="bench-lean-") as folder:
            words = ["build", "lean", "--profile", profile, "--workers", str(workers)]
            words += ["--out", folder, "--quiet", *(["--source", source] if source else [])]
            command = [sys.executable, "-m", "tangobench", *words]
            start = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            whole = time.perf_counter() - start
            run = json.loads((Path(folder) / f"lean-{profile}" / "run.json").read_text())
            return run["seconds"], whole

    runs = [(walls(1), walls(2)) for _ in range(repeat)]
    return {
        what: [round(min(run[workers][place] for run in runs), 2) for workers in (0, 1)]
        for place, what in enumerate(("build", "command"))
    }


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
