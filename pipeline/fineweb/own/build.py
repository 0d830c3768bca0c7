"""Documents of your own: converted, then built exactly as FineWeb-Edu is.

- A split that ends up empty is an error with the reason and a value that works.
- The effective share is printed: documents linked to training are training.
- docs/own.md explains every key.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Job, Result
from tangobench.pipeline.fineweb import build as fineweb_build
from tangobench.pipeline.fineweb.own.convert import convert, find_files, share_of
from tangobench.pipeline.fineweb.own.spec import Spec
from tangobench.pipeline.tokenizer.base import Tokenizer
from tangobench.pipeline.tokenizer.use import choose

if TYPE_CHECKING:
    import polars as pl


def build(spec: Spec, source: str | None, job: Job) -> Result:
    files = find_files(source or spec.files)
    tokenizer = choose(spec, job).load(job.store)
    with tempfile.TemporaryDirectory(prefix="own-", dir=job.store.spill_folder()) as folder:
        converted = Path(folder) / "documents.parquet"
        identity, names = convert(spec, files, converted)
        if not any(file["rows"] for file in identity):
            raise InputError("the files hold no documents", kind="source-empty", fix="give some")
        result = fineweb_build.build(spec.fineweb(), str(converted), job)
        for split in ("train", "validation"):
            if not result.counts["rows"][split]:
                raise _empty(spec, split, converted, tokenizer)
    documents = result.counts["documents"]
    train, validation = (documents[side]["kept"] for side in ("train", "validation"))
    asked = f" ({spec.split.share:.1%} asked)" if spec.split.by == "hash" else ""
    share = validation / (train + validation)  # both have rows
    job.reporter.say(f"validation: {share:.1%} of the kept documents{asked}")
    return dataclasses.replace(
        result,
        source={"files": identity},
        origin={"kind": "files", "source": source or spec.files, "files": names},
        card=_card(spec, tokenizer.title),
    )


def _empty(spec: Spec, split: str, converted: Path, tokenizer: Tokenizer) -> InputError:
    """The error for a side without rows: no documents, or none long enough."""
    import polars as pl

    documents = pl.scan_parquet(converted)
    late = pl.col("dump") > spec.fineweb().train_through  # years and weeks have all digits
    size = pl.col("text").fill_null("").str.len_chars()
    mine = documents.filter(late if split == "validation" else ~late)
    texts = mine.filter(size == size.max()).select("text").head(1).collect()["text"].to_list()
    if not texts:
        why, fix = f"no document is on the {split} side", _other_split(spec, documents)
        return _error(why, split, fix)
    tokens = len(tokenizer.encode(texts[0] or ""))
    fits = 1 << max(1, tokens.bit_length() - 1)
    if fits < spec.context:
        why = f"no {split} document fills a row of {spec.context} tokens; the longest has {tokens}"
        return _error(why, split, f"set context = {fits}")
    why = f"every {split} document was dropped or belongs to the other side's components"
    return _error(why, split, _other_split(spec, documents))


def _other_split(spec: Spec, documents: pl.LazyFrame) -> str:
    column = {"time": "date", "hash": "id", "dump": "dump"}[spec.split.by]
    found = documents.select(column).unique().collect()[column].sort().to_list()
    if spec.split.by == "time":
        first, last = (datetime.datetime.fromisoformat(found[at]) for at in (0, -1))
        if first == last:
            return f"all documents are of {first}: split by hash instead"
        middle = first + (last - first) / 2
        return f'documents are from {first} to {last}: set split.cut = "{middle:%Y-%m-%d}"'
    if spec.split.by == "hash":
        smallest = min(share_of(spec.seed, ident) for ident in found)
        share = max(2 * spec.split.share, math.ceil(100 * smallest + 1) / 100)
        return f"set split.share = {min(0.5, share):.2f}, or give more documents"
    dumps = ", ".join(f'"{dump}"' for dump in found[:20])
    return f"set split.train_through and split.validation_dumps; the files have {dumps}"


def _error(why: str, split: str, fix: str) -> InputError:
    return InputError(f"the {split} split is empty: {why}", kind=f"empty-{split}", fix=fix)


def _card(spec: Spec, tokens: str) -> dict[str, Any]:
    return {
        "title": "Own documents",
        "licence_id": spec.licence,
        "licence": spec.licence,
        "description": f"{tokens} tokens of own documents in rows of {spec.context}, split by "
        f"{spec.split.by}, with documents of equal URL or content on one side of the split.",
        "sources": ["Files of the builder; their sha256 are in the lock."],
    }
