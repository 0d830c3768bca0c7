"""Charts as drawings: what is drawn, where, and how it can be read without seeing it."""

from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from drawings import heat, svg
from hypothesis import example, given
from hypothesis import strategies as st

from tangobench.eval.report.charts import (
    NARROW,
    WIDE,
    Axis,
    Scale,
    Series,
    c,
    histogram,
    plain,
    plot,
    short,
)
from tangobench.model.config import printed

NUMBERS = st.floats(-1e9, 1e9, allow_nan=False)


def _line_chart(**more):
    series = [
        Series(
            key="tango", label="A & <B>", x=[1, 2, 4], y=[3, 2, 1], low=[2, 1, 0], high=[4, 3, 2]
        ),
        Series(key="gau", label="C", x=[1, 2, 4], y=[1, 2, 3]),
    ]
    return plot("A title", series, x=Axis(label="x"), y=Axis(label="y"), **more)


def _points(series, **axis):
    return plot("S", series, x=Axis(label="x", **axis), y=Axis(label="y"))


CHARTS = {
    "lines": _line_chart,
    "points": lambda: _points(
        [Series(key="wango", label="W", x=[10], y=[1], low=[0.5], high=[1.5])], log=10
    ),
    "histogram": lambda: histogram(
        "H", [0, 5, 10], [3, 7], x=Axis(label="x"), y=Axis(label="n", low=0), note="two bars"
    ),
}


@pytest.mark.parametrize("name", CHARTS)
def test_both_drawings_are_xml_with_title_description_and_unique_ids(name):
    figure = CHARTS[name]()
    ids = []
    for drawing in (svg(figure), svg(figure, NARROW)):
        tree = ElementTree.fromstring(drawing)
        assert tree.get("role") == "img"
        ids += [element.get("id") for element in tree.iter() if element.get("id")]
        named = tree.get("aria-labelledby").split()
        texts = [element.text for element in tree.iter() if element.get("id") in named]
        assert texts == [figure.title, figure.description]
    assert len(ids) == len(set(ids)) == 4


@pytest.mark.parametrize("name", CHARTS)
def test_everything_is_drawn_inside_the_picture(name):
    figure = CHARTS[name]()
    for drawing in (svg(figure), svg(figure, NARROW)):
        width, height = map(float, re.search(r'viewBox="0 0 (\S+) (\S+)"', drawing).groups())
        for points in re.findall(r'points="([^"]+)"', drawing):
            for pair in points.split():
                x, y = map(float, pair.split(","))
                assert 0 <= x <= width
                assert 0 <= y <= height


@pytest.mark.parametrize("name", CHARTS)
def test_colours_are_left_to_the_page(name):
    assert not re.search(r"(fill|stroke)=|#[0-9a-f]{3}|rgb", svg(CHARTS[name]()))


@pytest.mark.parametrize("name", CHARTS)
def test_equal_numbers_give_equal_bytes(name):
    assert svg(CHARTS[name]()) == svg(CHARTS[name]())


def test_the_table_has_every_number_of_the_lines():
    table = _line_chart().table
    assert table.columns == ("", "x", "y", "low", "high")
    assert ("A & <B>", "4", "1", "0", "2") in table.rows
    assert len(table.rows) == 6


def test_every_point_has_a_tip_and_the_band_is_drawn():
    drawing = svg(_line_chart())
    assert drawing.count("data-tip=") == 6
    assert drawing.count('class="band s-tango"') == 1
    assert "A &amp; &lt;B&gt;" in drawing


def test_the_band_of_several_runs_is_from_the_lowest_to_the_highest():
    series = Series.over([[1.0, 5.0], [3.0, 4.0]], [10, 20], key="gau", label="G")
    assert (series.y, series.low, series.high) == ([2.0, 4.5], [1.0, 4.0], [3.0, 5.0])
    assert not Series.over([[1.0, 5.0]], [10, 20], key="gau", label="G").low


def test_end_labels_keep_apart():
    series = [Series(key="tango", label=f"S{i}", x=[0, 1], y=[0, 1 + i / 1000]) for i in range(6)]
    figure = plot("T", series, x=Axis(label="x"), y=Axis(label="y"))
    places = [
        float(y) for y in re.findall(r'class="end-label[^"]*" x="\S+" y="([^"]+)"', svg(figure))
    ]
    gaps = [b - a for a, b in zip(sorted(places), sorted(places)[1:], strict=False)]
    assert len(places) == 6
    assert min(gaps) >= 16


def test_end_labels_are_in_the_order_of_the_ends():
    ends = [0.0, 0.025, 0.05, 0.08, 0.09, 0.12, 0.9]
    series = [Series(key="tango", label=f"{end}", x=[0, 1], y=[1, end]) for end in ends]
    figure = plot("T", series, x=Axis(label="x"), y=Axis(label="y"))
    found = re.findall(r'class="end-label[^"]*" x="\S+" y="([^"]+)">([^<]+)<', svg(figure))
    by_height = sorted(found, key=lambda label: -float(label[0]))
    assert [float(name) for _, name in by_height] == ends
    assert all(0 < float(y) < 440 for y, _ in found)


def test_a_bar_is_as_high_as_its_count():
    heights = [
        float(h) for h in re.findall(r'height="([^"]+)" data-tip', svg(CHARTS["histogram"]()))
    ]
    assert heights[1] / heights[0] == pytest.approx(7 / 3, rel=0.01)


def test_heat_map_levels_follow_gaps_to_the_best_of_a_row_which_is_framed():
    columns, rows = [("Long", "L"), ("Other", "O")], {"one": [0.1, None], "two": [0.2, 0.3]}
    shown = heat({"title": "M", "note": "", "columns": columns, "rows": rows})
    assert re.findall(r'<td class="([^"]+)" data-tip="([^"]+)">([^<]+)</td>', shown) == [
        ("h0 best", "one, Long: 0.100", "0.10"),
        ("none", "one, Other: –", "–"),
        ("h0 best", "two, Long: 0.200", "0.20"),
        ("h8", "two, Other: 0.300", "+0.10"),
    ]
    for row in ([None, None], [0.1, 0.1]):  # nothing to tell apart
        assert "h8" not in heat({"title": "M", "note": "", "columns": columns, "rows": {"a": row}})


@example([0.0, 2.2250738585072014e-308], 2, True)
@example([0.0, 3.9186363574837705e-35], 2, True)
@example([1.281210045200318e-64, 1.2812100452003196e-64], 9, True)
@given(st.lists(NUMBERS, min_size=1, max_size=20), st.integers(2, 9), st.booleans())
def test_a_linear_scale_keeps_order_and_bounds(values, wanted, rounded):
    scale = Scale(Axis(label="v", rounded=rounded), values, 0, 100, wanted)
    places = [scale(value) for value in sorted(values)]
    assert all(-1e-6 <= place <= 100 + 1e-6 for place in places)
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(places))
    assert len(scale.ticks) <= wanted + 3
    assert all(math.isfinite(tick) for tick in scale.ticks)


@example([1.0, 1.0 + 1e-12], 10)
@given(st.lists(st.floats(1e-3, 1e15), min_size=1, max_size=9), st.sampled_from([2, 10]))
def test_a_log_scale_keeps_order_and_bounds_and_has_ticks(values, base):
    scale = Scale(Axis(label="v", log=base), values, 10, 90)
    assert all(10 - 1e-6 <= scale(value) <= 90 + 1e-6 for value in (*values, *scale.ticks))
    assert scale.ticks == sorted(scale.ticks)
    assert 1 <= len(scale.ticks) <= 12


def test_counts_get_whole_ticks_only():
    scale = Scale(Axis(label="n", low=0, counts=True, rounded=True), [0, 1], 0, 100)
    assert scale.ticks == [0, 1]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12, "12"),
        (1234, "1.23k"),
        (44_270_624, "44.3M"),
        (9.44e12, "9.44T"),
        (2e15, "2,000T"),
    ],
)
def test_short_numbers(value, text):
    assert short(value) == text


def test_other_numbers():
    assert (plain(1234567), plain(0.12345), plain(3.0)) == ("1,234,567", "0.123", "3")
    assert (printed(848_600_000_000), printed(9_436_000_000_000)) == ("848.60B", "9.44T")
    assert (c(1.04), c(2.0), c(-0.26)) == ("1", "2", "-0.3")
    assert WIDE > 700


def test_point_labels_stay_in_the_picture_and_apart():
    series = [
        Series(key="tango", label="A model with a long name", x=[x], y=[y])
        for x, y in ((1.0, 1.0), (1.0, 1.02), (1.02, 1.0), (9.0, 1.0), (9.0, 1.01))
    ]
    drawing = svg(_points(series))
    found = re.findall(r'class="end-label f-tango( end)?" x="(\S+)" y="(\S+)"', drawing)
    wide = 7.2 * len("A model with a long name")
    boxes = [(float(x) - (wide if end else 0), float(y)) for end, x, y in found]
    assert all(0 <= left <= WIDE - wide for left, _ in boxes)
    for (left, y), (other, level) in itertools.combinations(boxes, 2):
        assert abs(y - level) >= 16 or abs(left - other) >= wide
