"""The model kernels side by side with plain versions: time, peak memory and growth in T.

- Every measurement is a fresh single-threaded process: CPU time of the best repetition, and the
  peak of resident memory above what the inputs need. Peers alternate in one run, so that other load
  on the machine hits them alike; ratios are what counts.
- `share` is the useful arithmetic (causal pairs only) over this machine's GEMM rate, measured in
  the same process.
- Query chunking is the paper's way to save memory, written from eq. 4 to 6: all keys for 128
  queries at a time, each chunk recomputed in the backward pass.

Usage: `python bench/model.py [--full]`; results in bench/results/model.json
"""

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "model.json"
HEAD = 32  # query/key channels of a head
KERNELS = ("tiled", "chunked", "naive")


def aggregation(case: dict[str, Any]) -> Callable[[], Any]:
    """TANGO's or WANGO's gate average, forward and backward."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from tangobench.model import crossgate, layers
    from tangobench.model.tango_kernel import TangoKernel
    from tangobench.model.wango_kernel import WangoKernel

    length, width, heads = case["T"], case["F"], case["H"]
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, heads, length, HEAD, generator=generator) for _ in range(2))
    q, k = layers.unit(q) * 10, layers.unit(k)
    features = [q, k]
    if case["what"] == "wango":
        features += [layers.phi(q / math.sqrt(10)), layers.phi(k * math.sqrt(10))]
    gate = torch.randn(1, length, width, generator=generator)
    null, upstream = torch.zeros(heads), torch.randn(1, length, width, generator=generator)
    inputs = [x.requires_grad_() for x in (*features, gate, null)]

    def chunk(q_part: Any, k: Any, gate: Any, null: Any, start: int) -> Any:
        row = torch.arange(start, start + q_part.shape[2])[:, None]
        visible = torch.arange(length) <= row
        mass = torch.einsum("bhqd,bhkd->bhqk", q_part, k).exp() * visible
        summed = torch.einsum("bhqk,bkhg->bqhg", mass, gate.view(1, length, heads, -1))
        total = mass.sum(-1) + (row[:, 0] + 1) * null.exp()[:, None]
        return summed / total.transpose(1, 2)[..., None]

    def chunked() -> Any:
        parts = [
            checkpoint(chunk, q[:, :, i : i + 128], k, gate, null, i, use_reentrant=False)
            for i in range(0, length, 128)
        ]
        return torch.cat(parts, 1).flatten(2)

    kernel = WangoKernel(64) if case["what"] == "wango" else TangoKernel()
    forward = {
        "tiled": lambda: crossgate.average(kernel, features, gate, null),
        "chunked": chunked,
        "naive": lambda: chunk(q, k, gate, null, 0).flatten(2),
    }[case["how"]]

    def run() -> float:
        for x in inputs:
            x.grad = None
        out = forward()
        middle = time.process_time()
        out.backward(upstream)
        return middle

    return run


def block(case: dict[str, Any]) -> Callable[[], Any]:
    """One block application of an architecture, forward and backward."""
    import torch

    from tangobench.model.config import ModelConfig
    from tangobench.model.init import initialise
    from tangobench.model.language import LanguageModel

    config = ModelConfig(
        arch=case["arch"], width=case["F"], d_model=128, heads=4, depth=1, context=case["T"],
        vocabulary=16,
    )  # fmt: skip
    model = LanguageModel(config)
    initialise(model, 17)
    h = torch.randn(1, case["T"], 128, requires_grad=True)

    def run() -> float:
        out = model.blocks[0](h)
        middle = time.process_time()
        out.sum().backward()
        return middle

    return run


def output_loss(case: dict[str, Any]) -> Callable[[], Any]:
    """Cross-entropy on the GPT-2 vocabulary, forward and backward."""
    import torch
    import torch.nn.functional as F

    from tangobench.model.loss import summed_nll

    rows = case["T"]
    hidden = torch.randn(rows, 512, requires_grad=True)
    embed = (0.02 * torch.randn(50_257, 512)).requires_grad_()
    target = torch.randint(0, 50_257, (rows,))

    def run() -> float:
        hidden.grad = embed.grad = None
        if case["how"] == "plain":
            out = F.cross_entropy(hidden @ embed.T, target, reduction="sum")
        else:
            out = summed_nll(hidden, embed, target)
        middle = time.process_time()
        out.backward()
        return middle

    return run


def decode(case: dict[str, Any]) -> Callable[[], Any]:
    """64 decoding steps after a prompt of T tokens; the prompt is not timed."""
    import torch

    from tangobench.model import build
    from tangobench.model.config import ModelConfig

    config = ModelConfig(
        arch=case["arch"], width=case["F"], d_model=128, heads=4, depth=4, context=1 << 16,
        vocabulary=16,
    )  # fmt: skip
    model = build(config)
    with torch.no_grad():
        _, state = model.prefill(torch.zeros(1, case["T"], dtype=torch.long))

    def run() -> float:
        for _ in range(64):
            model.step(torch.zeros(1, dtype=torch.long), state)
        return time.process_time()

    return run


WHAT = {"tango": aggregation, "wango": aggregation, "block": block, "loss": output_loss,
        "decode": decode}  # fmt: skip


def gemm_rate() -> float:
    import torch

    a = torch.randn(1536, 1536)
    best = math.inf
    for _ in range(3):
        start = time.process_time()
        a @ a
        best = min(best, time.process_time() - start)
    return 2 * 1536**3 / best / 1e9


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Inside a child: one case."""
    import torch

    torch.set_num_threads(1)
    rate = gemm_rate()
    run = WHAT[case["what"]](case)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    forward, total = math.inf, math.inf
    for _ in range(case.get("repeat", 2)):
        start = time.process_time()
        middle = run()
        forward = min(forward, middle - start)
        total = min(total, time.process_time() - start)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    found = {"forward_s": forward, "total_s": total, "peak_mb": peak}
    found["gemm"] = (rate + gemm_rate()) / 2
    if case["what"] == "tango":
        pairs = case["T"] * (case["T"] + 1) / 2
        useful = 2 * pairs * (3 * case["F"] + 5 * HEAD * case["H"])
        found["share"] = useful / total / 1e9 / found["gemm"]
    return {**case, **found}


def child(case: dict[str, Any]) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    label = " ".join(f"{k}={v}" for k, v in case.items())
    print(f"{label:<64}{found['total_s']:9.2f} s{found['peak_mb']:9.0f} MB", flush=True)
    return found


def cases(full: bool) -> list[dict[str, Any]]:
    sizes = [(1024, 7120, 4), (2048, 7120, 4)]
    if full:
        sizes += [(2048, 28480, 16), (4096, 4480, 16), (8192, 3560, 2), (16384, 1780, 1)]
    listed: list[dict[str, Any]] = []
    for length, width, heads in sizes:
        for how in KERNELS:
            if how != "naive" or length * length * heads <= 1 << 25:
                listed.append({"what": "tango", "how": how, "T": length, "F": width, "H": heads})
    lengths = (2048, 4096, 8192, 16384) if full else (1024, 2048, 4096)
    for length in lengths:
        listed.append({"what": "wango", "how": "tiled", "T": length, "F": 1120, "H": 4})
        for arch in ("tango", "wango", "recurrent_transformer", "gau", "flash"):
            listed.append({"what": "block", "arch": arch, "T": length, "F": 512})
    for arch in ("tango", "wango", "flash"):
        for length in (256, 8192 if full else 2048):
            listed.append({"what": "decode", "arch": arch, "T": length, "F": 512})
    for how in ("plain", "chunked"):
        listed.append({"what": "loss", "how": how, "T": 8192 if full else 1024, "repeat": 1})
    return listed


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Ratios and growth exponents."""
    ratios, exponents = {}, {}
    tango = {(c["T"], c["F"], c["how"]): c for c in found if c["what"] == "tango"}
    for (length, width, how), case in tango.items():
        if how == "tiled":
            peer = tango[length, width, "chunked"]
            ratios[f"T={length} F={width}"] = {
                "speed_over_chunking": peer["total_s"] / case["total_s"],
                "memory_of_chunking": case["peak_mb"] / max(peer["peak_mb"], 1),
                "share_of_gemm": case["share"],
            }
    curves: dict[str, list[tuple[int, float]]] = {}
    for case in found:
        if case["what"] in ("wango", "block", "decode"):
            name = f"{case['what']} {case.get('arch', 'kernel')}"
            curves.setdefault(name, []).append((case["T"], case["total_s"]))
    for name, points in curves.items():
        (t0, s0), (t1, s1) = points[0], points[-1]
        exponents[name] = math.log(s1 / s0) / math.log(t1 / t0)
    return {"tango": ratios, "growth_exponents": exponents}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the paper's sizes; half an hour")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(json.loads(options.case))))
        return 0
    found = [child(case) for case in cases(options.full)]
    report = {
        "machine": {"cpu": platform.processor() or platform.machine(), "threads": 1},
        "summary": summary(found),
        "cases": found,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report["summary"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
