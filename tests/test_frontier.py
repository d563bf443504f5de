"""Eviction for free blocks: the least loss, its certificate, prices, and policies against it."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import pickle
import re
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import oracle_frontier as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvreclaim import BlockPool, take_census
from kvreclaim import _dual as dual
from kvreclaim._entries import lay_out, make_problem
from kvreclaim.frontier import (
    Frontier,
    Selection,
    evict_at_price,
    evict_for_blocks,
    finish_cost,
    frontier_excess,
    max_free_blocks,
    reclaim_frontier,
)

ROOT = Path(__file__).parents[1]
WHOLE = {"axes": None, "lengths": None, "offset": 0}
ADVERSE = [0.0, 10.0, 5.0, 6.0, 100.0, 100.0]


class Case(NamedTuple):
    """A small problem, for the library and for the oracle."""

    importance: NDArray[np.float64]
    pool: BlockPool
    said: dict[str, Any]  # axes, lengths, offset
    protected: NDArray[np.bool_] | None
    slow: oracle.Problem
    num_evicted: int

    @property
    def given(self) -> tuple[NDArray[np.float64], BlockPool, int]:
        return self.importance, self.pool, self.num_evicted

    @property
    def options(self) -> dict[str, Any]:
        return {**self.said, "protected": self.protected}


VALUES = {
    "whole": st.integers(-5, 9).map(float),
    "ties": st.integers(0, 2).map(float),
    "thirds": st.integers(-2, 5).map(lambda number: number / 3),
    "floats": st.floats(-1e3, 1e3).map(lambda number: round(number, 9)),
    "scales": st.integers(-30, 30).map(lambda power: 1.7**power),
}


@st.composite
def cases(
    draw: st.DrawFn,
    kinds: tuple[str, ...] = ("whole", "ties"),
    *,
    entries: int = 11,
    tables: bool = True,
    protected: bool = True,
) -> Case:
    """Rows, tables, lengths and offsets of any kind, with no more than so many entries."""
    letters = st.lists(st.sampled_from("lhb"), unique=True, max_size=2)
    axes = "".join(draw(letters.flatmap(lambda some: st.permutations([*some, "t"]))))
    pool = BlockPool(
        draw(st.integers(1, 5)),
        shared_axes=draw(st.sampled_from(["", "h", "lh"] if tables else ["bhl"])),
        open_tail=draw(st.booleans()) and tables,
    )
    sizes = {letter: draw(st.integers(1, 3)) for letter in axes}
    sizes["t"] = draw(st.integers(0, entries // math.prod(sizes[c] for c in axes if c != "t")))
    shape = tuple(sizes[letter] for letter in axes)
    value = VALUES[draw(st.sampled_from(kinds))]
    if protected:
        value = st.one_of(*[value] * 9, st.just(math.inf))
    flat = draw(st.lists(value, min_size=math.prod(shape), max_size=math.prod(shape)))
    importance = np.array(flat, np.float64).reshape(shape)
    stays = None
    if protected and draw(st.booleans()):
        stays = np.random.default_rng(draw(st.integers(0, 99))).random(shape) < 0.1
    outer = tuple(sizes[c] for c in axes if c != "t" and c not in pool.shared_axes)
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    said: dict[str, Any] = {"axes": axes}
    lengths, offset = np.full(outer, sizes["t"]), np.zeros(outer, int)
    if tables and draw(st.booleans()):
        said["lengths"] = lengths = rng.integers(0, sizes["t"] + 1, outer)
    if tables and draw(st.booleans()):
        said["offset"] = offset = rng.integers(0, pool.block_size, outer)
    slow = oracle.problem(
        {index: float(importance[index]) for index in oracle.indices(shape)},
        axes,
        block_size=pool.block_size,
        shared_axes=pool.shared_axes,
        open_tail=pool.open_tail,
        lengths={table: int(np.asarray(lengths)[table]) for table in oracle.indices(outer)},
        offset={table: int(np.asarray(offset)[table]) for table in oracle.indices(outer)},
        protected=None
        if stays is None
        else {index: bool(stays[index]) for index in oracle.indices(shape)},
    )
    may_go = sum(1 for entry in slow.entries if entry.worth is not None)
    return Case(importance, pool, said, stays, slow, draw(st.integers(0, may_go)))


def check_feasible(found: Selection, case: Case, blocks: int) -> None:
    """Check by a census of its mask that a selection does what was asked."""
    assert found.keep.shape == case.importance.shape
    census = take_census(found.keep, case.pool, **case.said)
    assert census.num_freed_blocks == found.num_freed_blocks >= blocks
    assert census.num_evicted_entries == case.num_evicted
    evicted = [e for e in case.slow.entries if not found.keep[e.index]]
    assert all(entry.worth is not None for entry in evicted)
    assert found.loss == float(sum(e.worth for e in evicted if e.worth is not None))
    within = {entry.index for entry in case.slow.entries}
    assert not any(found.keep[i] for i in oracle.indices(found.keep.shape) if i not in within)


def one_row(scores: list[int], block_size: int) -> oracle.Problem:
    by_index: dict[oracle.Index, float] = {(token,): score for token, score in enumerate(scores)}
    return oracle.problem(by_index, "t", block_size=block_size, lengths=len(scores))


# The least loss, against every set of entries


@given(case=cases())
def test_whole_numbers_are_solved_and_proved_exactly(case: Case) -> None:
    least = oracle.least_losses(case.slow, case.num_evicted)
    assert max_free_blocks(*case.given, **case.options) == len(least) - 1
    for blocks, loss in enumerate(least):
        found = evict_for_blocks(*case.given, blocks, **case.options)
        check_feasible(found, case, blocks)
        assert found.loss == found.lower_bound == loss
        assert found.gap == 0


@given(case=cases(("thirds", "floats", "scales")))
def test_the_least_loss_is_correctly_rounded_and_no_bound_exceeds_it(case: Case) -> None:
    for blocks, loss in enumerate(oracle.least_losses(case.slow, case.num_evicted)):
        found = evict_for_blocks(*case.given, blocks, **case.options)
        check_feasible(found, case, blocks)
        assert found.lower_bound <= float(loss) == found.loss
        total = sum(abs(entry.worth) for entry in case.slow.entries if entry.worth is not None)
        assert found.loss - found.lower_bound <= 1e-9 * total


@settings(max_examples=40)
@given(case=cases(("whole", "ties", "floats")))
def test_the_integer_program_finds_the_least_loss(case: Case) -> None:
    for blocks, loss in enumerate(oracle.least_losses(case.slow, case.num_evicted)):
        found = evict_for_blocks(*case.given, blocks, method="milp", **case.options)
        check_feasible(found, case, blocks)
        assert found.loss == pytest.approx(float(loss), rel=1e-6, abs=1e-6)
        assert found.lower_bound <= found.loss


@pytest.mark.parametrize("largest", [1e4, 1e7, 1e9, 1e12])
def test_the_integer_program_holds_to_a_millionth_of_the_mean_importance(largest: float) -> None:
    rng = np.random.default_rng(5)
    for _ in range(5):
        scores = rng.uniform(0.1, 1, 32)
        scores[rng.choice(32, 2, replace=False)] = largest
        exact = evict_for_blocks(scores, 4, 12, 2)
        found = evict_for_blocks(scores, 4, 12, 2, method="milp")
        assert exact.gap == 0
        for figure in (found.loss, found.lower_bound):
            assert abs(figure - exact.loss) <= 1e-6 * scores.mean()


def test_scores_too_small_for_a_float_are_0_whatever_numpy_is_told_of_them() -> None:
    scores = [5e-324, 1e200, 7e199, 5e-324, -1e-310, 4.0, 0.3, -1e-310]
    longer = np.full(4, np.finfo(np.longdouble).tiny)
    with np.errstate(all="raise"):
        cost = finish_cost(scores, 4, 1e-310)
        loss = evict_for_blocks(scores, 4, 4, 1, method="milp").loss
        assert finish_cost(longer, 2, 0).tolist() == [float(longer[0]) * 2] * 2
    assert cost.tolist() == [1.7e200, 4.3]
    assert loss == evict_for_blocks(scores, 4, 4, 1).loss == 4.3


@given(case=cases())
def test_a_frontier_is_its_points(case: Case) -> None:
    least = oracle.least_losses(case.slow, case.num_evicted)
    line = reclaim_frontier(*case.given, **case.options)
    assert line.free_blocks == tuple(range(len(least)))
    assert line.loss == line.lower_bound == tuple(least)
    backwards = reclaim_frontier(*case.given, line.free_blocks[::-1], **case.options)
    assert backwards.loss == line.loss[::-1]
    assert backwards.lower_bound == line.lower_bound[::-1]


def test_vector_of_a_block_that_costs_little_to_finish() -> None:
    # The block of least sum loses 10 + 5; the other one 5 + 6, and the 0 that goes anyway.
    found = evict_for_blocks(ADVERSE, 2, 3, 1)
    assert found.keep.tolist() == [False, True, False, False, True, True]
    assert (found.loss, found.lower_bound, found.num_freed_blocks) == (11, 11, 1)


def test_blocks_of_different_sizes_are_paid_for() -> None:
    # Five entries pay for the tail of one and a block of four; the two cheap blocks need eight.
    scores = [1, 1, 1, 1, 1, 1, 1, 1, 50]
    assert evict_for_blocks(scores, 4, 5, 2).keep.tolist() == [False] * 4 + [True] * 4 + [False]
    assert max_free_blocks(scores, 4, 8) == 2
    assert max_free_blocks(scores, 4, 9) == 3
    # By price alone the dear tail comes last, though no budget below 9 pays for both others.
    assert reclaim_frontier(scores, 4, 8).loss == (8, 8, 8)
    assert reclaim_frontier(scores, 4, 7).loss == (7, 7, 56)


def test_a_dear_block_is_bought_where_the_budget_pays_no_other() -> None:
    # Three entries pay for the tail alone, which is the cheaper one at prices below -27 only.
    found = evict_for_blocks([0, 0, 0, 0, 9, 9, 9], 4, 3, 1)
    assert (found.loss, found.lower_bound) == (27, 27)


def test_losses_may_be_far_from_convex_in_the_blocks() -> None:
    # One large block of zeros, several small ones: dual prices alone leave a gap here.
    said: dict[str, Any] = {"axes": "bt", "lengths": [4, 1, 1, 1]}
    scores = np.array([[0.0] * 4, [9.0] * 4, [9.0] * 4, [9.0] * 4])
    line = reclaim_frontier(scores, BlockPool(4, shared_axes=""), 4, **said)
    assert list(line.loss) == list(line.lower_bound) == [0, 0, 18, 27]


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1.0, 1e12, 1e280])
def test_the_unit_of_importance_does_not_matter(scale: float) -> None:
    rng = np.random.default_rng(3)
    scores = rng.lognormal(0, 1, (5, 23))
    said: dict[str, Any] = {"axes": "bt", "lengths": [23, 17, 1, 9, 20]}
    pool = BlockPool(4, shared_axes="")
    for blocks in range(max_free_blocks(scores, pool, 30, **said) + 1):
        plain = evict_for_blocks(scores, pool, 30, blocks, **said)
        scaled = evict_for_blocks(scores * scale, pool, 30, blocks, **said)
        assert scaled.loss == pytest.approx(plain.loss * scale, rel=1e-9)
        assert scaled.gap <= 1e-6


def test_choices_come_in_order_and_once() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        cost = sorted(rng.integers(0, 6, rng.integers(0, 7)).tolist())
        over = rng.integers(0, 4, len(cost)).tolist()
        for blocks in range(len(cost) + 1):
            choices = list(dual._choices([float(c) for c in cost], over, blocks))
            ranks = [(*range(choice.stays), *choice.moved) for choice in choices]
            assert len(set(ranks)) == len(ranks) == math.comb(len(cost), blocks)
            assert all(len(set(some)) == blocks for some in ranks)
            assert [choice.cost for choice in choices] == sorted(
                sum(cost[rank] for rank in some) for some in ranks
            )
            assert [choice.over for choice in choices] == [
                sum(over[rank] for rank in some) for some in ranks
            ]


@settings(max_examples=60)
@given(case=cases(entries=8), price=st.integers(-6, 10))
def test_a_number_is_corrected_by_the_nearest_entries_outside(case: Case, price: int) -> None:
    problem = lay_out(case.importance, case.pool, case.protected, **WHOLE | case.said).problem
    near = dual._Near(problem, float(price))
    entries = list(zip(problem.weights.tolist(), problem.block.tolist(), strict=True))
    assert near.below == sum(1 for worth, _ in entries if worth < price)
    for bits in range(2 ** len(problem.starts)):
        chosen = np.array([bits >> block & 1 for block in range(len(problem.starts))], bool)
        loose = [worth for worth, block in entries if not chosen[block] and worth < math.inf]
        below = sorted(price - worth for worth in loose if worth < price)
        above = sorted(worth - price for worth in loose if worth >= price)
        for surplus in range(-len(entries) - 1, len(entries) + 2):
            nearest = (below if surplus > 0 else above)[: abs(surplus)]
            exact = sum(nearest) if len(nearest) == abs(surplus) else math.inf
            assert near.correction(chosen, surplus) == exact
            assert near.least_correction(surplus) <= exact
            if not bits and exact < math.inf:
                assert near.least_correction(surplus) == exact


# A bound where the proof is cut short


@given(case=cases(("whole", "ties", "floats")), most=st.integers(0, 3))
def test_a_gap_that_stays_open_is_reported(case: Case, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dual, "_MOST_CHOICES", most)
        line = reclaim_frontier(*case.given, **case.options)
        for blocks, loss in enumerate(oracle.least_losses(case.slow, case.num_evicted)):
            found = evict_for_blocks(*case.given, blocks, **case.options)
            check_feasible(found, case, blocks)
            assert found.lower_bound <= float(loss) <= found.loss
            assert line.lower_bound[blocks] <= float(loss) <= line.loss[blocks]
    assert list(line.loss) == sorted(line.loss)
    assert list(line.lower_bound) == sorted(line.lower_bound)


def dual_value(slow: oracle.Problem, num_evicted: int, blocks: int, price: Fraction) -> Fraction:
    """The bound at a price, term by term."""
    worths = [entry.worth for entry in slow.entries if entry.worth is not None]
    costs = []
    for block in slow.blocks:
        if slow.may_be_freed(block):
            inside = [entry.worth for entry in slow.held_by(block) if entry.worth is not None]
            costs.append(sum(oracle.finish_cost(inside, len(inside), price), Fraction(0)))
    below = sum((max(price - worth, Fraction(0)) for worth in worths), Fraction(0))
    return price * num_evicted - below + sum(sorted(costs)[:blocks], Fraction(0))


@given(case=cases(("whole", "floats")), price=st.floats(-50, 50))
def test_every_price_on_entries_bounds_the_loss(case: Case, price: float) -> None:
    problem = lay_out(case.importance, case.pool, case.protected, **WHOLE | case.said).problem
    if not case.num_evicted:
        return
    for blocks, loss in enumerate(oracle.least_losses(case.slow, case.num_evicted)):
        exact = dual_value(case.slow, case.num_evicted, blocks, Fraction(price))
        assert exact <= loss
        there = dual._at(problem, case.num_evicted, blocks, price)
        assert there.value == pytest.approx(float(exact), rel=1e-9, abs=1e-9)


def test_without_a_look_at_any_choice_the_bound_is_that_of_the_price(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dual, "_MOST_CHOICES", 0)
    rng = np.random.default_rng(4)
    pool, num_open = BlockPool(9, shared_axes=""), 0
    for _ in range(6):
        # Blocks of 1 to 9 entries, and a budget that hardly pays for the smallest of them.
        scores, lengths = rng.lognormal(0, 1, (12, 9)) - 0.5, rng.integers(1, 10, 12)
        slow = oracle.problem(
            {index: float(scores[index]) for index in oracle.indices((12, 9))},
            "bt",
            block_size=9,
            lengths={(table,): int(length) for table, length in enumerate(lengths)},
        )
        said: dict[str, Any] = {"axes": "bt", "lengths": lengths}
        problem = lay_out(scores, pool, None, **WHOLE | said).problem
        for blocks in range(1, 12):
            budget = int(problem.capacity[blocks - 1]) + int(rng.integers(0, 4))
            found = evict_for_blocks(scores, pool, budget, blocks, **said)
            rank = dual._rank_of_price(problem, budget, blocks, None)
            price, feasible = dual._best_price(problem, budget, blocks, rank)
            exact = dual_value(slow, budget, blocks, Fraction(price))
            assert found.lower_bound == pytest.approx(float(exact), rel=1e-9)
            bought = {slow.blocks[block] for block in feasible}
            assert found.loss == float(oracle.loss_with_blocks(slow, budget, bought))
            num_open += found.gap > 1e-6
    assert num_open > 10


def test_between_importances_the_price_is_the_best_one_too() -> None:
    rng = np.random.default_rng(6)
    num_between = 0
    for _ in range(60):
        sizes = rng.integers(1, 10, 30)
        starts = np.append(0, np.cumsum(sizes)[:-1])
        weights = rng.lognormal(0, 1, int(sizes.sum()))
        problem = make_problem(weights, starts, np.ones(30, bool))
        blocks = int(rng.integers(2, 25))
        num_evicted = int(problem.capacity[blocks - 1]) + int(rng.integers(0, 12))
        rank = dual._rank_of_price(problem, num_evicted, blocks, None)
        best, _ = dual._best_price(problem, num_evicted, blocks, rank)
        num_between += best not in weights
        chosen, highest, _, _ = dual._at(problem, num_evicted, blocks, best)
        costs = dual.finish_costs(problem, best)
        assert sorted(costs[chosen]) == sorted(costs)[:blocks]
        for step in (1e-6, 1e-4, 1e-2, 1.0):  # a concave function has no other peak
            for price in (best - step, best + step):
                assert dual._at(problem, num_evicted, blocks, price).value <= highest + 1e-9
    assert num_between > 20


@settings(max_examples=60)
@given(case=cases(entries=8))
def test_the_price_is_the_best_one(case: Case) -> None:
    problem = lay_out(case.importance, case.pool, case.protected, **WHOLE | case.said).problem
    if not case.num_evicted:
        return
    # Two blocks of whole numbers cost the same at a fraction, of at most as many parts as entries.
    prices = {number / parts for parts in range(1, 8) for number in range(-20 * parts, 10 * parts)}
    for blocks in range(max_free_blocks(*case.given, **case.options) + 1):
        rank = dual._rank_of_price(problem, case.num_evicted, blocks, None)
        best, feasible = dual._best_price(problem, case.num_evicted, blocks, rank)
        assert problem.sizes[feasible].sum() <= case.num_evicted
        highest = dual._at(problem, case.num_evicted, blocks, best).value
        for price in prices:
            there = dual._at(problem, case.num_evicted, blocks, price)
            assert there.value <= highest + 1e-9
        # Enough entries go there, and not at any lower importance.
        assert dual._enough(problem, case.num_evicted, blocks, rank)
        lower = np.flatnonzero(problem.ranked < problem.ranked[rank])
        assert not any(dual._enough(problem, case.num_evicted, blocks, int(r)) for r in lower)
        for highest_rank in range(rank, case.num_evicted):
            again = dual._rank_of_price(problem, case.num_evicted, blocks, highest_rank)
            assert problem.ranked[again] == problem.ranked[rank]


def test_the_gap_is_that_of_the_figures() -> None:
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 3, 60) + 0.1 * rng.random(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dual, "_MOST_CHOICES", 0)
        found = [evict_for_blocks(scores, 3, 30, blocks) for blocks in range(11)]
    assert any(one.gap > 0 for one in found)
    for one in found:
        assert one.gap == (one.loss - one.lower_bound) / one.loss
    keep = np.array([False])
    assert Selection(keep=keep, num_freed_blocks=0, loss=-2.0, lower_bound=-3.0).gap == 0.5
    assert Selection(keep=keep, num_freed_blocks=0, loss=0.0, lower_bound=-3.0).gap == math.inf
    assert Selection(keep=keep, num_freed_blocks=0, loss=0.0, lower_bound=0.0).gap == 0


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_large_problems_are_proved_to_a_hundredth_of_a_percent(sigma: float) -> None:
    scores = np.random.default_rng(5).lognormal(0, sigma, 8_192)
    for blocks in (1, 60, 128, 200, 255, 256):
        found = evict_for_blocks(scores, 16, 4_096, blocks)
        assert take_census(found.keep, 16).num_freed_blocks >= blocks
        assert np.count_nonzero(~found.keep) == 4_096
        assert found.gap <= 1e-4


# Cheapest blocks


@given(
    blocks=st.integers(1, 3).flatmap(
        lambda size: st.lists(
            st.lists(st.integers(0, 9), min_size=size, max_size=size), min_size=1, max_size=4
        )
    ),
    data=st.data(),
)
def test_the_cheapest_blocks_lose_at_most_twice_the_least(
    blocks: list[list[int]], data: st.DataObject
) -> None:
    scores = [score for block in blocks for score in block]
    size = len(blocks[0])
    slow = one_row(scores, size)
    num_evicted = data.draw(st.integers(0, len(scores)))
    line = reclaim_frontier(scores, size, num_evicted)
    for number, loss in zip(line.free_blocks, line.loss, strict=True):
        assert loss <= oracle.cheapest_blocks_loss(slow, num_evicted, number) <= 2 * loss


@pytest.mark.parametrize("size", [2, 4, 16, 64])
def test_the_cheapest_blocks_may_lose_almost_twice_the_least(size: int) -> None:
    scores = [*[0] * (size - 1), 1_000 * size, *[1_001] * size, *[10**9] * size]
    slow = one_row(scores, size)
    found = evict_for_blocks(scores, size, 2 * size - 1, 1)
    assert found.loss == 1_001 * size
    cheapest = oracle.cheapest_blocks_loss(slow, 2 * size - 1, 1)
    assert 0.998 * (2 - 1 / size) < cheapest / Fraction(found.loss) <= 2


# A price on blocks


@given(case=cases(), price=st.one_of(st.integers(0, 12), st.sampled_from([0.5, 1.25])))
def test_a_price_buys_what_it_says(case: Case, price: float) -> None:
    bought = oracle.bought_at_price(case.slow, case.num_evicted, Fraction(price))
    found = evict_at_price(*case.given, price, **case.options)
    check_feasible(found, case, len(bought))
    assert found.loss == oracle.loss_with_blocks(case.slow, case.num_evicted, bought)
    least = oracle.least_losses(case.slow, case.num_evicted)
    assert found.lower_bound == least[found.num_freed_blocks]


def test_a_rising_price_traces_the_frontier() -> None:
    scores = np.random.default_rng(2).lognormal(0, 1, 8_192)
    bought = []
    for price in (0, 1, 2, 4, 6, 8, 9, 10, 12, 16, 1e9):
        found = evict_at_price(scores, 16, 4_096, price)
        bought.append(found.num_freed_blocks)
        assert found.gap < 1e-4
        assert frontier_excess(found.keep, scores, 16) == pytest.approx(found.gap, abs=1e-12)
    assert bought == sorted(bought)
    assert (bought[0], bought[-1]) == (0, 256)
    assert len(set(bought)) > 8


def test_a_block_is_bought_between_two_importances() -> None:
    # The first block costs 5 at threshold 1.5, where only the 0 goes; the third one at 3, too late.
    found = evict_at_price([4, 4, 0, 9, 3, 8], 2, 3, 5)
    assert found.keep.tolist() == [False, False, False, True, True, True]


def test_blocks_are_bought_in_the_order_in_which_they_reach_the_price() -> None:
    # Above the 0, the first block costs 10 - tau and the second 16 - 2 * tau.
    scores = [0, 10, 8, 8]
    assert evict_at_price(scores, 2, 2, 5).keep.tolist() == [False, False, True, True]
    assert evict_at_price(scores, 2, 3, 3).keep.tolist() == [False, True, False, False]


def test_price_zero_evicts_the_least_important() -> None:
    found = evict_at_price([3, 1, 2, 5, 4, 0], 2, 3, 0)
    assert found.keep.tolist() == [True, False, False, True, True, False]


# Rows that share blocks


def test_rows_that_share_blocks_are_freed_together() -> None:
    rng = np.random.default_rng(1)
    layers, heads, tokens, budget = 4, 2, 512, 0.5
    raw = rng.lognormal(0, 1, (layers, heads, tokens + 6))
    scores = np.lib.stride_tricks.sliding_window_view(raw, 7, axis=-1).max(axis=-1)
    pool = BlockPool(16)
    num_evicted = int(scores.size * budget)
    keep = np.ones(scores.shape, bool)
    lowest = np.argsort(scores, axis=-1)[..., : int(tokens * budget)]
    np.put_along_axis(keep, lowest, values=False, axis=-1)
    per_head = take_census(keep, pool, axes="lht")
    assert per_head.num_evicted_entries == num_evicted
    assert per_head.num_freed_blocks == 0
    blocks = num_evicted // (layers * heads * 16)
    assert max_free_blocks(scores, pool, num_evicted, axes="lht") == blocks == 16
    found = evict_for_blocks(scores, pool, num_evicted, blocks, axes="lht")
    census = take_census(found.keep, pool, axes="lht")
    assert census.num_evicted_entries == num_evicted
    assert census.num_freed_blocks == blocks
    assert found.gap == 0
    # With the whole budget in blocks, those of least sum are the best: nothing is left to choose.
    sums = np.sort(scores.reshape(-1, tokens // 16, 16).sum(axis=(0, 2)))
    assert found.loss == pytest.approx(sums[:blocks].sum(), rel=1e-12)


def test_heads_with_tables_of_their_own_share_the_budget() -> None:
    scores = np.array([[1, 1, 9, 9], [2, 2, 3, 3]])
    found = evict_for_blocks(scores, BlockPool(2, shared_axes=""), 4, 2)
    assert found.keep.tolist() == [[False, False, True, True], [False, False, True, True]]
    together = evict_for_blocks(scores, BlockPool(2, shared_axes="h"), 4, 1, axes="ht")
    assert together.keep.tolist() == found.keep.tolist()


# What must stay


def test_protected_entries_and_infinite_ones_are_the_same() -> None:
    scores = np.array([0.0, 0, 1, 1, 5, 5])
    stays = np.array([True, False, False, False, False, False])
    by_mask = evict_for_blocks(scores, 2, 3, 1, protected=stays)
    infinite = evict_for_blocks(np.where(stays, math.inf, scores), 2, 3, 1)
    assert (
        by_mask.keep.tolist() == infinite.keep.tolist() == [True, False, False, False, True, True]
    )
    assert max_free_blocks(scores, 2, 4) == max_free_blocks(scores, 2, 4, protected=stays) == 2
    assert max_free_blocks(scores, 2, 4, protected=[1, 0, 0, 1, 0, 0]) == 1


def test_an_open_tail_cannot_be_bought() -> None:
    closed, opened = BlockPool(2), BlockPool(2, open_tail=True)
    assert evict_for_blocks([3, 3, 0], closed, 2, 1).loss == 3
    assert evict_for_blocks([3, 3, 0], opened, 2, 1).loss == 6
    assert evict_for_blocks([3, 0], opened, 1, 0, offset=1).num_freed_blocks == 0
    assert max_free_blocks([3, 3, 0, 0], opened, 4) == 2
    assert evict_at_price([3, 3, 0], opened, 1, 9).num_freed_blocks == 0


# The finish cost


@given(
    row=st.lists(st.integers(-9, 9), max_size=12),
    size=st.integers(1, 5),
    threshold=st.integers(-9, 9),
)
def test_finish_cost_is_what_exceeds_the_threshold(
    row: list[int], size: int, threshold: int
) -> None:
    slow = oracle.finish_cost([Fraction(worth) for worth in row], size, Fraction(threshold))
    scores = np.array(row, np.float64)
    assert finish_cost(scores, size, threshold).tolist() == slow
    twice = finish_cost([scores, scores + 1], size, threshold)
    assert twice.shape == (2, len(slow))
    assert twice[0].tolist() == slow
    assert twice[1].tolist() == finish_cost(scores, size, threshold - 1).tolist()


@given(
    row=st.lists(st.integers(-20, 20).map(lambda tenths: tenths * 0.1), max_size=12),
    size=st.integers(1, 5),
    threshold=st.sampled_from([0.1, -0.3, 0.0, 1 / 3]),
)
def test_finish_cost_is_rounded_once(row: list[float], size: int, threshold: float) -> None:
    slow = oracle.finish_cost([Fraction(worth) for worth in row], size, Fraction(threshold))
    wanted = [float(cost) for cost in slow]
    rows = np.array([row, row[::-1]], np.float64)
    assert finish_cost(rows, size, threshold)[0].tolist() == wanted
    assert finish_cost(np.asfortranarray(rows), size, threshold)[0].tolist() == wanted


def test_scores_and_thresholds_stay_within_the_range_of_floats() -> None:
    cost = finish_cost([1e300, 1e300], 2, -1e300)
    assert cost.tolist() == [float(4 * Fraction(1e300))]
    for scores in ([1e308, 1e308], np.array([1e308, 1e308])):
        with pytest.raises(ValueError, match=r"importance must be at most 1e\+300 in size"):
            evict_for_blocks(scores, 1, 1, 1)
    with pytest.raises(ValueError, match=r"importance must sum to at most 1e\+290"):
        evict_for_blocks([1e300, -1e300], 1, 1, 1)
    with pytest.raises(ValueError, match=r"threshold must be at most 1e\+300 in size, .* -1e\+308"):
        finish_cost([1.0, 2.0], 2, -1e308)
    assert finish_cost([1.0, 2.0, 3.0], 65_535, 0).tolist() == [6.0]


def test_no_tokens_make_no_blocks() -> None:
    assert finish_cost(np.zeros((2, 3, 0)), 2, 0).shape == (2, 3, 0)


def test_a_block_with_an_infinite_token_is_never_finished() -> None:
    assert finish_cost([1, math.inf, 1], 2, 0).tolist() == [math.inf, 1.0]


# Policies against the frontier


@given(case=cases(("whole", "ties"), protected=False), data=st.data())
def test_excess_is_that_over_the_least_loss(case: Case, data: st.DataObject) -> None:
    keep = np.zeros(case.importance.shape, bool)
    for entry in case.slow.entries:
        keep[entry.index] = data.draw(st.booleans())
    census = take_census(keep, case.pool, **case.said)
    least = oracle.least_losses(case.slow, census.num_evicted_entries)[census.num_freed_blocks]
    loss = sum(
        (e.worth for e in case.slow.entries if e.worth is not None and not keep[e.index]),
        Fraction(0),
    )
    excess = frontier_excess(keep, case.importance, case.pool, **case.said)
    assert isinstance(excess, float)
    if least == loss:
        assert excess == 0
    elif least == 0:
        assert excess == math.inf
    else:
        assert excess == float((loss - least) / abs(least)) >= 0


def test_evicting_what_is_infinitely_important_is_infinitely_far() -> None:
    assert frontier_excess([False, True], [math.inf, 1.0], 1) == math.inf


@pytest.fixture(scope="module")
def script() -> Any:  # noqa: ANN401  # a module that is loaded by its path
    spec = importlib.util.spec_from_file_location("frontier", ROOT / "benchmarks" / "frontier.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures(script: Any) -> dict[str, NDArray[np.float64]]:  # noqa: ANN401  # a module
    """Reclaim, loss and excess of each policy on the article's pool, for 30 draws of scores."""
    return {name: np.array(rows) for name, rows in script.measured(30).items()}


def test_finishing_blocks_is_near_the_frontier_and_blending_scores_is_not(
    figures: dict[str, NDArray[np.float64]],
) -> None:
    means = {name: rows.mean(axis=0) for name, rows in figures.items()}
    errors = {name: rows.std(axis=0, ddof=1) / math.sqrt(30) for name, rows in figures.items()}

    def near(name: str, column: int, printed: float, rounding: float) -> bool:
        return bool(abs(means[name][column] - printed) <= rounding + 4 * errors[name][column])

    # The article prints 0.36 of the blocks at 28 % loss, 16 % for tokens, 0.50 at 38 % for blocks.
    aware = "finishing, 0.5 on tokens"
    assert near(aware, 0, 0.36, 0.005)
    assert near(aware, 1, 0.28, 0.005)
    assert near("lowest tokens", 1, 0.16, 0.005)
    assert near("whole blocks", 1, 0.38, 0.005)
    assert (figures["whole blocks"][:, 0] == 0.5).all()
    assert (figures["lowest tokens"][:, 0] == 0).all()
    assert (figures[aware][:, 2] < 0.005).all()
    assert (figures["finishing, 0.25 on tokens"][:, 2] < 0.005).all()
    assert means["finishing, 0.75 on tokens"][2] < 0.01
    for name in ("lowest tokens", "whole blocks"):
        assert (figures[name][:, 2] < 1e-9).all()
    for share, excess in ((0.05, 0.22), (0.1, 0.35), (0.2, 0.39)):
        name = f"{share} token + {1 - share} block"
        assert near(name, 2, excess, 0.005)
        assert (figures[name][:, 2] > 0.1).all()
    ranks = figures["ranks, 0.25 token + 0.75 block"]
    assert abs(ranks[:, 0].mean() - means[aware][0]) < 0.01
    assert (ranks[:, 2] > 0.1).all()
    assert near("random", 2, 2.13, 0.005)


def test_the_page_prints_what_is_measured(figures: dict[str, NDArray[np.float64]]) -> None:
    text = (ROOT / "docs" / "best-a-policy-can-do.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ")[1:] for line in text.splitlines() if line[:2] == "| "]
    assert len(rows) == 1 + len(figures)
    for (reclaim, loss, excess), of_policy in zip(rows[1:], figures.values(), strict=True):
        mean = of_policy.mean(axis=0)
        assert (reclaim, loss) == (f"{mean[0]:.3f}", f"{mean[1]:.3f}")
        decimals = len(excess.removesuffix(" %").partition(".")[2])
        assert float(excess.removesuffix(" %")) == abs(round(100 * mean[2], decimals))


def test_the_page_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "best-a-policy-can-do.md").read_text("utf-8")
    names = re.findall(r"`(test_\w+)`", text)
    assert len(names) > 8
    assert set(names) <= set(globals())


# What comes back


def test_a_selection_stays_read_only_after_a_round_trip() -> None:
    found = evict_for_blocks(ADVERSE, 2, 3, 1)
    pickled = pickle.loads(pickle.dumps(found))  # noqa: S301  # written the line before
    for one in (found, pickled, copy.deepcopy(found), copy.copy(found)):
        assert not one.keep.flags.writeable
        assert one.keep.tolist() == found.keep.tolist()
        assert (one.loss, one.lower_bound, one.num_freed_blocks) == (11.0, 11.0, 1)
    assert found != copy.copy(found)


def test_numbers_of_blocks_come_in_any_sequence() -> None:
    wanted = reclaim_frontier(ADVERSE, 2, 3, [0, 1])
    for numbers in ((0, 1), np.array([0, 1]), range(2)):
        assert reclaim_frontier(ADVERSE, 2, 3, numbers) == wanted  # type: ignore[arg-type]  # an array is legal
    for wrong in ([True], [1, True], [[1]], "1", 1.0):
        with pytest.raises(TypeError, match="blocks"):
            reclaim_frontier(ADVERSE, 2, 3, wrong)  # type: ignore[arg-type]  # as the test says


def test_figures_are_built_in_numbers() -> None:
    found = evict_for_blocks(np.array(ADVERSE, np.float32), 2, np.int64(3), np.int64(1))  # type: ignore[arg-type]  # NumPy's integers are legal
    assert type(found.loss) is type(found.lower_bound) is type(found.gap) is float
    assert type(found.num_freed_blocks) is int
    line = reclaim_frontier(ADVERSE, 2, 3, 1)
    assert line == Frontier(free_blocks=(1,), loss=(11.0,), lower_bound=(11.0,))
    assert json.dumps([line.free_blocks, line.loss]) == "[[1], [11.0]]"
    assert type(max_free_blocks(ADVERSE, 2, 3)) is int


def test_inputs_are_left_alone_and_answers_repeat() -> None:
    rng = np.random.default_rng(8)
    scores = np.asfortranarray(rng.lognormal(0, 1, (3, 40)))
    stays = rng.random((3, 40)) < 0.1
    lengths = np.array([40, 11, 25])
    copies = [array.copy() for array in (scores, stays, lengths)]
    for array in (scores, stays, lengths):
        array.flags.writeable = False
    said: dict[str, Any] = {"axes": "bt", "lengths": lengths, "protected": stays}
    first, second = (evict_for_blocks(scores, BlockPool(4), 30, 3, **said) for _ in range(2))
    evict_at_price(scores, BlockPool(4), 30, 1.0, **said)
    assert first.keep.tolist() == second.keep.tolist()
    for array, before in zip((scores, stays, lengths), copies, strict=True):
        assert (array == before).all()
    mirrored = evict_for_blocks(
        scores[::-1].T,
        BlockPool(4),
        30,
        3,
        axes="tb",
        lengths=lengths[::-1],
        protected=stays[::-1].T,
    )
    assert mirrored.keep.T[::-1].tolist() == first.keep.tolist()


def test_nothing_to_evict_loses_nothing() -> None:
    for shape in ((0,), (0, 5), (2, 0)):
        empty = np.zeros(shape)
        found = evict_for_blocks(empty, BlockPool(4, shared_axes=""), 0, 0)
        assert (found.loss, found.lower_bound, found.keep.size) == (0, 0, 0)
        assert evict_at_price(empty, BlockPool(4, shared_axes=""), 0, 1).loss == 0
    assert reclaim_frontier([1, 2], 2, 0).loss == (0,)
    assert evict_for_blocks([1, 2], 2, 0, 0, method="milp").keep.tolist() == [True, True]
    assert frontier_excess([True, True], [1, 2], 2) == 0


# Bad input

SCORES = [1.0, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((SCORES, 2, 5, 0), {}, ValueError, r"num_evicted must be at most 4, the .*; got 5; write"),
        (
            (SCORES, 2, -1, 0),
            {},
            ValueError,
            "num_evicted must be an integer of at least 0; got -1",
        ),
        ((SCORES, 2, 2.0, 0), {}, TypeError, "num_evicted must be an integer"),
        (
            (SCORES, 2, 3, 2),
            {},
            ValueError,
            "blocks must be at most 1, the most that num_evicted=3",
        ),
        ((SCORES, 2, 3, -1), {}, ValueError, "blocks must be an integer of at least 0; got -1"),
        ((SCORES, 2, 3, True), {}, TypeError, "blocks must be an integer"),
        ((SCORES, 2, 3, 1), {"method": "lp"}, ValueError, "method must be one of 'dual', 'milp'"),
        ((SCORES, "16", 3, 1), {}, TypeError, "pool must be a BlockPool or a block size"),
        (
            (SCORES, BlockPool(2, frees="back"), 3, 1),
            {},
            ValueError,
            r"pool must free any empty block .*; got frees='back'; write pool.replace\(frees='any'",
        ),
        (([1, math.nan], 2, 1, 0), {}, ValueError, "importance must be an array of numbers"),
        (([1, -math.inf], 2, 1, 0), {}, ValueError, "NaN or -inf, the first -inf at index 1"),
        (([1e290, -1e290], 2, 1, 0), {}, ValueError, r"importance must sum to at most 1e\+290"),
        (([[1.0, 2]], 2, 1, 0), {}, ValueError, "axes must name the 2 axes of importance"),
        ((SCORES, 2, 1, 0), {"protected": [True]}, ValueError, "protected must have the shape of"),
        ((SCORES, 2, 1, 0), {"protected": [0.5] * 4}, TypeError, "protected must be True and"),
        ((SCORES, 2, 4, 0), {"protected": [1, 0, 0, 0]}, ValueError, "at most 3, the entries that"),
        ((SCORES, 2, 1, 0), {"lengths": 5}, ValueError, "lengths must be from 0 to 4; got 5"),
        ((SCORES, 2, 1, 0), {"offset": 2}, ValueError, "offset must be from 0 to 1; got 2"),
        ((SCORES, 2, 4, 0), {"lengths": 3}, ValueError, "num_evicted must be at most 3"),
    ],
)
def test_bad_input_is_named(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        evict_for_blocks(*arguments, **options)


@pytest.mark.parametrize(
    ("price", "error"),
    [(-1, ValueError), (math.inf, ValueError), (math.nan, ValueError), ("1", TypeError)],
)
def test_a_price_is_a_finite_number_from_zero_up(price: float, error: type[Exception]) -> None:
    with pytest.raises(error, match="price must be a finite number of at least 0"):
        evict_at_price(SCORES, 2, 2, price)


@pytest.mark.parametrize(("threshold", "error"), [(math.inf, ValueError), (None, TypeError)])
def test_a_threshold_is_a_finite_number(threshold: float, error: type[Exception]) -> None:
    with pytest.raises(error, match="threshold must be a finite number"):
        finish_cost(SCORES, 2, threshold)


@pytest.mark.parametrize("size", [0, 65_536])
def test_a_block_size_is_one_of_a_pool(size: int) -> None:
    with pytest.raises(ValueError, match="block_size must be an integer from 1 to 65535"):
        finish_cost(SCORES, size, 0)


def test_points_of_a_frontier_are_named() -> None:
    with pytest.raises(ValueError, match=r"blocks\[1\] must be at most 1, the most that"):
        reclaim_frontier(SCORES, 2, 3, [0, 2])
    with pytest.raises(TypeError, match="blocks must be an integer of at least 0; got the boolean"):
        reclaim_frontier(SCORES, 2, 3, blocks=True)
    with pytest.raises(TypeError, match=r"blocks\[0\] must be an integer of at least 0; got float"):
        reclaim_frontier(SCORES, 2, 3, [0.5])  # type: ignore[list-item]  # refused
    with pytest.raises(TypeError, match="blocks must be a number of blocks, or a sequence"):
        reclaim_frontier(SCORES, 2, 3, np.array(1))  # type: ignore[arg-type]  # refused


def test_masks_of_another_shape_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"keep must have the shape of importance, \(4,\); got \(3,"
    ):
        frontier_excess([1, 1, 0], SCORES, 2)
    with pytest.raises(ValueError, match="keep must be False beyond the lengths"):
        frontier_excess([0, 0, 0, 1], SCORES, 2, lengths=3)


def test_a_solver_without_a_proof_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy import optimize

    stopped = SimpleNamespace(x=None, status=1, message="Time limit reached.")
    monkeypatch.setattr(optimize, "milp", lambda *_, **__: stopped)
    with pytest.raises(
        RuntimeError, match=r"without one \(Time limit reached.\); write method='dual'"
    ):
        evict_for_blocks(SCORES, 2, 2, 1, method="milp")
