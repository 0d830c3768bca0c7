"""What every tokenizer can do, whichever library gives its ids.

- Text is data: the name of a special token inside a text is ordinary text, never its id.
- Text is kept: the bytes of a text's ids, one after another, are the text's bytes. So bytes per id
  (`token_bytes`) give bits per byte, and a token has a place in its file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from tangobench.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

Ids = npt.NDArray[np.unsignedinteger[Any]]  # of any width
Offsets = npt.NDArray[np.int64]

EOT_TEXT: Final = "<|endoftext|>"
SAMPLE_SHARE: Final = 256  # one text in 256 costs about 5% at the fast engine's speed


class Tokenizer(ABC):
    """Ids of texts and texts of ids."""

    identity: Mapping[str, Any]
    """What a lock says of it, part of the root."""
    title: str
    eot: int
    """The id that separates documents."""
    token_bytes: npt.NDArray[np.integer[Any]]
    """Bytes of each id; special tokens have none."""
    gpt2_boundaries: bool
    """Whether texts are cut by GPT-2's pattern before anything is merged."""

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.token_bytes)

    @property
    def dtype(self) -> npt.DTypeLike:
        """The type of ids in rows."""
        return np.uint16 if self.size <= 1 << 16 else np.uint32

    def config(self, context: int, *, masked: bool) -> dict[str, Any]:
        """Row conventions of a lock's config; `masked` if the end of a text is not scored."""
        own = {"context": context, "vocabulary": self.size, "pad": self.eot}
        return {**own, "masked_target": self.eot if masked else None}

    def encode(self, text: str) -> Ids:
        """The ids of one text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
        """The ids of all texts in one array; text i is `values[offsets[i]:offsets[i + 1]]`."""
        found = self.encode_all(texts)
        offsets = np.zeros(len(found) + 1, np.int64)
        np.cumsum([len(ids) for ids in found], out=offsets[1:])
        values = np.empty(offsets[-1], self.dtype)
        if found:
            np.concatenate(found, out=values, casting="same_kind")
        return values, offsets

    @abstractmethod
    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, as wide as the library made them."""

    def encode_arrow(self, texts: pa.Array) -> list[Ids]:
        """The ids of each text of an Arrow string array without nulls and of valid UTF-8."""
        return self.encode_all(texts.to_pylist())

    def decode(self, ids: npt.ArrayLike) -> str:
        """The text of some ids; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    @abstractmethod
    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The exact bytes of some ids; special tokens are written by name."""

    def check_sample(
        self,
        texts: Sequence[str],
        values: Ids,
        offsets: Offsets,
        *,
        share: int = SAMPLE_SHARE,
        names: Sequence[str] | None = None,
    ) -> int:
        """Check what `encode_batch` gave for one text in `share`, chosen by content, at least one.

        Returns the number checked.
        """
        hashes = (xxhash.xxh3_64_intdigest(t.encode(errors="surrogatepass")) for t in texts)
        chosen = [i for i, found in enumerate(hashes) if found % share == 0]
        chosen = chosen or list(range(min(1, len(texts))))
        for i in chosen:
            self.check(texts[i], values[offsets[i] : offsets[i + 1]], names[i] if names else str(i))
        return len(chosen)

    @abstractmethod
    def check(self, text: str, found: Ids, name: str) -> None:
        """Raise if these are not the ids of the text."""


def utf8_of(texts: Sequence[str]) -> list[bytes]:
    """The texts as bytes; a lone surrogate is refused."""
    found = []
    for index, text in enumerate(texts):
        try:
            found.append(text.encode())
        except UnicodeEncodeError as error:
            raise InputError(
                f"text {index} is not UTF-8: a lone surrogate at character {error.start}",
                kind="text-not-utf8",
                fix="drop the text, or decode its source with errors='replace'",
                index=index,
                character=error.start,
            ) from None
    return found


def is_panic(error: BaseException) -> bool:
    """Whether a Rust library panicked: it arrives as a BaseException of this name."""
    return type(error).__name__ == "PanicException"
