"""Tables of text cells: for a terminal, as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from typing import Final, NamedTuple

WIDTH: Final = 80
"""Columns of a terminal."""

_LONGEST_NAME: Final = 28  # a longer one stands on a line of its own, above its cells

# The brackets and the star would be read as options of the end of the row before them.
_LATEX: Final = str.maketrans(
    {letter: "\\" + letter for letter in "&%$#_{}"}
    | {letter: f"{{{letter}}}" for letter in "[]*"}
    | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "`": r"\textasciigrave{}",
        '"': r"{\char34}",
    }
)
_MARKDOWN: Final = str.maketrans({letter: "\\" + letter for letter in r"\`*_[]<>|~&#$"})


class Table(NamedTuple):
    """Rows of cells under headings; a row of no cells is a blank line.

    The first cell of a row names it. A heading can have two lines, the first broken by a hyphen.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


def widths(table: Table) -> list[int]:
    """Return the width of each column for a terminal, with the space before it."""
    rows = [row for row in table.rows if row]
    names = [len(row[0]) for row in rows if len(row[0]) <= _LONGEST_NAME]
    figures = [
        2 + max(map(len, [*heading.split("\n"), *column]))
        for heading, *column in zip(table.headings, *rows, strict=True)
    ]
    return [max([len(table.headings[0]), *names]), *figures[1:]]


def as_text(table: Table) -> str:
    """Return the table for a terminal; the last columns are left out where they do not fit."""
    columns = widths(table)
    while sum(columns) > WIDTH:
        columns.pop()
    return "\n".join(
        _line(row, columns).rstrip() for row in (*_heading_rows(table.headings), *table.rows)
    )


def _line(row: Sequence[str], columns: Sequence[int]) -> str:
    if not row:
        return ""
    name, first = row[0], columns[0]
    cells = "".join(f"{cell:>{width}}" for cell, width in zip(row[1:], columns[1:], strict=False))
    return f"{name:<{first}}{cells}" if len(name) <= first else f"{name}\n{'':<{first}}{cells}"


def _heading_rows(headings: Sequence[str]) -> list[tuple[str, ...]]:
    height = 1 + max(heading.count("\n") for heading in headings)
    lines = [["", *heading.split("\n")][-height:] for heading in headings]
    return list(zip(*lines, strict=True))


def as_csv(table: Table) -> str:
    """Return the table as CSV, without the newline at its end."""
    lines = io.StringIO()
    csv.writer(lines, lineterminator="\n").writerows([table.headings, *table.rows])
    return lines.getvalue().removesuffix("\n")


def as_markdown(table: Table) -> str:
    """Return the table as a pipe table."""
    headings = [on_one_line(heading) for heading in table.headings]
    rule = ["---", *["---:"] * (len(headings) - 1)]
    cells = [list(map(in_markdown, row)) for row in (headings, *table.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (cells[0], rule, *cells[1:]))


def on_one_line(heading: str) -> str:
    """Return a heading as one line; a word that was broken between two is whole again."""
    return heading.replace("-\n", "").replace("\n", " ")


def as_latex(table: Table, caption: str) -> str:
    """Return the table for a paper, in the style of booktabs; the caption is LaTeX already."""
    lines = [
        " & ".join(map(in_latex, row)) + r" \\"
        for row in (*_heading_rows(table.headings), *table.rows)
    ]
    return "\n".join(
        (
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering\small\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{caption}}}",
            rf"  \begin{{tabular}}{{l{'r' * (len(table.headings) - 1)}}}",
            r"    \toprule",
            *(f"    {line}" for line in lines[: -len(table.rows)]),
            r"    \midrule",
            *(f"    {line}" for line in lines[-len(table.rows) :]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        )
    )


def in_markdown(text: str) -> str:
    """Return text as a page shows it letter by letter."""
    return text.translate(_MARKDOWN)


def in_latex(text: str) -> str:
    """Return text as LaTeX sets it letter by letter."""
    return text.translate(_LATEX)


def printable(text: str) -> str:
    """Return text on one line that moves no cursor: other characters as Python writes them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def without_prefix(names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the folder, or the file, in which all the names lie, and the names without it."""
    common = os.path.commonprefix(names) if len(names) > 1 else ""  # noqa: RUF071  # letters count
    cut = 1 + max(common.rfind("/"), common.rfind(":"))
    return common[:cut], [name[cut:] for name in names]
