"""What every tokenizer can do, whichever library gives its ids.

- Text is data: the name of a special token inside a text is ordinary text, never its id.
- Text is kept: the bytes of a text's ids, one after another, are the text's bytes. So bytes per id
  (`token_bytes`) give bits per byte, and a token has a place in its file.
- Every build encodes a sample of its texts again, chosen by content, and compares ids and bytes.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from tangobench.errors import InputError, MismatchError
from tangobench.pipeline.core.arrays import offsets_of

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

    def encode_arrow(self, texts: pa.Array) -> list[Ids]:
        """The ids of each text of an Arrow string array without nulls and of valid UTF-8."""
        return self.encode_all(texts.to_pylist())

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
