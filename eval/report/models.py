"""The pages of models and of speed: counts beside the paper's, and what benchmarks measured.

- Counts come from the configs and the formulas, not from a table, so a difference would show.
- Seconds belong to one machine; the pages say which, and show ratios and growth, which carry over.
- Benchmark files may have `rows` with a peer: job, peer, ratio, aim, ours, theirs, command and
  versions; a ratio is theirs over ours unless the aim says "at most". An aim is judged from its own
  words, and a missed one is shown as missed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from tangobench.catalogue import CATALOGUE, title_of
from tangobench.eval import published as paper
from tangobench.eval.comparison.runs import operations
from tangobench.eval.costs.speed import machine_text, speed_tables
from tangobench.eval.report.charts import Axis, Figure, Series, Table, lines
from tangobench.eval.report.drawing import short
from tangobench.eval.report.gather import Found
from tangobench.model.config import ARCHS, Arch, printed, published

Case = dict[str, Any]

_LENGTHS: Final = tuple(2**power for power in range(8, 17))  # 256 … 65,536
_PAPER_DM_MATH: Final = {"tango": "52.94B", "wango": "52.91B"}  # §5.1, the only two it prints
_LENGTH_AXIS: Final = Axis(label="sequence length T (log scale)", log=True, base=2)
TITLES: Final = {
    "dedup": "Exact deduplication",
    "encoding": "GPT-2 encoding",
    "flows": "Orchestration",
    "growth": "Growth with the input",
    "loader": "Reading rows",
    "model": "Models",
    "near": "Near-duplicate audit",
    "urls": "URL normalisation",
}
_GROWING: Final = {
    **{name: f"{data.label} build" for name, data in CATALOGUE.items()},
    "training": "training, 12 steps",
    "verify": "verify",
}
_BOUNDS: Final = {
    "memcpy_mb_per_second": "copying memory",
    "xxh3_128_mb_per_second": "keys (xxh3, 128 bits)",
    "sha256_mb_per_second": "sha256",
    "durable_write_mb_per_second": "writing a file durably",
    "parquet_text_mb_per_second": "decoding text from Parquet",
    "encoder_mb_per_second": "GPT-2 encoding",
}


def models_context(found: Found) -> dict[str, Any]:
    """Everything that the models page shows."""
    return {
        "parameters": parameters(),
        "operations": operation_table(),
        "macs_figure": macs_figure(),
        "own_speed": speed(found.own_speed, "yours"),
        "speed": speed(found.measurements.get("speed", {}), "ours"),
        "measured": measured(found.measurements.get("model", {})),
    }


def parameters() -> Table:
    """Widths and nonembedding parameters of the published configs beside the paper's."""
    rows = []
    for (arch, dataset), (width, count) in paper.PARAMETERS.items():
        config = published(cast(Arch, arch), dataset)
        name = paper.LABELS[arch] + (f", {title_of(dataset)}" if arch == "gau" else "")
        blocks = "one, applied 4 times" if config.shared else "four"
        counts = (config.width, width, config.nonembedding_params, count)
        rows.append((name, blocks, *(f"{number:,}" for number in counts)))
    head = ("Model", "Blocks", "Width, here", "Width, paper", "Parameters, here", "paper")
    return Table(columns=head, rows=rows)


def operation_table() -> Table:
    """MACs of one sequence at every dataset's context."""
    rows = []
    for arch in ARCHS:
        here = {n: printed(operations(published(arch, n), d.context)) for n, d in CATALOGUE.items()}
        ours = (here["lean"], here["dm_math"], _PAPER_DM_MATH.get(arch, "–"), paper.SCALING[arch])
        rows.append((paper.LABELS[arch], here["fineweb"], paper.MACS[arch], *ours))
    head = (
        *("Model", "FineWeb-Edu, here", "paper", "Lean, here"),
        *("DM Math, here", "paper", "Growth with length"),
    )
    return Table(columns=head, rows=rows)


def macs_figure() -> Figure:
    """Operation counts against sequence length."""

    def counted(arch: Arch, length: int) -> float:
        config = published(arch, "fineweb")
        return operations(replace(config, context=max(length, config.context)), length)

    series = [
        Series(key=a, label=paper.LABELS[a], x=_LENGTHS, y=[counted(a, t) for t in _LENGTHS])
        for a in ARCHS
    ]
    return lines(
        "Operations for one sequence",
        series,
        x=_LENGTH_AXIS,
        y=Axis(label="MACs, one forward pass (log scale)", log=True, text=short, rounded=True),
        description="Multiply–accumulate operations of one forward pass against sequence length "
        "for the six published FineWeb-Edu models. TANGO, both Transformers and GAU grow "
        "quadratically; WANGO and FLASH linearly.",
        note="The published FineWeb-Edu models, counted from the equations; the output projection "
        "is included. WANGO and FLASH stay linear.",
    )


def measured(results: dict[str, Any]) -> dict[str, Any] | None:
    """Charts of blocks against length and tables of kernels and decoding; None if not measured."""
    cases: list[Case] = results.get("cases", [])
    if not cases:
        return None
    blocks = [case for case in cases if case["what"] == "block" and case.get("part") != "memory"]
    charts = (("total_s", "CPU seconds", "Time"), ("peak_mb", "MB", "Memory"))
    return {
        "figures": [
            growth(blocks, key, unit, f"{what} of one block, forward and backward")
            for key, unit, what in (charts if blocks else ())
        ],
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
        "tables": list(speed_tables(results)),
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
        kept = sorted((b["T"], b[key]) for b in blocks if b["arch"] == arch and b[key] > 0)
        if kept:
            lengths, values = zip(*kept, strict=True)
            series.append(Series(key=arch, label=paper.LABELS[arch], x=lengths, y=values))
    return lines(
        title,
        series,
        x=_LENGTH_AXIS,
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
        for other in (by_how.get("chunked"), by_how.get("naive")):
            if other is None:
                row += ["–", "–"]
                continue
            memory = other["peak_mb"] / max(ours["peak_mb"], 1)
            row += [f"{other['total_s'] / ours['total_s']:.1f}×", f"{memory:.1f}×"]
        rows.append((*row, f"{100 * ours['share']:.0f}%"))
    head = ("Size", "Chunked: time", "memory", "Naive: time", "memory")
    columns = (*head, "Share of this machine’s GEMM rate")
    return Table(columns=columns, rows=rows) if rows else None


def decode(cases: Sequence[Case]) -> Table | None:
    """Time of a generated token after a short and a long prefix."""
    rows = []
    for arch in ARCHS:
        points = sorted((case["T"], case["total_s"]) for case in cases if case["arch"] == arch)
        if len(points) > 1:
            (brief, first), (long, last) = points[0], points[-1]
            rows.append((paper.LABELS[arch], f"{brief:,}", f"{long:,}", f"{last / first:.2f}×"))
    head = ("Model", "Short prefix", "Long prefix", "Time of a token, long over short")
    return Table(columns=head, rows=rows) if rows else None


def speed_context(found: Found) -> dict[str, Any]:
    """Everything that the speed page shows."""
    measured = {
        name: of_file
        for name, result in found.measurements.items()
        if (of_file := [row for row in result.get("rows", []) if "peer" in row])
    }
    rows = [row for of_file in measured.values() for row in of_file]
    return {
        "files": [
            {
                "name": name,
                "title": TITLES.get(name) or title_of(name),
                "table": _peers(of_file),
                "figures": growth_figures(found.measurements[name]) if name == "growth" else [],
                "commands": list(dict.fromkeys(row["command"] for row in of_file)),
                "versions": _versions(of_file),
            }
            for name, of_file in measured.items()
        ],
        "bounds": bounds(found.measurements.get("fineweb", {}).get("bounds")),
        "compared": len(rows),
        "missed": sum(reached(row) is False for row in rows),
    }


def reached(row: Case) -> bool | None:
    """Whether a row meets its aim; None if it has no number to meet."""
    found = re.fullmatch(r"(≥|≤|at least|at most) *([0-9.]+) *[×x]?", row["aim"].strip())
    if found is None:
        return None
    bound = float(found[2])
    return bool(row["ratio"] <= bound if found[1] in ("≤", "at most") else row["ratio"] >= bound)


def bounds(measured: dict[str, Any] | None) -> Table | None:
    """What one core can do at most in each of the parts that builds are made of."""
    if measured is None:
        return None
    rows = [[_BOUNDS[key], f"{measured[key]:,.0f}"] for key in _BOUNDS if key in measured]
    return Table(columns=["One core", "MB/s"], rows=rows)


def growth_figures(measured: dict[str, Any]) -> list[Figure]:
    """CPU seconds and peak memory of every job against the size of its input."""
    points = {name: measured[name]["points"] for name in _GROWING if name in measured}

    def chart(column: int, title: str, label: str, description: str, note: str) -> Figure:
        series = []
        for name, at in points.items():
            x, y = [point[0] / at[0][0] for point in at], [point[column] for point in at]
            series.append(Series(key=name, label=_GROWING[name], x=x, y=y))
        return lines(
            title,
            series,
            x=Axis(label="times the smallest input (log scale)", log=True),
            y=Axis(label=f"{label} (log scale)", log=True, rounded=True),
            description=description,
            note=note,
            points=True,
        )

    units = (f"{_GROWING[n]}: {at[0][0]:,} {measured[n]['unit']}" for n, at in points.items())
    return [
        chart(
            1,
            "CPU time against input",
            "CPU seconds, one worker",
            "CPU seconds of every job from one to a hundred times its smallest input.",
            f"Start-up is the flat part. The smallest inputs: {'; '.join(units)}.",
        ),
        chart(
            2,
            "Peak memory against input",
            "private memory, MB",
            "Peak private memory of every job from one to a hundred times its input.",
            "Shards are memory-mapped and belong to the system.",
        ),
    ]


def _peers(rows: Iterable[Case]) -> Table:
    words = {True: "reached", False: "missed", None: "–"}
    cells = []
    for row in rows:
        verdict = (f"{row['ratio']:,.3g}", row["aim"], words[reached(row)])
        cells.append([row["job"], row["peer"], *verdict, row["ours"], row["theirs"]])
    head = ("Job", "Compared with", "Ratio", "Aim", "Verdict", "Here", "There")
    return Table(columns=head, rows=cells)


def _versions(rows: Iterable[Case]) -> str:
    versions = {name: version for row in rows for name, version in row["versions"].items()}
    return ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
