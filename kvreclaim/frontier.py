"""The best that a policy can do: the least importance that has to go to free so many blocks.

A budget of entries goes, and some blocks must go whole. Which blocks is a choice of its own: what
counts is not what a block holds but what it costs to finish, since its cheap entries go anyway.
Every answer comes with a lower bound that no other choice can beat.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Literal

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _dual, _entries, _milp, _sums
from kvreclaim._entries import Entries, Problem, Solution
from kvreclaim.census import take_census
from kvreclaim.pool import PoolLike


@attrs.frozen(eq=False, kw_only=True)
class Selection:
    """What goes, what that loses, and how much less any other choice could lose.

    It comes from `evict_for_blocks` and `evict_at_price`. The mask is read-only, after a pickle
    round trip too; a selection is equal to itself only.

    Parameters
    ----------
    keep
        The keep-mask, in the shape and order of axes of the importance; False beyond the lengths.
    num_freed_blocks
        Blocks that it frees.
    loss
        The sum of the evicted importance, correctly rounded.
    lower_bound
        No mask that evicts as many entries and frees as many blocks loses less.
    """

    keep: NDArray[np.bool_] = attrs.field(converter=_checks.as_read_only)
    num_freed_blocks: int
    loss: float
    lower_bound: float

    def __reduce__(self) -> tuple[functools.partial[Selection], tuple[()]]:
        """Pickle and copy by building anew, which makes the array read-only again."""
        fields = {field.name: getattr(self, field.name) for field in attrs.fields(Selection)}
        return functools.partial(Selection, **fields), ()

    @property
    def gap(self) -> float:
        """The certified gap, ``(loss - lower_bound) / |loss|``: 0 where the choice is proved best.

        As solvers of integer programs define it; inf where only the loss is 0.
        """
        if self.loss == self.lower_bound:
            return 0.0
        return (self.loss - self.lower_bound) / abs(self.loss) if self.loss else math.inf


@attrs.frozen(kw_only=True)
class Frontier:
    """The least loss for each number of free blocks, under one budget of entries.

    It comes from `reclaim_frontier`.

    Parameters
    ----------
    free_blocks
        Numbers of blocks: at least so many are free.
    loss
        The sum of the evicted importance that a mask reaches for each of them.
    lower_bound
        What any mask of this budget loses at least for each of them; equal to the loss where that
        is proved to be the least.
    """

    free_blocks: tuple[int, ...]
    loss: tuple[float, ...]
    lower_bound: tuple[float, ...]


def finish_cost(importance: ArrayLike, block_size: int, threshold: float) -> NDArray[np.float64]:
    """Return what it costs to finish each block where all below a threshold goes anyway.

    ``e_b = sum over the block of max(w - threshold, 0)``, at least 0 and correctly rounded. Blocks
    of the smallest cost are those to free.

    Parameters
    ----------
    importance
        Scores, (..., tokens); +inf for a token that must stay.
    block_size
        Tokens of a block; the last one may hold fewer.
    threshold
        The importance that eviction reaches outside the blocks; as finite scores, at most 1e300 in
        size.

    Returns
    -------
    array
        (..., blocks), as float64; +inf for a block with a token that must stay.

    Raises
    ------
    TypeError, ValueError
        For scores that are NaN or -inf, a block size, scores or a threshold out of range.

    Examples
    --------
    The second block holds more than the first, and is cheaper to finish.

    >>> finish_cost([0, 10, 5, 6, 100, 100], 2, 5).tolist()
    [5.0, 1.0, 190.0]
    """
    scores = _checks.as_importance(importance)
    size = _checks.as_block_size(block_size)
    limit = _checks.as_finite("threshold", threshold)
    if abs(limit) > _checks.MOST_IMPORTANCE:
        raise ValueError(
            f"threshold must be at most {_checks.MOST_IMPORTANCE:g} in size, as scores are; got "
            f"{limit}; divide both by the largest score."
        )
    rows = scores.reshape(math.prod(scores.shape[:-1]), scores.shape[-1])
    above = rows > limit
    terms = np.stack([np.where(above, rows, 0.0), np.where(above, -limit, 0.0)], axis=1)
    with np.errstate(under="ignore"):  # the bound of an error may be smaller than any float
        blocks, _ = _sums.over_chunks(_sums.over_rows(terms), size, np.zeros((1, 1), np.int64))
        cost = _sums.rounded(blocks)
    return cost.reshape(*scores.shape[:-1], cost.shape[-1])


def max_free_blocks(
    importance: ArrayLike,
    pool: PoolLike,
    num_evicted: int,
    *,
    protected: ArrayLike | None = None,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> int:
    """Return the most blocks that a budget of entries can free: the smallest ones that it pays.

    From 0 to the blocks that hold no protected entry. Parameters and errors are those of
    `evict_for_blocks`.

    Examples
    --------
    Two entries pay for one block of two, or for the last one, which holds a single token.

    >>> max_free_blocks([5, 5, 5, 5, 5], 2, 2), max_free_blocks([5, 5, 5, 5, 5], 2, 3)
    (1, 2)
    """
    entries = _entries.lay_out(
        importance, pool, protected, axes=axes, lengths=lengths, offset=offset
    )
    return _most_blocks(entries.problem, _as_budget(num_evicted, entries.problem))


def evict_for_blocks(
    importance: ArrayLike,
    pool: PoolLike,
    num_evicted: int,
    blocks: int,
    *,
    method: Literal["dual", "milp"] = "dual",
    protected: ArrayLike | None = None,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> Selection:
    """Choose entries to evict so that at least so many whole blocks are free, at the least loss.

    The loss is the sum of the evicted importance. Where rows share blocks, a block is bought for
    all its rows at once; all entries of all tables share one budget. With a price tau on entries,
    ``tau * k - sum max(tau - w, 0) + the F smallest finish costs`` bounds the loss of k entries and
    F blocks from below, whatever tau (Lagrangian duality). At the best tau, choices of blocks are
    tried in the order of that bound until none that is left can be better: nearly always a proof,
    within milliseconds. Where 2,048 choices do not suffice, as may happen to blocks of widely
    different sizes, the best one is returned with its gap.

    Parameters
    ----------
    importance
        Scores, one for each entry; negative ones are legal (such as minus the norms of keys), +inf
        is an entry that must stay. Entries beyond the lengths are not read.
    pool
        A BlockPool that frees ``"any"``, or a block size. With ``open_tail`` a partly written last
        block cannot be bought.
    num_evicted
        Entries to evict, exactly: of all rows and tables together.
    blocks
        Blocks to free, at least.
    method
        ``"dual"``, or ``"milp"``: a mixed-integer program by HiGHS, tens to hundreds of times
        slower. By the solver's tolerances its loss may lie above the least one, and so may its
        lower bound, by a millionth of the mean absolute importance: where a few scores are a
        million times the others, it proves nothing about these.
    protected
        Booleans in the shape of the importance, True for an entry that must stay.
    axes, lengths, offset
        As in `take_census`, of the importance.

    Returns
    -------
    Selection

    Raises
    ------
    TypeError, ValueError
        For scores that are NaN or -inf, more entries than may go, more blocks than they pay for, a
        pool that does not free ``"any"``; else as `take_census`.
    RuntimeError
        Where the solver of ``"milp"`` stops without a proof.

    Examples
    --------
    The cheapest block is not the best one: its 0 would go anyway.

    >>> best = evict_for_blocks([0, 10, 5, 6, 100, 100], 2, 3, 1)
    >>> best.keep.tolist(), best.loss, best.gap
    ([False, True, False, False, True, True], 11.0, 0.0)
    """
    method_name = _checks.as_choice("method", method, ("dual", "milp"))
    entries = _entries.lay_out(
        importance, pool, protected, axes=axes, lengths=lengths, offset=offset
    )
    budget = _as_budget(num_evicted, entries.problem)
    wanted = _as_blocks("blocks", blocks, budget, entries.problem)
    solve = _dual.solve if method_name == "dual" else _milp.solve
    return _selection(entries, solve(entries.problem, budget, wanted))


def evict_at_price(
    importance: ArrayLike,
    pool: PoolLike,
    num_evicted: int,
    price: float,
    *,
    protected: ArrayLike | None = None,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> Selection:
    """Evict a budget of entries, buying every block that costs no more than a price to finish.

    A block is bought where ``e_b <= price`` (`finish_cost`) at the highest threshold at which the
    blocks bought and all entries below it fit the budget; of those that reach the price together,
    as many as fit. The cheapest other entries fill it up. A rising price traces the frontier, and
    needs no number of blocks beforehand. At price 0 the entries of least importance go.

    Parameters
    ----------
    importance, pool, num_evicted, protected, axes, lengths, offset
        As in `evict_for_blocks`.
    price
        The importance that a free block is worth: a finite number of at least 0.

    Returns
    -------
    Selection
        Its lower bound is for the blocks that it frees.

    Raises
    ------
    TypeError, ValueError
        As `evict_for_blocks`; and for a price that is negative or not finite.

    Examples
    --------
    >>> scores = [0, 10, 5, 6, 100, 100]
    >>> [evict_at_price(scores, 2, 3, price).num_freed_blocks for price in (0, 1, 100)]
    [1, 1, 1]
    """
    worth = float(_checks.as_exact("price", price, maximum=None))
    entries = _entries.lay_out(
        importance, pool, protected, axes=axes, lengths=lengths, offset=offset
    )
    problem = entries.problem
    budget = _as_budget(num_evicted, problem)
    evicted = _entries.fill_up(problem, _dual.bought_at(problem, budget, worth), budget)
    loss = _entries.loss_of(problem, evicted)
    best = _dual.solve(problem, budget, _entries.num_freed(problem, evicted))
    return _selection(entries, best._replace(evicted=evicted, loss=loss))


def reclaim_frontier(
    importance: ArrayLike,
    pool: PoolLike,
    num_evicted: int,
    blocks: int | Sequence[int] | None = None,
    *,
    protected: ArrayLike | None = None,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> Frontier:
    """Return the least loss for each number of free blocks, under one budget of entries.

    The loss never falls as blocks are added. `evict_for_blocks` gives the mask of a point.

    Parameters
    ----------
    importance, pool, num_evicted, protected, axes, lengths, offset
        As in `evict_for_blocks`.
    blocks
        A number of blocks, or several; None: every number from 0 to `max_free_blocks`.

    Returns
    -------
    Frontier
        One entry for each number, in the order in which they came.

    Raises
    ------
    TypeError, ValueError
        As `evict_for_blocks`.

    Examples
    --------
    >>> reclaim_frontier([1, 9, 3, 4, 2, 9, 8, 8], 2, 4)
    Frontier(free_blocks=(0, 1, 2), loss=(10.0, 10.0, 17.0), lower_bound=(10.0, 10.0, 17.0))
    """
    entries = _entries.lay_out(
        importance, pool, protected, axes=axes, lengths=lengths, offset=offset
    )
    budget = _as_budget(num_evicted, entries.problem)
    if blocks is None:
        numbers = list(range(_most_blocks(entries.problem, budget) + 1))
    elif isinstance(blocks, int | np.integer):
        numbers = [_as_blocks("blocks", blocks, budget, entries.problem)]
    else:
        rule, hint = "a number of blocks, or a sequence of them", "write such as [0, 8, 16]"
        some = _checks.as_items("blocks", blocks, rule, hint)
        numbers = [
            _as_blocks(f"blocks[{place}]", number, budget, entries.problem)
            for place, number in enumerate(some)
        ]
    ascending = sorted(set(numbers))
    best: list[Solution] = []
    rank = None
    for number in ascending:
        best.append(_dual.solve(entries.problem, budget, number, rank))
        rank = best[-1].rank
    # A mask with more free blocks will do, and so will a bound for fewer of them.
    falling = itertools.accumulate((point.loss for point in reversed(best)), min)
    losses = dict(zip(reversed(ascending), falling, strict=True))
    rising = itertools.accumulate((point.lower_bound for point in best), max)
    bounds = dict(zip(ascending, rising, strict=True))
    return Frontier(
        free_blocks=tuple(numbers),
        loss=tuple(losses[number] for number in numbers),
        lower_bound=tuple(bounds[number] for number in numbers),
    )


def frontier_excess(
    keep: ArrayLike,
    importance: ArrayLike,
    pool: PoolLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> float:
    """Return how far a policy's loss lies above the least one for its own budget and free blocks.

    ``(loss - lower_bound) / |lower_bound|``, which is ``loss / lower_bound - 1`` where importance
    is positive; at least 0, and no less than the true excess over the best mask that evicts as many
    entries and frees as many blocks. 0 where the loss is the bound, nothing evicted included; inf
    where the bound alone is 0, and where an entry of importance +inf is evicted.

    0 is no praise by itself: the tokens of least importance free nothing, and have an excess of 0.
    Read it beside the reclaim. The budget is that of all entries together, so a policy that gives
    every row the same number pays for that, too.

    Parameters
    ----------
    keep
        The policy's keep-mask.
    importance
        The scores by which it is judged, in the shape of `keep`.
    pool
        A BlockPool that frees ``"any"``, or a block size.
    axes, lengths, offset
        As in `take_census`, of both arrays.

    Raises
    ------
    TypeError, ValueError
        As `take_census` for the mask, and as `evict_for_blocks` for the importance.

    Examples
    --------
    Freeing the cheapest block loses 15, the best one 11.

    >>> frontier_excess([0, 0, 0, 1, 1, 1], [0, 10, 5, 6, 100, 100], 2)
    0.36363636363636365
    """
    entries = _entries.lay_out(importance, pool, None, axes=axes, lengths=lengths, offset=offset)
    mask = _checks.as_keep(keep)
    _entries.require_shape("keep", mask, entries.shape)
    census = take_census(mask, pool, axes=axes, lengths=lengths, offset=offset)
    loss = _entries.loss_of(entries.problem, ~entries.flatten(mask))
    if math.isinf(loss):
        return math.inf
    best = _dual.solve(entries.problem, census.num_evicted_entries, census.num_freed_blocks)
    if loss <= best.lower_bound:
        return 0.0
    return (loss - best.lower_bound) / abs(best.lower_bound) if best.lower_bound else math.inf


def _selection(entries: Entries, solution: Solution) -> Selection:
    return Selection(
        keep=entries.keep_of(solution.evicted),
        num_freed_blocks=_entries.num_freed(entries.problem, solution.evicted),
        loss=solution.loss,
        lower_bound=solution.lower_bound,
    )


def _as_budget(num_evicted: object, problem: Problem) -> int:
    budget = _checks.as_count("num_evicted", num_evicted)
    if budget > problem.num_finite:
        raise ValueError(
            f"num_evicted must be at most {problem.num_finite}, the entries that are not "
            f"protected; got {budget}; write fewer, or protect fewer."
        )
    return budget


def _most_blocks(problem: Problem, budget: int) -> int:
    return int(np.searchsorted(problem.capacity, budget, side="right"))


def _as_blocks(name: str, value: object, budget: int, problem: Problem) -> int:
    blocks, most = _checks.as_count(name, value), _most_blocks(problem, budget)
    if blocks > most:
        raise ValueError(
            f"{name} must be at most {most}, the most that num_evicted={budget} can free here; got "
            f"{blocks}; write fewer blocks, or a larger budget."
        )
    return blocks
