"""Result files: one per run, or many runs packed in two; read only if checksums and fields agree.

- Loads no torch: tables and pages are made from files alone.
- One run, one result; one root, one content: anything else is refused.
- A result from elsewhere with a right checksum can hold anything, so its shape is checked: numbers
  are finite, counts are not negative, and every part that a table is made of has its type.
- Packed: a checksummed line per run, with the checksum of its whole result, and the tallies in
  Parquet. Means, shares and the NLL by module, difficulty and group follow from the 168
  combinations and are not stored; what the recipe says is not repeated beside it.
"""

from __future__ import annotations

import functools
import importlib.resources
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired

from pydantic import BeforeValidator, Field, JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from tangobench.errors import CorruptionError, InputError, MismatchError
from tangobench.eval.scoring.tally import PARTS, Tally, shares_of
from tangobench.model.training.runs import described_run
from tangobench.pipeline.core import hashing
from tangobench.pipeline.core.files import read_untrusted, write_atomic
from tangobench.pipeline.core.hashing import canonical_json
from tangobench.pipeline.core.lock import Count, Name, Sha256, proven_content

FORMAT: Final = "tangobench-result/1"
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e300, le=1e300)]
Result = dict[str, Any]
AsTuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""JSON has no tuples, and a strict check takes no list for one."""
_Curve = dict[str, list[Annotated[tuple[Count, Number], AsTuple]]]
Tallies = dict[tuple[str, str], dict[str, tuple[float, int]]]
"""Sum and count by label, of each (metric, kind)."""

RUNS: Final = "runs.jsonl"
TALLIES: Final = "tallies.parquet"
RECALL: Final = "recall.json"
_MOST_TALLIES: Final = 10_000_000  # 210 runs of the study have 16,378
_MATCHES: Final = "exact_match"
_FROM_RECIPE: Final = ("family", "dataset", "arch", "depth")


class _Tally(TypedDict):  # A mean NLL and what it is a mean of
    nll: Number | None
    sum: NotRequired[Number]
    count: NotRequired[Count]
    rows: NotRequired[Count]


class _Score(TypedDict):  # The score of a metric
    nll: Number
    sum: NotRequired[Number]
    count: NotRequired[Count]
    bits_per_byte: NotRequired[Number | None]
    bytes: NotRequired[Count]


class _Share(TypedDict):  # Right answers of those tried
    correct: Count
    tried: Count
    share: NotRequired[Number | None]
    low: NotRequired[Number | None]
    high: NotRequired[Number | None]


class _Matches(TypedDict):
    shares: dict[str, _Share]


class _Probe(TypedDict):
    groups: dict[str, _Tally]


class _TestModule(TypedDict):  # NLL and right answers of a module of a test set
    sum: Number
    count: Annotated[Count, Field(ge=1)]
    correct: Count
    tried: Annotated[Count, Field(ge=1)]


class _TestSet(TypedDict):  # A run on a test set
    data: dict[str, str]
    scores: Annotated[dict[str, _Score], Field(min_length=1)]
    modules: dict[str, dict[str, _TestModule]]


class _Model(TypedDict):  # Sizes of the model
    width: Count
    nonembedding_params: Count
    total_params: Count


class _Training(TypedDict):  # What training took
    seconds: Number
    tokens: Count
    tokens_per_second: Number | None


class _Result(TypedDict):  # A scored run; recipe, seeds and names are checked elsewhere
    run: Name
    data: dict[str, str]
    model: _Model
    step: Count
    checkpoint_sha256: Sha256
    scores: Annotated[dict[str, _Score], Field(min_length=1)]
    breakdowns: dict[str, dict[str, dict[str, _Tally]]]
    curve: _Curve
    validation_curve: NotRequired[_Curve]
    training: _Training
    trained_with: dict[str, str | int | None]
    scored_with: dict[str, str | int | None]
    exact_match: NotRequired[_Matches]
    probes: NotRequired[dict[str, dict[str, _Probe]]]
    tests: NotRequired[dict[str, _TestSet]]
    proof_check: NotRequired[dict[str, JsonValue]]
    measured_with: NotRequired[dict[str, dict[str, JsonValue]]]


_adapter = functools.cache(TypeAdapter)


def checked(kind: Any, value: Any) -> Any:
    """A parsed JSON value of a type, or a ValueError that names the first odd field."""
    try:
        return _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"field {where!r}: {first['msg']}") from None


def write_result(
    path: Path, body: dict[str, Any], spelling: hashing.Form = hashing.DOCUMENT
) -> Path:
    write_atomic(path, hashing.seal(body, spelling))
    return path


def read_result(
    path: Path, form: str = FORMAT, spelling: hashing.Form = hashing.DOCUMENT
) -> dict[str, Any]:
    return _checked(_unsealed(path, spelling), path, form)


def _unsealed(path: Path, spelling: hashing.Form) -> dict[str, Any]:
    """What a file holds; nothing if it is damaged."""
    try:
        return hashing.unseal(read_untrusted(path), spelling)
    except (OSError, ValueError):
        return {}


def _checked(data: dict[str, Any], path: Path, form: str) -> dict[str, Any]:
    try:
        if data.get("format") != form:
            raise ValueError
        if form == FORMAT:
            _require_whole(data)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        why = f": {error}" if isinstance(error, ValueError) and error.args else ""
        raise CorruptionError(
            f"result {path} is damaged, edited or no {form}{why}",
            kind="result-corrupt",
            fix="score the run again with `tangobench eval`",
            path=str(path),
        ) from None
    if form == FORMAT and (content := proven_content(data["data"])):
        data["data"]["content_root"] = content
    return data


def _require_whole(data: dict[str, Any]) -> None:
    """A ValueError with what is wrong, or an empty one if a result does not describe its run."""
    seeds = data["seeds"]
    run = described_run(data, [seeds["initialisation"], seeds["data_order"]])
    if run is None or any(data[name] != getattr(run.recipe, name) for name in _FROM_RECIPE):
        raise ValueError
    checked(_Result, data)
    if not {"name", "profile", "root"} <= data["data"].keys():
        raise ValueError
    if "code_sha256" not in data["trained_with"]:
        raise ValueError("field 'trained_with.code_sha256' is missing")
    for name, found in data.get("tests", {}).items():
        if found["scores"].keys() != found["modules"].keys() or "root" not in found["data"]:
            raise ValueError(f"field 'tests.{name}': scores, modules and data do not fit")
        modules = [m for part in found["modules"].values() for m in part.values()]
        if not modules or any(m["correct"] > m["tried"] for m in modules):
            raise ValueError(f"field 'tests.{name}.modules': more right answers than tried")


def shipped_results() -> Path:
    return Path(str(importlib.resources.files("tangobench.results")))


def read_results(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """All run results in some folders, by run name; the first folder that has a run wins."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            data = _unsealed(path, hashing.CASES if path.name == RECALL else hashing.DOCUMENT)
            form = str(data.get("format"))
            if form.startswith("tangobench-") and form != FORMAT:
                continue  # another of our objects, and whole
            result = _checked(data, path, FORMAT)
            run = found.setdefault(result["run"], result)["run"]
            if path.stem != run:
                why = f"result {path} is that of run {run}: renamed or swapped"
                fix = f"name it {run}.json, or score the run again"
                raise CorruptionError(why, kind="result-renamed", fix=fix, path=str(path))
        for result in unpack(folder):
            found.setdefault(result["run"], _checked(result, folder / RUNS, FORMAT))
    results = [found[name] for name in sorted(found)]
    _require_one_content(results)
    return results


def _require_one_content(results: list[dict[str, Any]]) -> None:
    """Tables group runs by root: one root must mean the same rows in the same splits."""
    contents: dict[str, str | None] = {}
    for result in results:
        root, content = result["data"]["root"], result["data"].get("content_root")
        if contents.setdefault(root, content) != content:
            raise MismatchError(
                f"runs on root {root} were scored on different contents: run {result['run']} on "
                f"content root {content}, another on {contents[root]}",
                kind="content-root-mismatch",
                fix="move the results of one of the two datasets away, or score them again",
                found=content,
                expected=contents[root],
            )


def pack(folder: Path, results: Sequence[Result]) -> None:
    lines, rows = [], []
    for result in sorted(results, key=lambda result: str(result["run"])):
        try:
            line, tallies = _split(result)
            follows = _joined(line, tallies) == result
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            follows = False
        if not follows:
            why = f"run {result['run']}: its means and shares do not follow from its counts"
            fix = f"score it again with `tangobench eval {result['run']}`"
            raise InputError(why, kind="result-unpackable", fix=fix)
        ordered = json.loads(canonical_json({**line, "result": hashing.checksum(result)}))
        lines.append(hashing.seal(ordered, hashing.LINE))
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
            line = hashing.unseal(raw, hashing.LINE)
            expected = line.pop("result")
            result = _joined(line, tallies.get(line["run"], {}))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise _corrupt(path, f"line {number}: {error}") from None
        if hashing.checksum(result) != expected:
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
            label = PARTS[kind](name)
            before = found.get(label, (0.0, 0))
            found[label] = (before[0] + total, before[1] + count)
    return {name: Tally(*tally).as_json() for name, tally in found.items()}


def _parquet(rows: Sequence[tuple[Any, ...]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("run", "metric", "kind", "label")
    numbers = [("sum", pa.float64()), ("count", pa.int64())]
    schema = pa.schema([*((name, pa.string()) for name in names), *numbers])
    items = [dict(zip(schema.names, row, strict=True)) for row in rows]
    how: Any = {"compression": "zstd", "column_encoding": {"sum": "BYTE_STREAM_SPLIT"}}
    sink = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist(items, schema), sink, use_dictionary=[*names, "count"], **how
    )
    return sink.getvalue()


def _read_tallies(path: Path) -> dict[str, Tallies]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: dict[str, Tallies] = {}
    try:
        file = pq.ParquetFile(pa.BufferReader(read_untrusted(path)))
        if file.metadata.num_rows > _MOST_TALLIES:  # a small file may decode to much
            raise ValueError(f"it has {file.metadata.num_rows:,} rows")
        columns = file.read().to_pydict()
        for run, metric, kind, label, total, count in zip(*columns.values(), strict=True):
            found.setdefault(run, {}).setdefault((metric, kind), {})[label] = (total, count)
    except (OSError, pa.ArrowException, ValueError, TypeError) as error:
        raise _corrupt(path, str(error).partition("\n")[0]) from None
    return found
