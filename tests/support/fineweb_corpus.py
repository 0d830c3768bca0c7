"""A FineWeb-like corpus whose duplicates are known, the oracle of its decisions, and its build."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tangobench.pipeline import api

DUMPS = [
    "CC-MAIN-2013-20",
    "CC-MAIN-2023-06",
    "CC-MAIN-2023-40",
    "CC-MAIN-2023-50",
    "CC-MAIN-2024-10",
]
VARIANTS = [
    lambda page: f"https://site.example/page-{page}",
    lambda page: f"HTTPS://SITE.example:443/page-{page}",
    lambda page: f"https://site.example/x/../page-{page}#top",
    lambda page: f"https://site.example/%70age%2D{page}",
]
NEAR_MISSES = [
    lambda page: f"http://site.example/page-{page}",
    lambda page: f"https://site.example/page-{page}/",
    lambda page: f"https://www.site.example/page-{page}",
    lambda page: f"https://site.example/page-{page}?a=1&b=2",
    lambda page: f"https://site.example/page-{page}?b=2&a=1",
]
UNUSABLE = [None, "", "no url at all", "http://"]


def text_of(number: int, form: int, length: int) -> str:
    body = f"Café number {number}: " + " ".join(f"w{number % 97}k{i}" for i in range(length))
    return [body, unicodedata.normalize("NFD", body), body + " ", body.replace(": ", ":  ")][form]


def make_corpus(count: int, seed: int, *, dates: bool = True) -> list[dict]:
    """Documents with what they are: `page` and `content` say which are truly equal."""
    draw = random.Random(seed)
    docs = []
    for number in range(count):
        page = draw.randrange(count)
        kind = draw.random()
        if kind < 0.75:
            url, page_key = draw.choice(VARIANTS)(page), ("page", page)
        elif kind < 0.9:
            miss = draw.randrange(len(NEAR_MISSES))
            url, page_key = NEAR_MISSES[miss](page), ("miss", miss, page)
        else:
            url, page_key = draw.choice(UNUSABLE), ("none", number)
        content = draw.randrange(int(count * 1.5))
        form = draw.choice([0, 0, 0, 1, 2, 3])
        length = 2600 if content % 50 == 0 else 20
        text: str | None = text_of(content, form, length)
        content_key = (content, form)
        if draw.random() < 0.02:
            text = draw.choice(["", None])
        docs.append(
            {
                "text": text,
                "id": f"<urn:uuid:{draw.getrandbits(64):016x}-{number}>",
                "dump": draw.choice(DUMPS),
                "url": url,
                "date": draw.choice([None, "2023-01-01T00:00:00Z", "2023-05-05T00:00:00Z"]),
                "page": page_key,
                "content": content_key,
            }
        )
        if not dates:
            docs[-1]["date"] = None
    return docs


def expected(docs: list[dict]) -> dict[str, dict]:
    """Partition, kept and representative of every document, by a plain union-find."""
    parent = {doc["id"]: doc["id"] for doc in docs}

    def find(ident):
        while parent[ident] != ident:
            ident = parent[ident]
        return ident

    live = [d for d in docs if d["text"] and d["dump"] <= "CC-MAIN-2023-50"]
    owners: dict = {}
    for doc in live:
        for key in (doc["page"], doc["content"]):
            first = owners.setdefault(key, doc["id"])
            parent[find(doc["id"])] = find(first)
    groups: dict = {}
    for doc in live:
        groups.setdefault(find(doc["id"]), []).append(doc)
    answer = {}
    for members in groups.values():
        earliest = min(
            members, key=lambda d: (d["dump"], d["date"] is None, d["date"] or "", d["id"])
        )
        partition = "train" if earliest["dump"] <= "CC-MAIN-2023-40" else "validation"
        for doc in members:
            answer[doc["id"]] = {
                "partition": partition,
                "kept": doc is earliest,
                "representative": earliest["id"],
            }
    for doc in docs:
        if doc["dump"] > "CC-MAIN-2023-50":
            answer[doc["id"]] = {"partition": "ignored", "kept": False}
        elif not doc["text"]:
            late = doc["dump"] > "CC-MAIN-2023-40"
            answer[doc["id"]] = {"partition": "validation" if late else "train", "kept": False}
    return answer


def write_parquet(path: Path, docs: list[dict], *, rows: int = 400, date: bool = True) -> Path:
    """The documents as FineWeb has them, without what the oracle knows."""
    names = ["text", "id", "dump", "url", *(["date"] if date else [])]
    table = pa.table({n: pa.array([d[n] for d in docs], pa.string()) for n in names})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=rows)
    return path


def read_decisions(folder: Path) -> list[dict]:
    """Every document's decision, in order."""
    files = sorted((folder / "decisions").glob("*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def build(out: Path, source: object, **options):
    """A build with short rows and small units, so that a small corpus has many of both."""
    rules = {"context": 512, "unit_bytes": 1 << 16, "near_duplicates": "off"}
    overrides = {**rules, **options.pop("overrides", {})}
    return api.build(
        "fineweb", out=str(out), source=None if source is None else str(source),
        overrides=overrides, **options,
    )  # fmt: skip
