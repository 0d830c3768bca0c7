"""URL normalisation: tricky pairs first, then URLs per second of CPU time.

- A pair is wrong if a tool says "same page" where RFC 3986 or WHATWG say otherwise, or the reverse;
  only pairs that these two documents decide are in the list.
- Each tool runs in a process of its own with the call that its documentation shows first.

Usage: `make bench-urls`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

SAME: Final = (
    ("http://Example.COM/a", "http://example.com/a"),
    ("HTTP://example.com/a", "http://example.com/a"),
    ("http://example.com:80/a", "http://example.com/a"),
    ("https://example.com:443/a", "https://example.com/a"),
    ("http://example.com/a#top", "http://example.com/a"),
    ("http://example.com", "http://example.com/"),
    ("http://example.com/%7euser", "http://example.com/~user"),
    ("http://example.com/a%2fb", "http://example.com/a%2Fb"),
    ("http://example.com/a/./b", "http://example.com/a/b"),
    ("http://example.com/a/../b", "http://example.com/b"),
    ("http://bücher.example/", "http://xn--bcher-kva.example/"),
    ("http://example.com/é", "http://example.com/%C3%A9"),
)
OTHER: Final = (
    ("http://example.com/a", "http://example.com/A"),
    ("http://example.com/a", "http://example.com/a/"),
    ("http://example.com/a%2Fb", "http://example.com/a/b"),
    ("http://example.com/?a=1&a=2", "http://example.com/?a=2"),
    ("http://example.com/?a=1&b=2", "http://example.com/?b=2&a=1"),
    ("http://example.com/?q=A", "http://example.com/?q=a"),
    ("http://example.com:8080/a", "http://example.com/a"),
    ("http://example.com/a?", "http://example.com/a?x"),
)
TOOLS: Final = {
    "w3lib": ("w3lib", "≥ 10"),
    "courlan": ("courlan", "≥ 1"),
    "yarl": ("yarl", "≥ 1"),
    "url-normalize": ("url-normalize", "≥ 1"),
}
SITES: Final = (
    "https://www.example.com",
    "http://News.example.org:80",
    "https://a.b.example.co.uk",
)


def load(tool: str) -> Callable[[str], Any]:
    """The tool's own normal form of a URL."""
    if tool == "ours":
        from tangobench.pipeline.fineweb.keys import normalise_url

        return normalise_url
    if tool == "w3lib":
        from w3lib.url import canonicalize_url

        return canonicalize_url
    if tool == "courlan":
        from courlan import normalize_url

        return normalize_url
    if tool == "yarl":
        from yarl import URL

        return lambda url: str(URL(url).with_fragment(None))
    from url_normalize import url_normalize

    return url_normalize


def make_urls(count: int) -> list[str]:
    """Like a crawl: paths of a few segments, a query in a third, some encodings and fragments."""
    urls = []
    for n in range(count):
        path = f"/{n % 97}/topic-{n * 7919 % 100_003}/page{n}.html"
        query = f"?id={n}&view=full" if n % 3 == 0 else ""
        odd = ("%7Euser", "caf%c3%a9", "#part-2", "", "", "")[n % 6]
        where = (
            path + query + odd
            if odd.startswith("#")
            else path.replace("topic", odd or "topic") + query
        )
        urls.append(SITES[n % 3] + where)
    return urls


def run_tool(tool: str, count: int) -> dict[str, Any]:
    normal = load(tool)
    wrong = [pair for pair in SAME if normal(pair[0]) != normal(pair[1])]
    wrong += [pair for pair in OTHER if normal(pair[0]) == normal(pair[1])]
    urls = make_urls(count)
    for url in urls[:100]:
        normal(url)
    began = time.process_time()
    for url in urls:
        normal(url)
    return {"urls_per_second": round(count / (time.process_time() - began)), "wrong": wrong}


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from side_by_side import measure, own_versions, peer_python, peer_versions, row, save

    python, found = peer_python("urls"), dict[str, Any]()
    for tool in ("ours", *TOOLS):
        which, count = (sys.executable, 400_000) if tool == "ours" else (python, 40_000)
        run = measure([which, __file__, tool, str(count)])
        found[tool] = json.loads(run["stdout"])
        print(tool, found[tool]["urls_per_second"], len(found[tool]["wrong"]), "wrong")
    ours = found["ours"]
    assert not ours["wrong"], ours
    pairs = len(SAME) + len(OTHER)
    rows = [
        row(
            "URL normalisation", tool,
            ours["urls_per_second"] / found[tool]["urls_per_second"], aim,
            ours=f"{ours['urls_per_second']:,} URL/s, 0 of {pairs} pairs wrong",
            theirs=f"{found[tool]['urls_per_second']:,} URL/s, {len(found[tool]['wrong'])} wrong",
            command="make bench-urls",
            versions=own_versions("can_ada") | peer_versions(python, [package]),
        )
        for tool, (package, aim) in TOOLS.items()
    ]  # fmt: skip
    save("urls", rows, {"tools": found, "pairs": pairs})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(run_tool(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
