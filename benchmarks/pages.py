"""What scripts write: tables in markdown, between the marks of a page, and whole files of text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

import attrs

from kvreclaim._formats import writing

END: Final = "<!-- end -->\n"


@attrs.frozen(kw_only=True)
class Table:
    """One table: a heading, what its numbers are, and rows of cells."""

    title: str
    text: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __attrs_post_init__(self) -> None:
        """Refuse rows that do not fit the header."""
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(
                    f"rows must have the {len(self.header)} cells of the header; got {row}; write "
                    "an empty cell where there is nothing."
                )

    def __str__(self) -> str:
        """Return the table in markdown; the first column reads left, numbers read right."""
        border = ("---", *("---:" for _ in self.header[1:]))
        lines = [f"| {' | '.join(row)} |" for row in (self.header, border, *self.rows)]
        return "\n".join((f"### {self.title}", "", self.text, "", *lines, ""))


def begin(command: str) -> str:
    """Return the line after which what a command prints stands, up to `END`."""
    return f"<!-- begin: {command} -->\n"


def between(page: Path, command: str) -> str:
    """Return what stands between the marks of a command.

    Raises
    ------
    ValueError
        For a page without them.
    """
    return _parted(page, page.read_text("utf-8"), command)[1].removeprefix("\n").removesuffix("\n")


def write_into(page: Path, texts: Mapping[str, str]) -> None:
    """Replace what stands between the marks of each command; without its marks, nothing at all.

    Raises
    ------
    ValueError
        For a page that lacks the marks of one of them.
    """
    whole = page.read_text("utf-8")
    for command, text in texts.items():
        before, _, after = _parted(page, whole, command)
        whole = f"{before}{begin(command)}\n{text}\n{END}{after}"
    write_text(page, whole)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all, and the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = text.encode()

    def write(file: BinaryIO) -> None:
        file.write(content)

    writing.write_whole(str(path), write)


def _parted(page: Path, whole: str, command: str) -> tuple[str, str, str]:
    before, first, rest = whole.partition(begin(command))
    inside, last, after = rest.partition(END)
    if not first or not last:
        raise ValueError(f"{page} must hold the lines {begin(command)!r} and {END!r}; write them.")
    return before, inside, after
