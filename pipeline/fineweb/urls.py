"""URLs and texts as keys: what counts as the same page, and what counts as the same content.

- A URL is parsed as browsers do (WHATWG), then percent-encodings are normalised (RFC 3986 6.2.2):
  upper-case hex digits, unreserved characters decoded. Fragment and default port go.
- Scheme, `www.`, tracking parameters, query order and a trailing slash stay significant unless
  `aggressive` folds them.
- A null, empty or unparsable URL has no normal form, so it links nothing.
- Content is compared byte by byte: no Unicode or whitespace folding.
- Keys are 128-bit xxh3: among 1.3 billion documents two different ones collide with a
  probability below n^2 / 2^129 = 3e-21.

Usage: `normalise_url("HTTP://Example.com:80/%7euser#top") == "http://example.com/~user"`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import can_ada
import numpy as np
import pyarrow as pa
import xxhash

Keys = np.ndarray[Any, np.dtype[np.uint64]]

_UNRESERVED: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_PERCENT: Final = re.compile("%[0-9A-Fa-f]{2}")
# Parameters that name the click, not the page; matched by name, `utm_` and `mc_` by prefix.
_TRACKING: Final = re.compile(
    "(?:utm_|mc_|pk_|_hs).*|gclid|dclid|gbraid|wbraid|fbclid|msclkid|yclid|igshid|twclid|ref_src",
    re.IGNORECASE,
)


_WWW: Final = re.compile(r"\A(?:www\.)+(?=[^/:?])")  # unless nothing would be left of the host
_NO_KEY: Final = bytes(16)
_URL_SEED: Final = 1  # URLs and texts are hashed apart: a text that is a URL must not link to it


def _normal_percent(match: re.Match[str]) -> str:
    byte = int(match[0][1:], 16)
    return chr(byte) if byte in _UNRESERVED else match[0].upper()


def normalise_url(url: str | None, *, aggressive: bool = False) -> str | None:
    """The URL's normal form, or None where there is no usable URL."""
    normal = _standard(url)
    if normal is None or not aggressive:
        return normal
    folded = _fold(normal)
    # Folding can make new things to normalise (https://a:80 has http's port then): until none is.
    while (again := _standard(folded)) is not None and _fold(again) != folded:
        folded = _fold(again)
    return folded


def _standard(url: str | None) -> str | None:
    if not url:
        return None
    try:
        href: str = can_ada.parse(url).href
    except (ValueError, TypeError):  # TypeError: a string that is no Unicode text
        return None
    href = href.partition("#")[0]
    return _PERCENT.sub(_normal_percent, href) if "%" in href else href


def _fold(href: str) -> str:
    scheme, separator, rest = href.partition("://")
    if separator and scheme in ("http", "https"):
        href = "http://" + _WWW.sub("", rest)
    page, _, query = href.partition("?")
    kept = sorted(p for p in query.split("&") if p and not _TRACKING.fullmatch(p.partition("=")[0]))
    page = page.rstrip("/ ")  # a space at the end would be lost when parsed again
    return page + "?" + "&".join(kept) if kept else page


def url_keys(urls: Iterable[str | None], *, aggressive: bool = False) -> tuple[Keys, int]:
    """One key (two uint64) per URL, zeros where it links nothing, and how many were unparsable."""
    digests: list[bytes] = []
    unparsable = 0
    for url in urls:
        normal = normalise_url(url, aggressive=aggressive)
        unparsable += normal is None and bool(url)
        digests.append(
            _NO_KEY if normal is None else xxhash.xxh3_128_digest(normal.encode(), _URL_SEED)
        )
    return _as_keys(digests), unparsable


def content_keys(texts: pa.Array) -> Keys:
    """One key per text of an Arrow string array, from its exact bytes; no nulls."""
    wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, offsets, data = texts.buffers()
    first, stop = texts.offset, texts.offset + len(texts) + 1
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)[first:stop].tolist()
    view = memoryview(data if data is not None else b"")
    hasher = xxhash.xxh3_128_digest
    return _as_keys([hasher(view[a:b]) for a, b in pairwise(bounds)])


def _as_keys(digests: list[bytes]) -> Keys:
    keys = np.frombuffer(b"".join(digests), "<u8").reshape(-1, 2)
    return keys.astype(np.uint64)


def invalid_utf8(array: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """True for each value of a string array whose bytes are not UTF-8 (nulls are fine).

    Arrow checks 2.4 GB/s; values are looked at one by one only when that check fails.
    """
    bad = np.zeros(len(array), dtype=np.bool_)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        wide = pa.types.is_large_string(array.type)
        raw = array.view(pa.large_binary() if wide else pa.binary())
        for index, value in enumerate(raw):
            data = value.as_py()
            bad[index] = data is not None and not _is_utf8(data)
    return bad


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
