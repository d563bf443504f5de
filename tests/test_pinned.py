"""Blocks that something else holds as well: neither freed nor moved."""

from __future__ import annotations

from typing import Any
from unittest import mock

import attrs
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case, cases

from kvreclaim import (
    BlockPool,
    Census,
    compacted_reclaim,
    logical_saving,
    occupancy,
    packed_reclaim,
    physical_reclaim,
    savings_breakdown,
    take_census,
    take_censuses,
)


@st.composite
def pinned_cases(draw: st.DrawFn) -> tuple[Case, dict[str, Any]]:
    case = draw(cases())
    axes = case.said["axes"]
    outer = tuple(
        size
        for letter, size in zip(axes, case.keep.shape, strict=True)
        if letter != "t" and letter not in case.pool.shared_axes
    )
    full = case.said.get("lengths", case.keep.shape[axes.index("t")])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    pinned = rng.integers(0, np.broadcast_to(full, outer) + 1) if 0 not in outer else 0
    return case, case.said | {"pinned": pinned}


@given(pinned_cases())
def test_equals_the_oracle(pinned_case: tuple[Case, dict[str, Any]]) -> None:
    case, said = pinned_case
    census = take_census(case.keep, case.pool, **said)
    nested = {name: np.asarray(value).tolist() for name, value in said.items()}
    expected = oracle.census(case.keep.tolist(), case.pool, **nested, shape=case.keep.shape)
    for name in (field.name for field in attrs.fields(Census)):
        if name != "pool":
            assert getattr(census, name) == expected[name], name
    breakdown = savings_breakdown(census)
    for name, number in oracle.savings_breakdown(expected).items():
        if name.startswith("num_"):
            assert getattr(breakdown, name) == number, name


@pytest.mark.parametrize(
    "pool",
    [
        BlockPool(4, compactor="evacuate"),
        BlockPool(4, compactor="evacuate_rows", open_tail=True),
        BlockPool(4, compactor="fill", frees="back"),
        BlockPool(4, compactor="pack"),
        BlockPool(4, compactor="pack_rows"),
        BlockPool(4, frees="front"),
    ],
)
@pytest.mark.parametrize("offset", [[0, 0, 0], [2, 1, 3]])
def test_sequences_pinned_or_not_read_in_any_pieces(pool: BlockPool, offset: list[int]) -> None:
    keep = np.random.default_rng(23).random((3, 2, 61)) < 0.1
    keep[:, :, -3:] = True
    pinned = [0, 5, 24]
    expected = oracle.census(keep.tolist(), pool, "bht", offset=offset, pinned=pinned)
    for piece in (1, 16, 1 << 20):
        with mock.patch.object(occupancy, "PIECE", piece):
            census = take_census(keep, pool, axes="bht", offset=offset, pinned=pinned)
        assert {name: getattr(census, name) for name in expected} == expected


@given(pinned_cases())
def test_the_four_parts_are_all_that_is_evicted(pinned_case: tuple[Case, dict[str, Any]]) -> None:
    case, said = pinned_case
    census = take_census(case.keep, case.pool, **said)
    parts = savings_breakdown(census)
    whole = parts.num_reclaimed + parts.num_stranded + parts.num_unshared + parts.num_pinned
    assert whole == census.num_evicted_entries
    assert min(attrs.astuple(parts)) >= 0


@given(pinned_cases())
def test_pinning_never_raises_what_comes_back(pinned_case: tuple[Case, dict[str, Any]]) -> None:
    case, said = pinned_case
    held = take_census(case.keep, case.pool, **said)
    loose = take_census(case.keep, case.pool, **case.said)
    assert held.num_freed_blocks <= loose.num_freed_blocks
    assert held.num_floor_blocks >= loose.num_floor_blocks
    assert held.counts == loose.counts
    if held.num_blocks:
        assert physical_reclaim(held) <= compacted_reclaim(held) <= packed_reclaim(held)
    assert str(logical_saving(held)) == str(logical_saving(loose))


def test_a_whole_block_is_pinned_by_its_first_token() -> None:
    census = take_census([0, 0, 0, 0, 0, 0], BlockPool(2, frees="front"), pinned=3)
    assert (census.num_pinned_blocks, census.num_freed_blocks) == (2, 0)
    assert take_census([0, 0, 0, 0, 0, 0], 2, pinned=3).num_freed_blocks == 1
    assert take_census([0, 0], BlockPool(1, frees="front"), pinned=1).num_freed_blocks == 0


def test_short_sequences_behind_different_offsets_are_read_whole() -> None:
    keep = [[1, 1], [1, 1]]
    with mock.patch.object(occupancy, "PIECE", 8):  # for blocks of 4, two tables of two tokens
        census = take_census(keep, 4, axes="bt", lengths=[2, 2], offset=[0, 3], pinned=[1, 0])
    assert census.counts == (0, 2, 1, 0, 0)
    assert (census.num_pinned_blocks, census.num_packed_blocks) == (1, 2)


def test_by_layer_as_one_by_one() -> None:
    keep = np.zeros((2, 3, 8), bool)
    pool = BlockPool(2, shared_axes="")
    apart = take_censuses(keep, pool, by="l", axes="lht", pinned=[[0, 1, 2], [3, 4, 8]])
    assert [apart[layer,].num_pinned_blocks for layer in (0, 1)] == [0 + 1 + 1, 2 + 2 + 4]
    whole = take_census(keep, pool, axes="lht", pinned=[[0, 1, 2], [3, 4, 8]])
    assert apart[0,] + apart[1,] == whole


@pytest.mark.parametrize(
    ("pinned", "error", "words"),
    [
        (5, ValueError, "pinned must be from 0 to 4"),
        (-1, ValueError, "pinned must be from 0 to 4"),
        (4, ValueError, "pinned must be at most the lengths"),
        (1.5, TypeError, "pinned must be integers"),
        ([1, 2, 3], ValueError, "pinned must have one axis for each"),
    ],
)
def test_pinned_tokens_are_tokens_of_the_sequence(
    pinned: float | list[int], error: type[Exception], words: str
) -> None:
    keep = [[1, 1, 1, 0], [1, 0, 0, 0]]
    with pytest.raises(error, match=words):
        take_census(keep, 2, axes="bt", lengths=[3, 4], pinned=pinned)


def test_a_token_beyond_its_length_is_named_all_the_same() -> None:
    with pytest.raises(ValueError, match="True at token 3 of sequence 1, which has 2 tokens"):
        take_census([[1, 0, 0, 0], [1, 0, 0, 1]], 2, axes="bt", lengths=[4, 2], pinned=[2, 1])


def test_the_breakdown_of_two_rows_behind_pinned_blocks() -> None:
    """Two blocks are pinned, the third is freed, the fourth strands a slot and shares a live one.

    first row   1 0 | 0 1 | 0 0 | 1 0
    second row  1 0 | 0 0 | 0 0 | 0 0
    """
    keep = [[1, 0, 0, 1, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0, 0, 0]]
    parts = savings_breakdown(take_census(keep, BlockPool(2), axes="ht", pinned=3))
    assert (parts.num_entries, parts.num_reclaimed, parts.num_pinned) == (16, 4, 5)
    assert (parts.num_stranded, parts.num_unshared) == (2, 1)
