"""The texts: what ships with Python, with Rust, with Debian, with NumPy, and our own documents.

The manifest names the licence of each, and the hash of what was read. Only our own is stored here:
the documents have changed since.
"""

from __future__ import annotations

import argparse
import gzip
import html.parser
import importlib
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

DEPTHS: Final = (0.1, 0.3, 0.5)  # where keys are planted
PLACES: Final = ("lighthouse", "orchard", "museum")
DIGITS: Final = 5


class Text(NamedTuple):
    """A text, and by whose leave it is read."""

    source: str
    licence: str
    read: Callable[[], str]


class Probe(NamedTuple):
    """A key that stands early in a text, and what asks for it at the end."""

    planted: str
    question: str
    answer: str


class _Prose(html.parser.HTMLParser):
    """The text of a page's main part."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self._inside |= tag == "main"
        if tag in {"p", "pre", "h1", "h2", "h3", "li"} and self._inside:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "main"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.parts.append(data)


def _rust(book: str, *chapters: str) -> str:
    """Read chapters of a book that ships with Rust."""
    compiler = shutil.which("rustc")
    roots = [Path("/usr/share/doc/rust-doc/html")]
    if compiler is not None:
        told = subprocess.run(
            [compiler, "--print", "sysroot"], check=True, capture_output=True, text=True
        )
        roots.insert(0, Path(told.stdout.strip()) / "share/doc/rust/html")
    for root in roots:
        if (root / book).is_dir():
            return "".join(_page(root / book / f"{chapter}.html") for chapter in chapters)
    raise FileNotFoundError(f"{book} must be there: it ships with Rust's documentation.")


def _page(path: Path) -> str:
    prose = _Prose()
    prose.feed(path.read_text("utf-8"))
    return "".join(prose.parts).strip() + "\n\n"


def _topics() -> str:
    topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    names = ("class", "function", "assignment", "for", "with", "try", "import", "naming", "calls")
    return "\n".join(topics[name] for name in (*names, "execmodel", "typesseq", "specialnames"))


def _history() -> str:
    with gzip.open("/usr/share/doc/python3.11/HISTORY.gz", "rt", encoding="utf-8") as file:
        return file.read()


def _numpy() -> str:
    named = (np.einsum, np.linspace, np.histogram, np.pad, np.unique, np.quantile, np.gradient)
    return "\n".join(each.__doc__ or "" for each in named)


OWNERSHIP: Final = (
    "ch04-01-what-is-ownership",
    "ch04-02-references-and-borrowing",
    "ch04-03-slices",
)
STRUCTS: Final = ("ch05-01-defining-structs", "ch05-02-example-structs", "ch05-03-method-syntax")
UNSAFE: Final = ("meet-safe-and-unsafe", "safe-unsafe-meaning", "working-with-unsafe", "data")
LAYOUT: Final = ("repr-rust", "exotic-sizes", "other-reprs", "references", "aliasing", "lifetimes")
TEXTS: Final = {
    "rust-book": Text(
        "The Rust Programming Language, chapters 4 and 5 (ships with Rust)",
        "MIT or Apache-2.0",
        lambda: _rust("book", *OWNERSHIP, *STRUCTS),
    ),
    "rustonomicon": Text(
        "The Rustonomicon, its first chapters (ships with Rust)",
        "MIT or Apache-2.0",
        lambda: _rust("nomicon", *UNSAFE, *LAYOUT),
    ),
    "python-reference": Text("pydoc_data.topics (ships with Python)", "PSF-2.0", _topics),
    "argparse": Text(
        "argparse.py (ships with Python)",
        "PSF-2.0",
        lambda: Path(argparse.__file__).read_text("utf-8"),
    ),
    "python-history": Text("HISTORY.gz of Debian's python3.11", "PSF-2.0", _history),
    "gpl-3": Text(
        "GPL-3 of Debian's base-files",
        "verbatim copies permitted",
        lambda: Path("/usr/share/common-licenses/GPL-3").read_text("utf-8"),
    ),
    "numpy": Text("docstrings of NumPy", "BSD-3-Clause", _numpy),
    "kvreclaim": Text(
        "docs/design.md and docs/which-pool.md of this repository",
        "Apache-2.0",
        lambda: Path(__file__).with_name("kvreclaim.txt").read_text("utf-8"),
    ),
}


def probes(name: str) -> tuple[Probe, ...]:
    """Return the keys that are planted into a text: the same ones whenever it is read."""
    rng = random.Random(f"probes of {name}")  # noqa: S311  # no secret
    numbers = [f"{rng.randrange(10 ** (DIGITS - 1), 10**DIGITS)}" for _ in PLACES]
    return tuple(
        Probe(
            planted=f"\n\nRemember: the pass code of the {place} is {number}.\n\n",
            question=f"\n\nRemember: the pass code of the {place} is",
            answer=f" {number}",
        )
        for place, number in zip(PLACES, numbers, strict=True)
    )
