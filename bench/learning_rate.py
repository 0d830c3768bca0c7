"""How the learning rate of the mini recipes was chosen: short runs on seeds that no result uses.

- Each architecture trains a shortened schedule at each rate. No row is seen twice, so the loss over
  the last quarter of the steps is a loss on unseen rows.
- One rate is chosen for all: the one with the lowest mean over the architectures, because a rate
  per architecture would be a choice that the paper does not make.

Usage: `python bench/learning_rate.py --out out` (needs out/dm_math-mini).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tangobench.model.training.recipes import RECIPES, Run
from tangobench.pipeline.core.hashing import case_json

# One of each kind: WANGO is close to TANGO, and GAU to FLASH, at these lengths.
ARCHS = ("tango", "recurrent_transformer", "untied_transformer", "flash")
RATES = (1e-3, 2e-3, 4e-3)
SEEDS = (5, 109)  # not one of the recipes' pairs
RESULTS = Path(__file__).parent / "results" / "learning_rate.json"


def final_loss(dataset: str, arch: str, rate: float, steps: int, out: Path) -> float:
    """Mean training loss of the last quarter of a shortened run."""
    import torch

    from tangobench.model.training.train import Options, train

    torch.set_num_threads(1)
    recipe = RECIPES[f"mini-{dataset}-{arch}"]
    short = dataclasses.replace(
        recipe,
        name=f"rate-{rate:g}-{recipe.name}",
        steps=steps,
        warmup=max(1, steps // 20),
        lr_peak=rate,
        lr_final=rate / 10,
    )
    folder = train(Run(short, *SEEDS), Options(out=out))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return statistics.fmean(line["loss"] for line in lines if line["step"] > steps * 3 // 4)


def main() -> None:
    """Train all, print the table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="dm_math", choices=("dm_math", "lean"))
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    with ProcessPoolExecutor(args.workers) as pool:
        jobs = {
            (arch, rate): pool.submit(
                final_loss, args.dataset, arch, rate, args.steps, args.out.absolute()
            )
            for arch in ARCHS
            for rate in RATES
        }
        losses = {arch: {f"{r:g}": jobs[arch, r].result() for r in RATES} for arch in ARCHS}
    means = {f"{r:g}": statistics.fmean(row[f"{r:g}"] for row in losses.values()) for r in RATES}
    for name, row in [*losses.items(), ("mean", means)]:
        print(f"{name:24}" + "  ".join(f"{rate}: {loss:.4f}" for rate, loss in row.items()))
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    found[args.dataset] = {"steps": args.steps, "seeds": SEEDS, "losses": losses, "means": means}
    RESULTS.write_text(case_json(dict(sorted(found.items()))))


if __name__ == "__main__":
    main()
