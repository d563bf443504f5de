"""The sums over block tables that a Census is made of: what is free, held, packed, moved.

Blocks pinned at the front of a table are counted apart, and the rest of it as a table of its own.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _layout
from kvreclaim._layout import Layout, PerTable
from kvreclaim._measure import RowSums, Tables, measure
from kvreclaim._open_tables import united, worth_uniting
from kvreclaim.pool import BlockPool

_PINNED: Final = (
    "num_pinned_blocks",
    "num_pinned_tokens",
    "num_pinned_live_tokens",
    "num_pinned_live_entries",
)


class Tally:
    """Sums over tables while they are read."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self._counts = np.zeros(pool.block_size + 1, np.int64)
        self._movable = np.zeros_like(self._counts[: None if pool.compactor == "evacuate" else 0])
        self._tables = self._tokens = self._live_entries = 0
        self._freed = self._held_tokens = self._packed = self._floor = self._moved = 0
        self._pinned = dict.fromkeys(_PINNED, 0)

    def fields(self, rows: int) -> dict[str, Any]:
        """Return the fields of the census, but for its pool, as built-in integers."""
        return {
            "rows_per_table": rows,
            "num_tables": self._tables,
            "num_entries": self._tokens * rows,
            "num_live_entries": self._live_entries,
            "num_tokens": self._tokens,
            "counts": tuple(self._counts.tolist()),
            "num_freed_blocks": self._freed,
            "num_held_tokens": self._held_tokens,
            "num_packed_blocks": self._packed,
            "num_floor_blocks": self._floor,
            "num_moved_entries": self._moved,
            "movable": tuple(self._movable.tolist()),
            **self._pinned,
        }

    def add(self, layout: Layout, sums: RowSums | None = None) -> None:
        """Add every table of a layout; or of a layout of unions, with the sums over their rows."""
        self._add(layout, self.pool, sums)

    def _add(self, layout: Layout, pool: BlockPool, sums: RowSums | None = None) -> None:
        if sums is None and worth_uniting(layout, pool):
            for table in united(layout, pool):
                self._add(table.unions(), pool, table.sums())
            return
        for found in measure(layout, pool, sums):
            self._add_tables(found, pool)

    def add_pinned(self, layout: Layout, pinned: NDArray[np.int64]) -> None:
        """Add every table of a layout, of which the first `pinned` tokens must stay in place."""
        tables = layout.num_tables
        keep = layout.array.reshape(tables, *layout.array.shape[layout.outer_axes :])
        lengths, offsets = _layout.of_each_table(layout)
        size = self.pool.block_size
        blocks = np.where(pinned > 0, -(-(pinned + offsets) // size), 0)
        borders = np.minimum(np.maximum(blocks * size - offsets, 0), layout.tokens)
        for border, offset in np.unique(np.stack([borders, offsets], axis=1), axis=0).tolist():
            some = np.flatnonzero((borders == border) & (offsets == offset))
            part = layout._replace(outer_axes=1, outer=(len(some),), array=keep[some])
            before = part._replace(
                array=part.array[..., :border],
                tokens=border,
                lengths=np.minimum(lengths[some], border),
                offsets=offsets[some],
                before=offset,
            )
            after = part._replace(
                array=part.array[..., border:],
                tokens=layout.tokens - border,
                lengths=np.maximum(lengths[some] - border, 0),
                offsets=0 if border else offsets[some],
                before=0 if border else offset,
            )
            if border:
                self._add_held(before)
            behind_held = border > 0 and self.pool.frees == "front"
            self._add(after, self.pool.replace(frees="none") if behind_held else self.pool)

    def _add_held(self, layout: Layout) -> None:
        """Add blocks that are neither freed nor moved, whatever is dead in them."""
        held = Tally(self.pool.replace(frees="none", compactor="none"))
        held.add(layout)
        fields = held.fields(layout.rows)
        blocks = sum(fields["counts"])
        self._counts += fields["counts"]
        self._tokens += fields["num_tokens"]
        self._live_entries += fields["num_live_entries"]
        self._held_tokens += fields["num_tokens"]
        self._packed += blocks
        self._floor += blocks
        live = sum(live * count for live, count in enumerate(fields["counts"]))
        numbers = (blocks, fields["num_tokens"], live, fields["num_live_entries"])
        for name, number in zip(_PINNED, numbers, strict=True):
            self._pinned[name] += number

    def _add_tables(self, found: Tables, pool: BlockPool) -> None:
        size, tables, rows = pool.block_size, found.tables, found.rows
        lengths, blocks, histogram = found.lengths, found.blocks, found.histogram
        _drop_empty(histogram, found.slots // size - blocks)  # behind the end of a shorter table
        live, live_entries = _one(found.live), _one(found.live_entries)
        floor = -(-live // size) if found.fullest is found.live else -(-_one(found.fullest) // size)
        freed, freed_tokens = _freed(found, pool)
        held = blocks - freed
        if pool.compactor == "none":
            packed = held
        elif pool.compactor in ("evacuate_rows", "pack_rows"):
            packed = floor
        else:
            packed = -(-live // size)

        self._tables += tables
        self._tokens += _total(lengths, tables)
        self._live_entries += _total(live_entries, tables)
        self._counts[: histogram.shape[1]] += histogram.sum(axis=0)
        self._freed += _total(freed, tables)
        self._held_tokens += _total(lengths - freed_tokens, tables)
        self._packed += _total(packed, tables)
        self._floor += _total(floor, tables)

        if pool.compactor == "evacuate":
            _drop_empty(histogram, freed)
            emptied = _smallest(histogram, held - packed)
            self._movable[: len(emptied)] += emptied
            self._moved += rows * _weight(emptied)
        elif pool.compactor == "evacuate_rows":
            if found.row_blocks is not None:
                histogram = found.row_blocks
                _drop_empty(histogram, found.slots // size - blocks)
            self._moved += _weight(_smallest(histogram, blocks - floor))
        elif found.staying is not None:
            staying = _total(_one(found.staying), tables)
            if pool.compactor == "pack_rows":
                self._moved += _total(live_entries, tables) - staying
            else:
                self._moved += rows * (_total(live, tables) - staying)


def _one(values: NDArray[np.int64]) -> PerTable:
    """Return the number of a single table as a plain integer, which is faster to go on with."""
    return int(values[0]) if len(values) == 1 else values


def _total(values: PerTable, tables: int) -> int:
    return values * tables if isinstance(values, int) else int(values.sum())


def _drop_empty(histogram: NDArray[np.int64], blocks: PerTable) -> None:
    """Take away that many empty blocks of each table."""
    if not (isinstance(blocks, int) and blocks == 0):
        histogram[:, 0] -= blocks


def _smallest(histogram: NDArray[np.int64], how_many: PerTable) -> NDArray[np.int64]:
    """Return the histogram, over all tables, of the ``how_many[i]`` smallest values of table i."""
    most = how_many if isinstance(how_many, int) else how_many[:, None]
    running = histogram.cumsum(axis=1)
    up_to: NDArray[np.int64] = np.minimum(running, most, out=running).sum(axis=0)
    up_to[1:] -= up_to[:-1].copy()
    return up_to


def _weight(histogram: NDArray[np.int64]) -> int:
    return int(histogram @ np.arange(len(histogram)))


def _freed(found: Tables, pool: BlockPool) -> tuple[PerTable, PerTable]:
    """Return the blocks of each table taken back without a copy, and the tokens in them."""
    size, lengths, ends, blocks = pool.block_size, found.lengths, found.ends, found.blocks
    if pool.frees == "none":
        return 0, 0
    empty = _one(found.histogram[:, 0].copy())
    if found.first is None or found.last is None:  # every block is whole, and any may be freed
        return empty, empty * size
    first, last = np.minimum(found.first, blocks), found.last
    tail_dead = last < blocks - 1
    kept_open = tail_dead & (ends % size != 0) & pool.open_tail
    if pool.frees == "any":
        freed = empty - kept_open
    elif pool.frees == "back":
        freed = np.where(kept_open, 0, blocks - 1 - last)
    else:
        freed = np.where(first == blocks, first - kept_open, first)
    head_freed, tail_freed = {
        "any": (first > 0, tail_dead & ~kept_open),
        "back": (freed == blocks, freed > 0),
        "front": (freed > 0, freed == blocks),
    }[pool.frees]
    outside = head_freed * (ends - lengths) + tail_freed * (blocks * size - ends)
    return freed, np.where(freed > 0, freed * size - outside, 0)
