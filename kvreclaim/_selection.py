"""Scores x budget -> which tokens stay: the highest ones; among equals the later ones.

Scores stand as (group, row, token): the rows of a group choose together. What is summed or averaged
is rounded once, to the nearest float (`_sums`): neither the order of rows and tokens nor the memory
layout matters, and equal numbers have that number as their mean, however many they are.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks, _sums

_Scalar = TypeVar("_Scalar", np.bool_, np.float64)


class Scores(NamedTuple):
    """Scores as groups of rows that choose together, and the way back to the axes they came in."""

    rows: NDArray[np.float64]  # (group, row, token), or (group, row, query, token)
    sizes: tuple[int, ...]  # sizes of the axes of a mask over them, in the order of `rows`
    back: tuple[int, ...]  # which of these axes come first, second, ... in the caller's order

    def restore(self, values: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Return a mask, or scores, over groups and rows, or one for all of a group, as they came.

        The array is the caller's own: a copy, which can be written to.
        """
        groups, rows = self.rows.shape[:2]
        whole = np.broadcast_to(values, (groups, rows, self.rows.shape[-1]))
        return np.array(whole.reshape(self.sizes).transpose(self.back), order="C")


def of_importance(importance: object, axes: object, *, together: str = "") -> Scores:
    """Check importance, and put the rows along the letters ``together`` in groups."""
    array = _checks.as_importance(importance)
    letters = _checks.as_score_axes(axes, array.shape, name="importance", last="t", of=together)
    return lay_out(array, letters, together=together)


def of_attention(
    attention: object, axes: object, *, together: str = "", num_queries: int | None = None
) -> Scores:
    """Check attention, of its last queries alone where no others are read, and group its rows."""
    array = _checks.as_array("attention", attention, "an array of numbers, queries by tokens")
    letters = _checks.as_score_axes(axes, array.shape, name="attention", last="qt", of=together)
    queries = letters.index("q")
    if array.shape[queries] == 0 and array.shape[letters.index("t")] > 0:
        raise ValueError(
            f"attention must have at least one query; got shape {array.shape}, whose axis "
            f"{queries} is the queries; write the attention that the last tokens pay to all."
        )
    name = "attention"
    if num_queries is not None and num_queries < array.shape[queries]:
        # A copy of the whole as float64 may be gigabytes.
        array = array[(slice(None),) * queries + (slice(-num_queries, None),)]
        name = f"attention (its last {num_queries} queries)"
    return lay_out(_checks.as_importance(array, name), letters, together=together, last="qt")


def lay_out(array: NDArray[np.float64], letters: str, *, together: str, last: str = "t") -> Scores:
    """Put the axes of scores in order: those of groups, those of a group's rows, the last ones."""
    rows = [letters.index(letter) for letter in together if letter in letters]
    ends = [letters.index(letter) for letter in last]
    groups = [axis for axis in range(len(letters)) if axis not in rows and axis not in ends]
    of_mask = [*groups, *rows, ends[-1]]
    shape = array.shape
    return Scores(
        rows=array.transpose([*groups, *rows, *ends]).reshape(
            math.prod(shape[axis] for axis in groups),
            math.prod(shape[axis] for axis in rows),
            *(shape[axis] for axis in ends),
        ),
        sizes=tuple(shape[axis] for axis in of_mask),
        back=tuple(int(place) for place in np.argsort(of_mask)),
    )


def highest(scores: NDArray[np.float64], num_kept: int) -> NDArray[np.bool_]:
    """Return True at the highest scores along the last axis, at most so many; the later of equals.

    Linear in tokens: the lowest score that stays is found by partition, and only where several
    tokens have that very score are they told apart by position.
    """
    tokens = scores.shape[-1]
    if num_kept >= tokens:
        return np.ones(scores.shape, np.bool_)
    if num_kept == 0:
        return np.zeros(scores.shape, np.bool_)
    lowest = np.partition(scores, tokens - num_kept, axis=-1)[..., tokens - num_kept, None]
    keep = scores >= lowest
    surplus = np.count_nonzero(keep, axis=-1) - num_kept
    tied = surplus > 0
    if tied.any():
        equal = scores[tied] == lowest[tied]
        keep[tied] &= ~equal | (equal.cumsum(axis=-1) > surplus[tied][:, None])
    return keep


def recent_and_highest(
    scores: NDArray[np.float64], num_kept: int, recent: int
) -> NDArray[np.bool_]:
    """Return True at the last ``recent`` tokens, and at the highest scores before them.

    The scores of those that stay for being recent are not read. A budget that does not reach
    beyond them pays for as many of the last.
    """
    tokens = scores.shape[-1]
    num_kept = min(num_kept, tokens)
    before = tokens - min(recent, num_kept)
    keep = np.ones(scores.shape, np.bool_)
    keep[..., :before] = highest(scores[..., :before], num_kept - (tokens - before))
    return keep


def totals(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums of (group, row, token) over rows, rounded once.

    A sum orders tokens as a mean does.
    """
    return _sums.rounded(_sums.over_rows(terms))


def pooled(scores: NDArray[np.float64], kernel: int, pooling: str) -> NDArray[np.float64]:
    """Return the sum or the maximum of (group, token) over the ``kernel`` neighbours of each token.

    A sum orders tokens as a mean does, where the zeros beyond the ends are counted.
    """
    tokens = scores.shape[-1]
    kernel = min(kernel, max(1, 2 * tokens - 1))  # a wider one reaches no further
    if pooling == "avg":
        return _sums.rounded(_sums.over_neighbours(scores, kernel))
    out = np.pad(scores, [(0, 0), (kernel // 2, kernel // 2)], constant_values=-np.inf)
    width = 1
    while width < kernel:  # two windows make the next, and may overlap
        step = min(width, kernel - width)
        out = np.maximum(out[:, :-step], out[:, step:])
        width += step
    return out


def highest_chunks(
    scores: NDArray[np.float64], size: int, offsets: NDArray[np.int64], num_kept: int
) -> NDArray[np.bool_]:
    """Return True in the chunks of the highest mean, whole ones but for the last that is chosen.

    Scores are (group, row, token), and the rows of a group keep the same tokens: (group, token).
    ``offsets``, of shape (groups or 1, 1), are the places of the first chunk before token 0. The
    chunk that the budget does not pay for whole keeps its highest tokens. Among equal chunks the
    later stays, among equal tokens too.
    """
    groups, rows, tokens = scores.shape
    keep = np.ones((groups, tokens), np.bool_)
    of_tokens = _sums.over_rows(scores)
    of_chunks, num_tokens = _sums.over_chunks(of_tokens, size, offsets)
    means = _sums.means(of_chunks, np.maximum(num_tokens * rows, 1))
    places = np.broadcast_to(np.arange(means.shape[-1]), means.shape)
    rank = np.empty(means.shape, np.int64)
    np.put_along_axis(rank, means.argsort(axis=-1, kind="stable"), places, axis=-1)
    chunks = np.broadcast_to((offsets + np.arange(tokens)) // size, keep.shape)
    worth = _sums.rounded(of_tokens)
    order = np.lexsort((worth, np.take_along_axis(rank, chunks, axis=-1)), axis=-1)
    np.put_along_axis(keep, order[:, : max(0, tokens - num_kept)], values=False, axis=-1)
    return keep


def pyramid_budgets(
    num_layers: int, num_tokens: int, num_kept: int, window: int, beta: Fraction
) -> list[int]:
    """Return the budget of each layer: a straight line down, of mean ``num_kept``.

    Layers i and L - 1 - i stand equally far from the mean; halves are rounded to even, so one of
    them goes up where the other goes down, and the sum is exact.
    """
    low = num_kept / beta
    high = 2 * num_kept - low
    if high >= num_tokens - window:
        high = Fraction(num_tokens - window)
        low = 2 * num_kept - high
    if num_layers == 1 or not num_tokens >= high >= low >= window:
        return [num_kept] * num_layers
    step = (high - low) / (num_layers - 1) if num_layers else Fraction(0)
    return [round(high - layer * step) for layer in range(num_layers)]
