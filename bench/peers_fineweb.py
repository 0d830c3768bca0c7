"""The same work with other tools, run by bench/fineweb.py in an environment of its own.

Usage: `python bench/peers_fineweb.py datatrove|script CORPUS OUT VOCABULARY_FOLDER`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

CONTEXT = 8192


def run_datatrove(corpus: Path, out: Path, vocabulary: Path) -> None:
    """Its reader, exact dedup on the content, tokenizer, shuffle and merge."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import ExactDedupFilter, ExactDedupSignature, ExactFindDedups
    from datatrove.pipeline.dedup.exact_dedup import ExactDedupConfig
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer, DocumentTokenizerMerger
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(
        str(vocabulary / "encoder.json"), str(vocabulary / "vocab.bpe")
    )
    tokenizer.save(str(out / "tokenizer.json"))
    config = ExactDedupConfig(content_getter=content)
    folder = str(corpus.parent)

    def reader() -> Any:
        return ParquetReader(folder, glob_pattern=corpus.name, batch_size=1000)

    steps = [
        [reader(), ExactDedupSignature(str(out / "sigs"), config)],
        [ExactFindDedups(str(out / "sigs"), str(out / "dups"), config)],
        [
            reader(),
            ExactDedupFilter(str(out / "dups"), config),
            DocumentTokenizer(
                str(out / "tokens"),
                str(out / "tokenizer.json"),
                eos_token="<|endoftext|>",
                seed=1,
                batch_size=1000,
            ),
        ],
        [DocumentTokenizerMerger(str(out / "tokens"), str(out / "merged"), "train", seed=1)],
    ]
    for number, pipeline in enumerate(steps):
        LocalPipelineExecutor(
            pipeline, tasks=1, workers=1, logging_dir=str(out / f"logs{number}")
        ).run()


def content(document: Any) -> str:
    text: str = document.text
    return text


def run_script(corpus: Path, out: Path, vocabulary: Path) -> None:
    """What people write: load, filter seen URLs and texts, tiktoken in map, pack in map, save."""
    os.environ["TIKTOKEN_CACHE_DIR"] = str(out / "tiktoken")
    (out / "tiktoken").mkdir()
    address = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
    for name in ("vocab.bpe", "encoder.json"):
        key = hashlib.sha1((address + name).encode()).hexdigest()
        shutil.copy(vocabulary / name, out / "tiktoken" / key)
    import datasets
    import tiktoken

    encoding = tiktoken.get_encoding("gpt2")
    rows = datasets.load_dataset(
        "parquet", data_files=str(corpus), split="train", cache_dir=str(out / "cache")
    )
    seen: set[bytes] = set()

    def new(row: dict[str, Any]) -> bool:
        keys = [hashlib.md5(row[c].encode()).digest() for c in ("url", "text")]
        fresh = not any(key in seen for key in keys)
        seen.update(keys)
        return fresh

    def tokens(row: dict[str, Any]) -> dict[str, Any]:
        return {"ids": [*encoding.encode_ordinary(row["text"]), encoding.eot_token]}

    def pack(batch: dict[str, Any]) -> dict[str, Any]:
        flat = [token for ids in batch["ids"] for token in ids]
        stop = len(flat) // CONTEXT * CONTEXT
        return {"tokens": [flat[i : i + CONTEXT] for i in range(0, stop, CONTEXT)]}

    rows = rows.filter(new).shuffle(seed=1).map(tokens, remove_columns=rows.column_names)
    rows = rows.map(pack, batched=True, batch_size=1000, remove_columns=["ids"])
    rows.save_to_disk(str(out / "packed"))


if __name__ == "__main__":
    which, *paths = sys.argv[1:]
    corpus_, out_, vocabulary_ = map(Path, paths)
    {"datatrove": run_datatrove, "script": run_script}[which](corpus_, out_, vocabulary_)
