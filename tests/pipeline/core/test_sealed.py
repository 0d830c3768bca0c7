from __future__ import annotations

import json

import forge
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.pipeline.core.sealed import DOCUMENT, LINE, RECORD, Broken, case_json, seal, unseal

FORMS = {"document": DOCUMENT, "line": LINE, "record": RECORD}
BODY = {"b": [1, 2, {"c": None}], "a": "ü", "share": 1e-05}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@given(st.dictionaries(st.text(max_size=5).filter(lambda key: key != "checksum"), JSON))
def test_what_is_sealed_reads_back(form, body):
    assert unseal(seal(body, form), form) == body


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_flipped_bit_is_refused(form):
    raw = seal(BODY, form)
    for place in range(len(raw)):
        for bit in range(8):
            data = bytearray(raw)
            data[place] ^= 1 << bit
            with pytest.raises(Broken):
                unseal(bytes(data), form)


def test_the_bytes_are_those_of_an_independent_writer():
    assert seal(BODY) == forge.sealed(BODY)
    assert seal(BODY, LINE) == forge.line(BODY)


@pytest.mark.parametrize(
    "raw",
    [b"", b"null", b"[]", b"{}", b'{"checksum": 1}', b"[" * 200_000, b"\xff", b'"x"'],
    ids=repr,
)
def test_anything_else_is_broken(raw):
    with pytest.raises(Broken):
        unseal(raw)


def test_not_a_number_is_no_json():
    raw = seal({"a": 1.5}).replace(b"1.5", b"NaN")
    assert json.loads(raw)["a"] != json.loads(raw)["a"]
    with pytest.raises(Broken):
        unseal(raw)


def test_a_line_holds_text_that_is_no_unicode():
    assert unseal(seal({"text": "\udc80"}, LINE), LINE) == {"text": "\udc80"}


def test_a_report_has_one_line_per_case():
    report = {"machine": "é", "cases": [{"a": [1, 2]}, {"a": []}], "by": {"x": {"y": 1}}, "no": []}
    text = case_json(report)
    assert json.loads(text) == report
    assert len(text.splitlines()) == 2 + 1 + 4 + 3 + 1
