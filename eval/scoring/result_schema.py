"""The shape of a result: what tables and reports may rely on.

- A result from elsewhere with a right checksum can hold anything; numbers are finite, counts are
  not negative, and every part that a table is made of has its type.

Usage: `if wrong := first_fault(data): ...`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, NotRequired

from pydantic import ConfigDict, Field, JsonValue, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from tangobench.pipeline.core.lock_schema import Count, Name, Sha256

Number = Annotated[float, Field(allow_inf_nan=False, ge=-1e300, le=1e300)]
_STRICT: Final = ConfigDict(strict=True, extra="allow", regex_engine="python-re")


class _Strict(TypedDict):
    __pydantic_config__ = _STRICT  # type: ignore[misc]


class _Tally(_Strict):  # A mean NLL and what it is a mean of
    nll: Number | None
    sum: NotRequired[Number]
    count: NotRequired[Count]
    rows: NotRequired[Count]


class _Score(_Strict):  # The score of a metric
    nll: Number
    sum: NotRequired[Number]
    count: NotRequired[Count]
    bits_per_byte: NotRequired[Number]
    bytes: NotRequired[Count]


class _Share(_Strict):  # Right answers of those tried
    correct: Count
    tried: Count
    share: NotRequired[Number | None]
    low: NotRequired[Number | None]
    high: NotRequired[Number | None]


class _Matches(_Strict):  # Exact match
    shares: dict[str, _Share]


class _Probe(_Strict):  # A probe
    groups: dict[str, _Tally]


class _TestModule(_Strict):  # NLL and right answers of a module of a test set
    sum: Number
    count: Annotated[Count, Field(ge=1)]
    correct: Count
    tried: Annotated[Count, Field(ge=1)]


class _TestSet(_Strict):  # A run on a test set
    data: dict[str, str]
    scores: Annotated[dict[str, _Score], Field(min_length=1)]
    modules: dict[str, dict[str, _TestModule]]


class _Model(_Strict):  # Sizes of the model
    width: Count
    nonembedding_params: Count
    total_params: Count


class _Training(_Strict):  # What training took
    seconds: Number
    tokens: Count
    tokens_per_second: Number | None


class _Result(_Strict):  # A scored run; recipe, seeds and names are checked elsewhere
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


def first_fault(data: Any) -> str | None:
    """What is wrong with a result, or None."""
    try:
        _RESULT.validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        return f"field {'.'.join(map(str, first['loc']))!r}: {first['msg']}"
    except ValueError as error:
        return str(error)
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
