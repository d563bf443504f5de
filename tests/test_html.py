"""Reports and comparisons as HTML: the numbers of their text, and names that are text alone."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import Case, cases

from kvreclaim import BlockPool, Census, Comparison, Report, compare, report, take_census
from kvreclaim._render import html, report_rows, tables

ALLOWED = {"div", "table", "caption", "code", "thead", "tbody", "tr", "th", "td", "p"}
HARMLESS = {"style", "scope"}


class Page(HTMLParser):
    """The cells of a table, its caption, what stands below it, and every tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.groups: list[int] = []
        self.caption = ""
        self.notes: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag == "tbody":
            self.groups.append(len(self.rows))
        elif tag == "p":
            self.notes.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "caption" in self.open:
            self.caption += data
        elif self.open[-1:] in (["td"], ["th"]):
            self.rows[-1][-1] += data
        elif self.open[-1:] == ["p"]:
            self.notes[-1] += data
        else:
            assert not data.strip()

    @property
    def styles(self) -> str:
        return ";".join(attrs["style"] or "" for _, attrs in self.tags if "style" in attrs)


def page_of(shown: Report | Comparison) -> Page:
    return Page(shown._repr_html_())


def lines_of(text: str) -> list[list[str]]:
    """The rows of the text of a report: label, number, remark."""
    lines = [line for line in text.splitlines() if re.match(r".{28} *\S+(  |$)", line)]
    return [
        [line[:28].strip(), line[28:].split()[0], line[28:].strip().partition("  ")[2]]
        for line in lines
        if not line.startswith(("block tables:", "peak:", "B:", "  The pool"))
    ]


def as_in_text(cell: str) -> str:
    """What is said with a reason here is a word there."""
    cell = re.sub(r"undefined \([a-z ]+\)", "nan", cell)
    return re.sub(r"infinite \([a-z ]+\)", "inf", cell)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """Reports with and without what a pool, or a caller, may ask for."""
    case: Case = draw(cases())
    census = take_census(case.keep, case.pool, **case.said)
    pool = case.pool.replace(
        entry_bytes=draw(st.none() | st.integers(1, 9)),
        total_blocks=draw(st.none() | st.just(census.num_blocks + 2)),
        reserved_blocks=2,
    )
    return report(
        case.keep, pool, **case.said, blocks_per_request=draw(st.none() | st.integers(1, 9))
    )


NOTHING = report(np.ones(0, bool), BlockPool(2, total_blocks=1, reserved_blocks=1))
PINNED = report(take_census([0, 0, 0, 0, 1, 1], 2, pinned=2))


@given(reports())
@example(NOTHING)
@example(PINNED)
def test_a_report_has_the_numbers_of_its_text(figures: Report) -> None:
    page = page_of(figures)
    text = str(figures)
    found = [[as_in_text(cell) for cell in row] for row in page.rows]
    assert sorted(found) == sorted(lines_of(text))
    assert len(found) >= 14
    assert page.caption == figures.signature == text.splitlines()[-1]
    assert all(note in " ".join(text.split()) for note in page.notes)


@given(reports())
def test_a_report_says_the_three_figures_first(figures: Report) -> None:
    page = page_of(figures)
    names = [row[0] for row in page.rows[:3]]
    compactor = figures.census.pool.compactor
    after = "no compactor" if compactor == "none" else f"after {compactor}"
    assert names == ["comes back in place", after, "packed"]
    assert page.groups[:2] == [0, 3]
    assert page.rows[3][0] == "logical saving"
    census = figures.census
    for row, value, held in zip(
        page.rows,
        (figures.physical_reclaim, figures.compacted_reclaim, figures.packed_reclaim),
        (census.num_held_blocks, census.num_packed_blocks, census.num_floor_blocks),
        strict=False,
    ):
        assert row[2].startswith(f"{census.num_blocks - held} blocks, ")
        assert row[1] == ("undefined (there are no blocks)" if value != value else f"{value:.3f}")  # noqa: PLR0124  # nan


@given(reports())
@example(NOTHING)
def test_no_figure_is_undefined_without_why(figures: Report) -> None:
    page = page_of(figures)
    assert not re.search(r"\bnan\b|\binf\b|\bNone\b", " ".join(map(" ".join, page.rows)))
    undefined = [row[1] for row in page.rows if row[1].startswith(("undefined", "infinite"))]
    assert all(re.fullmatch(r"(undefined|infinite) \([a-z ]+\)", cell) for cell in undefined)


# An undefined or infinite figure: of which mask, under which pool, and why.
WHY = [
    ("physical_reclaim", [], 2, "there are no blocks"),
    ("logical_saving", [], 2, "there are no entries"),
    ("reclaimed", [], 2, "there are no entries"),
    ("reclaim_efficiency", [1, 1], 2, "no entry is evicted"),
    ("fragmentation", [0, 0], 2, "no block is held"),
    ("capacity_gain", [0, 0], 2, "no block is held"),
    ("moved_tokens_per_block", [1, 1], 2, "compaction frees no block"),
    ("decode_steps", [0, 0], 2, "no entry is live"),
    ("moved_tokens_per_block", [1, 0], BlockPool(2, compactor="none"), "no compactor"),
    ("slots_per_move", [1, 1], 2, "compaction frees no block"),
    ("slots_per_move", [1, 0], BlockPool(2, frees="none"), "no compactor"),
    ("slots_per_move", [0, 0, 0], BlockPool(2, open_tail=True), "compaction moves nothing"),
    ("effective_tokens_per_block", [1, 1], 2, "no entry is evicted"),
    ("effective_tokens_per_block", [0, 0], 2, "every entry is evicted"),
    ("effective_tokens_per_block", [], 2, "there are no entries"),
    ("effective_tokens_per_block", [[1, 0], [0, 0]], 2, "a table has several rows"),
    ("effective_tokens_per_block", [1, 0], 2, "nothing comes back in place"),
    ("effective_rows", [1, 1], 2, "no entry is evicted"),
    ("effective_rows", [0, 0], 2, "every entry is evicted"),
    ("effective_rows", [[1, 0], [0, 1]], 2, "no slot is dead in every row"),
    ("pool_usage_before", [], BlockPool(2, total_blocks=0), "no block is usable"),
]


@pytest.mark.parametrize(("name", "keep", "pool", "why"), WHY)
def test_the_reason_is_the_one_that_holds(
    name: str, keep: list[list[int]] | list[int], pool: BlockPool | int, why: str
) -> None:
    array = np.array(keep, bool)
    census: Census = take_census(array, pool, axes="ht" if array.ndim > 1 else None)
    value = report(census).figures()[name]
    assert value is not None
    assert report_rows.in_words(name, value, census).partition(" (")[2] == f"{why})"


@given(reports())
def test_every_undefined_figure_has_a_reason_that_holds(figures: Report) -> None:
    census = figures.census
    holds = {
        "there are no blocks": census.num_blocks == 0,
        "there are no entries": census.num_entries == 0,
        "no entry is evicted": census.num_evicted_entries == 0,
        "every entry is evicted": census.num_live_entries == 0,
        "no entry is live": census.num_live_entries == 0,
        "no block is held": census.num_held_blocks == 0,
        "compaction frees no block": census.num_compactable_blocks == 0,
        "no compactor": census.pool.compactor == "none",
        "compaction moves nothing": census.num_moved_entries == 0,
        "a table has several rows": census.rows_per_table > 1,
        "no block is usable": census.pool.num_usable_blocks == 0,
        "nothing comes back in place": census.num_freed_blocks == 0,
        "no slot is dead in every row": census.num_live_tokens == census.num_tokens,
    }
    for name, value in figures.figures().items():
        if value is None:
            continue
        words = report_rows.in_words(name, value, census)
        assert words.startswith(("undefined", "infinite")) == (not math.isfinite(value))
        if not math.isfinite(value):
            assert holds[words.partition(" (")[2][:-1]], (name, words)


def test_where_nothing_compacts_nothing_says_that_it_does() -> None:
    figures = report([1, 0, 0, 1], BlockPool(2, compactor="none"))
    both = compare({"a": figures, "b": figures})
    for text in (str(figures), figures._repr_html_(), str(both)):
        assert "no compactor" in text
        assert not re.search("by compaction|after compaction|frees no block|copy: ", text)
    mixed = compare({"a": figures, "b": report([1, 0, 0, 1], 2)}, force=True)
    assert "  after compaction" in str(mixed)


def test_a_wide_table_moves_in_a_box_of_its_own() -> None:
    for shown in (report([1, 0], 2), compare({"a": report([1, 0], 2)})):
        tag, attributes = page_of(shown).tags[0]
        assert (tag, attributes) == ("div", {"style": "overflow-x:auto"})


def test_a_figure_that_is_defined_is_shown_as_in_the_text() -> None:
    census = take_census([1, 0], 2)
    assert report_rows.in_words("logical_saving", 0.5, census) == "0.500"
    assert report_rows.in_words("admission_count", 1234567, census) == "1234567"


def attributes(page: Page) -> set[str]:
    return {name for _, attrs in page.tags for name in attrs}


@given(reports())
def test_a_report_is_plain_and_takes_the_colours_of_the_theme(figures: Report) -> None:
    page = page_of(figures)
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert attributes(page) <= HARMLESS
    assert not re.search(r"url|color|background|http|position|#", page.styles)


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</table></div><b>",
    "&lt;b&gt; &amp;",
    "line\nbreak\x1b[2J\u202e",
    "undefined",
    "",
]


def test_hostile_names_are_text() -> None:
    figures = {name: report([1, 0, 0, 1], 2) for name in HOSTILE}
    page = page_of(compare(figures, replicates={"<i>all</i>": HOSTILE[:2]}))
    names = [row[0] for row in page.rows[1 : 1 + len(HOSTILE)]]
    assert names == [
        *HOSTILE[:4],
        "line\\nbreak\\x1b[2J\\u202e",
        *HOSTILE[5:],
    ]
    assert page.rows[1 + len(HOSTILE)][0] == "<i>all</i>, pooled"
    assert {tag for tag, _ in page.tags} <= ALLOWED
    assert attributes(page) <= HARMLESS


@given(st.text())
def test_any_text_comes_back_as_it_was_given(text: str) -> None:
    page = Page(html.as_html("B:1", ["", "a"], [[[text, text]]], [text]))
    shown = tables.printable(text).strip()
    assert [cell.strip() for cell in page.rows[1]] == [shown, shown]
    assert page.notes == [shown]


def test_a_comparison_has_the_numbers_of_its_text() -> None:
    pair = compare(
        {
            "run/a": report([1, 0, 0, 0, 1, 0, 0, 1], 2, blocks_per_request=1),
            "run/b": report([1, 1, 0, 0, 1, 0, 0, 1], 2, blocks_per_request=1),
        }
    )
    page = page_of(pair)
    headings = [
        *("", "in place", "compacted", "packed", "logical saving"),
        *("decode steps", "admits", "efficiency", "fragmentation", "memory waste"),
    ]
    assert page.rows[0] == headings
    rows = [line.split() for line in pair.to_rows().splitlines() if line.startswith(("a ", "b "))]
    for row, (name, saving, *three) in zip(page.rows[1:], rows, strict=True):
        assert row[:1] + row[1:4] + row[4:5] == [name, *three[:3], saving]
        assert row[5:] == three[3:]
    assert page.caption == pair.to_rows().splitlines()[-1]
    assert page.notes == [
        "All in run/",
        "The pool shares blocks over 'hl', no axis of every mask: counted as 1 row.",
    ]


def test_a_comparison_says_why_a_figure_is_undefined() -> None:
    pair = compare({"undefined": report([1, 1], 2), "b": report([0, 0], 2)})
    _, first, second = page_of(pair).rows
    assert first == [
        *("undefined", "0.000", "0.000", "0.000", "0.000", "0.000"),
        *("undefined (no entry is evicted)", "0.000", "0.000"),
    ]
    assert second[5:] == [
        "undefined (no entry is live)",
        "1.000",
        "undefined (no block is held)",
        "undefined (no block is held)",
    ]


def test_a_comparison_shows_where_pools_differ() -> None:
    pair = compare({"a": report([1, 0], 2), "b": report([1, 0], 4)}, force=True)
    page = page_of(pair)
    assert page.rows[0][:3] == ["", "B", "in place"]
    assert [row[1] for row in page.rows[1:]] == ["2", "4"]
    assert page.caption.startswith("B:*|")


def test_summaries_follow_in_a_group_of_their_own() -> None:
    masks = {"a1": [1, 0, 0, 0], "a2": [1, 1, 0, 0], "b1": [1, 1, 1, 1], "b2": [1, 1, 1, 1]}
    reports_of = {name: report(keep, 2) for name, keep in masks.items()}
    both = compare(reports_of, replicates={"a": ["a1", "a2"], "b": ["b1", "b2"]})
    page = page_of(both)
    assert page.groups == [1, 5]
    names = [row[0] for row in page.rows[5:]]
    assert names[0] == "a, pooled"
    assert "b less a, mean" in names
    column = page.rows[0].index("in place")
    assert page.rows[5][column] == "0.500"
    assert page.rows[5][page.rows[0].index("logical saving")] == "0.625"
    assert any("A summary is undefined where" in note for note in page.notes)
    plain = compare(reports_of)
    assert page_of(plain).groups == [1]
    assert not any("summary" in note for note in page_of(plain).notes)
