"""Lean 4 source with what is not code blanked out in place, and where commands start in the rest.

- Comments become spaces; the insides of strings, character literals, «names» and syntax quotations
  become filler: plain regular expressions over the copy see code and nothing else.
- A doc comment (`/-- -/`) becomes DOC, a module comment (`/-! -/`) MODULE_DOC, each followed by
  spaces: both are commands or parts of one, not white space.
- A command is known by its reserved word, not by its column: commands that share a line are told
  apart, and an unindented continuation line belongs to the command before it.
- `open … in` and `set_option … in` are commands only when a command follows the `in`: in a proof
  they are terms and tactics. Doc comments and attributes likewise also occur in `where` blocks.
- One pass, possessive patterns: the time is linear in the file size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

DOC: Final = 0x01
MODULE_DOC: Final = 0x02

# One alternative per way out of plain code, each starting with a literal character: that is what
# lets `re` skip the rest. `//` is a token of its own (`{x // -1 < x}`), so that its second slash
# cannot open a comment. Character literals matter only when they hold a quote, a bracket or another
# opener: in `f '' s`, `g ⁻¹' t` and `x'` the prime is no literal at all. Groups are atomic by
# `(?>(?:…)*)`: Python before 3.11.5 matches a possessive group, `(?:…)*+`, wrongly.
_OPENER: Final = re.compile(
    rb"--[^\n]*+"
    rb"|/[-/]"
    rb'|"'
    rb"|'(?<![A-Za-z0-9_']')(?:\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[^\n])"
    rb"|[\"()\[\]{}|/`-]|\xc2\xab|\xc2\xbb|\xe2\x9f[\xa6-\xa9])'"
    rb"|\xc2\xab(?>(?:[^\n\xc2]++|\xc2(?![\xab\xbb]))*)\xc2\xbb"
    rb"|`\("
)
_NESTED: Final = re.compile(rb"[()\[\]{}]|" + _OPENER.pattern)
_COMMENT_EDGE: Final = re.compile(rb"/-|-/")
_STRING_REST: Final = re.compile(rb'[^"\\]*+(?>(?:\\.[^"\\]*+)*)"', re.DOTALL)
_CHUNK: Final = re.compile(rb'[^"\\{]*+(?>(?:\\.[^"\\{]*+)*)(["{])', re.DOTALL)
_RAW_START: Final = re.compile(rb"(?:^|[^A-Za-z0-9_'!?.\x80-\xff])r(#*)$")
# Only the macros of Lean itself: `panic! "{"`, `xs.get! "{"` and `logInfo "{"` have plain strings.
_INTERPOLATED: Final = re.compile(
    rb"(?:^|[^A-Za-z0-9_.!?'])(?:(?:[a-z]|e?println)!|throwError|throwErrorAt [\w.()]+"
    rb"|trace\[[\w.]*\]!?|dbg_trace)\s?$"
)
_NAME_OPENS, _NAME_CLOSES = "«".encode(), "»".encode()
_QUOTE: Final = ord('"')
_OPENING: Final = (b"(", b"[", b"{", b"`(")
_MARKS: Final = {ord("-"): bytes((DOC,)), ord("!"): bytes((MODULE_DOC,))}
_LONGEST_MARK: Final = 80  # how far before a quote an interpolating word is looked for


class Unterminated(ValueError):
    """The file ends inside a comment or a string."""

    def __init__(self, what: str, offset: int) -> None:
        super().__init__(f"{what} opened at byte {offset} is never closed")
        self.what = what
        self.offset = offset


def mask(text: bytes) -> bytes:
    """The file with comments blanked and literals, «names» and quotations filled."""
    if DOC in text or MODULE_DOC in text:  # control characters are white space to a reader anyway
        text = text.translate(bytes.maketrans(bytes((DOC, MODULE_DOC)), b"  "))
    pieces: list[bytes] = []
    done = position = 0
    quotations = True
    while (match := _OPENER.search(text, position)) is not None:
        start = match.start()
        if match.group() == b"`(":
            end = _closing(text, start + 1) if quotations else -1
            if end < 0:  # unbalanced: plain code, and no second attempt in this file
                quotations = False
                position = start + 2
                continue
            fill = _filler(b"(", end - start, b")")
        else:
            end, fill = _literal(text, match)
        if fill:
            pieces += (text[done:start], fill)
            done = end
        position = end
    pieces.append(text[done:])
    return b"".join(pieces)


def _literal(text: bytes, match: re.Match[bytes]) -> tuple[int, bytes]:
    """Where the comment, string, character or name at this opener ends, and what replaces it."""
    start, end = match.span()
    opener = match.group()
    if opener == b"//":
        return end, b""
    if opener.startswith(b"--"):
        return end, b" " * (end - start)
    if opener == b"/-":
        end = _comment_end(text, start)
        mark = _MARKS.get(text[start + 2], b" ") if end > start + 4 else b" "
        return end, mark.ljust(end - start)
    if opener == b'"':
        end = _string_end(text, start)
        return end, _filler(b'"', end - start, b'"')
    if opener.startswith(_NAME_OPENS):
        return end, _NAME_OPENS + b"_" * (end - start - 4) + _NAME_CLOSES
    return end, b"_" * (end - start)


def _filler(left: bytes, length: int, right: bytes) -> bytes:
    return left + b"_" * (length - 2) + right


def _comment_end(text: bytes, start: int) -> int:
    close = text.find(b"-/", start + 2)
    if close >= 0 and text.find(b"/-", start + 2, close + 1) < 0:  # none inside, not even as `/-/`
        return close + 2
    depth = 1
    for edge in _COMMENT_EDGE.finditer(text, start + 2):
        depth += 1 if edge.group() == b"/-" else -1
        if depth == 0:
            return edge.end()
    raise Unterminated("block comment", start)


def _string_end(text: bytes, start: int) -> int:
    before = _before(text, start)
    raw = _RAW_START.search(before)
    if raw is not None:
        close = text.find(b'"' + raw.group(1), start + 1)
        end = close + 1 + len(raw.group(1)) if close >= 0 else -1
    elif _INTERPOLATED.search(before):
        end = _closing(text, start)
    else:
        rest = _STRING_REST.match(text, start + 1)
        end = rest.end() if rest else -1
    if end < 0:
        raise Unterminated("string", start)
    return end


def _closing(text: bytes, start: int) -> int:
    """The offset after what closes the bracket or interpolated string at `start`; -1 if nothing.

    The two nest in each other, so one explicit stack holds both: input cannot overflow it.
    """
    stack = [text[start]]
    position = start + 1
    while stack:
        match = (_CHUNK.match if stack[-1] == _QUOTE else _NESTED.search)(text, position)
        if match is None:
            return -1
        position = match.end()
        last = text[position - 1]
        quoted = stack[-1] == _QUOTE
        if last == _QUOTE if quoted else (len(match.group()) == 1 and last in b")]}"):
            stack.pop()
        elif quoted or match.group() in _OPENING:
            stack.append(last)
        elif match.group() == b'"' and _INTERPOLATED.search(_before(text, match.start())):
            stack.append(_QUOTE)
        else:
            position = _literal(text, match)[0]
    return position


def _before(text: bytes, position: int) -> bytes:
    return text[max(0, position - _LONGEST_MARK) : position]


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
