"""Report and signature."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case, cases, pools

import kvreclaim
from kvreclaim import BlockPool, Census, Report, report, take_census
from kvreclaim.signature import Signature

SINGLE_FIGURES = (
    "logical_saving",
    "physical_reclaim",
    "compacted_reclaim",
    "packed_reclaim",
    "reclaim_efficiency",
    "fragmentation",
    "memory_waste",
    "capacity_gain",
    "moved_tokens_per_block",
    "slots_per_move",
    "effective_tokens_per_block",
    "effective_rows",
)


@given(cases())
def test_each_figure_is_what_the_function_of_its_name_returns(case: Case) -> None:
    figures = report(case.keep, case.pool, **case.said)
    census = take_census(case.keep, case.pool, **case.said)
    assert figures.census == census
    for name in SINGLE_FIGURES:
        function = getattr(kvreclaim, name)
        assert str(getattr(figures, name)) == str(function(census)), name
    assert figures.savings == kvreclaim.savings_breakdown(census)
    assert str(figures.decode_steps) == str(kvreclaim.compaction_cost(census).decode_steps)


@given(cases())
def test_json_has_built_in_numbers_and_null_for_undefined(case: Case) -> None:
    figures = report(case.keep, case.pool, **case.said)
    written: dict[str, Any] = json.loads(figures.to_json())
    assert written == figures.to_dict()
    for name, value in written["metrics"].items():
        if name in SINGLE_FIGURES:
            number = getattr(figures, name)
            assert value == (number if math.isfinite(number) else None)
    names = {field.name for field in attrs.fields(Census)} - {"pool"}
    assert names < set(written["counts"])
    assert written["counts"]["num_blocks"] == figures.census.num_blocks


@given(cases(), st.none() | st.integers(1, 9), st.none() | st.integers(1, 9), st.booleans())
def test_a_report_is_read_back_from_its_json(
    case: Case, request: int | None, entry_bytes: int | None, sized: bool
) -> None:
    total = take_census(case.keep, case.pool, **case.said).num_blocks + 3 if sized else None
    pool = case.pool.replace(entry_bytes=entry_bytes, total_blocks=total, reserved_blocks=2)
    figures = report(case.keep, pool, **case.said, blocks_per_request=request)
    again = Report.from_json(figures.to_json())
    assert again == figures
    assert hash(again) == hash(figures)
    assert again.to_json() == figures.to_json()
    assert str(again) == str(figures)


def test_a_report_of_another_version_keeps_its_signature() -> None:
    fields = report([1, 0, 0, 0], 2).to_dict()
    fields["signature"] = fields["signature"].rpartition(":")[0] + ":0.0.9"
    assert Report.from_dict(fields).version == "0.0.9"
    assert Report.from_dict(fields).to_dict() == fields


WRITTEN = report([1, 0, 0, 0, 1], BlockPool(2, entry_bytes=4), blocks_per_request=1).to_dict()


@pytest.mark.parametrize(
    ("part", "changes", "words"),
    [
        ("", {"signature": None}, "nothing named 'signature'"),
        ("", {"signature": 3}, "fields must be what Report.to_dict returned"),
        ("", {"signature": "B:2"}, "text must be a signature"),
        ("", {"counts": None}, "nothing named 'counts'"),
        ("", {"counts": [1]}, "fields must be"),
        ("", {"metrics": 1}, "fields must be"),
        ("", {"absent_axes": "lh"}, "absent_axes are 'lh'"),
        ("", {"absent_axes": 1}, "absent_axes are 1"),
        ("", {"blocks_per_request": 0}, "at least 1"),
        ("", {"blocks_per_request": True}, "boolean True"),
        ("", {"blocks_per_request": 2}, "admission_count must be 0, .* got 1"),
        ("metrics", {"physical_reclaim": 0.9}, "physical_reclaim must be 0.333.* got 0.9"),
        ("metrics", {"held_bytes": None}, None),
        ("counts", {"num_blocks": 4}, "num_blocks must be 3, .* got 4"),
        ("counts", {"num_tokens": 4}, "counts that add up"),
        ("counts", {"num_tokens": -4}, "at least 0"),
        ("counts", {"num_tokens": 4.5}, "integer"),
        ("counts", {"counts": 3}, "fields must be"),
        ("", {"counts": np.zeros(3)}, "fields must be"),
        ("", {"metrics": [1]}, "fields must be"),
        ("counts", {"rows_per_table": 10**400}, "counts that add up"),
        ("counts", {"movable": None}, "nothing named 'movable'"),
    ],
)
def test_other_dicts_are_no_report(part: str, changes: dict[str, Any], words: str | None) -> None:
    fields = copy.deepcopy(WRITTEN)
    changed = fields[part] if part else fields
    for name, value in changes.items():
        if value is None:
            del changed[name]
        else:
            changed[name] = value
    if words is None:
        assert Report.from_dict(fields).to_dict() == WRITTEN
    else:
        with pytest.raises(ValueError, match=words):
            Report.from_dict(fields)


def test_a_signature_of_other_rows_is_refused() -> None:
    fields = WRITTEN | {"signature": WRITTEN["signature"].replace("rows:1", "rows:7")}
    with pytest.raises(ValueError, match=r"rows must be 1, .* got 7"):
        Report.from_dict(fields)


@pytest.mark.parametrize("text", ["", "{", "NaN", '{"a": Infinity}', "[" * 100_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="text must be JSON"):
        Report.from_json(text)


@pytest.mark.parametrize("text", ["[]", "3", '"text"', "null", "{}"])
def test_json_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"fields must be what Report\.to_dict returned"):
        Report.from_json(text)


def test_sized_pool_with_bytes_and_requests() -> None:
    pool = BlockPool(4, total_blocks=10, reserved_blocks=1, watermark_blocks=1, entry_bytes=512)
    figures = report([1, 1, 1, 1, 0, 0, 0, 0, 0], pool, blocks_per_request=3)
    assert figures.admission_count == 2  # 9 usable, 1 held, 1 watermark: 7 for threes
    assert figures.pool_usage == kvreclaim.PoolUsage(before=3 / 9, after=1 / 9)
    assert (figures.held_bytes, figures.reclaimed_bytes) == (2048, 4096)
    text = str(figures)
    for shown in (
        "2  of 3 blocks each, 1 without eviction",
        "0.333  before, 0.111 after",
        "2048  held, 4096 recl",
    ):
        assert shown in text


def test_pinned_blocks_are_shown_where_there_are_any() -> None:
    figures = report(take_census([0, 0, 0, 0, 1, 1], 2, pinned=2))
    assert figures.figures()["pinned"] == 1 / 3
    assert "  in pinned blocks            0.333" in str(figures)
    assert Report.from_json(figures.to_json()) == figures
    assert report([1, 0], 2).figures()["pinned"] == 0


def test_pool_too_small_for_the_masks_is_refused() -> None:
    with pytest.raises(ValueError, match="total_blocks must be at least the 3 blocks"):
        report(np.ones(9, bool), BlockPool(4, total_blocks=2))


def test_text_fits_80_columns_and_shows_the_three_figures_first() -> None:
    lines = str(report(np.zeros((30, 3, 2048), bool), 16, axes="lht")).splitlines()
    *table, signature = lines
    assert max(map(len, table)) <= 80
    shown = [line.split()[0] for line in lines if line.strip()]
    assert shown.index("comes") < shown.index("after") < shown.index("packed")
    assert shown.index("packed") < shown.index("reclaim")
    assert Signature.parse(signature).rows == 90


@pytest.mark.parametrize(
    ("pool", "axes", "absent"),
    [
        (BlockPool(2), "lht", ""),
        (BlockPool(2), "ht", "l"),
        (BlockPool(2, shared_axes=""), "ht", ""),
    ],
)
def test_absent_shared_letters_are_named(pool: BlockPool, axes: str, absent: str) -> None:
    keep = np.ones((1,) * (len(axes) - 1) + (4,), bool)
    figures = report(keep, pool, axes=axes)
    assert figures.absent_axes == absent
    assert (f"no axis {absent!r}" in str(figures)) == bool(absent)


def test_census_does_not_tell_which_letters_were_absent() -> None:
    census = take_census([1, 0], 2)
    assert report(census).absent_axes is None
    assert report([1, 0], 2).absent_axes == "hl"


def test_report_is_frozen_and_comparable() -> None:
    figures = report([1, 0, 0, 0], 2)
    assert figures == report([1, 0, 0, 0], 2)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        figures.fragmentation = 0.0  # type: ignore[misc]
    assert isinstance(figures, Report)


def test_signature_is_spelled_in_a_fixed_order() -> None:
    keep = np.zeros((30, 3, 16), bool)
    assert report(keep, 16, axes="lht").signature == (
        "B:16|share:hl|frees:any|tail:closed|move:evacuate|pool:full|reserved:0|watermark:0|"
        f"entry:-|rows:90|v:{kvreclaim.__version__}"
    )
    pool = BlockPool(
        32,
        shared_axes="",
        frees="back",
        open_tail=True,
        total_blocks=9,
        reserved_blocks=1,
        watermark_blocks=2,
        entry_bytes=512,
    )
    assert str(Signature(pool, 1, "0.1.0")) == (
        "B:32|share:none|frees:back|tail:open|move:fill|pool:9|reserved:1|watermark:2|"
        "entry:512|rows:1|v:0.1.0"
    )


@given(pools(), st.integers(0, 10_000), st.from_regex(r"[0-9a-z.+]{1,12}", fullmatch=True))
def test_signature_parses_to_itself(pool: BlockPool, rows: int, version: str) -> None:
    signature = Signature(pool, rows, version)
    assert Signature.parse(str(signature)) == signature
    assert str(Signature.parse(f"  {signature}\n")) == str(signature)


SPELLED = str(Signature(BlockPool(16), 1, "0"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "B:16",
        SPELLED.replace("B:16", "B:sixteen"),
        SPELLED.replace("B:16", "B:0x10"),
        SPELLED.replace("B:16", "B:65536"),
        SPELLED.replace("B:16", "B:" + "9" * 5000),
        SPELLED.replace("B:16|share:hl", "share:hl|B:16"),
        SPELLED.replace("share:hl", "share:lh"),
        SPELLED.replace("frees:any", "frees:back"),
        SPELLED.replace("tail:closed", "tail:ajar"),
        SPELLED.replace("rows:1", "rows:-1"),
        SPELLED.replace("rows:1|", ""),
        SPELLED + "|rows:1",
        SPELLED + "\x1b]0;title\x07",
        SPELLED + "\u202e",
        SPELLED.replace("v:0", "v:"),
    ],
)
def test_other_lines_are_no_signature(text: str) -> None:
    with pytest.raises(ValueError, match="text must be a signature"):
        Signature.parse(text)


@given(pools(), st.integers(0, 10_000))
def test_a_signature_explains_each_of_its_fields(pool: BlockPool, rows: int) -> None:
    signature = Signature(pool, rows, "0.1.0")
    lines = signature.explain().splitlines()
    assert "|".join(line.split()[0] for line in lines) == str(signature)
    assert all(len(line.split()) > 2 for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_report_of_nothing_has_a_signature_of_no_rows() -> None:
    nothing = report(Census.empty(16))
    assert Report.from_json(nothing.to_json()) == nothing
    lines = Signature.parse(nothing.signature).explain().splitlines()
    assert lines[-2].split() == ["rows:0", "no", "block", "table", "was", "counted"]
    alone = Signature(BlockPool(16), 1, "0").explain().splitlines()
    assert alone[-2].endswith("rows (of one layer and kv head) in a block table: 1")


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (BlockPool(16), ["all rows of layers, kv heads", "comes back like others", "slot by slot"]),
        (BlockPool(16, shared_axes=""), ["every row has a block table of its own"]),
        (BlockPool(16, shared_axes="hs"), ["all rows of axis s, kv heads"]),
        (BlockPool(16, frees="back", open_tail=True), ["back of a table", "never comes back"]),
        (BlockPool(16, total_blocks=9, entry_bytes=512), ["has 9 blocks", "take 512 bytes"]),
    ],
)
def test_explanations_say_what_the_pool_does(pool: BlockPool, words: list[str]) -> None:
    text = Signature(pool, 3, "0.1.0").explain()
    for word in words:
        assert word in text
