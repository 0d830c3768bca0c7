"""Tables of measured speed and memory, from what `tangobench model speed --save` wrote.

- Tokens per second and bytes belong to one machine, which the note names; the paper's operation
  count stands beside them and carries over.

Usage: `render(list(speed_tables(json.loads(Path("speed.json").read_text()))), "markdown")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.model.config import ARCHS


def speed_tables(measured: dict[str, Any]) -> Iterator[Table]:
    """Training, then decoding: a row per model and length."""
    for task, name in (("train", "Training"), ("decode", "Decoding")):
        cases = [case for case in measured["cases"] if case["task"] == task]
        cases.sort(key=lambda case: (ARCHS.index(case["arch"]), case["length"]))
        if cases:
            yield Table(
                title=f"{name}: tokens per second, peak memory and operations",
                columns=[
                    *("Model", "T", "Tokens/s, measured", "Peak memory, measured"),
                    *("Forward MACs per token, formula", "GFLOP/s by the formula"),
                ],
                rows=[_row(case) for case in cases],
                note=f"Ours; the paper has none. {cases[0]['size']} models on "
                f"{machine_text(measured)}. The formula counts every pair of positions, as the "
                "paper does; the code skips masked ones, so its own rate is lower.",
            )


def machine_text(measured: dict[str, Any]) -> str:
    """Where a file's seconds were measured."""
    machine, first = measured["machine"], measured["cases"][0]
    return (
        f"{machine['device']}, {first['threads']} thread(s), {first['precision']}, "
        f"PyTorch {machine['torch']}"
    )


def _row(case: dict[str, Any]) -> list[str]:
    passes = 3 if case["task"] == "train" else 1  # backward is twice forward
    work = 2e-9 * passes * case["tokens_per_second"] * case["forward_macs_per_token"]
    return [
        LABELS[case["arch"]],
        f"{case['length']:,}",
        f"{case['tokens_per_second']:,.0f}{' (disturbed)' if case['disturbed'] else ''}",
        f"{case['peak_bytes'] / 1e6:,.0f} MB",
        f"{case['forward_macs_per_token'] / 1e6:,.2f}M",
        f"{work:,.1f}",
    ]
