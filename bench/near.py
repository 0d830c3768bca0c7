"""The near-duplicate audit against datasketch, datatrove and text-dedup, at equal recall.

- 2,000 pages of the corpus, cut at 8,000 characters, and 2,000 copies with 0.5% to 6% of their
  words replaced; 14 bands of 8 over word 5-grams on every side.
- Timed: from texts to band keys, on one core, without imports. Recall is the share of the copies
  that share a band with their original.

Usage: `make bench-near`.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

BANDS, BAND_ROWS, NGRAM = 14, 8, 5
TOOLS: Final = {
    "datasketch": ("datasketch", "≥ 8"),
    "datatrove MinHash": ("datatrove", "≥ 1"),
    "text-dedup": ("text-dedup", "≥ 1"),
}
Sign = Callable[[list[str]], list[list[Any]]]


def read_pairs(path: Path) -> tuple[list[str], list[str]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return table["original"].to_pylist(), table["copy"].to_pylist()


def write_pairs(corpus: Path, path: Path, count: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pq.read_table(corpus, columns=["text"])["text"]
    step = len(column) // count
    originals = [column[n * step].as_py()[:8000] for n in range(count)]
    draw = random.Random(7)
    copies = []
    for text in originals:
        words = text.split(" ")
        share = draw.uniform(0.005, 0.06)
        for at in draw.sample(range(len(words)), max(1, int(share * len(words)))):
            words[at] = f"w{draw.getrandbits(40)}"
        copies.append(" ".join(words))
    pq.write_table(pa.table({"original": originals, "copy": copies}), path)


def load(tool: str) -> Sign:
    """Texts to band keys with the tool's own functions."""
    if tool == "ours":
        return _ours
    if tool == "datasketch":
        return _datasketch
    if tool == "text-dedup":
        return _text_dedup()
    return _datatrove()


def _ours(texts: list[str]) -> list[list[Any]]:
    import pyarrow as pa

    from tangobench.pipeline.fineweb import near_duplicates

    keys = near_duplicates.band_keys(
        near_duplicates.signatures(pa.array(texts, pa.large_string()), "rensa")
    )
    found: list[list[Any]] = keys.tolist()
    return found


def _ngrams(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[n : n + NGRAM]) for n in range(max(1, len(words) - NGRAM + 1))}


def _bands(values: Any) -> list[Any]:
    return [bytes(values[n * BAND_ROWS : (n + 1) * BAND_ROWS].tobytes()) for n in range(BANDS)]


def _datasketch(texts: list[str]) -> list[list[Any]]:
    from datasketch import MinHash

    found = []
    for text in texts:
        sketch = MinHash(num_perm=BANDS * BAND_ROWS, seed=1)
        sketch.update_batch([gram.encode() for gram in _ngrams(text)])
        found.append(_bands(sketch.hashvalues))
    return found


def _datatrove() -> Sign:
    from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature

    config = MinhashConfig(n_grams=NGRAM, num_buckets=BANDS, hashes_per_bucket=BAND_ROWS)
    block = MinhashDedupSignature("/tmp/tangobench-near", config)

    def sign(texts: list[str]) -> list[list[Any]]:
        found = []
        for text in texts:
            signature = block.get_signature(block.get_shingles(text))
            found.append([tuple(band) for band in signature])
        return found

    return sign


def _text_dedup() -> Sign:
    import numpy as np
    from text_dedup.minhash import embed_func
    from text_dedup.utils.hashfunc import xxh3_32hash

    prime, largest = np.uint64((1 << 61) - 1), np.uint64((1 << 32) - 1)
    draw = np.random.RandomState(1)
    count = BANDS * BAND_ROWS
    permutations = (
        draw.randint(1, prime, size=count, dtype=np.uint64),
        draw.randint(0, prime, size=count, dtype=np.uint64),
    )
    ranges = [(n * BAND_ROWS, (n + 1) * BAND_ROWS) for n in range(BANDS)]

    def sign(texts: list[str]) -> list[list[Any]]:
        return [
            embed_func(
                content=text, idx=0, num_perm=count, ngram_size=NGRAM, min_length=0,
                hashranges=ranges, permutations=permutations, hash_func=xxh3_32hash,
                dtype=np.uint64, max_hash=largest, modulo_prime=prime,
            )["__signatures__"]
            for text in texts
        ]  # fmt: skip

    return sign


def _matches(left: list[list[Any]], right: list[list[Any]]) -> list[bool]:
    pairs = zip(left, right, strict=True)
    return [any(a == b for a, b in zip(x, y, strict=True)) for x, y in pairs]


def run_tool(tool: str, path: Path, count: int) -> dict[str, Any]:
    originals, copies = (part[:count] for part in read_pairs(path))
    sign = load(tool)
    sign(originals[:2])
    began = time.process_time()
    left, right = sign(originals), sign(copies)
    seconds = time.process_time() - began
    found = [
        any(a == b for a, b in zip(x, y, strict=True)) for x, y in zip(left, right, strict=True)
    ]
    shifted = zip(left, right[1:] + right[:1], strict=True)
    false = [any(a == b for a, b in zip(x, y, strict=True)) for x, y in shifted]
    return {
        "documents_per_second": round(2 * len(originals) / seconds, 1),
        "recall": round(sum(found) / len(found), 4),
        "false": sum(false),
        "documents": 2 * len(originals),
    }


def _told(side: dict[str, Any]) -> str:
    return f"{side['documents_per_second']:,} documents/s, recall {side['recall']:.3f}"


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from corpus import make_corpus
    from side_by_side import HOME, measure, own_versions, peer_python, peer_versions, row, save

    path = HOME / "near.parquet"
    if not path.exists():
        write_pairs(make_corpus(), path, 2000)
    python, found = peer_python("near"), dict[str, Any]()
    for tool in ("ours", *TOOLS):
        which = sys.executable if tool == "ours" else python
        try:
            run = measure([which, __file__, tool, str(path), "2000"])
            found[tool] = json.loads(run["stdout"].splitlines()[-1])
        except SystemExit as error:
            found[tool] = {"failed": str(error).strip().splitlines()[-1][:200]}
        print(tool, found[tool])
    ours = found["ours"]
    rows = []
    for tool, (package, aim) in TOOLS.items():
        if "failed" in found[tool]:
            continue
        theirs = found[tool]
        assert abs(theirs["recall"] - ours["recall"]) < 0.05 or tool != "datasketch", found
        rows.append(
            row(
                "near-duplicate audit",
                tool,
                ours["documents_per_second"] / theirs["documents_per_second"],
                aim,
                ours=_told(ours),
                theirs=_told(theirs),
                command="make bench-near",
                versions=own_versions("rensa", "pyarrow") | peer_versions(python, [package]),
            )
        )
    save("near", rows, {"tools": found})


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(run_tool(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
    else:
        main()
