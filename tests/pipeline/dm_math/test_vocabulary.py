"""The 73 symbols and the encoding of a row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.errors import InputError
from tangobench.pipeline.dm_math import vocabulary

TEXT = st.text(alphabet=vocabulary.CHARACTERS, max_size=160)


def test_the_table_has_73_symbols_special_ones_first():
    assert len(vocabulary.SYMBOLS) == 73 == len(set(vocabulary.SYMBOLS))
    assert vocabulary.SYMBOLS[:4] == ("<pad>", "<bos>", "<sep>", "<eos>")
    assert list(vocabulary.CHARACTERS) == sorted(vocabulary.CHARACTERS)
    assert set("0123456789abcdefghijklmnopqrstuvwxyz") < set(vocabulary.CHARACTERS)


def test_a_row_by_hand():
    ids, target_start = vocabulary.encode("! ", "'")
    assert ids.tolist() == [vocabulary.BOS, 5, 4, vocabulary.SEP, 6, vocabulary.EOS]
    assert ids.dtype == np.uint8
    assert target_start == 4


@given(question=TEXT, answer=TEXT)
def test_decoding_gives_back_the_example_whatever_the_padding(question, answer):
    ids, target_start = vocabulary.encode(question, answer)
    padded = np.concatenate([ids, np.full(7, vocabulary.PAD, np.uint8)])
    assert vocabulary.decode(padded) == (question, answer)
    assert target_start == len(question) + 2
    assert ids.tobytes().startswith(vocabulary.question_prefix(question))


@pytest.mark.parametrize("character", ["B", "%", "é", "√", "\n", "\xff"])
def test_any_other_character_is_an_error_that_shows_it(character):
    with pytest.raises(InputError) as caught:
        vocabulary.encode(f"What is {character}?", "1")
    assert caught.value.kind == "character-unknown"
    assert repr(character) in caught.value.message
    assert repr(f"What is {character}?") in caught.value.message
