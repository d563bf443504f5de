"""An array and its axes x pool -> tables of rows of tokens.

The one place where letters become an order of axes: outer ones (a table for each index), those that
share blocks (the rows of a table), tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
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
    before: int  # the most of them
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
    shared: list[int] = []
    outer: list[int] = []
    for axis, letter in enumerate(letters):
        if letter != "t":
            (shared if letter in pool.shared_axes else outer).append(axis)
    if shared or outer:
        array = array.transpose([*outer, *shared, letters.index("t")])
    outer_sizes = tuple([sizes[axis] for axis in outer])
    rows = math.prod([sizes[axis] for axis in shared])
    if rows == 0:
        raise ValueError(
            f"{of} must have at least one row in every axis that shares blocks; got shape "
            f"{sizes} for axes {letters!r}; leave an empty mask out."
        )
    if tokens is None:
        tokens = array.shape[-1]

    lengths_of: PerTable = tokens
    offsets: PerTable = 0
    pinned_of: PerTable = 0
    before = 0
    if not (lengths is None and _checks.is_zero(offset) and _checks.is_zero(pinned)):
        per_table = functools.partial(
            _checks.as_per_table,
            letters="".join(letters[axis] for axis in outer),
            sizes=outer_sizes,
            of=of,
        )
        lengths_of = _lengths(lengths, tokens, per_table)
        offsets = _offsets(offset, pool, per_table)
        pinned_of = _pinned(pinned, lengths_of, tokens, per_table)
        before = offsets if isinstance(offsets, int) else int(offsets.max(initial=0))
    return Layout(
        array, len(outer), None, tokens, outer_sizes, rows, lengths_of, offsets, before, pinned_of
    )


def _lengths(lengths: object, tokens: int, per_table: Callable[..., NDArray[np.int64]]) -> PerTable:
    if lengths is None:
        return tokens
    return per_table("lengths", lengths, maximum=tokens, hint="write each sequence's tokens")


def _offsets(
    offset: object, pool: BlockPool, per_table: Callable[..., NDArray[np.int64]]
) -> PerTable:
    if _checks.is_zero(offset):
        return 0
    hint = "write the slots of the first block before token 0"
    return per_table("offset", offset, maximum=pool.block_size - 1, hint=hint)


def _pinned(
    pinned: object, lengths: PerTable, tokens: int, per_table: Callable[..., NDArray[np.int64]]
) -> PerTable:
    if _checks.is_zero(pinned):
        return 0
    hint = "write each sequence's leading tokens that must stay, at most its length"
    numbers = per_table("pinned", pinned, maximum=tokens, hint=hint)
    if np.any(numbers > lengths):
        raise ValueError(
            f"pinned must be at most the lengths; got {int(numbers.max())} pinned tokens; {hint}."
        )
    return numbers


def of_each_table(layout: Layout) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens of each table, and the slots before its token 0."""
    tables = layout.num_tables
    return np.broadcast_to(layout.lengths, tables), np.broadcast_to(layout.offsets, tables)


def of_tables(values: PerTable, first: int, tables: int) -> PerTable:
    """Return the numbers of a few tables."""
    return values if isinstance(values, int) else values[first : first + tables]
