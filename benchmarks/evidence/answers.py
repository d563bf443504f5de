"""The answers in markdown: one text for each pair of marks of docs/evidence.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.evidence import answers_article, answers_memory, answers_quality
from benchmarks.evidence.found import Evidence, read
from benchmarks.pages import Table
from benchmarks.pages import write_into as write_between

COMMAND: Final = "python -m benchmarks.evidence tables"

SECTIONS: Final[dict[str, Callable[[Evidence], tuple[Table, ...]]]] = {
    "headline": answers_quality.headline,
    "matched quality": answers_quality.at_matched_quality,
    "block sizes": answers_memory.block_sizes,
    "every share": answers_memory.deeper,
    "sharing": answers_memory.sharing,
    "shape": answers_memory.shapes,
    "allocator": answers_memory.allocator,
    "documents": answers_quality.documents,
    "article": answers_article.article,
}


def texts(folder: Path) -> dict[str, str]:
    """Return the tables in markdown, by what names them in the marks of a page."""
    evidence = read(folder)
    return {
        f"{COMMAND}, {name}": "\n".join(map(str, section(evidence)))
        for name, section in SECTIONS.items()
    }


def write_into(page: Path, folder: Path) -> None:
    """Write the tables of a folder of data between the marks of a page.

    Raises
    ------
    ValueError
        For a page that lacks some of the marks; nothing is written then.
    """
    write_between(page, texts(folder))
