"""The model kernels side by side with plain versions: time, peak memory and growth in T.

- Every measurement is a fresh single-threaded process: CPU time of the best repetition, and the
  peak of resident memory above what the inputs need. Peers alternate in one run, so that other load
  on the machine hits them alike; ratios are what counts. Results are compared before ratios are.
- `share` is the useful arithmetic (causal pairs only) over this machine's GEMM rate in the same
  dtype, measured in the same process; `bound_s` are the products alone, at their shapes.
- Each part takes one to five minutes and replaces its own cases in the result file.

Usage: `python bench/model.py [--part tango …]`; results in bench/results/model.json
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from model_summary import Found, rows, summary

from tangobench import cli
from tangobench.pipeline.core.hashing import case_json

RESULTS = Path(__file__).parent / "results" / "model.json"
PEERS = Path("/var/tmp/tangobench-bench/peers-model")  # FLASH-pytorch beside the installed torch
PINNED = ("FLASH-pytorch==0.1.9",)
PACKAGES = (*PINNED, "einops", "rotary-embedding-torch")
ARCHS = ("tango", "wango", "recurrent_transformer", "gau", "flash")  # untied: the same block
LENGTHS = (1024, 2048, 4096, 8192, 16384)


def parts() -> dict[str, list[Found]]:
    """Cases of each part."""
    return {
        "tango": [*kernels(1024, 7120, 4), *kernels(2048, 28480, 16), *kernels(4096, 4480, 16)],
        "bound": [
            {"what": "step", "arch": "tango", "how": "ours", "T": 256, "repeat": 3},
            *(
                {"what": "strips", "how": "tiled", "T": t, "F": width, "H": heads, "repeat": 3}
                for t, width, heads in ((1024, 7120, 4), (2048, 28480, 16), (8192, 3560, 2))
            ),
        ],
        "tango-long": [
            *kernels(8192, 3560, 2),
            *kernels(8192, 560, 2),
            *kernels(16384, 1780, 1, repeat=1),
        ],
        "tango-bf16": [
            *kernels(2048, 28480, 16, dtype="bf16"),
            *kernels(8192, 3560, 2, dtype="bf16"),
        ],
        "wango": [
            {"what": "wango", "how": "tiled", "T": 2048, "F": 7120, "H": 4},
            {"what": "wango", "how": "naive", "T": 2048, "F": 7120, "H": 4},
            *(
                {"what": "wango", "how": "tiled", "T": t, "F": 1120, "H": 4, "repeat": 3}
                for t in LENGTHS
            ),
        ],
        "exponents": [
            {"what": "block", "arch": arch, "T": t, "F": 512} for t, arch in product(LENGTHS, ARCHS)
        ],
        "memory": [
            {"what": "block", "arch": "tango", "T": 2048, "how": "fused", "repeat": 1},
            {"what": "block", "arch": "tango", "T": 2048, "how": "kept", "repeat": 1},
            *(
                {"what": "block", "arch": arch, "T": 8192, "repeat": 1}
                for arch in (*ARCHS, "untied_transformer")
            ),
        ],
        "flash": [
            {"what": "flash", "how": how, "T": t, "F": width}
            for t, width in ((2048, 7152), (8192, 1024))
            for how in ("ours", "public")
        ],
        "loss": [
            {"what": "loss", "how": how, "T": t, "repeat": 1}
            for t in (1024, 8192)
            for how in ("plain", "torch", "chunked")
        ],
        "compile": [
            {"what": "training", "arch": arch, "how": how, "T": 96, "repeat": 5}
            for arch in ARCHS
            for how in ("eager", "compiled")
        ],
        "decode": [
            {"what": "decode", "arch": arch, "T": t, "F": 512, "repeat": 3}
            for t in (256, 2048, 16384)
            for arch in ARCHS
        ],
    }  # fmt: skip


def kernels(length: int, width: int, heads: int, **more: Any) -> Iterator[Found]:
    """Our kernel, query chunking at two sizes and, where it fits, all pairs at once."""
    size = {"what": "tango", "T": length, "F": width, "H": heads, **more}
    yield {**size, "how": "tiled"}
    yield {**size, "how": "chunked"}
    if length <= 8192:
        yield {**size, "how": "chunked", "chunk": 512}
    if length * length * heads <= 1 << 25:
        yield {**size, "how": "naive"}


def gemm_rate(bf16: bool) -> float:
    import torch

    a = torch.randn(1536, 1536, dtype=torch.bfloat16 if bf16 else torch.float32)
    best = math.inf
    for _ in range(4):
        start = time.process_time()
        a @ a
        best = min(best, time.process_time() - start)
    return 2 * 1536**3 / best / 1e9


def measure(case: Found) -> Found:
    """Inside a child: one case."""
    import torch
    from model_cases import HEAD, WHAT, Products

    from tangobench.eval.costs.timing import resident_peak
    from tangobench.model.training.plan import useful_flop
    from tangobench.model.training.recipes import find

    torch.set_num_threads(1)
    bf16 = case.get("dtype") == "bf16"
    rate = gemm_rate(bf16)
    run, check = WHAT[case["what"]](case)
    before = resident_peak()
    forward, total = math.inf, math.inf
    for _ in range(case.get("repeat", 2)):
        start = time.process_time()
        middle = run()
        forward = min(forward, middle - start)
        total = min(total, time.process_time() - start)
    peak = (resident_peak() - before) / 1e6
    found = {"forward_s": forward, "total_s": total, "peak_mb": peak, "check": check()}
    found["gemm"] = max(rate, gemm_rate(bf16))
    useful = 0.0
    if case["what"] in ("tango", "strips"):
        causal = case["T"] * (case["T"] + 1) / 2
        useful = 2 * causal * (3 * case["F"] + 5 * HEAD * case["H"])
    if case["what"] == "step":
        recipe = find(f"mini-dm_math-{case['arch']}").recipe
        lengths = [case["T"]] * recipe.batch
        useful = useful_flop(recipe.model_config(), lengths, recipe.batch * (case["T"] - 1))
    if useful:
        found["share"] = useful / total / 1e9 / found["gemm"]
    if case["what"] in ("strips", "step"):
        with Products() as products:
            run()
        found["bound_s"] = min(products.seconds() for _ in range(case.get("repeat", 2)))
        found["bound_share"] = useful / found["bound_s"] / 1e9 / found["gemm"]
    return {**case, **found, "cpu": cpu_name(), "load": round(os.getloadavg()[0], 1)}


def child(case: Found) -> Found:
    # Memory is kept as `tangobench train` keeps it.
    tunables = ":".join(f"glibc.malloc.{name}" for name in cli._TUNABLES)
    environment = {
        **os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(PEERS),
        "GLIBC_TUNABLES": tunables,
    }  # fmt: skip
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case}:\n{done.stderr[-2000:]}")
    found: Found = json.loads(done.stdout.splitlines()[-1])
    label = " ".join(f"{k}={v}" for k, v in case.items())
    shares = ""
    if "bound_s" in found:
        shares = f"{found['share']:8.1%} of GEMM{found['bound_s'] / found['total_s']:7.1%} of bound"
    peak = f"{found['peak_mb']:9.0f} MB"
    print(f"{label:<64}{found['total_s']:9.3f} s{peak}{shares}", flush=True)
    return found


def save(part: str, found: list[Found]) -> Found:
    import torch

    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    before = {"cpu": known.get("machine", {}).get("cpu")}  # cases did not always name it
    kept = [{**before, **case} for case in known.get("cases", []) if case["part"] != part]
    cases = [*kept, *({"part": part, **case} for case in found)]
    report = {
        "machine": {
            "cpu": ", ".join(sorted({case["cpu"] for case in cases})),
            "threads": 1,
            "torch": torch.__version__,
        },
        "command": "python bench/model.py",
        "summary": summary(cases),
        "rows": rows(cases, {"torch": torch.__version__, **dict(p.split("==") for p in PINNED)}),
        "cases": cases,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(case_json(report))
    return report


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def install_peers() -> None:
    if not PEERS.exists():
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target"]
        subprocess.run([*command, str(PEERS), *PACKAGES], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="*", choices=sorted(parts()), help="default: all")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(json.loads(options.case))))
        return 0
    for part in options.part or parts():
        if part == "flash":
            install_peers()
        report = save(part, [child(case) for case in parts()[part]])
    print(json.dumps(report["summary"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
