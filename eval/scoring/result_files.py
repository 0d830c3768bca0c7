"""Result files: written with a checksum, read only if it holds and the fields agree.

- Loads no torch: tables and pages are made from files alone.
- One run, one result; one root, one content: anything else is refused.
- A result from elsewhere with a right checksum can hold anything, so its shape is checked: numbers
  are finite, counts are not negative, and every part that a table is made of has its type.
"""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Annotated, Any, Final, NotRequired

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from tangobench.errors import CorruptionError, MismatchError
from tangobench.eval.scoring.packed import RUNS, unpack
from tangobench.model.training.runs import described_run
from tangobench.pipeline.core import sealed
from tangobench.pipeline.core.files import read_untrusted, write_atomic
from tangobench.pipeline.core.lock import Count, Name, Sha256, proven_content

FORMAT: Final = "tangobench-result/1"
Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e300, le=1e300)]


class _Tally(TypedDict):  # A mean NLL and what it is a mean of
    nll: Number | None
    sum: NotRequired[Number]
    count: NotRequired[Count]
    rows: NotRequired[Count]


class _Score(TypedDict):  # The score of a metric
    nll: Number
    sum: NotRequired[Number]
    count: NotRequired[Count]
    bits_per_byte: NotRequired[Number]
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
    curve: dict[str, list[tuple[Count, Number]]]
    validation_curve: NotRequired[dict[str, list[tuple[Count, Number]]]]
    training: _Training
    trained_with: dict[str, str | int | None]
    scored_with: dict[str, str | int | None]
    exact_match: NotRequired[_Matches]
    probes: NotRequired[dict[str, dict[str, _Probe]]]
    tests: NotRequired[dict[str, _TestSet]]
    proof_check: NotRequired[dict[str, JsonValue]]
    measured_with: NotRequired[dict[str, dict[str, JsonValue]]]


_RESULT: Final = TypeAdapter(_Result)


def write_result(path: Path, body: dict[str, Any]) -> Path:
    """Write an object with its checksum."""
    write_atomic(path, sealed.seal(body))
    return path


def read_result(path: Path, form: str = FORMAT) -> dict[str, Any]:
    """A result whose checksum holds."""
    try:
        data = sealed.unseal(read_untrusted(path))
    except (OSError, ValueError):
        data = {}
    return _checked(data, path, form)


def _checked(data: dict[str, Any], path: Path, form: str) -> dict[str, Any]:
    wrong: str | None = ""
    try:
        if data.get("format") == form:
            wrong = _fault(data) if form == FORMAT else None
    except (ValueError, KeyError, AttributeError, TypeError):
        pass
    if wrong is not None:
        raise CorruptionError(
            f"result {path} is damaged, edited or no {form}" + (f": {wrong}" if wrong else ""),
            kind="result-corrupt",
            fix="score the run again with `tangobench eval`",
            path=str(path),
        )
    if form == FORMAT and (content := proven_content(data["data"])):
        data["data"]["content_root"] = content
    return data


def _fault(data: dict[str, Any]) -> str | None:
    """What is wrong with a result, or None; empty or a KeyError if it does not describe its run."""
    seeds = data["seeds"]
    run = described_run(data, [seeds["initialisation"], seeds["data_order"]])
    names = ("family", "dataset", "arch", "depth")
    if run is None or any(data[name] != getattr(run.recipe, name) for name in names):
        return ""
    try:
        _RESULT.validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        return f"field {'.'.join(map(str, first['loc']))!r}: {first['msg']}"
    if not {"name", "profile", "root"} <= data["data"].keys():
        return ""
    if "code_sha256" not in data["trained_with"]:
        return "field 'trained_with.code_sha256' is missing"
    return next(filter(None, map(_test_fault, data.get("tests", {}).items())), None)


def _test_fault(item: tuple[str, Any]) -> str | None:
    name, found = item
    if found["scores"].keys() != found["modules"].keys() or "root" not in found["data"]:
        return f"field 'tests.{name}': scores, modules and data do not belong together"
    modules = [m for part in found["modules"].values() for m in part.values()]
    wrong = any(m["correct"] > m["tried"] for m in modules) or not modules
    return f"field 'tests.{name}.modules': more right answers than tried" if wrong else None


def shipped_results() -> Path:
    """The folder of results that comes with the package."""
    return Path(str(importlib.resources.files("tangobench.results")))


def read_results(folders: list[Path]) -> list[dict[str, Any]]:
    """All run results in some folders, by run name; the first folder that has a run wins."""
    found: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            if not _is_another_kind(path):
                result = read_result(path)
                run = found.setdefault(result["run"], result)["run"]
                if path.stem != run:
                    raise CorruptionError(
                        f"result {path} is that of run {run}: renamed or swapped",
                        kind="result-renamed",
                        fix=f"name it {run}.json, or score the run again",
                        path=str(path),
                    )
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


def _is_another_kind(path: Path) -> bool:
    """Whether a file is one of our other objects, such as a replication, and whole."""
    try:
        form = str(json.loads(read_untrusted(path))["format"])
        if form.startswith("tangobench-") and form != FORMAT:
            read_result(path, form)  # a flipped bit in the name of the format is no other kind
            return True
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass  # damaged: `read_result` will say so
    return False
