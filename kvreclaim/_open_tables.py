"""Block tables of which the rows come one after another, a few at a time.

Each table keeps one bit for each slot, and the sums over its rows, until its last row is in.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _bits, _layout, occupancy
from kvreclaim._layout import Layout
from kvreclaim._measure import RowSums
from kvreclaim.pool import BlockPool

_MOST_BYTES: Final = occupancy.PIECE  # of what a table in memory may keep


class OpenTables:
    """Tables of which some rows are in: their unions so far, and the sums over their rows."""

    def __init__(self, whole: Layout, sizes: tuple[int, ...], first: int, pool: BlockPool) -> None:
        self._whole, self._first, self._pool = whole, first, pool
        self._tables = math.prod(sizes)
        offsets = _layout.of_tables(whole.offsets, first, self._tables)
        self._offsets = np.broadcast_to(offsets, self._tables).reshape(sizes)
        blocks = -(-(whole.tokens + whole.before) // pool.block_size)
        self._live = np.zeros((*sizes, -(-whole.tokens // 8)), np.uint8)
        self._live_entries = np.zeros(sizes, np.int64)
        self._fullest = np.zeros(sizes, np.int64)
        self._staying = np.zeros(sizes, np.int64)
        self._entries = np.zeros(
            (*sizes, blocks if pool.compactor == "evacuate_rows" else 0), np.int64
        )

    def add(self, bits: NDArray[np.uint8], at: tuple[slice, ...]) -> None:
        """Add rows, in an array of outer axes, shared axes and bytes, to the tables at `at`."""
        some = bits.shape[: len(at)]
        bits = bits.reshape(math.prod(some), -1, bits.shape[-1])
        row_live = _bits.per_row(bits)
        self._live[at] |= _bits.union(bits).reshape(*some, -1)
        self._live_entries[at] += row_live.sum(axis=1).reshape(some)
        self._fullest[at] = np.maximum(self._fullest[at], row_live.max(axis=1).reshape(some))
        if self._pool.compactor == "pack_rows":
            run = _bits.leading_run(bits).sum(axis=1).reshape(some)
            self._staying[at] += np.where(self._offsets[at] == 0, run, 0)
        elif self._pool.compactor == "evacuate_rows":
            entries = self._entries_per_block(bits, self._offsets[at].reshape(-1))
            self._entries[at] += entries.reshape(*some, -1)

    def _entries_per_block(
        self, bits: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        here = self._whole._replace(array=bits, outer_axes=1, packed="big", rows=bits.shape[1])
        return np.concatenate(
            [
                _bits.per_block(piece, slots, self._pool.block_size).sum(axis=1, dtype=np.int64)
                for _, slots, piece in occupancy.pieces(here, bits, offsets, self._pool)
            ],
            axis=1,
        )

    def unions(self) -> Layout:
        """Return the tables as if each had one row, the union."""
        keep = self._live.reshape(self._tables, 1, self._live.shape[-1])
        return self._whole._replace(
            array=keep, outer_axes=1, packed="big", rows=1, start=self._first
        )

    def sums(self) -> RowSums | None:
        """Return what the unions do not tell; None where each table has one row indeed."""
        if self._whole.rows == 1:
            return None
        compactor = self._pool.compactor
        return RowSums(
            rows=self._whole.rows,
            live_entries=self._live_entries.reshape(-1),
            fullest=self._fullest.reshape(-1),
            entries=self._entries.reshape(self._tables, -1)
            if compactor == "evacuate_rows"
            else None,
            staying=self._staying.reshape(-1) if compactor == "pack_rows" else None,
        )


def worth_uniting(layout: Layout, pool: BlockPool) -> bool:
    """Return whether it pays to unite the rows of each table before its blocks are counted.

    It does for tables larger than a piece whose rows lie one after another in memory: a piece of
    all their rows would be read in many short runs. The union must be small.
    """
    rows, tokens = layout.rows, layout.tokens
    kept = tokens // 8
    if pool.compactor == "evacuate_rows":
        kept = tokens // pool.block_size * 32
    return (
        rows > 1
        and rows * tokens > occupancy.PIECE
        and kept <= _MOST_BYTES
        and layout.array.strides[-1] == layout.array.itemsize
    )


def united(layout: Layout, pool: BlockPool) -> Iterator[OpenTables]:
    """Yield each table of a layout, in order, with all its rows in."""
    for first, stretch in occupancy.stretches(layout, 1):
        table = OpenTables(layout, (1,), first, pool)
        for box in boxes(stretch.shape[1:-1], max(1, occupancy.PIECE // layout.tokens)):
            table.add(occupancy.row_bits(layout, stretch[:, *box]), (slice(0, 1),))
        yield table


def boxes(sizes: tuple[int, ...], most_rows: int) -> Iterator[tuple[slice, ...]]:
    """Yield consecutive boxes of an array, in order, of at most so many rows, or of one."""
    if not sizes:
        yield ()
        return
    step = most_rows // math.prod(sizes[1:])
    if step:
        rest = tuple(slice(0, size) for size in sizes[1:])
        for start in range(0, sizes[0], step):
            yield slice(start, min(start + step, sizes[0])), *rest
        return
    for start in range(sizes[0]):
        for box in boxes(sizes[1:], most_rows):
            yield slice(start, start + 1), *box
