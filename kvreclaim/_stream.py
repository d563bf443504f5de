"""A mask that arrives row by row, in the order of its axes, and is never there as a whole.

Where a few tables fit into a piece they are counted as they come. Otherwise each open table keeps
one bit for each slot, and the sums over its rows, until its last row is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _bits, _layout, occupancy
from kvreclaim._layout import Layout
from kvreclaim._measure import RowSums
from kvreclaim._tally import Tally
from kvreclaim.pool import BlockPool


def tally_rows(
    read: Callable[[int], NDArray[np.uint8]],
    shape: tuple[int, ...],
    axes: str,
    pool: BlockPool,
    *,
    lengths: object,
    offset: object,
) -> tuple[Tally, int]:
    """Count a mask of packed rows and return the sums and the rows of a table.

    ``read(n)`` returns the bits of the next n rows. `axes` ends in ``t``, `shape` in tokens.
    """
    nothing = np.broadcast_to(np.False_, shape)
    whole = _layout.arrange(nothing, axes, pool, lengths=lengths, offset=offset)
    whole = whole._replace(packed="big", outer_axes=1)
    split = next((i for i, c in enumerate(axes[:-1]) if c in pool.shared_axes), len(axes) - 1)
    inner = shape[split:-1]
    shared = [i for i, letter in enumerate(axes[split:-1]) if letter in pool.shared_axes]
    outer = [i for i in range(len(inner)) if i not in shared]
    groups, rows = math.prod(shape[:split]), math.prod(inner)  # rows of one group of tables
    tables = math.prod(inner[i] for i in outer)
    at_once = occupancy.PIECE // max(rows * shape[-1], 1)
    tally = Tally(pool)
    for start in range(0, groups, max(at_once, 1)):
        first = start * tables
        if at_once:
            here = min(at_once, groups - start)
            bits = read(here * rows)
            bits = bits.reshape(here, *inner, bits.shape[-1])
            order = [0, *(i + 1 for i in outer), *(i + 1 for i in shared), bits.ndim - 1]
            keep = bits.transpose(order).reshape(here * tables, whole.rows, bits.shape[-1])
            tally.add(whole._replace(array=keep, start=first))
        else:
            group = _OpenTables(whole, tuple(inner[i] for i in outer), first, pool)
            for box in _boxes(inner, max(1, occupancy.PIECE // shape[-1])):
                counts = [part.stop - part.start for part in box]
                bits = read(math.prod(counts))
                bits = bits.reshape(*counts, bits.shape[-1])
                bits = bits.transpose([*outer, *shared, bits.ndim - 1])
                group.add(bits, tuple(box[i] for i in outer))
            tally.add(group.unions(), group.sums())
    return tally, whole.rows


class _OpenTables:
    """Tables of which some rows are in: their unions so far, and the sums over their rows."""

    def __init__(self, whole: Layout, sizes: tuple[int, ...], first: int, pool: BlockPool) -> None:
        self._whole, self._first, self._pool = whole, first, pool
        self._tables = math.prod(sizes)
        offsets = _layout.of_tables(whole.offsets, first, self._tables)
        self._offsets = np.broadcast_to(offsets, self._tables).reshape(sizes)
        blocks = -(-(whole.tokens + int(self._offsets.max())) // pool.block_size)
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
            self._entries[at][..., : entries.shape[1]] += entries.reshape(*some, -1)

    def _entries_per_block(
        self, bits: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        here = self._whole._replace(array=bits, rows=bits.shape[1])
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
        return self._whole._replace(array=keep, rows=1, start=self._first)

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


def _boxes(sizes: tuple[int, ...], most_rows: int) -> Iterator[tuple[slice, ...]]:
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
        for box in _boxes(sizes[1:], most_rows):
            yield slice(start, start + 1), *box
