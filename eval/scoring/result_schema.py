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


class Tally(TypedDict):
    """A mean NLL and what it is a mean of."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    nll: Number | None
    sum: NotRequired[Number]
    count: NotRequired[Count]
    rows: NotRequired[Count]


class Score(TypedDict):
    """The score of a metric."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    nll: Number
    sum: NotRequired[Number]
    count: NotRequired[Count]
    bits_per_byte: NotRequired[Number]
    bytes: NotRequired[Count]


class Share(TypedDict):
    """Right answers of those tried."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    correct: Count
    tried: Count
    share: NotRequired[Number | None]
    low: NotRequired[Number | None]
    high: NotRequired[Number | None]


class Matches(TypedDict):
    """Exact match."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    shares: dict[str, Share]


class Probe(TypedDict):
    """A probe."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    groups: dict[str, Tally]


class TestModule(TypedDict):
    """NLL and right answers of a module of a test set."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    sum: Number
    count: Annotated[Count, Field(ge=1)]
    correct: Count
    tried: Annotated[Count, Field(ge=1)]


class TestSet(TypedDict):
    """A run on a test set."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    data: dict[str, str]
    scores: Annotated[dict[str, Score], Field(min_length=1)]
    modules: dict[str, dict[str, TestModule]]


class Model(TypedDict):
    """Sizes of the model."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    width: Count
    nonembedding_params: Count
    total_params: Count


class Training(TypedDict):
    """What training took."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    seconds: Number
    tokens: Count
    tokens_per_second: Number | None


class Result(TypedDict):
    """A scored run; recipe, seeds and names are checked against each other elsewhere."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    run: Name
    data: dict[str, str]
    model: Model
    step: Count
    checkpoint_sha256: Sha256
    scores: Annotated[dict[str, Score], Field(min_length=1)]
    breakdowns: dict[str, dict[str, dict[str, Tally]]]
    curve: dict[str, list[tuple[Count, Number]]]
    validation_curve: NotRequired[dict[str, list[tuple[Count, Number]]]]
    training: Training
    trained_with: dict[str, str | int | None]
    scored_with: dict[str, str | int | None]
    exact_match: NotRequired[Matches]
    probes: NotRequired[dict[str, dict[str, Probe]]]
    tests: NotRequired[dict[str, TestSet]]
    proof_check: NotRequired[dict[str, JsonValue]]
    measured_with: NotRequired[dict[str, dict[str, JsonValue]]]


_RESULT: Final = TypeAdapter(Result)


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
    return None
