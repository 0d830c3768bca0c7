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
from typing import Any

from tangobench.errors import InputError
from tangobench.pipeline.core.build import Job, Result
from tangobench.pipeline.fineweb import build as fineweb_build
from tangobench.pipeline.fineweb.own.convert import Converted, convert, find_files
from tangobench.pipeline.fineweb.own.spec import Spec
from tangobench.pipeline.fineweb.spec import dump_order
from tangobench.pipeline.tokenizer.base import Tokenizer
from tangobench.pipeline.tokenizer.use import choose


def build(spec: Spec, source: str | None, job: Job) -> Result:
    files = find_files(source or spec.files)
    tokenizer = choose(spec, job).load(job.store)
    with tempfile.TemporaryDirectory(prefix="own-", dir=job.store.spill_folder()) as folder:
        converted = convert(spec, files, Path(folder))
        if not any(converted.seen.documents.values()):
            raise InputError("the files hold no documents", kind="source-empty", fix="give some")
        result = fineweb_build.build(spec.fineweb(), str(converted.path), job)
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
        source={"files": converted.files},
        origin={"kind": "files", "source": source or spec.files, "files": converted.names},
        card=_card(spec, tokenizer.title),
    )


def _empty(spec: Spec, split: str, converted: Converted, tokenizer: Tokenizer) -> InputError:
    """The error for a side without rows: no documents, or none long enough."""
    seen, like = converted.seen, spec.fineweb()
    sides = {
        dump: "train" if (dump_order(dump) or 0) <= like.last_train else "validation"
        for dump in seen.documents
    }
    texts = [seen.longest.get(dump, "") for dump, side in sides.items() if side == split]
    if not texts:
        return _error(f"no document is on the {split} side", split, _other_split(spec, converted))
    tokens = len(tokenizer.encode(max(texts, key=len)))
    fits = 1 << max(1, tokens.bit_length() - 1)
    if fits < spec.context:
        why = f"no {split} document fills a row of {spec.context} tokens; the longest has {tokens}"
        return _error(why, split, f"set context = {fits}")
    why = f"every {split} document was dropped or belongs to the other side's components"
    return _error(why, split, _other_split(spec, converted))


def _other_split(spec: Spec, converted: Converted) -> str:
    seen = converted.seen
    if spec.split.by == "time":
        first, last = (datetime.datetime.fromisoformat(t) for t in (seen.first, seen.last))
        if first == last:
            return f"all documents are of {first}: split by hash instead"
        middle = first + (last - first) / 2
        return f'documents are from {first} to {last}: set split.cut = "{middle:%Y-%m-%d}"'
    if spec.split.by == "hash":
        share = max(2 * spec.split.share, math.ceil(100 * seen.smallest + 1) / 100)
        return f"set split.share = {min(0.5, share):.2f}, or give more documents"
    found = ", ".join(f'"{dump}"' for dump in sorted(seen.documents)[:20])
    return f"set split.train_through and split.validation_dumps; the files have {found}"


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
