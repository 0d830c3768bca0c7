"""The 73 symbols and the encoding of a row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangobench.errors import InputError
from tangobench.pipeline import dm_vocab

TEXT = st.text(alphabet=dm_vocab.CHARACTERS, max_size=160)


def test_the_table_has_73_symbols_special_ones_first():
    assert len(dm_vocab.SYMBOLS) == 73 == len(set(dm_vocab.SYMBOLS))
    assert dm_vocab.SYMBOLS[:4] == ("<pad>", "<bos>", "<sep>", "<eos>")
    assert list(dm_vocab.CHARACTERS) == sorted(dm_vocab.CHARACTERS)
    assert set("0123456789abcdefghijklmnopqrstuvwxyz") < set(dm_vocab.CHARACTERS)


def test_a_row_by_hand():
    ids, target_start = dm_vocab.encode("! ", "'")
    assert ids.tolist() == [dm_vocab.BOS, 5, 4, dm_vocab.SEP, 6, dm_vocab.EOS]
    assert ids.dtype == np.uint8
    assert target_start == 4


@given(question=TEXT, answer=TEXT)
def test_decoding_gives_back_the_example_whatever_the_padding(question, answer):
    ids, target_start = dm_vocab.encode(question, answer)
    padded = np.concatenate([ids, np.full(7, dm_vocab.PAD, np.uint8)])
    assert dm_vocab.decode(padded) == (question, answer)
    assert target_start == len(question) + 2
    assert ids.tobytes().startswith(dm_vocab.question_prefix(question))


@pytest.mark.parametrize("character", ["B", "%", "é", "√", "\n", "\xff"])
def test_any_other_character_is_an_error_that_shows_it(character):
    with pytest.raises(InputError) as caught:
        dm_vocab.encode(f"What is {character}?", "1")
    assert caught.value.kind == "character-unknown"
    assert repr(character) in caught.value.message
    assert repr(f"What is {character}?") in caught.value.message
