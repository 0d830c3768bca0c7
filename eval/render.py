"""Tables as Markdown, LaTeX, CSV, HTML or text in aligned columns.

- Cells are plain text; each format escapes what it must, so a name can hold any character.
- CSV is one file for all tables, a line per cell: whatever reads CSV can filter it. A table's note
  is in the column `note`, with an empty row name.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A grid of text; the first column names the rows."""

    title: str = ""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.title}: {len(row)} cells under {len(self.columns)} heads")


def tabled(
    title: str, items: Iterable[Any], cells: Mapping[str, Callable[[Any], str]], note: str = ""
) -> Table:
    """A row per item; a column is its head and what makes a cell of an item."""
    rows = [[cell(item) for cell in cells.values()] for item in items]
    return Table(title=title, columns=list(cells), rows=rows, note=note)


def render(tables: Sequence[Table], form: str) -> str:
    if form == "csv":
        return _csv(tables)
    return "\n".join(_ONE[form](table) for table in tables)


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join([" --- "] + [" ---: "] * (len(table.columns) - 1)) + "|"
    parts = [f"### {table.title}", "", line(table.columns), rule, *map(line, table.rows)]
    return "\n".join(parts + (["", table.note] if table.note else [])) + "\n"


def _text(table: Table) -> str:
    rows = [table.columns, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    ]
    return "\n".join([table.title, *lines, *([table.note] if table.note else [])]) + "\n"


_LATEX: Final = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "×": r"$\times$", "<": r"$<$", ">": r"$>$", "−": r"$-$"}
)


def _latex(table: Table) -> str:
    rows = [table.columns, *table.rows]
    lines = [" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in rows]
    caption = f"{table.title}. {table.note}" if table.note else table.title
    return "\n".join(
        [
            r"\begin{table}[t]",
            r"  \centering",
            rf"  \caption{{{caption.translate(_LATEX)}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _csv(tables: Sequence[Table]) -> str:
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["table", "row", "column", "value"])
    for table in tables:
        for name, *cells in table.rows:
            for column, cell in zip(table.columns[1:], cells, strict=True):
                writer.writerow([table.title, name, column, cell])
        if table.note:
            writer.writerow([table.title, "", "note", table.note])
    return sink.getvalue()


def _html(table: Table) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        first = f'<th scope="{"col" if tag == "th" else "row"}">{html.escape(row[0])}</th>'
        rest = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row[1:])
        return f"<tr>{first}{rest}</tr>"

    body = "\n".join(cells(row, "td") for row in table.rows)
    note = f"<p>{html.escape(table.note)}</p>\n" if table.note else ""
    return (
        f"<table>\n<caption>{html.escape(table.title)}</caption>\n"
        f"<thead>{cells(table.columns, 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>\n{note}"
    )


_ONE: Final[dict[str, Callable[[Table], str]]] = {
    "markdown": _markdown,
    "latex": _latex,
    "html": _html,
    "text": _text,
}
