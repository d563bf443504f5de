"""Importance x pool -> entries in the order of their blocks, and back.

Under `frontier.py`: what both ways to choose blocks work on.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks, _layout
from kvreclaim.pool import BlockPool, PoolLike, as_pool

_MOST_IMPORTANCE: Final = 1e290  # sums of more could leave the range of a float


class Problem(NamedTuple):
    """Entries in blocks, one block after the other."""

    weights: NDArray[np.float64]  # importance of each entry; +inf for one that must stay
    starts: NDArray[np.intp]  # the first entry of each block
    sizes: NDArray[np.intp]  # its entries
    buyable: NDArray[np.bool_]  # whether it may be freed at all
    block: NDArray[np.intp]  # the block of each entry
    order: NDArray[np.intp]  # entries by importance
    ranked: NDArray[np.float64]  # their importances, ascending
    ranked_block: NDArray[np.intp]  # and their blocks
    num_finite: int  # entries that may go
    total: float  # sum of the absolute importances of these
    whole: bool  # whether they are whole numbers, and exact in all sums

    @property
    def capacity(self) -> NDArray[np.intp]:
        """Entries of the 1, 2, ... smallest blocks that may be freed, together."""
        return np.cumsum(np.sort(self.sizes[self.buyable]))


class Solution(NamedTuple):
    """The entries that go, and how much better another choice could be."""

    evicted: NDArray[np.bool_]
    loss: float
    lower_bound: float
    rank: int  # rank of the price on entries; no larger for more blocks


def make_problem(
    weights: NDArray[np.float64], starts: NDArray[np.intp], buyable: NDArray[np.bool_]
) -> Problem:
    """Sort the entries; a block with one that must stay cannot be bought."""
    sizes = np.diff(starts, append=len(weights))
    block = np.repeat(np.arange(len(starts)), sizes)
    order = np.argsort(weights, kind="stable")
    ranked = weights[order]
    num_finite = int(np.searchsorted(ranked, math.inf))
    finite = ranked[:num_finite]
    total = float(np.abs(finite).sum())
    stays = np.bincount(block[order[num_finite:]], minlength=len(starts)) > 0
    return Problem(
        weights=weights,
        starts=starts,
        sizes=sizes,
        buyable=buyable & ~stays,
        block=block,
        order=order,
        ranked=ranked,
        ranked_block=block[order],
        num_finite=num_finite,
        total=total,
        whole=total < 2**53 and bool((finite == np.rint(finite)).all()),
    )


def fill_up(problem: Problem, chosen: NDArray[np.bool_], num_evicted: int) -> NDArray[np.bool_]:
    """Return the entries of the blocks chosen and the cheapest others, `num_evicted` in all."""
    evicted = chosen[problem.block]
    loose = problem.order[~chosen[problem.ranked_block]]
    evicted[loose[: num_evicted - int(problem.sizes[chosen].sum())]] = True
    return evicted


def num_freed(problem: Problem, evicted: NDArray[np.bool_]) -> int:
    """Return how many blocks are free, of those that may be."""
    held = np.bincount(problem.block[~evicted], minlength=len(problem.starts))
    return int(np.count_nonzero(problem.buyable & (held == 0)))


def loss_of(problem: Problem, evicted: NDArray[np.bool_]) -> float:
    """Return the sum of what goes, correctly rounded."""
    return math.fsum(problem.weights[evicted].tolist())


class Entries(NamedTuple):
    """The entries of an array in the order of their blocks, and the way back."""

    problem: Problem
    shape: tuple[int, ...]
    letters: str
    pool: BlockPool
    within: NDArray[np.bool_]  # (table, token): whether the table has the token

    def flatten(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the entries of an array of this shape, block by block."""
        return _tokens_first(array, self.letters, self.pool)[self.within].reshape(-1)

    def keep_of(self, evicted: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the keep-mask in the shape in which the importance came."""
        keep = np.zeros(self.shape, np.bool_)
        view = _layout.arrange(keep, self.letters, self.pool, lengths=None, offset=0)
        tables = np.zeros((*self.within.shape, view.rows), np.bool_)
        tables[self.within] = ~evicted.reshape(-1, view.rows)
        shared = view.array.shape[view.outer_axes : -1]
        by_token = tables.reshape(*view.outer, view.tokens, *shared)
        view.array[...] = np.moveaxis(by_token, view.outer_axes, -1)
        return keep


def _tokens_first(array: NDArray[Any], letters: str, pool: BlockPool) -> NDArray[Any]:
    """Return an array as (table, token, row)."""
    view = _layout.arrange(array, letters, pool, lengths=None, offset=0)
    by_token = np.moveaxis(view.array, -1, view.outer_axes)
    return by_token.reshape(view.num_tables, view.tokens, view.rows)


def lay_out(
    importance: object,
    pool: PoolLike,
    protected: object,
    *,
    axes: object,
    lengths: object,
    offset: object,
) -> Entries:
    """Check scores and what goes with them, and put their entries in the order of blocks."""
    pool = as_pool(pool)
    if pool.frees != "any":
        raise ValueError(
            "pool must free any empty block (frees='any'), since the blocks to buy lie anywhere; "
            f"got frees={pool.frees!r}; write pool.replace(frees='any')."
        )
    scores = _checks.as_importance(importance)
    letters = _checks.as_axes(axes, scores.shape, pool.shared_axes, name="importance")
    layout = _layout.arrange(scores, letters, pool, lengths=lengths, offset=offset, of="importance")
    lengths_of, offsets = (numbers[:, None] for numbers in _layout.of_each_table(layout))
    tokens = np.arange(layout.tokens)
    within = tokens < lengths_of
    if protected is not None:
        stays = _checks.as_keep(protected, "protected")
        require_shape("protected", stays, scores.shape)
        scores = np.where(stays, math.inf, scores)
    weights = _tokens_first(scores, letters, pool)[within].reshape(-1)
    if float(np.abs(weights[np.isfinite(weights)]).sum()) > _MOST_IMPORTANCE:
        raise ValueError(
            f"importance must sum to at most {_MOST_IMPORTANCE:g}, whatever its signs; got more; "
            "divide it by its largest value."
        )
    block = (tokens + offsets) // pool.block_size
    begins = np.ones_like(within)
    begins[:, 1:] = block[:, 1:] != block[:, :-1]
    starts = np.flatnonzero(begins[within])
    buyable = np.ones(len(starts), np.bool_)
    if pool.open_tail:
        opens = (lengths_of + offsets) % pool.block_size > 0
        last = block == (lengths_of + offsets - 1) // pool.block_size
        buyable = ~(opens & last)[within][starts]
    return Entries(
        problem=make_problem(weights, starts * layout.rows, buyable),
        shape=scores.shape,
        letters=letters,
        pool=pool,
        within=within,
    )


def require_shape(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(
            f"{name} must have the shape of importance, {shape}; got {array.shape}; write a value "
            "for each entry."
        )
