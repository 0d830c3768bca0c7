"""GPT-2 token ids: one interface, two engines with identical ids.

- tiktoken is the arbiter. The fast engine (gigatoken, 10-17x tiktoken on English) does the work
  where it is installed, and every build re-encodes a deterministic sample with tiktoken.
- Text is data: a literal `<|endoftext|>` is seven ordinary tokens, never id 50256.
- Ids are uint16; the engine is not part of the identity, because it cannot change an id.
- tiktoken panics on about a million whitespace characters followed by something else; such runs
  are cut where GPT-2's pre-tokenizer cuts anyway, so the ids are those of the whole text.
- A text with a lone surrogate is not UTF-8 and is refused (tiktoken alone would write U+FFFD).

Usage: `values, offsets = gpt2().encode_batch(["hello world"])`.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tangobench.errors import MismatchError, UsageError
from tangobench.pipeline.tokenizer.base import (
    EOT_TEXT,
    SAMPLE_SHARE,
    Ids,
    Tokenizer,
    is_panic,
    utf8_of,
)
from tangobench.pipeline.tokenizer.vocabulary import EOT, IDENTITY, VOCABULARY_SIZE, load_ranks

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ENGINE_VARIABLE", "EOT", "SAMPLE_SHARE", "VOCABULARY_SIZE", "Engine", "Gpt2", "gpt2"]

Engine = Literal["fast", "reference"]

ENGINE_VARIABLE: Final = "TANGOBENCH_TOKENIZER"  # reaches worker processes, unlike an argument
# Unicode White_Space, which is what GPT-2's \s means; Python's own \s adds U+001C to U+001F.
_SPACE: Final = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_LONG_RUN: Final = 100_000  # tiktoken 0.14 fails at 999,999
_LONG_SPACE: Final = re.compile(f"[{_SPACE}]{{{_LONG_RUN},}}")


def _pieces(text: str) -> Iterator[str]:
    """Cut before the last character of each huge whitespace run: a pre-token boundary."""
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
    eot = EOT
    gpt2_boundaries = True

    def __init__(self, engine: Engine) -> None:
        import tiktoken
        from tiktoken_ext.openai_public import r50k_pat_str

        ranks = load_ranks()
        self.engine: Final = engine
        self.identity = IDENTITY
        self._reference = tiktoken.Encoding(
            name="gpt2",
            pat_str=r50k_pat_str,
            mergeable_ranks=ranks,
            special_tokens={EOT_TEXT: EOT},
            explicit_n_vocab=VOCABULARY_SIZE,
        )
        self._fast: Any = _load_fast(ranks) if engine == "fast" else None
        lengths = np.zeros(VOCABULARY_SIZE, dtype=np.uint8)
        for token, rank in ranks.items():
            lengths[rank] = len(token)
        self.token_bytes = lengths  # EOT has no text: 0 bytes

    def encode_all(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text."""
        found = self._encode_fast(texts)
        if found is None:
            utf8_of(texts)
            found = self._encode_reference(texts)
        return found

    def encode_arrow(self, texts: pa.Array) -> list[Ids]:
        """The ids of each text of an Arrow string array without nulls and of valid UTF-8.

        They are as wide as the engine made them: a narrower copy would be one copy more.
        """
        found = self._encode_fast(_raw(texts))
        return self._encode_reference(texts.to_pylist()) if found is None else found

    def _encode_fast(self, texts: Iterable[str | bytes]) -> list[Ids] | None:
        """One call per text: no slower than the engine's batches, which import and answer in a
        library of their own (0.2 s) and ask for fresh memory each time. None: the engine failed.
        """
        if self._fast is None:
            return None
        try:
            return [self._fast.encode(text) for text in texts]
        except BaseException as error:
            _reraise_unless_engine_failure(error)
            return None

    def decode_bytes(self, ids: npt.ArrayLike) -> bytes:
        """The exact bytes of some ids; EOT is written `<|endoftext|>`."""
        return self._reference.decode_bytes(np.asarray(ids).tolist())

    def check(self, text: str, found: Ids, name: str) -> None:
        """Raise if these are not the ids that tiktoken gives."""
        expected = self._encode_reference([text])[0]
        if not np.array_equal(found, expected):
            _raise_difference(name, found, expected)

    def _encode_reference(self, texts: Sequence[str]) -> list[Ids]:
        found: list[Ids] = []
        for text in texts:
            pieces = [self._reference.encode_ordinary(piece) for piece in _pieces(text)]
            found.append(np.concatenate([np.asarray(ids, np.uint16) for ids in pieces]))
        return found


def _load_fast(ranks: dict[bytes, int]) -> Any:
    import gigatoken

    # gigatoken reads ranks from a file only, and needs it only while loading: one in memory, where
    # the system has such files, works without a temporary folder and on a full disk.
    memory = getattr(os, "memfd_create", None)
    with open(memory("ranks"), "wb") if memory else tempfile.NamedTemporaryFile() as file:  # noqa: PTH123
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            file.write(base64.b64encode(token) + b" %d\n" % rank)
        file.flush()
        name = f"/proc/self/fd/{file.fileno()}" if memory else file.name
        return gigatoken.Tokenizer.from_tiktoken(name, "gpt2", {}).backend


def _raw(texts: pa.Array) -> Iterator[bytes]:
    """The bytes of each value of an Arrow string array."""
    import pyarrow as pa

    wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, offsets, data = texts.buffers()
    first, stop = texts.offset, texts.offset + len(texts) + 1
    bounds = np.frombuffer(offsets, np.int64 if wide else np.int32)[first:stop].tolist()
    view = memoryview(b"" if data is None else data)
    return (bytes(view[begin:end]) for begin, end in pairwise(bounds))


def _reraise_unless_engine_failure(error: BaseException) -> None:
    # A TypeError is how the engine refuses a lone surrogate; the reference path answers.
    if not is_panic(error) and not isinstance(error, TypeError):
        raise error


def _raise_difference(name: str, found: Ids, expected: Ids) -> None:
    common = min(len(found), len(expected))
    differs = np.flatnonzero(found[:common] != expected[:common])
    at = int(differs[0]) if len(differs) else common
    raise MismatchError(
        f"text {name}: the fast engine differs from tiktoken at token {at} "
        f"({len(found)} tokens, expected {len(expected)})",
        kind="token-mismatch",
        fix=f"build with {ENGINE_VARIABLE}=reference and report the text",
        text=name,
        token=at,
    )


def _chosen_engine() -> Engine:
    wanted = os.environ.get(ENGINE_VARIABLE, "")
    if wanted not in ("", "fast", "reference"):
        raise UsageError(
            f"{ENGINE_VARIABLE} is {wanted!r}, expected fast or reference",
            kind="engine-unknown",
            fix=f"unset {ENGINE_VARIABLE} or set it to one of the two",
        )
    if wanted == "reference":
        return "reference"
    try:
        import gigatoken  # noqa: F401
    except ImportError:
        if wanted == "fast":
            raise UsageError(
                f"{ENGINE_VARIABLE}=fast, but gigatoken cannot be imported",
                kind="engine-missing",
                fix="pip install 'tangobench[fast]'",
            ) from None
        return "reference"
    return "fast"


@lru_cache(maxsize=2)
def _load(engine: Engine) -> Gpt2:
    return Gpt2(engine)


def gpt2(engine: Engine | None = None) -> Gpt2:
    """The encoder, loaded once per process; without `engine` the fast one where it is installed."""
    return _load(engine or _chosen_engine())
