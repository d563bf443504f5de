"""The pages: their examples run, and their table of runtimes says what the presets say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest
from scripts import scripts_of

from kvreclaim import BlockPool, report, runtimes
from kvreclaim.adapters._lm_eval_columns import HIGHER_IS_BETTER

DOCS = Path(__file__).parents[1] / "docs"
FENCED = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
PAGES = sorted(DOCS.rglob("*.md"))  # an sdist has them too: hatch packs what git does
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


def rows_of_columns() -> dict[str, list[str]]:
    lines = (DOCS / "columns.md").read_text("utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row for row in rows}


def test_columns_are_explained_each_once_in_their_order() -> None:
    figures = [*report([1, 0], 2).figures()]
    assert [*rows_of_columns()] == ["signature", *figures, "cached_share", "num_ambiguous"]
    assert all(len(row) == 5 and all(row) for row in rows_of_columns().values())


def test_columns_are_better_the_way_that_a_harness_is_told() -> None:
    better = {name: row[3] for name, row in rows_of_columns().items()}
    told = {name: "higher" if up else "lower" for name, up in HIGHER_IS_BETTER.items()}
    assert {name: better[name] for name in told} == told
    assert {*better.values()} == {"higher", "lower", "-"}


@pytest.mark.parametrize(
    ("pool", "keep"),
    [
        (BlockPool(2, compactor="none"), [1, 0, 0, 0]),
        (BlockPool(2), []),
        (BlockPool(2), [1, 1]),
        (BlockPool(2), [0, 0]),
        (BlockPool(2, total_blocks=9, entry_bytes=4), [1, 0, 0, 1]),
    ],
)
def test_columns_that_are_never_empty_are_never(pool: BlockPool, keep: list[int]) -> None:
    empty = {name: row[4] for name, row in rows_of_columns().items()}
    found = report(keep, pool).to_dict()["metrics"]
    for name, value in found.items():
        if value is None:
            assert empty[name] != "never"
    reasons = {
        "the pool has no compactor": ("moved_tokens_per_block", pool.compactor == "none"),
        "there are no blocks": ("physical_reclaim", not keep),
        "nothing is evicted": ("reclaim_efficiency", all(keep)),
        "no block is held": ("fragmentation", not any(keep)),
        "the pool has no `entry_bytes`": ("held_bytes", pool.entry_bytes is None),
        "the pool has no `total_blocks`": ("pool_usage_after", pool.total_blocks is None),
    }
    for reason, (name, holds) in reasons.items():
        assert reason in empty[name]
        assert found[name] is None or not holds


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
