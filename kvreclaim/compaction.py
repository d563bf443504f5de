"""What a copy budget can free: curve, budget, cost."""

from __future__ import annotations

import itertools
import math

import attrs

from kvreclaim import _checks
from kvreclaim.census import Census


def reclaim_curve(census: Census) -> tuple[int, ...]:
    """Return the fewest slot moves that free 1, 2, ... more blocks, up to a full compaction.

    The curve is convex: the emptiest block of any table is emptied first. A table keeps its own
    blocks, so that no block mixes sequences.

    Raises
    ------
    ValueError
        Where the pool's compactor is not ``"evacuate"``.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> reclaim_curve(take_census([1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0], 4))
    (1,)
    """
    blocks = itertools.chain.from_iterable(
        itertools.repeat(live, count) for live, count in enumerate(_movable(census))
    )
    return tuple(itertools.accumulate(blocks))


def blocks_for_moves(census: Census, budget: int) -> int:
    """Return how many more blocks can be freed with at most `budget` slot moves.

    Raises
    ------
    ValueError
        Where the pool's compactor is not ``"evacuate"``, or the budget is negative.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> blocks_for_moves(take_census([1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 0], 4), 1)
    1
    """
    left = _checks.as_count("budget", budget)
    blocks = 0
    for live, count in enumerate(_movable(census)):
        affordable = min(count, left // live) if live else count
        blocks += affordable
        left -= affordable * live
        if affordable < count:
            break
    return blocks


def _movable(census: Census) -> tuple[int, ...]:
    if census.pool.compactor != "evacuate":
        raise ValueError(
            "census must be of a pool whose compactor is 'evacuate', which moves the fewest slots; "
            f"got {census.pool.compactor!r}; take the census under "
            "pool.replace(frees='any', compactor='evacuate')."
        )
    return census.movable


@attrs.frozen(kw_only=True)
class CompactionCost:
    """What a full compaction by the pool's own compactor copies.

    Parameters
    ----------
    num_moved_entries
        Entries copied.
    bytes_read, bytes_written
        Their bytes; None where the pool has no ``entry_bytes``.
    seconds
        Time of that traffic at the bandwidth given, a lower bound: no kernel launch, no table
        update, no waiting; None without a bandwidth or bytes.
    decode_steps
        The copy in units of one decode step's KV traffic, ``2 * moved entries / live entries``; nan
        where nothing is live.
    """

    num_moved_entries: int
    bytes_read: int | None
    bytes_written: int | None
    seconds: float | None
    decode_steps: float


def compaction_cost(census: Census, bytes_per_second: float | None = None) -> CompactionCost:
    """Return what a full compaction by the pool's own compactor copies.

    A decode step reads every live entry once; a copy reads and writes each entry that it moves. A
    full pack row by row costs at most 2 decode steps; moving whole slots of a shared table copies
    dead entries too, and can cost up to twice the number of rows.

    Parameters
    ----------
    census
        Of any pool; under the compactor ``"none"`` nothing is copied.
    bytes_per_second
        Memory bandwidth, for the seconds.

    Raises
    ------
    ValueError
        For a bandwidth that is not positive, or given where the pool has no ``entry_bytes``.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> cost = compaction_cost(take_census([1, 1, 0, 1, 0, 1, 0, 0], 4))
    >>> cost.num_moved_entries, cost.decode_steps
    (1, 0.5)
    """
    moved, live = census.num_moved_entries, census.num_live_entries
    entry_bytes = census.pool.entry_bytes
    moved_bytes = None if entry_bytes is None else moved * entry_bytes
    seconds = None
    if bytes_per_second is not None:
        rate = _checks.as_positive("bytes_per_second", bytes_per_second)
        if moved_bytes is None:
            raise ValueError(
                "bytes_per_second must come with a pool that knows its entry_bytes; got a pool "
                "without; write BlockPool(..., entry_bytes=entry_bytes_for(head_dim))."
            )
        seconds = 2 * moved_bytes / rate
    return CompactionCost(
        num_moved_entries=moved,
        bytes_read=moved_bytes,
        bytes_written=moved_bytes,
        seconds=seconds,
        decode_steps=2 * moved / live if live else math.nan,
    )
