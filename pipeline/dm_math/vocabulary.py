"""The 73 symbols of the DeepMind Mathematics rows and their ids.

- Four special symbols first, then the 69 characters in code point order; ids fit in a byte.
- The characters are all that the training modules can produce: two independent draws (50,400 and
  336,000 examples) and a scan of the generator's string literals agree on the same 69.
- Any other character is an error that shows the character and the example; nothing is replaced.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from tangobench.errors import InputError

PAD, BOS, SEP, EOS = range(4)
SPECIAL: Final = ("<pad>", "<bos>", "<sep>", "<eos>")
CHARACTERS: Final = " !'()*+,-./0123456789:<=>?ACDEFGHILMPRSTWabcdefghijklmnopqrstuvwxyz{}"
SYMBOLS: Final = (*SPECIAL, *CHARACTERS)

_UNKNOWN: Final = 255
_TO_ID: Final = bytes(
    len(SPECIAL) + CHARACTERS.index(chr(code)) if chr(code) in CHARACTERS else _UNKNOWN
    for code in range(256)
)
_TO_CHARACTER: Final = (bytes(len(SPECIAL)) + CHARACTERS.encode()).ljust(256, b"\0")


def encode(question: str, answer: str) -> tuple[npt.NDArray[np.uint8], int]:
    """BOS, question, SEP, answer, EOS as ids, and the index of the answer's first token."""
    ids = [_characters(text, question, answer) for text in (question, answer)]
    row = b"%c%b%c%b%c" % (BOS, ids[0], SEP, ids[1], EOS)
    return np.frombuffer(row, np.uint8), len(question) + 2


def question_prefix(question: str) -> bytes:
    """The ids of BOS, question, SEP: what every row with this question starts with."""
    return bytes([BOS, *_characters(question, question, ""), SEP])


def text(ids: bytes) -> str:
    return ids.translate(_TO_CHARACTER, bytes(range(len(SPECIAL)))).decode()


def decode(ids: npt.NDArray[np.uint8]) -> tuple[str, str]:
    """Question and answer of one row; padding after EOS is ignored, an unknown id is an error."""
    text = [SYMBOLS[symbol] for symbol in ids.tolist() if symbol not in (PAD, BOS)]
    separator = text.index(SPECIAL[SEP])
    return "".join(text[:separator]), "".join(text[separator + 1 : text.index(SPECIAL[EOS])])


def _characters(text: str, question: str, answer: str) -> bytes:
    ids = text.encode("latin-1", errors="replace").translate(_TO_ID) if text.isascii() else b"\xff"
    if _UNKNOWN in ids:
        strange = next(character for character in text if character not in CHARACTERS)
        raise InputError(
            f"character {strange!r} is not among the 69 of the vocabulary; "
            f"question {question!r}, answer {answer!r}",
            kind="character-unknown",
            fix="the generator or its libraries changed: check the installed versions",
            character=strange,
        )
    return ids
