"""Report and signature."""

from __future__ import annotations

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
from kvreclaim import BlockPool, Census, Report, Signature, report, take_census

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


def test_sized_pool_with_bytes_and_requests() -> None:
    pool = BlockPool(4, total_blocks=10, reserved_blocks=1, watermark_blocks=1, entry_bytes=512)
    figures = report([1, 1, 1, 1, 0, 0, 0, 0, 0], pool, blocks_per_request=3)
    assert figures.admission_count == 2  # 9 usable, 1 held, 1 watermark: 7 for threes
    assert figures.pool_usage == kvreclaim.PoolUsage(before=3 / 9, after=1 / 9)
    assert (figures.held_bytes, figures.reclaimed_bytes) == (2048, 4096)
    text = str(figures)
    for shown in ("2  of 3 blocks each", "0.333  before, 0.111 after", "2048  held, 4096 recl"):
        assert shown in text


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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "B:16",
        "B:sixteen|share:hl|frees:any|tail:closed|move:evacuate|pool:full|reserved:0|watermark:0|"
        "entry:-|rows:1|v:0",
        "share:hl|B:16|frees:any|tail:closed|move:evacuate|pool:full|reserved:0|watermark:0|"
        "entry:-|rows:1|v:0",
        "B:16|share:lh|frees:any|tail:closed|move:evacuate|pool:full|reserved:0|watermark:0|"
        "entry:-|rows:1|v:0",
        "B:16|share:hl|frees:back|tail:closed|move:evacuate|pool:full|reserved:0|watermark:0|"
        "entry:-|rows:1|v:0",
    ],
)
def test_other_lines_are_no_signature(text: str) -> None:
    with pytest.raises(ValueError, match="text must be a signature"):
        Signature.parse(text)
