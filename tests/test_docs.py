"""The pages: their examples run, and their table of runtimes says what the presets say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from scripts import scripts_of

from kvreclaim import runtimes

DOCS = Path(__file__).parents[1] / "docs"
FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
PAGES = sorted(DOCS.glob("*.md"))  # an sdist has them too: hatch packs what git does
SCOPES = {"all": "hl", "layer": "h", "head": ""}


def test_pages_are_found() -> None:
    assert "which-pool.md" in {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_of_a_page(page: Path) -> None:
    result = doctest.testfile(str(page), module_relative=False, encoding="utf-8")
    assert result.failed == 0
    scripts = scripts_of(page).values()  # these are run by tests of their own
    for block in FENCED.findall(page.read_text("utf-8")):
        if block in scripts:
            continue
        assert block.startswith(">>> "), "an example that nothing runs"
        assert block.endswith("\n\n"), "the fence would be read as output"


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *PAGES], ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_which_pool_has_examples() -> None:
    text = (DOCS / "which-pool.md").read_text("utf-8")
    assert len(doctest.DocTestParser().get_examples(text)) > 5


def rows_of_runtimes() -> dict[str, list[str]]:
    text = (DOCS / "which-pool.md").read_text("utf-8")
    table = text.partition("## Runtimes")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    return {row[0].strip("`").partition("(")[0]: row for row in rows}


def test_which_pool_has_a_row_for_each_runtime() -> None:
    assert tuple(rows_of_runtimes()) == runtimes.names()


@pytest.mark.parametrize("name", runtimes.names())
def test_which_pool_says_what_the_preset_says(name: str) -> None:
    _, block, scope, frees, compactor, real, requires, read = rows_of_runtimes()[name]
    pool, about = runtimes.preset(name), runtimes.about(name)
    assert int(block.replace(",", "")) == pool.block_size
    assert SCOPES[scope] == pool.shared_axes
    assert re.split("[,;]", frees)[0] == pool.frees
    assert ("open tail" in frees) == pool.open_tail
    assert re.split("[,;]", compactor)[0] == pool.compactor
    assert real == f"{about.layout} / {about.status}"
    assert requires == (", ".join(about.requires) or "-")
    assert read.startswith("in place" if pool.compactor == "none" else "compacted")
