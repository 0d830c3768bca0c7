"""The datasets: one frozen table, and nobody else lists them by hand.

A package is named, not imported. The first metric of a dataset decides comparisons.
Usage: `CATALOGUE["lean"].context`, `title_of("lean")`, `METRICS["lean_joint"]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Dataset:
    """One dataset of the paper."""

    name: str
    title: str
    label: str
    """A short title, for navigation and table cells."""
    about: str
    """What it holds, in a sentence or two."""
    sample: str
    """How the sample differs from the real dataset."""
    configs: tuple[str, ...] = ("default",)
    metrics: Mapping[str, str]
    """Title of every validation metric; the first one decides comparisons."""
    context: int
    """Tokens per row in the paper."""
    vocabulary: int
    columns: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Column to type by config, in order; `rows` are tokens of equal length, `list` of any."""
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Column to type by kind of side table."""
    package: str
    preload: tuple[str, ...]
    """Modules that the fork server imports once, so that its workers inherit them."""

    @property
    def metric(self) -> str:
        return next(iter(self.metrics))


_PIPELINE: Final = "tangobench.pipeline"
_GPT2: Final = f"{_PIPELINE}.tokenizer.preload"


def _columns(pairs: str) -> dict[str, str]:
    """`name:type` pairs, in order."""
    return dict(pair.split(":") for pair in pairs.split())


_DECISIONS: Final = _columns(
    "id:string dump:string component:string partition:string kept:bool reason:string "
    "representative:string"
)
_NEAR_DUPLICATES: Final = _columns(
    "validation_id:string training_id:string bands:uint8 similarity:double"
)
_DECLARATIONS: Final = _columns(
    "path:string declaration:string kind:string style:string line:int32 proof_start:int64 "
    "proof_end:int64 proof_tokens:int64 split:string outcome:string row:int64 "
    "proof_in_training:bool statement_in_training:bool"
)

CATALOGUE: Final[dict[str, Dataset]] = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            name="fineweb",
            title="FineWeb-Edu",
            label="FineWeb-Edu",
            about="Educational web text, split by the date of the crawl and not by chance: later "
            "documents are validation, and none of them was seen in training under any address.",
            sample="This sample is made of invented texts that come with tangobench.",
            metrics={"fineweb": "FineWeb-Edu"},
            context=8192,
            vocabulary=50_257,
            columns={
                "default": _columns(
                    "tokens:rows doc_index:list<uint32> doc_start:list<uint16> "
                    "doc_offset:list<uint32>"
                )
            },
            tables={"decisions": _DECISIONS, "near_duplicates": _NEAR_DUPLICATES},
            package=f"{_PIPELINE}.fineweb",
            preload=(f"{_PIPELINE}.fineweb.build", _GPT2),
        ),
        Dataset(
            name="lean",
            title="Lean Mathlib",
            label="Lean",
            about="Every source file of Mathlib at one commit, and every proof in it as a prompt "
            "with a completion.",
            sample="This sample is a small Lean library that comes with tangobench, not Mathlib.",
            configs=("source", "proof"),
            metrics={
                "lean_joint": "Lean joint",
                "lean_source": "Lean source",
                "lean_proof": "Lean proof",
            },
            context=2048,
            vocabulary=50_257,
            columns={
                "source": _columns("tokens:list path:string start:uint32 length:uint32"),
                "proof": _columns(
                    "tokens:list target_start:uint16 path:string declaration:string kind:string"
                ),
            },
            tables={"declarations": _DECLARATIONS},
            package=f"{_PIPELINE}.lean",
            preload=(f"{_PIPELINE}.lean.build", _GPT2),
        ),
        Dataset(
            name="dm_math",
            title="DeepMind Mathematics",
            label="DM Math",
            about="Generated school mathematics in 56 modules at three levels. The question's own "
            "hash decides its split, so no validation question can occur in training.",
            sample="This sample has few examples of each combination; the generator is the real "
            "one.",
            metrics={"dm_math": "DeepMind Mathematics"},
            context=256,
            vocabulary=73,
            columns={"default": _columns("tokens:list target_start:uint16 combination:uint8")},
            package=f"{_PIPELINE}.dm_math",
            preload=(f"{_PIPELINE}.dm_math.build",),
        ),
    )
}
TEST_SETS: Final[dict[str, Dataset]] = {
    "dm_math_tests": Dataset(
        name="dm_math_tests",
        title="DeepMind Mathematics, tests",
        label="DM Math tests",
        about="The official suite's interpolation (56 modules) and extrapolation (15 modules). No "
        "question of it can be in a training set of DeepMind Mathematics, by the question's hash.",
        sample="This sample has two examples of each module; the generator is the real one.",
        configs=("interpolate", "extrapolate"),
        metrics={"interpolate": "Interpolation", "extrapolate": "Extrapolation"},
        context=256,
        vocabulary=73,
        package=f"{_PIPELINE}.dm_math.suite",
        preload=(f"{_PIPELINE}.dm_math.suite",),
    )
}
"""Datasets to score on and never to train on; nothing loops over them with the others."""
# Modules of DeepMind Mathematics that ignore what makes a level: their levels are one distribution.
ONE_DISTRIBUTION: Final = (
    "measurement__conversion",
    "measurement__time",
    "probability__swr_p_level_set",
    "probability__swr_p_sequence",
)
COLUMNS: Final[dict[str, str]] = {
    "tokens": "token ids of the row",
    "doc_index": "for each span of the row, its document: a row of `decisions`, all files counted",
    "doc_start": "for each span, its first token in the row",
    "doc_offset": "for each span, the token of the document with which it begins",
    "target_start": "index of the first token that is scored",
    "combination": "number of module and level; the names are in the lock's notes",
    "path": "file in the repository",
    "start": "first byte in the file",
    "length": "bytes in the file",
    "declaration": "full name of the declaration",
    "kind": "keyword of the declaration",
    "style": "how the proof begins: `by`, a term, `where` or alternatives",
    "line": "line of the declaration in the file",
    "proof_start": "first byte of the proof in the file",
    "proof_end": "byte after the proof",
    "proof_tokens": "tokens of the proof",
    "split": "side of the split",
    "outcome": "kept, or why there is no row",
    "row": "row of the split that holds it, or null",
    "proof_in_training": "the same proof is in the training split",
    "statement_in_training": "the same statement is in the training split",
    "id": "id of the document",
    "dump": "crawl of the document",
    "component": "documents linked by URL or content have the same one",
    "partition": "side of the split, or ignored",
    "kept": "survived deduplication",
    "reason": "why it was kept or dropped",
    "representative": "id of the document that is kept of its component",
    "validation_id": "id of a validation document",
    "training_id": "id of a training document that is nearly the same",
    "bands": "bands of the MinHash signature that agree",
    "similarity": "estimated Jaccard similarity of their shingles",
}
"""What every column of shards and side tables means, for cards."""
METRICS: Final[dict[str, str]] = {
    metric: title for dataset in CATALOGUE.values() for metric, title in dataset.metrics.items()
}


def title_of(name: str) -> str:
    """A dataset's name for people; a dataset of your own is called what you called it."""
    known = CATALOGUE | TEST_SETS
    return known[name].title if name in known else name


def metrics_of(name: str) -> list[str]:
    """The metrics of a dataset, the deciding one first."""
    return list(CATALOGUE[name].metrics) if name in CATALOGUE else [name]
