"""Keep-mask x pool -> the bits of the slots of each block table, a piece at a time.

A mask is laid out as tables of rows of tokens and read in pieces of about 1 MiB, each packed to one
bit a slot: cheap to unite over the rows that share blocks, cheap to count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _bits
from kvreclaim._layout import Layout, PerTable
from kvreclaim.pool import BlockPool

PIECE: Final = 1 << 20
"""Tokens read at a time: keeps the temporaries in cache and the extra memory constant."""

_WORKSPACE: Final = 3 * PIECE  # more than the arrays of one piece take
_BLOCKS: Final = 8  # smaller blocks make smaller pieces: each costs eight bytes for a while
_UNPACKED: Final = 2
_PACKED: Final = 4  # packed bits make larger ones: each token costs an eighth of a byte


def keep_freed_memory() -> None:
    """Have the C library keep what is freed between pieces, rather than hand it back each time.

    glibc hands back what lies beyond 128 KiB until a larger block was freed once; then it keeps
    twice as much. Without, the pages of every piece may come anew: up to three times the time.
    """
    np.empty(_WORKSPACE, np.uint8)


def tokens_at_once(layout: Layout, pool: BlockPool) -> int:
    """Return how many tokens of a layout, of all rows together, make a piece."""
    stay_packed = layout.packed is not None and not layout.before and pool.block_size % 8 == 0
    most = PIECE * (_PACKED if stay_packed else _UNPACKED)
    if pool.block_size == 1 and pool.compactor != "evacuate_rows":  # only counted, never listed
        return most
    return min(most, PIECE * pool.block_size // _BLOCKS)


def tables_at_once(layout: Layout, pool: BlockPool) -> int:
    """Return how many tables make a piece, at least one."""
    return max(1, tokens_at_once(layout, pool) // max(layout.rows * layout.tokens, 1))


def stretches(layout: Layout, most_tables: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the number of a first table, and so many whole tables, or a few less."""
    first, outer = layout.start, layout.outer_axes
    for part in _split(layout.array, outer, most_tables):
        tables = math.prod(part.shape[:outer])
        if tables:
            yield first, part.reshape(tables, *part.shape[outer:])
        first += tables


def _split(keep: NDArray[Any], outer: int, most_tables: int) -> Iterator[NDArray[Any]]:
    """Cut along the first `outer` axes, in order, until no cut has too many tables."""
    tables = math.prod(keep.shape[:outer])
    if tables <= most_tables:
        yield keep
        return
    axis = next(i for i, size in enumerate(keep.shape) if size > 1)
    step = max(1, keep.shape[axis] * most_tables // tables)
    for start in range(0, keep.shape[axis], step):
        part = keep[(slice(None),) * axis + (slice(start, start + step),)]
        yield from _split(part, outer, most_tables)


def pieces(
    layout: Layout, stretch: NDArray[Any], offsets: PerTable, pool: BlockPool
) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """Yield (first slot, slots, bits) of whole tables together, or of one table piece by piece.

    The bits are of shape (tables, rows, bytes); slots count from the start of the first block, and
    those before token 0, or behind the last one, are dead.
    """
    tables, rows = len(stretch), layout.rows
    before = offsets if isinstance(offsets, int) else int(offsets.max())
    slots = layout.tokens + layout.before
    step, most = slots, tokens_at_once(layout, pool)
    if tables == 1 and slots * rows > most:
        unit = pool.block_size if layout.packed is None else math.lcm(pool.block_size, 8)
        step = max(1, most // (rows * unit)) * unit
    for start in range(0, max(slots, 1), max(step, 1)):
        stop = min(start + step, slots)
        if layout.packed is None or before:
            end = min(stop - before, layout.tokens)
            part = _tokens(layout, stretch, min(max(start - before, 0), end), end)
            part = part.reshape(tables, rows, part.shape[-1])
            if start < before:
                part = _shifted(part, offsets, stop - start)
            bits = _bits.pack(part)
        else:
            bits = _packed_bytes(layout, stretch, start // 8, -(-stop // 8))
            bits = bits.reshape(tables, rows, bits.shape[-1])
        yield start, stop - start, _bits.padded(bits, -(-(stop - start) // 8))


def row_bits(layout: Layout, part: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bits of whole rows, as many axes as came."""
    return _bits.pack(part) if layout.packed is None else _packed_bytes(layout, part, 0, None)


def _tokens(layout: Layout, stretch: NDArray[Any], start: int, stop: int) -> NDArray[np.bool_]:
    if layout.packed is None:
        return stretch[..., start:stop]
    bits = _packed_bytes(layout, stretch, start // 8, -(-stop // 8))
    return _bits.unpack(bits, stop - start // 8 * 8)[..., start % 8 :]


def _packed_bytes(
    layout: Layout, stretch: NDArray[np.uint8], start: int, stop: int | None
) -> NDArray[np.uint8]:
    bits = np.ascontiguousarray(stretch[..., start:stop])
    return _bits.reverse(bits) if layout.packed == "little" else bits


def _shifted(part: NDArray[np.bool_], offsets: PerTable, slots: int) -> NDArray[np.bool_]:
    """Return the tokens of each table behind its own offset of dead slots."""
    tables, rows, tokens = part.shape
    out = np.zeros((tables, rows, slots), np.bool_)
    for table, offset in enumerate(np.broadcast_to(offsets, tables).tolist()):
        out[table, :, offset : offset + tokens] = part[table]
    return out
