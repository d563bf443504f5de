"""What `_tally` sums over many tables, for one: in plain integers, without the cost of arrays.

A harness asks for the census of one small mask 100,000 times; there the arrays of `_measure` and
`_tally`, of one entry each, would cost several times what the tokens do.
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

import numpy as np

from kvreclaim import _bits, occupancy
from kvreclaim._layout import Layout
from kvreclaim.pool import BlockPool


def is_one_table(layout: Layout, pool: BlockPool) -> bool:
    """Return whether the mask is one small table, under rules that need no order of blocks."""
    return (
        (not layout.outer or layout.num_tables == 1)
        and layout.packed is None
        and isinstance(layout.lengths, int)
        and isinstance(layout.offsets, int)
        and isinstance(layout.pinned, int)
        and 0 < layout.rows * layout.tokens <= occupancy.PIECE
        and pool.frees in ("any", "none")
        and pool.compactor in ("evacuate", "none")
    )


def count_table(layout: Layout, pool: BlockPool) -> dict[str, Any]:
    """Return the fields of the census of one table, but for its pool."""
    size, rows, tokens = pool.block_size, layout.rows, layout.tokens
    row_live = None
    if rows == 1:
        bits = np.packbits(layout.array)
    else:
        of_rows = _bits.pack(layout.array.reshape(rows, tokens))
        bits, row_live = _bits.union(of_rows), _bits.per_row(of_rows).tolist()
    occupied = _bits.per_block(bits, tokens, size)
    counts = np.bincount(occupied, minlength=size + 1).tolist()
    live = live_entries = fullest = sum(map(operator.mul, counts, itertools.count()))
    if row_live is not None:
        live_entries, fullest = sum(row_live), max(row_live)

    freed, freed_tokens = 0, 0
    if pool.frees == "any":
        freed, freed_tokens = counts[0], counts[0] * size
        written = tokens % size
        if written and not occupied[-1]:
            freed -= pool.open_tail
            freed_tokens -= size if pool.open_tail else size - written
    held, floor = len(occupied) - freed, -(-fullest // size)
    packed, moved = held, 0
    movable: tuple[int, ...] = ()
    if pool.compactor == "evacuate":
        packed = -(-live // size)
        movable, moved = _smallest([counts[0] - freed, *counts[1:]], held - packed)
    return {
        "rows_per_table": rows,
        "num_tables": 1,
        "num_entries": tokens * rows,
        "num_live_entries": live_entries,
        "num_tokens": tokens,
        "counts": tuple(counts),
        "num_freed_blocks": freed,
        "num_held_tokens": tokens - freed_tokens,
        "num_packed_blocks": packed,
        "num_floor_blocks": floor,
        "num_moved_entries": rows * moved,
        "movable": movable,
    }


def _smallest(histogram: list[int], how_many: int) -> tuple[tuple[int, ...], int]:
    """Return the histogram of so many of the smallest values, and their sum."""
    smallest, total = [0] * len(histogram), 0
    for value, number in enumerate(histogram):
        if number >= how_many:
            smallest[value] = how_many
            return tuple(smallest), total + value * how_many
        smallest[value] = number
        total += value * number
        how_many -= number
    return tuple(smallest), total
