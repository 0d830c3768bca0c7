"""A dataset's page: splits, drops, lengths, coverage, audits and real rows.

- Every number comes from the lock or from verified bytes; nothing is sampled at random: rows are
  spread evenly over a split, examples are the first of their kind.
- Sections that a dataset has no data for are absent, not empty.
- A finding is good only if it is zero: a shared key or question never is.
- A character that takes several tokens is shown at the last of them, `░` at the others.
"""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any, Final

import numpy as np
from markupsafe import Markup

from tangobench.errors import CorruptionError
from tangobench.eval.report.charts import Axis, Figure, histogram, module_label
from tangobench.pipeline.core.cards import flatten
from tangobench.pipeline.core.lock import Lock
from tangobench.pipeline.core.progress import size
from tangobench.pipeline.core.shard_reader import map_checked
from tangobench.pipeline.reading import Dataset, Rows, pieces, row_view

NDArray = np.ndarray[Any, Any]

_SHOWN_ROWS: Final = {"train": 8, "validation": 4}
_BINS: Final = 40
_AUDIT_FACTS: Final = 40
_PARTS: Final = ("train", "validation", "dropped")
_DIRECTORIES: Final = 30
_EXAMPLES: Final = 2
_PART: Final = "░"
_FINDINGS: Final = {  # number that must be zero, and the sentence with it
    "shared_keys": "{shared_keys:,} of {validation_keys:,} address and content keys of validation "
    "occur among the {train_keys:,} of training.",
    "proofs_over_30_tokens_also_in_training": "No file is in both splits. "
    "{proofs_also_in_training:,} of {validation_proofs:,} validation proofs also occur word for "
    "word in training (of more than 30 tokens: {proofs_over_30_tokens_also_in_training:,} of "
    "{validation_proofs_over_30_tokens:,}).",
}
_BY_HASH: Final = (
    "0 of {rows:,} {splits} rows have a question that training may have: the last hex digit of a "
    "question's sha256 decides its side, and the build read every question back."
)
_WINDOW: Final = 520  # tokens of a row
_BEFORE: Final = 0.3  # share of a window that is context before the first target


def dataset_context(dataset: Dataset) -> dict[str, Any]:
    lock = dataset.lock
    splits = {name: [_split(dataset, name, s) for s in lock.splits(name)] for name in lock.configs}
    return {
        "lock": lock,
        **totals(lock.shards),
        "configs": [
            {"name": name, **about, "splits": splits[name]} for name, about in lock.configs.items()
        ],
        "drops": [(k.replace("-", " "), n) for k, n in flatten(lock.drops) if n],
        "counts": [(label, value) for label, value in flatten(lock.counts) if value is not None],
        "audit": audit(lock),
        "coverage": _coverage(dataset),
        "modules": _modules(dataset),
        "directories": _directories(dataset),
    }


def totals(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    rows, tokens, length = (sum(s[key] for s in shards) for key in ("rows", "tokens", "bytes"))
    return {"rows": rows, "tokens": tokens, "bytes": size(length)}


def _split(dataset: Dataset, config: str, split: str) -> dict[str, Any]:
    shards, rows = dataset.lock.shards_of(config, split), dataset.rows(config, split)
    found = totals(shards)
    room = len(rows) * dataset.lock.configs[config]["context"]
    shown = spread(len(rows), _SHOWN_ROWS.get(split, 4))
    return {
        "name": split,
        **found,
        "shards": len(shards),
        "padding": 1 - found["tokens"] / room if room else 0.0,
        "figures": _length_figures(rows, len(shards), config, split),
        "views": [{"number": i, **shown_row(dataset, config, rows[i])} for i in shown],
    }


def _length_figures(rows: Rows, shards: int, config: str, split: str) -> list[Figure]:
    if len(rows) == 0:
        return []
    lengths = np.concatenate([rows.shard(index).token_places[2] for index in range(shards)])
    shown = {}
    if "doc_start" in rows[0]:
        shown["Document lengths inside rows", "documents"] = document_lengths(rows, lengths)
    elif lengths.min() < lengths.max():
        shown["Row lengths", "rows"] = lengths
        if "target_start" in rows[0]:
            targets = lengths - rows.column("target_start").astype(np.int64)
            shown["Scored tokens per row", "rows"] = targets
    where = split if config == "default" else f"{config}, {split}"
    return [_length_figure(f"{name}: {where}", n, what) for (name, what), n in shown.items()]


def document_lengths(rows: Rows, lengths: NDArray) -> NDArray:
    """Lengths of the document parts inside packed rows: the last one ends with its row."""
    starts = (np.asarray(each, np.int64) for each in rows.column("doc_start"))
    return np.concatenate([np.diff(s, append=end) for s, end in zip(starts, lengths, strict=True)])


def _length_figure(title: str, lengths: NDArray, what: str) -> Figure:
    top = int(lengths.max())
    width = max(1, -(-(top + 1) // _BINS))
    counts, edges = np.histogram(lengths, np.arange(0, top + 1 + width, width))
    low, middle, high = (int(np.quantile(lengths, q, method="lower")) for q in (0.1, 0.5, 0.9))
    return histogram(
        title,
        edges.tolist(),
        counts.tolist(),
        x=Axis(label="tokens", counts=True),
        y=Axis(label=what, low=0, rounded=True, counts=True),
        note=f"median {middle:,}, 80% from {low:,} to {high:,}, longest {top:,}",
    )


def audit(lock: Lock) -> dict[str, Any] | None:
    """Headline, whether it is clean, and the numbers behind it; None without an audit."""
    leakage = lock.notes.get("leakage", {})
    shared = next((key for key in _FINDINGS if key in leakage), "")
    if not leakage and "combinations" not in lock.notes:
        return None
    try:
        text = _FINDINGS.get(shared, "").format(**leakage)
    except (KeyError, TypeError, ValueError):
        why = f"lock of {lock.name}-{lock.profile}: audit numbers are missing in 'notes.leakage'"
        fix = "restore it, or run the build again"
        raise CorruptionError(why, kind="lock-corrupt", fix=fix) from None
    if not shared and "combinations" in lock.notes:
        held = [shard for shard in lock.shards if shard["split"] != "train"]
        splits = " and ".join(sorted({shard["split"] for shard in held}))
        text = _BY_HASH.format(rows=sum(shard["rows"] for shard in held), splits=splits)
    facts = [(label, value) for label, value in flatten(leakage) if value not in ("", None)]
    clean = not shared or leakage[shared] == 0
    return {"clean": clean, "text": text, "facts": facts[:_AUDIT_FACTS]}


def _coverage(dataset: Dataset) -> list[dict[str, Any]]:
    """Documents per dump: kept for training, kept for validation, dropped."""
    entries = [e for e in dataset.lock.data["side_files"] if e["kind"] == "decisions"]
    if not entries:
        return []
    import polars as pl

    decisions = pl.concat(
        pl.read_parquet(
            map_checked(dataset.folder, entry, "decisions").to_pybytes(),
            columns=["dump", "partition", "kept"],
        )
        for entry in entries
    )
    part = pl.when("kept").then("partition").otherwise(pl.lit("dropped"))
    counts = [(part == name).sum().alias(name) for name in _PARTS]
    rows = decisions.group_by("dump").agg(pl.len().alias("documents"), *counts).sort("dump")
    return rows.to_dicts()


def _modules(dataset: Dataset) -> list[dict[str, Any]]:
    """Examples of every DeepMind Mathematics module at every level."""
    from tangobench.pipeline.dm_math.vocabulary import decode

    lock = dataset.lock
    names = lock.notes.get("combinations")
    if lock.name != "dm_math" or not names:
        return []
    split = "validation" if lock.rows("default", "validation") else "train"
    rows = dataset.rows("default", split)
    column = rows.column("combination")
    found: dict[str, list[dict[str, Any]]] = {}
    for index, name in enumerate(names):
        module, _, level = str(name).rpartition("/")
        places = np.flatnonzero(column == index)[:_EXAMPLES]
        examples = [decode(rows.tokens(int(row))) for row in places]
        found.setdefault(module, []).append({"level": level, "examples": examples})
    return [{"module": m, "label": module_label(m), "levels": found[m]} for m in found]


def _directories(dataset: Dataset) -> list[tuple[str, int]]:
    """Lean declarations by directory, both splits together."""
    if dataset.lock.name != "lean" or "proof" not in dataset.lock.configs:
        return []
    counts: Counter[str] = Counter()
    for split in dataset.lock.splits("proof"):
        for path in dataset.rows("proof", split).column("path"):
            counts["/".join(PurePosixPath(str(path)).parts[:-1][:2]) or "."] += 1
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    shown, rest = ordered[:_DIRECTORIES], ordered[_DIRECTORIES:]
    if rest:
        shown.append((f"{len(rest)} more directories", sum(count for _, count in rest)))
    return shown


def spread(total: int, wanted: int) -> list[int]:
    """Row numbers spread evenly over a split, the first one included."""
    count = min(total, wanted)
    return [index * total // count for index in range(count)]


def shown_row(dataset: Dataset, config: str, row: dict[str, Any]) -> dict[str, Any]:
    view = row_view(dataset.lock, config, row)
    tokens, scored = view.tokens, view.scored
    kinds = np.where(view.masked, "m", np.where(scored, "t", "p"))
    start = window_start(scored, len(tokens), _WINDOW)
    stop = min(len(tokens), start + _WINDOW)
    return {
        "tokens": len(tokens),
        "scored": int(scored.sum()),
        "padding": view.padding,
        "before": start,
        "after": len(tokens) - stop,
        "ids": " ".join(str(token) for token in tokens[start:stop].tolist()),
        "markup": markup(texts(dataset, tokens[start:stop]), kinds[start:stop].tolist()),
        "facts": _facts(dataset.lock, view.columns),
    }


def texts(dataset: Dataset, tokens: NDArray) -> list[str]:
    """Each token's text; UTF-8 is decoded across tokens, since many Lean symbols take several."""
    if dataset.tokenizer is None:
        return pieces(dataset, tokens)
    decode = dataset.tokenizer.decode_bytes
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return [decoder.decode(decode([token])) or _PART for token in tokens.tolist()]


def markup(shown: list[str], kinds: list[str], colours: Sequence[str] = ()) -> Markup:
    """Tokens as HTML: one element per run of a kind, one per token inside, of its colour."""
    parts = []
    opened = [f'<i class="{colour}">' for colour in colours] or ["<i>"] * len(shown)
    for kind, run in groupby(zip(kinds, shown, opened, strict=True), key=lambda item: item[0]):
        inside = "".join(f"{i}{escape(visible(text), quote=False)}</i>" for _, text, i in run)
        parts.append(f'<span class="{kind}">{inside}</span>')
    return Markup("".join(parts))


def visible(text: str) -> str:
    """A token's text with line ends and tabs made visible."""
    return text.replace("\t", "⇥\t").replace("\r", "␍").replace("\n", "⏎\n")


def window_start(scored: NDArray, length: int, window: int) -> int:
    """Where a window of a row begins that shows its first target after some context."""
    if length <= window:
        return 0
    first = int(scored.argmax()) if scored.any() else 0
    return max(0, min(first - int(_BEFORE * window), length - window))


def _facts(lock: Lock, row: dict[str, Any]) -> list[tuple[str, str]]:
    facts = []
    for name, value in row.items():
        if name == "combination":
            facts.append((name, str(lock.notes["combinations"][value])))
        elif name == "doc_index":
            facts.append(("parts of documents", f"{len(value):,}"))
        elif not isinstance(value, list):
            facts.append((name.replace("_", " "), str(value)))
    return facts
