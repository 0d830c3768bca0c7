"""The same work with other tools, run by bench/fineweb.py in an environment of its own.

- Each side leaves `summary.json`: documents after dedup, and tokens with one EOT per document.

Usage: `python bench/peers_fineweb.py datatrove|script|tokenizers CORPUS OUT VOCABULARY_FOLDER`.
"""

from __future__ import annotations

import hashlib
import json
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
    (told,) = (json.loads(p.read_text()) for p in (out / "logs3").glob("stats.json"))
    merged = told[-1]["stats"]["tokens"]
    summarise(out, merged["n"], merged["total"])


def summarise(out: Path, documents: int, tokens: int) -> None:
    (out / "summary.json").write_text(json.dumps({"documents": documents, "tokens": tokens}))


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
    import tiktoken

    encoding = tiktoken.get_encoding("gpt2")

    def tokens(row: dict[str, Any]) -> dict[str, Any]:
        return {"ids": [*encoding.encode_ordinary(row["text"]), encoding.eot_token]}

    run_datasets(corpus, out, tokens, batched=False)


def run_tokenizers(corpus: Path, out: Path, vocabulary: Path) -> None:
    """The same with HF tokenizers, in batches, as its documentation advises."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(
        str(vocabulary / "encoder.json"), str(vocabulary / "vocab.bpe")
    )

    def tokens(batch: dict[str, Any]) -> dict[str, Any]:
        return {"ids": [[*e.ids, 50256] for e in tokenizer.encode_batch(batch["text"])]}

    run_datasets(corpus, out, tokens, batched=True)


def run_datasets(corpus: Path, out: Path, tokens: Any, *, batched: bool) -> None:
    import datasets

    rows = datasets.load_dataset(
        "parquet", data_files=str(corpus), split="train", cache_dir=str(out / "cache")
    )
    seen: set[bytes] = set()

    def new(row: dict[str, Any]) -> bool:
        keys = [hashlib.md5(row[c].encode()).digest() for c in ("url", "text")]
        fresh = not any(key in seen for key in keys)
        seen.update(keys)
        return fresh

    def pack(batch: dict[str, Any]) -> dict[str, Any]:
        flat = [token for ids in batch["ids"] for token in ids]
        stop = len(flat) // CONTEXT * CONTEXT
        return {"tokens": [flat[i : i + CONTEXT] for i in range(0, stop, CONTEXT)]}

    rows = rows.filter(new).shuffle(seed=1)
    rows = rows.map(tokens, remove_columns=rows.column_names, batched=batched)
    packed = rows.map(pack, batched=True, batch_size=1000, remove_columns=["ids"])
    packed.save_to_disk(str(out / "packed"))
    lengths = rows.data.column("ids").combine_chunks()
    import pyarrow.compute as pc

    summarise(out, len(rows), pc.sum(pc.list_value_length(lengths)).as_py())


if __name__ == "__main__":
    which, *paths = sys.argv[1:]
    corpus_, out_, vocabulary_ = map(Path, paths)
    sides = {"datatrove": run_datatrove, "script": run_script, "tokenizers": run_tokenizers}
    sides[which](corpus_, out_, vocabulary_)
