"""The quick way through a statement finds what the plain way beside it finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tangobench.pipeline.lean import lexer, proofs

WORDS = f"{lexer._RESERVED} {lexer._SOMETIMES} {lexer._MODIFIERS}".split()
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
def test_a_plain_statement_ends_where_the_long_way_says(text: str) -> None:
    code = text.encode()
    slow = proofs._body_after_any(code, 0, len(code))
    assert proofs._body(code, 0, len(code)) == slow
