"""The moves of one block table: which survivor goes where, in what order, and what comes free."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim.pool import BlockPool


def by_rows(pool: BlockPool) -> bool:
    """Return whether a move copies one entry, rather than a slot with all its rows."""
    return pool.compactor in ("evacuate_rows", "pack_rows")


_NEVER: Final = int(np.iinfo(np.int64).max)


class Table(NamedTuple):
    """The full compaction of one table, of which a budget may allow the first moves only."""

    moves: NDArray[np.int64]  # ([row,] source, target) in slots of the table
    in_place: NDArray[np.bool_]  # blocks that are free if the table is left alone
    since: NDArray[np.int64]  # block b is free after n moves where since[b] <= n < until[b]
    until: NDArray[np.int64]

    def freed_after(self, moves: int | None) -> NDArray[np.bool_]:
        """Return which blocks are free after the first so many moves; None: left alone."""
        if moves is None:
            return self.in_place
        return (self.since <= moves) & (moves < self.until)

    def cuts(self) -> NDArray[np.int64]:
        """Return after how many moves one more block is free, then two more, and so on."""
        end = len(self.moves) + 1
        since = np.minimum(self.since, end)
        until = np.maximum(np.minimum(self.until, end), since)
        come, go = (np.bincount(moves, minlength=end + 1) for moves in (since, until))
        free = np.maximum.accumulate((come - go).cumsum()[:end])
        return np.searchsorted(free, np.arange(self.in_place.sum(), free[-1]) + 1)


def plan_table(
    rows: NDArray[np.bool_], pinned: list[int], pool: BlockPool, *, partial_tail: bool
) -> Table:
    """Plan the full compaction of one table, as if it had no blocks but those not pinned."""
    size, num_rows = pool.block_size, len(rows)
    num_blocks = rows.shape[1] // size
    own = np.ones(num_blocks, np.bool_)
    own[pinned] = False
    can_go = own & ~rows.any(axis=0).reshape(num_blocks, size).any(axis=1)
    if pool.open_tail and partial_tail and num_blocks:
        can_go[-1] = False
    in_place = _taken_back(can_go, pool)
    since = np.where(in_place, 0, _NEVER)
    until = np.full(num_blocks, _NEVER)
    moves = np.zeros((0, 2), np.int64)
    if pool.compactor != "none":
        blocks = np.flatnonzero(own)
        rows = rows.reshape(num_rows, num_blocks, size)[:, blocks].reshape(num_rows, -1)
        if not by_rows(pool):
            rows = np.logical_or.reduce(rows, axis=0, keepdims=True)
        moves, since[blocks], until[blocks] = _compact(rows, pool)
        moves[:, -2:] = blocks[moves[:, -2:] // size] * size + moves[:, -2:] % size
        if pool.frees == "back":  # a block is free once all behind it are
            since = np.maximum.accumulate(since[::-1])[::-1]
            until = np.minimum.accumulate(until[::-1])[::-1]
    return Table(moves, in_place, since, until)


def _taken_back(can_go: NDArray[np.bool_], pool: BlockPool) -> NDArray[np.bool_]:
    """Return which of the blocks that can go the runtime takes back."""
    if pool.frees == "back":
        return np.logical_and.accumulate(can_go[::-1])[::-1]
    if pool.frees == "front":
        return np.logical_and.accumulate(can_go)
    return can_go & (pool.frees == "any")


def _compact(
    rows: NDArray[np.bool_], pool: BlockPool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the moves of a full compaction, and since and until when each block is empty."""
    size, num_blocks = pool.block_size, rows.shape[1] // pool.block_size
    slots = np.arange(rows.shape[1]).reshape(num_blocks, size)
    occupied = rows.reshape(len(rows), num_blocks, size).sum(axis=(0, 2))
    order = np.arange(num_blocks)[::-1]
    if pool.compactor in ("evacuate", "evacuate_rows"):
        order = np.argsort(occupied, kind="stable")
    packed = -(-int(rows.sum(axis=1).max()) // size)
    emptied, kept = order[: num_blocks - packed], np.sort(order[num_blocks - packed :])
    moves = np.concatenate(
        [
            np.column_stack(np.broadcast_arrays(row, *pair))
            for row, pair in enumerate(
                _moves_of_row(keep, slots[emptied].ravel(), slots[kept].ravel(), pool.compactor)
                for keep in rows
            )
        ]
    )
    since, until = np.full((2, num_blocks), _NEVER)
    since[emptied] = len(moves)
    if pool.compactor == "evacuate":
        since[emptied] = occupied[emptied].cumsum()
    elif pool.compactor == "fill":
        behind = occupied[::-1].cumsum()[::-1]  # live slots from this block on: they go first
        since = np.where(behind <= len(moves), behind, _NEVER)
        since[occupied == 0] = 0
        filled, first = np.unique(moves[:, 2] // size, return_index=True)
        until[filled] = first + 1
    return moves if by_rows(pool) else moves[:, 1:], since, until


def _moves_of_row(
    row: NDArray[np.bool_],
    emptied: NDArray[np.int64],
    kept: NDArray[np.int64],
    compactor: str,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sources and targets, given the slots of the blocks that are emptied and kept."""
    if compactor in ("evacuate", "evacuate_rows"):
        sources, holes = emptied[row[emptied]], kept[~row[kept]]
        return sources, holes[: len(sources)]
    live = np.flatnonzero(row)
    if compactor == "fill":
        return live[live >= len(live)][::-1], np.flatnonzero(~row[: len(live)])
    targets = np.arange(len(live))
    return live[live != targets], targets[live != targets]


def allowed_moves(tables: list[Table], limit: int, pool: BlockPool) -> list[int | None]:
    """Return how many moves of each table a budget allows; None: the table is left alone."""
    cuts = [table.cuts() for table in tables]
    allowed: list[int | None] = [None] * len(tables)
    if pool.compactor in ("evacuate", "fill"):
        costs = [np.diff(cut, prepend=0) for cut in cuts]
        # A block behind a dearer one of its table has to wait for that.
        prices = np.concatenate([np.maximum.accumulate(cost) for cost in costs])
        order = np.argsort(prices, kind="stable")
        fit = np.concatenate(costs)[order].cumsum() <= limit
        number = np.repeat(np.arange(len(cuts)), [len(cut) for cut in cuts])
        steps = np.bincount(number[order[fit]], minlength=len(cuts)).tolist()
        return [int(cut[n - 1]) if n else None for cut, n in zip(cuts, steps, strict=True)]
    worthwhile = [i for i, cut in enumerate(cuts) if len(cut)]
    for i in sorted(worthwhile, key=lambda i: len(tables[i].moves) / len(cuts[i])):
        if len(tables[i].moves) <= limit:
            allowed[i] = len(tables[i].moves)
            limit -= len(tables[i].moves)
    return allowed
