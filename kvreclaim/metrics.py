"""The six metrics, `packed_reclaim` beside them, and where the savings went.

Every figure is one division of exact integers. Undefined is nan, without a warning. A metric takes
a keep-mask and a pool, or a `Census`; of a mask and of its census it is the same number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import attrs
from numpy.typing import ArrayLike

from kvreclaim import _checks, _ratios
from kvreclaim._ratios import comparable, share
from kvreclaim.census import Census, as_census, require_census, take_census, usable_blocks
from kvreclaim.pool import PoolLike


def logical_saving(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> float:
    """Return which share of the entries the mask evicts: what papers report.

    ``evicted entries / entries``, from 0 to 1; nan without entries. kvpress calls it
    ``compression_ratio``.

    Parameters
    ----------
    keep_or_census
        A keep-mask, True where a token stays, or a `Census`.
    pool
        A BlockPool or a block size; with a census it can be left out.
    axes, lengths, offset
        As in `take_census`; only with a keep-mask.

    Raises
    ------
    TypeError, ValueError
        As `take_census`; and for a pool that is not the census's own.

    Examples
    --------
    >>> logical_saving([1, 0, 0, 0], 2)
    0.75
    """
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    return _ratios.logical_saving(census).value


def physical_reclaim(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> float:
    """Return which share of the blocks the runtime takes back in place, without copying anything.

    ``free blocks / blocks``, from 0 to 1; nan without blocks. It speaks of survivors left where
    they were written, under this pool; `packed_reclaim` stands beside it wherever it is shown.
    Parameters and errors are those of `logical_saving`.

    Examples
    --------
    >>> physical_reclaim([1, 0, 0, 0], 2)
    0.5
    """
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    return _ratios.physical_reclaim(census).value


def reclaim_efficiency(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> float:
    """Return how much of the logical saving comes back in place.

    ``physical_reclaim / logical_saving``, computed as ``(free * entries) / (blocks * evicted)``;
    at least 0; nan where nothing is evicted. It exceeds 1 where a partly written tail block is
    freed: one evicted token can give back a whole block. Parameters and errors are those of
    `logical_saving`.

    Examples
    --------
    >>> reclaim_efficiency([1, 0, 0, 0, 1, 0, 0, 0], 2)
    0.6666666666666666
    """
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    return _ratios.reclaim_efficiency(census).value


def fragmentation(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> float:
    """Return which share of the slots in held blocks is not live.

    ``(held blocks * block_size - live slots) / (held blocks * block_size)``, from 0 to 1; nan where
    no block is held. Slots that were never written count. On tables of several rows it hides what
    `memory_waste` shows: a slot is live if any row keeps it. Parameters and errors are those of
    `logical_saving`.

    Examples
    --------
    >>> fragmentation([1, 0, 0, 0], 2)
    0.5
    """
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    return _ratios.fragmentation(census).value


def packed_reclaim(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> float:
    """Return which share of the blocks comes back if survivors are packed as tightly as can be.

    ``1 - floor blocks / blocks``, where a table's floor is ceil(live entries of its fullest row /
    block_size); from 0 to 1; nan without blocks. It depends on the layout, not on the compactor: it
    is also what an engine holds that stores only survivors at prefill. Parameters and errors are
    those of `logical_saving`.

    Examples
    --------
    >>> packed_reclaim([1, 0, 0, 1], 2)
    0.5
    """
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    return _ratios.packed_reclaim(census).value


def compacted_reclaim(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> float:
    """Return which share of the blocks is free after a full compaction by the pool's compactor.

    ``1 - packed blocks / blocks``, from 0 to 1; nan without blocks. It lies between
    `physical_reclaim`, which it equals where the compactor is ``"none"``, and `packed_reclaim`.
    `moved_tokens_per_block` is its price. Parameters and errors are those of `logical_saving`.

    Examples
    --------
    >>> compacted_reclaim([1, 0, 0, 1], 2)
    0.5
    """
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    return _ratios.compacted_reclaim(census).value


def moved_tokens_per_block(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> float:
    """Return the price, in slots moved, of a block that compaction, and only compaction, frees.

    ``moved entries / (rows per table * compactable blocks)`` of a full compaction by the pool's own
    compactor; at least 0; nan where there is nothing to compact. Parameters and errors are those of
    `logical_saving`.

    Examples
    --------
    >>> moved_tokens_per_block([1, 1, 0, 1, 0, 1, 0, 0], 4)
    1.0
    >>> from kvreclaim import BlockPool
    >>> moved_tokens_per_block([1, 1, 0, 1, 0, 1, 0, 0], BlockPool(4, compactor="pack"))
    2.0
    """
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    return _ratios.moved_tokens_per_block(census).value


def slots_per_move(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> float:
    """Return how many slots come free for each slot that compaction moves.

    ``block_size / moved_tokens_per_block``; nan where that is 0 or nan. Parameters and errors are
    those of `logical_saving`.

    Examples
    --------
    >>> slots_per_move([1, 1, 0, 1, 0, 1, 0, 0], 4)
    4.0
    """
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    return _ratios.slots_per_move(census).value


@attrs.frozen(kw_only=True)
class SavingsBreakdown:
    """Where the evicted entries went: the four numbers add up to all of them.

    Parameters
    ----------
    num_entries
        Entries written.
    num_reclaimed
        Entries of freed blocks.
    num_stranded
        Entries of dead slots in held blocks: lost to the size of a block.
    num_unshared
        Entries dead in their row while another row of the table keeps the slot: lost to sharing.
    num_pinned
        Entries of blocks that must stay in place.
    """

    num_entries: int
    num_reclaimed: int
    num_stranded: int
    num_unshared: int
    num_pinned: int = 0

    @property
    def reclaimed(self) -> float:
        """Share of the entries that came free; nan without entries."""
        return share(self.num_reclaimed, self.num_entries)

    @property
    def stranded(self) -> float:
        """Share of the entries lost to the size of a block; nan without entries."""
        return share(self.num_stranded, self.num_entries)

    @property
    def unshared(self) -> float:
        """Share of the entries lost to sharing; nan without entries."""
        return share(self.num_unshared, self.num_entries)

    @property
    def pinned(self) -> float:
        """Share of the entries evicted from blocks that must stay; nan without entries."""
        return share(self.num_pinned, self.num_entries)


def savings_breakdown(census: Census) -> SavingsBreakdown:
    """Return where the logical saving went: reclaimed, stranded in held blocks, unshared, pinned.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> census = take_census([[1, 0, 0, 0], [0, 0, 0, 0]], 2, axes="ht")
    >>> breakdown = savings_breakdown(census)
    >>> breakdown.num_reclaimed, breakdown.num_stranded, breakdown.num_unshared
    (4, 2, 1)
    """
    require_census(census)
    rows = census.rows_per_table
    dead_in_pinned = census.num_pinned_tokens - census.num_pinned_live_tokens
    live_outside = census.num_live_tokens - census.num_pinned_live_tokens
    entries_outside = census.num_live_entries - census.num_pinned_live_entries
    return SavingsBreakdown(
        num_entries=census.num_entries,
        num_reclaimed=(census.num_tokens - census.num_held_tokens) * rows,
        num_stranded=(census.num_stranded_tokens - dead_in_pinned) * rows,
        num_unshared=live_outside * rows - entries_outside,
        num_pinned=census.num_pinned_tokens * rows - census.num_pinned_live_entries,
    )


def memory_waste(census: Census) -> float:
    """Return which share of the memory in held blocks holds no live entry.

    ``1 - live entries / (held blocks * block_size * rows)``, from 0 to 1; nan where no block is
    held. It is shown beside `fragmentation`, which counts slots and so hides what sharing wastes.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> census = take_census([[1, 0], [0, 1]], 2, axes="ht")
    >>> fragmentation(census), memory_waste(census)
    (0.0, 0.5)
    """
    require_census(census)
    return _ratios.memory_waste(census).value


def capacity_gain(census: Census) -> float:
    """Return how many times as many sequences the blocks still held would let in.

    ``blocks / held blocks``, at least 1; nan where no block is held.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> capacity_gain(take_census([1, 0, 0, 0], 2))
    2.0
    """
    require_census(census)
    return _ratios.capacity_gain(census).value


@attrs.frozen(kw_only=True)
class PoolUsage:
    """Held over usable blocks of a pool, `before` and `after` the eviction."""

    before: float = attrs.field(eq=comparable)
    after: float = attrs.field(eq=comparable)


def pool_usage(census: Census) -> PoolUsage:
    """Return how full the pool is: vLLM's ``kv_cache_usage_perc``, before and after the eviction.

    ``held blocks / usable blocks``, from 0 to 1; nan where nothing is usable.

    Raises
    ------
    ValueError
        Where the pool has no ``total_blocks``, or fewer usable blocks than the masks hold.

    Examples
    --------
    >>> from kvreclaim import BlockPool, take_census
    >>> pool_usage(take_census([1, 0, 0, 0], BlockPool(2, total_blocks=5, reserved_blocks=1)))
    PoolUsage(before=0.5, after=0.25)
    """
    require_census(census)
    usable = usable_blocks(census)
    return PoolUsage(
        before=share(census.num_blocks, usable), after=share(census.num_held_blocks, usable)
    )


def effective_tokens_per_block(census: Census) -> float:
    """Return as many independent tokens as a block behaves like.

    ``ln(physical_reclaim) / ln(logical_saving)``: 1 for a coherent mask, the block size for a
    random one; inf where nothing is freed; nan where the saving is 0 or 1, and for tables of more
    than one row.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> effective_tokens_per_block(take_census([1, 1, 0, 0], 2))
    1.0
    """
    require_census(census)
    if census.rows_per_table > 1:
        return math.nan
    return _log_ratio(physical_reclaim(census), logical_saving(census))


def effective_rows(census: Census) -> float:
    """Return as many independent rows as a table behaves like.

    ``ln(share of slots dead in every row) / ln(logical_saving)``: 1 where all rows evict the same
    tokens, the number of rows where they choose independently; inf where no slot is dead in every
    row; nan where the saving is 0 or 1. It is made of shares of one mask, and may exceed the rows.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> effective_rows(take_census([[1, 1, 0, 0], [1, 1, 0, 0]], 2, axes="ht"))
    1.0
    """
    require_census(census)
    dead = census.num_tokens - census.num_live_tokens
    return _log_ratio(share(dead, census.num_tokens), logical_saving(census))


@attrs.frozen(kw_only=True)
class StepSaving:
    """What one eviction step gives, over what was live and held before it.

    Parameters
    ----------
    num_evicted_entries
        Entries that the step evicts.
    num_freed_blocks
        Blocks that come free in place by it.
    logical_saving
        Evicted entries over entries that were live; nan where none was.
    physical_reclaim
        Freed blocks over blocks that were held; nan where none was.
    reclaim_efficiency
        The second over the first; nan where nothing is evicted.
    """

    num_evicted_entries: int
    num_freed_blocks: int
    logical_saving: float = attrs.field(eq=comparable)
    physical_reclaim: float = attrs.field(eq=comparable)
    reclaim_efficiency: float = attrs.field(eq=comparable)


def step_saving(
    before: ArrayLike,
    after: ArrayLike,
    pool: PoolLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> StepSaving:
    """Return what one eviction step gives, from the masks before and after it.

    Parameters
    ----------
    before, after
        Keep-masks of one shape; a token that was evicted stays so.
    pool, axes, lengths, offset
        As in `take_census`.

    Raises
    ------
    TypeError, ValueError
        As `take_census`; and where the shapes differ, or a token comes back to life.

    Examples
    --------
    >>> step = step_saving([1, 1, 1, 0], [1, 0, 0, 0], 2)
    >>> step.num_evicted_entries, step.num_freed_blocks, step.logical_saving
    (2, 1, 0.6666666666666666)
    """
    _checks.refuse_revival(before, after)
    first, then = (
        take_census(keep, pool, axes=axes, lengths=lengths, offset=offset)
        for keep in (before, after)
    )
    evicted = first.num_live_entries - then.num_live_entries
    freed = then.num_freed_blocks - first.num_freed_blocks
    live, held = first.num_live_entries, first.num_held_blocks
    return StepSaving(
        num_evicted_entries=evicted,
        num_freed_blocks=freed,
        logical_saving=share(evicted, live),
        physical_reclaim=share(freed, held),
        reclaim_efficiency=share(freed * live, held * evicted),
    )


@attrs.frozen(kw_only=True)
class CombinedBytes:
    """What several groups of layers hold together, in bytes.

    Parameters
    ----------
    num_bytes
        Bytes of all blocks, and what is fixed.
    num_freed_bytes
        Bytes of blocks that come free in place.
    num_compacted_bytes, num_packed_bytes
        Bytes still held after each group's own compactor, and where survivors are packed.
    """

    num_bytes: int
    num_freed_bytes: int
    num_compacted_bytes: int
    num_packed_bytes: int

    @property
    def physical_reclaim(self) -> float:
        """Share of the bytes that comes back in place; nan without bytes."""
        return share(self.num_freed_bytes, self.num_bytes)

    @property
    def compacted_reclaim(self) -> float:
        """Share of the bytes that is free after compaction; nan without bytes."""
        return share(self.num_bytes - self.num_compacted_bytes, self.num_bytes)

    @property
    def packed_reclaim(self) -> float:
        """Share of the bytes that is free where survivors are packed; nan without bytes."""
        return share(self.num_bytes - self.num_packed_bytes, self.num_bytes)


def combine(groups: Iterable[tuple[Census, int]], fixed_bytes: int = 0) -> CombinedBytes:
    """Return what groups of layers with blocks of different sizes hold together, in bytes.

    Groups whose blocks are equally large add in blocks, by ``+``; others add only in bytes.

    Parameters
    ----------
    groups
        The census of each group, and the bytes of one of its blocks.
    fixed_bytes
        What no eviction touches, such as the states of state-space layers.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> full, sliding = take_census([1, 1, 1, 1], 2), take_census([0, 0, 1, 1], 2)
    >>> combine([(full, 4096), (sliding, 1024)]).physical_reclaim
    0.1
    """
    rule, hint = "pairs of a Census and the bytes of a block", "write such as [(census, 4096)]"
    pairs: list[tuple[Census, int]] = []
    for pair in _checks.as_items("groups", groups, rule, hint):
        census, block_bytes = _as_pair(pair, rule, hint)
        require_census(census)
        pairs.append((census, _checks.as_count("block bytes", block_bytes, minimum=1)))
    fixed = _checks.as_count("fixed_bytes", fixed_bytes)
    return CombinedBytes(
        num_bytes=fixed + sum(census.num_blocks * size for census, size in pairs),
        num_freed_bytes=sum(census.num_freed_blocks * size for census, size in pairs),
        num_compacted_bytes=fixed + sum(census.num_packed_blocks * size for census, size in pairs),
        num_packed_bytes=fixed + sum(census.num_floor_blocks * size for census, size in pairs),
    )


def _as_pair(pair: object, rule: str, hint: str) -> tuple[Any, Any]:
    if isinstance(pair, tuple | list) and len(pair) == 2:  # noqa: PLR2004  # a pair
        return pair[0], pair[1]
    raise TypeError(f"groups must be {rule}; got {_checks.shown(pair)} among them; {hint}.")


def _log_ratio(part: float, saving: float) -> float:
    if not 0 < saving < 1:
        return math.nan
    return math.log(part) / math.log(saving) if part else math.inf
