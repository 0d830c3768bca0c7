"""Which documents are encoded."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tangobench.pipeline.fineweb import encode


@pytest.mark.parametrize("low", [0, 1])
def test_validation_documents_that_cannot_hold_a_window_are_not_encoded(low):
    train = np.array([True, False, False, False, False])
    documents = SimpleNamespace(
        place=np.zeros((5, 2), "u8"),
        partition=np.where(train, encode.TRAIN, encode.TRAIN + 1),
        size=np.array([1, 31, 32, 33, 99]),  # of 32 tokens each has at least a byte
        kept=np.array([True, True, True, True, False]),
    )
    wave = SimpleNamespace(low=low, holds=lambda order: np.ones(len(order), bool))
    args = SimpleNamespace(unit=SimpleNamespace(tokens="x"), wave=wave, width=32)
    _, chosen = encode._wanted(documents, args)
    first_wave = low == 0
    assert chosen.tolist() == [True, False, first_wave, first_wave, False]
