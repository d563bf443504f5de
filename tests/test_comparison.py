"""Reports side by side, and every form in which they are written."""

from __future__ import annotations

import csv
import io
import json
import math
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
from kvreclaim._comparison_tables import FIGURES
from kvreclaim._render.tables import printable
from kvreclaim._summary_tables import shown
from kvreclaim.comparison import Comparison, compare, unique

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


def over_seeds(*policies: str, seeds: int = 4) -> Comparison:
    """Masks of half of 256 tokens, all in one place or all over, of several seeds."""
    rng = np.random.default_rng(4)
    reports, replicates = {}, {}
    for policy in policies:
        names = [f"{policy} s={seed}" for seed in range(seeds)]
        for name in names:
            keep = np.arange(256) >= 128 + rng.integers(-9, 9)
            placed = rng.permutation(keep) if policy == "scatter" else keep
            reports[name] = report(placed, 16)
        replicates[policy] = names
    return compare(reports, replicates=replicates)


def test_summaries_stand_below_the_reports() -> None:
    comparison = over_seeds("window", "scatter")
    text = str(comparison)
    plain = str(attrs.evolve(comparison, replicates=())).splitlines()
    lines = text.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert lines[: len(plain) - 2] == plain[:-2]
    assert lines[-2:-1] == plain[-2:-1]
    assert lines[-1] == plain[-1]
    titles = ["window", "scatter", "scatter less window"]
    assert [line for line in lines if line in titles] == titles
    window = text.partition("\nwindow\n")[2].partition("\n\n")[0]
    figure = comparison.summaries()["window"]["logical_saving"]
    assert figure.pooled is not None
    ends = (figure.pooled.mean, figure.pooled.low, figure.pooled.high)
    numbers = [f"{number:.3f}" for number in (*ends, figure.each.mean, figure.each.sd)]
    assert as_rows(window)["logical saving"] == [*numbers, "4", "t"]
    assert window.splitlines()[0].split() == ["95", "%", "each:"]
    assert window.splitlines()[1].split() == ["pooled", "from", "to", "mean", "sd", "n", "by"]
    alone = as_rows(str(compare({"": comparison.reports[0]})))
    labels = [label for label, cells in alone.items() if len(cells) == 1]
    assert list(as_rows(window))[2:] == labels
    paired = comparison.differences()["scatter"]["physical_reclaim"]
    assert paired.pooled is not None
    less = as_rows(text.partition("\nscatter less window\n")[2].partition("\n\n")[0])
    assert less["comes back in place"][0] == f"{paired.pooled.mean:.3f}"
    assert less.keys() >= {"logical saving", "comes back in place"}
    assert "packed" not in less


def test_a_legend_says_how_intervals_were_made() -> None:
    text = str(over_seeds("scatter"))
    for words in (
        "pooled: the ratio of sums",
        "\nCP: from counts",
        "\nsame: all alike",
        "\n-: no ",
    ):
        assert words in text
    assert "\nKG: " not in text
    assert "\n3/n: " not in text


def test_many_reports_have_their_summaries_below_too() -> None:
    text = str(over_seeds("window", "scatter", seeds=12))
    lines = text.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert lines[2].startswith("window s=0")
    assert "scatter less window" in lines


def test_large_numbers_fit() -> None:
    pool = BlockPool(16, entry_bytes=10**9)
    reports = {str(seed): report(np.arange(256) >= seed, pool) for seed in (64, 128)}
    lines = str(compare(reports, replicates={"window": list(reports)})).splitlines()
    assert max(map(len, lines[:-1])) <= 80
    row = next(line for line in lines[lines.index("window") :] if line.startswith("bytes held"))
    assert row.split()[-3:] == ["1.6e+11", "4.525e+10", "2"]


def test_other_sequences_have_no_paired_difference() -> None:
    reports = {str(n): report(np.ones(n, bool), 16) for n in (64, 65, 128, 129)}
    replicates = {"short": ["64", "65"], "long": ["128", "129"], "again": ["64", "65"]}
    comparison = compare(reports, replicates=replicates)
    assert list(comparison.differences()) == ["again"]
    written = json.loads(comparison.to_json())["summaries"]
    assert [each["less_first"] is None for each in written] == [True, True, False]


def test_json_has_the_summaries_and_the_differences() -> None:
    comparison = over_seeds("window", "scatter")
    first, second = json.loads(comparison.to_json())["summaries"]
    assert (first["source"], first["reports"]) == ("window", [f"window s={n}" for n in range(4)])
    assert sorted(first["metrics"]) == sorted(FIGURES)
    figure = comparison.summaries()["scatter"]["packed_reclaim"]
    assert second["metrics"]["packed_reclaim"] == figure.to_dict()
    paired = comparison.differences()["scatter"]["physical_reclaim"]
    assert second["less_first"]["physical_reclaim"] == paired.to_dict()
    assert "summaries" not in attrs.evolve(comparison, replicates=()).to_dict()
    assert Comparison.from_json(comparison.to_json()) == comparison
    lines = comparison.to_json_lines()
    assert Comparison.from_json(lines) == attrs.evolve(comparison, replicates=())


def test_csv_says_which_number_of_a_summary_a_row_is() -> None:
    comparison = over_seeds("window", "scatter")
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv(), newline="")))
    assert [row["summary"] for row in rows[:8]] == [""] * 8
    kinds = ["pooled", "low", "high", "method", "mean", "sd", "n"]
    assert [row["summary"] for row in rows[8:]] == kinds * 3
    found = {(row["source"], row["summary"]): row for row in rows}
    figure = comparison.summaries()["window"]["physical_reclaim"]
    assert figure.pooled is not None
    for kind, value in (
        ("pooled", figure.pooled.mean),
        ("low", figure.pooled.low),
        ("high", figure.pooled.high),
        ("mean", figure.each.mean),
        ("sd", figure.each.sd),
    ):
        assert float(found["window", kind]["physical_reclaim"]) == value
    assert found["window", "n"]["physical_reclaim"] == "4"
    assert found["window", "method"]["physical_reclaim"] == figure.pooled.method
    assert found["scatter", "mean"]["effective_tokens_per_block"] == ""
    assert found["scatter less window", "pooled"]["packed_reclaim"] == ""
    assert float(found["scatter less window", "mean"]["physical_reclaim"]) < 0
    assert found["window", "pooled"]["num_blocks"] == ""


def test_n_is_how_many_define_a_figure() -> None:
    masks = {"a": WINDOW, "b": np.arange(256) >= 64, "c": np.ones(256, bool)}
    reports = {name: report(keep, 16) for name, keep in masks.items()}
    comparison = compare(reports, replicates={"all": list(masks)})
    text = str(comparison).partition("\nall\n")[2]
    assert as_rows(text)["reclaim efficiency"][-2:] == ["2", "same"]
    assert as_rows(text)["logical saving"][-2:] == ["3", "t"]
    rows = csv.DictReader(io.StringIO(comparison.to_csv(), newline=""))
    (counted,) = (row for row in rows if row["summary"] == "n")
    assert (counted["reclaim_efficiency"], counted["logical_saving"]) == ("2", "3")


def test_confidence_is_that_asked_for() -> None:
    comparison = over_seeds("window", "scatter")
    for found in (comparison.summaries(0.8)["window"], comparison.differences(0.8)["scatter"]):
        assert found["physical_reclaim"].interval.confidence == 0.8
        assert found["physical_reclaim"].each.confidence == 0.8


def test_summaries_keep_the_columns_of_pools_that_differ() -> None:
    pools = {"small": BlockPool(16), "large": BlockPool(32)}
    reports = {
        f"{name} {seed}": report(np.arange(256) >= seed, pool)
        for name, pool in pools.items()
        for seed in (64, 128)
    }
    replicates = {name: [f"{name} 64", f"{name} 128"] for name in pools}
    comparison = compare(reports, force=True, replicates=replicates)
    lines = comparison.to_markdown().partition("\n\n")[0].splitlines()
    assert {line.count("|") for line in lines} == {11}
    assert lines[6].startswith("| small, pooled |  | 0.375 | 0.375 |")
    assert comparison.differences() == {}


def test_nothing_is_shown_as_less_than_nothing() -> None:
    assert [shown(number) for number in (-1e-9, 0.25, -2e6, math.nan, math.inf, 3, None)] == [
        "0.000",
        "0.250",
        "-2e+06",
        "nan",
        "inf",
        "3",
        "",
    ]


def test_tables_of_a_pool_without_a_compactor_say_that_packed_has_no_price() -> None:
    note = "Nothing is moved, since the pool has no compactor: packed has no price here."
    keep = [1, 0, 0, 1, 0, 0]
    none = report(keep, BlockPool(2, compactor="none"))
    moves = report(keep, BlockPool(2))
    for reports, said in (([none, none], 1), ([none, moves], 0), ([moves, moves], 0)):
        comparison = compare(dict(zip("ab", reports, strict=True)), force=True)
        forms = (str(comparison), comparison.to_rows(), comparison.to_markdown())
        for text in (*forms, comparison.to_latex(), comparison._repr_html_()):
            assert text.count(note) == said


def test_papers_and_pages_get_rows_of_a_summary() -> None:
    comparison = over_seeds("window", "scatter")
    table, *notes, signature = comparison.to_markdown().split("\n\n")
    lines = table.splitlines()
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {10}
    kinds = ["pooled", "95 % from", "95 % to", "mean", "sd"]
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines[10:]]
    titles = ("window", "scatter", "scatter less window")
    assert names == [f"{title}, {kind}" for title in titles for kind in kinds]
    figure = comparison.summaries()["window"]["logical_saving"]
    assert lines[13].split(" | ")[1] == f"{figure.each.mean:.3f}"
    halves = "fragmentation, memory waste"
    of_scatter = f"logical saving, compacted, packed, decode steps, {halves}"
    assert notes == [
        f"{title}, n = 4: 95 % intervals by linearised t ({of}){other}."
        for title, of, other in zip(
            titles,
            (f"logical saving, {halves}", of_scatter, "logical saving"),
            (
                "; Clopper-Pearson over blocks (in place)",
                "; Clopper-Pearson over blocks (in place)",
                "",
            ),
            strict=True,
        )
    ]
    assert signature.startswith("`B:16|")
    text = comparison.to_latex()
    for note in notes:
        assert f" {note.replace('%', chr(92) + '%')} " in text.partition(r"\begin{tabular}")[0]
        assert f"<p>{note}</p>" in comparison._repr_html_()
    assert r"window, 95 \% from & " in text
    assert "nan" not in text
    assert r" & -- & " in text.partition("scatter, 95")[2]


@pytest.mark.parametrize(
    ("replicates", "error", "words"),
    [
        ({"a": ["1", "x"]}, ValueError, "replicates must be lists .*; got 'x', which is none, for"),
        ({"a": []}, ValueError, "replicates must be lists of names .*; got none, for 'a'; write"),
        ({"a": ["1", "1"]}, ValueError, "replicates must be .*; got one twice, for 'a'; write"),
        ({"a": "12"}, TypeError, "replicates must be lists of names of reports by name; got dict"),
        ({"a": [1]}, TypeError, "replicates must be lists of names of reports by name; got dict"),
        ({1: ["1"]}, TypeError, "replicates must be lists of names of reports by name; got dict"),
        (
            ["1"],
            TypeError,
            r"replicates must be lists of names .*; got list \['1'\]; write such as",
        ),
        ({"a": ["1", "2"]}, ValueError, "censuses must be of one pool to be added"),
    ],
)
def test_replicates_that_are_none(
    replicates: dict[str, list[str]], error: type[Exception], words: str
) -> None:
    reports = {"1": report(WINDOW, 16), "2": report(WINDOW, 8)}
    with pytest.raises(error, match=words):
        compare(reports, force=True, replicates=replicates)


@pytest.mark.parametrize(
    "summaries", [3, [3], [{}], [{"source": "a"}], [{"source": "a", "reports": 3}]]
)
def test_damaged_summaries_are_refused(summaries: Any) -> None:  # noqa: ANN401  # whatever JSON holds
    written = over_seeds("window").to_dict() | {"summaries": summaries}
    with pytest.raises(ValueError, match="summaries must each have a source and reports; got othe"):
        Comparison.from_json(json.dumps(written))
    written["summaries"] = [{"source": "a", "reports": ["none"]}]
    with pytest.raises(ValueError, match="got 'none', which is none, for 'a'"):
        Comparison.from_json(json.dumps(written))


SOURCES = st.text(st.characters(codec="utf-8"), max_size=20)


def compared(masks: dict[str, Case], request: int | None = None) -> Comparison:
    reports = {
        name: report(case.keep, case.pool, **case.said, blocks_per_request=request)
        for name, case in masks.items()
    }
    return compare(reports, force=True, replicates={name: [name] for name in reports})


MASKS = st.dictionaries(SOURCES, cases(), min_size=1, max_size=2)


@given(MASKS, st.none() | st.integers(1, 9))
def test_json_is_read_back(masks: dict[str, Case], request: int | None) -> None:
    comparison = compared(masks, request)
    text = comparison.to_json()
    assert json.loads(text) == comparison.to_dict()
    assert Comparison.from_json(text) == comparison
    lines = Comparison.from_json(comparison.to_json_lines())
    assert lines == attrs.evolve(comparison, replicates=())
    assert Comparison.from_json(comparison.reports[0].to_json()).reports == comparison.reports[:1]


@settings(max_examples=100)  # the validator takes longer than all the rest
@given(MASKS, st.none() | st.integers(1, 9))
def test_json_follows_its_schema(masks: dict[str, Case], request: int | None) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    written = json.loads(compared(masks, request).to_json())
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(written)
    assert written["summaries"]
    written = over_seeds("window", "scatter").to_dict()
    jsonschema.Draft202012Validator(SCHEMA).validate(written)
    del written["summaries"][0]["metrics"]["packed_reclaim"]["each"]["low"]
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(written)


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
