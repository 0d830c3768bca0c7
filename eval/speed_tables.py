"""Tables of measured speed and memory, from what `tangobench model speed --save` wrote.

- Tokens per second and bytes belong to one machine, which the note names; the paper's operation
  count stands beside them and carries over.
- The count is that of a parallel pass, so only training has a rate by it: a decoded token of WANGO
  or FLASH needs fewer operations.

Usage: `render(list(speed_tables(json.loads(Path("speed.json").read_text()))), "markdown")`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tangobench.eval.published import LABELS
from tangobench.eval.render import Table
from tangobench.model.config import ARCHS

_NOTES: Final = {
    "train": "The formula counts every pair of positions, as the paper does; the code skips masked "
    "ones, so its own rate is lower.",
    "decode": "The formula is that of a parallel pass over T tokens. FLASH is timed at the start "
    "of a chunk; its last tokens cost more.",
}


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
                    "Forward MACs per token, formula",
                    *(["GFLOP/s by the formula"] if task == "train" else []),
                ],
                rows=[_row(case) for case in cases],
                note=f"Ours; the paper has none. {cases[0]['size']} models on "
                f"{machine_text(measured)}. {_NOTES[task]}",
            )


def machine_text(measured: dict[str, Any]) -> str:
    """Where a file's seconds were measured."""
    machine, first = measured["machine"], measured["cases"][0]
    rounds = first.get("rounds", 1)
    return (
        f"{machine['device']}, {first['threads']} thread(s), {first['precision']}, "
        f"PyTorch {machine['torch']}{f', fastest of {rounds} rounds' if rounds > 1 else ''}"
    )


def _row(case: dict[str, Any]) -> list[str]:
    # Two operations per MAC, and backward is twice forward.
    work = 6e-9 * case["tokens_per_second"] * case["forward_macs_per_token"]
    return [
        LABELS[case["arch"]],
        f"{case['length']:,}",
        f"{case['tokens_per_second']:,.0f}{' (disturbed)' if case['disturbed'] else ''}",
        f"{case['peak_bytes'] / 1e6:,.0f} MB",
        f"{case['forward_macs_per_token'] / 1e6:,.2f}M",
        *([f"{work:,.1f}"] if case["task"] == "train" else []),
    ]
