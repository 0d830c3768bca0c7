"""Declarations and their proofs in a Lean 4 file, found without Lean.

- A proof runs from just after `:=` (or from the first `|` alternative, or from `where`) to the last
  character before the next command that is neither white space nor comment. So white space after
  `:=` and comments inside belong to it, and so do `termination_by` and a trailing `where`.
- `decl_start` is where Lean's declaration node starts: the doc comment, attribute or modifier after
  any `open … in` and `set_option … in`. `kw_start` is the word `theorem` or `lemma` itself.
- Offsets are bytes, the time is linear in the file size.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import chain
from typing import Final, Literal, NamedTuple, get_args

from tangobench.pipeline.lean.lexer import WORD_END, mask, matches, nested

Style = Literal["by", "term", "|", "where"]
STYLES: Final[tuple[Style, ...]] = get_args(Style)
PROOF_KINDS: Final = ("theorem", "lemma")

# Brackets that nest little are taken whole, which leaves few to count one by one. Each alternative
# starts with a literal character: that is what lets `re` skip over the rest.
_HEADER_WORD: Final = rb"(?:where|let|letI|let_fun|have|haveI|obtain|match)" + WORD_END
_BEFORE_WORD: Final = (rb" ", rb"\n", rb"\t", rb"\r", rb";", rb",")
_WHOLE: Final = b"|".join((nested("(", ")", 4), nested("[", "]", 3), nested("{", "}", 3)))
_HEADER: Final = re.compile(
    _WHOLE
    + rb"|\(|\[|\{|\xe2(?:\x9f[\xa6-\xa9]|\x86\x90)|\)|\]|\}|:=|\||"
    + b"|".join(before + _HEADER_WORD for before in _BEFORE_WORD)
)
_NAME: Final = re.compile(
    rb"(?>(?:\s*+\((?:priority|name)[^()]*+\))?)\s*+"
    rb"((?>(?:\xc2\xab(?>(?:[^\n\xc2]++|\xc2(?![\xab\xbb]))*)\xc2\xbb"
    rb"|\.(?!\{)|[^\s(){}\[\]:.,;|=\xc2\xe2]++"
    rb"|\xc2(?!\xab)[\x80-\xbf]|\xe2(?!\xa6[\x83\x84]|\x9f[\xa8\xa9])[\x80-\xbf]{2})*))"
)
_BY: Final = re.compile(rb"\s*+(by" + WORD_END + rb")?")
# 97 statements in 100 hold nothing that needs a second look: no bar, no `let`, no deep nesting. One
# match then goes from the name to the body. \x9f is the middle byte of ⟨, ⟩, ⟦ and ⟧.
_NO_ANGLE: Final = rb"\x9f(?![\xa6-\xa9])"
_ANGLES: Final = rb"(?<=\xe2)\x9f\xa8(?>(?:[^()\[\]{}\x9f]++|%b|%b)*)(?<=\xe2)\x9f\xa9"
_PLAIN_STATEMENT: Final = re.compile(
    rb"(?>(?:[^()\[\]{}:|\x9f \n\t\r;,]++|[ \n\t\r;,](?!%b)|:(?!=)|%b|%b|%b)*):="
    % (_HEADER_WORD, _WHOLE, _NO_ANGLE, _ANGLES % (_WHOLE, _NO_ANGLE))
)
_ARROW: Final = re.compile(rb"=>|:=|\([^()]*+\)|\{[^{}]*+\}")
_LEFT_ARROW: Final = b"\xe2\x86\x90"
_STEPS: Final = {c.encode(): 1 for c in "([{⟨⟦"} | {c.encode(): -1 for c in ")]}⟩⟧"}
_OWNERS: Final = (b"fun", b"\xce\xbb", b"with")
# After one of these a term must follow, so that a bar opens an absolute value.
_OPERATORS: Final = (
    *(b":", b",", b"=", b"<", b">", b"+", b"-", b"/", b"^", b";"),
    *(c.encode() for c in "→↔∧∨¬≤≥≠∈∉⊆⊂∣∘×≃≅⟶≫•∩∪⊔⊓▸↦←"),
)


class Declaration(NamedTuple):
    """One declaration with a body; all offsets are bytes into its file."""

    kind: str
    name: str
    line: int
    decl_start: int
    kw_start: int
    proof_start: int
    proof_end: int
    style: Style

    def proof(self, data: bytes) -> str:
        return data[self.proof_start : self.proof_end].decode()


def extract(data: bytes, kinds: Collection[str] = PROOF_KINDS) -> list[Declaration]:
    """The declarations of these kinds that have a body, in file order.

    Raises `lexer.Unterminated` for a file that ends inside a comment or a string.
    """
    code = b"\n" + mask(data)  # the leading newline makes the first line like any other
    wanted = frozenset(kind.encode() for kind in kinds)
    found: list[Declaration] = []
    line, counted = 1, 0
    head: re.Match[bytes] | None = None
    for match in chain(matches(code), (None,)):
        if head is not None:
            end = len(code) if match is None else match.start() + 1
            keyword = head.start("word") - 1
            line += data.count(b"\n", counted, keyword)
            counted = keyword
            body = _body(code, head.end(), end)
            if body is not None:
                start, style = body
                name = _NAME.match(data, head.end() - 1)
                found.append(
                    Declaration(
                        head["word"].decode(),
                        name[1].decode() if name else "",
                        line,
                        head.end("outer") - 1,
                        keyword,
                        start - 1,
                        start - 1 + len(code[start:end].rstrip()),
                        style,
                    )
                )
        word = match and match["word"]
        if word == b"#exit":  # Lean reads no further
            break
        head = match if word in wanted else None
    return found


def _body(code: bytes, start: int, end: int) -> tuple[int, Style] | None:
    """Where the body starts, and what kind of body it is; None without one."""
    plain = _PLAIN_STATEMENT.match(code, start, end)
    if plain is not None:
        return _simple_body(code, plain.end(), end)
    return _body_after_any(code, start, end)


def _body_after_any(code: bytes, start: int, end: int) -> tuple[int, Style] | None:
    """The same token by token, for statements with bars, `let` and `match`."""
    depth = pending = 0
    owned = False  # the alternatives belong to a `match` or `fun` of the statement
    absolute = False  # inside `| x |`
    arrow = -1  # the first `=>` or `:=` after the bar at hand
    for match in _HEADER.finditer(code, start, end):
        token = match.group()
        if token in _STEPS:
            depth = max(0, depth + _STEPS[token])
        elif depth or token[0] in b"([{":  # a bracket taken whole
            continue
        elif token == _LEFT_ARROW:  # `let x ← …` has no `:=`
            pending = max(0, pending - 1)
        elif token == b":=":
            if not pending:
                return _simple_body(code, match.end(), end)
            pending -= 1
        elif token == b"|":
            bar = match.start()
            if absolute or _opens_value(code, bar):
                absolute = not absolute
                continue
            owned = owned or _before(code, bar).endswith(_OWNERS)
            arrow = arrow if arrow > bar else _arrow(code, bar, end)
            if not owned and _is_alternative(code, bar, arrow):
                if not pending:
                    return bar, "|"
                owned, pending = True, pending - 1  # `let f | 0 => …` has no `:=` either
        elif token.endswith(b"where"):
            return match.start() + 1, "where"
        else:  # a word: `match` owns the bars after it, the others wait for their `:=`
            owned = owned or token.endswith(b"match")
            pending += not token.endswith(b"match")
    return None


def _opens_value(code: bytes, bar: int) -> bool:
    """Whether this bar opens an absolute value: a term is expected here."""
    return code[bar + 1 : bar + 2] not in (b"|", b">") and _before(code, bar).endswith(_OPERATORS)


def _before(code: bytes, position: int) -> bytes:
    """What stands before, without white space; a window keeps hostile input linear."""
    return code[max(0, position - 200) : position].rstrip()


def _simple_body(code: bytes, position: int, end: int) -> tuple[int, Style] | None:
    body = _BY.match(code, position, end)
    if body is None or (body.end() == end and body[1] is None):
        return None
    return position, "term" if body[1] is None else "by"


def _arrow(code: bytes, position: int, end: int) -> int:
    """The next `=>` or `:=` outside small brackets, else `end`."""
    for match in _ARROW.finditer(code, position + 1, end):
        if len(match.group()) == 2:
            return match.start()
    return end


def _is_alternative(code: bytes, bar: int, arrow: int) -> bool:
    """Whether this bar starts `| pattern => …`, and not an absolute value or a longer token."""
    if not code.startswith(b"=>", arrow) or not code[bar - 1 : bar].isspace():
        return False
    following = code[bar + 1 : bar + 2]
    if following in (b">", b"|", b"."):
        return False
    return following.isspace() or code.find(b"|", bar + 1, arrow) < 0
