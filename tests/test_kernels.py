"""The counting of bits and blocks, each way that it is done, against plain loops."""

from __future__ import annotations

import random
from typing import Literal
from unittest import mock

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import Case, cases

from kvreclaim import BlockPool, _bits, _layout, _measure, _one_table, occupancy, take_census
from kvreclaim import _open_tables as open_tables
from kvreclaim import census as counting

BLOCK_SIZES = [1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 100, 120, 128, 192, 256]
LARGE_BLOCKS = [257, 264, 320, 384, 448, 512, 576, 1024, 4096]


def some_bits(rng: np.random.Generator, *shape: int) -> NDArray[np.bool_]:
    """Return a mask with empty, full and mixed stretches, so that every count occurs."""
    density = np.repeat(
        rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], (*shape[:-1], -(-shape[-1] // 40))), 40
    )
    density = density.reshape(*shape[:-1], -1)[..., : shape[-1]]
    return rng.random(shape) < density


@pytest.mark.parametrize("block_size", BLOCK_SIZES + LARGE_BLOCKS)
@pytest.mark.parametrize("tokens", [1, 8, 129, 4096, 5001])
def test_per_block_counts_each_block(block_size: int, tokens: int) -> None:
    keep = some_bits(np.random.default_rng(tokens), 2, 3, tokens)
    expected = [
        [
            [int(row[start : start + block_size].sum()) for start in range(0, tokens, block_size)]
            for row in rows
        ]
        for rows in keep
    ]
    assert _bits.per_block(_bits.pack(keep), tokens, block_size).tolist() == expected


def test_a_full_block_of_any_number_of_words_is_counted_in_full() -> None:
    for block_size in range(1, 2100):
        bits = _bits.pack(np.ones((1, 2 * block_size), np.bool_))
        assert _bits.per_block(bits, 2 * block_size, block_size).tolist() == [[block_size] * 2]


@given(
    st.integers(1, 4),
    st.integers(0, 400),
    st.integers(1, 9),
    st.sampled_from(["uint8", "uint16", "int64"]),
    st.randoms(use_true_random=False),
)
def test_histograms_count_the_values_of_each_row(
    tables: int,
    blocks: int,
    bins: int,
    dtype: str,
    rng: random.Random,
) -> None:
    rows = [[rng.randrange(bins) for _ in range(blocks)] for _ in range(tables)]
    values = np.array(rows, dtype).reshape(tables, blocks)
    expected = [[row.count(value) for value in range(bins)] for row in rows]
    assert _measure._histograms(values, bins).tolist() == expected


@pytest.mark.parametrize("blocks", [1155, 1156, 1157, 5000, 5001])
@pytest.mark.parametrize("tables", [1, 3, 226, 227, 300])
def test_histograms_of_blocks_of_16_on_both_sides_of_the_limits(blocks: int, tables: int) -> None:
    values = np.random.default_rng(blocks).integers(0, 17, (tables, blocks), np.uint8)
    values[:, -1] = 16
    expected = [[int((row == value).sum()) for value in range(17)] for row in values]
    assert _measure._histograms(values, 17).tolist() == expected


@pytest.mark.parametrize("block_size", [1, 2, 3, 8])
@pytest.mark.parametrize("tokens", [2400, 2401, 2408, 2415])
def test_long_tables_equal_the_oracle(block_size: int, tokens: int) -> None:
    keep = some_bits(np.random.default_rng(tokens), 2, tokens)
    pool = BlockPool(block_size, shared_axes="")
    expected = oracle.census(keep.tolist(), pool, shape=keep.shape)
    assert take_census(keep, pool).to_dict()["counts"] == list(expected["counts"])
    for part in keep:
        alone = oracle.census(part.tolist(), pool, shape=part.shape)
        assert take_census(part, pool).to_dict()["counts"] == list(alone["counts"])


@given(cases())
def test_one_table_is_counted_alike_in_integers_and_in_arrays(case: Case) -> None:
    census = take_census(case.keep, case.pool, **case.said)
    with mock.patch.object(counting, "is_one_table", return_value=False):
        assert take_census(case.keep, case.pool, **case.said) == census


@given(cases(), st.sampled_from([1, 20, 1 << 20]))
def test_rows_united_first_or_not_make_the_same_census(case: Case, piece: int) -> None:
    """One after another in memory, each with its own piece of the table, or all columns at once."""
    census = take_census(case.keep, case.pool, **case.said)
    keep = np.ascontiguousarray(np.moveaxis(case.keep, case.said["axes"].index("t"), -1))
    said = case.said | {"axes": case.said["axes"].replace("t", "") + "t"}
    with mock.patch.object(occupancy, "PIECE", piece):
        assert take_census(keep, case.pool, **said) == census
        with mock.patch.object(open_tables, "_MOST_BYTES", -1):
            assert take_census(keep, case.pool, **said) == census


@pytest.mark.parametrize("compactor", ["evacuate", "evacuate_rows", "fill", "pack", "pack_rows"])
def test_rows_of_two_shared_axes_united_first(compactor: str) -> None:
    keep = np.random.default_rng(29).random((2, 1, 2, 3, 4, 120)) < 0.02
    keep[0, 0, :, :2, 1:, :30] = keep[1, ..., 111:] = True
    offset = [[[0, 1]], [[3, 0]]]
    pool = BlockPool(4, compactor=compactor)
    expected = oracle.census(keep.tolist(), pool, "bsxlht", offset=offset)
    for piece in (1 << 7, 1 << 8, 1 << 9, 1 << 10):
        with mock.patch.object(occupancy, "PIECE", piece):
            census = take_census(keep, pool, axes="bsxlht", offset=offset)
        assert {name: getattr(census, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("sizes", "most_rows", "expected"),
    [
        ((), 1, [()]),
        ((5,), 2, [(slice(0, 2),), (slice(2, 4),), (slice(4, 5),)]),
        ((3, 4), 8, [(slice(0, 2), slice(0, 4)), (slice(2, 3), slice(0, 4))]),
        ((1, 3), 2, [(slice(0, 1), slice(0, 2)), (slice(0, 1), slice(2, 3))]),
        ((2, 1), 1, [(slice(0, 1), slice(0, 1)), (slice(1, 2), slice(0, 1))]),
    ],
)
def test_boxes_follow_one_another_in_the_order_of_the_rows(
    sizes: tuple[int, ...], most_rows: int, expected: list[tuple[slice, ...]]
) -> None:
    assert list(open_tables.boxes(sizes, most_rows)) == expected


@pytest.mark.parametrize(
    ("rows", "tokens", "compactor", "worth"),
    [
        (1, 2 * occupancy.PIECE, "pack", False),
        (2, occupancy.PIECE // 2, "pack", False),
        (2, occupancy.PIECE // 2 + 1, "pack", True),
        (2, 8 * occupancy.PIECE + 7, "pack", True),
        (2, 8 * occupancy.PIECE + 8, "pack", False),
        (3, occupancy.PIECE // 2 + 15, "evacuate_rows", True),
        (3, occupancy.PIECE // 2 + 16, "evacuate_rows", False),
    ],
)
def test_which_masks_have_their_rows_united_first(
    rows: int, tokens: int, compactor: str, worth: bool
) -> None:
    """Blocks of 16 tokens: numbers for each of them may take as many bytes as a piece has."""
    pool = BlockPool(16, compactor=compactor)
    for keep, axes, in_rows in (
        (np.zeros((2, 3, 9), np.bool_), "lht", True),
        (np.zeros((9, 2, 3), np.bool_), "tlh", False),
    ):
        layout = _layout.lay_out(keep, pool, axes=axes, lengths=None, offset=0)
        layout = layout._replace(rows=rows, tokens=tokens)
        assert open_tables.worth_uniting(layout, pool) is (worth and in_rows)


@pytest.mark.parametrize("compactor", ["evacuate", "evacuate_rows", "fill", "pack", "pack_rows"])
@pytest.mark.parametrize("offset", [0, 1])
def test_tables_read_a_few_at_a_time_and_described_together(compactor: str, offset: int) -> None:
    """Of two rows of 100 tokens, 5 are read at a time, and more are described."""
    keep = np.random.default_rng(17).random((31, 2, 100)) < 0.1
    pool = BlockPool(2, compactor=compactor)
    with mock.patch.object(occupancy, "PIECE", 1 << 12):
        census = take_census(keep, pool, axes="bht", offset=offset)
    expected = oracle.census(keep.tolist(), pool, "bht", offset=offset)
    assert {name: getattr(census, name) for name in expected} == expected


def test_what_is_known_of_many_tables_stays_small() -> None:
    keep = np.zeros((60, 3, 3000), np.bool_)
    pool = BlockPool(16, compactor="evacuate_rows")
    layout = _layout.lay_out(keep, pool, axes="bht", lengths=None, offset=0)
    with mock.patch.object(occupancy, "PIECE", 1 << 14):
        for found in _measure.measure(layout, pool):
            arrays = [part for part in found if isinstance(part, np.ndarray)]
            assert sum(array.nbytes for array in arrays) <= occupancy.PIECE // 4


@pytest.mark.parametrize(
    ("shape", "axes", "expected"),
    [
        ((10, 9), "bt", [(0, 4), (4, 4), (8, 2)]),
        ((3, 5, 9), "bst", [(0, 4), (4, 1), (5, 4), (9, 1), (10, 4), (14, 1)]),
        ((3, 2, 9), "bst", [(0, 4), (4, 2)]),
        ((9,), "t", [(0, 1)]),
        ((0, 9), "bt", []),
    ],
)
def test_at_most_four_tables_at_a_time(
    shape: tuple[int, ...], axes: str, expected: list[tuple[int, int]]
) -> None:
    layout = _layout.lay_out(
        np.zeros(shape, np.bool_), BlockPool(4), axes=axes, lengths=None, offset=0
    )
    stretches = occupancy.stretches(layout, 4)
    assert [(first, len(part)) for first, part in stretches] == expected


@pytest.mark.parametrize(
    ("block_size", "rows", "packed", "step"),
    [
        (8, 2, None, 32),
        (12, 2, None, 48),
        (12, 10, None, 12),
        (12, 10, "big", 24),
        (40, 1, None, 120),
        (40, 1, "big", 240),
    ],
)
def test_a_table_is_read_in_pieces_of_whole_blocks(
    block_size: int, rows: int, packed: Literal["big"] | None, step: int
) -> None:
    """At most 64 tokens of all rows for blocks of 8, 96 for 12, 128 or, packed, 256 for 40."""
    tokens = 300
    keep = np.zeros((rows, tokens), np.bool_)
    pool = BlockPool(block_size)
    layout = _layout.lay_out(keep, pool, axes="ht", lengths=None, offset=0)
    stretch = keep[None] if packed is None else np.packbits(keep, axis=-1)[None]
    with mock.patch.object(occupancy, "PIECE", 64):
        pieces = list(occupancy.pieces(layout._replace(packed=packed), stretch, 0, pool))
    starts = range(0, tokens, step)
    assert [start for start, _, _ in pieces] == list(starts)
    assert [slots for _, slots, _ in pieces] == [min(step, tokens - start) for start in starts]


@pytest.mark.parametrize(
    ("block_size", "compactor", "packed", "before", "pieces"),
    [
        (16, "evacuate", None, 0, 2),
        (32, "evacuate", None, 0, 2),
        (32, "evacuate", "big", 0, 4),
        (32, "evacuate", "little", 1, 2),
        (33, "evacuate", "big", 0, 2),
        (36, "evacuate", "big", 0, 2),
        (8, "evacuate", None, 0, 1),
        (4, "evacuate", None, 0, 1 / 2),
        (2, "evacuate", None, 0, 1 / 4),
        (1, "evacuate", None, 0, 2),
        (1, "evacuate_rows", None, 0, 1 / 8),
    ],
)
def test_smaller_blocks_make_smaller_pieces_and_packed_bits_larger_ones(
    block_size: int,
    compactor: str,
    packed: Literal["big", "little"] | None,
    before: int,
    pieces: float,
) -> None:
    pool = BlockPool(block_size, compactor=compactor)
    layout = _layout.lay_out(np.zeros((1, 9), np.bool_), pool, axes="ht", lengths=None, offset=0)
    layout = layout._replace(packed=packed, before=before)
    most = pieces * occupancy.PIECE
    assert occupancy.tokens_at_once(layout, pool) == most
    for rows, tokens, tables in (
        (1, 0, most),
        (1, 1, most),
        (3, 1000, most // 3000),
        (2, most, 1),
    ):
        layout = layout._replace(rows=rows, tokens=int(tokens))
        assert occupancy.tables_at_once(layout, pool) == tables


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("compactor", ["evacuate", "none"])
def test_one_table_of_several_rows_equals_the_oracle(seed: int, compactor: str) -> None:
    rng = np.random.default_rng(seed)
    keep = rng.random((int(rng.integers(2, 5)), int(rng.integers(1, 60)))) < rng.random()
    pool = BlockPool(int(rng.integers(2, 9)), compactor=compactor, open_tail=bool(seed % 2))
    census = take_census(keep, pool, axes="ht")
    expected = oracle.census(keep.tolist(), pool, axes="ht", shape=keep.shape)
    assert {name: getattr(census, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("shape", "axes", "pool", "is_one"),
    [
        ((1,), "t", BlockPool(4), True),
        ((0,), "t", BlockPool(4), False),
        ((occupancy.PIECE,), "t", BlockPool(4), True),
        ((occupancy.PIECE + 1,), "t", BlockPool(4), False),
        ((2, occupancy.PIECE // 2), "ht", BlockPool(4), True),
        ((2, occupancy.PIECE // 2 + 1), "ht", BlockPool(4), False),
        ((1, 9), "bt", BlockPool(4), True),
        ((2, 9), "bt", BlockPool(4), False),
        ((9,), "t", BlockPool(4, compactor="none"), True),
        ((9,), "t", BlockPool(4, compactor="fill"), False),
        ((9,), "t", BlockPool(4, frees="none"), True),
        ((9,), "t", BlockPool(4, frees="back", compactor="none"), False),
    ],
)
def test_which_masks_are_counted_as_one_table(
    shape: tuple[int, ...], axes: str, pool: BlockPool, is_one: bool
) -> None:
    keep = np.zeros(shape, np.bool_)
    layout = _layout.lay_out(keep, pool, axes=axes, lengths=None, offset=0)
    assert _one_table.is_one_table(layout, pool) is is_one
    assert not _one_table.is_one_table(layout._replace(packed="big"), pool)


@pytest.mark.parametrize(
    ("slots", "open_tail", "freed", "held_tokens"),
    [
        ("000 01", False, 1, 2),
        ("001 00", False, 1, 3),
        ("001 00", True, 0, 5),
        ("000 00", False, 2, 0),
        ("000 00", True, 1, 2),
        ("001 000", True, 1, 3),
        ("000 01", True, 1, 2),
    ],
)
def test_tokens_freed_with_the_last_block(
    slots: str, open_tail: bool, freed: int, held_tokens: int
) -> None:
    keep = [slot == "1" for slot in slots if slot != " "]
    census = take_census(keep, BlockPool(3, open_tail=open_tail))
    assert (census.num_freed_blocks, census.num_held_tokens) == (freed, held_tokens)


def test_rows_without_tokens_have_no_leading_run() -> None:
    run = _bits.leading_run(np.zeros((2, 0), np.uint8))
    assert run.dtype == np.int64
    assert run.tolist() == [0, 0]
