"""What whole block tables hold: live slots of their blocks, rows, runs at the borders.

Pieces of one table are joined along its slots; a table is described once it is whole.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _bits, _checks, _layout, occupancy
from kvreclaim._layout import Layout, PerTable
from kvreclaim.pool import BlockPool


class Tables(NamedTuple):
    """What whole tables of one layout hold: an array entry for each table."""

    tables: int
    rows: int  # of each
    slots: int  # looked at in each, a multiple of the block size
    lengths: PerTable  # written slots
    ends: PerTable  # written slots and the offset before them
    blocks: PerTable  # blocks owned
    histogram: NDArray[np.int64]  # (tables, bins): blocks looked at, by live slots
    live: NDArray[np.int64]  # live slots
    live_entries: NDArray[np.int64]
    fullest: NDArray[np.int64]  # live entries of the fullest row
    row_blocks: NDArray[np.int64] | None  # (tables, bins): blocks by live entries
    first: NDArray[np.int64] | None  # the first block with a live slot; `blocks` if none
    last: NDArray[np.int64] | None  # the last block with a live slot; -1 if none
    staying: NDArray[np.int64] | None  # live slots, or entries, that the compactor leaves alone


class RowSums(NamedTuple):
    """What the rows of tables add up to, where the tables are known as unions only."""

    rows: int  # of each table
    live_entries: NDArray[np.int64]
    fullest: NDArray[np.int64]  # live entries of the fullest row
    entries: NDArray[np.int64] | None  # (tables, blocks): live entries, for evacuate_rows
    staying: NDArray[np.int64] | None  # live entries that pack_rows leaves alone

    def put_into(self, found: Tables, first: int) -> Tables:
        """Return what the tables hold from number `first` on, with the rows counted in."""
        part = slice(first, first + found.tables)
        bins = self.rows * (found.histogram.shape[1] - 1) + 1
        return found._replace(
            rows=self.rows,
            live_entries=self.live_entries[part],
            fullest=self.fullest[part],
            row_blocks=None if self.entries is None else _histograms(self.entries[part], bins),
            staying=found.staying if self.staying is None else self.staying[part],
        )


class _Piece(NamedTuple):
    """What equally long pieces of tables hold."""

    slots: int
    blocks: int
    histogram: NDArray[np.int64]  # (tables, bins): blocks by live slots
    row_live: NDArray[np.int64] | None = None  # (tables, rows): live entries, where rows share
    row_blocks: NDArray[np.int64] | None = None  # (tables, bins): blocks by live entries
    first: NDArray[np.int64] | None = None
    last: NDArray[np.int64] | None = None
    run: NDArray[np.int64] | None = None  # (tables, 1 or rows): live slots before a dead one

    def joined(self, then: _Piece) -> _Piece:
        """Return what these pieces and the ones that follow them in the same tables hold."""
        return _Piece(
            slots=self.slots + then.slots,
            blocks=self.blocks + then.blocks,
            histogram=self.histogram + then.histogram,
            row_live=_sum(self.row_live, then.row_live),
            row_blocks=_sum(self.row_blocks, then.row_blocks),
            first=self.first
            if self.first is None or then.first is None
            else np.where(self.first < self.blocks, self.first, self.blocks + then.first),
            last=self.last
            if self.last is None or then.last is None
            else np.where(then.last >= 0, self.blocks + then.last, self.last),
            run=self.run
            if self.run is None or then.run is None
            else self.run + np.where(self.run == self.slots, then.run, 0),
        )

    @classmethod
    def stacked(cls, parts: list[_Piece]) -> _Piece:
        """Return what several such pieces hold, each of other tables."""
        if len(parts) == 1:
            return parts[0]
        arrays = (
            None if some[0] is None else np.concatenate(some)
            for some in zip(*(part[2:] for part in parts), strict=True)
        )
        return cls(parts[0].slots, parts[0].blocks, *arrays)  # type: ignore[arg-type]  # as in parts


def _sum(a: NDArray[np.int64] | None, b: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    return None if a is None or b is None else a + b


def refuse_live_beyond(layout: Layout, pool: BlockPool) -> None:
    """Refuse a mask that keeps a token beyond the length of its table."""
    for first, stretch in occupancy.stretches(layout, occupancy.tables_at_once(layout, pool)):
        offsets = _layout.of_tables(layout.offsets, first, len(stretch))
        for start, _, bits in occupancy.pieces(layout, stretch, offsets, pool):
            _live(bits, layout, first, start)


def measure(layout: Layout, pool: BlockPool, sums: RowSums | None = None) -> Iterator[Tables]:
    """Yield what the tables of a layout hold, in order, many at a time.

    Where the tables are known as unions only, the sums over their rows are given.
    """
    size = pool.block_size
    numbers = num_bins(layout.tokens + layout.before, size)
    if pool.compactor == "evacuate_rows":
        numbers *= layout.rows if sums is None else sums.rows
    numbers += 2 * layout.rows
    most_tables = max(1, occupancy.PIECE // (32 * numbers))  # what is known of each stays small
    edges = _needs_edges(layout, pool)
    if layout.array.size > occupancy.PIECE:
        occupancy.keep_freed_memory()
    first, parts, tables = layout.start, list[_Piece](), 0
    at_once = min(most_tables, occupancy.tables_at_once(layout, pool))
    for start, stretch in occupancy.stretches(layout, at_once):
        if tables + len(stretch) > most_tables and parts:
            yield _described(parts, layout, first, pool, sums)
            first, parts, tables = start, [], 0
        parts.append(_measure_stretch(layout, start, stretch, pool, edges=edges))
        tables += len(stretch)
    if parts:
        yield _described(parts, layout, first, pool, sums)


def _measure_stretch(
    layout: Layout, first: int, stretch: NDArray[Any], pool: BlockPool, *, edges: bool
) -> _Piece:
    """Count a stretch of whole tables that begins with table number `first` of the layout."""
    offsets = _layout.of_tables(layout.offsets, first, len(stretch))
    bins = num_bins(layout.tokens + layout.before, pool.block_size)

    def count(start: int, slots: int, bits: NDArray[np.uint8]) -> _Piece:
        live = _live(bits, layout, first, start)
        return _measure_piece(bits, slots, live, pool, bins, edges=edges)

    pieces = occupancy.pieces(layout, stretch, offsets, pool)
    one = next(pieces)
    whole = functools.reduce(_Piece.joined, itertools.starmap(count, pieces), count(*one))
    if pool.compactor == "fill":
        live = whole.histogram @ np.arange(bins)
        staying = np.zeros_like(live)
        again = [one] if one[1] == whole.slots else occupancy.pieces(layout, stretch, offsets, pool)
        for start, _, bits in again:
            part = _bits.union(bits)
            staying += _bits.per_row(part & _bits.first_bits(live - start, part.shape[-1]))
        whole = whole._replace(run=staying[:, None])
    return whole


def _described(
    parts: list[_Piece], layout: Layout, first: int, pool: BlockPool, sums: RowSums | None
) -> Tables:
    """Describe the tables of consecutive stretches, from number `first` of the layout on."""
    whole = _Piece.stacked(parts)
    tables, bins = whole.histogram.shape
    lengths = _layout.of_tables(layout.lengths, first, tables)
    ends = lengths + _layout.of_tables(layout.offsets, first, tables)
    live: NDArray[np.int64] = whole.histogram @ np.arange(bins)
    found = Tables(
        tables=tables,
        rows=layout.rows,
        slots=whole.blocks * pool.block_size,
        lengths=lengths,
        ends=ends,
        blocks=-(-ends // pool.block_size) * (lengths > 0),
        histogram=whole.histogram,
        live=live,
        live_entries=live if whole.row_live is None else whole.row_live.sum(axis=1),
        fullest=live if whole.row_live is None else whole.row_live.max(axis=1),
        row_blocks=whole.row_blocks,
        first=whole.first,
        last=whole.last,
        staying=None if whole.run is None else whole.run.sum(axis=1),
    )
    return found if sums is None else sums.put_into(found, first - layout.start)


def _measure_piece(
    bits: NDArray[np.uint8],
    slots: int,
    live: NDArray[np.uint8],
    pool: BlockPool,
    bins: int,
    *,
    edges: bool,
) -> _Piece:
    rows = bits.shape[1]
    if pool.block_size == 1 and slots and not edges:  # a block is a token: no need to list them
        kept = _bits.per_row(live)
        piece = _Piece(slots, slots, np.stack([slots - kept, kept], axis=1))
    else:
        occupied = _bits.per_block(live, slots, pool.block_size)
        piece = _Piece(slots, occupied.shape[1], _histograms(occupied, bins))
    if rows > 1:
        piece = piece._replace(row_live=_bits.per_row(bits))
        if pool.compactor == "evacuate_rows":
            entries = _bits.per_block(bits, slots, pool.block_size).sum(axis=1, dtype=np.int64)
            piece = piece._replace(row_blocks=_histograms(entries, rows * (bins - 1) + 1))
    if edges:
        held = occupied != 0
        none = ~held.any(axis=1)
        piece = piece._replace(
            first=np.where(none, piece.blocks, held.argmax(axis=1) if piece.blocks else 0),
            last=np.where(
                none, -1, piece.blocks - 1 - held[:, ::-1].argmax(axis=1) if piece.blocks else 0
            ),
        )
    if pool.compactor == "pack":
        piece = piece._replace(run=_bits.leading_run(live)[:, None])
    elif pool.compactor == "pack_rows":
        piece = piece._replace(run=_bits.leading_run(bits))
    return piece


def _live(bits: NDArray[np.uint8], layout: Layout, first: int, start: int) -> NDArray[np.uint8]:
    """Return the union of the rows, which must not reach beyond the lengths."""
    live = _bits.union(bits)
    if isinstance(layout.lengths, int):
        return live
    tables = len(live)
    lengths = layout.lengths[first : first + tables]
    offsets = np.broadcast_to(_layout.of_tables(layout.offsets, first, tables), tables)
    beyond = live & ~_bits.first_bits(lengths + offsets - start, live.shape[-1])
    if beyond.any():
        table = int(beyond.any(axis=1).argmax())
        slot = start + int(np.unpackbits(beyond[table]).argmax())
        index = np.unravel_index(first + table, layout.outer)
        raise _checks.beyond_length(index, slot - int(offsets[table]), int(lengths[table]))
    return live


def num_bins(slots: int, block_size: int) -> int:
    """Return how many counts of live slots one block of a table can have."""
    return min(slots, block_size) + 1


def _histograms(values: NDArray[Any], bins: int) -> NDArray[np.int64]:
    """Count the values of each row; where there are many, two at a time."""
    tables, blocks = values.shape
    pairs = bins * bins
    if blocks < 3 * pairs or tables * pairs > 1 << 16 or values.dtype != np.uint8:
        if tables == 1:
            return np.bincount(values[0], minlength=bins).reshape(1, bins)
        row = np.arange(0, tables * bins, bins)
        flat = (values + row[:, None]).ravel()
        return np.bincount(flat, minlength=tables * bins).reshape(tables, bins)
    two = values[:, : blocks // 2 * 2].view(np.uint16)
    row = np.arange(0, tables * pairs, pairs, dtype=np.uint16)
    two = (two & 0xFF) * np.uint16(bins) + (two >> 8) + row[:, None]
    of_pairs = np.bincount(two.ravel(), minlength=tables * pairs).reshape(tables, bins, bins)
    numbers: NDArray[np.int64] = of_pairs.sum(axis=1) + of_pairs.sum(axis=2)
    if blocks % 2:
        numbers[np.arange(tables), values[:, -1]] += 1
    return numbers


def _needs_edges(layout: Layout, pool: BlockPool) -> bool:
    """Return whether it matters which of a table's blocks are empty, not only how many."""
    if pool.frees != "any":
        return pool.frees != "none"
    here = math.prod(layout.array.shape[: layout.outer_axes])
    lengths = _layout.of_tables(layout.lengths, layout.start, here)
    begins = _layout.of_tables(layout.offsets, layout.start, here)
    # Where a block is not wholly written.
    partial = ((begins != 0) | (lengths % pool.block_size != 0)) & (lengths != 0)
    return partial if isinstance(partial, bool) else bool(partial.any())
