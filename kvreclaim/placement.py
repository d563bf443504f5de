"""Physical blocks by their ids: what a keep-mask alone cannot tell.

A block that several sequences share comes free when all of them let go of it; a page of blocks,
when all its blocks are free; and an allocator that needs one run of blocks can use no other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Literal, overload

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _layout
from kvreclaim.census import take_census
from kvreclaim.pool import BlockPool, PoolLike, as_pool


@attrs.frozen(kw_only=True)
class Placement:
    """Who holds the blocks of a pool, before and after an eviction.

    A placement comes from `place`. Its accounts add up: each of the pool's blocks is reserved,
    free, or held.

    Parameters
    ----------
    pool
        The BlockPool it was taken under.
    holders
        ``(block id, sequences that held it, sequences that still do)`` of each allocated block, by
        ascending id.
    num_tokens
        Tokens of all sequences: one that is shared counts for each.
    num_live_tokens
        Those that are kept.
    num_slots
        Slots written: one that is shared counts once.
    num_live_slots
        Those that at least one sequence keeps.

    Examples
    --------
    Two sequences share block 1. The first has no use for it, the second still reads it.

    >>> pool = BlockPool(2, total_blocks=5, reserved_blocks=1)
    >>> placement = place([[0, 0, 0, 0], [1, 0, 1, 1]], [[1, 2], [1, 3]], pool)
    >>> placement.freed_ids, placement.ref_counts
    ((2,), {1: 1, 2: 0, 3: 1})
    >>> placement.free
    (False, False, True, False, True)
    """

    pool: BlockPool
    holders: tuple[tuple[int, int, int], ...]
    num_tokens: int
    num_live_tokens: int
    num_slots: int
    num_live_slots: int

    def __attrs_post_init__(self) -> None:
        """Refuse accounts that do not add up."""
        size, first, total = self.pool.block_size, self.pool.reserved_blocks, _size_of(self.pool)
        ids = [block for block, _, _ in self.holders]
        consistent = (
            all(first <= block < total for block in ids)
            and all(a < b for a, b in itertools.pairwise(ids))
            and all(before >= max(after, 1) for _, before, after in self.holders)
            and all(after >= 0 for _, _, after in self.holders)
            and 0 <= self.num_live_slots <= self.num_live_tokens <= self.num_tokens
            and self.num_live_slots <= self.num_slots <= self.num_tokens
            and len(ids) <= self.num_slots <= size * len(ids)
            and self.num_blocks - self.num_freed_blocks <= self.num_live_slots
            and self.num_live_slots <= size * (self.num_blocks - self.num_freed_blocks)
        )
        if not consistent:
            raise ValueError(
                "a Placement must have accounts that add up to its pool; got holders or counts "
                "that no sequences give; take it with place."
            )

    @property
    def num_blocks(self) -> int:
        """Blocks that the sequences held before the eviction, each counted once."""
        return len(self.holders)

    @property
    def num_freed_blocks(self) -> int:
        """Blocks that no sequence holds any more."""
        return len(self.freed_ids)

    @property
    def freed_ids(self) -> tuple[int, ...]:
        """Ids of the blocks that the eviction freed, ascending."""
        return tuple(block for block, _, after in self.holders if after == 0)

    @property
    def num_shared_blocks(self) -> int:
        """Blocks that more than one sequence held before the eviction."""
        return sum(before > 1 for _, before, _ in self.holders)

    @property
    def num_spared_blocks(self) -> int:
        """Blocks that a sequence dropped while another still holds them: what sharing kept."""
        return sum(0 < after < before for _, before, after in self.holders)

    @property
    def num_refs(self) -> int:
        """Entries of all block tables before the eviction."""
        return sum(before for _, before, _ in self.holders)

    @property
    def num_refs_dropped(self) -> int:
        """Entries of block tables whose block is dead for that sequence."""
        return sum(before - after for _, before, after in self.holders)

    @property
    def ref_counts(self) -> dict[int, int]:
        """How many sequences hold each allocated block after the eviction, by its id."""
        return {block: after for block, _, after in self.holders}

    @property
    def free(self) -> tuple[bool, ...]:
        """Whether each block of the pool is free, by id: those never allocated too, none reserved.

        What `page_reclaim`, `free_runs` and `admit_contiguous` take.
        """
        free = [False] * self.pool.reserved_blocks
        free += [True] * (_size_of(self.pool) - len(free))
        for block, _, after in self.holders:
            free[block] = after == 0
        return tuple(free)

    @property
    def logical_saving_refs(self) -> float:
        """Evicted over all tokens, a shared one counted for each sequence; nan without tokens."""
        evicted = self.num_tokens - self.num_live_tokens
        return evicted / self.num_tokens if self.num_tokens else math.nan

    @property
    def logical_saving_slots(self) -> float:
        """Slots that no sequence keeps over all written slots; nan without slots."""
        dead = self.num_slots - self.num_live_slots
        return dead / self.num_slots if self.num_slots else math.nan

    @property
    def physical_reclaim(self) -> float:
        """Freed over allocated blocks, each counted once; nan without blocks."""
        return self.num_freed_blocks / self.num_blocks if self.num_blocks else math.nan

    @property
    def fragmentation(self) -> float:
        """Slots of held blocks that no sequence keeps, over their slots; nan where none is held."""
        slots = (self.num_blocks - self.num_freed_blocks) * self.pool.block_size
        return (slots - self.num_live_slots) / slots if slots else math.nan


def _size_of(pool: BlockPool) -> int:
    if pool.total_blocks is None:
        raise ValueError(
            "pool must have a size; got one without total_blocks; write "
            "BlockPool(..., total_blocks=...), the number of blocks that ids may name."
        )
    return pool.total_blocks


def place(
    keeps: Iterable[ArrayLike],
    tables: Iterable[ArrayLike],
    pool: PoolLike,
    *,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> Placement:
    """Return who holds which block once each sequence has let go of those that are dead for it.

    A block is free when it is dead in every sequence that holds it. So it is in a server that
    counts references: a table drops its dead blocks, and a block returns with its last reference.
    The pool's ``frees``, ``open_tail`` and ``compactor`` play no part: any dead block is dropped, a
    partly written last one too (keep a running sequence's last token, as attention does).

    Parameters
    ----------
    keeps
        A keep-mask of one axis, tokens, for each sequence: what any layer or head keeps.
    tables
        The ids of each sequence's blocks, in logical order; a shared prefix is the same ids again.
    pool
        A BlockPool with ``total_blocks``; its lowest ids are the reserved ones.
    lengths
        Tokens of each sequence; by default those of its mask.
    offset
        Slots of each sequence's first block before its token 0; a number stands for all.

    Raises
    ------
    TypeError, ValueError
        For a pool without a size; for a table that names a block outside it, a reserved one, or one
        twice; for one that has more or fewer blocks than its sequence needs.

    Examples
    --------
    >>> pool = BlockPool(4, total_blocks=9, reserved_blocks=1)
    >>> placement = place([[0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], [[1, 2], [1, 3]], pool)
    >>> placement.num_blocks, placement.num_freed_blocks, placement.num_refs_dropped
    (3, 1, 2)
    """
    pool = as_pool(pool)
    each = _checks.as_items("keeps", keeps, "a keep-mask for each sequence", "write a list of them")
    named = _checks.as_items(
        "tables", tables, "block ids for each sequence", "write a list of them"
    )
    masks = [_one_axis(f"keeps[{i}]", keep) for i, keep in enumerate(each)]
    blocks = [_as_table(i, table, pool) for i, table in enumerate(named)]
    if len(blocks) != len(masks):
        raise ValueError(
            f"tables must hold one table for each of the {len(masks)} keeps; got {len(blocks)}; "
            "write the block ids of every sequence."
        )
    sizes = [mask.size for mask in masks]
    tokens_of = sizes if lengths is None else _per_sequence("lengths", lengths, sizes)
    offset_of = _per_sequence("offset", offset, [pool.block_size - 1] * len(masks))

    ids, before = np.unique(np.concatenate([np.zeros(0, np.int64), *blocks]), return_counts=True)
    written, live = np.zeros((2, ids.size, pool.block_size), np.bool_)
    after = np.zeros_like(ids)
    num_live_tokens = 0
    for i, (mask, table) in enumerate(zip(masks, blocks, strict=True)):
        tokens, first = tokens_of[i], offset_of[i]
        if mask[tokens:].any():
            raise _checks.beyond_length((i,), tokens + int(mask[tokens:].argmax()), tokens)
        needed = pool.num_blocks_for(first + tokens) if tokens else 0
        if table.size != needed:
            raise ValueError(
                f"tables must name the blocks that each sequence's tokens fill, {needed} for the "
                f"{tokens} tokens of sequence {i}; got {table.size} in tables[{i}]; write the "
                "table as it was before any block was freed."
            )
        slots = np.zeros((2, needed * pool.block_size), np.bool_)
        slots[0, first : first + tokens] = True
        slots[1, first : first + tokens] = mask[:tokens]
        own_written, own_live = slots.reshape(2, needed, pool.block_size)
        rows = np.searchsorted(ids, table)
        written[rows] |= own_written
        live[rows] |= own_live
        after[rows] += own_live.any(axis=1)
        num_live_tokens += int(np.count_nonzero(own_live))
    return Placement(
        pool=pool,
        holders=tuple(zip(ids.tolist(), before.tolist(), after.tolist(), strict=True)),
        num_tokens=sum(tokens_of),
        num_live_tokens=num_live_tokens,
        num_slots=int(np.count_nonzero(written)),
        num_live_slots=int(np.count_nonzero(live)),
    )


def _one_axis(name: str, value: ArrayLike) -> NDArray[np.bool_]:
    array = _checks.as_keep(value, name)
    if array.ndim != 1:
        raise ValueError(
            f"{name} must have one axis; got shape {array.shape}; write such as "
            "keep.any(axis=(0, 1)) for the tokens that any layer or head keeps."
        )
    return array


def _as_table(number: int, value: ArrayLike, pool: BlockPool) -> NDArray[np.int64]:
    table = _checks.as_integers(f"tables[{number}]", value)
    total, reserved = _size_of(pool), pool.reserved_blocks
    if table.ndim != 1:
        raise ValueError(
            f"tables[{number}] must be a list of block ids; got shape {table.shape}; write one "
            "table for each sequence."
        )
    wrong = (table < reserved) | (table >= total)
    if wrong.any():
        block = int(table[wrong.argmax()])
        hint = (
            "write the table as it was before any block was freed"
            if 0 <= block < reserved
            else "write the size of the pool that these ids are of"
        )
        raise ValueError(
            f"tables must name blocks from {reserved} to {total - 1}, the usable ones of "
            f"total_blocks={total} (the lowest {reserved} are reserved); got block {block} in "
            f"tables[{number}]; {hint}."
        )
    values, counts = np.unique(table, return_counts=True)
    if values.size != table.size:
        raise ValueError(
            "tables must name a block once in each sequence; got block "
            f"{int(values[counts.argmax()])} {int(counts.max())} times in tables[{number}]; write "
            "the id of each logical block."
        )
    return table


def _per_sequence(name: str, value: object, most: list[int]) -> list[int]:
    """Return a number of at most its own maximum for each sequence; one number stands for all."""
    array = _checks.as_integers(name, value)
    if array.ndim == 0:
        array = np.broadcast_to(array, len(most))
    if array.shape != (len(most),):
        raise ValueError(
            f"{name} must hold one number for each of the {len(most)} keeps; got shape "
            f"{array.shape}; write one for every sequence."
        )
    return [
        _checks.as_count(f"{name}[{i}]", number, maximum=maximum)
        for i, (number, maximum) in enumerate(zip(array.tolist(), most, strict=True))
    ]


@attrs.frozen(kw_only=True)
class PageReclaim:
    """How many pages of blocks are wholly free.

    Parameters
    ----------
    num_pages
        Pages that hold at least one whole block.
    num_free_pages
        Those of which every block is free: their memory returns.
    packed_floor
        The fewest of these pages that could hold the blocks that are not free.
    pinned_over_held
        Memory of the pages that do not return over memory of their blocks that are not free, at
        least 1; nan where every block is free.
    """

    num_pages: int
    num_free_pages: int
    packed_floor: int
    pinned_over_held: float

    @property
    def num_pinned_pages(self) -> int:
        """Pages that do not return: at least one of their blocks is not free."""
        return self.num_pages - self.num_free_pages


@overload
def page_reclaim(free: ArrayLike, blocks_per_page: int) -> PageReclaim: ...
@overload
def page_reclaim(free: ArrayLike, *, page_bytes: int, block_bytes: int) -> PageReclaim: ...
def page_reclaim(
    free: ArrayLike,
    blocks_per_page: int | None = None,
    *,
    page_bytes: int | None = None,
    block_bytes: int | None = None,
) -> PageReclaim:
    """Return how many pages come free, where memory returns by pages of blocks.

    A page returns only when all its blocks are free (kvcached's pages of 2 MiB, the sectors of HF's
    continuous batching). Give the blocks of a page, or the bytes of both. Where a block does not
    divide the page, a block that would cross a border is not used and belongs to no page. A partial
    last page is a page.

    Parameters
    ----------
    free
        Whether each block is free, in physical order, such as `Placement.free`.
    blocks_per_page
        Blocks of a page.
    page_bytes, block_bytes
        Bytes of a page and of a block, at most a page.

    Raises
    ------
    TypeError, ValueError
        For neither form or both, or a block larger than the page.

    References
    ----------
    ``waste`` of kvcached's ``benchmarks/bench_frag``, the packed floor of ``bench_idle_footprint``.

    Examples
    --------
    >>> page_reclaim([1, 1, 1, 0, 1, 1, 0, 1, 1], 3)
    PageReclaim(num_pages=3, num_free_pages=1, packed_floor=1, pinned_over_held=3.0)

    Blocks of 4 bytes in pages of 10: the third would cross a border, so two fit in each page.

    >>> page_reclaim([1, 1, 0, 1, 1], page_bytes=10, block_bytes=4).num_free_pages
    2
    """
    flags = _one_axis("free", free)
    if (blocks_per_page is None) == (page_bytes is None and block_bytes is None):
        raise TypeError(
            "page_reclaim must be given blocks_per_page, or page_bytes and block_bytes; got "
            f"{'both' if blocks_per_page is not None else 'neither'}; write one of the two forms."
        )
    if blocks_per_page is None:
        block = _checks.as_count("block_bytes", block_bytes, minimum=1)
        page = _checks.as_count("page_bytes", page_bytes, minimum=1)
        if block > page:
            raise ValueError(
                f"block_bytes must be at most page_bytes ({page}); got {block}; write the bytes of "
                "one block and of the page that holds several."
            )
    else:
        block, page = 1, _checks.as_count("blocks_per_page", blocks_per_page, minimum=1)
    first = np.arange(flags.size) * block
    page_of = first // page
    whole = (first + block - 1) // page == page_of
    blocks_of = np.bincount(page_of[whole])
    held_of = np.bincount(page_of[whole & ~flags], minlength=blocks_of.size)
    num_pages = int(np.count_nonzero(blocks_of))
    num_pinned, held = int(np.count_nonzero(held_of)), int(held_of.sum())
    filled = np.cumsum(np.sort(blocks_of)[::-1])
    return PageReclaim(
        num_pages=num_pages,
        num_free_pages=num_pages - num_pinned,
        packed_floor=int(np.searchsorted(filled, held)) + 1 if held else 0,
        pinned_over_held=num_pinned * page / (held * block) if held else math.nan,
    )


def free_runs(free: ArrayLike) -> tuple[int, ...]:
    """Return the lengths of the runs of free blocks, in physical order.

    Parameters
    ----------
    free
        Whether each block is free, in physical order, such as `Placement.free`.

    Examples
    --------
    >>> free_runs([1, 1, 0, 1])
    (2, 1)
    """
    flags = np.concatenate(([False], _one_axis("free", free), [False]))
    borders = np.flatnonzero(flags[1:] != flags[:-1])
    return tuple((borders[1::2] - borders[::2]).tolist())


def admit_contiguous(
    free: ArrayLike,
    demands: Iterable[int],
    fit: Literal["first", "best"] = "first",
    order: Literal["fifo", "skip"] = "fifo",
) -> tuple[int, ...]:
    """Return which requests are admitted, by index, where each needs one run of free blocks.

    A request takes the left end of its run. A paged allocator needs no runs, and neither does one
    that stitches (GMLake): ``admit(sum(free), demands)`` is what those admit.

    Parameters
    ----------
    free
        Whether each block is free, in physical order, such as `Placement.free`.
    demands
        Blocks that each request needs, in the order of arrival, each at least 1.
    fit
        ``"first"``: the first run that is long enough; ``"best"``: the shortest such run, the first
        of them where several are.
    order
        ``"fifo"`` stops at the first request that does not fit; ``"skip"`` goes on to the next.

    Examples
    --------
    >>> admit_contiguous([1, 1, 0, 1, 1, 1], [3, 3, 2])
    (0,)
    >>> admit_contiguous([1, 1, 0, 1, 1, 1], [3, 3, 2], order="skip")
    (0, 2)
    """
    runs = list(free_runs(free))
    needs = _checks.as_demands(demands)
    best = _checks.as_choice("fit", fit, ("first", "best")) == "best"
    skip = _checks.as_choice("order", order, ("fifo", "skip")) == "skip"
    admitted: list[int] = []
    for request, need in enumerate(needs):
        fitting = [i for i, length in enumerate(runs) if length >= need]
        if fitting:
            runs[min(fitting, key=runs.__getitem__) if best else fitting[0]] -= need
            admitted.append(request)
        elif not skip:
            break
    return tuple(admitted)


def external_fragmentation(free: ArrayLike) -> float:
    """Return the share of the free blocks that lies outside the longest run of them.

    ``1 - longest run / free blocks``: from 0 to below 1; nan where nothing is free. It is what an
    allocator that needs one run loses; a paged one has none.

    Parameters
    ----------
    free
        Whether each block is free, in physical order, such as `Placement.free`.

    Examples
    --------
    >>> external_fragmentation([1, 1, 0, 1])
    0.3333333333333333
    """
    runs = free_runs(free)
    return (sum(runs) - max(runs)) / sum(runs) if runs else math.nan


def unsafe_free(
    keep: ArrayLike,
    pool: PoolLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> int:
    """Return how many live tokens go with the dead ones, where any freed token frees its page.

    SGLang's ``free`` takes token indices and releases the whole page of each. Given the indices of
    all dead tokens, it loses the live ones on the same pages; 0 means that this is safe. Its
    contract leaves it to the caller to pass whole dead pages only.

    Parameters
    ----------
    keep, axes, lengths, offset
        As in `take_census`; a token is dead where no row that shares its block keeps it.
    pool
        A BlockPool whose blocks are the pages, or the size of a page. Only its block size and its
        shared axes play a part.

    References
    ----------
    SGLang 0.5.23, ``srt/mem_cache/allocator/paged.py``.

    Examples
    --------
    >>> unsafe_free([0, 0, 1, 0, 1, 1], 2)
    1
    """
    pool = as_pool(pool)
    pages = BlockPool(pool.block_size, shared_axes=pool.shared_axes)
    layout = _layout.lay_out(keep, pages, axes=axes, lengths=lengths, offset=offset)
    num_live = take_census(keep, pages, axes=axes, lengths=lengths, offset=offset).num_live_tokens
    rows = tuple(range(layout.outer_axes, layout.array.ndim - 1))
    live = layout.array.any(axis=rows).reshape(layout.num_tables, layout.tokens)
    per_table = np.broadcast_to(layout.lengths, layout.num_tables)
    dead = ~live & (np.arange(layout.tokens) < per_table[:, None])
    # The other way round, a page without dead tokens is an empty block: what it holds is safe.
    whole = pages.replace(shared_axes="")  # tables, whose rows are united already
    safe = take_census(dead, whole, lengths=per_table, offset=layout.offsets)
    return num_live - (safe.num_tokens - safe.num_held_tokens)
