"""GPT-2 encoding alone: MB/s of CPU time of every public engine that runs here, ids compared.

- Each engine runs in a process of its own on one thread, on the same texts; loading is not timed.
- The digest of all ids decides whether an engine is exact; a text with `<|endoftext|>` and odd
  characters is among them, because that is where engines differ.

Usage: `make bench-encoding`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

ODD: Final = [
    "a <|endoftext|> b", "naïve café\u0301 \u202e \x00 \ufffd", "  \t\n\n   x   ",
    "\U0001f469\u200d\U0001f4bb" * 9,
    "it's we'll I'M don\u2019t 1234567 ١٢٣ ½ ²", "日本語のテキスト。" * 20, " " * 3000 + "end",
    "\r\n\r\n x\r",
]  # fmt: skip
PACKAGES: Final = {
    "tiktoken": "tiktoken",
    "tiktoken, batch": "tiktoken",
    "HF tokenizers": "tokenizers",
    "splintr": "splintr-rs",
    "fastokens": "fastokens",
}


def batches(corpus: Path, megabytes: float) -> Iterator[list[str]]:
    import pyarrow.parquet as pq

    yield ODD
    size = 0
    for batch in pq.ParquetFile(corpus).iter_batches(256, columns=["text"]):
        texts = batch.column("text").to_pylist()
        yield texts
        size += sum(map(len, texts))
        if size > megabytes * 1e6:
            return


def tiktoken_encoding(folder: Path) -> Any:
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks
    from tiktoken_ext.openai_public import r50k_pat_str

    ranks = data_gym_to_mergeable_bpe_ranks(
        vocab_bpe_file=str(folder / "vocab.bpe"), encoder_json_file=str(folder / "encoder.json")
    )
    return tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )


Encode = Callable[[list[str]], Sequence[Sequence[int]]]


def load(engine: str, folder: Path) -> Encode:
    """A function from texts to ids; imports happen here, in the environment of the engine."""
    if engine == "ours":
        import pyarrow as pa

        from tangobench.pipeline.tokenizer.base import gpt2

        encoder = gpt2()

        return lambda texts: encoder.encode_arrow(pa.array(texts, pa.large_string()))
    if engine.startswith("tiktoken"):
        encoding = tiktoken_encoding(folder)
        if engine.endswith("batch"):
            return lambda texts: encoding.encode_ordinary_batch(texts, num_threads=1)
        return lambda texts: [encoding.encode_ordinary(text) for text in texts]
    if engine == "HF tokenizers":
        from tokenizers import ByteLevelBPETokenizer

        tokenizer = ByteLevelBPETokenizer(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
        return lambda texts: [found.ids for found in tokenizer.encode_batch(texts)]
    path = Path(tempfile.mkdtemp()) / "gpt2"
    if engine == "splintr":
        import splintr

        ranks = sorted(tiktoken_encoding(folder)._mergeable_ranks.items(), key=lambda x: x[1])
        path.write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in ranks))
        tool = splintr.Tokenizer(str(path), splintr.GPT2_PATTERN, {})
        return lambda texts: [tool.encode_ordinary(text) for text in texts]
    import fastokens
    from tokenizers import ByteLevelBPETokenizer

    ByteLevelBPETokenizer(str(folder / "encoder.json"), str(folder / "vocab.bpe")).save(str(path))
    fast = fastokens.Tokenizer.from_file(str(path))
    return lambda texts: [list(getattr(found, "ids", found)) for found in fast.encode_batch(texts)]


def run_engine(engine: str, corpus: Path, folder: Path, megabytes: float) -> dict[str, Any]:
    import numpy as np

    encode = load(engine, folder)
    encode(["warm up"])
    hasher, seconds, size, tokens = hashlib.sha256(), 0.0, 0, 0
    odd = ""
    for texts in batches(corpus, megabytes):
        began = time.process_time()
        found = encode(texts)
        seconds += time.process_time() - began
        size += sum(len(text.encode()) for text in texts)
        for ids in found:
            tokens += len(ids)
            hasher.update(np.asarray(ids, np.uint16).tobytes() + b"\xff\xff")
        odd = odd or hasher.hexdigest()
    return {
        "mb_per_second": round(size / 1e6 / seconds, 2),
        "tokens": tokens,
        "ids_sha256": hasher.hexdigest(),
        "odd_ids_sha256": odd,
        "bytes": size,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=float, default=25)
    parser.add_argument("--engine", nargs=3, metavar=("NAME", "CORPUS", "VOCABULARY"))
    args = parser.parse_args()
    if args.engine:
        name, corpus, folder = args.engine
        print(json.dumps(run_engine(name, Path(corpus), Path(folder), args.megabytes)))
        return
    compare(args.megabytes)


def compare(megabytes: float) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    from corpus import corpus_of
    from side_by_side import (
        measure,
        own_versions,
        peer_python,
        peer_versions,
        row,
        save,
        vocabulary,
    )

    corpus, python = corpus_of(120), peer_python("encoding")
    found: dict[str, Any] = {}
    for engine in ("ours", *PACKAGES):
        which = sys.executable if engine == "ours" else python
        command = [which, __file__, "--megabytes", str(megabytes), "--engine", engine]
        try:
            run = measure([*command, str(corpus), str(vocabulary())])
            found[engine] = json.loads(run["stdout"].splitlines()[-1])
        except SystemExit as error:
            found[engine] = {"failed": str(error).strip().splitlines()[-1][:200]}
        print(engine, found[engine])
    ours = found["ours"]
    assert ours["ids_sha256"] == found["tiktoken"]["ids_sha256"], "ours differs from tiktoken"
    rows = []
    for engine, package in PACKAGES.items():
        theirs = found[engine]
        if "failed" in theirs:
            continue
        exact = theirs["ids_sha256"] == ours["ids_sha256"]
        label = engine if exact else f"{engine} (other ids)"
        versions = own_versions("gigatoken") | peer_versions(python, [package])
        rows.append(
            row(
                "GPT-2 encoding alone",
                label,
                ours["mb_per_second"] / theirs["mb_per_second"],
                "≥ 10" if package == "tiktoken" else "≥ 1",
                ours=f"{ours['mb_per_second']} MB/s",
                theirs=f"{theirs['mb_per_second']} MB/s",
                command="make bench-encoding",
                versions=versions,
            )
        )
    save("encoding", rows, {"engines": found})


if __name__ == "__main__":
    main()
