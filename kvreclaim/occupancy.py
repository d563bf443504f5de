"""Keep-mask x pool -> live tokens in each block.

A mask is laid out as tables of rows of tokens, read in pieces of about 1 MiB, and packed to one bit
a token. Everything after that works on bits: the union of the rows that share blocks, the live
slots of each block, the first dead slot of a table. What pieces of one table hold is joined along
its slots.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim.pool import BlockPool

PIECE: Final = 1 << 20
"""Tokens read at a time: keeps the temporaries in cache and the extra memory constant."""


class Layout(NamedTuple):
    """A keep-mask as tables of rows of tokens: a view, never a copy."""

    keep: NDArray[np.bool_]  # the outer axes, the axes that share blocks, tokens
    outer: tuple[int, ...]  # sizes of the outer axes: one table for each index
    rows: int  # rows of one table
    lengths: NDArray[np.int64] | int  # tokens of each table, or of every one
    offsets: NDArray[np.int64] | int  # slots before token 0 of each table, or of every one

    @property
    def num_tables(self) -> int:
        """How many block tables the mask has."""
        return math.prod(self.outer)


def lay_out(
    keep: object, pool: BlockPool, *, axes: object, lengths: object, offset: object
) -> Layout:
    """Check a mask and what goes with it, and put its axes in order."""
    array = _checks.as_keep(keep)
    sizes = array.shape
    letters = _checks.as_axes(axes, sizes, pool.shared_axes)
    shared = [axis for axis, letter in enumerate(letters) if letter in pool.shared_axes]
    outer = [axis for axis, letter in enumerate(letters) if letter != "t" and axis not in shared]
    if len(sizes) > 1:
        array = array.transpose([*outer, *shared, letters.index("t")])
    outer_sizes = tuple(sizes[axis] for axis in outer)
    outer_letters = "".join(letters[axis] for axis in outer)
    rows = math.prod(sizes[axis] for axis in shared)
    if rows == 0:
        raise ValueError(
            "keep must have at least one row in every axis that shares blocks; got shape "
            f"{sizes} for axes {letters!r}; leave an empty mask out."
        )
    tokens = array.shape[-1]
    return Layout(
        keep=array,
        outer=outer_sizes,
        rows=rows,
        lengths=tokens
        if lengths is None
        else _checks.as_per_table(
            "lengths",
            lengths,
            letters=outer_letters,
            sizes=outer_sizes,
            maximum=tokens,
            hint="write each sequence's tokens",
        ),
        offsets=0
        if _checks.is_zero(offset)
        else _checks.as_per_table(
            "offset",
            offset,
            letters=outer_letters,
            sizes=outer_sizes,
            maximum=pool.block_size - 1,
            hint="write the slots of the first block before token 0",
        ),
    )


def stretches(layout: Layout, pool: BlockPool) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield the number of a first table, and whole tables of about a piece, or just that one."""
    bins = _num_bins(layout.keep.shape[-1] + pool.block_size, pool.block_size)
    if pool.compactor == "evacuate_rows":
        bins *= layout.rows
    most_tables = max(1, PIECE // (8 * bins))  # their histograms must stay small as well
    first = 0
    for stretch in _split(layout.keep, len(layout.outer), most_tables):
        yield first, stretch
        first += math.prod(stretch.shape[: len(layout.outer)])


def _split(keep: NDArray[np.bool_], outer: int, most_tables: int) -> Iterator[NDArray[np.bool_]]:
    """Cut along the first `outer` axes, in order, until a cut is small or a single table."""
    tables = math.prod(keep.shape[:outer])
    if tables <= 1 or (keep.size <= PIECE and tables <= most_tables):
        yield keep
        return
    axis = next(i for i, size in enumerate(keep.shape) if size > 1)
    size = keep.shape[axis]
    step = max(1, min(size * PIECE // max(keep.size, 1), size * most_tables // tables))
    for start in range(0, size, step):
        part = keep[(slice(None),) * axis + (slice(start, start + step),)]
        yield from _split(part, outer, most_tables)


class Tables(NamedTuple):
    """What whole tables, or equally long pieces of them, hold: an array entry for each table."""

    slots: int  # slots looked at
    blocks: int  # blocks that they make
    histogram: NDArray[np.int64]  # (tables, bins): blocks by live slots
    row_live: NDArray[np.int64] | None = None  # (tables, rows): live entries, where rows share
    row_blocks: NDArray[np.int64] | None = None  # (tables, bins): blocks by live entries
    first: NDArray[np.int64] | None = None  # the first block with a live slot; `blocks` if none
    last: NDArray[np.int64] | None = None  # the last block with a live slot; -1 if none
    run: NDArray[np.int64] | None = None  # (tables, 1 or rows): live slots before a dead one
    below: NDArray[np.int64] | None = None  # live slots among as many first ones as are live

    def joined(self, then: Tables) -> Tables:
        """Return what these pieces and the ones that follow them in the same tables hold."""
        return Tables(
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


def _sum(a: NDArray[np.int64] | None, b: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    return None if a is None or b is None else a + b


def measure(
    layout: Layout, first: int, stretch: NDArray[np.bool_], pool: BlockPool, *, edges: bool
) -> Tables:
    """Count a stretch of whole tables that begins with table number `first` of the layout.

    `edges` asks for the first and the last block with a live slot.
    """
    tables = math.prod(stretch.shape[: len(layout.outer)])
    offsets = of_tables(layout.offsets, first, tables)
    bins = _num_bins(stretch.shape[-1] + _most(offsets), pool.block_size)
    whole = functools.reduce(
        Tables.joined,
        (
            _measure_piece(bits, slots, _live(bits, layout, first, start), pool, bins, edges=edges)
            for start, slots, bits in _packed_pieces(stretch, tables, layout.rows, offsets, pool)
        ),
    )
    if pool.compactor != "fill":
        return whole
    num_live = whole.histogram @ np.arange(bins)
    below = np.zeros_like(num_live)
    for start, _, bits in _packed_pieces(stretch, tables, layout.rows, offsets, pool):
        live = _union(bits)
        below += live_per_row(live & _first_bits(num_live - start, live.shape[-1]))
    return whole._replace(below=below)


def of_tables(values: NDArray[np.int64] | int, first: int, tables: int) -> NDArray[np.int64] | int:
    """Return the lengths or offsets of a few tables."""
    return values if isinstance(values, int) else values[first : first + tables]


def _most(offsets: NDArray[np.int64] | int) -> int:
    return offsets if isinstance(offsets, int) else int(offsets.max())


def _num_bins(slots: int, block_size: int) -> int:
    """Return how many counts of live slots one block of a table can have."""
    return min(slots, block_size) + 1


def _measure_piece(
    bits: NDArray[np.uint8],
    slots: int,
    live: NDArray[np.uint8],
    pool: BlockPool,
    bins: int,
    *,
    edges: bool,
) -> Tables:
    rows = bits.shape[1]
    occupancy = live_per_block(live, slots, pool.block_size)
    piece = Tables(slots, occupancy.shape[1], _histograms(occupancy, bins))
    if rows > 1:
        piece = piece._replace(row_live=live_per_row(bits))
        if pool.compactor == "evacuate_rows":
            entries = live_per_block(bits, slots, pool.block_size).sum(axis=1, dtype=np.int64)
            piece = piece._replace(row_blocks=_histograms(entries, rows * (bins - 1) + 1))
    if edges:
        held = occupancy != 0
        none = ~held.any(axis=1)
        piece = piece._replace(
            first=np.where(none, piece.blocks, held.argmax(axis=1) if piece.blocks else 0),
            last=np.where(
                none, -1, piece.blocks - 1 - held[:, ::-1].argmax(axis=1) if piece.blocks else 0
            ),
        )
    if pool.compactor == "pack":
        piece = piece._replace(run=leading_live(live)[:, None])
    elif pool.compactor == "pack_rows":
        piece = piece._replace(run=leading_live(bits))
    return piece


def _histograms(values: NDArray[Any], bins: int) -> NDArray[np.int64]:
    """Count the values of each row."""
    tables = values.shape[0]
    if tables == 1:
        return np.bincount(values[0], minlength=bins).reshape(1, bins)
    row = np.arange(0, tables * bins, bins)
    return np.bincount((values + row[:, None]).ravel(), minlength=tables * bins).reshape(-1, bins)


def _packed_pieces(
    stretch: NDArray[np.bool_],
    tables: int,
    rows: int,
    offsets: NDArray[np.int64] | int,
    pool: BlockPool,
) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """Yield (first slot, slots, bits) of whole tables together, or of one table piece by piece.

    The bits are of shape (tables, rows, bytes), eight slots a byte, the first slot highest; slots
    count from the start of the first block, and those before token 0 are dead.
    """
    before = _most(offsets)
    slots = stretch.shape[-1] + before
    step = slots
    if tables == 1 and slots * rows > PIECE:
        step = max(1, PIECE // (rows * pool.block_size)) * pool.block_size
    for start in range(0, max(slots, 1), max(step, 1)):
        stop = min(start + step, slots)
        part = stretch[..., max(start - before, 0) : stop - before]
        part = part.reshape(tables, rows, part.shape[-1])
        if start < before:
            part = _shifted(part, offsets, stop - start)
        yield start, stop - start, np.ascontiguousarray(np.packbits(part, axis=-1))


def _shifted(
    part: NDArray[np.bool_], offsets: NDArray[np.int64] | int, slots: int
) -> NDArray[np.bool_]:
    """Return the tokens of each table behind its own offset of dead slots."""
    tables, rows, tokens = part.shape
    out = np.zeros((tables, rows, slots), np.bool_)
    for table, offset in enumerate(np.broadcast_to(offsets, tables).tolist()):
        out[table, :, offset : offset + tokens] = part[table]
    return out


def _union(bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the live slots of each table: those that any of its rows keeps."""
    return bits[:, 0] if bits.shape[1] == 1 else np.bitwise_or.reduce(bits, axis=1)


def _live(bits: NDArray[np.uint8], layout: Layout, first: int, start: int) -> NDArray[np.uint8]:
    """Return the union, which must not reach beyond the lengths."""
    live = _union(bits)
    if isinstance(layout.lengths, int):
        return live
    tables = len(live)
    lengths = layout.lengths[first : first + tables]
    offsets = np.broadcast_to(of_tables(layout.offsets, first, tables), tables)
    beyond = live & ~_first_bits(lengths + offsets - start, live.shape[-1])
    if beyond.any():
        table = int(beyond.any(axis=1).argmax())
        slot = start + int(np.unpackbits(beyond[table]).argmax())
        index = np.unravel_index(first + table, layout.outer) if layout.outer else ()
        raise _checks.beyond_length(index, slot - int(offsets[table]), int(lengths[table]))
    return live


def live_per_block(bits: NDArray[np.uint8], num_slots: int, block_size: int) -> NDArray[Any]:
    """Return how many of the bits of each block are set; unwritten slots are not.

    Blocks of whole bytes are counted a machine word at a time; `numpy.einsum` adds what is left
    several times faster than `sum` over a short last axis.
    """
    blocks = -(-num_slots // block_size)
    if block_size % 8 == 0:
        word = math.gcd(block_size // 8, 8)
        words = _padded(bits, blocks * block_size // 8).view(f"u{word}")
        live, parts = np.bitwise_count(words), block_size // 8 // word
    else:
        live, parts = np.unpackbits(bits, axis=-1, count=blocks * block_size), block_size
    if parts > 1:
        if block_size > np.iinfo(np.uint8).max:
            live = live.astype(np.uint16)
        live = np.einsum("...i->...", live.reshape(*bits.shape[:-1], blocks, parts))
    return np.asarray(live)


def live_per_row(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how many bits are set along the last axis."""
    words = _padded(bits, -(-bits.shape[-1] // 8) * 8).view(np.uint64)
    return np.asarray(np.bitwise_count(words).sum(axis=-1, dtype=np.int64))


def leading_live(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return how many bits along the last axis are set before the first that is not."""
    if bits.shape[-1] == 0:
        return np.zeros(bits.shape[:-1], np.int64)
    broken = (bits != _ALL_SET).argmax(axis=-1)
    byte = np.take_along_axis(bits, broken[..., None], axis=-1)[..., 0]
    whole = np.where(byte == _ALL_SET, bits.shape[-1] - 1, broken)
    return np.asarray(whole * 8 + _LEADING_ONES[byte])


_ALL_SET: Final = 0xFF
_LEADING_ONES: Final = np.array([8 - (byte ^ _ALL_SET).bit_length() for byte in range(256)])
_FIRST_BITS: Final = np.array([0xFF00 >> bits & _ALL_SET for bits in range(8)], np.uint8)


def _first_bits(slots: NDArray[np.int64], num_bytes: int) -> NDArray[np.uint8]:
    """Return rows of bits whose first ``slots[i]`` are set, or all or none where out of range."""
    slots = np.clip(slots, 0, num_bytes * 8)
    whole = slots >> 3
    bits = np.negative((np.arange(num_bytes) < whole[:, None]).view(np.uint8))
    cut = np.flatnonzero(whole < num_bytes)
    bits[cut, whole[cut]] = _FIRST_BITS[slots[cut] & 7]
    return bits


def _padded(bits: NDArray[np.uint8], num_bytes: int) -> NDArray[np.uint8]:
    """Return the bits with dead ones appended, or themselves where the size fits already."""
    if bits.shape[-1] == num_bytes:
        return bits
    out = np.zeros((*bits.shape[:-1], num_bytes), np.uint8)
    out[..., : bits.shape[-1]] = bits
    return out
