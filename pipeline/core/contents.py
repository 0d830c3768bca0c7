"""What rows must be: the one check of contents, for bytes that already match their hash.

- Columns are exactly those that the catalogue gives for a dataset and config, in order; a dataset
  that the catalogue does not know has `tokens` and columns of plain types.
- No nulls; 1 to `context` tokens per row, all below `vocabulary`; `target_start` inside its row,
  after the first token; spans that begin at 0 and increase; combinations that the lock names.
- Vectorised, a pass over the tokens per record batch: it runs in the thread that hashes a shard.
- A fault is a `ValueError` that names the column.

Usage: `rules = rules_of(lock, "proof"); rules.check_schema(schema); rules.check(batch)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tangobench.catalogue import CATALOGUE

NDArray = np.ndarray[Any, Any]
_TOKENS: Final = (pa.uint8(), pa.uint16(), pa.uint32())
_PLAIN: Final = {
    str(kind): kind
    for kind in (
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.bool_(), pa.string()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    )
}
_LISTS: Final = {f"list<{name}>": pa.list_(kind) for name, kind in _PLAIN.items()}
_TYPES: Final = {**_PLAIN, **_LISTS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What a config's rows must be."""

    columns: Mapping[str, str] | None
    """Column to type, in order; None for a dataset that the catalogue does not know."""
    context: int
    vocabulary: int
    combinations: int

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse other columns or types."""
        if schema.metadata or any(field.metadata for field in schema):
            raise ValueError("its schema carries metadata")
        if self.columns is not None and schema.names != list(self.columns):
            raise ValueError(f"its columns are {schema.names}, expected {list(self.columns)}")
        if "tokens" not in schema.names or len(set(schema.names)) != len(schema.names):
            raise ValueError(f"its columns are {schema.names}, one of them must be 'tokens'")
        for field in schema:
            wanted = (self.columns or {}).get(field.name)
            if field.name == "tokens":
                self._check_tokens_type(field.type, wanted)
            elif field.type not in ([_TYPES[wanted]] if wanted else _TYPES.values()):
                raise ValueError(f"its column {field.name!r} is {field.type}, expected {wanted}")

    def _check_tokens_type(self, kind: pa.DataType, wanted: str | None) -> None:
        fixed = pa.types.is_fixed_size_list(kind)
        is_list = fixed or pa.types.is_list(kind)
        if not is_list or kind.value_type not in _TOKENS or wanted == ("list" if fixed else "rows"):
            raise ValueError(f"its column 'tokens' is {kind}, not a list of token ids")
        if fixed and kind.list_size != self.context:
            raise ValueError(f"its column 'tokens' is {kind}, the context is {self.context}")

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse rows that break a rule."""
        if not batch.num_rows:
            return
        columns = {name: batch.column(name) for name in batch.schema.names}
        for name, column in columns.items():
            inner = column.values if hasattr(column, "values") else column
            if column.null_count or inner.null_count:
                raise ValueError(f"its column {name!r} has nulls")
        lengths = _lengths(columns["tokens"])
        _require("tokens", "a length", lengths, 1, self.context)
        _require("tokens", "an id", _flat(columns["tokens"]), 0, self.vocabulary - 1)
        if "target_start" in columns:
            first = columns["target_start"].to_numpy()
            _require("target_start", "a value", first, 1, self.context)
            if bool((first >= lengths).any()):
                row = int(np.flatnonzero(first >= lengths)[0])
                raise ValueError(
                    f"its column 'target_start' is {first[row]} in a row of {lengths[row]} tokens"
                )
        if "combination" in columns and self.combinations:
            found = columns["combination"].to_numpy()
            _require("combination", "a value", found, 0, self.combinations - 1)
        if "doc_start" in columns:
            _check_spans(columns, lengths)


def rules_of(lock: Any, config: str) -> Rules:
    """The rules for a config of a lock; refuses configs that the dataset does not have."""
    known, conventions = CATALOGUE.get(lock.name), lock.configs[config]
    columns = known.columns if known else {}
    if columns and config not in columns:
        raise ValueError(f"config {config!r} is none of {', '.join(columns)}")
    names = lock.notes.get("combinations", [])
    return Rules(
        columns=columns.get(config),
        context=conventions["context"],
        vocabulary=conventions["vocabulary"],
        combinations=len(names) if isinstance(names, list) else 0,
    )


def check_table(name: str, kind: str, schema: pa.Schema) -> None:
    """Refuse a side table whose columns are not those of its kind."""
    known = CATALOGUE[name].tables if name in CATALOGUE else {}
    if name in CATALOGUE and kind not in known:
        raise ValueError(f"{name} has no table of kind {kind!r}")
    found = {field.name: _plain(field.type) for field in schema}
    if known and found != dict(known[kind]):
        raise ValueError(f"its columns are {found}, expected {dict(known[kind])}")


def _plain(kind: pa.DataType) -> str:
    return "string" if pa.types.is_large_string(kind) else str(kind)


def _lengths(column: pa.Array) -> NDArray:
    if pa.types.is_fixed_size_list(column.type):
        return np.full(len(column), column.type.list_size, np.int64)
    return np.diff(column.offsets.to_numpy())


def _flat(column: pa.Array) -> NDArray:
    values: NDArray = column.flatten().to_numpy(zero_copy_only=True)
    return values


def _require(name: str, what: str, values: NDArray, low: int, high: int) -> None:
    if not len(values):
        return
    least, most = int(values.min()) if low else 0, int(values.max())
    if least < low or most > high:
        wrong = least if least < low else most
        raise ValueError(f"its column {name!r} has {what} of {wrong}, expected {low} to {high}")


def _check_spans(columns: dict[str, pa.Array], lengths: NDArray) -> None:
    """Every row begins with a span, and each span begins after the one before, inside the row."""
    bounds = columns["doc_start"].offsets.to_numpy()
    for name in ("doc_index", "doc_offset"):
        if name not in columns or not np.array_equal(_lengths(columns[name]), np.diff(bounds)):
            raise ValueError(f"its column {name!r} has not one value for each of 'doc_start'")
    _require("doc_start", "a number of spans", np.diff(bounds), 1, int(lengths.max()))
    starts = _flat(columns["doc_start"]).astype(np.int64)
    heads = np.zeros(len(starts), np.bool_)
    heads[bounds[:-1] - bounds[0]] = True
    inside = np.append(True, np.diff(starts) > 0) | heads
    if starts[heads].any() or not inside.all() or starts.max() >= lengths.max():
        raise ValueError("its column 'doc_start' does not increase from 0 inside a row")
