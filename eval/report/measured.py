"""Measured speed and memory of the models, from what `model speed` and the benchmark wrote.

- Seconds and tokens per second belong to one machine; the page says which, and shows operation
  counts, ratios and growth, which carry over.

Usage: `measured(json.loads(Path("bench/results/model.json").read_text()))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tangobench.eval.costs.speed import machine_text, speed_tables
from tangobench.eval.published import LABELS
from tangobench.eval.report.charts import Axis, Figure, Series, Table, lines
from tangobench.model.config import ARCHS

Case = dict[str, Any]


def measured(results: dict[str, Any]) -> dict[str, Any] | None:
    """Charts of blocks against length and tables of kernels and decoding; None if not measured."""
    cases: list[Case] = results.get("cases", [])
    if not cases:
        return None
    blocks = [case for case in cases if case["what"] == "block" and case.get("part") != "memory"]
    return {
        "figures": [
            growth(blocks, "total_s", "CPU seconds", "Time of one block, forward and backward"),
            growth(blocks, "peak_mb", "MB", "Memory of one block, forward and backward"),
        ]
        if blocks
        else [],
        "kernels": kernels([case for case in cases if case["what"] == "tango"]),
        "decode": decode([case for case in cases if case["what"] == "decode"]),
    }


def speed(results: dict[str, Any], whose: str) -> dict[str, Any] | None:
    """Tokens per second and peak memory of training and decoding; None if not measured."""
    cases: list[Case] = results.get("cases", [])
    if not cases:
        return None
    figures = []
    for task, name in (("train", "Training"), ("decode", "Decoding")):
        of_task = [{**case, "T": case["length"]} for case in cases if case["task"] == task]
        if of_task:
            note = "Whole model, four block applications: compare slopes and distances."
            title = f"{name}: tokens per second, {whose}"
            figures.append(growth(of_task, "tokens_per_second", "tokens/s", title, note))
    return {
        "figures": figures,
        "tables": [(table.title, table) for table in speed_tables(results)],
        "machine": machine_text(results),
        "size": cases[0]["size"],
    }


def growth(
    blocks: Sequence[Case],
    key: str,
    unit: str,
    title: str,
    note: str = "One core, width 512: compare slopes and distances, not seconds.",
) -> Figure:
    """A measurement of each architecture against sequence length."""
    series = []
    for arch in ARCHS:
        points = sorted((case["T"], case[key]) for case in blocks if case["arch"] == arch)
        kept = [(length, value) for length, value in points if value > 0]
        if kept:
            lengths, values = zip(*kept, strict=True)
            series.append(Series(key=arch, label=LABELS[arch], x=lengths, y=values))
    return lines(
        title,
        series,
        x=Axis(label="sequence length T (log scale)", log=True, base=2),
        y=Axis(label=f"{unit} (log scale)", log=True),
        description=f"{title}, in {unit}, against sequence length for {len(series)} architectures.",
        note=note,
        points=True,
    )


def kernels(cases: Sequence[Case]) -> Table | None:
    """TANGO's kernel beside the paper's query chunking and the plain equation."""
    sizes: dict[tuple[Any, ...], dict[str, Case]] = {}
    for case in cases:
        if "chunk" not in case:  # 128 queries at a time; other sizes are in the result file
            size = (case.get("dtype", "fp32"), case["T"], case["F"], case["H"])
            sizes.setdefault(size, {})[case["how"]] = case
    rows = []
    for (kind, length, width, heads), by_how in sorted(sizes.items(), reverse=True):
        ours = by_how["tiled"]
        row = [f"T {length:,}, F {width:,}, {heads} heads, {kind}"]
        for peer in ("chunked", "naive"):
            other = by_how.get(peer)
            row.append("–" if other is None else f"{other['total_s'] / ours['total_s']:.1f}×")
            memory = None if other is None else other["peak_mb"] / max(ours["peak_mb"], 1)
            row.append("–" if memory is None else f"{memory:.1f}×")
        rows.append((*row, f"{100 * ours['share']:.0f}%"))
    head = (
        *("Size", "Chunked: time", "memory", "Naive: time", "memory"),
        "Share of this machine’s GEMM rate",
    )
    return Table(columns=head, rows=rows) if rows else None


def decode(cases: Sequence[Case]) -> Table | None:
    """Time of a generated token after a short and a long prefix."""
    rows = []
    for arch in ARCHS:
        points = sorted((case["T"], case["total_s"]) for case in cases if case["arch"] == arch)
        if len(points) < 2:
            continue
        (short, first), (long, last) = points[0], points[-1]
        row = (LABELS[arch], f"{short:,}", f"{long:,}", f"{last / first:.2f}×")
        rows.append(row)
    head = ("Model", "Short prefix", "Long prefix", "Time of a token, long over short")
    return Table(columns=head, rows=rows) if rows else None
