"""Packed bits are counted as the booleans that they are."""

from __future__ import annotations

import math
from typing import Any, Literal
from unittest import mock

import numpy as np
import oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import Case, cases

from kvreclaim import BlockPool, Census, occupancy, take_census, take_census_packed
from kvreclaim.census import take_census_of_rows


@given(cases(), st.sampled_from(["big", "little"]), st.sampled_from([1, 64, 1 << 20]))
def test_equals_the_census_of_the_booleans(
    case: Case, bitorder: Literal["big", "little"], piece: int
) -> None:
    axis = case.said["axes"].index("t")
    keep = np.moveaxis(case.keep, axis, -1)
    said: dict[str, Any] = case.said | {"axes": case.said["axes"].replace("t", "") + "t"}
    bits = np.packbits(keep, axis=-1, bitorder=bitorder)
    with mock.patch.object(occupancy, "PIECE", piece):
        census = take_census_packed(bits, keep.shape[-1], case.pool, bitorder=bitorder, **said)
    assert census == take_census(case.keep, case.pool, **case.said)


# numpy.unpackbits pads an empty array with whatever is there
@example(
    Case(
        np.zeros((0, 1, 2), np.bool_),
        BlockPool(12, shared_axes=""),
        {"axes": "thl", "offset": np.array([[10, 7]])},
    ),
    1,
)
@given(cases(), st.sampled_from([1, 64, 500, 1 << 20]))
def test_rows_that_arrive_one_after_another_make_the_same_census(case: Case, piece: int) -> None:
    axis = case.said["axes"].index("t")
    keep = np.moveaxis(case.keep, axis, -1)
    said = case.said | {"axes": case.said["axes"].replace("t", "") + "t"}
    census = census_of_rows(keep, case.pool, piece, **said)
    assert census == take_census(case.keep, case.pool, **case.said)


def census_of_rows(
    keep: NDArray[np.bool_],
    pool: BlockPool,
    piece: int,
    *,
    axes: str,
    **said: Any,  # noqa: ANN401  # what take_census takes
) -> Census:
    """Return the census of a mask that is handed out row by row, all of which must be read."""
    bits = np.ascontiguousarray(np.packbits(keep, axis=-1))
    left = bits.reshape(math.prod(keep.shape[:-1]), -(-keep.shape[-1] // 8))

    def read(rows: int) -> NDArray[np.uint8]:
        nonlocal left
        some, left = left[:rows], left[rows:]
        assert len(some) == rows
        return some

    with mock.patch.object(occupancy, "PIECE", piece):
        census = take_census_of_rows(read, keep.shape, axes, pool, **said)
    assert not len(left)
    return census


@pytest.mark.parametrize("compactor", ["evacuate", "evacuate_rows", "fill", "pack", "pack_rows"])
@pytest.mark.parametrize("piece", [1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 20])
def test_rows_of_several_tables_in_turn(compactor: str, piece: int) -> None:
    """The first row of each of six tables, then the second row of each, and so on."""
    keep = np.random.default_rng(19).random((4, 3, 2, 120)) < 0.1
    keep[:, 0, :, :9] = keep[1, 1, :, 50:] = keep[:, 2, 1, 70:90] = True
    offset = [[0, 1], [0, 3], [2, 0]]
    pool = BlockPool(4, compactor=compactor)
    census = census_of_rows(keep, pool, piece, axes="hbst", offset=offset)
    expected = oracle.census(keep.tolist(), pool, "hbst", offset=offset)
    assert {name: getattr(census, name) for name in expected} == expected


@pytest.mark.parametrize("bitorder", ["big", "little"])
def test_packed_rows_united_first(bitorder: Literal["big", "little"]) -> None:
    keep = np.random.default_rng(31).random((2, 3, 100)) < 0.1
    bits = np.packbits(keep, axis=-1, bitorder=bitorder)
    pool = BlockPool(4, compactor="pack_rows")
    with mock.patch.object(occupancy, "PIECE", 1 << 7):
        census = take_census_packed(bits, 100, pool, bitorder=bitorder, axes="bht")
    expected = oracle.census(keep.tolist(), pool, "bht")
    assert {name: getattr(census, name) for name in expected} == expected


def test_one_table_of_whole_blocks() -> None:
    """One block is free, and the emptiest of the three others is moved into the next one."""
    keep = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0]], np.bool_)
    census = take_census_packed(np.packbits(keep), 16, 4)
    assert (census.num_freed_blocks, census.num_packed_blocks) == (1, 2)
    assert (census.num_moved_entries, census.movable) == (1, (0, 1, 0, 0, 0))


BITS = np.array([0b1010_0000], np.uint8)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"bits": BITS.astype(np.int64)}, TypeError, "uint8; got int64"),
        ({"bits": BITS.astype(bool)}, TypeError, "uint8; got bool"),
        ({"num_tokens": 9}, ValueError, "2 bytes in the last axis for num_tokens=9"),
        ({"num_tokens": 2}, ValueError, "bitorder='little'"),
        ({"num_tokens": 4, "bitorder": "little"}, ValueError, "bitorder='big'"),
        ({"num_tokens": 4.0}, TypeError, "num_tokens must be an integer"),
        ({"bitorder": "middle"}, ValueError, "bitorder must be one of"),
        ({"axes": "h"}, ValueError, "without 't'"),
        ({"bits": BITS[0]}, ValueError, "got shape"),
        ({"bits": BITS[:, None], "axes": "th"}, ValueError, "end in 't'"),
    ],
)
def test_other_arrays_are_refused(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        take_census_packed(**{"bits": BITS, "num_tokens": 4, "pool": 2, **arguments})


def test_rows_that_may_share_blocks_must_be_named() -> None:
    bits = np.zeros((2, 1), np.uint8)
    with pytest.raises(ValueError, match="axes must name the 2 axes of "):
        take_census_packed(bits, 8, BlockPool(4))
