"""Tokenizers made in the test by the libraries themselves: no file is downloaded or committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

EOT = "<|endoftext|>"
TEXTS = [
    "the river and the stone, twelve of them. it's naïve → don't ∀ x, 12 345\n" * 20,
    "theorem add_zero (n : Nat) : n + 0 = n := by\n  simp [Nat.add_comm]\n" * 20,
]
# Cuts otherwise than GPT-2: up to three digits, a line end with the spaces before it, and letters
# together with one other character before them.
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KINDS = ("bytes", "pattern", "wide", "tiktoken")


def trained(kind: str = "bytes", size: int = 500) -> Any:
    """A byte-level BPE of the `tokenizers` library."""
    made = Tokenizer(models.BPE())
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=kind == "bytes")
    cut = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    made.pre_tokenizer = whole if kind == "bytes" else pre_tokenizers.Sequence([cut, whole])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<pad>", EOT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    return made


def document(kind: str = "bytes") -> dict[str, Any]:
    """A tokenizer.json; "wide" has more ids than 16 bits hold, moved so that texts use them."""
    found: dict[str, Any] = json.loads(trained(kind).to_str())
    if kind == "wide":
        vocabulary = found["model"]["vocab"]
        high = 70_000
        moved = {t: i if t in ("<pad>", EOT) else i + high for t, i in vocabulary.items()}
        free = sorted(set(range(max(moved.values()) + 1)) - set(moved.values()))
        found["model"]["vocab"] = moved | {f"unused{n}": n for n in free}
    return found


def write(path: Path, kind: str = "bytes") -> Path:
    """A tokenizer.json on disk."""
    path.write_text(json.dumps(document(kind), indent=2, ensure_ascii=False))
    return path


def register(name: str = "made_in_the_test") -> tiktoken.Encoding:
    """A tiktoken encoding with a gap in its ids, under a name that `get_encoding` knows."""
    ranks = {bytes([b]): b for b in range(256)}
    for word in ("th", "the", "in", "er", "\n ", " s", "an", " :", ":=", "si", "mp", "simp", "12"):
        ranks[word.encode()] = len(ranks)
    settings = {
        "name": name,
        "pat_str": PATTERN,
        "mergeable_ranks": ranks,
        "special_tokens": {EOT: len(ranks) + 1, "<|mask|>": len(ranks) + 2},
    }
    tiktoken.list_encoding_names()  # fills the registry
    tiktoken.registry.ENCODING_CONSTRUCTORS[name] = lambda: settings
    return tiktoken.get_encoding(name)
