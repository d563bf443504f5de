"""Laws that hold for every mask: what may change a number, in which direction, and what may not.

They use no second implementation, so they also hold where the oracle could be wrong. A law that
needs a condition says so in its name or its first line.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import LEGAL_COMPACTORS, SMALL_BLOCKS, Case, cases, pools, tables

from kvreclaim import (
    BlockPool,
    Census,
    capacity_gain,
    compacted_reclaim,
    effective_rows,
    effective_tokens_per_block,
    fragmentation,
    logical_saving,
    memory_waste,
    moved_tokens_per_block,
    packed_reclaim,
    physical_reclaim,
    reclaim_curve,
    reclaim_efficiency,
    savings_breakdown,
    slots_per_move,
    take_census,
)

SMALL_POOLS = pools(SMALL_BLOCKS)


def census_of(case: Case, **changes: Any) -> Census:  # noqa: ANN401  # any field's value
    """Take the census under the case's pool with some fields changed."""
    pool = case.pool
    if changes.get("frees", pool.frees) != pool.frees:
        changes = {"compactor": "none"} | changes
    return take_census(case.keep, pool.replace(**changes), **case.said)


def freed_share_falls(coarse: Census, fine: Census) -> bool:
    """Whether the share of blocks freed is no larger in the first, by cross-multiplication."""
    return coarse.num_freed_blocks * fine.num_blocks <= fine.num_freed_blocks * coarse.num_blocks


def held_share_rises(coarse: Census, fine: Census) -> bool:
    """Whether the shares of blocks held after compaction, and packed, are no smaller."""
    return (
        coarse.num_packed_blocks * fine.num_blocks >= fine.num_packed_blocks * coarse.num_blocks
        and coarse.num_floor_blocks * fine.num_blocks >= fine.num_floor_blocks * coarse.num_blocks
    )


def reordered(case: Case, letter: str, order: list[int]) -> Case:
    """Permute one axis of the mask, and of the lengths and offsets that go with it."""
    axes = case.said["axes"]
    keep = case.keep.take(order, axis=axes.index(letter))
    outer = [c for c in axes if c != "t" and c not in case.pool.shared_axes]
    said = {
        name: value.take(order, axis=outer.index(letter))
        if letter in outer and name != "axes"
        else value
        for name, value in case.said.items()
    }
    return Case(keep, case.pool, said)


# --- What changes nothing ---


@given(cases(), st.randoms(use_true_random=False))
def test_sequences_and_rows_in_any_order(case: Case, rng: random.Random) -> None:
    expected = census_of(case)
    axes = case.said["axes"]
    for letter, size in zip(axes, case.keep.shape, strict=True):
        if letter != "t":
            case = reordered(case, letter, rng.sample(range(size), size))
    assert census_of(case) == expected


@given(
    cases(pools(SMALL_BLOCKS, frees_of=("any",)), multiple_of=1), st.randoms(use_true_random=False)
)
def test_whole_blocks_in_any_order_if_any_may_be_freed(case: Case, rng: random.Random) -> None:
    """Full blocks and ``frees="any"``; what `fill` and `pack` move depends on positions."""
    case = Case(case.keep, case.pool, {"axes": case.said["axes"]})  # all of one length
    time, size = case.said["axes"].index("t"), case.pool.block_size
    num_blocks = case.keep.shape[time] // size
    order = [
        block * size + slot
        for block in rng.sample(range(num_blocks), num_blocks)
        for slot in range(size)
    ]
    shuffled = case._replace(keep=case.keep.take(order, axis=time))
    before, after = census_of(case), census_of(shuffled)
    if case.pool.compactor in ("fill", "pack", "pack_rows"):
        fields = (census.to_dict() | {"num_moved_entries": None} for census in (before, after))
        assert next(fields) == next(fields)
    else:
        assert before == after


@given(
    cases(SMALL_POOLS, multiple_of=1),
    st.sampled_from(
        [
            ("any", "evacuate"),
            ("any", "evacuate_rows"),
            ("any", "none"),
            ("back", "none"),
            ("front", "none"),
        ]
    ),
    st.randoms(use_true_random=False),
)
def test_slots_of_a_whole_block_in_any_order_if_nothing_is_filled_or_packed(
    case: Case, rule: tuple[str, str], rng: random.Random
) -> None:
    case = Case(case.keep, case.pool, {"axes": case.said["axes"]})
    time, size = case.said["axes"].index("t"), case.pool.block_size
    order = [
        block + slot
        for block in range(0, case.keep.shape[time], size)
        for slot in rng.sample(range(size), size)
    ]
    shuffled = case._replace(keep=case.keep.take(order, axis=time))
    frees, compactor = rule
    assert census_of(shuffled, frees=frees, compactor=compactor) == census_of(
        case, frees=frees, compactor=compactor
    )


@given(cases(), st.integers(0, 20))
def test_padding_beyond_the_lengths(case: Case, more: int) -> None:
    time = case.said["axes"].index("t")
    tokens = case.keep.shape[time]
    widths = [(0, more if axis == time else 0) for axis in range(case.keep.ndim)]
    said = {"lengths": tokens} | case.said
    assert take_census(np.pad(case.keep, widths), case.pool, **said) == census_of(case)


@given(tables())
def test_an_offset_counts_like_dead_tokens_of_a_sequence_that_is_not_empty(case: Case) -> None:
    """In all but the tokens and entries themselves; and offset + stranded slots are the same."""
    if case.keep.shape[1] == 0:
        assert census_of(case).num_blocks == 0
        return
    offset = case.said["offset"]
    written = np.pad(case.keep, [(0, 0), (offset, 0)])
    behind, dead = census_of(case), take_census(written, case.pool, axes="ht")
    tokens = {"num_tokens", "num_entries", "num_held_tokens"}
    assert {k: v for k, v in behind.to_dict().items() if k not in tokens} == {
        k: v for k, v in dead.to_dict().items() if k not in tokens
    }
    assert dead.num_tokens == behind.num_tokens + offset
    assert dead.num_held_tokens - behind.num_held_tokens in (0, offset)
    assert str(physical_reclaim(behind)) == str(physical_reclaim(dead))
    assert str(fragmentation(behind)) == str(fragmentation(dead))


@given(tables())
def test_read_backwards_with_a_closed_tail(case: Case) -> None:
    """The end of the last block becomes the offset; what was free at the front is at the back."""
    offset, tokens = case.said["offset"], case.keep.shape[1]
    said = {"axes": "ht", "offset": -(offset + tokens) % case.pool.block_size if tokens else 0}
    backwards = Case(case.keep[:, ::-1], case.pool, said)
    for frees, mirrored in (("any", "any"), ("front", "back"), ("back", "front")):
        forth = census_of(case, frees=frees, compactor="none", open_tail=False)
        back = census_of(backwards, frees=mirrored, compactor="none", open_tail=False)
        assert forth.to_dict() | {"pool": None} == back.to_dict() | {"pool": None}


@given(tables(), st.integers(1, 4))
def test_a_table_of_equal_rows_measures_as_one_row(case: Case, copies: int) -> None:
    one = take_census(case.keep[:1], case.pool, axes="ht", offset=case.said["offset"])
    many = take_census(
        np.repeat(case.keep[:1], copies, axis=0), case.pool, axes="ht", offset=case.said["offset"]
    )
    for metric in (
        logical_saving,
        physical_reclaim,
        reclaim_efficiency,
        fragmentation,
        packed_reclaim,
        compacted_reclaim,
        moved_tokens_per_block,
        slots_per_move,
        memory_waste,
        capacity_gain,
        effective_rows,
    ):
        assert str(metric(many)) == str(metric(one)), metric.__name__
    assert savings_breakdown(many).num_unshared == 0
    assert many.num_moved_entries == copies * one.num_moved_entries


@given(cases())
def test_letters_that_the_mask_does_not_have_count_as_size_1(case: Case) -> None:
    more = case.pool.replace(shared_axes=case.pool.shared_axes + "xyz")
    census = take_census(case.keep, more, **case.said)
    assert census.to_dict() | {"pool": None} == census_of(case).to_dict() | {"pool": None}


@given(cases())
def test_evacuate_rows_is_evacuate_where_a_table_has_one_row(case: Case) -> None:
    case = case._replace(pool=case.pool.replace(shared_axes=""))
    said = {"axes": case.said["axes"]}
    pool = case.pool.replace(frees="any", compactor="evacuate")
    slots = take_census(case.keep, pool, **said)
    rows = take_census(case.keep, pool.replace(compactor="evacuate_rows"), **said)
    fields = {"pool": None, "movable": None}
    assert slots.to_dict() | fields == rows.to_dict() | fields


# --- What is conserved ---


@given(cases())
def test_blocks_and_tokens_are_conserved(case: Case) -> None:
    c = census_of(case)
    size, rows = c.pool.block_size, c.rows_per_table
    assert sum(c.counts) == c.num_blocks == c.num_freed_blocks + c.num_held_blocks
    assert sum(k * count for k, count in enumerate(c.counts)) == c.num_live_tokens
    assert c.num_live_tokens + c.num_stranded_tokens + c.num_slack_slots == c.num_held_blocks * size
    assert c.num_live_entries == np.count_nonzero(case.keep)
    assert c.num_entries == c.num_tokens * rows
    assert c.num_live_tokens <= c.num_live_entries <= c.num_live_tokens * rows
    assert c.num_held_blocks >= c.num_nonempty_blocks
    assert c.num_freed_blocks <= c.counts[0]
    assert c.num_tokens <= c.num_blocks * size
    assert min(c.num_stranded_tokens, c.num_slack_slots, c.num_compactable_blocks) >= 0
    assert sum(c.movable) in (0, c.num_compactable_blocks)
    assert all(moved <= count for moved, count in zip(c.movable, c.counts, strict=False))
    assert c.num_moved_entries <= c.num_live_tokens * rows


@given(cases())
def test_blocks_are_the_written_slots_rounded_up_for_each_sequence(case: Case) -> None:
    axes, shared = case.said["axes"], case.pool.shared_axes
    sizes = [
        size
        for letter, size in zip(axes, case.keep.shape, strict=True)
        if letter != "t" and letter not in shared
    ]
    tokens = case.keep.shape[axes.index("t")]
    lengths = np.broadcast_to(case.said.get("lengths", tokens), sizes).ravel()
    offsets = np.broadcast_to(case.said.get("offset", 0), sizes).ravel()
    census = census_of(case)
    assert census.num_tables == len(lengths)
    assert census.num_tokens == sum(lengths)
    assert census.num_blocks == sum(
        case.pool.num_blocks_for(int(length + offset))
        for length, offset in zip(lengths, offsets, strict=True)
        if length
    )


@given(cases(multiple_of=1))
def test_no_slack_in_whole_blocks(case: Case) -> None:
    census = census_of(case)
    assert census.num_slack_slots == 0
    assert census.num_blocks * census.pool.block_size == census.num_tokens
    held = census.num_held_blocks * census.pool.block_size
    assert census.num_held_tokens == held


@given(cases(multiple_of=1))
def test_whole_blocks_return_no_more_than_was_evicted(case: Case) -> None:
    """Only a partly written block makes the efficiency exceed 1."""
    census = census_of(case)
    for blocks in (census.num_freed_blocks, census.num_blocks - census.num_floor_blocks):
        assert blocks * census.num_entries <= census.num_evicted_entries * census.num_blocks
    assert not reclaim_efficiency(census) > 1


@given(tables(), st.booleans())
def test_over_all_offsets_each_window_of_a_block_is_seen_once(case: Case, dead: bool) -> None:
    """Closed tail and any block free: freed blocks are the windows without a live token."""
    keep = case.keep & (not dead)
    tokens, size = keep.shape[1], case.pool.block_size
    pool = BlockPool(size)
    censuses = [take_census(keep, pool, axes="ht", offset=offset) for offset in range(size)]
    windows = [keep[:, max(start, 0) : start + size] for start in range(1 - size, tokens) if tokens]
    whole = sum(censuses, Census.empty(pool))
    assert whole.num_blocks == len(windows)
    assert whole.num_freed_blocks == sum(not window.any() for window in windows)
    assert whole.num_tokens == tokens * size


# --- What may only rise or fall ---


@given(cases(), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_evicting_more_never_lowers_reclaim(case: Case, seed: int, share: float) -> None:
    fewer = case.keep & (np.random.default_rng(seed).random(case.keep.shape) < share)
    before, after = census_of(case), take_census(fewer, case.pool, **case.said)
    assert after.num_blocks == before.num_blocks
    assert after.num_freed_blocks >= before.num_freed_blocks
    assert after.num_packed_blocks <= before.num_packed_blocks
    assert after.num_floor_blocks <= before.num_floor_blocks
    assert after.num_held_tokens <= before.num_held_tokens
    assert after.num_live_entries <= before.num_live_entries
    assert after.counts[0] >= before.counts[0]


@st.composite
def sharing_cases(draw: st.DrawFn) -> Case:
    """Masks over sequences, layers and kv heads whose sequences have a length and an offset."""
    pool = draw(SMALL_POOLS).replace(shared_axes="")
    tokens = draw(st.integers(0, 40))
    sizes = draw(st.tuples(*[st.integers(1, 3)] * 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dead_runs = rng.integers(0, tokens + 1, (2, sizes[0]))
    keep = rng.random((*sizes, tokens)) < rng.choice([0.02, 0.2, 0.9])
    lengths = rng.integers(0, tokens + 1, sizes[0])
    for sequence, (start, stop) in enumerate(dead_runs.T):
        keep[sequence, ..., start:stop] = False
        keep[sequence, ..., lengths[sequence] :] = False
    offset = rng.integers(0, pool.block_size, sizes[0])
    return Case(keep, pool, {"axes": "blht", "lengths": lengths, "offset": offset})


@given(sharing_cases())
def test_sharing_more_never_raises_reclaim(case: Case) -> None:
    """Of sequences whose layers and heads have one length and one offset."""
    per_head, per_layer, per_head_index, all_together = (
        census_of(case, shared_axes=shared) for shared in ("", "h", "l", "lh")
    )
    for fine, coarse in (
        (per_head, per_layer),
        (per_head, per_head_index),
        (per_layer, all_together),
        (per_head_index, all_together),
    ):
        assert freed_share_falls(coarse, fine)
        assert held_share_rises(coarse, fine)
        assert coarse.num_entries == fine.num_entries
        assert coarse.num_live_entries == fine.num_live_entries
        unshared = (savings_breakdown(census).num_unshared for census in (fine, coarse))
        assert next(unshared) <= next(unshared)


@given(cases(pools(st.just(1), frees_of=("any",))))
def test_blocks_of_one_slot_and_one_row_give_back_what_is_evicted(case: Case) -> None:
    """``frees="any"`` and tables of one row; a tail of one slot is never partly written."""
    pool = case.pool.replace(shared_axes="")
    census = take_census(case.keep, pool, axes=case.said["axes"])
    saving = str(logical_saving(census))
    assert str(physical_reclaim(census)) == saving
    assert str(packed_reclaim(census)) == str(compacted_reclaim(census)) == saving
    assert reclaim_efficiency(census) == 1 or saving in ("0.0", "nan")
    assert fragmentation(census) == 0 or saving in ("1.0", "nan")
    assert effective_tokens_per_block(census) == 1 or saving in ("0.0", "1.0", "nan")


@given(cases())
def test_in_place_then_the_own_compactor_then_packed(case: Case) -> None:
    c = census_of(case)
    assert c.num_freed_blocks <= c.num_blocks - c.num_packed_blocks
    assert c.num_packed_blocks >= c.num_floor_blocks
    if c.num_blocks:
        assert physical_reclaim(c) <= compacted_reclaim(c) <= packed_reclaim(c)
    if case.pool.compactor == "none":
        assert c.num_packed_blocks == c.num_held_blocks
        assert c.num_moved_entries == 0


@given(
    cases(SMALL_POOLS, multiple_of=6),
    st.sampled_from([(1, 2), (1, 3), (2, 3), (3, 2), (1, 6)]),
)
def test_larger_blocks_of_whole_ones_never_raise_reclaim(
    case: Case, steps: tuple[int, int]
) -> None:
    """Lengths that are multiples of the larger block, and no offset."""
    first, factor = steps
    fine = census_of(case, block_size=first * case.pool.block_size)
    coarse = census_of(case, block_size=factor * first * case.pool.block_size)
    assert fine.num_blocks == factor * coarse.num_blocks
    assert freed_share_falls(coarse, fine)
    assert held_share_rises(coarse, fine)
    assert coarse.num_live_tokens == fine.num_live_tokens
    assert coarse.num_stranded_tokens >= fine.num_stranded_tokens


@given(cases())
def test_none_frees_least_then_one_end_then_any(case: Case) -> None:
    none, back, front, both = (
        census_of(case, frees=frees, compactor="none") for frees in ("none", "back", "front", "any")
    )
    assert none.num_freed_blocks == 0
    assert none.num_held_tokens == none.num_tokens
    assert max(back.num_freed_blocks, front.num_freed_blocks) <= both.num_freed_blocks
    assert back.num_held_tokens >= both.num_held_tokens
    assert none.counts == back.counts == front.counts == both.counts
    assert {c.num_floor_blocks for c in (none, back, front)} == {both.num_floor_blocks}


@given(cases())
def test_an_open_tail_holds_at_most_one_more_block_of_each_table_unless_it_ends_the_run(
    case: Case,
) -> None:
    """With ``frees="back"`` a dead open tail holds everything before it as well."""
    closed, opened = (census_of(case, open_tail=open_tail) for open_tail in (False, True))
    assert opened.num_freed_blocks <= closed.num_freed_blocks
    if case.pool.frees != "back":
        assert opened.num_freed_blocks >= closed.num_freed_blocks - closed.num_tables
    if case.pool.compactor != "none":  # a full compaction rewrites the table
        assert opened.num_packed_blocks == closed.num_packed_blocks
        assert opened.num_moved_entries == closed.num_moved_entries


@given(cases(multiple_of=1))
def test_a_full_last_block_is_not_open(case: Case) -> None:
    closed, opened = (census_of(case, open_tail=open_tail) for open_tail in (False, True))
    assert closed.to_dict() | {"pool": None} == opened.to_dict() | {"pool": None}


@given(cases())
def test_evacuate_moves_least_then_fill_then_pack(case: Case) -> None:
    moves = {name: census_of(case, frees="any", compactor=name) for name in LEGAL_COMPACTORS["any"]}
    entries = {name: census.num_moved_entries for name, census in moves.items()}
    assert 0 == entries["none"] <= entries["evacuate"] <= entries["fill"] <= entries["pack"]
    assert entries["evacuate_rows"] <= entries["pack_rows"]
    slots = {moves[name].num_packed_blocks for name in ("evacuate", "fill", "pack")}
    rows = {moves[name].num_packed_blocks for name in ("evacuate_rows", "pack_rows")}
    assert len(slots) == len(rows) == 1
    assert rows == {moves["none"].num_floor_blocks}
    assert min(rows) <= min(slots) <= moves["none"].num_held_blocks


@given(tables())
def test_what_a_full_compaction_holds_is_what_a_packed_mask_holds_in_place(case: Case) -> None:
    """Survivors first, in every row or in the table; the slots of the offset are used too."""
    if case.pool.compactor == "none":
        case = case._replace(pool=case.pool.replace(frees="any", compactor="pack"))
    rows, tokens = case.keep.shape
    by_row = case.pool.compactor in ("pack_rows", "evacuate_rows")
    if by_row:
        live = case.keep.sum(axis=1, keepdims=True)
    else:
        live = np.full((rows, 1), np.count_nonzero(case.keep.any(axis=0)))
    packed = np.arange((tokens and case.said["offset"]) + tokens) < live
    before = census_of(case)
    after = take_census(packed, case.pool.replace(open_tail=False), axes="ht")
    assert after.num_blocks == before.num_blocks
    assert after.num_held_blocks == before.num_packed_blocks
    assert after.num_floor_blocks <= after.num_packed_blocks == before.num_packed_blocks
    assert after.num_moved_entries == after.num_compactable_blocks == 0


@given(cases(pools(frees_of=("any",))))
def test_the_curve_never_pays_more_than_a_full_block_less_a_hole(case: Case) -> None:
    """A block that is emptied is not full, and an emptier one is emptied first."""
    census = census_of(case, compactor="evacuate")
    steps = np.diff([0, *reclaim_curve(census)])
    assert sorted(steps.tolist()) == steps.tolist()
    assert all(step < census.pool.block_size for step in steps)


@given(tables(), st.data())
def test_cutting_at_a_block_border_never_changes_the_counts(
    case: Case, data: st.DataObject
) -> None:
    """Any block free and a closed tail: two tables of whole blocks are as one."""
    pool = BlockPool(case.pool.block_size, shared_axes="h", compactor="none")
    offset, size = case.said["offset"], pool.block_size
    borders = [0, *range(size - offset, case.keep.shape[1], size)]
    cut = data.draw(st.sampled_from(borders))
    whole = take_census(case.keep, pool, axes="ht", offset=offset)
    first = take_census(case.keep[:, :cut], pool, axes="ht", offset=offset)
    second = take_census(case.keep[:, cut:], pool, axes="ht", offset=0 if cut else offset)
    ignored = {"num_tables": 0, "num_floor_blocks": 0}  # each table is packed by itself
    assert (first + second).to_dict() | ignored == whole.to_dict() | ignored
    assert whole.num_floor_blocks <= first.num_floor_blocks + second.num_floor_blocks


@given(st.lists(st.integers(0, 5), max_size=6), SMALL_BLOCKS, st.booleans())
def test_coherent_blocks_lose_nothing(pattern: list[int], size: int, open_tail: bool) -> None:
    """Whole blocks that live or die together: all of the saving comes back in place."""
    alive: NDArray[np.bool_] = np.array([number > 2 for number in pattern], bool)
    keep = np.repeat(alive, size)
    census = take_census(keep, BlockPool(size, open_tail=open_tail))
    assert str(physical_reclaim(census)) == str(logical_saving(census))
    assert census.num_stranded_tokens == census.num_moved_entries == 0
    assert not fragmentation(census) > 0
    assert set(np.flatnonzero(census.counts).tolist()) <= {0, size}


def test_every_mask_of_two_small_rows_keeps_the_order_of_the_three_reclaims() -> None:
    """All masks, not samples, under every freeing rule, compactor and tail."""
    every = [
        BlockPool(2, frees=frees, compactor=compactor, open_tail=open_tail)
        for frees, compactors in LEGAL_COMPACTORS.items()
        for compactor in compactors
        for open_tail in (False, True)
    ]
    masks = np.array(list(itertools.product((False, True), repeat=8))).reshape(-1, 2, 4)
    for pool in every:
        for offset in (0, 1):
            for mask in masks:
                c = take_census(mask, pool, axes="ht", offset=offset)
                assert c.num_floor_blocks <= c.num_packed_blocks <= c.num_held_blocks
