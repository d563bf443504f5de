"""What a copy budget can free: curve, budget, cost, and the copies themselves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _layout, _ratios, occupancy
from kvreclaim._layout import Layout
from kvreclaim._moves import allowed_moves, by_rows, plan_table
from kvreclaim.census import Census, require_census
from kvreclaim.pool import BlockPool, PoolLike, as_pool


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
    require_census(census)
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
    decode_steps: float = attrs.field(eq=_ratios.comparable)


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
    require_census(census)
    moved = census.num_moved_entries
    entry_bytes = census.pool.entry_bytes
    moved_bytes = None if entry_bytes is None else moved * entry_bytes
    seconds = None
    if bytes_per_second is not None:
        rate = _checks.as_positive("bytes_per_second", bytes_per_second)
        seconds = 2 * moved * _entry_bytes("bytes_per_second", census) / rate
    return CompactionCost(
        num_moved_entries=moved,
        bytes_read=moved_bytes,
        bytes_written=moved_bytes,
        seconds=seconds,
        decode_steps=_ratios.decode_steps(census).value,
    )


def num_moves_for(
    census: Census,
    *,
    num_bytes: int | None = None,
    microseconds: float | None = None,
    bytes_per_second: float | None = None,
) -> int:
    """Return how many moves of the pool's compactor a budget of bytes, or of time, allows.

    A move copies one slot, all its rows; under ``"pack_rows"`` and ``"evacuate_rows"`` one entry.

    Parameters
    ----------
    census
        Of the masks; its pool must have ``entry_bytes``.
    num_bytes
        Bytes that may be copied, each of them read once and written once.
    microseconds, bytes_per_second
        Time, and the memory bandwidth that reads and writes share. A lower bound of the time, as in
        `compaction_cost`.

    Raises
    ------
    ValueError
        Where not exactly one budget is given, or the pool has no ``entry_bytes``.

    Examples
    --------
    Half the traffic of 3.35 TB/s for 10 us is 16.75 MB read, and as many written.

    >>> from kvreclaim import take_census
    >>> census = take_census([1, 0, 0, 1], BlockPool(2, entry_bytes=512))
    >>> num_moves_for(census, microseconds=10, bytes_per_second=3.35e12)
    32714
    """
    require_census(census)
    given = tuple(value is not None for value in (num_bytes, microseconds, bytes_per_second))
    if given not in ((True, False, False), (False, True, True)):
        raise ValueError(
            "num_bytes must be given, or microseconds with bytes_per_second, and not both; got "
            f"num_bytes={num_bytes}, microseconds={microseconds}, "
            f"bytes_per_second={bytes_per_second}; write such as microseconds=50, "
            "bytes_per_second=3.35e12."
        )
    if num_bytes is not None:
        copied = Fraction(_checks.as_count("num_bytes", num_bytes))
    else:
        micro = Fraction(_checks.as_positive("microseconds", microseconds))
        rate = Fraction(_checks.as_positive("bytes_per_second", bytes_per_second))
        copied = micro * rate / (2 * 10**6)
    entries = 1 if by_rows(census.pool) else max(census.rows_per_table, 1)
    return copied // (entries * _entry_bytes("census", census))


def _entry_bytes(name: str, census: Census) -> int:
    if census.pool.entry_bytes is None:
        raise ValueError(
            f"{name} must come with a pool that knows its entry_bytes; got a pool without; write "
            "BlockPool(..., entry_bytes=entry_bytes_for(head_dim))."
        )
    return census.pool.entry_bytes


@attrs.frozen(kw_only=True)
class CompactionPlan:
    """Copies that free blocks, in the order in which they are made.

    A plan comes from `compaction_plan`; `apply_plan` carries it out on the mask. Tables are
    numbered in row-major order of the mask's outer axes; slots count from the first slot of a
    table's first block, whether or not a token was written there.

    Parameters
    ----------
    pool, axes
        What the mask was planned under.
    rows_per_table
        Rows whose entries live in the same blocks.
    lengths, offsets
        Tokens of each table, and slots of its first block before token 0.
    moves
        ``(table, source slot, target slot)``: the slot with all its rows. Under ``"pack_rows"`` and
        ``"evacuate_rows"`` ``(table, row, source slot, target slot)``: one entry. A target is dead,
        or moved away, by the time it is written; no survivor moves twice.
    freed_blocks
        ``(table, block)`` of every block that is free after the moves, with those that are free
        without any.
    num_freed_in_place
        Blocks that are free without any move.
    """

    pool: BlockPool
    axes: str | None
    rows_per_table: int
    lengths: tuple[int, ...]
    offsets: tuple[int, ...]
    moves: tuple[tuple[int, ...], ...]
    freed_blocks: tuple[tuple[int, int], ...]
    num_freed_in_place: int

    @property
    def num_moves(self) -> int:
        """Slots copied; entries, under a compactor that moves row by row."""
        return len(self.moves)

    @property
    def num_moved_entries(self) -> int:
        """Entries copied; a slot is copied with all its rows, dead ones too."""
        return len(self.moves) * (1 if by_rows(self.pool) else self.rows_per_table)

    @property
    def num_freed_blocks(self) -> int:
        """Blocks that are free after the moves."""
        return len(self.freed_blocks)

    @property
    def num_gained_blocks(self) -> int:
        """Blocks that the plan, and only the plan, frees."""
        return len(self.freed_blocks) - self.num_freed_in_place


def compaction_plan(
    keep: ArrayLike,
    pool: PoolLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
    budget: int | None = None,
    pinned: ArrayLike = (),
) -> CompactionPlan:
    """Return the copies by which the pool's own compactor frees blocks, and which blocks they free.

    Without a budget and pinned blocks it is the full compaction that a census counts: the moves
    copy ``num_moved_entries``, and all blocks but ``num_packed_blocks`` are free after them. A
    table that is compacted is rewritten, so that its open tail comes free too.

    Parameters
    ----------
    keep, pool, axes, lengths, offset
        As in `take_census`.
    budget
        Moves that may be made; `num_moves_for` makes them of bytes or time. Unless all moves fit,
        those that free no block are left out. ``"evacuate"`` and ``"fill"`` go block by block, the
        cheapest next block of any table first, until one does not fit (`blocks_for_moves` counts
        them for ``"evacuate"``); the others table by table, the cheapest per block first, each that
        still fits.
    pinned
        ``(table, block)`` pairs, or just blocks where there is one table: never a source, a target,
        or free, since someone else holds them. An open tail is not pinned.

    Raises
    ------
    TypeError, ValueError
        As `take_census`; for a negative budget, and for a pinned block that no table owns.

    Examples
    --------
    The survivor of block 0 moves into the hole of block 1, and block 0 comes free.

    >>> plan = compaction_plan([1, 0, 0, 0, 1, 1, 0, 1], 4)
    >>> plan.moves, plan.freed_blocks
    (((0, 0, 6),), ((0, 0),))
    """
    pool = as_pool(pool)
    limit = None if budget is None else _checks.as_count("budget", budget)
    layout = _layout.lay_out(keep, pool, axes=axes, lengths=lengths, offset=offset)
    tokens, before = _layout.of_each_table(layout)
    ends, size = tokens + before, pool.block_size
    pins = _pinned_blocks(pinned, -(-ends // size) * (tokens > 0))
    tables = [
        plan_table(rows, pins.get(table, []), pool, partial_tail=bool(ends[table] % size))
        for table, rows in _rows_of_tables(layout, pool)
    ]
    allowed: list[int | None] = [len(table.moves) for table in tables]
    if limit is not None and sum(len(table.moves) for table in tables) > limit:
        allowed = allowed_moves(tables, limit, pool)
    numbered = [(*pair, i) for i, pair in enumerate(zip(tables, allowed, strict=True))]
    return CompactionPlan(
        pool=pool,
        axes=axes,
        rows_per_table=layout.rows,
        lengths=tuple(tokens.tolist()),
        offsets=tuple(before.tolist()),
        moves=tuple(
            (i, *move)
            for table, moves, i in numbered
            for move in table.moves[: moves or 0].tolist()
        ),
        freed_blocks=tuple(
            (i, block)
            for table, moves, i in numbered
            for block in np.flatnonzero(table.freed_after(moves)).tolist()
        ),
        num_freed_in_place=sum(int(table.in_place.sum()) for table in tables),
    )


def apply_plan(keep: ArrayLike, plan: CompactionPlan) -> NDArray[np.bool_]:
    """Carry out a plan on its mask, and return which slots are live after it, row by row.

    The result is of shape (tables, rows per table, slots): tables in row-major order of the outer
    axes, whole blocks of slots from the first slot of the first block, and dead slots behind the
    last block of a shorter table.

    Raises
    ------
    ValueError
        Where the plan is not of this mask: a survivor would be lost or doubled, or a block that
        the plan promises is not empty.

    Examples
    --------
    >>> keep = [1, 0, 0, 0, 1, 1, 0, 1]
    >>> apply_plan(keep, compaction_plan(keep, 4)).astype(int)
    array([[[0, 0, 0, 0, 1, 1, 1, 1]]])
    """
    if not isinstance(plan, CompactionPlan):
        raise TypeError(
            f"plan must be a CompactionPlan; got {_checks.shown(plan)}; write "
            "compaction_plan(keep, pool)."
        )
    layout = _layout.lay_out(keep, plan.pool, axes=plan.axes, lengths=None, offset=0)
    longest = max(plan.lengths, default=0)
    if (layout.num_tables, layout.rows) != (len(plan.lengths), plan.rows_per_table) or (
        layout.tokens < longest
    ):
        raise _not_of_plan(
            f"{layout.num_tables} tables of {layout.rows} rows of {layout.tokens} tokens for a "
            f"plan of {len(plan.lengths)} of {plan.rows_per_table} of up to {longest}"
        )
    layout = layout._replace(lengths=np.array(plan.lengths), offsets=np.array(plan.offsets))
    parts = [rows for _, rows in _rows_of_tables(layout, plan.pool)]
    slots = max((part.shape[1] for part in parts), default=0)
    after = np.zeros((len(parts), layout.rows, slots), np.bool_)
    for table, part in enumerate(parts):
        after[table, :, : part.shape[1]] = part
    row_by_row = by_rows(plan.pool)
    moves = np.array(plan.moves, np.int64).reshape(-1, 4 if row_by_row else 3)
    *where, source, target = moves.T
    # One survivor an index: an entry, or a slot with all its rows.
    places = after if row_by_row else after.swapaxes(1, 2)
    live = places if row_by_row else np.logical_or.reduce(places, axis=2)
    _refuse_lossy(live, (*where, source), (*where, target))
    moved = places[(*where, source)]
    places[(*where, source)] = False
    places[(*where, target)] = moved
    size = plan.pool.block_size
    for table, block in plan.freed_blocks:
        if after[table, :, block * size : (block + 1) * size].any():
            raise _not_of_plan(f"a live slot in block {block} of table {table} after the moves")
    return after


def _refuse_lossy(
    live: NDArray[np.bool_], sources: tuple[NDArray[Any], ...], targets: tuple[NDArray[Any], ...]
) -> None:
    """Refuse moves that, in their order, lose or double what is live."""
    source, target = (np.ravel_multi_index(index, live.shape) for index in (sources, targets))
    alive, turn = live.reshape(-1), np.arange(len(source))
    leaves, enters = np.full((2, live.size), len(turn))  # the last move from each place, and to it
    leaves[source] = enters[target] = turn
    if not alive[source].all() or (leaves[source] != turn).any():
        raise _not_of_plan("a move from a slot that holds no survivor")
    if (alive[target] & (leaves[target] >= turn)).any() or (enters[target] != turn).any():
        raise _not_of_plan("a move onto a survivor")


def _not_of_plan(found: str) -> ValueError:
    return ValueError(
        f"keep must be the mask that the plan was made for; got {found}; write "
        "compaction_plan(keep, ...) of this mask."
    )


def _pinned_blocks(pinned: ArrayLike, blocks: NDArray[np.int64]) -> dict[int, list[int]]:
    """Return the pinned blocks of each table that has some, given how many blocks each owns."""
    pairs = _checks.as_integers("pinned", pinned)
    if pairs.ndim == 1 and (len(blocks) == 1 or pairs.size == 0):
        pairs = np.column_stack([np.zeros_like(pairs), pairs])
    if pairs.ndim != 2 or pairs.shape[1] != 2:  # noqa: PLR2004  # a pair
        raise ValueError(
            f"pinned must be (table, block) pairs; got shape {pairs.shape} for {len(blocks)} "
            "tables; write such as [(0, 3), (1, 0)]."
        )
    pins: dict[int, list[int]] = {}
    for table, block in pairs.tolist():
        if not (0 <= table < len(blocks) and 0 <= block < blocks[table]):
            owned = f" and it owns {blocks[table]}" if 0 <= table < len(blocks) else ""
            raise ValueError(
                "pinned must be (table, block) pairs, numbered from 0, of blocks that tables own; "
                f"got table {table} and block {block} where there are {len(blocks)} tables{owned}; "
                "number tables in row-major order of the outer axes."
            )
        pins.setdefault(table, []).append(block)
    return pins


def _rows_of_tables(layout: Layout, pool: BlockPool) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Yield each table and its rows over whole blocks, from the first slot of the first one."""
    tokens, offsets = _layout.of_each_table(layout)
    for table, part in occupancy.stretches(layout, 1):
        length, before = int(tokens[table]), int(offsets[table])
        keep = part.reshape(layout.rows, layout.tokens)
        beyond = keep[:, length:].any(axis=0)
        if beyond.any():
            index = np.unravel_index(table, layout.outer)
            raise _checks.beyond_length(index, length + int(beyond.argmax()), length)
        blocks = pool.num_blocks_for(length + before) if length else 0
        rows = np.zeros((layout.rows, blocks * pool.block_size), np.bool_)
        # Compared, since the bytes of a boolean array need not be 0 and 1.
        rows[:, before : before + length] = keep[:, :length].view(np.uint8) != 0
        yield table, rows
