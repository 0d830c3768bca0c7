"""Dataset cards and Croissant metadata, from the lock, the published tables and the input.

- The YAML names every config and its files: without it `load_dataset` cannot tell the two kinds of
  Lean rows apart. `datasets` takes one builder per repository, so the Parquet tables beside the
  Arrow shards cannot be configs there: the card has the line that loads each.
- No date of the build is written, because equal builds must give equal files.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.catalogue import COLUMNS
from tangobench.pipeline.core.hashing import list_lengths, pretty_json
from tangobench.pipeline.core.lock import CARD_NAMES, groups_of

NOT_STATED: Final = "unknown"
"""The licence of rows whose input states none; `push` asks for one."""

_LICENCE_ID: Final = re.compile(r"[a-z0-9][a-z0-9.+-]*")
_PAPER: Final = """@article{tango,
  author = {Nunley, Joshua},
  title = {{TANGO}: Token-Aggregated Nonlinear Gating Operators for Natural and Formal Language
           Modeling}
}"""
_ARROW: Final = "application/vnd.apache.arrow.stream"
_PARQUET: Final = "application/x-parquet"
_PUBLISHED: Final = "2026-11-16"
_CITATION: Final = (
    "Joshua Nunley. TANGO: Token-Aggregated Nonlinear Gating Operators for Natural and Formal "
    "Language Modeling."
)
_KINDS: Final = {
    "bool": "sc:Boolean",
    "double": "cr:Float64",
    "float": "cr:Float32",
    **{f"{u}int{n}": f"cr:{u.upper()}Int{n}" for u in ("", "u") for n in (8, 16, 32, 64)},
}
_INNER: Final = re.compile(r"(fixed_size|large)_(?=list)|\w+: | not null")
_SIZES: Final = ("n<1K", *("1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M"))

Columns = dict[str, dict[str, pa.DataType]]
"""Column to type, by config and by kind of side table."""
Lengths = dict[str, Counter[int]]
"""Rows by number of tokens, up to a power of two, by `CONFIG/SPLIT`."""


def facts_of(lock: dict[str, Any], read: Callable[..., pa.Buffer]) -> tuple[Columns, Lengths]:
    """What a card says of published files beyond their lock; `read` is that of a unit store."""
    columns: Columns = {}
    lengths: Lengths = {}
    for shard in lock["shards"]:
        start = shard["batch_offsets"][0] if shard["batch_offsets"] else None  # after the schema
        reader = pa.ipc.open_stream(read(shard["sha256"], 0, start))
        columns.setdefault(shard["config"], {f.name: f.type for f in reader.schema})
        found = lengths.setdefault(f"{shard['config']}/{shard['split']}", Counter())
        kind = reader.schema.field("tokens").type
        if pa.types.is_fixed_size_list(kind):
            found[kind.list_size] += shard["rows"]
            continue
        for batch in pa.ipc.open_stream(read(shard["sha256"])):
            sizes = list_lengths(batch.column("tokens"))
            found.update((1 << np.ceil(np.log2(sizes)).astype(int)).tolist())
    for side in lock["side_files"]:
        if side["kind"] not in columns and side["rows_sha256"]:
            schema = pq.read_schema(pa.BufferReader(read(side["sha256"])))
            columns[side["kind"]] = {f.name: f.type for f in schema}
    return columns, lengths


def card_files(
    lock: dict[str, Any], card: dict[str, Any], columns: Columns, lengths: Lengths
) -> dict[str, bytes]:
    described = pretty_json(_croissant(lock, card, columns)) + "\n"
    texts = _readme(lock, card, columns, lengths), described
    return {name: text.encode() for name, text in zip(CARD_NAMES, texts, strict=True)}


def stated(card: dict[str, Any], title: str, licence: str, source: str) -> dict[str, Any]:
    """The card with what the user states about the rows, where that is not empty."""
    card = {**card, **({"title": title} if title else {})}
    if licence:
        card |= {"licence": licence, "licence_id": licence.lower()}
    if source:
        card |= {"sources": [source]}
    return card


def flatten(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested keys as readable labels; long lists by their length."""
    found: list[tuple[str, Any]] = []
    for key, item in value.items():
        label = f"{prefix}{str(key).replace('_', ' ')}"
        if isinstance(item, dict):
            found += flatten(item, f"{label} · ")
        elif isinstance(item, list):
            few = len(item) <= 8 and all(isinstance(part, str | int | float) for part in item)
            found.append((label, ", ".join(map(str, item)) if few else f"{len(item):,} entries"))
        else:
            found.append((label, item))
    return found


def _readme(lock: dict[str, Any], card: dict[str, Any], columns: Columns, lengths: Lengths) -> str:
    tables: dict[str, list[tuple[Any, ...]]] = card.get("tables", {})
    drops = [f"- {reason}: {count:,}" for reason, count in flatten(lock["drops"]) if count]
    meanings: list[str] = []
    for name, types in columns.items():
        shown = {c: re.sub(_INNER, "", str(kind)) for c, kind in types.items()}
        rows = [(f"`{c}`", f"`{kind}`", COLUMNS.get(c, "")) for c, kind in shown.items()]
        meanings += [f"`{name}`:", "", *_table(("column", "type", "meaning"), rows), ""]
    licence = "not stated" if card["licence_id"] == NOT_STATED else card["licence"]
    sources = [*card["sources"], f"Licence of the rows: {licence}.", *card.get("remarks", ())]
    sections = {
        "Rows": _row_lines(lock, lengths),
        "Columns": meanings,
        **{title: _table(rows[0], rows[1:]) for title, rows in tables.items()},
        "Reading": _reading_lines(lock),
        "Dropped": drops or ["Nothing."],
        "Sources and licences": [f"- {line}" for line in sources],
        "Citation": ["```bibtex", *card.get("bibtex", ()), _PAPER, "```"],
    }
    head = f"Profile `{lock['profile']}`, root `{lock['root']}`, content root "
    lines = ["---", _yaml(lock, card), "---", f"# {card['title']}", "", card["description"], ""]
    lines += [f"{head}`{lock['content_root']}`.", ""]
    for title, body in sections.items():
        lines += [f"## {title}", "", *body, ""] if body else []
    return "\n".join(lines)


def _yaml(lock: dict[str, Any], card: dict[str, Any]) -> str:
    from huggingface_hub import DatasetCardData

    rows = sum(shard["rows"] for shard in lock["shards"])
    size = min(len(_SIZES) - 1, max(0, len(str(rows)) - 3))
    named = card["licence_id"]
    is_id = bool(_LICENCE_ID.fullmatch(named))
    files: dict[str, list[dict[str, str]]] = {config: [] for config in lock["configs"]}
    for (config, split), shards in groups_of(lock["shards"]).items():
        folder = shards[0]["path"].rpartition("/")[0]
        path = f"{folder}/{split}-*.arrow".removeprefix("/")
        files[config].append({"split": split, "path": path})
    data = DatasetCardData(
        license=named if is_id else "other",
        **({} if is_id else {"license_name": card["licence"]}),
        pretty_name=card["title"],
        language=card.get("language"),
        size_categories=[_SIZES[size]],
        task_categories=["text-generation"],
        configs=[{"config_name": config, "data_files": own} for config, own in files.items()],
    )
    return str(data.to_yaml()).rstrip()


def _totals(lock: dict[str, Any]) -> list[tuple[str, str, int, int, int]]:
    """Config, split, rows, tokens and shards."""
    return [
        (*of, sum(s["rows"] for s in shards), sum(s["tokens"] for s in shards), len(shards))
        for of, shards in groups_of(lock["shards"]).items()
    ]


def _table(columns: tuple[str, ...], rows: Any) -> list[str]:
    """A Markdown table; numbers are aligned at the right."""
    cells = [[f"{c:,}" if isinstance(c, int) else str(c) for c in row] for row in rows]
    numeric = [all(re.match(r"[\d,]+$", c) for c in part) for part in zip(*cells, strict=True)]
    rule = ["---:" if right else "---" for right in numeric]
    return [f"| {' | '.join(row)} |" for row in (columns, rule, *cells)] if cells else []


def _row_lines(lock: dict[str, Any], lengths: Lengths) -> list[str]:
    lines = [*_table(("config", "split", "rows", "tokens", "shards"), _totals(lock)), ""]
    for name, config in lock["configs"].items():
        masked = config["masked_target"]
        never = "" if masked is None else f"; token {masked} is never a prediction target"
        lines.append(
            f"- `{name}`: at most {config['context']:,} tokens of a vocabulary of "
            f"{config['vocabulary']:,}{never}."
        )
    bounds = sorted({bound for counts in lengths.values() for bound in counts})
    rows = [(f"≤ {b:,}", *(c[b] for c in lengths.values())) for b in bounds]
    return [*lines, "", *_table(("tokens in a row", *lengths), rows)]


def _reading_lines(lock: dict[str, Any]) -> list[str]:
    config = next(iter(lock["configs"]))
    first = lock["shards"][0]["path"] if lock["shards"] else "train-00000-of-00001.arrow"
    named = "" if config == "default" else f', "{config}"'
    tables = {side["kind"]: side["path"] for side in lock["side_files"] if side["rows_sha256"]}
    patterns = {k: f"{k}/*.parquet" if "/" in path else path for k, path in tables.items()}
    return [
        "```python",
        "import datasets, polars",
        f'rows = datasets.load_dataset("path/to/this/folder"{named})',
        f'rows = datasets.Dataset.from_file("{first}")  # zero-copy',
        f'rows = polars.read_ipc_stream("{first}")',
        *(
            f'{kind} = datasets.load_dataset("parquet", data_files="path/to/this/folder/{pattern}")'
            for kind, pattern in patterns.items()
        ),
        "```",
        "",
        "Arrow does not notice a flipped bit: `tangobench verify FOLDER` checks every file.",
    ]


def _croissant(lock: dict[str, Any], card: dict[str, Any], columns: Columns) -> dict[str, Any]:
    tables = [side for side in lock["side_files"] if side["rows_sha256"]]
    named = [*(s["config"] for s in lock["shards"]), *(t["kind"] for t in tables)]
    kinds = [kind for kind in dict.fromkeys(named) if kind in columns]
    return {
        # The standard context of Croissant, whole: validators warn of any other.
        "@context": json.loads(Path(__file__).with_name("croissant_context.json").read_bytes()),
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": f"{lock['name']}-{lock['profile']}",
        "description": card["description"],
        "license": card["licence_id"],
        "citeAs": _CITATION,
        "datePublished": _PUBLISHED,
        "creator": {"@type": "sc:Organization", "name": "tangobench"},
        "identifier": f"sha256:{lock['root']}",
        "version": f"{lock['format'].rpartition('/')[2]}.0.0",
        "distribution": [
            *map(_file, (*lock["shards"], *tables)),
            *(_file_set(kind, lock) for kind in kinds),
        ],
        "recordSet": [
            _splits(lock),
            *(_rows(kind, columns[kind]) for kind in kinds),
            *map(_shard_bytes, lock["shards"]),
        ],
    }


def _node(kind: str, ident: str, name: str = "", **more: Any) -> dict[str, Any]:
    return {"@type": f"cr:{kind}", "@id": ident, "name": name or ident, **more}


def _file(entry: dict[str, Any]) -> dict[str, Any]:
    # The second name of a shard is what mlcroissant can read whole, as bytes.
    kinds = [_ARROW, "text/plain"] if "split" in entry else _PARQUET
    path, size = entry["path"], f"{entry['bytes']} B"
    own = {"contentUrl": path, "contentSize": size, "sha256": entry["sha256"]}
    return _node("FileObject", path, encodingFormat=kinds, **own)


def _file_set(kind: str, lock: dict[str, Any]) -> dict[str, Any]:
    shards = [shard["path"] for shard in lock["shards"] if shard["config"] == kind]
    paths = shards or [side["path"] for side in lock["side_files"] if side["kind"] == kind]
    folder, _, name = paths[0].rpartition("/")
    ending = "*.arrow" if shards else "*.parquet" if folder else name
    includes = f"{folder}/{ending}" if folder else ending
    form = _ARROW if shards else _PARQUET
    return _node("FileSet", f"files-of-{kind}", encodingFormat=form, includes=includes)


def _rows(kind: str, columns: dict[str, pa.DataType]) -> dict[str, Any]:
    fields = [_field(kind, *named) for named in columns.items()]
    return _node("RecordSet", kind, description=f"The rows of {kind}.", field=fields)


def _field(kind: str, name: str, column: pa.DataType) -> dict[str, Any]:
    is_list = pa.types.is_nested(column)
    plain = column.value_type if is_list else column
    shape = column.list_size if pa.types.is_fixed_size_list(column) else -1
    return _node(
        "Field",
        f"{kind}/{name}",
        name,
        description=COLUMNS.get(name, name),
        dataType=_KINDS.get(str(plain), "sc:Text"),
        source={"fileSet": {"@id": f"files-of-{kind}"}, "extract": {"column": name}},
        **({"isArray": True, "arrayShape": str(shape)} if is_list else {}),
    )


def _splits(lock: dict[str, Any]) -> dict[str, Any]:
    """Rows and tokens of every split, as inline records."""
    kinds = {"config": "sc:Text", "split": "sc:Text", "rows": "sc:Integer", "tokens": "sc:Integer"}
    names = [f"splits/{name}" for name in kinds]
    return _node(
        "RecordSet",
        "splits",
        description="Rows and tokens of every split.",
        field=[_node("Field", f"splits/{name}", name, dataType=kinds[name]) for name in kinds],
        data=[dict(zip(names, row, strict=False)) for row in _totals(lock)],
    )


def _shard_bytes(shard: dict[str, Any]) -> dict[str, Any]:
    """A shard as a record set of one record: `mlcroissant` has no reader for Arrow streams, and
    only of a file object does it check the hash.
    """
    path, name = shard["path"], shard["path"].removesuffix(".arrow")
    source = {"fileObject": {"@id": path}, "extract": {"fileProperty": "content"}}
    content = _node("Field", f"{name}/content", "content", dataType="sc:Text", source=source)
    about = (
        f"One record: the bytes of {path}, an Arrow IPC stream of {shard['rows']:,} rows; "
        "read it with pyarrow.ipc.open_stream."
    )
    return _node("RecordSet", name, description=about, field=[content])
