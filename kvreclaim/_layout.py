"""An array and its axes x pool -> tables of rows of tokens.

The one place where letters become an order of axes: outer ones (a table for each index), those that
share blocks (the rows of a table), tokens.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim.pool import BlockPool

PerTable: TypeAlias = NDArray[np.int64] | int
"""A number for each table, or a plain integer that holds for every one."""


class Layout(NamedTuple):
    """A keep-mask, or scores, as tables of rows of tokens: a view, never a copy."""

    array: NDArray[Any]  # outer axes, axes that share blocks, then tokens or their packed bits
    outer_axes: int  # how many of its axes are outer ones
    packed: Literal["big", "little"] | None  # the order of packed bits; None for booleans
    tokens: int  # size of the token axis
    outer: tuple[int, ...]  # sizes of the outer axes of the whole: a table for each index
    rows: int  # rows of one table
    lengths: PerTable  # tokens
    offsets: PerTable  # slots before token 0
    pinned: PerTable = 0  # leading tokens whose blocks must stay in place
    start: int = 0  # number of the first table in `array`, where that is a part

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
    of: str = "keep",
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
            f"{of} must have at least one row in every axis that shares blocks; got shape "
            f"{sizes} for axes {letters!r}; leave an empty mask out."
        )
    if tokens is None:
        tokens = array.shape[-1]

    def per_table(name: str, value: object, maximum: int, hint: str) -> NDArray[np.int64]:
        return _checks.as_per_table(
            name,
            value,
            letters=outer_letters,
            sizes=outer_sizes,
            maximum=maximum,
            hint=hint,
            of=of,
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
        array=array,
        outer_axes=len(outer),
        packed=None,
        tokens=tokens,
        outer=outer_sizes,
        rows=rows,
        lengths=lengths_of,
        offsets=offsets,
        pinned=pinned_of,
    )


def of_tables(values: PerTable, first: int, tables: int) -> PerTable:
    """Return the numbers of a few tables."""
    return values if isinstance(values, int) else values[first : first + tables]


def most(offsets: PerTable) -> int:
    """Return the largest."""
    return offsets if isinstance(offsets, int) else int(offsets.max())
