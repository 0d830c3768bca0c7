"""The quick ways of the extractor find what the plain ways beside them find."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tangobench.pipeline.lean import commands, proofs
from tangobench.pipeline.lean.commands import Finder

NAIVE = re.compile(
    rb"[\n" + re.escape(commands._BEFORE) + rb"]" + commands._COMMAND,
)
WORDS = f"{commands._RESERVED} {commands._SOMETIMES} {commands._MODIFIERS}".split()
CODE = st.lists(
    st.one_of(
        st.sampled_from(
            [
                *("\n", " ", "\t", "\r", ";", ",", ".", "(", ")", "[", "]", "{", "}", "⟨", "⟩"),
                *("⟦", "⟧", "←", "⟶", "Ω", "é", "𝟦", ":", "=", ":=", " := ", "|", " | ", " => "),
                *("@[", "@[simp] ", "scoped[", "#s", "\x01", "\x02", " lemma a : ", "\nlemma b ("),
                *("\nopen A in ", "\nset_option a b in\n", " in ", " let ", ",have ", " match "),
                *(" where", " fun", " by ", "x", "'", "_", "?", "\ntheorem a : P := h\n"),
            ]
        ),
        st.sampled_from(WORDS),
        st.sampled_from(WORDS).map(lambda word: f" {word} "),
    ),
    max_size=40,
).map(lambda pieces: "\n" + "".join(pieces))


@given(CODE)
def test_commands_in_two_parts_are_those_of_one_pattern(text: str) -> None:
    code = text.encode()
    found = [match.span() for match in commands._candidates(code)]
    assert found == [match.span() for match in NAIVE.finditer(code)]


@given(CODE)
def test_a_plain_statement_ends_where_the_long_way_says(text: str) -> None:
    code = text.encode()
    slow = proofs._body_after_any(code, 0, len(code))
    assert proofs._body(code, 0, len(code)) == slow


@given(st.lists(st.sampled_from(["theorem", "then", "end", " ", ";", "x"])).map("".join))
def test_a_finder_misses_nothing(text: str) -> None:
    words = [b"theorem", b"end"]
    finder = Finder(b" ;", [tuple(bytes((byte,)) for byte in word) for word in words])
    wanted = {match.start() for match in re.finditer(rb"[ ;](?=theorem|end)", text.encode())}
    assert wanted <= set(finder(text.encode()))


def test_a_finder_passes_over_words_that_only_start_alike() -> None:
    finder = Finder(b" ", [(b"t", b"h", b"e", b"o", b"r")])
    assert finder(b"a then theory theorem") == [6, 13]
    assert finder(b"") == finder(b" ") == []
