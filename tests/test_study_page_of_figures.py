"""The page of figures: each number in it is the table's, as rounded there, and none is left out."""

from __future__ import annotations

import csv
import re
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "article-figure-by-figure.md").read_text("utf-8")
HEAD = ["figure", "article", "ours", "95 %", "n", "closed form", "verdict", "row"]


class Line(NamedTuple):
    """A row of one of the page's tables, under its heading."""

    heading: str
    cells: dict[str, str]

    @property
    def key(self) -> str:
        return self.cells["row"].strip("`")


def lines_of_page() -> list[Line]:
    lines, heading, head = [], "", False
    for text in PAGE.splitlines():
        cells = [cell.strip() for cell in text.strip("|").split(" | ")]
        if text.startswith("#"):
            heading = text.lstrip("# ")
        elif not text.startswith("|"):
            head = False
        elif not head:
            assert cells == HEAD
            head = True
        elif not text.startswith("|---"):
            assert len(cells) == len(HEAD), text
            lines.append(Line(heading, dict(zip(HEAD, cells, strict=True))))
    return lines


def table() -> dict[str, dict[str, str]]:
    with (DOCS / "study" / "results_summary.csv").open(encoding="utf-8", newline="") as file:
        return {row["key"]: row for row in csv.DictReader(file)}


ROWS = table()
LINES = lines_of_page()


def rounds_to(value: str, printed: str) -> bool:
    """Return whether a number of the table is what the page prints of it, to its last digit."""
    number = Decimal(printed)
    step = Decimal(1).scaleb(int(number.as_tuple().exponent))
    if number == 0:  # which is printed of nothing else
        return Decimal(value) == 0
    return abs(Decimal(value) - number) <= step / 2


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line.key))
def test_a_line_says_what_the_table_says(line: Line) -> None:
    row, cells = ROWS[line.key], line.cells
    assert line.heading == row["section"]
    assert cells["article"] == (row["article"] or "-")
    assert cells["n"] == row["n"]
    assert cells["verdict"] == row["verdict"].partition(";")[0]
    mean, _, sd = cells["ours"].partition(" ± ")
    assert rounds_to(row["mean"], mean)
    if row["interval"] == "exact":
        assert (sd, cells["95 %"]) == ("", "exact")
    elif row["interval"].startswith("none"):
        assert cells["95 %"] == "-"
        assert (sd, row["low"], row["high"]) == (row["sd"], "", "")
    else:
        assert rounds_to(row["sd"], sd)
        low, _, high = cells["95 %"].partition(" to ")
        assert rounds_to(row["low"], low)
        assert rounds_to(row["high"], high)
    if row["closed_form"]:
        closed, _, limit = cells["closed form"].partition(" ")
        assert rounds_to(row["closed_form"], closed)
        assert limit == ("(limit)" if row["law"].startswith("limit of long sequences") else "")
    else:
        assert cells["closed form"] == "-"


def test_every_figure_of_the_article_stands_in_the_page() -> None:
    printed = {key for key, row in ROWS.items() if row["article"]}
    assert len(printed) > 30
    assert printed <= {line.key for line in LINES}


def test_every_section_has_lines_and_no_line_stands_twice() -> None:
    keys = [line.key for line in LINES]
    assert len(set(keys)) == len(keys)
    assert {line.heading for line in LINES} == {row["section"] for row in ROWS.values()}


def test_prose_has_no_measured_number() -> None:
    # Those stand in tables, where they are compared with what was measured.
    prose = "\n".join(text for text in PAGE.splitlines() if not text.startswith("|"))
    assert re.findall(r"\d+\.\d+|\d+ ?%", prose) == ["95 %"]  # the name of a column


def test_the_article_quotes_what_each_distribution_costs() -> None:
    text = (DOCS / "the-article.md").read_text("utf-8")
    _, _, quoted = text.partition("| importance | reclaimability-aware | blend of scores |")
    lines = [row.strip("|").split("|") for row in quoted.strip().splitlines()[1:6]]
    names = {key.split("/")[1] for key in ROWS if key.startswith("strategies/")}
    assert {line[0].strip() for line in lines} == names
    for name, *printed in lines:
        for strategy, number in zip(
            ("reclaimability-aware", "blend-of-scores"), printed, strict=True
        ):
            mean = Decimal(ROWS[f"strategies/{name.strip()}/{strategy}/excess"]["mean"])
            assert rounds_to(str(100 * mean), number.strip())
    moved = Decimal(ROWS["methods/StreamingLLM/B=16/moved"]["mean"])
    assert "that is 0.7 % on average" in text
    assert rounds_to(str(100 * moved), "0.7")


def test_every_first_clause_of_a_verdict_is_explained() -> None:
    explained = re.findall(r"^- \*(.+?)\*", PAGE, re.MULTILINE)
    starts = [
        "reached",
        "agrees",
        "differs",
        "is the closed form",
        "closed form",
        "beyond the",
        "limit",
    ]
    assert all(any(one.startswith(start) for one in explained) for start in (*starts, "layout"))
    own = {
        "what papers report",
        "a share of all importance",
        "the least loss at so many free blocks",
    }
    others = set()
    for row in ROWS.values():
        clause = row["verdict"].partition(";")[0].partition(":")[0]
        if not clause.startswith((*starts, "layout ")) and clause not in own:
            others.add(re.sub(r"[\d.]+", "#", clause))
    assert others == {
        "below #",
        "loss beyond the least of its budget and free blocks, as a share of that",
        "the largest share of a loss that is not proved, of # draws",
        "# moves would buy one more block",
        "# is where # blocks are free on average, (r / M)^(# / B)",
    }
    for interval in {row["interval"].partition(",")[0] for row in ROWS.values()}:
        assert f"`{interval}`" in PAGE, interval
    assert "`..., of blocks`" in PAGE


def test_numbers_are_compared_to_their_last_digit() -> None:
    assert rounds_to("0.47152", "0.4715")
    assert rounds_to("1.52588e-05", "1.526e-05")
    assert rounds_to("0.0", "0")
    assert not rounds_to("0.47152", "0.4716")
    assert not rounds_to("1.3e-05", "0")
    assert not rounds_to("0.4", "0")
