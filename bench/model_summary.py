"""Ratios, growth exponents and table lines from the cases of the model benchmark.

- Peers are compared with ours only where they gave the same norms.
- A ratio is theirs over ours: larger is better for us, unless the aim says "at most".

Usage: `summary(cases)["growth_exponents"]`, `rows(cases, versions)`.
"""

import math
from collections.abc import Iterator
from typing import Any

Found = dict[str, Any]
# (T, F, dtype) -> how much faster than query chunking the kernel should be
SPEED_AIMS = {(2048, 28480, None): "≥ 3", (8192, 3560, None): "≥ 5"}


def same(left: Found, right: Found) -> bool:
    """Whether two ways of one case gave the same norms."""
    tolerance = 0.02 if left.get("dtype") == "bf16" else 1e-3
    return all(
        math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
        for a, b in zip(left["check"], right["check"], strict=True)
    )


def summary(cases: list[Found]) -> Found:
    """Ratios of peers to ours (larger: ours is better) and growth exponents."""
    ratios: Found = {}
    for ours in cases:
        if ours.get("how") not in ("tiled", "ours") and (ours["what"], ours.get("how")) != (
            "loss", "chunked"
        ):  # fmt: skip
            continue
        size = [ours.get(key) for key in ("what", "T", "F", "H", "dtype")]
        name = " ".join(str(part) for part in size if part)
        entry = ratios.setdefault(name, {})
        if "share" in ours:
            entry["share_of_gemm"] = round(ours["share"], 3)
        if "bound_s" in ours:
            entry["share_of_bound"] = round(ours["bound_s"] / ours["total_s"], 3)
        for peer in cases:
            if peer is ours or [peer.get(k) for k in ("what", "T", "F", "H", "dtype")] != size:
                continue
            if not same(ours, peer):
                raise SystemExit(f"{name}: {peer['how']} gives another result")
            how = peer["how"] + (f"-{peer['chunk']}" if "chunk" in peer else "")
            entry[how] = {
                "time": round(peer["total_s"] / ours["total_s"], 2),
                "memory": _memory_ratio(peer, ours),
            }
    eager = {(c["arch"], c["T"]): c["total_s"] for c in cases if c.get("how") == "eager"}
    compiled = {
        f"{c['arch']} T={c['T']}": round(eager[c["arch"], c["T"]] / c["total_s"], 2)
        for c in cases
        if c.get("how") == "compiled"
    }
    growth = exponents(cases)
    return {"ratios": ratios, "growth_exponents": growth, "speed_of_torch_compile": compiled}


def exponents(cases: list[Found]) -> dict[str, float]:
    """Slope of log time over log T from 2,048 on (decoding: over all prefixes), least squares."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for case in cases:
        if case["part"] == "decode" or (
            case["T"] >= 2048
            and (case["part"] == "exponents" or (case["part"] == "wango" and case["F"] == 1120))
        ):
            name = f"{case['what']} {case.get('arch', 'kernel')}"
            point = (math.log(case["T"]), math.log(case["total_s"]))
            curves.setdefault(name, []).append(point)
    found = {}
    for name, points in curves.items():
        x0, y0 = (sum(column) / len(points) for column in zip(*points, strict=True))
        above = sum((x - x0) * (y - y0) for x, y in points)
        below = sum((x - x0) ** 2 for x, _ in points)
        found[name] = round(above / max(below, 1e-9), 3)
    return found


def rows(cases: list[Found], versions: dict[str, str]) -> list[Found]:
    """Lines of the table of all benchmarks."""
    lines = [*_tango_lines(cases), *_peer_lines(cases)]
    fused, kept = (
        next((c for c in cases if c["part"] == "memory" and c.get("how") == how), None)
        for how in ("fused", "kept")
    )
    if fused and kept:
        job = "TANGO block fused with its projections, T 2,048, published width"
        lines.append(_line(job, "activations kept", (fused, kept), "less memory"))
    limits = {"wango kernel": 1.05, "decode wango": 0.05, "decode flash": 0.05}
    for name, value in exponents(cases).items():
        if name in limits:
            lines.append(
                {
                    "job": f"growth exponent of {name}, T to 16,384",
                    "peer": "linear" if name == "wango kernel" else "constant",
                    "ratio": value,
                    "aim": f"at most {limits[name]}",
                    "ours": str(value),
                    "theirs": "1" if name == "wango kernel" else "0",
                }
            )
    return [{**line, "command": "python bench/model.py", "versions": versions} for line in lines]


def _tango_lines(cases: list[Found]) -> Iterator[Found]:
    tango = [case for case in cases if case["what"] == "tango"]
    for ours in (case for case in tango if case["how"] == "tiled"):
        key = (ours["T"], ours["F"], ours.get("dtype"))
        size = f"T {ours['T']:,}, F {ours['F']:,}, {ours['H']} heads, {ours.get('dtype', 'fp32')}"
        for peer in tango:
            if peer is ours or (peer["T"], peer["F"], peer.get("dtype")) != key:
                continue
            how = f"query chunking ({peer.get('chunk', 128)})"
            yield _line(
                f"TANGO forward+backward, {size}",
                "naive" if peer["how"] == "naive" else how,
                (ours, peer),
                SPEED_AIMS.get(key, "–"),
            )
        yield _share_line(f"TANGO share of the GEMM rate, {size}", ours, "≥ 0.65")
    for ours in (case for case in cases if "bound_s" in case):
        size = f"T {ours['T']:,}"
        if ours["what"] == "step":
            yield _share_line(f"mini TANGO step, share of the GEMM rate, {size}", ours, "≥ 0.55")
        else:
            size = f"{size}, F {ours['F']:,}, {ours['H']} heads"
        yield {
            "job": f"TANGO {ours['what']}, {size}",
            "peer": "the same matrix products alone",
            "ratio": round(ours["bound_s"] / ours["total_s"], 3),
            "aim": "–" if ours["what"] == "step" else "≥ 0.95",
            "ours": f"{ours['total_s']:.2f} s, {ours['share']:.0%} of the GEMM rate",
            "theirs": f"{ours['bound_s']:.2f} s, {ours['bound_share']:.0%} of the GEMM rate",
            "cpu": ours["cpu"],
        }


def _share_line(job: str, ours: Found, aim: str) -> Found:
    """Useful arithmetic beside the GEMM rate."""
    return {
        "job": job,
        "peer": "GEMM",
        "ratio": round(ours["share"], 3),
        "aim": aim,
        "ours": f"{ours['share'] * ours['gemm']:.0f} GFLOP/s useful",
        "theirs": f"{ours['gemm']:.0f} GFLOP/s",
    }


def _peer_lines(cases: list[Found]) -> Iterator[Found]:
    for what, ours_how, job, aim in (
        ("wango", "tiled", "WANGO forward+backward", "–"),
        ("flash", "ours", "FLASH block, forward+backward", "≥ 1"),
        ("loss", "chunked", "output loss, V 50,257", "–"),
    ):
        of_job = [case for case in cases if case["what"] == what]
        for ours in (case for case in of_job if case["how"] == ours_how):
            for peer in of_job:
                alike = all(peer.get(key) == ours.get(key) for key in ("T", "F", "H"))
                if alike and peer["how"] != ours_how:
                    width = f", F {ours['F']:,}" if "F" in ours else ""
                    yield _line(f"{job}, T {ours['T']:,}{width}", peer["how"], (ours, peer), aim)


def _line(job: str, peer: str, pair: tuple[Found, Found], aim: str) -> Found:
    ours, theirs = pair
    return {
        "job": job,
        "peer": peer,
        "ratio": float(f"{theirs['total_s'] / ours['total_s']:.3g}"),
        "aim": aim,
        "ours": _cost(ours),
        "theirs": _cost(theirs),
    }


def _cost(case: Found) -> str:
    memory = "" if case["peak_mb"] is None else f", {case['peak_mb']:,.0f} MB"
    return f"{case['total_s']:.2f} s{memory}"


def _memory_ratio(peer: Found, ours: Found) -> float | None:
    """None where a peak was not measured."""
    if peer["peak_mb"] is None or ours["peak_mb"] is None:
        return None
    return round(float(peer["peak_mb"] / max(ours["peak_mb"], 1)), 2)
