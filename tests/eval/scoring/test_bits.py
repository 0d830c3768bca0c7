"""Bits per byte: worked out by hand, equal for two tokenizations, and honest about no bytes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tangobench.eval.scoring.nll import bits_per_byte, scored_bytes
from tangobench.eval.scoring.tally import Scored
from tangobench.model.training.loader import Stream
from tangobench.pipeline.reading import open_dataset
from tangobench.pipeline.tokenizer.base import EOT, gpt2


class Rows:
    """As much of a stream as bits per byte looks at."""

    def __init__(self, *rows):
        self.rows = [(np.array(tokens, np.uint16), np.array(mask, bool)) for tokens, mask in rows]

    def __len__(self):
        return len(self.rows)

    def row(self, row):
        return self.rows[row]


def scored_as(stream, nats):
    """Every target costs `nats`."""
    count = sum(int(mask.sum()) for _, mask in stream.rows)
    return Scored(np.full(count, nats), *(np.zeros(count, np.int64),) * 4)


def text_rows(text, *, end):
    """One row in which everything after the first token is scored."""
    tokens = [EOT, *gpt2().encode(text).tolist(), *([EOT] if end else [])]
    return Rows((tokens, [False] + [True] * (len(tokens) - 1)))


def test_against_numbers_worked_out_by_hand():
    # "hello world" is two tokens of 5 and 6 bytes: 2 × 3 ln 2 nats are 6 bits on 11 bytes.
    rows = text_rows("hello world", end=False)
    found = bits_per_byte(scored_as(rows, 3 * math.log(2)), rows, gpt2().token_bytes)
    assert found["bytes"] == 11
    assert found["bits_per_byte"] == pytest.approx(6 / 11, rel=1e-12)


def test_ending_costs_bits_but_has_no_bytes():
    rows = text_rows("hello world", end=True)
    found = bits_per_byte(scored_as(rows, math.log(2)), rows, gpt2().token_bytes)
    assert found["bytes"] == 11
    assert found["bits_per_byte"] == pytest.approx(3 / 11, rel=1e-12)


@pytest.mark.parametrize("text", ["∀ ε > 0, ∃ δ", "\U0001f980\u200d", "a\r\n\tb", "naïve ﬁ"])
def test_bytes_are_those_of_utf8(text):
    assert scored_bytes(text_rows(text, end=True), gpt2().token_bytes) == len(text.encode())


def test_the_tokenizer_cannot_change_it():
    # The same 12 bits on the same 12 bytes, in one token or in twelve.
    token_bytes = np.array([12, 1])
    whole, letters = Rows(([0], [True])), Rows(([1] * 12, [True] * 12))
    one = bits_per_byte(scored_as(whole, 12 * math.log(2)), whole, token_bytes)
    many = bits_per_byte(scored_as(letters, math.log(2)), letters, token_bytes)
    assert one["bits_per_byte"] == pytest.approx(1.0)
    assert many["bits_per_byte"] == pytest.approx(1.0)


def test_no_byte_is_no_number():
    rows = Rows(([EOT, EOT], [False, True]), ([], []))
    found = bits_per_byte(scored_as(rows, 1.0), rows, gpt2().token_bytes)
    assert found == {"bits_per_byte": None, "bytes": 0}


def test_many_long_tokens_do_not_overflow_the_table_of_small_integers():
    longest = int(gpt2().token_bytes.argmax())
    rows = Rows(([longest] * 1000, [True] * 1000))
    expected = 1000 * len(gpt2().decode_bytes([longest]))
    assert scored_bytes(rows, gpt2().token_bytes) == expected > 65_535


def test_real_shards_count_what_was_scored(toy_out):
    stream = Stream(open_dataset(toy_out / "lean-sample"), "proof", "validation")
    expected = sum(len(("by\n  simp" + " ;" * (i % 7)).encode()) for i in range(5))
    assert scored_bytes(stream, gpt2().token_bytes) == expected
    stream.close()
