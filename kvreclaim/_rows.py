"""Which rows of a cache are left after an eviction, told by their bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sources(
    before: NDArray[np.int64], after: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return where each row that is left was before, and where the rows cannot tell.

    Rows are numbers here, equal where their bits are. Equal rows that are left are taken for the
    first of those that were there.

    Returns
    -------
    index : numpy.ndarray
        For each row of `after` one of `before`, each taken once; -1 where no row is left to take.
    ambiguous : numpy.ndarray
        True where `before` had more equal rows than are left: any of them may be the survivor.
    """
    order = before.argsort(kind="stable")
    ordered = before[order]
    first = np.searchsorted(ordered, after, side="left")
    num_before = np.searchsorted(ordered, after, side="right") - first
    order_after = after.argsort(kind="stable")
    ordered_after = after[order_after]
    begin = np.searchsorted(ordered_after, ordered_after, side="left")
    num_after = np.empty(len(after), np.int64)
    num_after[order_after] = np.searchsorted(ordered_after, ordered_after, side="right") - begin
    rank = np.empty(len(after), np.int64)  # how many equal rows are left before this one
    rank[order_after] = np.arange(len(after)) - begin
    found = rank < num_before
    index = np.full(len(after), -1, np.int64)
    index[found] = order[(first + rank)[found]]
    return index, found & (num_after < num_before)
