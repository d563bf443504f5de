"""Compaction plans: carried out move by move, counted, cut by budgets, kept off pinned blocks."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import attrs
import numpy as np
import oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import SMALL_BLOCKS, Case, cases, pools

from kvreclaim import (
    BlockPool,
    Census,
    blocks_for_moves,
    compaction_cost,
    reclaim_curve,
    take_census,
)
from kvreclaim.compaction import (
    CompactionPlan,
    apply_plan,
    compaction_plan,
    num_moves_for,
)

SMALL = cases(pools(SMALL_BLOCKS))
BY_ROWS = ("evacuate_rows", "pack_rows")
BLOCK_BY_BLOCK = ("evacuate", "fill")
TABLE_BY_TABLE = ("evacuate_rows", "pack", "pack_rows", "none")


def small(*compactors: str) -> st.SearchStrategy[Case]:
    return cases(pools(SMALL_BLOCKS, compactors=compactors))


class Table(NamedTuple):
    """One block table, laid out by the oracle."""

    blocks: list[oracle.Block]
    num_rows: int

    @property
    def slots(self) -> list[oracle.Slot]:
        return [slot for block in self.blocks for slot in block]

    @property
    def offset(self) -> int:
        return self.slots.count("offset")

    @property
    def num_tokens(self) -> int:
        return sum(isinstance(slot, list) for slot in self.slots)

    def live(self) -> list[bool]:
        return [oracle._is_live(slot) for slot in self.slots]

    def row(self, row: int) -> list[bool]:
        return [isinstance(slot, list) and slot[row] for slot in self.slots]


def census_of(case: Case) -> Census:
    return take_census(case.keep, case.pool, **case.said)


def plan_of(case: Case, **limits: Any) -> CompactionPlan:  # noqa: ANN401  # budget, pinned
    return compaction_plan(case.keep, case.pool, **case.said, **limits)


def tables_of(case: Case) -> list[Table]:
    """Lay every table out, one after another, in row-major order of the outer axes."""
    axes: str = case.said["axes"]
    shared = [i for i, letter in enumerate(axes) if letter in case.pool.shared_axes]
    outer = [i for i, letter in enumerate(axes) if letter != "t" and i not in shared]
    keep = case.keep.transpose([*outer, *shared, axes.index("t")])
    sizes = keep.shape[: len(outer)]
    tokens = keep.shape[-1]
    num_rows = math.prod(keep.shape[len(outer) : -1])
    lengths = np.broadcast_to(np.asarray(case.said.get("lengths", tokens)), sizes)
    offsets = np.broadcast_to(np.asarray(case.said.get("offset", 0)), sizes)
    tables = []
    for index in itertools.product(*map(range, sizes)):
        rows = keep[index].reshape(num_rows, tokens).tolist()
        size = case.pool.block_size
        blocks = oracle._lay_out(rows, int(lengths[index]), int(offsets[index]), size)
        tables.append(Table(blocks, len(rows)))
    return tables


def carry_out(tables: list[Table], plan: CompactionPlan) -> list[list[list[Any]]]:
    """Make one move after another, with a name for each survivor: state[table][row][slot]."""
    state: list[list[list[Any]]] = [
        [
            [(i, row, slot) if live else None for slot, live in enumerate(table.row(row))]
            for row in range(table.num_rows)
        ]
        for i, table in enumerate(tables)
    ]
    before = sorted(name for table in state for row in table for name in row if name)
    for number, *of_row, source, target in plan.moves:
        rows = [state[number][of_row[0]]] if of_row else state[number]
        assert any(slots[source] for slots in rows), "a move of nothing"
        assert not any(slots[target] for slots in rows), "a move onto a survivor"
        for slots in rows:
            slots[source], slots[target] = None, slots[source]
    after = sorted(name for table in state for row in table for name in row if name)
    assert after == before, "a survivor lost or doubled"
    for i, table_state in enumerate(state):
        for row, slots in enumerate(table_state):
            assert all(name[:2] == (i, row) for name in slots if name), "out of its row"
    return state


def empty_blocks(state: list[list[Any]], size: int) -> list[bool]:
    slots = len(state[0])
    return [
        not any(row[slot] for row in state for slot in range(first, first + size))
        for first in range(0, slots, size)
    ]


def taken_back(can_go: list[bool], frees: str) -> list[bool]:
    if frees == "back":
        return [all(can_go[block:]) for block in range(len(can_go))]
    if frees == "front":
        return [all(can_go[: block + 1]) for block in range(len(can_go))]
    return [frees == "any" and empty for empty in can_go]


def free_in_place(table: Table, pool: BlockPool, pinned: set[int]) -> list[bool]:
    can_go = [oracle._occupancy(block) == 0 for block in table.blocks]
    if can_go and pool.open_tail and table.blocks[-1][-1] == "unwritten":
        can_go[-1] = False
    can_go = [empty and block not in pinned for block, empty in enumerate(can_go)]
    return taken_back(can_go, pool.frees)


def pairs_of(flags: list[list[bool]]) -> list[tuple[int, int]]:
    return [(i, b) for i, table in enumerate(flags) for b, flag in enumerate(table) if flag]


def moves_by_table(plan: CompactionPlan, num_tables: int) -> list[list[tuple[int, ...]]]:
    of = [[move[1:] for move in plan.moves if move[0] == i] for i in range(num_tables)]
    assert [move for table in of for move in table] == [move[1:] for move in plan.moves]
    return of


# --- The full plan ---


@example(Case(np.zeros((0, 3), bool), BlockPool(2, frees="back"), {"axes": "bt"}))
@example(Case(np.zeros((2, 0), bool), BlockPool(2, shared_axes="h"), {"axes": "ht"}))
@given(SMALL)
def test_a_full_plan_is_what_the_census_counts(case: Case) -> None:
    census, plan, tables = census_of(case), plan_of(case), tables_of(case)
    state = carry_out(tables, plan)
    assert plan.num_moved_entries == census.num_moved_entries
    assert plan.num_freed_blocks == census.num_blocks - census.num_packed_blocks
    assert plan.num_freed_in_place == census.num_freed_blocks
    assert plan.num_gained_blocks == census.num_compactable_blocks
    size = case.pool.block_size
    if case.pool.compactor == "none":
        promised = [free_in_place(table, case.pool, set()) for table in tables]
    else:
        promised = [taken_back(empty_blocks(rows, size), case.pool.frees) for rows in state]
    assert list(plan.freed_blocks) == pairs_of(promised)


@given(small(*BLOCK_BY_BLOCK, *BY_ROWS, "pack"))
def test_what_is_left_cannot_be_compacted_further(case: Case) -> None:
    plan = plan_of(case)
    after = apply_plan(case.keep, plan)
    size = case.pool.block_size
    blocks = [len(table.blocks) for table in tables_of(case)]
    census = take_census(
        after,
        case.pool.replace(shared_axes="h"),
        axes="bht",
        lengths=[count * size for count in blocks],
    )
    assert census.num_blocks == sum(blocks) == census_of(case).num_blocks
    assert census.num_freed_blocks == plan.num_freed_blocks
    assert census.num_live_entries == census_of(case).num_live_entries
    assert census.num_compactable_blocks == 0


@given(SMALL, st.integers(0, 30))
def test_a_plan_applied_is_its_moves_made_one_by_one(case: Case, budget: int) -> None:
    for plan in (plan_of(case), plan_of(case, budget=budget)):
        state = carry_out(tables_of(case), plan)
        after = apply_plan(case.keep, plan)
        assert after.dtype == np.bool_
        assert after.shape[:2] == (len(state), census_of(case).rows_per_table)
        for table, rows in zip(after, state, strict=True):
            slots = len(rows[0])
            assert table[:, :slots].tolist() == [[bool(name) for name in row] for row in rows]
            assert not table[:, slots:].any()


@given(SMALL)
def test_each_compactor_moves_as_its_definition_says(case: Case) -> None:
    tables = tables_of(case)
    for table, moves in zip(tables, moves_by_table(plan_of(case), len(tables)), strict=True):
        compactor, live = case.pool.compactor, table.live()
        if compactor == "none":
            assert moves == []
        elif compactor == "fill":
            assert moves == oracle.fill_moves_by_simulation(live)
        elif compactor == "pack":
            assert moves == oracle.pack_moves_by_simulation(live)
        elif compactor == "pack_rows":
            assert moves == [
                (row, *move)
                for row in range(table.num_rows)
                for move in oracle.pack_moves_by_simulation(table.row(row))
            ]
        else:
            size = case.pool.block_size
            emptied = {move[-2] // size for move in moves}
            assert emptied.isdisjoint(move[-1] // size for move in moves)
            stay = [b for b, block in enumerate(table.blocks) if b not in emptied]
            weights = [
                sum(oracle._live_entries(block, row) for row in range(table.num_rows))
                if compactor == "evacuate_rows"
                else oracle._occupancy(block)
                for block in table.blocks
            ]
            held = [weights[b] for b in stay if weights[b]]
            assert max((weights[b] for b in emptied), default=0) <= min(held, default=math.inf)


def test_the_moves_of_kv_compress() -> None:
    keep = [
        1,
        0,
        0,
        1,
        0,
        0,
        0,
        1,
        0,
        0,
        1,
        0,
    ]  # the kernel lists (target, source): (1, 10), (2, 7)
    for frees in ("back", "any"):
        plan = compaction_plan(keep, BlockPool(4, frees=frees, compactor="fill"))
        assert plan.moves == ((0, 10, 1), (0, 7, 2))
        assert plan.freed_blocks == ((0, 1), (0, 2))
        assert plan.num_gained_blocks == plan.num_freed_blocks == 2


def test_slack_and_the_offset_are_holes() -> None:
    plan = compaction_plan([1, 1, 1, 0, 0, 0, 1, 1], 4, offset=1)
    assert (plan.moves, plan.freed_blocks) == (((0, 7, 0),), ((0, 1),))
    plan = compaction_plan([1, 0, 0, 0, 1], 4)
    assert (plan.moves, plan.freed_blocks) == (((0, 0, 5),), ((0, 0),))
    plan = compaction_plan([1, 0, 0, 0, 1], BlockPool(4, frees="back"))
    assert (plan.moves, plan.freed_blocks) == (((0, 4, 1),), ((0, 1),))


def test_slots_and_entries() -> None:
    keep = [[1, 0, 0, 0], [0, 0, 1, 0]]
    plan = compaction_plan(keep, 2, axes="ht")
    assert (plan.moves, plan.num_moves, plan.num_moved_entries) == (((0, 0, 3),), 1, 2)
    for compactor in BY_ROWS:
        plan = compaction_plan(keep, BlockPool(2, compactor=compactor), axes="ht")
        assert plan.num_moves == plan.num_moved_entries == 1
    assert plan.moves == ((0, 1, 2, 0),)
    assert apply_plan(keep, plan).astype(int).tolist() == [[[1, 0, 0, 0], [1, 0, 0, 0]]]


def test_tables_are_numbered_in_row_major_order() -> None:
    keep = np.zeros((2, 4, 3), bool)  # layers, tokens, sequences
    keep[1, 1, 2] = True
    pool = BlockPool(2, shared_axes="", compactor="pack")
    assert compaction_plan(keep, pool, axes="ltb").moves == ((5, 1, 0),)
    per_layer = pool.replace(shared_axes="b")
    assert compaction_plan(keep, per_layer, axes="ltb").moves == ((1, 1, 0),)


def test_an_open_tail_comes_free_where_its_table_is_compacted() -> None:
    keep = [1, 1, 0]
    for pool in (
        BlockPool(2, open_tail=True),
        BlockPool(2, open_tail=True, frees="back"),
        BlockPool(2, open_tail=True, compactor="pack_rows"),
    ):
        for budget in (None, 0, 5):
            plan = compaction_plan(keep, pool, budget=budget)
            assert (plan.moves, plan.freed_blocks) == ((), ((0, 1),))
            assert (plan.num_freed_in_place, plan.num_gained_blocks) == (0, 1)
        assert compaction_plan(keep, pool, pinned=[1]).freed_blocks == ()
    assert compaction_plan(keep, pool.replace(compactor="none")).freed_blocks == ()


def test_a_front_that_is_empty_is_free_without_a_move() -> None:
    keep = [0, 0, 0, 0, 1, 1, 0, 0]
    for frees, free in (("front", ((0, 0), (0, 1))), ("back", ((0, 3),)), ("none", ())):
        plan = compaction_plan(keep, BlockPool(2, frees=frees, compactor="none"))
        assert (plan.moves, plan.freed_blocks, plan.num_freed_in_place) == ((), free, len(free))


@given(SMALL)
def test_a_plan_is_a_value(case: Case) -> None:
    plan = plan_of(case)
    assert plan == plan_of(case) == pickle.loads(pickle.dumps(plan))  # noqa: S301  # written on this line
    assert hash(plan) == hash(plan_of(case))
    numbers = itertools.chain(*plan.moves, *plan.freed_blocks, plan.lengths, plan.offsets)
    assert {type(number) for number in numbers} <= {int}
    assert type(plan.num_freed_in_place) is int


# --- The fewest moves ---


@given(
    keep=st.lists(st.booleans(), max_size=8), block_size=st.integers(1, 3), open_tail=st.booleans()
)
def test_no_sequence_of_moves_is_cheaper_than_evacuation(
    keep: list[bool], block_size: int, open_tail: bool
) -> None:
    pool = BlockPool(block_size, open_tail=open_tail)
    held = [
        sum(keep[first : first + block_size])
        for first in range(0, len(keep), block_size)
        if any(keep[first : first + block_size]) or (open_tail and first + block_size > len(keep))
    ]
    full = compaction_plan(keep, pool)
    assert full.num_moves == oracle.fewest_moves_to_free(held, block_size, full.num_gained_blocks)
    assert oracle.fewest_moves_to_free(held, block_size, full.num_gained_blocks + 1) is None
    for budget in range(full.num_moves):
        plan = compaction_plan(keep, pool, budget=budget)
        apply_plan(keep, plan)
        fewest = oracle.fewest_moves_to_free(held, block_size, plan.num_gained_blocks)
        assert plan.num_moves == fewest
        more = oracle.fewest_moves_to_free(held, block_size, plan.num_gained_blocks + 1)
        assert more is not None
        assert more > budget


# --- Budgets ---


def block_by_block(case: Case, budget: int, pinned: frozenset[tuple[int, int]]) -> list[list[bool]]:
    """Cut the full plan by trying: always the next block that costs least, of the first such table.

    Returns which blocks are free then, and checks nothing of the plan that it is compared with.
    """
    tables = tables_of(case)
    full = moves_by_table(plan_of(case, pinned=sorted(pinned)), len(tables))
    free, reached = [], []
    for i, (table, moves) in enumerate(zip(tables, full, strict=True)):
        mine = {block for number, block in pinned if number == i}
        live, size = table.live(), case.pool.block_size
        states = []
        for made in range(len(moves) + 1):
            can_go = [block not in mine for block in range(len(table.blocks))]
            for slot, is_live in enumerate(live):
                can_go[slot // size] &= not is_live
            states.append(taken_back(can_go, case.pool.frees))
            if made < len(moves):
                source, target = moves[made]
                live[source], live[target] = False, True
        free.append(free_in_place(table, case.pool, mine))
        reached.append(states)
    made_of = [0] * len(tables)
    while True:
        offers: list[tuple[int, int]] = []
        for i, states in enumerate(reached):
            for made in range(made_of[i], len(states)):
                if sum(states[made]) > sum(free[i]):
                    offers.append((made - made_of[i], i))
                    break
        if not offers or min(offers)[0] > budget:
            return free
        cost, i = min(offers)
        budget -= cost
        made_of[i] += cost
        free[i] = reached[i][made_of[i]]


@given(small(*BLOCK_BY_BLOCK), st.data())
def test_a_budget_buys_the_cheapest_blocks(case: Case, data: st.DataObject) -> None:
    pinned = data.draw(some_blocks(case))
    full = plan_of(case, pinned=pinned)
    budget = data.draw(st.integers(0, full.num_moves + 1))
    plan = plan_of(case, pinned=pinned, budget=budget)
    assert plan.num_moves <= budget
    if budget >= full.num_moves:
        assert plan == full
    else:
        expected = block_by_block(case, budget, frozenset(pinned))
        assert list(plan.freed_blocks) == pairs_of(expected)
    carry_out(tables_of(case), plan)
    apply_plan(case.keep, plan)
    starts = zip(*(moves_by_table(each, len(full.lengths)) for each in (plan, full)), strict=True)
    assert all(whole[: len(part)] == part for part, whole in starts)


@given(cases(pools(SMALL_BLOCKS, frees_of=("any",))), st.integers(0, 60))
def test_a_budgeted_evacuation_gains_what_the_census_says(case: Case, budget: int) -> None:
    case = case._replace(pool=case.pool.replace(compactor="evacuate"))
    plan = plan_of(case, budget=budget)
    apply_plan(case.keep, plan)
    assert plan.num_gained_blocks == blocks_for_moves(census_of(case), budget)


@given(small(*TABLE_BY_TABLE), st.data())
def test_other_compactors_take_whole_tables(case: Case, data: st.DataObject) -> None:
    full = plan_of(case)
    budget = data.draw(st.integers(0, full.num_moves + 1))
    plan, tables = plan_of(case, budget=budget), tables_of(case)
    state = carry_out(tables, plan)
    apply_plan(case.keep, plan)
    assert plan.num_moves <= budget
    if budget >= full.num_moves:
        assert plan == full
        return
    wholes = moves_by_table(full, len(tables))
    free = [free_in_place(table, case.pool, set()) for table in tables]
    gains = [
        sum(number == i for number, _ in full.freed_blocks) - sum(free[i])
        for i in range(len(tables))
    ]
    prices = [(Fraction(len(wholes[i]), gain), i) for i, gain in enumerate(gains) if gain]
    left = budget
    expected: list[list[tuple[int, ...]]] = [[] for _ in tables]
    for _, i in sorted(prices):
        if len(wholes[i]) <= left:
            left -= len(wholes[i])
            expected[i] = wholes[i]
            free[i] = taken_back(empty_blocks(state[i], case.pool.block_size), case.pool.frees)
    assert moves_by_table(plan, len(tables)) == expected
    assert list(plan.freed_blocks) == pairs_of(free)


@given(SMALL, st.data())
def test_a_larger_budget_frees_no_fewer_blocks(case: Case, data: st.DataObject) -> None:
    pinned = data.draw(some_blocks(case))
    gained = [
        plan_of(case, budget=budget, pinned=pinned).num_gained_blocks
        for budget in data.draw(st.lists(st.integers(0, 60), min_size=2, max_size=4).map(sorted))
    ]
    assert gained == sorted(gained)
    assert all(blocks >= 0 for blocks in gained)
    assert gained[-1] <= plan_of(case, pinned=pinned).num_gained_blocks


def test_a_budget_leaves_out_what_frees_nothing() -> None:
    keep = [[0, 1, 0, 1], [1, 0, 1, 0]]
    pool = BlockPool(2, frees="back", compactor="pack")
    assert compaction_plan(keep, pool, axes="bt").moves == ((0, 1, 0), (0, 3, 1), (1, 2, 1))
    for budget in (1, 2):
        assert compaction_plan(keep, pool, axes="bt", budget=budget).moves == ((1, 2, 1),)
    assert compaction_plan([0, 1, 0], BlockPool(4, compactor="pack")).moves == ((0, 1, 0),)
    plan = compaction_plan([[0, 1, 0]] * 2, pool.replace(block_size=4), axes="bt", budget=1)
    assert (plan.moves, plan.freed_blocks) == ((), ())


def test_filling_stops_before_it_takes_a_free_block_in_vain() -> None:
    keep = [0, 0, 1, 1, 1, 0]  # block 0 is free until something is moved there
    pool = BlockPool(2, compactor="fill")
    full = compaction_plan(keep, pool)
    assert (full.moves, full.freed_blocks) == (((0, 4, 0), (0, 3, 1)), ((0, 2),))
    assert (full.num_freed_in_place, full.num_gained_blocks) == (1, 0)
    part = compaction_plan(keep, pool, budget=1)
    assert (part.moves, part.freed_blocks) == ((), ((0, 0),))
    keep = [1, 0, 0, 0, 0, 0, 1, 1, 1, 0]  # block 1 stays free until the third move
    pool = BlockPool(2, compactor="fill", open_tail=True)
    assert compaction_plan(keep, pool).moves == ((0, 8, 1), (0, 7, 2), (0, 6, 3))
    part = compaction_plan(keep, pool, budget=1)
    assert (part.moves, part.freed_blocks) == (((0, 8, 1),), ((0, 1), (0, 2), (0, 4)))


def test_a_budget_for_part_of_the_curve() -> None:
    census = take_census([1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0], 4)
    assert reclaim_curve(census) == (1, 3)
    assert [blocks_for_moves(census, budget) for budget in range(5)] == [0, 1, 1, 2, 2]
    census = take_census([1, 1, 0, 0] * 6, 4)
    assert reclaim_curve(census) == (2, 4, 6)
    assert [blocks_for_moves(census, budget) for budget in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_filling_a_block_that_was_free_gains_nothing() -> None:
    keep, pool = [0, 0, 1, 1], BlockPool(2, compactor="fill")
    full = compaction_plan(keep, pool)
    assert (full.moves, full.freed_blocks) == (((0, 3, 0), (0, 2, 1)), ((0, 1),))
    part = compaction_plan(keep, pool, budget=1)
    assert (part.moves, part.freed_blocks) == ((), ((0, 0),))


def test_a_table_of_no_tokens_has_no_part_in_a_budget() -> None:
    keep = [[0] * 8, [1, 0, 0, 0, 1, 0, 0, 0]]
    for pool in (BlockPool(2), BlockPool(2, frees="back"), BlockPool(2, compactor="pack")):
        plan = compaction_plan(keep, pool, axes="bt", lengths=[0, 8], budget=0)
        assert plan.moves == ()
        free = ((1, 3),) if pool.frees == "back" else ((1, 1), (1, 3))
        assert plan.freed_blocks == free


def test_of_blocks_that_cost_the_same_the_first_go_first() -> None:
    plan = compaction_plan([1, 1, 1, 0] * 20, 2)  # every other block has a hole
    assert plan.freed_blocks == tuple((0, block) for block in range(1, 20, 2))
    assert plan.moves == tuple((0, slot, slot + 41) for slot in range(2, 40, 4))
    cheap, dear = [1, 0, 0, 0, 1, 0, 0, 0], [1, 1, 0, 0, 1, 1, 0, 0]
    part = compaction_plan([cheap, dear] * 20, 4, axes="bt", budget=10)
    assert part.freed_blocks == tuple((table, 0) for table in range(0, 20, 2))


def test_the_table_whose_blocks_cost_least_goes_first() -> None:
    keep = [
        [1, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0],  # 3 moves free one block more
        [1, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0],  # 2 moves free two
    ]
    plan = compaction_plan(keep, BlockPool(4, compactor="pack"), axes="bt", budget=3)
    assert plan.moves == ((1, 4, 2), (1, 8, 3))
    assert plan.freed_blocks == ((0, 2), (1, 1), (1, 2))


def test_the_emptiest_block_goes_first_wherever_it_is() -> None:
    keep = [1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0]
    full = compaction_plan(keep, 4)
    assert full.moves == ((0, 4, 15), (0, 0, 18), (0, 1, 19))
    assert full.freed_blocks == ((0, 0), (0, 1), (0, 2))
    for budget in (1, 2):
        part = compaction_plan(keep, 4, budget=budget)
        assert (part.moves, part.freed_blocks) == (((0, 4, 15),), ((0, 1), (0, 2)))


# --- Pinned blocks ---


@st.composite
def some_blocks(draw: st.DrawFn, case: Case) -> list[tuple[int, int]]:
    every = [(i, b) for i, table in enumerate(tables_of(case)) for b in range(len(table.blocks))]
    return draw(st.lists(st.sampled_from(every), unique=True, max_size=3)) if every else []


@given(SMALL, st.data())
def test_pinned_blocks_are_not_there_for_a_plan(case: Case, data: st.DataObject) -> None:
    pinned = data.draw(some_blocks(case))
    plan = plan_of(case, pinned=pinned)
    size = case.pool.block_size
    carry_out(tables_of(case), plan)
    apply_plan(case.keep, plan)
    touched = {(move[0], slot // size) for move in plan.moves for slot in move[-2:]}
    assert not (touched | set(plan.freed_blocks)) & set(pinned)
    if case.pool.compactor == "none":
        return
    # Each table without its pinned blocks, alone, as a table of whole blocks.
    moves, freed = [], []
    for i, table in enumerate(tables_of(case)):
        own = [b for b in range(len(table.blocks)) if (i, b) not in pinned]
        slots = [slot for b in own for slot in table.blocks[b]]
        keep = np.array(
            [
                [isinstance(slot, list) and slot[row] for slot in slots]
                for row in range(table.num_rows)
            ],
            bool,
        ).reshape(table.num_rows, len(slots))
        alone = compaction_plan(
            keep, case.pool.replace(shared_axes="h", open_tail=False), axes="ht"
        )
        for _, *row, source, target in alone.moves:
            places = [own[slot // size] * size + slot % size for slot in (source, target)]
            moves.append((i, *row, *places))
        free = [(i, own[block]) for _, block in alone.freed_blocks]
        if case.pool.frees == "back":
            last = max((b for number, b in pinned if number == i), default=-1)
            free = [pair for pair in free if pair[1] > last]
        freed += free
    assert list(plan.moves) == moves
    assert list(plan.freed_blocks) == freed


@given(SMALL, st.data())
def test_a_pinned_prefix_is_counted_alike_by_the_census(case: Case, data: st.DataObject) -> None:
    tables = tables_of(case)
    pinned = data.draw(st.integers(0, min((table.num_tokens for table in tables), default=0)))
    case.said["pinned"] = pinned
    census = census_of(case)
    del case.said["pinned"]
    blocks = [
        (i, block)
        for i, table in enumerate(tables)
        for block in range(oracle._ceil(table.offset + pinned, case.pool.block_size))
        if pinned
    ]
    plan = plan_of(case, pinned=blocks)
    assert len(blocks) == census.num_pinned_blocks
    assert plan.num_moved_entries == census.num_moved_entries
    assert plan.num_freed_blocks == census.num_blocks - census.num_packed_blocks
    assert plan.num_freed_in_place == census.num_freed_blocks


@st.composite
def occupancies(draw: st.DrawFn) -> tuple[list[int], int, list[int]]:
    size = draw(st.integers(1, 3))
    live = draw(st.lists(st.integers(1, size), min_size=1, max_size=4))
    pinned = draw(st.lists(st.sampled_from(range(len(live))), unique=True))
    return live, size, pinned


@example(([3, 1, 2, 4, 1], 4, [1]))
@given(occupancies())
def test_what_pinned_blocks_leave_to_be_emptied(given: tuple[list[int], int, list[int]]) -> None:
    """Every block that can be emptied may also receive."""
    live, size, pinned = given
    keep = list(itertools.chain(*([1] * n + [0] * (size - n) for n in live)))
    own = sorted(n for block, n in enumerate(live) if block not in pinned)
    room = sum(size - n for n in own)
    costs = own[: min(len(own), room // size)]
    plan = compaction_plan(keep, size, pinned=pinned)
    assert plan.num_gained_blocks == plan.num_freed_blocks == len(costs)
    assert plan.num_moves == sum(costs)
    if own:
        assert plan.num_moves == oracle.fewest_moves_to_free(own, size, len(costs))
        assert oracle.fewest_moves_to_free(own, size, len(costs) + 1) is None
    for budget in range(plan.num_moves):
        affordable = sum(total <= budget for total in itertools.accumulate(costs))
        part = compaction_plan(keep, size, pinned=pinned, budget=budget)
        apply_plan(keep, part)
        assert part.num_freed_blocks == affordable


def test_how_pinned_blocks_are_named() -> None:
    keep = [1, 0, 0, 1, 0, 1]
    expected = compaction_plan(keep, 2, pinned=[(0, 1)])
    assert expected.freed_blocks == ((0, 0),)
    pinned: Any
    for pinned in ([1], (1,), np.array([1]), np.array([[0, 1]]), [[0, 1], [0, 1]], ((0, 1),)):
        assert compaction_plan(keep, 2, pinned=pinned) == expected
    nothing: list[Any] = [(), [], np.zeros(0, int), np.zeros((0, 2), int)]
    for pinned in nothing:
        assert compaction_plan(keep, 2, pinned=pinned) == compaction_plan(keep, 2)
    both = np.array([keep, keep], bool)
    assert compaction_plan(both, 2, axes="bt", pinned=[(1, 1)]).freed_blocks == ((0, 0), (1, 0))


@pytest.mark.parametrize(
    ("pinned", "error", "message"),
    [
        ([1, 0], ValueError, r"\(table, block\) pairs; got shape \(2,\) for 2 tables"),
        ([[0, 1, 2]], ValueError, r"pairs; got shape \(1, 3\)"),
        ([(0, 3)], ValueError, "table 0 and block 3 where there are 2 tables and it owns 3;"),
        ([(0, -1)], ValueError, "got table 0 and block -1"),
        ([(2, 0)], ValueError, "got table 2 and block 0 where there are 2 tables; number"),
        ([(-1, 0)], ValueError, "got table -1 and block 0"),
        ([(1, 1)], ValueError, "got table 1 and block 1 where there are 2 tables and it owns 1"),
        ([(0.0, 1.0)], TypeError, "pinned must be integers"),
        ({(0, 1)}, TypeError, "pinned must be integers"),
        (None, TypeError, "pinned must be integers"),
    ],
)
def test_pinned_blocks_that_no_table_owns(
    pinned: Any,  # noqa: ANN401
    error: type[Exception],
    message: str,
) -> None:
    keep = [[1, 0, 0, 1, 0, 1], [1, 0, 0, 0, 0, 0]]
    with pytest.raises(error, match=message):
        compaction_plan(keep, 2, axes="bt", lengths=[6, 2], pinned=pinned)


def test_a_table_of_no_tokens_owns_no_block_to_pin() -> None:
    keep = [[1, 0], [0, 0]]
    with pytest.raises(ValueError, match=r"got table 1 and block 0 where .* and it owns 0;"):
        compaction_plan(keep, 2, axes="bt", lengths=[2, 0], offset=1, pinned=[(1, 0)])


# --- What is refused ---


@pytest.mark.parametrize(
    ("budget", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("9", TypeError)]
)
def test_budgets_that_are_none(budget: Any, error: type[Exception]) -> None:  # noqa: ANN401
    with pytest.raises(error, match="budget must be an integer of at least 0"):
        compaction_plan([1, 0], 2, budget=budget)


def test_a_mask_is_checked_as_for_a_census() -> None:
    with pytest.raises(ValueError, match="got True at token 2, which has 2 tokens"):
        compaction_plan([1, 0, 1], 2, lengths=2)
    with pytest.raises(ValueError, match="got True at token 2 of sequence 1, which has 1 token;"):
        compaction_plan([[1, 0, 1], [1, 0, 1]], 2, axes="bt", lengths=[3, 1])
    with pytest.raises(ValueError, match="offset must be from 0 to 1"):
        compaction_plan([1, 0, 1], 2, offset=2)
    with pytest.raises(ValueError, match="axes must name"):
        compaction_plan([[1, 0, 1]], 2)
    with pytest.raises(TypeError, match="pool must be"):
        compaction_plan([1, 0, 1], "16")  # type: ignore[arg-type]


def other_masks() -> Iterator[tuple[Any, str]]:
    yield [[1, 0, 0, 0, 1, 1, 0, 1]] * 2, "got 2 tables of 1 rows of 8 tokens for a plan of 1"
    yield [[1, 0, 0, 0, 1, 1, 0]], "of 7 tokens for a plan of 1 of 1 of up to 8"
    yield [[0, 0, 0, 0, 1, 1, 0, 1]], "got a move from a slot that holds no survivor"
    yield [[1, 0, 0, 0, 1, 1, 1, 0]], "got a move onto a survivor"
    yield [[1, 1, 0, 0, 1, 1, 0, 1]], "got a live slot in block 0 of table 0 after the moves"
    yield [[1, 0, 0, 0, 1, 1, 0, 1, 1]], "got True at token 8 of sequence 0"


@pytest.mark.parametrize(("keep", "message"), list(other_masks()))
def test_a_plan_belongs_to_its_mask(keep: Any, message: str) -> None:  # noqa: ANN401
    plan = compaction_plan([[1, 0, 0, 0, 1, 1, 0, 1]], 4, axes="bt")
    with pytest.raises(ValueError, match=message):
        apply_plan(keep, plan)


@pytest.mark.parametrize(
    ("moves", "message"),
    [
        (((0, 2, 1), (0, 3, 2), (0, 1, 0)), "from a slot that holds no survivor"),  # moves twice
        (((0, 3, 2), (0, 2, 1)), "onto a survivor"),  # in the wrong order
        (((0, 2, 1), (0, 3, 1)), "onto a survivor"),  # both to one slot
        (((0, 2, 2),), "onto a survivor"),
        (((0, 2, 1), (0, 2, 0)), "from a slot that holds no survivor"),
    ],
)
def test_moves_that_lose_or_double_are_not_carried_out(
    moves: tuple[tuple[int, ...], ...], message: str
) -> None:
    keep = [0, 0, 1, 1]
    plan = compaction_plan(keep, BlockPool(4, compactor="pack"))
    assert plan.moves == ((0, 2, 0), (0, 3, 1))
    with pytest.raises(ValueError, match=message):
        apply_plan(keep, attrs.evolve(plan, moves=moves))


def test_a_plan_of_no_tables() -> None:
    keep = np.zeros((0, 3), bool)
    plan = compaction_plan(keep, 2, axes="bt")
    assert (plan.moves, plan.freed_blocks, plan.lengths) == ((), (), ())
    assert apply_plan(keep, plan).shape == (0, 1, 0)


@given(SMALL)
def test_no_input_is_written_to(case: Case) -> None:
    keep = case.keep.copy()
    keep.flags.writeable = False
    apply_plan(keep, compaction_plan(keep, case.pool, **case.said))
    assert (keep == case.keep).all()


def test_booleans_whose_bytes_are_not_0_and_1() -> None:
    keep: NDArray[np.bool_] = np.array([2, 0, 0, 0, 255, 1, 0, 3], np.uint8).view(np.bool_)
    plan = compaction_plan(keep, 4)
    assert plan == compaction_plan(keep.astype(np.uint8) != 0, 4)
    assert apply_plan(keep, plan).sum() == 4


# --- Budgets of bytes and of time ---


@given(SMALL, st.integers(1, 4096))
def test_the_bytes_of_a_full_compaction_buy_it(case: Case, entry_bytes: int) -> None:
    case = case._replace(pool=case.pool.replace(entry_bytes=entry_bytes))
    census, plan = census_of(case), plan_of(case)
    written = compaction_cost(census).bytes_written
    assert written is not None
    moves = num_moves_for(census, num_bytes=written)
    assert type(moves) is int
    assert moves == plan.num_moves
    if plan.num_moves:
        assert num_moves_for(census, num_bytes=written - 1) == plan.num_moves - 1
        assert plan_of(case, budget=moves) == plan


@given(st.integers(1, 10**7), st.integers(1, 10**13), st.integers(1, 4096), st.booleans())
def test_time_is_read_and_write_traffic(
    micro: int, rate: int, entry_bytes: int, by_rows: bool
) -> None:
    pool = BlockPool(
        2, entry_bytes=entry_bytes, compactor="evacuate_rows" if by_rows else "evacuate"
    )
    census = take_census(np.ones((3, 4), bool), pool, axes="ht")
    move = entry_bytes * (1 if by_rows else 3)
    moves = num_moves_for(census, microseconds=micro, bytes_per_second=rate)
    assert 2 * moves * move * 10**6 <= micro * rate < 2 * (moves + 1) * move * 10**6
    assert num_moves_for(Census.empty(pool), num_bytes=entry_bytes) == 1


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({}, ValueError, "num_bytes must be given, or microseconds with bytes_per_second"),
        ({"num_bytes": 1, "microseconds": 1.0}, ValueError, "and not both"),
        ({"num_bytes": 1, "bytes_per_second": 1.0}, ValueError, "and not both"),
        ({"microseconds": 1.0}, ValueError, "bytes_per_second=None"),
        ({"num_bytes": -1}, ValueError, "num_bytes must be an integer of at least 0"),
        ({"num_bytes": 1.0}, TypeError, "num_bytes must be an integer"),
        ({"microseconds": 0, "bytes_per_second": 1}, ValueError, "microseconds must be a finite"),
        ({"microseconds": 1, "bytes_per_second": math.inf}, ValueError, "bytes_per_second must"),
    ],
)
def test_budgets_of_bytes_that_are_none(
    said: dict[str, Any], error: type[Exception], message: str
) -> None:
    census = take_census([1, 0], BlockPool(2, entry_bytes=4))
    with pytest.raises(error, match=message):
        num_moves_for(census, **said)


def test_bytes_need_the_bytes_of_an_entry() -> None:
    with pytest.raises(ValueError, match="census must come with a pool that knows its entry_bytes"):
        num_moves_for(take_census([1, 0], 2), num_bytes=4)


# --- Large masks ---


def test_a_million_tokens() -> None:
    rng = np.random.default_rng(0)
    keep = rng.random((16, 1 << 16)) < 0.5
    for pool in (
        BlockPool(16, shared_axes=""),
        BlockPool(16, frees="back"),
        BlockPool(16, shared_axes="h", compactor="pack_rows"),
    ):
        census = take_census(keep, pool, axes="ht")
        plan = compaction_plan(keep, pool, axes="ht")
        assert plan.num_moved_entries == census.num_moved_entries
        assert plan.num_freed_blocks == census.num_blocks - census.num_packed_blocks
        after = apply_plan(keep, plan)
        assert np.count_nonzero(after) == census.num_live_entries
        blocks = after.any(axis=1).reshape(len(after), -1, 16).any(axis=2)
        assert np.argwhere(~blocks).tolist() == [list(pair) for pair in plan.freed_blocks]
