from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tangobench.pipeline.fineweb.keys import content_keys, invalid_utf8, normalise_url, url_keys

SAME = [
    ("http://Example.COM/a", "http://example.com/a"),
    ("http://example.com:80/a", "http://example.com/a"),
    ("https://example.com:443/", "https://example.com"),
    ("http://example.com/a#part", "http://example.com/a"),
    ("http://example.com/a#", "http://example.com/a"),
    ("http://example.com/%7euser", "http://example.com/~user"),
    ("http://example.com/%e4%b8%ad", "http://example.com/%E4%B8%AD"),
    ("http://example.com/中", "http://example.com/%E4%B8%AD"),
    ("http://example.com/a/../b/./c", "http://example.com/b/c"),
    ("http://example.com/%2e%2e/b", "http://example.com/b"),
    ("http://example.com/a b", "http://example.com/a%20b"),
    ("  http://example.com/a\n", "http://example.com/a"),
    ("http://bücher.example/", "http://xn--bcher-kva.example/"),
    ("http://example.com/?q=%41", "http://example.com/?q=A"),
    ("HTTP://example.com\\a", "http://example.com/a"),
    ("http://0x7f.1/", "http://127.0.0.1/"),
]
HEADS = [
    "http://a.org/", "https://a.org/?", "x://h/", "mailto:", "", "http://www.", "https://www.www.",
    "http://www.@", "https://a.org:80/", "http://www.:80", "http://www.www./",
]  # fmt: skip
DIFFERENT = [
    ("http://example.com/a", "https://example.com/a"),
    ("http://example.com/a", "http://www.example.com/a"),
    ("http://example.com/a", "http://example.com/a/"),
    ("http://example.com/?a=1&b=2", "http://example.com/?b=2&a=1"),
    ("http://example.com/?utm_source=x", "http://example.com/"),
    ("http://example.com/A", "http://example.com/a"),
    ("http://example.com:8080/", "http://example.com/"),
    ("http://example.com/a%2Fb", "http://example.com/a/b"),
    ("http://example.com/%2541", "http://example.com/%41"),
    ("http://example.com/a+b", "http://example.com/a%20b"),
    ("http://example.com/caf%C3%A9", "http://example.com/cafe%CC%81"),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_same_page(left, right):
    assert normalise_url(left) == normalise_url(right) is not None


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_pages(left, right):
    assert normalise_url(left) != normalise_url(right)


@pytest.mark.parametrize(
    "url", [None, "", "   ", "example.com/a", "/a", "http://", "http://a b/", "http://[::1", "::"]
)
def test_no_usable_url(url):
    assert normalise_url(url) is None
    keys, unparsable = url_keys([url])
    assert not keys.any() and unparsable == bool(url)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("https://www.example.com/a/", "http://example.com/a"),
        ("http://example.com/?b=2&a=1", "http://example.com/?a=1&b=2"),
        ("http://example.com/a?utm_source=x&id=3&fbclid=9", "http://example.com/a?id=3"),
        ("http://example.com/?", "http://example.com"),
        ("http://www.www.a/", "http://a/"),
        ("https://a.org:80/", "http://a.org/"),
    ],
)
def test_aggressive_folds(left, right):
    assert normalise_url(left, aggressive=True) == normalise_url(right, aggressive=True)
    assert normalise_url(left) != normalise_url(right)


@pytest.mark.parametrize("url", ["http://www./", "https://www.:80/", "http://www.www./?a=1"])
def test_aggressive_leaves_a_host(url):
    once = normalise_url(url, aggressive=True)
    assert once is not None and normalise_url(once, aggressive=True) == once


def test_aggressive_keeps_what_names_a_page():
    assert normalise_url("http://a.org/x?id=1", aggressive=True) != normalise_url(
        "http://a.org/x?id=2", aggressive=True
    )


@settings(deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.sampled_from(HEADS),
    st.booleans(),
)
def test_normalising_twice_changes_nothing(tail, head, aggressive):
    once = normalise_url(head + tail, aggressive=aggressive)
    if once is not None:
        assert normalise_url(once, aggressive=aggressive) == once


@settings(deadline=None)
@given(st.lists(st.text(max_size=5), max_size=8))
def test_content_keys_are_equal_exactly_for_equal_bytes(texts):
    for kind in (pa.string(), pa.large_string()):
        keys = content_keys(pa.array(["x", *texts], kind)[1:])
        for i, left in enumerate(texts):
            for j, right in enumerate(texts):
                assert np.array_equal(keys[i], keys[j]) == (left == right)


def test_a_text_that_is_a_url_does_not_share_its_key():
    url = "http://example.com/"
    assert not np.array_equal(url_keys([url])[0], content_keys(pa.array([url])))


def test_no_folding_of_content():
    variants = ["caf\u00e9", "cafe\u0301", "café ", " café", "Café", "café\n", "café\r\n"]
    keys = content_keys(pa.array(variants))
    assert len({tuple(key) for key in keys.tolist()}) == len(variants)


def test_invalid_utf8_is_found_value_by_value():
    raw = [b"fine", None, b"\xff", "é\x00".encode(), b"\xed\xa0\x80", b"\xc0\x80", b""]
    for binary, text in ((pa.binary(), pa.string()), (pa.large_binary(), pa.large_string())):
        array = pa.Array.from_buffers(text, len(raw), pa.array(raw, binary).buffers())
        assert invalid_utf8(array).tolist() == [False, False, True, False, True, True, False]
    assert not invalid_utf8(pa.array(["ok", None])).any()
