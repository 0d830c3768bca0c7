"""Scored runs, grouped so that only architectures differ inside a group.

- A result whose checksum does not hold is refused by the reader.
- Runs on different roots are never put into one group.

Usage: `groups(read_results([Path("out/results")]))`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tangobench.eval.macs import formula
from tangobench.eval.published import METRICS
from tangobench.model.config import ARCHS, ModelConfig
from tangobench.model.recipes import Recipe

Result = dict[str, Any]

_FAMILIES: Final = ("published", "mini", "sample")
_NAMES: Final = {"fineweb": "FineWeb-Edu", "lean": "Lean", "dm_math": "DeepMind Mathematics"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Runs of one dataset, family, depth and root, by architecture in the paper's order."""

    dataset: str
    family: str
    depth: int
    root: str
    by_arch: Mapping[str, Sequence[Result]]

    @property
    def metrics(self) -> list[str]:
        """The group's metrics, the one that decides first."""
        lean = ["lean_joint", "lean_source", "lean_proof"]
        return lean if self.dataset == "lean" else [self.dataset]

    @property
    def first(self) -> Result:
        """Any run, for what all have in common."""
        return next(iter(self.by_arch.values()))[0]

    def title(self, what: str, metric: str | None = None) -> str:
        """The title of a table of something that the paper does not report."""
        depth = "" if self.depth == 4 else f", depth {self.depth}"
        name = METRICS[metric] if metric else _NAMES.get(self.dataset, self.dataset)
        return f"{what}: {name}, {self.family} runs{depth}"

    def note(self, text: str) -> str:
        """The note below it."""
        return f"Ours; the paper has none. {text} Data root {self.root[:16]}…"


def groups(results: Sequence[Result]) -> list[Group]:
    """All groups: published runs first, then mini and sample ones; ablations are in none."""
    found: dict[tuple[int, str, int, str], list[Result]] = {}
    for result in (result for result in results if result["family"] != "ablation"):
        place = _FAMILIES.index(result["family"])
        key = (place, result["dataset"], result["depth"], result["data"]["root"])
        found.setdefault(key, []).append(result)
    made = []
    for (_, dataset, depth, root), runs in sorted(found.items(), key=lambda item: item[0]):
        by_arch = {arch: [run for run in runs if run["arch"] == arch] for arch in ARCHS}
        made.append(
            Group(
                dataset=dataset,
                family=runs[0]["family"],
                depth=depth,
                root=root,
                by_arch={arch: chosen for arch, chosen in by_arch.items() if chosen},
            )
        )
    return made


def run_macs(result: Result) -> int:
    """Operations of one forward pass over a whole context of the run's model."""
    config = Recipe(**result["recipe"]).model_config()
    return operations(config, config.context)


def operations(config: ModelConfig, length: int) -> int:
    """All multiply–accumulates of one forward pass over `length` tokens."""
    return int(sum(formula(config, length).values()))


def nll(result: Result, metric: str) -> float | None:
    """A run's score; None if it was not measured."""
    value = result["scores"].get(metric, {}).get("nll")
    return None if value is None else float(value)


def values(runs: Sequence[Result], metric: str) -> list[float]:
    """The scores of runs that have one."""
    return [value for run in runs if (value := nll(run, metric)) is not None]
