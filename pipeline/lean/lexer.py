"""Lean 4 source with everything that is not code blanked out, byte for byte in place.

- Comments become spaces; the insides of strings, character literals, «names» and syntax quotations
  become filler: plain regular expressions over the copy see code and nothing else.
- A doc comment (`/-- -/`) becomes DOC, a module comment (`/-! -/`) MODULE_DOC, each followed by
  spaces: both are commands or parts of one, not white space.
- One pass: every byte is looked at a constant number of times, whatever the input.
"""

from __future__ import annotations

import re
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
