"""Reports side by side, and every form in which they are written."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Case, cases

import kvreclaim
from kvreclaim import BlockPool, Report, report
from kvreclaim._render.tables import printable
from kvreclaim.comparison import FIGURES, Comparison, compare, unique

SCHEMA: dict[str, Any] = json.loads(
    (Path(kvreclaim.__file__).parent / "data" / "report.schema.json").read_text()
)
SCATTER = np.random.default_rng(0).random(256) < 0.5
WINDOW = np.arange(256) >= 128


def pair(pool: BlockPool, other: BlockPool) -> dict[str, Report]:
    return {"mine": report(SCATTER, pool), "theirs": report(WINDOW, other)}


def as_rows(table: str) -> dict[str, list[str]]:
    """Return the cells of a text table by the name of their row, of a terminal's columns."""
    rows = (re.split(r"\s{2,}", line.strip()) for line in table.splitlines() if line.strip())
    return {name: cells for name, *cells in rows}


def test_a_column_for_each_report_where_they_fit() -> None:
    text = str(compare(pair(BlockPool(16), BlockPool(16))))
    rows = as_rows(text)
    assert text.splitlines()[0].split() == ["mine", "theirs"]
    assert rows["comes back in place"] == ["0.000", "0.500"]
    assert rows["packed"] == ["0.500", "0.500"]
    assert rows["moved tokens per block"][1] == "nan"
    assert rows["effective tokens per block"] == ["inf", "1.000"]
    assert "requests admitted" not in rows
    assert text.splitlines()[-1] == report(SCATTER, 16).signature
    assert max(map(len, text.splitlines()[:-1])) <= 80


def test_a_row_for_each_report_where_they_are_many() -> None:
    comparison = compare({f"run/{number}": report(WINDOW, 16) for number in range(20)})
    text = str(comparison)
    assert text == comparison.to_rows()
    lines = text.splitlines()
    assert lines[0] == "run/"
    assert max(map(len, lines[:-1])) <= 80
    rows = as_rows("\n".join(lines[3:23]))
    assert list(rows) == [str(number) for number in range(20)]
    assert rows["7"][:4] == ["0.500", "0.500", "0.500", "0.500"]


def test_long_names_stand_above_their_rows() -> None:
    names = ["a" * 40 + letter for letter in "xy"]
    lines = compare(dict.fromkeys(names, report(WINDOW, 16))).to_rows().splitlines()
    above = lines.index(names[0])
    assert lines[above + 1].split()[:2] == ["0.500", "0.500"]
    assert lines[above + 2] == names[1]
    assert max(map(len, lines[:-1])) <= 80


def test_optional_figures_are_shown_where_any_report_has_them() -> None:
    pool = BlockPool(16, total_blocks=40, entry_bytes=512)
    figures = report(WINDOW, pool, blocks_per_request=4)
    rows = as_rows(str(compare({"a": figures})))
    assert rows["requests admitted"] == ["8"]
    assert rows["pool usage before"] == ["0.400"]
    assert rows["bytes held"] == [str(8 * 16 * 512)]


DIFFERENT = [
    (BlockPool(32), "B:16 for 'mine' and B:32 for 'theirs'"),
    (BlockPool(16, shared_axes=""), "share:hl for 'mine' and share:none for 'theirs'"),
    (BlockPool(16, frees="none", compactor="none"), r"frees:any\|move:evacuate for 'mine' and fre"),
    (BlockPool(16, open_tail=True), "tail:closed for 'mine' and tail:open for"),
    (BlockPool(16, compactor="pack"), "move:evacuate for 'mine' and move:pack for 'theirs'"),
    (BlockPool(16, total_blocks=99), "pool:full for 'mine' and pool:99 for 'theirs'"),
    (BlockPool(16, reserved_blocks=1), "reserved:0 for 'mine' and reserved:1 for 'theirs'"),
    (BlockPool(16, watermark_blocks=1), "watermark:0 for 'mine' and watermark:1 for 'theirs'"),
]


@pytest.mark.parametrize(("other", "words"), DIFFERENT)
def test_different_pools_are_refused_unless_forced(other: BlockPool, words: str) -> None:
    reports = pair(BlockPool(16), other)
    with pytest.raises(ValueError, match=words):
        compare(reports)
    comparison = compare(reports, force=True)
    signature = str(comparison).splitlines()[-1]
    for word in words.partition(" for ")[0].replace("\\", "").split("|"):
        name, _, value = word.partition(":")
        assert f"{name}:*" in signature
        assert as_rows(str(comparison))[name][0] == value


def test_different_rows_are_refused() -> None:
    reports = {
        "one": report(np.ones((1, 16), bool), 16, axes="ht"),
        "three": report(np.ones((3, 16), bool), 16, axes="ht"),
    }
    with pytest.raises(ValueError, match="rows:1 for 'one' and rows:3 for 'three'"):
        compare(reports)


def test_requests_of_different_sizes_are_refused() -> None:
    reports = {str(size): report(WINDOW, 16, blocks_per_request=size) for size in (2, 3)}
    with pytest.raises(ValueError, match="request:2 for '2' and request:3 for '3'"):
        compare(reports)
    assert as_rows(str(compare(reports, force=True)))["request"] == ["2", "3"]
    compare({"one": reports["2"], "none": report(WINDOW, 16)})


def test_bytes_and_version_may_differ() -> None:
    older = attrs.evolve(report(WINDOW, BlockPool(16, entry_bytes=512)), version="0.0.9")
    comparison = compare({"older": older, "newer": report(SCATTER, 16)})
    assert "|entry:*|rows:1|v:*" in str(comparison).splitlines()[-1]
    assert as_rows(str(comparison))["v"] == ["0.0.9", kvreclaim.__version__]


@pytest.mark.parametrize(
    ("reports", "error"),
    [
        ({}, ValueError),
        ([], TypeError),
        ({"a": 1}, TypeError),
        ({1: report(WINDOW, 16)}, TypeError),
        (report(WINDOW, 16), TypeError),
    ],
)
def test_other_things_are_not_compared(reports: dict[str, Report], error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^reports must .*; got .*; write "):
        compare(reports)


def test_absent_letters_are_named() -> None:
    reports = {
        "flat": report(WINDOW, 16),
        "heads": report(WINDOW.reshape(1, -1), 16, axes="ht"),
        "census": report(kvreclaim.take_census(WINDOW, 16)),
    }
    text = str(compare(reports))
    assert "over 'hl', no axis of flat: counted as 1 row" in text
    assert "over 'l', no axis of heads: counted" in text
    assert "no axis of every mask" in str(compare({"flat": reports["flat"]}))


SOURCES = st.text(st.characters(codec="utf-8"), max_size=20)


def compared(masks: dict[str, Case], request: int | None = None) -> Comparison:
    reports = {
        name: report(case.keep, case.pool, **case.said, blocks_per_request=request)
        for name, case in masks.items()
    }
    return compare(reports, force=True)


MASKS = st.dictionaries(SOURCES, cases(), min_size=1, max_size=2)


@given(MASKS, st.none() | st.integers(1, 9))
def test_json_is_read_back(masks: dict[str, Case], request: int | None) -> None:
    comparison = compared(masks, request)
    text = comparison.to_json()
    assert json.loads(text) == comparison.to_dict()
    assert Comparison.from_json(text) == comparison
    assert Comparison.from_json(comparison.to_json_lines()) == comparison
    assert Comparison.from_json(comparison.reports[0].to_json()).reports == comparison.reports[:1]


@settings(max_examples=100)  # the validator takes longer than all the rest
@given(MASKS, st.none() | st.integers(1, 9))
def test_json_follows_its_schema(masks: dict[str, Case], request: int | None) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    written = json.loads(compared(masks, request).to_json())
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(written)


def test_the_schema_names_every_figure() -> None:
    parts = SCHEMA["$defs"]["report"]["properties"]
    written = report(WINDOW, 16).to_dict()
    assert set(parts) == set(written) | {"source"}
    assert list(parts["metrics"]["properties"]) == list(written["metrics"])
    assert parts["metrics"]["required"] == list(written["metrics"])
    assert sorted(FIGURES) == sorted(written["metrics"])
    assert set(parts["counts"]["required"]) <= set(written["counts"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "text must be JSON"),
        ("{", "text must be JSON"),
        ("[]", "text must be a JSON object of reports"),
        ('{"reports": 3}', "text must be a JSON object of reports"),
        ('{"reports": [3]}', "text must be a JSON object of reports"),
        ('{"reports": []}', "text must hold at least one report"),
        ('{"schema_version": 2, "reports": []}', "schema_version must be 1; got 2"),
        ('{"axes": "t", "kept": [[1]]}', "report 0: fields must be what Report.to_dict returned"),
        ("{}\n{}", "report 0: fields must be"),
        ("{}\n[", "text must be JSON"),
    ],
)
def test_other_text_holds_no_reports(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Comparison.from_json(text)


@given(st.lists(st.sampled_from(["a", "a (2)", "b", "a (2) (2)"]), max_size=12))
def test_names_are_made_unique(names: list[str]) -> None:
    made = unique(names)
    assert len(made) == len(set(made)) == len(names)
    if len(set(names)) == len(names):
        assert list(made) == names


def test_the_second_of_a_name_is_numbered() -> None:
    assert unique(["a", "b", "a", "a"]) == ("a", "b", "a (2)", "a (3)")


HOSTILE = [
    "a|b",
    "50 % & $x_1^2 {~} #\\",
    "[x]",
    "* <i>?`'\"",
    "two\nlines, and a comma",
    "é\x1b[1m",
]


def test_csv_is_read_back_in_full_precision() -> None:
    comparison = compare({name: report(SCATTER, BlockPool(16, entry_bytes=3)) for name in HOSTILE})
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv(), newline="")))
    assert [row["source"] for row in rows] == HOSTILE
    written = comparison.reports[0].to_dict()
    for name, value in written["metrics"].items():
        assert rows[0][name] == ("" if value is None else repr(value))
    assert int(rows[0]["num_live_tokens"]) == int(SCATTER.sum())
    assert rows[0]["signature"] == written["signature"]


def test_markdown_keeps_its_columns() -> None:
    text = compare({name: report(SCATTER, 16) for name in HOSTILE}).to_markdown()
    lines = text.splitlines()
    table = lines[: len(HOSTILE) + 2]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in table]
    assert {len(row) for row in cells} == {9}
    assert cells[0][2].strip() == "in place"
    assert cells[0][7].strip() == "fragmentation"
    for name, row in zip(HOSTILE, cells[2:], strict=True):
        assert re.sub(r"\\(\W|_)", r"\1", row[0].strip()) == printable(name)
        assert row[2].strip() == "0.000"
    assert lines[-2:] == ["", f"`{report(SCATTER, 16).signature}`"]


def test_latex_keeps_its_columns_and_escapes() -> None:
    text = compare({name: report(SCATTER, 16) for name in HOSTILE}).to_latex()
    assert r"\texttt{B:16|\allowbreak{}share:hl|\allowbreak{}" in text
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().splitlines()
    assert len(body) == len(HOSTILE)
    for line in body:
        assert line.endswith(r" \\")
        assert len(re.findall(r"(?<!\\)&", line)) == 8
        assert line.lstrip()[0] not in "[*"
    text = text.replace(r"|\allowbreak{}", "")
    bare = re.sub(r"\\[\\{}%&$#_]", "", text.partition("\n")[2])
    assert bare.count("{") == bare.count("}")
    assert not set(bare) & set("%#~^<>|")
    assert r"50 \% \& \$x\_1\textasciicircum{}2 \{\textasciitilde{}\} \#" in text
    assert "nan" not in text
    assert "{lrrrrrrrr}" in text


def test_a_paper_shows_a_dash_for_what_is_undefined() -> None:
    text = compare({"a": report(np.ones(16, bool), 16)}).to_latex()
    assert "0.000 & -- & 0.000" in text


def test_terminals_are_not_written_to_by_names() -> None:
    comparison = compare(dict.fromkeys(HOSTILE, report(SCATTER, 16)))
    for text in (str(comparison), comparison.to_markdown(), comparison.to_latex()):
        assert text.replace("\n", "").isprintable()
    assert r"é\x1b[1m" in str(comparison)
