"""Odd results with right checksums are refused with the field named."""

from __future__ import annotations

import json

import forge
import pytest

from tangobench.errors import CorruptionError
from tangobench.eval.scoring.results import read_result


@pytest.mark.parametrize("value", [None, "x", [1], {"a": "b"}, -1], ids=str)
@pytest.mark.parametrize("field", ["model", "training", "curve", "scores", "breakdowns", "step"])
def test_an_odd_field_is_named(out, field, value):
    path = next((out / "results").glob("*.json"))
    assert read_result(path)["run"] == path.stem
    forge.document(path, lambda data: data.update({field: value}))
    assert json.loads(path.read_bytes())[field] == value
    with pytest.raises(CorruptionError) as caught:
        read_result(path)
    assert caught.value.kind == "result-corrupt"
