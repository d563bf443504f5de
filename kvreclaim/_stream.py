"""A mask that arrives row by row, in the order of its axes, and is never there as a whole.

Where a few tables fit into a piece they are counted as they come. Otherwise each open table keeps
one bit for each slot, and the sums over its rows, until its last row is in.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _layout, occupancy
from kvreclaim._open_tables import OpenTables, boxes
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
            group = OpenTables(whole, tuple(inner[i] for i in outer), first, pool)
            for box in boxes(inner, max(1, occupancy.PIECE // shape[-1])):
                counts = [part.stop - part.start for part in box]
                bits = read(math.prod(counts))
                bits = bits.reshape(*counts, bits.shape[-1])
                bits = bits.transpose([*outer, *shared, bits.ndim - 1])
                group.add(bits, tuple(box[i] for i in outer))
            tally.add(group.unions(), group.sums())
    return tally, whole.rows
