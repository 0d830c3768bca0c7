"""Results of many runs in two files: a checksummed line per run, and the tallies in Parquet.

- Lossless: a run's line holds the checksum of its result, so a changed tally is noticed too.
- Nothing is stored twice: means, shares and the NLL by module, difficulty and group follow from the
  168 combinations; what the recipe says is not repeated beside it.
- The tallies are written first, the lines last, each atomically.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tangobench.errors import CorruptionError, InputError
from tangobench.eval.scoring.tally import PARTS, Tally, shares_of
from tangobench.pipeline.core import sealed
from tangobench.pipeline.core.files import read_untrusted, write_atomic
from tangobench.pipeline.core.hashing import canonical_json

Result = dict[str, Any]
Tallies = dict[tuple[str, str], dict[str, tuple[float, int]]]
"""Sum and count by label, of each (metric, kind)."""

RUNS: Final = "runs.jsonl"
TALLIES: Final = "tallies.parquet"
_MATCHES: Final = "exact_match"
_FROM_RECIPE: Final = ("family", "dataset", "arch", "depth")


def pack(folder: Path, results: Sequence[Result]) -> None:
    """Write the two files of some results."""
    lines, rows = [], []
    for result in sorted(results, key=lambda result: str(result["run"])):
        try:
            line, tallies = _split(result)
            follows = _joined(line, tallies) == result
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            follows = False
        if not follows:
            raise InputError(
                f"run {result['run']}: its means and shares do not follow from its counts",
                kind="result-unpackable",
                fix=f"score it again with `tangobench eval {result['run']}`",
            )
        ordered = json.loads(canonical_json({**line, "result": sealed.checksum(result)}))
        lines.append(sealed.seal(ordered, sealed.LINE))
        rows += [
            (result["run"], metric, kind, label, *tally)
            for (metric, kind), by_label in sorted(tallies.items())
            for label, tally in sorted(by_label.items())
        ]
    write_atomic(folder / TALLIES, _parquet(rows))
    write_atomic(folder / RUNS, b"".join(lines))


def unpack(folder: Path) -> Iterator[Result]:
    """The results of a folder's two files, each checked; none if there are none."""
    path = folder / RUNS
    if not path.exists():
        return
    tallies = _read_tallies(folder / TALLIES)
    try:
        lines = read_untrusted(path).splitlines(keepends=True)
    except OSError as error:
        raise _corrupt(path, str(error.strerror)) from None
    for number, raw in enumerate(lines, 1):
        try:
            line = sealed.unseal(raw, sealed.LINE)
            expected = line.pop("result")
            result = _joined(line, tallies.get(line["run"], {}))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _corrupt(path, f"line {number}: {error}") from None
        if sealed.checksum(result) != expected:
            raise _corrupt(folder / TALLIES, f"not the tallies of run {result['run']}")
        yield result


def _corrupt(path: Path, why: str) -> CorruptionError:
    return CorruptionError(
        f"packed results {path} are damaged or edited: {why}",
        kind="result-corrupt",
        fix=f"git checkout {path}, or pack them again with `tangobench results pack`",
        path=str(path),
    )


def _split(result: Result) -> tuple[Result, Tallies]:
    """A result without what follows from its recipe and its tallies, and the tallies."""
    line = {key: value for key, value in result.items() if key not in _FROM_RECIPE}
    tallies: Tallies = {}
    for metric, kinds in result.get("breakdowns", {}).items():
        for kind, found in kinds.items():
            if kind not in PARTS or "combination" not in kinds:
                counted = {name: (tally["sum"], tally["count"]) for name, tally in found.items()}
                tallies[metric, kind] = counted
        line["breakdowns"] = {**line["breakdowns"], metric: sorted(kinds)}
    if _MATCHES in result:
        line[_MATCHES] = {key: v for key, v in result[_MATCHES].items() if key != "shares"}
        tallies["", _MATCHES] = {
            name.removeprefix("combination:"): (float(share["correct"]), share["tried"])
            for name, share in result[_MATCHES]["shares"].items()
            if name.startswith("combination:")
        }
    return line, tallies


def _joined(line: Result, tallies: Tallies) -> Result:
    result = dict(line)
    result |= {key: result["recipe"][key] for key in _FROM_RECIPE}
    if "breakdowns" in result:
        result["breakdowns"] = {
            metric: {kind: _breakdown(tallies, metric, kind) for kind in kinds}
            for metric, kinds in result["breakdowns"].items()
        }
    if _MATCHES in result:
        counts = {name: (int(right), n) for name, (right, n) in tallies["", _MATCHES].items()}
        result[_MATCHES] = {**result[_MATCHES], "shares": shares_of(counts)}
    return result


def _breakdown(tallies: Tallies, metric: str, kind: str) -> dict[str, Any]:
    found = tallies.get((metric, kind))
    if found is None:
        found = {}
        for name, (total, count) in tallies[metric, "combination"].items():
            before = found.get(PARTS[kind](name), (0.0, 0))
            found[PARTS[kind](name)] = (before[0] + total, before[1] + count)
    return {name: Tally(*tally).as_json() for name, tally in found.items()}


def _parquet(rows: Sequence[tuple[Any, ...]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("run", "metric", "kind", "label")
    numbers = [("sum", pa.float64()), ("count", pa.int64())]
    schema = pa.schema([*((name, pa.string()) for name in names), *numbers])
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    table = pa.table(dict(zip(schema.names, columns, strict=True)), schema)
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        use_dictionary=[*names, "count"],
        column_encoding={"sum": "BYTE_STREAM_SPLIT"},
    )
    return sink.getvalue()


def _read_tallies(path: Path) -> dict[str, Tallies]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[str, Tallies] = {}
    try:
        columns = pq.ParquetFile(pa.BufferReader(read_untrusted(path))).read().to_pydict()
        for run, metric, kind, label, total, count in zip(*columns.values(), strict=True):
            found.setdefault(run, {}).setdefault((metric, kind), {})[label] = (total, count)
    except (OSError, pa.ArrowException, ValueError, TypeError) as error:
        raise _corrupt(path, str(error).partition("\n")[0]) from None
    return found
