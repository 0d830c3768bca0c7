"""Odd results with right checksums: refused with the field named, or shown; never a traceback."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import forge
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tangobench.errors import CorruptionError, TangobenchError
from tangobench.eval.comparison.beyond import beyond_tables
from tangobench.eval.comparison.tables import own_tables, paper_tables
from tangobench.eval.render import render
from tangobench.eval.report.site import write_report
from tangobench.eval.scoring.result_files import read_result, read_results

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 0, 2**63, 2**70, 1e308, -1e308, 0.5]),
    st.sampled_from(
        ["", "x", "../../x", "javascript:alert(1)", "<b>", "\x1b[2J", "mini", "\ud800"]
    ),
    st.sampled_from([[], [[]], {}, {"a": "b"}, {"nll": 1.0}, [1, 2, 3], [None], {"": None}]),
)


def places(value: object, path: tuple = ()) -> list[tuple]:
    """Where every value inside a JSON value is; long lists by their first items."""
    inner: list = []
    if isinstance(value, dict | list):
        inner = list(value.items())[:12] if isinstance(value, dict) else list(enumerate(value[:3]))
    deeper = [place for key, item in inner for place in places(item, (*path, key))]
    return [path, *deeper] if path else deeper


@pytest.fixture(scope="module")
def scored(trained, tmp_path_factory):
    """A folder with one result and nothing else, and that result."""
    out = tmp_path_factory.mktemp("odd")
    (source,) = (trained / "results").glob("*.json")
    (out / "results").mkdir()
    path = shutil.copy(source, out / "results" / source.name)
    return out, path, json.loads(path.read_bytes())


def changed(good: dict, path: tuple, value: object, *, delete: bool) -> bytes | None:
    """The result with one value replaced or removed, as a stranger would seal it."""
    data = copy.deepcopy(good)
    place = data
    for step in path[:-1]:
        place = place[step]
    if delete:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    try:
        return forge.sealed(data)
    except UnicodeEncodeError:
        return None  # no UTF-8, so no file


def check(scored, data, *, report: bool) -> None:
    """Tables (and the report) of this one result: made, or refused with a typed error."""
    out, path, good = scored
    where = data.draw(st.sampled_from(places(good)))
    raw = changed(good, where, data.draw(ODD), delete=data.draw(st.booleans()))
    path.write_bytes(raw or b"")
    try:
        if report:
            write_report(out, out / "site")
        else:
            results = read_results([out / "results"])
            tables = [*own_tables(results), *paper_tables(results), *beyond_tables(results)]
            assert "\x1b" not in render(tables, "markdown")
    except TangobenchError as error:
        assert str(path) in str(error) or "root" in error.kind


SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@settings(SETTINGS, max_examples=60)
@given(data=st.data())
def test_tables_of_odd_results(scored, data):
    check(scored, data, report=False)


@settings(SETTINGS, max_examples=8)
@given(data=st.data())
def test_a_report_on_odd_results(scored, data):
    check(scored, data, report=True)


def test_a_result_without_content_root_is_shown_as_not_proven(scored):
    out, path, good = scored
    data = {**good, "data": {**good["data"], "root": "ab" * 32}}
    path.write_bytes(forge.sealed(data))
    proven = read_results([out / "results"])
    assert "not proven" not in render(own_tables(proven), "markdown")
    del data["data"]["content_root"]
    path.write_bytes(forge.sealed(data))
    results = read_results([out / "results"])
    assert "(content not proven)" in render(own_tables(results), "markdown")


@pytest.mark.parametrize("value", [None, "x", [1], {"a": "b"}, -1], ids=str)
@pytest.mark.parametrize("field", ["model", "training", "curve", "scores", "breakdowns", "step"])
def test_an_odd_field_is_named(scored, field, value):
    _, path, good = scored
    path.write_bytes(forge.sealed(good))
    assert read_result(path)["run"] == path.stem
    path.write_bytes(forge.sealed({**good, field: value}))
    with pytest.raises(CorruptionError) as caught:
        read_result(path)
    assert caught.value.kind == "result-corrupt"


@pytest.mark.parametrize(
    "tally", [{"nll": 1.0}, {"nll": 1.0, "sum": 1.0}, {"nll": 1.0, "count": 1}]
)
def test_a_tally_that_is_none_is_not_packed(attacked, scored, tmp_path, tally):
    out, path, good = scored
    data = copy.deepcopy(good)
    kinds = next(iter(data["breakdowns"].values()))
    kinds["combination"] = dict.fromkeys(kinds["combination"], tally)
    path.write_bytes(forge.sealed(data))
    attacked("results", "pack", out / "results", "--to", tmp_path / "packed", code=5)
    assert not (tmp_path / "packed").exists()


DEEP = "[" * 200_000
CELLS = {str(n): {"2": [1, 2]} for n in (64, 128, 256, 512, 1024)}
RECALL = {"arch": "tango", "seeds": [17, 101], "untied": False, "run_sha256": "ab" * 32}


@pytest.mark.parametrize(
    "runs",
    [
        *([], "x", None, {"r": None}, {"r": 5}, {"r": RECALL}),
        {"r": {**RECALL, "accuracy": None}},
        {"r": {**RECALL, "accuracy": {"64": {"2": [1, 2]}}}},
        {"r": {**RECALL, "accuracy": {**CELLS, "64": {"2": "x"}}}},
        {"r": {**RECALL, "accuracy": {**CELLS, "64": {"2": [2, 1]}}}},
        {"r": {**RECALL, "accuracy": {**CELLS, "64": {"2": [10**400, 10**401]}}}},
        {"r": {**RECALL, "accuracy": CELLS, "run_sha256": []}},
        {"r": {**RECALL, "accuracy": CELLS, "arch": "\x1b[2J"}},
    ],
    ids=lambda value: str(value)[:40],
)
def test_odd_answers_of_the_recall_study(attacked, tmp_path, runs):
    """The file has a right checksum and any content: refused by everything that reads it."""
    path = tmp_path / "recall.json"
    good = {"format": "tangobench-recall/1", "runs": {"r": {**RECALL, "accuracy": CELLS}}}
    path.write_bytes(forge.cases(good))
    attacked("results", "pack", tmp_path, "--to", tmp_path / "good", code=0)
    path.write_bytes(forge.cases({**good, "runs": runs}))
    said = attacked("results", "pack", tmp_path, "--to", tmp_path / "odd", code=4)
    assert str(path) in said and "\x1b" not in said


SPEED = json.loads((Path(__file__).parents[2] / "bench" / "results" / "speed.json").read_bytes())


@pytest.mark.parametrize(
    "text",
    [
        *(DEEP, "[]", "{}", "1" * 5000, json.dumps({**SPEED, "machine": "x"})),
        *(
            json.dumps({**SPEED, "cases": [{**SPEED["cases"][0], **odd}]})
            for odd in (
                *({"tokens_per_second": value} for value in (float("nan"), 10**400, 0, None)),
                *({"arch": []}, {"length": "\x1b[2J"}, {"length": 0}, {"peak_bytes": 0.5}),
            )
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_odd_measurements_of_speed(attacked, tmp_path, text):
    path = tmp_path / "speed.json"
    path.write_text(text)
    (tmp_path / "results").mkdir()
    said = attacked("tables", tmp_path / "results", "--speed", path, code=2)
    said += attacked("report", "--out", tmp_path, code=5)
    assert said.count("holds no measurements") == 2 and "\x1b" not in said
