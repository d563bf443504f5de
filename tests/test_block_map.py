"""The block map in text: what it draws is what the census counts."""

from __future__ import annotations

from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import SMALL_BLOCKS, Case, cases, pools

from kvreclaim import BlockPool, occupancy, take_census
from kvreclaim._render.block_map import ASCII_MARKS, BLOCK_MARKS, Marks, block_map


def parts(text: str) -> list[list[str]]:
    """Return the lines of head, map and legend."""
    return [part.splitlines() for part in text.split("\n\n")]


def pictures(text: str) -> list[str]:
    """Return the lines of the map without what stands before them."""
    lines = (line.rpartition(" ")[2] for line in parts(text)[1])
    return [line for line in lines if line not in ("tokens", "tables")]


@given(cases(pools(SMALL_BLOCKS)), st.sampled_from([BLOCK_MARKS, ASCII_MARKS]))
def test_every_slot_is_drawn_once(case: Case, marks: Marks) -> None:
    census = take_census(case.keep, case.pool, **case.said)
    text = block_map(case.keep, case.pool, **case.said, most_lines=10_000, marks=marks)
    expected = {
        marks.live: census.num_live_tokens,
        marks.stranded: census.num_stranded_tokens,
        marks.free: census.num_freed_blocks * case.pool.block_size,
        marks.slack: census.num_slack_slots,
    }
    drawn = Counter("".join(pictures(text)).replace("|", ""))
    assert drawn == {mark: count for mark, count in expected.items() if count}
    assert sum(expected.values()) == census.num_blocks * case.pool.block_size
    legend = {line.split()[0]: int(line.split()[2]) for line in parts(text)[2]}
    assert legend == expected


@given(cases(), st.integers(1, 12))
def test_a_map_fits(case: Case, most_lines: int) -> None:
    census = take_census(case.keep, case.pool, **case.said)
    text = block_map(case.keep, case.pool, **case.said, most_lines=most_lines)
    assert max(map(len, text.splitlines())) <= 80
    drawn = parts(text)[1]
    assert len(drawn) <= max(most_lines, 1) + (census.num_tables > most_lines)
    assert ("more tables do not fit" in drawn[-1]) == (census.num_tables > most_lines)


@given(cases(pools(SMALL_BLOCKS)))
def test_a_map_of_blocks_shows_which_are_free(case: Case) -> None:
    census = take_census(case.keep, case.pool, **case.said)
    wide = case.pool.replace(block_size=case.pool.block_size + 100)  # no line holds such a block
    census = take_census(case.keep, wide, **case.said)
    text = block_map(case.keep, wide, **case.said, most_lines=10_000, marks=ASCII_MARKS)
    drawn = "".join(pictures(text))
    assert len(drawn) == census.num_blocks
    assert drawn.count(".") == census.num_freed_blocks
    assert drawn.count("x") == census.counts[0] - census.num_freed_blocks
    if census.num_tables and census.num_blocks:
        assert "A character is a block:" in text


@example(  # a table that ends in the first of several pieces
    Case(
        np.arange(80).reshape(2, 40) % 40 < 2,
        BlockPool(4, shared_axes=""),
        {"axes": "bt", "lengths": [3, 40]},
    ),
    24,
)
@given(cases(pools(SMALL_BLOCKS)), st.sampled_from([1, 24, 64]))
def test_a_map_read_in_pieces_is_the_same(case: Case, piece: int) -> None:
    whole = block_map(case.keep, case.pool, **case.said)
    with mock.patch.object(occupancy, "PIECE", piece):
        assert block_map(case.keep, case.pool, **case.said) == whole


def test_slots_of_one_table() -> None:
    text = block_map([1, 1, 0, 0, 0, 0, 0, 0, 1], 4)
    head, drawn, legend = parts(text)
    assert head == [
        "block tables: 1, rows of each: 1, tokens: 9, blocks of 4: 3",
        "comes back in place: 1 (0.333), packed: 2 (0.667)",
    ]
    assert drawn == ["|██░░|····|█---|"]
    assert legend == [
        "█ live      3  kept by a row",
        "░ stranded  2  dead, in a block that stays",
        "· free      4  in a block that comes back in place",
        "- slack     3  never written, in a block that stays",
    ]


def test_tables_are_labelled_and_lines_numbered() -> None:
    keep = np.zeros((2, 1, 200), bool)
    keep[1, 0, 100:] = True
    text = block_map(keep, BlockPool(16, shared_axes=""), axes="bht", marks=ASCII_MARKS)
    lines = parts(text)[1]
    assert [line[:12].strip() for line in lines] == [
        *("b=0 h=0   0", "48", "96", "144", "192"),
        *("b=1 h=0   0", "48", "96", "144", "192"),
    ]
    assert lines[0] == f"b=0 h=0   0 |{'|'.join(['.' * 16] * 3)}|"
    unnamed = block_map(keep[:, 0], BlockPool(16, shared_axes=""))
    assert parts(unnamed)[1][4].startswith("1   0 |")


@pytest.mark.parametrize(
    ("tokens", "scale", "lines"),
    [(16 * 4 * 16, "slot", 16), (16 * 100, "a block", 2), (16 * 2000, "2 blocks", 16)],
)
def test_long_tables_are_drawn_with_less_detail(tokens: int, scale: str, lines: int) -> None:
    text = block_map(np.arange(tokens) < tokens // 2, 16, marks=ASCII_MARKS)
    drawn = parts(text)[1]
    assert len(drawn) == lines
    assert f"A character is {scale}:" in text or scale == "slot"
    if scale != "slot":
        ends = "".join(pictures(text))
        assert (ends[0], ends[-1]) == ("8", ".")


def test_eighths_are_rounded_up() -> None:
    live = [0, 1, 32, 33, 255, 256]
    keep = np.concatenate([np.arange(256) < count for count in live])
    drawn = pictures(block_map(keep, BlockPool(256, frees="none"), marks=ASCII_MARKS))
    assert drawn == ["x11288"]
    drawn = pictures(block_map(keep, 256))
    assert drawn == ["·▁▁▂██"]


@pytest.mark.parametrize(
    ("pool", "drawn"),
    [
        (BlockPool(2), "|··|##|··|#x|··|.-|"),
        (BlockPool(2, open_tail=True), "|··|##|··|#x|··|x-|"),
        (BlockPool(2, frees="back"), "|xx|##|xx|#x|··|··|"),
        (BlockPool(2, frees="back", open_tail=True), "|xx|##|xx|#x|xx|x-|"),
        (BlockPool(2, frees="front"), "|··|##|xx|#x|xx|x-|"),
        (BlockPool(2, frees="none"), "|xx|##|xx|#x|xx|x-|"),
    ],
)
def test_what_comes_back_depends_on_the_pool(pool: BlockPool, drawn: str) -> None:
    keep = [0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0]
    (line,) = pictures(block_map(keep, pool, marks=ASCII_MARKS))
    assert line == drawn.replace("·", ".").replace("|.-|", "|..|")


def test_nothing_is_drawn_of_nothing() -> None:
    assert parts(block_map(np.ones((0, 4), bool), 2, axes="bt"))[1] == ["no tables"]
    assert parts(block_map([], 2))[1] == ["no tokens"]
    lines = parts(block_map([[0, 0], [1, 1]], 2, axes="bt", lengths=[0, 2]))[1]
    assert lines == ["b=0 no tokens", "b=1 |██|"]


def test_a_mask_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond the lengths"):
        block_map([[1, 1]], 2, axes="bt", lengths=[1])
