"""Where commands start in masked Lean 4 code.

- A command is known by its reserved word, not by its column: commands that share a line are told
  apart, and an unindented continuation line belongs to the command before it.
- `open … in` and `set_option … in` are commands only when a command follows the `in`: in a proof
  they are terms and tactics. Doc comments and attributes likewise also occur in `where` blocks.
- Every pattern is possessive, so that matching is linear in the file size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

# Reserved words of Lean, Batteries, Aesop and Mathlib: each starts a command wherever it stands.
_RESERVED: Final = """
abbrev add_aesop_rules add_decl_doc alias assert_exists assert_no_sorry assert_not_exists
assert_not_imported attribute axiom binder_predicate builtin_dsimproc builtin_initialize
builtin_simproc class coinductive compile_def% compile_inductive% declare_aesop_rule_sets
declare_config_elab declare_simp_like_tactic declare_syntax_cat def deprecated_module deriving
dsimproc dsimproc_decl elab elab_rules end erase_aesop_rules example export extend_docs
gen_injective_theorems% grind_pattern import inductive infix infixl infixr init_quot initialize
initialize_simps_projections initialize_simps_projections? insert_to_additive_translation instance
irreducible_def library_note lrat_proof macro macro_rules mk_iff_of_inductive_prop mutual
name_poly_vars name_power_vars namespace notation notation3 opaque open postfix prefix proof_wanted
recommended_spelling register_builtin_option register_hint register_label_attr register_linter_set
register_option register_parser_alias register_simp_attr register_tactic_tag register_try?
reset_grind_attrs% restate_axiom run_cmd run_elab run_meta section set_option show_panel_widgets
simproc simproc_decl simproc_pattern% structure suppress_compilation syntax tactic_extension theorem
to_additive_name_hint to_dual_insert_cast to_dual_insert_cast_fun to_dual_name_hint unif_hint
universe unset_option unsuppress_compilation variable variable? variables with_weak_namespace
#align #align_import #eval #exit #guard_msgs #noalign #print #reduce #synth
"""
# Names in some versions, commands in others: commands only first on a line that is not deeper than
# the declaration before. The same goes for `#word`, because `#check` is a tactic and `#s` a card.
_SOMETIMES: Final = """
count_heartbeats deprecate include module omit recall seal stop_at_first_error sudo unseal whatsnew
"""
_DEEPEST: Final = 200
_MODIFIERS: Final = "private protected noncomputable nonrec unsafe partial local scoped public meta"

# No letter goes on: Greek, letter-like symbols, subscripts, script and blackboard letters count.
WORD_END: Final = rb"(?![A-Za-z0-9_'.!?\xce\xcf\xe1\xf0]|\xe2[\x82\x84\x85])"


def nested(left: str, right: str, depth: int) -> bytes:
    """A pattern for a bracket with at most `depth` levels of its own kind inside."""
    left, right = re.escape(left), re.escape(right)
    pattern = f"{left}[^{left}{right}]*+{right}"
    for _ in range(depth - 1):
        pattern = f"{left}(?>(?:[^{left}{right}]++|{pattern})*){right}"
    return pattern.encode()


def _any_word(words: str) -> bytes:
    """A pattern for these words that looks at the first letter once."""
    by_letter: dict[str, list[str]] = {}
    for word in sorted(words.split(), key=lambda w: (-len(w), w)):
        by_letter.setdefault(word[0], []).append(re.escape(word[1:]))
    groups = (f"{re.escape(a)}(?:{'|'.join(rest)})" for a, rest in sorted(by_letter.items()))
    return f"(?:{'|'.join(groups)})".encode() + WORD_END


# `lemma` is reserved only under Mathlib and a fine name elsewhere, so it needs the look of a
# declaration: a name, then a binder, a type or a body.
_LEMMA: Final = (
    rb"lemma(?=\s++(?!(?:at|do|else|from|in|then|using|with)\s)[^\s(){}\[\]:|,;=]++"
    rb"\s*+(?:[(\[{:|]|\xe2\xa6\x83|where\b))"
)
# `deriving instance … for` declares nothing by itself.
_WORD: Final = rb"(?:deriving\s++instance|" + _any_word(_RESERVED) + rb"|" + _LEMMA + rb")"
_MODIFIER: Final = _any_word(_MODIFIERS)
_BRACKETS: Final = nested("[", "]", 5)
_OPENED: Final = (
    rb"open(?>(?:\s++(?:(?!in\b|" + _WORD + rb")[^\s()\[\]{}:@#\x01\x02]++|\([^()]*+\)))+)"
    rb"\s++in\b\s*+"
)
_IN: Final = rb"(?:" + _OPENED + rb"|set_option\s++\S++\s++\S++\s++in\b\s*+)"
_PREFIX: Final = rb"(?:\x01\s*+|(?:@|scoped)" + _BRACKETS + rb"\s*+|" + _MODIFIER + rb"\s*+)"
_SOFT: Final = rb"(?:#[a-z_]++|" + _any_word(_SOMETIMES) + rb")"
_COMMAND: Final = (
    rb"(?=[a-z#@\x01\x02])(?:"
    rb"(?P<outer>(?>" + _IN + rb"*))(?>" + _PREFIX + rb"*)"
    rb"(?:(?P<word>" + _WORD + rb"|\x02)|" + _SOFT + rb")"
    rb"|(?>(?:" + _IN + rb"|" + _PREFIX + rb")+))"
)
# What may stand before a command; \xa9 is the last byte of ⟩.
_CANDIDATE: Final = re.compile(rb"[\n\r\t )\]};\xa9]" + _COMMAND)


def matches(code: bytes) -> Iterator[re.Match[bytes]]:
    """The commands of masked code, which must start with a newline, in order.

    A match begins one byte before its command, which costs less. Its group `outer` is `open … in`
    and `set_option … in`, `word` the reserved word; None where only modifiers are known.
    """
    column = 0  # of the last command known by its word
    cursor, depth = 0, 0  # brackets open between the last command and the cursor
    for match in _CANDIDATE.finditer(code):
        before = match.start()
        named = match["word"] is not None
        if code[before] != 0x0A:
            if code[before] == 0xA9 and code[before - 1] != 0x9F:  # a word goes on from Ω or é
                continue
            depth += _balance(code, cursor, before + 1)
            cursor = before + 1
            if depth > 0 or not (named or _leads(code, before + 1, column)):
                continue
            column = _column(code, before + 1) if named else column
        elif named:
            column = 0
        cursor, depth = match.end(), 0
        yield match


def _balance(code: bytes, start: int, end: int) -> int:
    opened = code.count(b"(", start, end) + code.count(b"[", start, end)
    closed = code.count(b")", start, end) + code.count(b"]", start, end)
    return opened - closed + code.count(b"{", start, end) - code.count(b"}", start, end)


def _column(code: bytes, position: int) -> int:
    """The column, or 0 beyond the deepest one that matters: a file may be one line of 50 MB."""
    newline = code.rfind(b"\n", max(0, position - _DEEPEST), position)
    return position - newline - 1 if newline >= 0 else 0


def _leads(code: bytes, position: int, column: int) -> bool:
    """Whether this is the first token of its line and not deeper than `column`."""
    newline = code.rfind(b"\n", max(0, position - column - 1), position)
    return newline >= 0 and not code[newline:position].strip()
