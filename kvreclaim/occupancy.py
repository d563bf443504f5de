"""Keep-mask x pool -> the bits of the slots of each block table, a piece at a time.

A mask is laid out as tables of rows of tokens and read in pieces of about 1 MiB, each packed to one
bit a slot: cheap to unite over the rows that share blocks, cheap to count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _bits, _checks
from kvreclaim.pool import BlockPool

PIECE: Final = 1 << 20
"""Tokens read at a time: keeps the temporaries in cache and the extra memory constant."""


PerTable: TypeAlias = NDArray[np.int64] | int
"""A number for each table, or a plain integer that holds for every one."""


class Layout(NamedTuple):
    """A keep-mask as tables of rows of tokens: a view, never a copy."""

    keep: NDArray[Any]  # outer axes, axes that share blocks, then tokens or their packed bits
    outer_axes: int  # how many of its axes are outer ones
    packed: Literal["big", "little"] | None  # the order of packed bits; None for booleans
    tokens: int  # size of the token axis
    outer: tuple[int, ...]  # sizes of the outer axes of the whole mask: a table for each index
    rows: int  # rows of one table
    lengths: PerTable  # tokens
    offsets: PerTable  # slots before token 0
    pinned: PerTable = 0  # leading tokens whose blocks must stay in place
    start: int = 0  # number of the first table in `keep`, where that is part of the mask

    @property
    def num_tables(self) -> int:
        """How many block tables the mask has."""
        return math.prod(self.outer)


def lay_out(
    keep: object,
    pool: BlockPool,
    *,
    axes: object,
    lengths: object,
    offset: object,
    pinned: object = 0,
) -> Layout:
    """Check a mask and what goes with it, and put its axes in order."""
    array = _checks.as_keep(keep)
    letters = _checks.as_axes(axes, array.shape, pool.shared_axes)
    return arrange(array, letters, pool, lengths=lengths, offset=offset, pinned=pinned)


def lay_out_packed(
    bits: object,
    num_tokens: object,
    pool: BlockPool,
    *,
    bitorder: object,
    axes: object,
    lengths: object,
    offset: object,
) -> Layout:
    """Check packed bits and what goes with them, and put their axes in order."""
    array, tokens, order = _checks.as_bits(bits, num_tokens, bitorder)
    letters = _checks.as_axes_tokens_last(axes, array.shape, pool.shared_axes)
    layout = arrange(array, letters, pool, lengths=lengths, offset=offset, tokens=tokens)
    return layout._replace(packed=order)


def arrange(
    array: NDArray[Any],
    letters: str,
    pool: BlockPool,
    *,
    lengths: object,
    offset: object,
    pinned: object = 0,
    tokens: int | None = None,
) -> Layout:
    """Put the axes of an array in order: outer, shared, tokens; check lengths and offset."""
    sizes = array.shape
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
    if tokens is None:
        tokens = array.shape[-1]

    def per_table(name: str, value: object, maximum: int, hint: str) -> NDArray[np.int64]:
        return _checks.as_per_table(
            name, value, letters=outer_letters, sizes=outer_sizes, maximum=maximum, hint=hint
        )

    lengths_of: PerTable = tokens
    offsets: PerTable = 0
    pinned_of: PerTable = 0
    if lengths is not None:
        lengths_of = per_table("lengths", lengths, tokens, "write each sequence's tokens")
    if not _checks.is_zero(offset):
        hint = "write the slots of the first block before token 0"
        offsets = per_table("offset", offset, pool.block_size - 1, hint)
    if not _checks.is_zero(pinned):
        hint = "write each sequence's leading tokens that must stay, at most its length"
        pinned_of = per_table("pinned", pinned, tokens, hint)
        if np.any(pinned_of > lengths_of):
            raise ValueError(
                "pinned must be at most the lengths; got "
                f"{int(pinned_of.max())} pinned tokens; {hint}."
            )
    return Layout(
        keep=array,
        outer_axes=len(outer),
        packed=None,
        tokens=tokens,
        outer=outer_sizes,
        rows=rows,
        lengths=lengths_of,
        offsets=offsets,
        pinned=pinned_of,
    )


def stretches(layout: Layout, most_tables: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the number of a first table, and whole tables of about a piece, or just that one."""
    most_tables = max(1, min(most_tables, PIECE // max(layout.rows * layout.tokens, 1)))
    first, outer = layout.start, layout.outer_axes
    for part in _split(layout.keep, outer, most_tables):
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


def of_tables(values: PerTable, first: int, tables: int) -> PerTable:
    """Return the numbers of a few tables."""
    return values if isinstance(values, int) else values[first : first + tables]


def most(offsets: PerTable) -> int:
    """Return the largest."""
    return offsets if isinstance(offsets, int) else int(offsets.max())


def pieces(
    layout: Layout, stretch: NDArray[Any], offsets: PerTable, pool: BlockPool
) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """Yield (first slot, slots, bits) of whole tables together, or of one table piece by piece.

    The bits are of shape (tables, rows, bytes); slots count from the start of the first block, and
    those before token 0 are dead.
    """
    tables, rows = len(stretch), layout.rows
    before = most(offsets)
    slots = layout.tokens + before
    step = slots
    if tables == 1 and slots * rows > PIECE:
        unit = pool.block_size if layout.packed is None else math.lcm(pool.block_size, 8)
        step = max(1, PIECE // (rows * unit)) * unit
    for start in range(0, max(slots, 1), max(step, 1)):
        stop = min(start + step, slots)
        if layout.packed is None or before:
            part = _tokens(layout, stretch, max(start - before, 0), stop - before)
            part = part.reshape(tables, rows, part.shape[-1])
            if start < before:
                part = _shifted(part, offsets, stop - start)
            bits = _bits.pack(part)
        else:
            bits = _packed_bytes(layout, stretch, start // 8, -(-stop // 8))
            bits = bits.reshape(tables, rows, bits.shape[-1])
        yield start, stop - start, bits


def _tokens(layout: Layout, stretch: NDArray[Any], start: int, stop: int) -> NDArray[np.bool_]:
    if layout.packed is None:
        return stretch[..., start:stop]
    bits = _packed_bytes(layout, stretch, start // 8, -(-stop // 8))
    return _bits.unpack(bits, stop - start // 8 * 8)[..., start % 8 :]


def _packed_bytes(
    layout: Layout, stretch: NDArray[np.uint8], start: int, stop: int
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
