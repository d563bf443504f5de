"""Which blocks to buy under one budget of entries: a price on entries, and the gap closed by rank.

Let w be the importance of the entries, k of which go, and F the blocks that must go whole. With a
price tau on entries, a choice S of F blocks loses at least

    L(S) = tau*k - sum over all entries of (tau - w)^+ + sum over S of e_b,
    e_b  = sum over the block of (w - tau)^+, what it costs to finish it at this price.

For k entries lose tau*k and the sum of their w - tau, which is least, of all sets that contain S,
for S and every entry below tau, however many those are. This holds for any tau, and for blocks of
any size. So D(tau), the L of the F cheapest blocks, bounds every loss from below. It is concave in
tau, and largest where the entries that go at this price number k, or jump over k.

There the choices are taken in the order of L. The loss of a choice with its cheapest entries around
it is L and the correction of the number: what the entries nearest to tau add that are too few or
too many. Once the next L reaches the least loss found, no other choice can be better.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim._entries import Problem, Solution, fill_up, loss_of, num_freed

_MOST_CHOICES: Final = 2_048  # choices of blocks that are looked at before the gap stays open
_MOST_EQUALS: Final = 32  # of these, such as only rounding could tell from the best
_MOST_CUTS: Final = 64  # cuts of the dual function between two neighbouring importances
_NEAR: Final = 2_048  # entries on each side of tau whose distances are summed beforehand
_EPSILON: Final = 2.0**-52


def finish_costs(problem: Problem, tau: float) -> NDArray[np.float64]:
    """Return what it costs to finish each block; +inf for one that cannot be bought."""
    over = np.subtract(problem.weights, tau)
    costs = np.add.reduceat(np.maximum(over, 0.0, out=over), problem.starts)
    costs[~problem.buyable] = math.inf
    return costs


def solve(problem: Problem, num_evicted: int, blocks: int, highest: int | None = None) -> Solution:
    """Evict `num_evicted` entries, `blocks` whole blocks among them, at the least loss.

    The budget must allow it. `highest` is the rank of the price on entries for fewer blocks, which
    the one for these does not exceed.
    """
    loose_rank = max(num_evicted - 1, 0)
    if highest is None or highest >= loose_rank:
        cheapest = fill_up(problem, np.zeros(len(problem.starts), np.bool_), num_evicted)
        if num_freed(problem, cheapest) >= blocks:  # with no block to buy, nothing loses less
            loss = loss_of(problem, cheapest)
            return Solution(cheapest, loss, loss, loose_rank)
    rank = _rank_of_price(problem, num_evicted, blocks, highest)
    price, feasible = _best_price(problem, num_evicted, blocks, rank)
    equals, bound = _close_gap(problem, num_evicted, blocks, price, feasible)
    masks = [fill_up(problem, chosen, num_evicted) for chosen in equals]
    losses = [loss_of(problem, evicted) for evicted in masks]
    loss = min(losses)
    evicted = masks[losses.index(loss)]
    if problem.whole and math.isfinite(bound):  # so is the least loss
        bound = math.ceil(bound)
    return Solution(evicted, loss, min(loss, float(bound)), rank)


def bought_at(problem: Problem, num_evicted: int, worth: float) -> NDArray[np.bool_]:
    """Return the blocks that cost at most `worth` to finish, at the highest price that fits.

    As the price on entries rises, more entries are below it and blocks cost less to finish: what
    goes only grows, up to the price at which the next entry or block would exceed the budget.
    """
    bought = np.zeros(len(problem.starts), np.bool_)
    if not num_evicted:
        return bought
    low, high = -1, problem.num_finite
    while high - low > 1:
        middle = (low + high) // 2
        price = float(problem.ranked[middle])
        inside = finish_costs(problem, price) <= worth
        below = int(np.searchsorted(problem.ranked, price))
        going = below + int(np.count_nonzero(inside[problem.ranked_block[below:]]))
        low, high = (middle, high) if going <= num_evicted else (low, middle)
    price = float(problem.ranked[max(low, 0)])
    costs = finish_costs(problem, price)
    upto, further = 0, costs
    if low >= 0:
        bought = costs <= worth
        upto = int(np.searchsorted(problem.ranked, price, side="right"))
        if upto == problem.num_finite:
            return bought
        further = finish_costs(problem, float(problem.ranked[upto]))
    # Before the next entry is reached, costs fall along straight lines.
    over = np.bincount(problem.ranked_block[upto:], minlength=len(costs))
    left = num_evicted - upto - int(over[bought].sum())
    candidates = np.flatnonzero(~bought & (further <= worth))
    reached = (costs[candidates] - worth) / over[candidates]
    for block in candidates[np.argsort(reached, kind="stable")].tolist():
        left -= int(over[block])
        if left < 0:
            break
        bought[block] = True
    return bought


class _AtPrice(NamedTuple):
    """The cheapest blocks at a price on entries, and the entries that go there."""

    chosen: NDArray[np.intp]
    value: float  # of the dual function
    fewest: int  # entries that go: those below the price, and the blocks
    most: int  # and those at the price


def _at(problem: Problem, num_evicted: int, blocks: int, price: float) -> _AtPrice:
    costs = finish_costs(problem, price)
    chosen = np.argpartition(costs, blocks - 1)[:blocks] if blocks else np.zeros(0, np.intp)
    below, upto = (
        int(np.searchsorted(problem.ranked, price, side=side)) for side in ("left", "right")
    )
    value = float(
        problem.ranked[:below].sum() + price * (num_evicted - below) + costs[chosen].sum()
    )
    inside = np.zeros(len(problem.starts), np.bool_)
    inside[chosen] = True
    at_least = int(np.count_nonzero(inside[problem.ranked_block[below:]]))
    above = int(np.count_nonzero(inside[problem.ranked_block[upto:]]))
    return _AtPrice(chosen, value, below + at_least, upto + above)


def _rank_of_price(problem: Problem, num_evicted: int, blocks: int, highest: int | None) -> int:
    """Return the rank of the lowest importance at which, as a price, enough entries go."""
    # Loose entries alone reach the budget at the importance of that rank, blocks before it.
    high = num_evicted - 1 if highest is None else highest
    low = -1
    if highest is not None:  # a neighbour's price is near: step away from it, wider each time
        step = 1
        while high - step > low:
            if _enough(problem, num_evicted, blocks, high - step):
                high -= step
                step *= 2
            else:
                low = high - step
    while high - low > 1:
        middle = (low + high) // 2
        if _enough(problem, num_evicted, blocks, middle):
            high = middle
        else:
            low = middle
    return high


def _enough(problem: Problem, num_evicted: int, blocks: int, rank: int) -> bool:
    return _at(problem, num_evicted, blocks, float(problem.ranked[rank])).most >= num_evicted


def _best_price(
    problem: Problem, num_evicted: int, blocks: int, rank: int
) -> tuple[float, NDArray[np.intp]]:
    """Return where the dual function is largest, and blocks that the budget can pay.

    Between two neighbouring importances it consists of straight lines, one for each choice of
    blocks; a line that rises and one that falls bound it by where they meet.
    """
    right_price = float(problem.ranked[rank])
    right = _at(problem, num_evicted, blocks, right_price)
    if right.fewest <= num_evicted:
        return right_price, right.chosen
    smaller = int(np.searchsorted(problem.ranked, right_price)) - 1
    span = max(float(problem.ranked[problem.num_finite - 1]) - right_price, abs(right_price)) or 1.0
    left_price = float(problem.ranked[smaller]) if smaller >= 0 else right_price - span
    # Far below all importances the cheapest blocks are the smallest, which the budget can pay.
    while (left := _at(problem, num_evicted, blocks, left_price)).most > num_evicted:
        left_price -= span
        span *= 2
    rise, fall = num_evicted - left.most, num_evicted - right.fewest
    for _ in range(_MOST_CUTS):
        if rise == 0:
            break
        meeting = left_price + (right.value - left.value + fall * (left_price - right_price)) / (
            rise - fall
        )
        if not left_price < meeting < right_price:
            break
        there = _at(problem, num_evicted, blocks, meeting)
        if there.most <= num_evicted:
            left_price, left, rise = meeting, there, num_evicted - there.most
        else:
            right_price, right, fall = meeting, there, num_evicted - there.fewest
    return max((left.value, left_price), (right.value, right_price))[1], left.chosen


def _doubt(problem: Problem, price: float) -> float:
    """Return more than all rounding can make of a sum over entries at a price, and of its steps."""
    steps = 2 * (_MOST_CHOICES + int(problem.sizes.max()))
    return _EPSILON * steps * (problem.total + problem.num_finite * abs(price))


def _close_gap(
    problem: Problem, num_evicted: int, blocks: int, price: float, feasible: NDArray[np.intp]
) -> tuple[list[NDArray[np.bool_]], float]:
    """Return the best choices, equal but for rounding, and a bound for those not looked at.

    It is +inf where none of them can be better.
    """
    near = _Near(problem, price)
    costs = finish_costs(problem, price)
    # Entries at the price count as bought with a block: they cost nothing either way.
    over = np.bincount(problem.ranked_block[near.below :], minlength=len(costs))
    by_cost = np.lexsort((over, costs))[: np.count_nonzero(problem.buyable)]
    base = float(problem.ranked[: near.below].sum()) + price * (num_evicted - near.below)
    doubt = _doubt(problem, price)

    first, known = (np.zeros(len(costs), np.bool_) for _ in range(2))
    first[by_cost[:blocks]] = True
    known[feasible] = True
    surplus = near.below + int(over[feasible].sum()) - num_evicted
    best = base + math.fsum(costs[feasible].tolist()) + near.correction(known, surplus)
    equals, bound = [known], math.inf
    choices = _choices(costs[by_cost].tolist(), over[by_cost].tolist(), blocks)
    for number, choice in enumerate(choices):
        value = base + choice.cost
        settled = value >= best + doubt
        if problem.whole:  # so is every loss
            settled = math.ceil(value - doubt) >= round(best)
        if settled or number == _MOST_CHOICES or len(equals) > _MOST_EQUALS:
            bound = value - doubt if value < best + doubt else math.inf
            break
        surplus = near.below + choice.over - num_evicted
        loss = value + near.least_correction(surplus)
        if loss < best + doubt:
            chosen = first.copy()
            chosen[by_cost[choice.stays : blocks]] = False
            chosen[by_cost[list(choice.moved)]] = True
            loss = value + near.correction(chosen, surplus)
        if loss < best - doubt:
            best, equals = loss, [chosen]
        elif loss < best + doubt and not any(np.array_equal(chosen, equal) for equal in equals):
            best = min(best, loss)
            equals.append(chosen)
    return equals, bound


class _Choice(NamedTuple):
    """Ranks of blocks: 0 to stays - 1, and those that moved from the ranks that follow."""

    cost: float
    serial: int
    over: int  # entries that their blocks add to those below the price
    stays: int
    moved: tuple[int, ...]  # ascending


def _choices(cost: list[float], over: list[int], blocks: int) -> Iterator[_Choice]:
    """Return all choices of so many blocks by what they cost; the blocks come by cost.

    Each choice but the first comes from exactly one other, by a step of the lowest rank that moved
    or of the one below it. No step makes it cheaper.
    """
    serial = itertools.count()
    heap = [_Choice(math.fsum(cost[:blocks]), next(serial), sum(over[:blocks]), blocks, ())]
    while heap:
        choice = heapq.heappop(heap)
        yield choice
        moved, stays = choice.moved, choice.stays
        steps = []
        if moved:
            steps.append((moved[0], stays, moved[1:]))
        if stays:
            steps.append((stays - 1, stays - 1, moved))
        for rank, stay, rest in steps:
            if rank + 1 < (rest[0] if rest else len(cost)):
                step = _Choice(
                    choice.cost + (cost[rank + 1] - cost[rank]),
                    next(serial),
                    choice.over + over[rank + 1] - over[rank],
                    stay,
                    (rank + 1, *rest),
                )
                heapq.heappush(heap, step)


class _Near:
    """The entries around a price, from the nearest on."""

    def __init__(self, problem: Problem, price: float) -> None:
        ranked, blocks = problem.ranked, problem.ranked_block
        self.below = int(np.searchsorted(ranked, price))
        down = slice(self.below - 1, None, -1) if self.below else slice(0)
        up = slice(self.below, problem.num_finite)
        self._distances = price - ranked[down], ranked[up] - price
        self._blocks = blocks[down], blocks[up]
        self._sums = [np.cumsum(side[:_NEAR]) for side in self._distances]

    def least_correction(self, surplus: int) -> float:
        """Return what it costs at least to evict so many entries fewer."""
        sums = self._sums[surplus < 0]
        count = min(abs(surplus), len(sums))
        return float(sums[count - 1]) if count else 0.0

    def correction(self, chosen: NDArray[np.bool_], surplus: int) -> float:
        """Return what it costs to evict so many entries fewer, none of them in the blocks chosen.

        +inf where too few lie outside: the blocks alone exceed the budget.
        """
        distances, blocks = self._distances[surplus < 0], self._blocks[surplus < 0]
        count = abs(surplus)
        for part in (4 * count + 64, len(distances)):
            loose = distances[:part][~chosen[blocks[:part]]][:count]
            if len(loose) == count:
                return float(loose.sum())
        return math.inf
