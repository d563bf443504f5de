"""The figures that are ratios, each as the counts above the line and those below it.

A metric is the product of the first over the product of the second. Over several sequences every
count is summed before that: `replicates.py` needs the counts, and no other spelling of a metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kvreclaim.census import Census


class Ratio(NamedTuple):
    """Counts whose products are divided once."""

    above: tuple[int, ...]
    below: tuple[int, ...]

    @property
    def value(self) -> float:
        """The ratio; nan where nothing stands below."""
        return share(math.prod(self.above), math.prod(self.below))


def share(part: int, whole: int) -> float:
    """Return one of the other; nan of nothing."""
    return part / whole if whole else math.nan


def comparable(figure: float) -> float | None:
    """Return by what records compare a figure, so that an undefined one equals its copy."""
    return None if math.isnan(figure) else figure


def logical_saving(census: Census) -> Ratio:
    """Return evicted entries over entries."""
    return Ratio((census.num_evicted_entries,), (census.num_entries,))


def physical_reclaim(census: Census) -> Ratio:
    """Return free blocks over blocks."""
    return Ratio((census.num_freed_blocks,), (census.num_blocks,))


def compacted_reclaim(census: Census) -> Ratio:
    """Return blocks that compaction leaves free over blocks."""
    return Ratio((census.num_blocks - census.num_packed_blocks,), (census.num_blocks,))


def packed_reclaim(census: Census) -> Ratio:
    """Return blocks above the floor of their table over blocks."""
    return Ratio((census.num_blocks - census.num_floor_blocks,), (census.num_blocks,))


def reclaim_efficiency(census: Census) -> Ratio:
    """Return physical reclaim over logical saving."""
    return Ratio(
        (census.num_freed_blocks, census.num_entries),
        (census.num_blocks, census.num_evicted_entries),
    )


def fragmentation(census: Census) -> Ratio:
    """Return slots of held blocks that are not live over slots of held blocks."""
    slots = census.num_held_blocks * census.pool.block_size
    return Ratio((slots - census.num_live_tokens,), (slots,))


def memory_waste(census: Census) -> Ratio:
    """Return room for entries in held blocks that holds no live one over that room."""
    room = census.num_held_blocks * census.pool.block_size * census.rows_per_table
    return Ratio((room - census.num_live_entries,), (room,))


def capacity_gain(census: Census) -> Ratio:
    """Return blocks over held blocks."""
    return Ratio((census.num_blocks,), (census.num_held_blocks,))


def moved_tokens_per_block(census: Census) -> Ratio:
    """Return moved entries over rows of the blocks that they empty."""
    return Ratio(
        (census.num_moved_entries,), (census.rows_per_table * census.num_compactable_blocks,)
    )


def slots_per_move(census: Census) -> Ratio:
    """Return entries of the blocks that moves empty over moved entries.

    Those blocks stand below as well as above the line, once more: where none is emptied it is
    undefined, whatever was moved.
    """
    emptied = census.num_compactable_blocks
    return Ratio(
        (census.pool.block_size * census.rows_per_table * emptied, emptied),
        (census.num_moved_entries, emptied),
    )


def decode_steps(census: Census) -> Ratio:
    """Return what a compaction reads and writes over the live entries, which a step reads."""
    return Ratio((2 * census.num_moved_entries,), (census.num_live_entries,))


RATIOS: Final[Mapping[str, Callable[[Census], Ratio]]] = {
    ratio.__name__: ratio
    for ratio in (
        logical_saving,
        physical_reclaim,
        compacted_reclaim,
        packed_reclaim,
        reclaim_efficiency,
        fragmentation,
        memory_waste,
        capacity_gain,
        moved_tokens_per_block,
        slots_per_move,
        decode_steps,
    )
}
