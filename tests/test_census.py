"""The census against its slow twin, and the laws of adding."""

from __future__ import annotations

import itertools
import json
import operator
import pickle
import random
from functools import reduce
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import numpy as np
import oracle
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from strategies import Case, cases, pools

from kvreclaim import BlockPool, Census, merge, occupancy, take_census, take_censuses

DERIVED = (
    "num_blocks",
    "num_nonempty_blocks",
    "num_held_blocks",
    "num_live_tokens",
    "num_evicted_entries",
    "num_stranded_tokens",
    "num_slack_slots",
    "num_compactable_blocks",
)
FIELDS = tuple(field.name for field in Census.__attrs_attrs__)

ONE_OF_EACH_COMPACTOR = [
    BlockPool(4, shared_axes=shared, compactor=compactor, frees=frees, open_tail=open_tail)
    for compactor, frees, shared, open_tail in (
        ("evacuate", "any", "lh", False),
        ("evacuate_rows", "any", "h", True),
        ("fill", "back", "", True),
        ("pack", "any", "h", False),
        ("pack_rows", "back", "lh", False),
        ("none", "front", "l", True),
    )
]


def fields_of(census: Census) -> dict[str, Any]:
    """Return every field and derived count, as the oracle names them."""
    return {name: getattr(census, name) for name in (*FIELDS, *DERIVED) if name != "pool"}


def expected_of(case: Case) -> dict[str, Any]:
    said = {name: np.asarray(value).tolist() for name, value in case.said.items()}
    return oracle.census(case.keep.tolist(), case.pool, **said, shape=case.keep.shape)


def census_of(case: Case) -> Census:
    return take_census(case.keep, case.pool, **case.said)


@settings(max_examples=4 * settings().max_examples)  # all else is tested against this one
@given(cases(), st.sampled_from([1, 7, 64, 1 << 20]))
def test_equals_the_oracle(case: Case, piece: int) -> None:
    with mock.patch.object(occupancy, "PIECE", piece):
        census = census_of(case)
    assert fields_of(census) == expected_of(case)


def per_table(case: Case, name: str, default: int) -> NDArray[np.int64]:
    """Return the lengths or offsets, one number for each index of the outer axes."""
    letters = case.said["axes"]
    outer = [
        size
        for letter, size in zip(letters, case.keep.shape, strict=True)
        if letter != "t" and letter not in case.pool.shared_axes
    ]
    return np.broadcast_to(case.said.get(name, default), outer)


def table_by_table(case: Case) -> list[Census]:
    """Take a census of each sequence alone, its padding cut off."""
    letters = case.said["axes"]
    outer = [i for i, letter in enumerate(letters) if letter not in case.pool.shared_axes + "t"]
    axes = "".join(letter for i, letter in enumerate(letters) if i not in outer)
    lengths = per_table(case, "lengths", case.keep.shape[letters.index("t")])
    offsets = per_table(case, "offset", 0)
    censuses = []
    for index in itertools.product(*(range(case.keep.shape[axis]) for axis in outer)):
        where: list[Any] = [slice(None)] * len(letters)
        for axis, i in zip(outer, index, strict=True):
            where[axis] = i
        table = np.moveaxis(case.keep[tuple(where)], axes.index("t"), -1)
        alone = table[..., : lengths[index]]
        censuses.append(
            take_census(
                alone, case.pool, axes=axes.replace("t", "") + "t", offset=int(offsets[index])
            )
        )
    return censuses


@pytest.mark.parametrize(
    ("slots", "frees", "open_tail", "freed", "held_tokens"),
    [
        ("00 01 00 1", "any", False, 2, 3),
        ("00 01 00 1", "back", False, 0, 7),
        ("00 01 00 1", "front", False, 1, 5),
        ("00 01 00 1", "none", False, 0, 7),
        ("00 01 00 0", "any", True, 2, 3),
        ("00 01 00 0", "back", False, 2, 4),
        ("00 01 00 0", "back", True, 0, 7),
        ("00 01 00 0", "front", True, 1, 5),
        ("00 01 00 00", "back", True, 2, 4),
        ("00 01 00 00", "any", True, 3, 2),
        ("00 00 0", "front", False, 3, 0),
        ("00 00 0", "front", True, 2, 1),
        ("00 00 0", "back", True, 0, 5),
        ("0", "any", True, 0, 1),
        ("0", "front", True, 0, 1),
        (".0 00", "any", True, 2, 0),
        (".0 00 1", "any", True, 2, 1),
        (".0 00 0", "any", True, 2, 1),
        (".0 00 0", "any", False, 3, 0),
        (".0 0", "back", True, 0, 2),
        (".0 01 00", "back", True, 1, 3),
        (".0 01 0", "back", False, 1, 3),
        (".0 01 0", "front", False, 1, 3),
        (".1 00 00", "front", True, 0, 5),
        ("..0", "front", True, 1, 0),
        (".0-", "front", True, 0, 1),
        (".0-", "any", True, 0, 1),
        (".0-", "back", False, 1, 0),
        ("..0 000", "front", True, 2, 0),
        ("..0 000 0", "front", True, 2, 1),
        ("..0 000 00", "back", False, 3, 0),
        (".0", "any", True, 1, 0),
        ("", "any", True, 0, 0),
    ],
)
def test_which_blocks_come_back(
    slots: str, frees: str, open_tail: bool, freed: int, held_tokens: int
) -> None:
    """A dot is a slot of the offset, a dash an unwritten one; the first block shows its size."""
    size = max(2, len(slots.partition(" ")[0]))
    keep = [slot == "1" for slot in slots if slot in "01"]
    pool = BlockPool(size, frees=frees, open_tail=open_tail)
    census = take_census(keep, pool, offset=slots.count("."))
    assert census.num_freed_blocks == freed
    assert census.num_held_tokens == held_tokens
    alive = take_census([*keep, True], pool, offset=slots.count("."))
    assert alive.num_freed_blocks <= freed


# --- Adding ---


@given(cases(), st.randoms(use_true_random=False))
def test_sequences_taken_together_are_the_sum_of_each_alone(case: Case, rng: random.Random) -> None:
    together = census_of(case)
    alone = table_by_table(case)
    empty = Census.empty(case.pool)
    shuffled = rng.sample([*alone, empty, empty], len(alone) + 2)
    if together.num_tables == 0:  # no table shows how many rows it would have had
        assert merge(shuffled) == empty
        return
    assert merge(alone) == together
    assert merge(shuffled) == together
    assert sum(shuffled) == together
    assert reduce(operator.add, shuffled) == together
    cut = len(shuffled) // 2
    assert merge(shuffled[:cut] or [empty]) + merge(shuffled[cut:]) == together


@given(st.data(), pools())
def test_adding_is_associative_and_commutative_and_has_a_zero(
    data: st.DataObject, pool: BlockPool
) -> None:
    one_row = pool.replace(shared_axes="")
    a, b, c = (census_of(data.draw(cases(one_row))) for _ in range(3))
    assert a + b == b + a
    assert (a + b) + c == a + (b + c) == merge((c, a, b)) == sum([b, c, a])
    assert a + Census.empty(one_row) == Census.empty(one_row) + a == a == 0 + a
    assert fields_of(a + b) == oracle.add(fields_of(a), fields_of(b))


def test_an_empty_census_takes_on_the_rows_of_what_is_added() -> None:
    pool = BlockPool(2)
    empty = Census.empty(pool)
    three_rows = take_census([[1, 0, 0, 0]] * 3, pool, axes="ht")
    assert empty.rows_per_table == empty.num_tables == empty.num_blocks == 0
    assert (empty + three_rows).rows_per_table == (three_rows + empty).rows_per_table == 3
    assert Census.empty(2) == empty
    assert merge([empty]) == empty + empty == empty


def test_merge_reads_an_iterator_once() -> None:
    masks = [[1, 0, 0, 0], [1, 1], []]
    assert merge(take_census(mask, 2) for mask in masks).counts == (1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "of_a", "of_b"),
    [
        ({"block_size": 8}, "block_size=2", "block_size=8"),
        (
            {"frees": "back"},
            "frees='any', compactor='evacuate'",
            "frees='back', compactor='fill'",
        ),
        ({"open_tail": True}, "open_tail=False", "open_tail=True"),
        ({"compactor": "pack"}, "compactor='evacuate'", "compactor='pack'"),
        ({"shared_axes": ""}, "shared_axes='hl'", "shared_axes=''"),
        ({"total_blocks": 9}, "total_blocks=None", "total_blocks=9"),
        ({"watermark_blocks": 1}, "watermark_blocks=0", "watermark_blocks=1"),
        ({"entry_bytes": 512}, "entry_bytes=None", "entry_bytes=512"),
    ],
)
def test_adding_different_pools_names_how_they_differ(
    changes: dict[str, Any], of_a: str, of_b: str
) -> None:
    pool = BlockPool(2)
    a, b = take_census([1, 0, 0], pool), take_census([0, 1], pool.replace(**changes))
    with pytest.raises(ValueError, match="of one pool") as refused:
        _ = a + b
    assert str(refused.value) == (
        f"censuses must be of one pool to be added; got BlockPool({of_a}) and BlockPool({of_b}); "
        "take both under the same pool."
    )
    with pytest.raises(ValueError, match="of one pool"):
        sum([a, a, b])
    with pytest.raises(ValueError, match="of one pool"):
        merge((Census.empty(pool), b))


def test_adding_tables_of_different_rows_names_both_numbers() -> None:
    two, three = (take_census([[1, 0]] * rows, 2, axes="ht") for rows in (2, 3))
    with pytest.raises(ValueError, match="got 2 and 3 rows per table"):
        _ = two + three
    with pytest.raises(ValueError, match="got 3 and 2 rows per table"):
        merge((Census.empty(2), three, two))


def test_nothing_to_merge() -> None:
    with pytest.raises(ValueError, match=r"Census\.empty"):
        merge([])
    assert sum([]) == 0


def test_merge_refuses_what_holds_no_censuses() -> None:
    with pytest.raises(TypeError) as refused:
        merge(3)  # type: ignore[arg-type]  # what is refused
    assert str(refused.value) == (
        "censuses must be censuses to be added; got int 3; write such as merge([a, b])."
    )


@pytest.mark.parametrize("other", [1, 0.0, None, BlockPool(2)])
def test_a_census_adds_to_nothing_but_a_census_and_0(other: Any) -> None:  # noqa: ANN401
    census = take_census([1, 0], 2)
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = census + other
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = other + census


# --- A value ---


@given(cases())
def test_dict_json_and_pickle_round_trips(case: Case) -> None:
    census = census_of(case)
    fields = census.to_dict()
    assert list(fields) == list(FIELDS)
    assert Census.from_dict(fields) == census
    written = json.loads(json.dumps(fields))
    assert written == fields
    assert Census.from_dict(written) == census
    again = pickle.loads(pickle.dumps(census))  # noqa: S301  # written on this line
    assert again == census
    assert hash(again) == hash(census)
    assert {census: 1}[again] == 1


@pytest.mark.parametrize("pool", ONE_OF_EACH_COMPACTOR)
def test_built_in_numbers_only(pool: BlockPool) -> None:
    keep = np.random.default_rng(1).random((2, 3, 2, 13)) < 0.2
    for said in ({}, {"lengths": np.int32(13)}, {"offset": np.uint8(1)}):
        census = take_census(keep, pool, axes="blht", **said)
        for name, value in fields_of(census).items():
            if isinstance(value, tuple):
                assert type(value) is tuple, name
                assert {type(number) for number in value} <= {int}, name
            else:
                assert type(value) is int, name
        assert census == Census.from_dict(json.loads(json.dumps(census.to_dict())))
    sized = BlockPool(np.int64(4), total_blocks=np.int16(9), open_tail=np.True_)
    assert type(sized.block_size) is type(sized.total_blocks) is int
    assert type(sized.open_tail) is bool


def test_frozen() -> None:
    census = take_census([1, 0], 2)
    with pytest.raises(AttributeError):
        census.num_tables = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        census.counts[0] = 2  # type: ignore[index]


def test_different_masks_are_not_equal() -> None:
    a, b = take_census([1, 0, 0, 0], 2), take_census([0, 0, 1, 1], 2)
    assert a != b
    assert a != take_census([1, 0, 0, 0], BlockPool(2, entry_bytes=4))


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": [1, 1]},
        {"counts": [1, 1, 0, 0]},
        {"movable": []},
        {"num_entries": 5},
        {"num_live_entries": 5},
        {"num_held_tokens": 5},
        {"num_freed_blocks": 3},
        {"num_packed_blocks": 2},
        {"num_floor_blocks": 2},
        {"num_tokens": -4},
        {"num_moved_entries": -1},
    ],
)
def test_counts_that_no_mask_gives_are_refused(changes: dict[str, Any]) -> None:
    fields = take_census([1, 0, 0, 0], 2).to_dict()
    assert Census.from_dict(fields).num_blocks == 2
    with pytest.raises(ValueError, match="must"):
        Census.from_dict(fields | changes)


def test_a_census_that_is_put_together_has_no_more_packed_blocks_than_held_ones() -> None:
    census = take_census([1, 0, 0, 0], 2)
    assert (census.num_blocks, census.num_freed_blocks, census.num_packed_blocks) == (2, 1, 1)
    with pytest.raises(ValueError, match="counts that add up"):
        attrs.evolve(census, num_packed_blocks=2)


TWO_ROWS = [
    [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
]
COPIES_NOTHING = BlockPool(4, compactor="none")
FREES_NOTHING = BlockPool(4, frees="none")

IMPOSSIBLE: dict[str, tuple[list[Any], BlockPool, int, dict[str, Any]]] = {
    "a table of no rows": ([0] * 4, BlockPool(4), 0, {"rows_per_table": 0, "num_entries": 0}),
    "tokens of no table": (TWO_ROWS, BlockPool(4), 0, {"num_tables": 0}),
    "more free than empty": (TWO_ROWS, BlockPool(4), 0, {"counts": [1, 2, 2, 0, 0]}),
    "one free where none is taken back": (
        [0] * 8,
        FREES_NOTHING,
        0,
        {"num_freed_blocks": 1, "num_held_tokens": 4, "num_packed_blocks": 1},
    ),
    "a free block without a token": (
        TWO_ROWS,
        BlockPool(4),
        5,
        {"num_tokens": 16, "num_held_tokens": 16, "num_entries": 32},
    ),
    "free blocks overfull": (TWO_ROWS, BlockPool(4), 0, {"num_tokens": 19, "num_entries": 38}),
    "a held block without a token": (
        [0] * 4,
        FREES_NOTHING,
        0,
        {"counts": [5, 0, 0, 0, 0], "num_packed_blocks": 5},
    ),
    "held blocks overfull": (
        TWO_ROWS,
        COPIES_NOTHING,
        0,
        {"counts": [2, 0, 2, 0, 0], "num_packed_blocks": 2},
    ),
    "a pinned block without a token": (
        TWO_ROWS,
        BlockPool(4),
        0,
        {"num_floor_blocks": 2, "num_pinned_blocks": 1},
    ),
    "a pinned token without a block": (TWO_ROWS, BlockPool(4), 0, {"num_pinned_tokens": 1}),
    "fewer pinned entries than slots": (
        TWO_ROWS,
        BlockPool(4),
        5,
        {"num_pinned_live_entries": 1},
    ),
    "pinned entries without a slot": (
        TWO_ROWS,
        BlockPool(4),
        0,
        {"num_pinned_live_entries": 1},
    ),
    "fewer entries than slots": (TWO_ROWS, BlockPool(4), 0, {"num_live_entries": 0}),
    "more entries than rows hold": (TWO_ROWS, BlockPool(4), 0, {"counts": [3, 1, 1, 0, 0]}),
    "more live than held": ([1, 1, 1, 1, 0, 0, 0], BlockPool(4), 0, {"num_held_tokens": 3}),
    "more live than held behind the pinned": (
        [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0],
        BlockPool(4),
        4,
        {"num_held_tokens": 7},
    ),
    "no packed block behind the pinned": (
        [1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0],
        BlockPool(4),
        4,
        {"num_floor_blocks": 1},
    ),
    "more moved blocks than come free": (
        [1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0],
        BlockPool(4),
        0,
        {"num_packed_blocks": 3},
    ),
    "more entries than packed blocks hold": (
        TWO_ROWS,
        BlockPool(4),
        0,
        {"num_live_entries": 9},
    ),
    "moved blocks that are not there": (TWO_ROWS, BlockPool(4), 0, {"counts": [3, 0, 2, 0, 0]}),
    "blocks packed without a move": (TWO_ROWS, BlockPool(4), 0, {"num_packed_blocks": 1}),
    "moves of other rows": (
        TWO_ROWS,
        BlockPool(4),
        0,
        {"rows_per_table": 3, "num_entries": 54},
    ),
    "blocks packed without a compactor": (TWO_ROWS, COPIES_NOTHING, 0, {"num_packed_blocks": 1}),
    "moves without a compactor": (TWO_ROWS, COPIES_NOTHING, 0, {"num_moved_entries": 1}),
}


@pytest.mark.parametrize(
    ("keep", "pool", "pinned", "changes"), IMPOSSIBLE.values(), ids=list(IMPOSSIBLE)
)
def test_what_no_table_can_hold_is_refused(
    keep: list[Any], pool: BlockPool, pinned: int, changes: dict[str, Any]
) -> None:
    """Each change breaks one rule only, by one."""
    axes = "ht" if isinstance(keep[0], list) else "t"
    fields = take_census(keep, pool, axes=axes, pinned=pinned).to_dict()
    assert Census.from_dict(fields).to_dict() == fields
    with pytest.raises(ValueError, match="a Census must have counts that add up; got fields that"):
        Census.from_dict(fields | changes)


@pytest.mark.parametrize("pool", ONE_OF_EACH_COMPACTOR)
def test_what_was_counted_is_read_back(pool: BlockPool) -> None:
    pool = pool.replace(shared_axes="h")
    censuses = [
        take_census(TWO_ROWS, pool, axes="ht", pinned=pinned, offset=offset)
        for pinned in range(19)
        for offset in range(4)
    ]
    for census in (*censuses, merge(censuses), Census.empty(pool)):
        assert Census.from_dict(census.to_dict()) == census


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"pool": 5}, ValueError, "pool must be a dict of the fields of a BlockPool .*; got int 5"),
        ({"pool": {"block_size": 2}}, ValueError, r"got dict \{'block_size': 2\}; pass what"),
        ({"pool": None}, ValueError, "got NoneType None; pass what Census.to_dict returned"),
        ({"counts": 5}, TypeError, "counts must be .* for each .*; got int 5; write a list"),
        ({"counts": None}, TypeError, "counts must be a number of blocks for each .*; got None"),
        ({"movable": np.array(5)}, TypeError, "movable must be a number of blocks for each"),
    ],
)
def test_fields_of_another_kind_are_refused(
    changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        Census.from_dict(take_census([1, 0, 0, 0], 2).to_dict() | changes)


def test_a_dict_of_other_fields_is_refused() -> None:
    fields = take_census([1, 0, 0, 0], 2).to_dict()
    with pytest.raises(ValueError, match="extra"):
        Census.from_dict(fields | {"extra": 1})
    del fields["num_tokens"]
    with pytest.raises(ValueError, match="num_tokens"):
        Census.from_dict(fields)
    with pytest.raises(TypeError, match="num_tables must be an integer"):
        Census.from_dict(take_census([1], 2).to_dict() | {"num_tables": 1.0})
    with pytest.raises(TypeError, match="counts must be an integer"):
        Census.from_dict(take_census([1], 2).to_dict() | {"counts": [0, 1.0, 0]})
    with pytest.raises(TypeError, match="movable must be an integer"):
        Census.from_dict(take_census([1], 2).to_dict() | {"movable": [0, 1.0, 0]})


# --- Kept apart by an axis ---


@given(cases(), st.data())
def test_take_censuses_is_take_census_of_each_slice(case: Case, data: st.DataObject) -> None:
    axes = case.said["axes"]
    outer = [letter for letter in axes if letter not in case.pool.shared_axes + "t"]
    by = "".join(data.draw(st.lists(st.sampled_from(outer), unique=True))) if outer else ""
    lengths = per_table(case, "lengths", case.keep.shape[axes.index("t")])
    offsets = per_table(case, "offset", 0)
    sizes = [case.keep.shape[axes.index(letter)] for letter in by]
    expected = {}
    for index in itertools.product(*map(range, sizes)):
        keep: Any = case.keep
        length: Any = lengths
        offset: Any = offsets
        left, left_outer = axes, "".join(outer)
        for letter, i in zip(by, index, strict=True):
            keep = keep.take(i, axis=left.index(letter))
            length = length.take(i, axis=left_outer.index(letter))
            offset = offset.take(i, axis=left_outer.index(letter))
            left, left_outer = left.replace(letter, ""), left_outer.replace(letter, "")
        expected[index] = take_census(keep, case.pool, axes=left, lengths=length, offset=offset)
    apart = take_censuses(case.keep, case.pool, by=by, **case.said)
    assert apart == expected
    assert list(apart) == list(expected)
    if apart:
        assert merge(apart.values()) == census_of(case)


def test_take_censuses_by_several_letters_in_their_order() -> None:
    keep = np.zeros((2, 3, 4), bool)
    keep[1, 2] = True
    pool = BlockPool(2, shared_axes="")
    for by, kept in (("lh", (1, 2)), ("hl", (2, 1)), ("l", (1,)), ("h", (2,)), ("", ())):
        apart = take_censuses(keep, pool, by=by, axes="lht")
        assert [index for index, part in apart.items() if part.num_live_entries] == [kept]
    assert list(take_censuses(keep, pool, by="hl", axes="lht"))[1] == (0, 1)


def test_take_censuses_repeats_lengths_and_offsets_of_size_1() -> None:
    keep = np.zeros((2, 2, 6), bool)
    apart = take_censuses(
        keep, 4, by="b", axes="sbt", lengths=[[6, 2]], offset=np.array([[1], [3]])
    )
    assert {index: part.num_tokens for index, part in apart.items()} == {(0,): 12, (1,): 4}
    assert {index: part.num_blocks for index, part in apart.items()} == {(0,): 5, (1,): 3}


def test_take_censuses_of_an_axis_of_size_0() -> None:
    assert take_censuses(np.zeros((0, 3), bool), 4, by="b", axes="bt") == {}


@pytest.mark.parametrize("by", ["h", "t", "bb", "x", "bh", "B", "b "])
def test_take_censuses_refuses_letters_that_cannot_be_kept_apart(by: str) -> None:
    with pytest.raises(ValueError, match="by must name axes of keep"):
        take_censuses(np.ones((2, 3, 4), bool), BlockPool(2), by=by, axes="bht")


# --- One mask, however it lies in memory ---


def layouts(keep: NDArray[np.bool_], directory: Path) -> dict[str, ArrayLike]:
    """Return the same mask in every way that an array can hold it."""
    strided = np.zeros(tuple(2 * size for size in keep.shape), bool)
    strided[(slice(None, None, 2),) * keep.ndim] = keep
    read_only = keep.copy()
    read_only.flags.writeable = False
    np.save(directory / "keep.npy", keep)
    dirty = np.where(keep, np.resize(np.array([1, 2, 128, 255], "u1"), keep.shape), 0)
    offset = np.zeros(keep.size + 3, bool)[3:].reshape(keep.shape)
    offset[...] = keep
    return {
        "Fortran": np.asfortranarray(keep),
        "reversed": keep[..., ::-1].copy()[..., ::-1],
        "reversed everywhere": np.flip(np.flip(keep).copy()),
        "strided": strided[(slice(None, None, 2),) * keep.ndim],
        "read-only": read_only,
        "odd address": offset,
        "int8": keep.astype(np.int8),
        "uint8": keep.astype(np.uint8),
        "uint8, reversed": np.flip(np.flip(keep.astype(np.uint8)).copy()),
        "int64": keep.astype(np.int64),
        "big-endian": keep.astype(">i4"),
        "big-endian, Fortran": np.asfortranarray(keep.astype(">u2")),
        "list": keep.tolist(),
        "tuple of arrays": tuple(keep),
        "list of 0 and 1": keep.astype(int).tolist(),
        "memory-mapped": np.load(directory / "keep.npy", mmap_mode="r"),
        "dirty booleans": dirty.view(bool),
        "subclass": keep.view(type("Mask", (np.ndarray,), {})),
    }


@pytest.mark.parametrize("pool", ONE_OF_EACH_COMPACTOR)
@pytest.mark.parametrize("piece", [16, 1 << 20])
def test_every_layout_counts_the_same(pool: BlockPool, piece: int, tmp_path: Path) -> None:
    keep = np.random.default_rng(3).random((2, 3, 2, 37)) < 0.15
    for axes in ("blht", "lthb"):
        expected = oracle.census(keep.tolist(), pool, axes)
        for name, same in layouts(keep, tmp_path).items():
            with mock.patch.object(occupancy, "PIECE", piece):
                assert fields_of(take_census(same, pool, axes=axes)) == expected, name


def test_dirty_booleans_count_as_numpy_counts_them() -> None:
    dirty = np.array([1, 2, 255, 0] * 4, "u1").view(bool)
    census = take_census(dirty, 2)
    assert census.num_live_tokens == np.count_nonzero(dirty) == 12
    assert census.counts == (0, 4, 4)
    for compactor, moved in (("fill", 3), ("pack", 9), ("pack_rows", 9), ("evacuate_rows", 2)):
        assert take_census(dirty, BlockPool(2, compactor=compactor)).num_moved_entries == moved


@pytest.mark.parametrize("pool", ONE_OF_EACH_COMPACTOR)
def test_a_broadcast_mask_is_a_repeated_one(pool: BlockPool) -> None:
    row = np.random.default_rng(5).random((3, 1, 21)) < 0.2
    broadcast = np.broadcast_to(row, (2, 3, 4, 21))
    assert broadcast.strides[0] == 0
    repeated = np.tile(row, (2, 1, 4, 1))
    assert take_census(broadcast, pool, axes="blht") == take_census(repeated, pool, axes="blht")


@pytest.mark.parametrize("pool", ONE_OF_EACH_COMPACTOR)
def test_nothing_is_written_to(pool: BlockPool) -> None:
    rng = np.random.default_rng(7)
    keep = rng.random((3, 2, 2, 30)) < 0.3
    lengths = np.full(3, 29, np.uint16)
    keep[..., 29:] = False
    offset = np.array([1, 0, 3], ">i4")
    before = [array.tobytes() for array in (keep, lengths, offset)]
    for array in (keep, lengths, offset):
        array.flags.writeable = False
    shared = pool.replace(shared_axes="lh")
    take_census(keep, shared, axes="blht", lengths=lengths, offset=offset)
    take_censuses(keep, shared, by="b", axes="blht", lengths=lengths, offset=offset)
    assert [array.tobytes() for array in (keep, lengths, offset)] == before
    writable = keep.copy()
    take_census(writable, shared, axes="blht", lengths=lengths, offset=offset)
    np.testing.assert_array_equal(writable, keep)


@given(cases())
def test_axes_in_any_order(case: Case) -> None:
    axes = case.said["axes"]
    shared = [letter for letter in axes if letter in case.pool.shared_axes]
    outer = [letter for letter in axes if letter not in case.pool.shared_axes + "t"]
    for order in ([*outer, *shared, "t"], ["t", *shared, *outer]):
        moved = case.keep.transpose([axes.index(letter) for letter in order])
        said = case.said | {"axes": "".join(order)}
        assert take_census(moved, case.pool, **said) == census_of(case)


@pytest.mark.parametrize("letters", ["bt", "xt", "lt"])
def test_axes_may_be_left_out(letters: str) -> None:
    keep = [[1, 0, 0, 0], [0, 0, 0, 1]]
    assert take_census(keep[0], 2) == take_census(keep[0], 2, axes="t")
    alone = BlockPool(2, shared_axes="")
    assert take_census(keep, alone) == take_census(keep, alone, axes=letters)
    lengths = [2, 4]
    assert take_census(keep, alone, lengths=lengths).num_tokens == 6
    assert take_census([keep], alone, lengths=[lengths], offset=[[1, 0]]).num_tokens == 6


def test_lengths_and_offsets_are_repeated_and_flat_ones_belong_to_b() -> None:
    keep = np.zeros((2, 2, 4), bool)
    keep[0, 0, :2] = keep[:, 1, 0] = True
    pool = BlockPool(2)
    grid = take_census(keep, pool, axes="sbt", lengths=[[2, 1], [2, 1]], offset=[[0, 1], [0, 1]])
    assert (grid.num_tokens, grid.num_blocks) == (6, 4)
    for lengths, offset in (
        ([[2, 1]], [[0, 1]]),
        ([2, 1], [0, 1]),
        (np.array([2, 1], np.uint8), np.array([[0, 1]], ">i2")),
    ):
        assert take_census(keep, pool, axes="sbt", lengths=lengths, offset=offset) == grid
    same = take_census(keep, pool, axes="sbt", lengths=[[3], [2]], offset=1)
    assert same == take_census(keep, pool, axes="sbt", lengths=[[3, 3], [2, 2]], offset=[[1]])
    assert take_census(keep, pool, axes="bst", lengths=[3, 2], offset=[1]) == same


def test_an_integer_stands_for_a_pool() -> None:
    assert take_census([1, 0, 0], 2) == take_census([1, 0, 0], BlockPool(2))
    assert take_census([1, 0, 0], np.int32(2)).pool == BlockPool(2)  # type: ignore[arg-type]


# --- Sizes ---


@pytest.mark.parametrize("block_size", [248, 255, 256, 257, 264, 65_535])
@pytest.mark.parametrize("compactor", ["evacuate", "evacuate_rows", "fill", "pack", "pack_rows"])
def test_large_blocks(block_size: int, compactor: str) -> None:
    pool = BlockPool(block_size, compactor=compactor)
    keep = np.ones((2, 2 * block_size + 9), bool)
    keep[:, block_size // 2] = False
    keep[1, block_size:] = False
    census = take_census(keep, pool, axes="ht", offset=1)
    blocks = [block_size - 2, block_size, 10]
    assert census.num_blocks == sum(census.counts) == 3
    assert {k for k, count in enumerate(census.counts) if count} == set(blocks)
    assert census.num_live_tokens == sum(blocks)
    assert census.num_live_entries == sum(blocks) + block_size - 1
    assert census.num_floor_blocks == census.num_packed_blocks == 3
    assert (
        census.num_moved_entries
        == {
            "evacuate": 0,
            "evacuate_rows": 0,
            "fill": 2 * 2,
            "pack": 2 * sum(blocks),
            "pack_rows": sum(blocks) + block_size - 1,
        }[compactor]
    )


def test_the_largest_block_may_be_full() -> None:
    keep = np.ones(3 * 65_535, bool)
    keep[65_535 : 2 * 65_535] = False
    keep[-1] = False
    census = take_census(keep, 65_535)
    assert (census.counts[0], census.counts[65_534], census.counts[65_535]) == (1, 1, 1)
    assert census.num_freed_blocks == 1


@pytest.mark.parametrize("rows", [255, 256, 257, 1000])
@pytest.mark.parametrize("compactor", ["evacuate", "evacuate_rows", "pack", "pack_rows"])
def test_many_rows(rows: int, compactor: str) -> None:
    keep = np.zeros((rows, 40), bool)
    keep[:, 0] = keep[0, 9] = keep[-1, 25] = keep[:, 24] = True  # blocks of 1, 1, 0, 2, 0 slots
    census = take_census(keep, BlockPool(8, compactor=compactor), axes="ht")
    assert census.rows_per_table == rows
    assert census.counts == (2, 2, 1, 0, 0, 0, 0, 0, 0)
    assert census.num_live_entries == 2 * rows + 2
    assert census.num_floor_blocks == 1
    assert (
        census.num_moved_entries
        == {
            "evacuate": 2 * rows,
            "evacuate_rows": rows + 1,
            "pack": 3 * rows,
            "pack_rows": rows + 2,
        }[compactor]
    )


def test_many_tables_at_once() -> None:
    keep = np.random.default_rng(11).random((5_000, 10)) < 0.2
    blocks = keep.reshape(-1, 5).sum(axis=1)
    census = take_census(keep, BlockPool(5, shared_axes=""))
    assert census.num_tables == 5_000
    assert census.counts == tuple(np.bincount(blocks, minlength=6).tolist())
    assert census.num_freed_blocks == np.count_nonzero(blocks == 0)


@pytest.mark.parametrize("pool", ONE_OF_EACH_COMPACTOR)
@pytest.mark.parametrize("block_size", [1, 4])
def test_pieces_of_any_size_give_the_same(pool: BlockPool, block_size: int) -> None:
    pool = pool.replace(block_size=block_size)
    keep = np.random.default_rng(13).random((3, 2, 2, 90)) < 0.04
    keep[0, :, :, :20] = keep[1, :, :, 60:] = True
    keep[2, :, 1] |= keep[2, :, 0]
    outer = [
        size
        for letter, size in zip("blh", (3, 2, 2), strict=True)
        if letter not in pool.shared_axes
    ]
    for offset in (0, np.arange(np.prod(outer)).reshape(outer) % block_size):
        nested = np.asarray(offset).tolist()
        expected = oracle.census(keep.tolist(), pool, "blht", offset=nested)
        for piece in (1, 3, 8, 50, 333, 1 << 20):
            with mock.patch.object(occupancy, "PIECE", piece):
                for same in (keep, np.asfortranarray(keep)):
                    census = take_census(same, pool, axes="blht", offset=offset)
                    assert fields_of(census) == expected


@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_a_token_beyond_its_length_is_found_in_any_piece(piece: int) -> None:
    keep = np.zeros((2, 40), bool)
    keep[1, 30] = True
    with (
        mock.patch.object(occupancy, "PIECE", piece),
        pytest.raises(ValueError, match="True at token 30 of sequence 1, which has 20 tokens"),
    ):
        take_census(keep, 4, axes="bt", lengths=[40, 20], offset=[0, 3])


def test_a_table_larger_than_a_piece() -> None:
    keep = np.zeros((2, 1 << 20), bool)
    keep[0, : 1 << 19] = True
    keep[1, -1] = True
    for compactor, packed, moved in (
        ("evacuate", (1 << 15) + 1, 0),
        ("evacuate_rows", 1 << 15, 1),
        ("pack", (1 << 15) + 1, 2),
        ("pack_rows", 1 << 15, 1),
        ("fill", (1 << 15) + 1, 2),
    ):
        census = take_census(keep, BlockPool(16, compactor=compactor), axes="ht")
        assert census.num_freed_blocks == (1 << 15) - 1
        assert census.num_packed_blocks == packed
        assert census.num_moved_entries == moved


# --- Found once ---


@example(keep=[[False], [True]], lengths=[0, 1])  # the first table has no block at all
@example(keep=[[False] * 9, [False] * 9], lengths=[9, 8])  # tails partly and wholly written
@given(
    keep=st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=3),
    lengths=st.lists(st.integers(0, 9), min_size=3, max_size=3),
)
@pytest.mark.parametrize("pool", ONE_OF_EACH_COMPACTOR)
def test_ragged_batches_equal_the_oracle(
    pool: BlockPool, keep: list[list[bool]], lengths: list[int]
) -> None:
    lengths = lengths[: len(keep)]
    keep = [
        [kept and i < n for i, kept in enumerate(row)] for row, n in zip(keep, lengths, strict=True)
    ]
    census = take_census(keep, pool, axes="bt", lengths=lengths)
    assert fields_of(census) == oracle.census(keep, pool, "bt", lengths)
