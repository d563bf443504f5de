"""Each converter against an obvious twin: nested lists, and a question asked of every token."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from kvreclaim import BlockPool, logical_saving, masks, take_census

Keep = NDArray[np.bool_]
Call = Callable[[], object]
FLAT = st.lists(st.booleans(), max_size=40)
ROWS = array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
KEEPS = arrays(np.bool_, ROWS)
SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)
INTEGERS = st.sampled_from(["i1", "u1", "i2", "u4", "i8", "u8", ">i4", ">u2"])


def same(found: NDArray[Any], expected: object) -> None:
    """Check values, shape and type."""
    assert type(found) is np.ndarray
    assert found.dtype == np.bool_
    assert found.tolist() == (expected.tolist() if isinstance(expected, np.ndarray) else expected)
    if isinstance(expected, np.ndarray):
        assert found.shape == expected.shape


def rows_of(keep: Keep) -> list[list[bool]]:
    rows: list[list[bool]] = keep.reshape(math.prod(keep.shape[:-1]), keep.shape[-1]).tolist()
    return rows


def kept_in(row: list[bool]) -> list[int]:
    return [token for token, kept in enumerate(row) if kept]


# --- Positions ---


@given(KEEPS, SEEDS, INTEGERS)
def test_from_indices(keep: Keep, rng: np.random.Generator, kind: str) -> None:
    tokens = keep.shape[-1]
    lists = [rng.permutation(kept_in(row)).astype(int).tolist() for row in rows_of(keep)]
    if 0 not in keep.shape[:-1]:  # a nested list hides the sizes of axes behind an empty one
        same(masks.from_indices(nested(lists, keep.shape[:-1]), tokens), keep)

    # An array, whose rows are filled up, at any place, with a number that is no position.
    fill = tokens + 1
    widest = max(map(len, lists), default=0) + int(rng.integers(3))
    filled = [rng.permutation([*row, *[fill] * (widest - len(row))]) for row in lists]
    array = np.array(filled, kind).reshape(*keep.shape[:-1], widest)
    same(masks.from_indices(array, tokens, fill=fill), keep)


def nested(rows: list[list[Any]], shape: tuple[int, ...]) -> Any:  # noqa: ANN401  # of any depth
    """Return rows as lists of lists, one level for each axis."""
    if not shape:
        return rows[0]
    step = math.prod(shape[1:])
    return [nested(rows[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


@given(arrays(np.bool_, array_shapes(min_dims=3, max_dims=3, min_side=0, max_side=6)), SEEDS)
def test_from_evicted_coordinates(keep: Keep, rng: np.random.Generator) -> None:
    where = [
        [batch, head, token]
        for batch, heads in enumerate(keep.tolist())
        for head, row in enumerate(heads)
        for token, kept in enumerate(row)
        if not kept
    ]
    where = rng.permutation(np.array(where, int).reshape(-1, 3)).tolist()
    triple = [[at[axis] for at in where] for axis in range(3)]
    same(masks.from_evicted(triple, keep.shape), keep)
    same(masks.from_evicted(tuple(np.array(part, "i4") for part in triple), keep.shape), keep)
    if len(where) != 3:  # a square array is refused: its rows may be entries
        same(masks.from_evicted(np.array(triple, int), keep.shape), keep)
    same(masks.from_evicted(np.nonzero(~keep), keep.shape), keep)

    same(masks.from_evicted([], (0, *keep.shape)), keep[None][:0])
    every = np.ones_like(keep)
    same(masks.from_evicted(None, keep.shape), every)
    for layers in ([triple, None], [None, triple], [None, None]):
        of_layers = np.array([every if at is None else keep for at in layers])
        same(masks.from_evicted(layers, of_layers.shape), of_layers)


@given(KEEPS)
def test_from_evicted_positions(keep: Keep) -> None:
    assume(0 not in keep.shape[:-1])
    lists = [kept_in([not kept for kept in row]) for row in rows_of(keep)]
    same(masks.from_evicted(nested(lists, keep.shape[:-1]), keep.shape), keep)
    widest = max(map(len, lists))
    filled = np.array([row + [-1] * (widest - len(row)) for row in lists], int)
    array = filled.reshape(*keep.shape[:-1], widest)
    same(masks.from_evicted(array, keep.shape, fill=-1), keep)
    same(
        masks.from_evicted(array, keep.shape, fill=-1),
        ~masks.from_indices(array, keep.shape[-1], -1),
    )


def a_run(tokens: int) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, tokens), st.integers(0, tokens)).map(
        lambda edges: (min(edges), max(edges))
    )


@given(st.data(), st.integers(0, 30))
def test_from_runs(data: st.DataObject, tokens: int) -> None:
    rows = data.draw(st.lists(st.lists(a_run(tokens), max_size=5), max_size=4))
    expected = [
        [any(start <= token < stop for start, stop in runs) for token in range(tokens)]
        for runs in rows
    ]
    for runs, row in zip(rows, expected, strict=True):
        same(masks.from_runs(runs, tokens), row)
        same(masks.from_runs(np.array(runs, ">i4").reshape(-1, 2), tokens), row)
    if rows:
        same(masks.from_runs(rows, tokens), expected)
        same(masks.from_runs([rows, rows], tokens), [expected, expected])


# --- Rows end to end ---


def padded(rows: list[list[bool]]) -> list[list[bool]]:
    longest = max(map(len, rows), default=0)
    return [row + [False] * (longest - len(row)) for row in rows]


@given(st.lists(FLAT, max_size=6))
@example([])
@example([[]])
def test_rows_of_different_lengths(rows: list[list[bool]]) -> None:
    lengths = [len(row) for row in rows]
    offsets = [sum(lengths[:i]) for i in range(len(rows) + 1)]
    positions = [kept_in(row) for row in rows]
    kept_offsets = [sum(map(len, positions[:i])) for i in range(len(rows) + 1)]
    for keep, found in (
        masks.from_list(rows),
        masks.from_list(np.array(row, "u1") for row in rows),
        masks.from_ragged(sum(rows, []), offsets),  # noqa: RUF017  # a few short rows
        masks.from_ragged_indices(sum(positions, []), kept_offsets, lengths),  # noqa: RUF017
    ):
        same(keep, padded(rows))
        assert keep.shape == (len(rows), max(lengths, default=0))
        assert found.dtype == np.int64
        assert found.tolist() == lengths


@given(st.lists(FLAT, min_size=1, max_size=6), st.integers(0, 5), SEEDS)
def test_ragged_indices_of_rows_of_one_length(
    rows: list[list[bool]], more: int, rng: np.random.Generator
) -> None:
    tokens = max(map(len, rows)) + more
    positions = [rng.permutation(kept_in(row)).astype(int) for row in rows]
    offsets = np.cumsum([0, *map(len, positions)])
    keep, lengths = masks.from_ragged_indices(np.concatenate(positions), offsets, tokens)
    same(keep, [row + [False] * (tokens - len(row)) for row in rows])
    assert lengths.tolist() == [tokens] * len(rows)


# --- What a cache holds ---


@st.composite
def blocks_of_tables(draw: st.DrawFn) -> dict[tuple[int, int, int], list[list[int]]]:
    """Blocks of slots for each (sequence, layer, head), in the order of their table."""
    size = draw(st.integers(1, 5))
    block = st.lists(st.integers(-2, 50), min_size=size, max_size=size)
    owner = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
    return draw(st.dictionaries(owner, st.lists(block, min_size=1, max_size=4), min_size=1))


@given(blocks_of_tables(), SEEDS, st.booleans())
def test_from_slots_counts_exactly_the_blocks(
    tables: dict[tuple[int, int, int], list[list[int]]], rng: np.random.Generator, gaps: bool
) -> None:
    physical = [
        (block, 3 * number if gaps else number, *owner)
        for owner, blocks in tables.items()
        for number, block in enumerate(blocks)
    ]
    physical = [physical[i] for i in rng.permutation(len(physical))]
    positions, logical, sequences, layers, heads = (
        list(part) for part in zip(*physical, strict=True)
    )
    keep, lengths = masks.from_slots(
        positions, logical, seq_indices=sequences, layer_indices=layers, head_indices=heads
    )
    in_order = [tables[owner] for owner in sorted(tables)]
    same(keep, padded([[at >= 0 for block in blocks for at in block] for blocks in in_order]))

    size = len(positions[0])
    census = take_census(keep, BlockPool(size, shared_axes=""), lengths=lengths)
    live = Counter(sum(at >= 0 for at in block) for block in positions)
    assert census.counts == tuple(live[k] for k in range(size + 1))
    for row, length, blocks in zip(keep, lengths.tolist(), in_order, strict=True):
        assert -(-length // size) == len(blocks)
        assert not row[length:].any()
        fewer_blocks = -(-(length - 1) // size) < len(blocks)
        assert fewer_blocks or row[length - 1]  # no shorter length would do


def test_slots_of_no_blocks() -> None:
    keep, lengths = masks.from_slots(np.zeros((0, 4), int))
    assert keep.shape == (0, 0)
    assert lengths.shape == (0,)


@given(arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=20)), st.integers(1, 5))
def test_slots_that_nothing_has_moved_are_positions(keep: Keep, size: int) -> None:
    """One table after another, evicted slots emptied: the same blocks as the mask's."""
    keep[:, -1] = True  # nothing tells a slot that was evicted at the end from one never written
    heads, tokens = keep.shape
    blocks = -(-tokens // size)
    slots = np.full((heads, blocks * size), -1)
    slots[:, :tokens] = np.where(keep, np.arange(tokens), -1)
    found, lengths = masks.from_slots(
        slots.reshape(-1, size), head_indices=np.repeat(np.arange(heads), blocks)
    )
    pool = BlockPool(size, shared_axes="", frees="back")
    assert take_census(found, pool, lengths=lengths) == take_census(keep, pool)


def rows_left(before: list[Any], after: list[Any]) -> tuple[list[bool], int, int]:
    """Cross out rows one at a time, the earliest first."""
    left = list(after)
    keep = []
    for row in before:
        keep.append(row in left)
        if row in left:
            left.remove(row)
    ambiguous = sum(
        kept and before.count(row) > after.count(row)
        for row, kept in zip(before, keep, strict=True)
    )
    return keep, ambiguous, len(left)


CELL = st.lists(st.sampled_from([0.5, -1.0, 2.0]), min_size=2, max_size=2)


@given(
    st.lists(CELL, max_size=12), st.lists(CELL, max_size=12), st.sampled_from(["f2", "f4", ">f8"])
)
def test_from_rows(before: list[list[float]], after: list[list[float]], kind: str) -> None:
    old, new = (np.array(rows, kind).reshape(-1, 2) for rows in (before, after))
    keep, ambiguous, unmatched = rows_left(before, after)
    found = masks.from_rows(old, new, strict=False)
    same(found.keep, keep)
    assert (found.num_ambiguous, found.num_unmatched) == (ambiguous, unmatched)
    heads = masks.from_rows(np.stack([old, old]), np.stack([new, new]), strict=False)
    same(heads.keep, [keep, keep])
    assert (heads.num_ambiguous, heads.num_unmatched) == (2 * ambiguous, 2 * unmatched)


@given(arrays(np.bool_, array_shapes(min_dims=3, max_dims=3, max_side=6)), SEEDS)
def test_from_rows_undoes_a_gather(keep: Keep, rng: np.random.Generator) -> None:
    keep[..., 0] = True
    fewest = int(np.count_nonzero(keep, axis=-1).min())
    index = np.array([[rng.permutation(kept_in(row))[:fewest] for row in heads] for heads in keep])
    keys = rng.standard_normal((*keep.shape, 3)).astype(np.float32)
    left = np.take_along_axis(keys, index[..., None], axis=2)
    found = masks.from_rows(keys, left)
    same(found.keep, masks.from_indices(index, keep.shape[-1]))
    assert (found.num_ambiguous, found.num_unmatched) == (0, 0)


def test_rows_are_matched_by_their_bits() -> None:
    nan, other_nan = np.array([0x7FC00000, 0x7FC00001], "u4").view("f4")
    before = np.array([[0.0, nan], [-0.0, nan], [0.0, other_nan]], "f4")
    assert masks.from_rows(before, before[[1]]).keep.tolist() == [False, True, False]
    assert masks.from_rows(before, before[[2, 0]]).keep.tolist() == [True, False, True]
    swapped = masks.from_rows(before.astype(">f4")[::-1], np.asfortranarray(before[[1]]))
    assert swapped.keep.tolist() == [False, True, False]


def test_rows_that_are_equal() -> None:
    before = [[1], [2], [1], [1]]
    assert masks.from_rows(before, [[1], [1]])[1:] == (2, 0)  # which two of three?
    assert masks.from_rows(before, [[1], [1], [1]])[1:] == (0, 0)  # all three
    assert masks.from_rows(before, [[1], [1], [1], [1], [3]], strict=False)[1:] == (0, 2)


# --- Other masks ---


@given(KEEPS, st.integers(0, 4), st.integers(0, 4))
def test_with_implicit(keep: Keep, prefix: int, suffix: int) -> None:
    expected = [[True] * prefix + row + [True] * suffix for row in rows_of(keep)]
    whole = masks.with_implicit(keep, prefix, suffix)
    assert whole.shape == (*keep.shape[:-1], prefix + keep.shape[-1] + suffix)
    assert rows_of(whole) == expected
    same(masks.with_implicit(keep), keep)


EVICTED = [-np.inf, -1e9, -1e4, *(np.finfo(kind).min for kind in (np.float16, np.float32, float))]


@given(KEEPS, st.sampled_from(EVICTED), st.sampled_from([0.0, -0.0]))
def test_from_additive(keep: Keep, lowest: float, zero: float) -> None:
    same(masks.from_additive(np.where(keep, zero, lowest)), keep)
    with np.errstate(over="ignore"):
        for kind in ("f4", ">f2"):
            same(masks.from_additive(np.where(keep, zero, lowest).astype(kind)), keep)


def test_evicted_tokens_in_16_bits() -> None:
    """-1e4 as bfloat16 holds it, -9984, is one; the next number up is not."""
    same(masks.from_additive(np.array([0, -9984, -9985], "f4")), [True, False, False])
    with pytest.raises(ValueError, match=r"1 of 2 values .* the first -9983\.0 at index 1"):
        masks.from_additive(np.array([0, -9983], "f4"))


@given(KEEPS)
def test_from_evict_mask(keep: Keep) -> None:
    gone = ~keep
    same(masks.from_evict_mask(gone), keep)
    same(masks.from_evict_mask(gone.astype("u1")), keep)
    same(masks.from_evict_mask(masks.from_evict_mask(keep)), keep)


@st.composite
def paddings(draw: st.DrawFn) -> tuple[Keep, Keep, int]:
    """A mask, its real tokens, and the axis of sequences."""
    shape = draw(array_shapes(min_dims=2, max_dims=4, min_side=0, max_side=6))
    axis = draw(st.integers(0, len(shape) - 2))
    tokens = shape[-1]
    runs = draw(st.lists(a_run(tokens), min_size=shape[axis], max_size=shape[axis]))
    valid = np.array([[start <= t < stop for t in range(tokens)] for start, stop in runs], bool)
    valid = valid.reshape(shape[axis], tokens)
    keep = draw(arrays(np.bool_, shape))
    return keep & over(valid, keep, axis), valid, axis


def over(valid: Keep, keep: Keep, axis: int) -> Keep:
    """Return (sequences, tokens) in the shape of the mask."""
    shape = [1] * keep.ndim
    shape[axis], shape[-1] = valid.shape
    return np.broadcast_to(valid.reshape(shape), keep.shape)


@given(paddings(), st.booleans())
def test_from_padded(case: tuple[Keep, Keep, int], from_the_back: bool) -> None:
    keep, valid, axis = case
    real = over(valid, keep, axis)
    expected = [
        [kept for kept, is_real in zip(row, of_row, strict=True) if is_real]
        for row, of_row in zip(rows_of(keep), rows_of(real), strict=True)
    ]
    longest = int(valid.sum(axis=-1).max(initial=0))
    found, lengths = masks.from_padded(
        keep, valid.astype("i8"), axis=axis - keep.ndim if from_the_back else axis
    )
    assert found.shape == (*keep.shape[:-1], longest)
    assert rows_of(found) == [row + [False] * (longest - len(row)) for row in expected]
    assert lengths.tolist() == valid.sum(axis=-1).tolist()
    each, of_each = masks.from_padded(keep, real)
    assert of_each.tolist() == np.count_nonzero(real, axis=-1).tolist()
    if 0 not in keep.shape[:-1]:
        same(each, found)


def test_padding_that_is_the_same_in_all_rows() -> None:
    found, lengths = masks.from_padded([[0, 1, 0, 0], [0, 0, 1, 0]], [0, 1, 1, 0])
    same(found, [[True, False], [False, True]])
    assert lengths.shape == ()
    assert take_census(found, 2, axes="bt", lengths=lengths).num_tokens == 4
    alone, length = masks.from_padded([0, 1, 0, 0], [0, 1, 1, 0])
    same(alone, [True, False])
    assert take_census(alone, 2, lengths=length).num_tokens == 2


@given(KEEPS, st.sampled_from(["big", "little"]))
def test_from_packed(keep: Keep, bitorder: Literal["big", "little"]) -> None:
    tokens = keep.shape[-1]
    packed = [
        [
            sum(
                kept << (place if bitorder == "little" else 7 - place)
                for place, kept in enumerate(row[first : first + 8])
            )
            for first in range(0, tokens, 8)
        ]
        for row in rows_of(keep)
    ]
    bits = np.array(packed, "u1").reshape(*keep.shape[:-1], -(-tokens // 8))
    same(masks.from_packed(bits, tokens, bitorder), keep)
    same(masks.from_packed(bits[..., ::-1][..., ::-1], tokens, bitorder), keep)
    if bitorder == "big":
        same(masks.from_packed(bits, tokens), keep)


# --- Masks of something larger or smaller ---


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 5), SEEDS, st.integers(0, 2))
def test_to_kv_heads(
    kv_heads: int, group: int, tokens: int, rng: np.random.Generator, axis: int
) -> None:
    keep = rng.random((2, kv_heads * group, tokens)) < 0.3
    expected = [
        [
            [any(heads[kv * group + q][t] for q in range(group)) for t in range(tokens)]
            for kv in range(kv_heads)
        ]
        for heads in keep.tolist()
    ]
    same(masks.to_kv_heads(keep, kv_heads), expected)
    swapped = keep.transpose(1, 0, 2)
    same(masks.to_kv_heads(swapped, kv_heads, axis=0).transpose(1, 0, 2), expected)
    deep = np.broadcast_to(keep.reshape(*[1] * axis, *keep.shape), (*[2] * axis, *keep.shape))
    same(masks.to_kv_heads(deep, kv_heads, axis=axis + 1)[(0,) * axis], expected)


@given(st.lists(st.integers(-2, 5), max_size=6), st.integers(0, 4), SEEDS)
def test_to_kv_layers(owners: list[int], tokens: int, rng: np.random.Generator) -> None:
    keep = rng.random((len(owners), 2, tokens)) < 0.3
    expected = [
        [
            [
                any(
                    layer[head][t]
                    for owner, layer in zip(owners, keep.tolist(), strict=True)
                    if owner == cache
                )
                for t in range(tokens)
            ]
            for head in range(2)
        ]
        for cache in sorted(set(owners))
    ]
    same(masks.to_kv_layers(keep, owners), expected)
    swapped = masks.to_kv_layers(keep.transpose(1, 0, 2), np.array(owners, int), axis=1)
    assert swapped.shape == (2, len(expected), tokens)
    same(swapped.transpose(1, 0, 2), expected)


@given(KEEPS, st.integers(0, 2), SEEDS)
def test_compose(first: Keep, more: int, rng: np.random.Generator) -> None:
    survivors = [kept_in(row) for row in rows_of(first)]
    slots = max(map(len, survivors), default=0) + more
    chosen = [[bool(rng.integers(2)) for _ in row] for row in survivors]
    then = np.array([row + [False] * (slots - len(row)) for row in chosen], bool)
    expected = [
        [
            token in [at for at, stays in zip(row, some, strict=True) if stays]
            for token in range(first.shape[-1])
        ]
        for row, some in zip(survivors, chosen, strict=True)
    ]
    both = masks.compose(first, then.reshape(*first.shape[:-1], slots))
    assert both.shape == first.shape
    assert rows_of(both) == expected
    assert not (both & ~first).any()


@given(KEEPS)
def test_an_eviction_that_keeps_all_changes_nothing(keep: Keep) -> None:
    survivors = np.count_nonzero(keep, axis=-1)
    every = np.arange(keep.shape[-1]) < np.asarray(survivors)[..., None]
    same(masks.compose(keep, every), keep)
    same(masks.compose(np.ones_like(keep), keep), keep)


@given(KEEPS)
def test_round_trips(keep: Keep) -> None:
    tokens = keep.shape[-1]
    if 0 in keep.shape[:-1]:
        return
    lists = [kept_in(row) for row in rows_of(keep)]
    same(masks.from_indices(nested(lists, keep.shape[:-1]), tokens), keep)
    same(
        masks.from_runs(
            nested([[(t, t + 1) for t in row] for row in lists], keep.shape[:-1]), tokens
        ),
        keep,
    )
    same(masks.from_packed(np.packbits(keep, axis=-1), tokens), keep)
    same(masks.from_evict_mask(~keep), keep)
    same(masks.to_kv_layers(keep[None], [0])[0], keep)
    flat = keep.reshape(math.prod(keep.shape[:-1]), tokens)
    same(masks.from_list(flat)[0], flat)
    offsets = np.arange(len(flat) + 1) * tokens
    same(masks.from_ragged(flat.ravel(), offsets)[0], flat)
    same(masks.from_padded(flat, np.ones_like(flat))[0], flat)


def test_a_set_for_all_heads_is_broadcast() -> None:
    keep = np.array([[1, 1, 0, 0], [0, 1, 1, 1]], bool)  # layer, token
    heads = np.broadcast_to(keep[:, None], (2, 8, 4))
    pool = BlockPool(2)
    census = take_census(heads, pool, axes="lht")
    assert census == take_census(heads.copy(), pool, axes="lht")
    assert census.counts == take_census(keep, pool, axes="lt").counts
    assert census.rows_per_table == 16


# --- Mistakes met in public, as small inputs ---


def bits(*rows: str) -> Keep:
    return np.array([[letter == "1" for letter in row] for row in rows], bool)


def test_h01_evicted_coordinates_are_the_mask() -> None:
    head = [1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1]
    position = [3, 12, 8, 0, 7, 15, 9, 1, 10, 6, 2, 14, 11, 5, 13, 4]
    keep = masks.from_evicted(([0] * 16, head, position), (1, 2, 16))
    same(keep, bits("1111111100000000", "0000000011111111")[None])
    shared = take_census(keep, BlockPool(4), axes="bht")
    assert (shared.counts, shared.num_freed_blocks) == ((0, 0, 0, 0, 4), 0)
    alone = take_census(keep, BlockPool(4, shared_axes=""), axes="bht")
    assert (alone.counts, alone.num_freed_blocks) == ((4, 0, 0, 0, 4), 4)
    assert logical_saving(shared) == logical_saving(alone) == 0.5


def test_h10_opposite_polarity() -> None:
    mask = bits("0000000000001111")[0]
    kept, evicted = take_census(mask, 4), take_census(masks.from_evict_mask(mask), 4)
    assert (logical_saving(kept), kept.num_freed_blocks) == (0.75, 3)
    assert (logical_saving(evicted), evicted.num_freed_blocks) == (0.25, 1)
    assert evicted.counts == (1, 0, 0, 0, 3)


@pytest.mark.parametrize(
    "lowest", [-np.inf, np.finfo(np.float32).min, -1e4], ids=["h11", "e02", "1e4"]
)
def test_h11_e02_an_additive_mask(lowest: float) -> None:
    mask = np.array([0] * 6 + [lowest] * 2, "f4")
    census = take_census(masks.from_additive(mask), 4)
    assert (census.counts, census.num_freed_blocks) == ((0, 0, 1, 0, 1), 0)
    with pytest.raises(TypeError, match=r"float32.*additive.*-inf.*from_additive"):
        take_census(mask, 4)


def test_h14_kept_positions_in_any_order() -> None:
    keep = masks.from_indices([9, 2, 0, 11, 3], 16)
    same(keep, masks.from_indices(sorted([9, 2, 0, 11, 3]), 16))
    census = take_census(keep, 4)
    assert (census.counts, census.num_freed_blocks) == ((2, 0, 1, 1, 0), 2)


def test_h15_positions_out_of_range_and_empty_places() -> None:
    with pytest.raises(ValueError, match=r"length 8; got 8;"):
        masks.from_indices([0, 8], 8)
    with pytest.raises(ValueError, match=r"got -1;.*fill=-1"):
        masks.from_indices([0, 1, 5, -1], 8)
    census = take_census(masks.from_indices([0, 1, 5, -1], 8, fill=-1), 4)
    assert (census.num_live_tokens, census.num_freed_blocks) == (3, 0)


def test_h16_query_heads_are_no_kv_heads() -> None:
    keep_q = bits("11110000", "00001111", *["11110000"] * 6)
    keep = masks.to_kv_heads(keep_q, 2)
    same(keep, bits("11111111", "11110000"))
    shared = take_census(keep, BlockPool(4), axes="ht")
    assert (logical_saving(shared), shared.counts) == (0.25, (0, 0, 0, 0, 2))
    alone = take_census(keep, BlockPool(4, shared_axes=""))
    assert (logical_saving(alone), alone.counts) == (0.25, (1, 0, 0, 0, 3))
    with pytest.raises(ValueError, match=r"8 heads .*3 KV heads"):
        masks.to_kv_heads(keep_q, 3)
    same(masks.to_kv_heads(keep_q, 1), bits("11111111"))  # one latent for all heads


def test_h18_two_evictions() -> None:
    keep = masks.compose(bits("1111111100000000")[0], bits("11110000")[0])
    same(keep, bits("1111000000000000")[0])
    assert logical_saving(take_census(keep, 4)) == 0.75
    assert take_census(keep, 4).num_freed_blocks == 3


def test_h19_e21_padding_is_not_evicted() -> None:
    """Padding on the left: 5 and 8 tokens, all kept."""
    keep, lengths = masks.from_padded(bits("00011111", "11111111"), bits("00011111", "11111111"))
    census = take_census(keep, 4, axes="bt", lengths=lengths)
    assert lengths.tolist() == [5, 8]
    assert (census.num_tokens, census.num_live_tokens) == (13, 13)
    assert (census.num_blocks, census.num_freed_blocks) == (4, 0)
    # Padding on the right, and a row of nothing else.
    keep, lengths = masks.from_padded(
        bits("00000000", "11111000", "11110000"), bits("00000000", "11111000", "11111111")
    )
    census = take_census(keep, 4, axes="bt", lengths=lengths)
    assert lengths.tolist() == [0, 5, 8]
    assert (census.num_tokens, census.num_evicted_entries, census.counts) == (
        13,
        4,
        (1, 1, 0, 0, 2),
    )


def test_a_cut_of_half_a_batch_that_is_padded_on_the_left() -> None:
    """A policy that counts padding keeps half the columns; of the real tokens it keeps others."""
    real = [90, 200, 310, 512]
    width = max(real)
    valid = np.arange(width) >= width - np.array(real)[:, None]
    recent = np.broadcast_to(np.arange(width) >= width // 2, valid.shape)
    with pytest.raises(ValueError, match=r"keep & valid"):
        masks.from_padded(recent, valid)
    keep, lengths = masks.from_padded(recent & valid, valid)
    assert lengths.tolist() == real
    census = take_census(keep, 16, axes="bt", lengths=lengths)
    evicted = sum(max(0, n - width // 2) for n in real)
    assert logical_saving(census) == float(Fraction(evicted, sum(real)))
    assert logical_saving(take_census(recent, 16, axes="bt")) == 0.5


def test_h22_memory_order() -> None:
    keep = bits("11110000", "00001111")
    for view in (
        np.asfortranarray(keep),
        np.ascontiguousarray(keep.T).T,
        keep[:, ::-1][:, ::-1],
        np.repeat(keep, 2, axis=0)[::2],
        np.repeat(keep, 2, axis=1)[:, ::2],
    ):
        gone = masks.from_evict_mask(view)
        for converted in (
            masks.from_evict_mask(gone),
            masks.with_implicit(view),
            masks.from_list(view)[0],
            masks.from_padded(view, np.ones_like(view))[0],
            masks.to_kv_heads(view, 2),
            masks.to_kv_layers(view, [0, 1]),
            masks.compose(view, bits("1111", "1111")),
            masks.compose(bits("11111111", "11111111"), view),
            masks.from_additive(np.where(view, 0, -np.inf).T.copy().T),
        ):
            same(converted, keep)


def test_h23_packed_bits_need_their_length() -> None:
    packed = np.array([255, 3], "u1")
    census = take_census(masks.from_packed(packed, 10, "little"), 4)
    assert (census.num_tokens, census.num_evicted_entries) == (10, 0)
    assert (census.counts, census.num_freed_blocks) == ((0, 0, 1, 0, 2), 0)
    with pytest.raises(TypeError, match="num_tokens"):
        masks.from_packed(packed)  # type: ignore[call-arg]  # the mistake
    with pytest.raises(ValueError, match=r"bits set there.*bitorder='little'"):
        masks.from_packed(packed, 10)


def test_h24_rows_of_different_lengths() -> None:
    rows = [[1, 0, 1], [1, 1, 0, 0, 0]]
    flat = np.array([1, 0, 1, 1, 1, 0, 0, 0], bool)
    for keep, lengths in (masks.from_ragged(flat, [0, 3, 8]), masks.from_list(rows)):
        assert lengths.tolist() == [3, 5]
        census = take_census(keep, 2, axes="bt", lengths=lengths)
        assert (census.counts, census.num_freed_blocks) == ((2, 2, 1), 2)
    with pytest.raises(ValueError, match=r"from_list\(rows\)"):
        take_census(rows, 2, axes="bt")


def test_e03_different_counts_for_each_layer() -> None:
    keep = masks.from_indices([[range(4)], [range(8)]], 8)
    same(keep, bits("11110000", "11111111")[:, None])
    assert take_census(keep, BlockPool(4), axes="lht").counts == (0, 0, 0, 0, 2)
    by_layer = take_census(keep, BlockPool(4, shared_axes="h"), axes="lht")
    assert by_layer.counts == (1, 0, 0, 0, 3)


def test_e16_big_endian_positions() -> None:
    census = take_census(masks.from_indices(np.array([2, 0, 9], ">i8"), 12), 4)
    assert (census.num_live_tokens, census.num_freed_blocks) == (3, 1)


def test_e22_a_ring_buffer_frees_nothing() -> None:
    slots = np.array([16, 17, *range(2, 16)])
    keep, lengths = masks.from_slots(slots.reshape(-1, 4))
    census = take_census(keep, BlockPool(4, shared_axes=""), lengths=lengths)
    assert (census.num_blocks, census.num_freed_blocks, census.num_live_tokens) == (4, 0, 16)
    # By position two tokens are gone, but no block is.
    by_position = take_census(masks.from_indices(slots, 18), 4)
    assert (by_position.num_evicted_entries, by_position.num_blocks) == (2, 5)


# --- What comes stays as it was ---

ARGUMENTS: Mapping[str, tuple[Any, ...]] = {
    "from_indices": (np.array([[2, 0], [1, -1]]), 3, -1),
    "from_evicted": ((np.array([0, 0]), np.array([1, 0]), np.array([2, 0])), (1, 2, 3)),
    "from_runs": (np.array([[[0, 1], [2, 3]]]), 3),
    "from_ragged": (np.array([1, 0, 1], bool), np.array([0, 1, 3])),
    "from_ragged_indices": (np.array([1, 0]), np.array([0, 1, 2]), np.array([2, 2])),
    "from_list": ([np.array([1, 0], bool), np.array([1], bool)],),
    "from_slots": (np.array([[0, -1], [2, 3]]), np.array([1, 0])),
    "from_rows": (np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[3.0, 4.0]])),
    "with_implicit": (np.array([1, 0], "u1"), 0, 0),
    "from_additive": (np.array([0, -np.inf]),),
    "from_evict_mask": (np.array([1, 0], "u1"),),
    "from_padded": (np.ones((1, 2), "u1"), np.ones((1, 2), "u1")),
    "from_packed": (np.array([160], "u1"), 3),
    "to_kv_heads": (np.ones((2, 2), bool), 2),
    "to_kv_layers": (np.ones((2, 2), bool), np.array([0, 1])),
    "compose": (np.ones(2, bool), np.ones(2, bool)),
}


def arrays_in(value: object) -> list[NDArray[Any]]:
    if isinstance(value, np.ndarray):
        return [value]
    return [a for item in value for a in arrays_in(item)] if isinstance(value, list | tuple) else []


@pytest.mark.parametrize("name", ARGUMENTS)
def test_no_input_is_written_to_nor_given_back(name: str) -> None:
    arguments = copy.deepcopy(ARGUMENTS[name])
    for array in arrays_in(arguments):
        array.flags.writeable = False
    result = getattr(masks, name)(*arguments)
    for given_array, before in zip(arrays_in(arguments), arrays_in(ARGUMENTS[name]), strict=True):
        np.testing.assert_array_equal(given_array, before)
        for made in arrays_in(result):
            assert made.flags.writeable
            assert not np.shares_memory(made, given_array)


def test_every_converter_is_listed() -> None:
    public = {
        name
        for name, value in vars(masks).items()
        if callable(value) and getattr(value, "__module__", "") == masks.__name__
        if not name.startswith("_") and not isinstance(value, type)
    }
    assert public == set(ARGUMENTS)
    assert masks.__doc__ is not None
    assert [name for name in public if f"`{name}`" not in masks.__doc__] == []


# --- What bad input gets: name, rule, what came, what to write instead ---


def of(function: Any, *arguments: Any, **options: Any) -> Call:  # noqa: ANN401  # whatever is wrong
    return partial(function, *arguments, **options)


class Texts:
    """As another library's array: of a type with a name of its own."""

    dtype = "library.string"

    def __array__(self, dtype: object = None, copy: object = None) -> NDArray[Any]:
        return np.array([["a"]])


TWO_ROWS = np.ones((2, 4), bool)
BAD: Mapping[str, tuple[Any, ...]] = {
    "indices: too large": (
        of(masks.from_indices, [[0], [8]], 8),
        ValueError,
        "indices",
        "length 8",
        "got 8 in row 1",
    ),
    "indices: in a deep row": (
        of(masks.from_indices, [[[0], [1]], [[2], [9]]], 8),
        ValueError,
        "indices",
        "got 9 in row (1, 1)",
    ),
    "indices: negative": (
        of(masks.from_indices, [3, -2], 8),
        ValueError,
        "indices",
        "got -2",
        "fill=-1",
    ),
    "indices: another negative": (
        of(masks.from_indices, [3, -1, -2], 8, fill=-1),
        ValueError,
        "indices",
        "got -2",
    ),
    "indices: twice": (
        of(masks.from_indices, [[1, 2], [3, 3]], 8),
        ValueError,
        "indices",
        "once",
        "got 3 twice in row 1",
    ),
    "indices: the first that is there twice": (
        of(masks.from_indices, [5, 2, 7, 2, 5], 8),
        ValueError,
        "indices",
        "got 2 twice",
    ),
    "indices: no tokens": (of(masks.from_indices, [0], 0), ValueError, "indices", "length 0"),
    "indices: floats": (of(masks.from_indices, [0.0], 8), TypeError, "indices", "float64"),
    "indices: booleans": (
        of(masks.from_indices, [True, False], 8),
        TypeError,
        "indices",
        "bool",
        "boolean mask",
    ),
    "indices: text": (of(masks.from_indices, "01", 8), TypeError, "indices", "str '01'"),
    "indices: None": (of(masks.from_indices, None, 8), TypeError, "indices", "None"),
    "indices: a set": (of(masks.from_indices, {1, 2}, 8), TypeError, "indices", "set"),
    "indices: one number": (of(masks.from_indices, 3, 8), ValueError, "indices", "shape ()"),
    "indices: a number among rows": (
        of(masks.from_indices, [[0, 1], 2], 8),
        ValueError,
        "indices[1]",
        "shape ()",
    ),
    "indices: floats in a row": (
        of(masks.from_indices, [[0, 1], [0.5]], 8),
        TypeError,
        "indices[1]",
        "float64",
    ),
    "indices: nested unevenly": (
        of(masks.from_indices, [[[0], [1]], [[2]]], 8),
        ValueError,
        "indices",
        "nested alike",
        "(2,) and (1,)",
    ),
    "indices: masked": (
        of(masks.from_indices, np.ma.MaskedArray([0, 1], [False, True]), 8),
        TypeError,
        "indices",
        "masked array",
    ),
    "indices: more than 63 bits": (
        of(masks.from_indices, np.array([2**64 - 1], "u8"), 8),
        ValueError,
        "indices",
        str(2**64 - 1),
    ),
    "indices: num_tokens": (of(masks.from_indices, [0], -1), ValueError, "num_tokens", "got -1"),
    "indices: num_tokens 8.0": (of(masks.from_indices, [0], 8.0), TypeError, "num_tokens", "8.0"),
    "indices: fill a position": (
        of(masks.from_indices, [0, 1], 8, fill=0),
        ValueError,
        "fill",
        "8 tokens",
        "got 0",
    ),
    "indices: fill a float": (of(masks.from_indices, [0], 8, fill=-1.0), TypeError, "fill", "-1.0"),
    "indices: fill True": (of(masks.from_indices, [0], 1, fill=True), TypeError, "fill", "True"),
    "evicted: token": (
        of(masks.from_evicted, ([0], [1], [4]), (1, 2, 4)),
        ValueError,
        "evicted",
        "length 4",
        "got 4 in row (0, 1)",
    ),
    "evicted: head": (
        of(masks.from_evicted, ([0, 0], [0, 2], [0, 0]), (1, 2, 4)),
        ValueError,
        "evicted",
        "a head from 0 up and below 2",
        "got 2 at index 1",
    ),
    "evicted: batch": (
        of(masks.from_evicted, ([-1], [0], [0]), (1, 2, 4)),
        ValueError,
        "evicted",
        "a batch",
        "got -1",
    ),
    "evicted: twice": (
        of(masks.from_evicted, ([0, 0], [1, 1], [3, 3]), (1, 2, 4)),
        ValueError,
        "evicted",
        "got 3 twice in row (0, 1)",
    ),
    "evicted: a pair": (
        of(masks.from_evicted, ([0], [0]), (1, 2, 4)),
        ValueError,
        "evicted",
        "(batch, head, token)",
        "[(1,), (1,)]",
    ),
    "evicted: of two lengths": (
        of(masks.from_evicted, ([0], [0, 1], [0]), (1, 2, 4)),
        ValueError,
        "evicted",
        "one length",
        "[(1,), (2,), (1,)]",
    ),
    "evicted: floats": (
        of(masks.from_evicted, ([0.0], [0], [0]), (1, 2, 4)),
        TypeError,
        "evicted[0]",
        "float64",
    ),
    "evicted: a number": (of(masks.from_evicted, 5, (1, 2, 4)), ValueError, "evicted", "int 5"),
    "evicted: in a layer": (
        of(masks.from_evicted, [None, ([0], [0], [4])], (2, 1, 2, 4)),
        ValueError,
        "evicted[1]",
        "got 4 in row (0, 0)",
    ),
    "evicted: too few layers": (
        of(masks.from_evicted, [None], (2, 1, 2, 4)),
        ValueError,
        "evicted",
        "2 layers",
        "got 1",
    ),
    "evicted: None for four axes": (
        of(masks.from_evicted, None, (2, 1, 2, 4)),
        TypeError,
        "evicted",
        "None",
    ),
    "evicted: positions of other rows": (
        of(masks.from_evicted, [[0], [1]], (3, 4)),
        ValueError,
        "evicted",
        "(3, 4)",
        "(2,)",
    ),
    "evicted: position": (of(masks.from_evicted, [4], (4,)), ValueError, "evicted", "got 4"),
    "evicted: shape a number": (of(masks.from_evicted, [0], 4), TypeError, "shape", "int 4"),
    "evicted: shape ()": (of(masks.from_evicted, [0], ()), TypeError, "shape", "tuple ()"),
    "evicted: shape of -1": (
        of(masks.from_evicted, [0], (-1,)),
        ValueError,
        "shape[0]",
        "got -1",
    ),
    "runs: backwards": (
        of(masks.from_runs, [(0, 2), (5, 3)], 8),
        ValueError,
        "runs",
        "(start, stop)",
        "got (5, 3)",
    ),
    "runs: too far": (
        of(masks.from_runs, [[(0, 2)], [(0, 9)]], 8),
        ValueError,
        "runs",
        "length 8",
        "got (0, 9) in row 1",
    ),
    "runs: negative": (of(masks.from_runs, [(-1, 3)], 8), ValueError, "runs", "got (-1, 3)"),
    "runs: one pair": (of(masks.from_runs, (0, 3), 8), ValueError, "runs", "shape (2,)"),
    "runs: triples": (of(masks.from_runs, [(0, 1, 2)], 8), ValueError, "runs", "shape (1, 3)"),
    "runs: floats": (of(masks.from_runs, [(0, 0.5)], 8), TypeError, "runs", "float64"),
    "runs: num_tokens": (of(masks.from_runs, [(0, 1)], -1), ValueError, "num_tokens", "got -1"),
    "ragged: starts at 1": (
        of(masks.from_ragged, [1, 0], [1, 2]),
        ValueError,
        "offsets",
        "begin with 0",
        "got 1 at index 0",
    ),
    "ragged: falls": (
        of(masks.from_ragged, [1, 0], [0, 2, 1, 2]),
        ValueError,
        "offsets",
        "never fall",
        "got 1 at index 2",
    ),
    "ragged: falls at the end": (
        of(masks.from_ragged, [1, 0], [0, 3, 2]),
        ValueError,
        "offsets",
        "got 2 at index 2",
    ),
    "ragged: offsets of floats": (
        of(masks.from_ragged, [1, 0], [0.0, 2.0]),
        TypeError,
        "offsets",
        "float64",
    ),
    "ragged: ends early": (
        of(masks.from_ragged, [1, 0, 1], [0, 2]),
        ValueError,
        "offsets",
        "the 3 values",
        "got 2 at index 1",
    ),
    "ragged: no offsets": (of(masks.from_ragged, [], []), ValueError, "offsets", "got none"),
    "ragged: offsets in 2-D": (
        of(masks.from_ragged, [1], [[0, 1]]),
        ValueError,
        "offsets",
        "shape (1, 2)",
    ),
    "ragged: in 2-D": (of(masks.from_ragged, [[1]], [0, 1]), ValueError, "flat_keep", "(1, 1)"),
    "ragged: scores": (of(masks.from_ragged, [0.5], [0, 1]), TypeError, "flat_keep", "float64"),
    "ragged indices: beyond the row": (
        of(masks.from_ragged_indices, [0, 2], [0, 1, 2], [1, 2]),
        ValueError,
        "flat",
        "length 2",
        "got 2 in row 1",
    ),
    "ragged indices: twice": (
        of(masks.from_ragged_indices, [0, 1, 1], [0, 1, 3], 4),
        ValueError,
        "flat",
        "got 1 twice in row 1",
    ),
    "ragged indices: in 2-D": (
        of(masks.from_ragged_indices, [[0]], [0, 1], 1),
        ValueError,
        "flat",
        "(1, 1)",
    ),
    "ragged indices: floats": (
        of(masks.from_ragged_indices, [0.5], [0, 1], 1),
        TypeError,
        "flat",
        "float64",
    ),
    "ragged indices: offsets": (
        of(masks.from_ragged_indices, [0], [0, 2], 1),
        ValueError,
        "offsets",
        "the 1 values",
        "got 2 at index 1",
    ),
    "ragged indices: lengths of floats": (
        of(masks.from_ragged_indices, [0], [0, 1], 1.5),
        TypeError,
        "lengths",
        "float64",
    ),
    "ragged indices: lengths": (
        of(masks.from_ragged_indices, [0], [0, 1], [1, 1]),
        ValueError,
        "lengths",
        "1 rows",
        "(2,)",
    ),
    "ragged indices: a negative length": (
        of(masks.from_ragged_indices, [], [0, 0], [-1]),
        ValueError,
        "lengths",
        "got -1",
    ),
    "list: a number": (of(masks.from_list, 5), TypeError, "rows", "int 5"),
    "list: one mask": (of(masks.from_list, [1, 0]), ValueError, "rows[0]", "token axis"),
    "list: text": (of(masks.from_list, ["10"]), TypeError, "rows[0]", "str '10'"),
    "list: positions": (of(masks.from_list, [[0, 1], [4]]), ValueError, "rows[1]", "the first 4"),
    "list: of 2-D": (of(masks.from_list, [[[1]]]), ValueError, "rows[0]", "(1, 1)", "census"),
    "slots: flat": (of(masks.from_slots, [0, 1]), ValueError, "token_positions", "shape (2,)"),
    "slots: blocks of 0": (
        of(masks.from_slots, np.zeros((2, 0), int)),
        ValueError,
        "token_positions",
        "(2, 0)",
    ),
    "slots: booleans": (of(masks.from_slots, TWO_ROWS), TypeError, "token_positions", "bool"),
    "slots: one place twice": (
        of(masks.from_slots, [[0], [1], [2]], [1, 0, 1], head_indices=[7, 7, 7]),
        ValueError,
        "logical_blocks",
        "got 1 twice",
        "(0, 0, 7)",
    ),
    "slots: places of floats": (
        of(masks.from_slots, [[0], [1]], [0.0, 1.0]),
        TypeError,
        "logical_blocks",
        "float64",
    ),
    "slots: too few places": (
        of(masks.from_slots, [[0], [1]], [0]),
        ValueError,
        "logical_blocks",
        "2 blocks",
        "(1,)",
    ),
    "slots: too few sequences": (
        of(masks.from_slots, [[0], [1]], seq_indices=[0]),
        ValueError,
        "seq_indices",
        "2 blocks",
        "(1,)",
    ),
    "slots: too few layers": (
        of(masks.from_slots, [[0], [1]], layer_indices=[0]),
        ValueError,
        "layer_indices",
        "2 blocks",
        "(1,)",
    ),
    "slots: too few heads": (
        of(masks.from_slots, [[0], [1]], head_indices=[0]),
        ValueError,
        "head_indices",
        "2 blocks",
        "(1,)",
    ),
    "rows: of two types": (
        of(masks.from_rows, np.ones((2, 2), "f4"), np.ones((1, 2), "f8")),
        ValueError,
        "after",
        "float64",
        "float32",
    ),
    "rows: other heads": (
        of(masks.from_rows, np.ones((2, 3, 4)), np.ones((1, 3, 4))),
        ValueError,
        "after",
        "(1, 3, 4)",
        "on the axis before the last",
        "numpy.moveaxis(rows, 0, -2) where tokens come first",
    ),
    "rows: swapped": (
        of(masks.from_rows, np.ones((1, 2)), np.ones((3, 2))),
        ValueError,
        "after",
        "got 3 tokens after 1",
        "the cache before the eviction first, or strict=False",
    ),
    "rows: other elements": (
        of(masks.from_rows, np.ones((3, 4)), np.ones((3, 5))),
        ValueError,
        "after",
        "(3, 5)",
    ),
    "rows: flat": (of(masks.from_rows, [1.0], [1.0]), ValueError, "before", "shape (1,)"),
    "rows: text": (of(masks.from_rows, [["a"]], [["a"]]), TypeError, "before", "str"),
    "rows: text after numbers": (of(masks.from_rows, [[1.0]], [["a"]]), TypeError, "after", "str"),
    "rows: no array": (
        of(masks.from_rows, "rows", [[1.0]]),
        TypeError,
        "before",
        "must be an array of numbers of shape (..., tokens, elements); got str 'rows'",
    ),
    "rows: of a type that NumPy does not have": (
        of(masks.from_rows, Texts(), [[1.0]]),
        TypeError,
        "before",
        "got an array of string;",
    ),
    "rows: extended floats": (
        of(masks.from_rows, np.ones((2, 2), "g"), np.ones((1, 2), "g")),
        TypeError,
        "before",
    ),
    "rows: extended complex numbers": (
        of(masks.from_rows, np.ones((2, 2), "G"), np.ones((1, 2), "G")),
        TypeError,
        "before",
    ),
    "rows: strict 1": (
        of(masks.from_rows, [[1.0]], [[1.0]], strict=1),
        TypeError,
        "strict",
        "int 1",
    ),
    "rows: nothing in a row": (
        of(masks.from_rows, np.ones((2, 0)), np.ones((1, 0))),
        ValueError,
        "before",
        "(2, 0)",
    ),
    "implicit: prefix": (of(masks.with_implicit, [1], -1), ValueError, "prefix", "got -1"),
    "implicit: suffix": (of(masks.with_implicit, [1], 0, 0.5), TypeError, "suffix", "0.5"),
    "implicit: scores": (of(masks.with_implicit, [0.5], 1), TypeError, "keep", "float64"),
    "additive: ones": (
        of(masks.from_additive, [0.0, 1.0]),
        ValueError,
        "mask",
        "1 of 2 values",
        "the first 1.0 at index 1",
    ),
    "additive: a bias": (
        of(masks.from_additive, [[0.0, -0.5], [-1.0, -1e9]]),
        ValueError,
        "mask",
        "2 of 4",
        "-0.5 at index (0, 1)",
    ),
    "additive: NaN": (of(masks.from_additive, [0.0, math.nan]), ValueError, "mask", "nan"),
    "additive: booleans": (
        of(masks.from_additive, [True]),
        TypeError,
        "mask",
        "bool",
        "from_evict_mask",
    ),
    "additive: integers": (of(masks.from_additive, [0, -10000]), TypeError, "mask", "int64"),
    "additive: text": (
        of(masks.from_additive, "0"),
        TypeError,
        "mask",
        "must be an additive mask of floats; got str '0'",
    ),
    "additive: one number": (of(masks.from_additive, 0.0), ValueError, "mask", "token axis"),
    "evict mask: floats": (
        of(masks.from_evict_mask, [0.0, 1.0]),
        TypeError,
        "mask",
        "float64",
        "mask == 1",
    ),
    "padded: a hole": (
        of(masks.from_padded, TWO_ROWS & False, [[1, 1, 1, 1], [1, 0, 0, 1]]),
        ValueError,
        "valid",
        "one run",
        "in row 1",
    ),
    "padded: kept": (
        of(masks.from_padded, TWO_ROWS, [[1, 1, 1, 1], [0, 0, 1, 1]]),
        ValueError,
        "keep",
        "True at token 0 in row 1",
        "keep & valid",
    ),
    "padded: other rows": (
        of(masks.from_padded, TWO_ROWS, np.ones((3, 4), bool)),
        ValueError,
        "valid",
        "(3, 4)",
        "(2, 4)",
        "axis=",
    ),
    "padded: other tokens": (
        of(masks.from_padded, TWO_ROWS, np.ones((2, 5), bool)),
        ValueError,
        "valid",
        "(2, 5)",
    ),
    "padded: more axes": (
        of(masks.from_padded, TWO_ROWS, np.ones((1, 2, 4), bool)),
        ValueError,
        "valid",
        "(1, 2, 4)",
    ),
    "padded: rows for one mask": (
        of(masks.from_padded, np.ones(4, bool), np.ones((4, 4), bool)),
        ValueError,
        "valid",
        "(4, 4)",
        "(4,)",
    ),
    "padded: some axes": (
        of(masks.from_padded, np.ones((2, 3, 5, 4), bool), np.ones((2, 3, 4), bool)),
        ValueError,
        "valid",
        "(2, 3, 4)",
    ),
    "padded: floats": (
        of(masks.from_padded, TWO_ROWS, np.ones((2, 4))),
        TypeError,
        "valid",
        "float64",
    ),
    "padded: axis of tokens": (
        of(masks.from_padded, TWO_ROWS, TWO_ROWS, axis=1),
        ValueError,
        "axis",
        "an axis of keep before its last",
        "got 1",
    ),
    "packed: text": (of(masks.from_packed, "1", 8), TypeError, "bits", "str '1'"),
    "packed: too few bytes": (
        of(masks.from_packed, np.zeros(1, "u1"), 9),
        ValueError,
        "bits",
        "shape (1,)",
    ),
    "packed: bit order": (
        of(masks.from_packed, np.zeros(1, "u1"), 8, "msb"),
        ValueError,
        "bitorder",
        "'msb'",
    ),
    "kv heads: scores": (of(masks.to_kv_heads, [[0.5]], 1), TypeError, "keep_q", "float64"),
    "kv heads: 0": (of(masks.to_kv_heads, TWO_ROWS, 0), ValueError, "num_kv_heads", "got 0"),
    "kv heads: more than there are": (
        of(masks.to_kv_heads, TWO_ROWS, 4),
        ValueError,
        "num_kv_heads",
        "2 heads",
        "4 KV heads",
    ),
    "kv heads: of none": (
        of(masks.to_kv_heads, np.ones((0, 4), bool), 1),
        ValueError,
        "num_kv_heads",
        "0 heads",
    ),
    "kv heads: no axis": (
        of(masks.to_kv_heads, [1, 0], 1),
        ValueError,
        "axis",
        "an axis of keep_q before its last",
        "shape (2,)",
    ),
    "kv heads: axis 2": (of(masks.to_kv_heads, TWO_ROWS, 1, axis=2), ValueError, "axis", "got 2"),
    "kv heads: far axis": (of(masks.to_kv_heads, TWO_ROWS, 1, axis=3), ValueError, "axis", "got 3"),
    "kv heads: axis -3": (of(masks.to_kv_heads, TWO_ROWS, 1, axis=-3), ValueError, "axis", "-3"),
    "kv heads: axis a letter": (
        of(masks.to_kv_heads, TWO_ROWS, 1, axis="h"),
        TypeError,
        "axis",
        "str 'h'",
    ),
    "layers: no axis": (
        of(masks.to_kv_layers, [1, 0], [0]),
        ValueError,
        "axis",
        "an axis of keep before its last",
        "shape (2,)",
    ),
    "layers: too few owners": (
        of(masks.to_kv_layers, TWO_ROWS, [0]),
        ValueError,
        "owners",
        "2 layers",
        "got 1",
    ),
    "layers: owners in 2-D": (
        of(masks.to_kv_layers, TWO_ROWS, [[0, 1]]),
        ValueError,
        "owners",
        "(1, 2)",
    ),
    "layers: names": (of(masks.to_kv_layers, TWO_ROWS, ["a", "b"]), TypeError, "owners", "str"),
    "compose: too few slots": (
        of(masks.compose, [[1, 0], [1, 1]], [[1], [1]]),
        ValueError,
        "then",
        "1 slots for 2 survivors in row 1",
    ),
    "compose: beyond": (
        of(masks.compose, [[1, 0], [1, 1]], [[1, 1], [1, 1]]),
        ValueError,
        "then",
        "slot 1 for 1 survivors in row 0",
    ),
    "compose: other rows": (
        of(masks.compose, TWO_ROWS, [1, 1, 1, 1]),
        ValueError,
        "then",
        "(2,)",
        "()",
    ),
    "compose: scores": (of(masks.compose, [1], [0.5]), TypeError, "then", "float64"),
    "compose: scores first": (of(masks.compose, [0.5], [1]), TypeError, "first", "float64"),
}


@pytest.mark.parametrize(
    ("call", "error", "name", "words"),
    [pytest.param(*row[:3], row[3:], id=name) for name, row in BAD.items()],
)
def test_bad_input(call: Call, error: type[Exception], name: str, words: tuple[str, ...]) -> None:
    with pytest.raises(error) as info:
        call()
    message = str(info.value)
    assert info.type is error
    assert message.startswith(f"{name} must "), message
    rule, _, rest = message.partition("; got ")
    got, _, hint = rest.rpartition("; ")
    assert rule
    assert got, message
    assert hint, message
    assert "\n" not in message
    assert message.endswith(".")
    for word in words:
        assert word in message, message


def test_three_entries_in_one_square_array_are_ambiguous() -> None:
    keep = np.ones((3, 3, 3), bool)
    keep[[0, 1, 2], [1, 2, 2], [2, 0, 1]] = False
    rows = np.argwhere(~keep)
    with pytest.raises(ValueError, match=r"got one of shape \(3, 3\)"):
        masks.from_evicted(rows, keep.shape)
    same(masks.from_evicted(tuple(rows.T), keep.shape), keep)


def test_an_empty_place_may_be_named_by_the_number_of_tokens() -> None:
    same(masks.from_indices([[0, 4], [4, 3]], 4, fill=4), bits("1000", "0001"))
    same(masks.from_evicted([0, 4], (4,), fill=4), [False, True, True, True])


def test_runs_of_rows_that_have_none() -> None:
    for shape in ((2, 0), (2, 0, 2)):
        same(masks.from_runs(np.zeros(shape, int), 3), bits("000", "000"))


def test_of_many_wrong_positions_the_first_is_named() -> None:
    heads = [1] * 20 + [0] * 20
    with pytest.raises(ValueError, match=r"length 8; got 120 in row \(0, 0\);"):
        masks.from_evicted(([0] * 40, heads, list(range(100, 140))), (1, 2, 8))
    there_and_back = [*range(20), *reversed(range(20))]
    with pytest.raises(ValueError, match="got 19 twice;"):
        masks.from_indices(there_and_back, 20)


def test_a_place_is_a_row_and_a_position() -> None:
    with pytest.raises(ValueError, match="got 1 twice in row 3;"):
        masks.from_indices([[1], [0], [0], [1, 1]], 2)
