"""Stage 1: a batch of files becomes tokens, proofs, and what the leakage audit compares.

- A file is encoded once. The prompt of a proof is the encoding of everything before the proof, and
  it is put together without encoding any prefix again: GPT-2's pre-tokenizer always has a boundary
  at some places (`_SEAM`), so the file's tokens up to the last one before the proof, plus the
  few characters after it, are the encoding of the whole prefix. For a tokenizer that cuts texts
  in another way, every prefix is encoded whole.
- Prompt and proof are encoded apart: a model can be prompted with exactly the prompt's tokens.
- Every build encodes a sample again, GPT-2's with tiktoken.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

import numpy as np
import xxhash

from tangobench.pipeline.core.build import Arguments, Output, Stage
from tangobench.pipeline.core.shards import offsets_of, pack, pack_texts
from tangobench.pipeline.core.store import Store
from tangobench.pipeline.lean.git import File, read_files
from tangobench.pipeline.lean.lexer import Unterminated
from tangobench.pipeline.lean.proofs import PROOF_KINDS, STYLES, Declaration, extract
from tangobench.pipeline.lean.spec import KINDS
from tangobench.pipeline.tokenizer.base import IDENTITY, Tokenizer
from tangobench.pipeline.tokenizer.use import GPT2, Choice

NDArray = np.ndarray[Any, Any]
Cut = tuple[str, bytes, str, list[Declaration]]  # path, bytes, text, proofs

SHINGLE: Final = 16  # tokens; about a line
SAMPLED_BITS: Final = 59  # of 64: one shingle in 32 is compared, 100 lines still have dozens
# Boundaries of GPT-2's pre-tokenizer whatever stands around them: white space after a printable
# character, a letter after punctuation (but for the prime, as in `'s`).
_SEAM: Final = re.compile(rb".*(?:[!-~](?=\s)|[)\]};:=](?=[A-Za-z]))", re.DOTALL)
_LONGEST_PIECE: Final = 1 << 16
_SAMPLED: Final = np.uint64(1 << SAMPLED_BITS)
_BLOCK: Final = 1 << 14
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)


class Unbroken(ValueError):
    """A file has no place to start encoding at for too long."""


def prompt_seam(data: bytes, declaration: Declaration) -> int:
    """The last byte offset before the proof from which encoding can start afresh."""
    start = max(0, declaration.proof_start - _LONGEST_PIECE)
    match = _SEAM.match(data, start, declaration.proof_start)
    if match is not None:
        return match.end()
    if start:  # 64 kB without a space: every proof after it would encode them again
        raise Unbroken
    return 0


@dataclass(frozen=True, slots=True)
class TokensArgs(Arguments):
    """Files by (path, blob) in a git directory, and the kinds of declarations to cut."""

    git_dir: Path
    files: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    tokenizer: Choice = GPT2

    def key(self) -> Any:
        """The git directory is a place: its objects are named by content."""
        tokenizer = self.tokenizer.key() or IDENTITY
        return {"files": self.files, "kinds": sorted(self.kinds), "tokenizer": tokenizer}


class TokensResult(TypedDict):
    """Counts of a batch, and [path, reason] of the files that cannot be used."""

    files: int
    bytes: int
    tokens: int
    declarations: int
    rejected: list[list[str]]


def encode_files(args: TokensArgs, store: Store) -> Output[TokensResult]:
    vocabulary = args.tokenizer.load(store)
    kept, seams, rejected = _cut(args, vocabulary.gpt2_boundaries)
    paths, texts = [cut[0] for cut in kept], [cut[2] for cut in kept]
    tokens, offsets = vocabulary.encode_batch(texts)
    vocabulary.check_sample(texts, tokens, offsets, names=paths)
    found = [(i, data, d) for i, (_, data, _, ds) in enumerate(kept) for d in ds]
    pieces = [x[a : d.proof_start] for a, (_, x, d) in zip(seams, found, strict=True)]
    arrays: dict[str, NDArray] = {
        "tokens": tokens,
        "tokens_offsets": offsets,
        **pack_texts("path", paths),
        **_declarations(found),
        **_seams([i for i, _, _ in found], seams, vocabulary.token_bytes.take(tokens), offsets),
        **_encoded("piece", pieces, vocabulary),
        **_encoded("proof", [x[d.proof_start : d.proof_end] for _, x, d in found], vocabulary),
        **_shingles(tokens, offsets),
    }
    result: TokensResult = {
        "files": len(kept),
        "bytes": sum(len(data) for _, data, _, _ in kept),
        "tokens": len(tokens),
        "declarations": len(found),
        "rejected": rejected,
    }
    return Output(pack(arrays), result)


TOKENS: Final = Stage("lean-tokens", 3, encode_files)


def _cut(args: TokensArgs, seam: bool) -> tuple[list[Cut], list[int], list[list[str]]]:
    """The files with their proofs, the seam of each proof, and the files that cannot be used."""
    named = [File(*pair) for pair in args.files]
    kept: list[Cut] = []
    seams: list[int] = []
    rejected = []
    for file, data in zip(named, read_files(args.git_dir, named), strict=True):
        try:
            # Theorems and lemmas with any proof; instances and examples only with a tactic proof.
            text, every = data.decode(), extract(data, args.kinds)
            proofs = [d for d in every if d.kind in PROOF_KINDS or d.style == "by"]
            seams += [prompt_seam(data, proof) if seam else 0 for proof in proofs]
            kept.append((file.path, data, text, proofs))
        except UnicodeDecodeError:
            rejected.append([file.path, "not-utf8"])
        except Unterminated as error:
            rejected.append([file.path, f"unterminated-{error.what.replace(' ', '-')}"])
        except Unbroken:
            rejected.append([file.path, "no-token-boundary"])
    return kept, seams, rejected


def _declarations(found: list[tuple[int, bytes, Declaration]]) -> dict[str, NDArray]:
    declared = [d for _, _, d in found]
    places = ("proof_start", "proof_end")
    return {
        "file": np.array([i for i, _, _ in found], np.int32),
        "line": np.array([d.line for d in declared], np.int32),
        **{key: np.array([getattr(d, key) for d in declared], np.int64) for key in places},
        "kind": np.array([KINDS.index(d.kind) for d in declared], np.uint8),
        "style": np.array([STYLES.index(d.style) for d in declared], np.uint8),
        **pack_texts("name", [d.name for d in declared]),
        "proof_hash": _hashes([data[d.proof_start : d.proof_end].strip() for _, data, d in found]),
        "statement_hash": _hashes([_statement(data, d) for _, data, d in found]),
    }


def _statement(data: bytes, declaration: Declaration) -> bytes:
    """A declaration's statement, without its name and without the final `:=`."""
    text = data[declaration.kw_start : declaration.proof_start]
    name = declaration.name.encode()
    return text[text.find(name) + len(name) :].removesuffix(b":=").strip()


def _hashes(texts: Sequence[bytes]) -> NDArray:
    return np.array([xxhash.xxh3_64_intdigest(text) for text in texts], np.uint64)


def _seams(
    owners: Sequence[int], seams: Sequence[int], sizes: NDArray, offsets: NDArray
) -> dict[str, NDArray]:
    """How many of its file's tokens come before each declaration's seam."""
    ends = offsets_of(sizes)  # byte positions over the whole batch
    files = np.array(owners, np.int64)
    wanted = ends[offsets[files]] + np.array(seams, np.int64)
    index = np.searchsorted(ends, wanted)
    if not np.array_equal(ends[index], wanted):
        raise AssertionError("a seam is not between two tokens")
    return {"seam": (index - offsets[files]).astype(np.int64)}


def _encoded(name: str, texts: Sequence[bytes], vocabulary: Tokenizer) -> dict[str, NDArray]:
    """Tokens of each text; equal texts (`rfl` alone 11,580 times) are encoded once."""
    numbers: dict[bytes, int] = {}
    which = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    distinct = [text.decode() for text in numbers]
    values, offsets = vocabulary.encode_batch(distinct)
    vocabulary.check_sample(distinct, values, offsets)
    return {name: values, f"{name}_offsets": offsets, f"{name}_index": which}


def _shingles(tokens: NDArray, offsets: NDArray) -> dict[str, NDArray]:
    """Sampled hashes of every SHINGLE tokens in a row, per file, sorted and distinct."""
    parts = [_sampled(tokens, start) for start in range(0, len(tokens) + 1, _BLOCK)]
    at, hashes = map(np.concatenate, zip(*parts, strict=True))
    files = np.searchsorted(offsets, at, "right") - 1
    inside = at + SHINGLE <= offsets[files + 1]
    files, hashes = files[inside], hashes[inside]
    order = np.lexsort((hashes, files))
    files, hashes = files[order], hashes[order]
    first = np.ones(len(files), np.bool_)
    first[1:] = (files[1:] != files[:-1]) | (hashes[1:] != hashes[:-1])
    counts = np.bincount(files[first], minlength=len(offsets) - 1)
    return {"shingle": hashes[first], "shingle_offsets": offsets_of(counts)}


def _sampled(tokens: NDArray, start: int) -> tuple[NDArray, NDArray]:
    """Places and hashes of the sampled shingles that begin in a block, small enough for a cache."""
    state = tokens[start : start + _BLOCK + SHINGLE - 1].astype(np.uint64)
    state = (state + np.uint64(1)) * _MULTIPLIER
    width = 1
    while width < SHINGLE:  # a window's hash from those of its halves
        left, right = state[:-width], state[width:]
        state = left >> np.uint64(29)
        state ^= left
        state *= _MULTIPLIER
        state += right
        width *= 2
    picked = np.flatnonzero(state < _SAMPLED)
    return picked + start, state[picked]
