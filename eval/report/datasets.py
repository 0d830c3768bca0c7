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

from tangobench.catalogue import title_of
from tangobench.eval.report.charts import Axis, Figure, histogram
from tangobench.eval.report.gather import committed_state
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
_WINDOW: Final = 520  # tokens of a row
_BEFORE: Final = 0.3  # share of a window that is context before the first target


def dataset_context(dataset: Dataset) -> dict[str, Any]:
    """Everything that the page of a dataset shows."""
    lock = dataset.lock
    return {
        "lock": lock,
        "heading": title_of(lock.name),
        "state": committed_state(lock),
        **totals(lock.shards),
        "configs": [_config(dataset, name) for name in lock.configs],
        "drops": _bars([(k.replace("-", " "), n) for k, n in flatten(lock.drops)]),
        "counts": [(label, value) for label, value in flatten(lock.counts) if value is not None],
        "audit": audit(lock),
        "coverage": _coverage(dataset),
        "modules": _modules(dataset),
        "directories": _directories(dataset),
    }


def totals(shards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rows, tokens and bytes of some shards."""
    rows, tokens, length = (sum(s[key] for s in shards) for key in ("rows", "tokens", "bytes"))
    return {"rows": rows, "tokens": tokens, "bytes": size(length)}


def _config(dataset: Dataset, name: str) -> dict[str, Any]:
    splits = [_split(dataset, name, split) for split in dataset.lock.splits(name)]
    figures = [figure for split in splits for figure in split["figures"]]
    return {"name": name, **dataset.lock.configs[name], "splits": splits, "figures": figures}


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
    parts = [np.zeros(0, np.int64)]
    for index in range(shards):
        for values, bounds in rows.shard(index).token_views:
            fixed = isinstance(bounds, int)
            parts.append(np.full(len(values) // bounds, bounds) if fixed else np.diff(bounds))
    lengths = np.concatenate(parts)
    where = split if config == "default" else f"{config}, {split}"
    if len(lengths) == 0:
        return []
    if lengths.min() == lengths.max():
        documents = document_lengths(rows, shards)
        title = f"Document lengths inside rows: {where}"
        return [] if documents is None else [_length_figure(title, documents, "documents")]
    figures = [_length_figure(f"Row lengths: {where}", lengths, "rows")]
    if "target_start" in rows[0]:
        targets = lengths - rows.column("target_start").astype(np.int64)
        figures.append(_length_figure(f"Scored tokens per row: {where}", targets, "rows"))
    return figures


def document_lengths(rows: Rows, shards: int) -> NDArray | None:
    """Lengths of the document parts inside packed rows, from their spans."""
    if len(rows) == 0 or "doc_start" not in rows[0]:
        return None
    parts = [np.zeros(0, np.int64)]
    for index in range(shards):
        shard = rows.shard(index)
        for number, (values, _) in enumerate(shard.token_views):
            column = shard.batch(number).column("doc_start")
            starts = column.values.to_numpy().astype(np.int64)
            ends = np.append(starts[1:], 0)
            # The last part of a row ends with the row.
            ends[column.offsets.to_numpy()[1:] - 1] = len(values) // len(column)
            parts.append(ends - starts)
    return np.concatenate(parts)


def _length_figure(title: str, lengths: NDArray, what: str) -> Figure:
    """How long things are, in bins of equal width."""
    top = int(lengths.max()) + 1
    width = max(1, -(-top // _BINS))
    edges = np.arange(0, top + width, width)
    counts, _ = np.histogram(lengths, edges)
    low, middle, high = (int(np.quantile(lengths, q, method="lower")) for q in (0.1, 0.5, 0.9))
    note = f"median {middle:,}, longest {int(lengths.max()):,}"
    return histogram(
        title,
        edges.tolist(),
        counts.tolist(),
        x=Axis(label="tokens", counts=True),
        y=Axis(label=what, low=0, rounded=True, counts=True),
        description=f"Histogram of {len(lengths):,} lengths: {note}, 80% from {low:,} to {high:,}.",
        note=note,
    )


def audit(lock: Lock) -> dict[str, Any] | None:
    """Headline, whether it is clean, and the numbers behind it; None without an audit."""
    leakage = lock.notes.get("leakage", {})
    if not leakage and "combinations" not in lock.notes:
        return None
    clean, text = _finding(leakage, lock.notes)
    facts = [(label, value) for label, value in flatten(leakage) if value not in ("", None)]
    return {"clean": clean, "text": text, "facts": facts[:_AUDIT_FACTS]}


def _finding(found: dict[str, Any], notes: dict[str, Any]) -> tuple[bool, str]:
    if "shared_keys" in found:
        return found["shared_keys"] == 0, (
            "{shared_keys:,} of {validation_keys:,} address and content keys of validation occur "
            "among the {train_keys:,} of training."
        ).format(**found)
    if "proofs_also_in_training" in found:
        return found["proofs_over_30_tokens_also_in_training"] == 0, (
            "No file is in both splits. {proofs_also_in_training:,} of {validation_proofs:,} "
            "validation proofs also occur word for word in training; of the "
            "{validation_proofs_over_30_tokens:,} longer than 30 tokens, "
            "{proofs_over_30_tokens_also_in_training:,} do."
        ).format(**found)
    if "combinations" in notes:
        return True, (
            "No validation question occurs in training: the last hex digit of a question's sha256 "
            "decides its split, and the build compares both splits and publishes nothing shared."
        )
    return True, ""


def _coverage(dataset: Dataset) -> list[dict[str, Any]]:
    """Per dump: kept for training, kept for validation, dropped, and their shares."""
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
    found = rows.to_dicts()
    largest = max((row["documents"] for row in found), default=1)
    for row in found:
        row["shares"] = [(name, round(100 * row[name] / largest, 2)) for name in _PARTS]
    return found


def _bars(pairs: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """Counts with their share of the largest, for bars; zeros are left out."""
    kept = [(label, value) for label, value in pairs if isinstance(value, int) and value]
    largest = max((value for _, value in kept), default=1)
    return [{"label": k, "value": v, "percent": round(100 * v / largest, 2)} for k, v in kept]


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


def module_label(module: str) -> str:
    """`algebra__linear_1d` as people read it."""
    return module.replace("__", " · ").replace("_", " ")


def _directories(dataset: Dataset) -> list[dict[str, Any]]:
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
    return _bars(shown)


def spread(total: int, wanted: int) -> list[int]:
    """Row numbers spread evenly over a split, the first one included."""
    count = min(total, wanted)
    return [index * total // count for index in range(count)]


def shown_row(dataset: Dataset, config: str, row: dict[str, Any]) -> dict[str, Any]:
    """One row: its markup, its counts and its other columns."""
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
    """Each token's text; bytes join across tokens, for Lean is full of characters that need it."""
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
    """The other columns of a row, in words."""
    facts = []
    for name, value in row.items():
        if name == "combination":
            facts.append((name, str(lock.notes["combinations"][value])))
        elif name == "doc_index":
            facts.append(("parts of documents", f"{len(value):,}"))
        elif not isinstance(value, list):
            facts.append((name.replace("_", " "), str(value)))
    return facts
