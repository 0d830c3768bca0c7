"""An example is a function of (seed, split, combination, index) alone."""

import hashlib
import json
import os
import random
import subprocess
import sys

import pytest

from tangobench.errors import InputError
from tangobench.pipeline.dm_math import generator as official
from tangobench.pipeline.dm_math import stages as drawing
from tangobench.pipeline.dm_math.spec import NAMES, SPLITS, split_of
from tangobench.pipeline.dm_math.stages import draw

# One of each kind that leaked order upstream: letters, entities, factors, primes, index sets.
LEAKY = [
    "algebra__linear_2d_composed/hard",
    "arithmetic__mixed/medium",
    "calculus__differentiate/hard",
    "comparison__sort_composed/easy",
    "numbers__gcd/hard",
    "numbers__is_prime_composed/medium",
    "polynomials__add/hard",
]
SCRIPT = """
import json, sys
from tangobench.pipeline.dm_math.spec import NAMES
from tangobench.pipeline.dm_math.stages import draw
found = [draw(5, "train", NAMES.index(name), 41) for name in json.loads(sys.argv[1])]
print(json.dumps([[example.question, example.answer, example.attempts] for example in found]))
"""


@pytest.mark.parametrize("hash_seed", ["0", "4242"])
def test_a_single_index_in_a_fresh_process(hash_seed):
    fresh = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(LEAKY)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        check=True,
    )
    here = [draw(5, "train", NAMES.index(name), 41) for name in LEAKY]
    assert json.loads(fresh.stdout) == [[e.question, e.answer, e.attempts] for e in here]


def test_order_of_drawing_does_not_matter():
    addresses = [(split, c, 3) for split in SPLITS for c in range(0, 168, 5)]
    first = {address: draw(1, *address) for address in addresses}
    random.Random(0).shuffle(addresses)
    assert {address: draw(1, *address) for address in addresses} == first


def test_every_part_of_the_address_matters():
    combination = NAMES.index("arithmetic__mixed/hard")
    questions = {
        draw(seed, split, combination, index).question
        for seed in (0, 1)
        for split in SPLITS
        for index in (0, 1)
    }
    assert len(questions) == 8


@pytest.mark.parametrize(
    "module",
    [
        "measurement__conversion",
        "measurement__time",
        "probability__swr_p_level_set",
        "probability__swr_p_sequence",
    ],
)
def test_levels_of_modules_that_ignore_difficulty_are_different_draws(module):
    levels = {
        tuple(draw(0, "train", NAMES.index(f"{module}/{level}"), i).question for i in range(3))
        for level in ("easy", "medium", "hard")
    }
    assert len(levels) == 3


def test_the_last_hex_digit_decides_the_split():
    for number in range(200):
        question = f"What is {number} + 1?"
        zero = hashlib.sha256(question.encode()).hexdigest().endswith("0")
        assert split_of(question) == ("validation" if zero else "train")


def test_accepted_examples_fit_their_split_and_the_limits():
    rejected = 0
    for combination in range(0, 168, 3):
        for split in SPLITS:
            example = draw(0, split, combination, 0)
            assert split_of(example.question) == split
            assert 0 < len(example.question) <= 160
            assert 0 < len(example.answer) <= 30
            rejected += example.attempts - 1
    assert rejected > 56 * 5  # validation takes 16 attempts on average


class _Stuck:
    """A generator that always says the same."""

    def __init__(self, question, answer):
        self.question, self.answer = question, answer

    def seed(self, *_):
        pass

    def problem(self, *_):
        return self


@pytest.mark.parametrize(
    ("question", "answer"), [("x" * 161, "1"), ("ok?", "1" * 31)], ids=["question", "answer"]
)
def test_a_space_without_acceptable_questions_is_an_error(monkeypatch, question, answer):
    monkeypatch.setattr(drawing, "MAX_ATTEMPTS", 50)
    with pytest.raises(InputError, match="algebra__linear_1d/easy gave no train question in 50"):
        draw(0, "train", 0, 0, _Stuck(question, answer))


def test_length_limits_are_inclusive():
    question = next(
        f"{n}".rjust(160, "x") for n in range(99) if split_of(f"{n}".rjust(160, "x")) == "train"
    )
    assert draw(0, "train", 0, 0, _Stuck(question, "1" * 30)).attempts == 1


@pytest.mark.parametrize("generator", [None, official.load], ids=["fast", "upstream"])
def test_a_draw_that_upstream_cannot_finish_is_drawn_again(generator):
    combination = NAMES.index("numbers__div_remainder_composed/medium")
    example = draw(0, "train", combination, 15792, generator and generator())
    assert (example.rejected["unfinished"], example.attempts, example.answer) == (1, 2, "12")
