"""Census: blocks counted by live tokens; `take_census`, ``+``, `merge`.

A census is all that the metrics read: a few exact integers, summed over block tables. Censuses of
different sequences, files or machines are added; a census of disjoint sets of whole sequences is
the sum of their censuses, exactly.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _layout
from kvreclaim._measure import refuse_live_beyond
from kvreclaim._one_table import count_table, is_one_table
from kvreclaim._stream import tally_rows
from kvreclaim._tally import Tally
from kvreclaim.pool import BlockPool, PoolLike, as_pool


@attrs.frozen(kw_only=True)
class Census:
    """What a keep-mask leaves in the blocks of a pool, as integers summed over its block tables.

    A census comes from `take_census` and adds up: ``a + b``, ``sum(censuses)``, `merge`.

    Parameters
    ----------
    pool
        The BlockPool it was taken under.
    rows_per_table
        Rows (of one sequence, layer and kv head) whose entries live in the same blocks.
    num_tables
        Block tables, those of length 0 too.
    num_entries
        Entries written, ``num_tokens * rows_per_table``.
    num_live_entries
        Entries that the mask keeps.
    num_tokens
        Written slots: the sum of the tables' lengths.
    counts
        ``counts[k]`` blocks have k live slots, k from 0 to the block size.
    num_freed_blocks
        Blocks taken back without a copy, under the pool's ``frees`` and ``open_tail``.
    num_held_tokens
        Written slots that sit in blocks not freed.
    num_packed_blocks
        Blocks still held after a full compaction by the pool's own compactor.
    num_floor_blocks
        The fewest blocks that can hold the survivors in this layout: the sum over tables of
        ceil(live entries of the fullest row / block size), whatever the compactor.
    num_moved_entries
        Entries that a full compaction by the pool's own compactor copies.
    movable
        ``movable[k]`` held blocks of k live slots are emptied by a full compaction, where the
        compactor is ``"evacuate"``; else empty.
    num_pinned_blocks, num_pinned_tokens
        Blocks that must stay in place, neither freed nor moved, and the written slots in them.
    num_pinned_live_tokens, num_pinned_live_entries
        Live slots and entries in pinned blocks.

    Examples
    --------
    >>> census = take_census([1, 1, 0, 1, 0, 1, 0, 0], 4)
    >>> census.counts
    (0, 1, 0, 1, 0)
    >>> census.num_held_blocks, census.num_packed_blocks, census.num_moved_entries
    (2, 1, 1)
    """

    pool: BlockPool
    rows_per_table: int
    num_tables: int
    num_entries: int
    num_live_entries: int
    num_tokens: int
    counts: tuple[int, ...]
    num_freed_blocks: int
    num_held_tokens: int
    num_packed_blocks: int
    num_floor_blocks: int
    num_moved_entries: int
    movable: tuple[int, ...]
    num_pinned_blocks: int = 0
    num_pinned_tokens: int = 0
    num_pinned_live_tokens: int = 0
    num_pinned_live_entries: int = 0

    def __attrs_post_init__(self) -> None:
        """Refuse counts that no mask can have."""
        size = self.pool.block_size
        held = sum(self.counts) - self.num_freed_blocks
        consistent = (
            len(self.counts) == size + 1
            and len(self.movable) == (size + 1 if self.pool.compactor == "evacuate" else 0)
            and self.num_entries == self.num_tokens * self.rows_per_table
            and 0 <= self.num_live_entries <= self.num_entries
            and 0 <= self.num_held_tokens <= self.num_tokens
            and 0 <= self.num_floor_blocks <= self.num_packed_blocks <= held
            and self.num_moved_entries >= 0
            and self.num_freed_blocks >= 0
            and 0 <= self.num_pinned_blocks <= self.num_floor_blocks
            and 0 <= self.num_pinned_live_tokens <= self.num_pinned_tokens <= self.num_held_tokens
            and 0 <= self.num_pinned_live_entries <= self.num_live_entries
        )
        if not consistent:
            raise _impossible()

    @property
    def num_blocks(self) -> int:
        """Blocks that the tables own."""
        return sum(self.counts)

    @property
    def num_nonempty_blocks(self) -> int:
        """Blocks with at least one live slot."""
        return sum(self.counts) - self.counts[0]

    @property
    def num_held_blocks(self) -> int:
        """Blocks that the runtime does not take back without a copy."""
        return sum(self.counts) - self.num_freed_blocks

    @property
    def num_live_tokens(self) -> int:
        """Live slots: those that at least one row of the table keeps."""
        return sum(map(operator.mul, self.counts, itertools.count()))

    @property
    def num_evicted_entries(self) -> int:
        """Entries that the mask removes."""
        return self.num_entries - self.num_live_entries

    @property
    def num_stranded_tokens(self) -> int:
        """Slots that were written and are dead, but sit in a block that is not freed."""
        return self.num_held_tokens - self.num_live_tokens

    @property
    def num_slack_slots(self) -> int:
        """Slots of held blocks that were never written."""
        return self.num_held_blocks * self.pool.block_size - self.num_held_tokens

    @property
    def num_compactable_blocks(self) -> int:
        """Blocks that compaction, and only compaction, frees."""
        return self.num_held_blocks - self.num_packed_blocks

    @classmethod
    def empty(cls, pool: PoolLike) -> Census:
        """Return the census of nothing, which adds to any census of its pool.

        Examples
        --------
        >>> Census.empty(16).num_blocks
        0
        """
        pool = as_pool(pool)
        return cls(pool=pool, **Tally(pool).fields(rows=0))

    def __add__(self, other: object) -> Census:
        """Return the census of both sets of sequences together."""
        if not isinstance(other, Census):
            return NotImplemented
        return _from_sums(
            self.pool,
            _rows_of_all((self, other)),
            map(operator.add, self.counts, other.counts),
            map(operator.add, self.movable, other.movable),
            map(operator.add, _summed_of(self), _summed_of(other)),
        )

    def __radd__(self, other: object) -> Census:
        """Let `sum` begin with 0."""
        if isinstance(other, int) and other == 0:
            return self
        return NotImplemented

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as built-in numbers, lists and dicts, ready for JSON."""
        fields = attrs.asdict(self)
        return fields | {"counts": list(self.counts), "movable": list(self.movable)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Census:
        """Return the census that `to_dict` wrote.

        Examples
        --------
        >>> census = take_census([1, 0, 0, 0], 2)
        >>> Census.from_dict(census.to_dict()) == census
        True
        """
        names = [field.name for field in attrs.fields(cls)]
        if not isinstance(fields, Mapping):
            raise TypeError(
                f"fields must be what Census.to_dict returned; got {_checks.shown(fields)}; pass "
                "that dict."
            )
        if set(fields) != set(names):
            raise ValueError(
                f"fields must be those of a Census ({', '.join(names)}); got "
                f"{', '.join(map(str, fields))}; pass what Census.to_dict returned."
            )
        numbers = {
            name: _checks.as_count(name, fields[name])
            for name in names
            if name not in ("pool", "counts", "movable")
        }
        census = cls(
            pool=_as_written_pool(fields["pool"]),
            counts=_as_histogram("counts", fields["counts"]),
            movable=_as_histogram("movable", fields["movable"]),
            **numbers,
        )
        if not _is_possible(census):
            raise _impossible()
        return census


def _impossible() -> ValueError:
    return ValueError(
        "a Census must have counts that add up; got fields that no keep-mask gives; take it with "
        "take_census, or read what to_dict wrote, unchanged."
    )


def _as_written_pool(fields: object) -> BlockPool:
    names = [field.name for field in attrs.fields(BlockPool)]
    if not isinstance(fields, Mapping) or set(fields) != set(names):
        raise ValueError(
            f"pool must be a dict of the fields of a BlockPool ({', '.join(names)}); got "
            f"{_checks.shown(fields)}; pass what Census.to_dict returned."
        )
    return BlockPool(**fields)


def _as_histogram(name: str, values: object) -> tuple[int, ...]:
    rule, hint = "a number of blocks for each number of live slots", "write a list"
    items = _checks.as_items(name, values, rule, hint)
    return tuple(_checks.as_count(name, count) for count in items)


def _is_possible(census: Census) -> bool:
    """Return whether numbers that were read, and not counted, may be those of a keep-mask.

    Every block has a written slot, a freed one no live slot, a live slot at least one live entry:
    such holds for sums over tables as well. It stands outside of `__attrs_post_init__` since it
    would take longer than the census of a small mask.
    """
    size, rows, compactor = census.pool.block_size, census.rows_per_table, census.pool.compactor
    held, freed = census.num_held_blocks, census.num_freed_blocks
    pinned, pinned_live = census.num_pinned_blocks, census.num_pinned_live_tokens
    live = census.num_live_tokens - pinned_live
    live_entries = census.num_live_entries - census.num_pinned_live_entries
    moves = sum(map(operator.mul, census.movable, itertools.count()))
    return (
        (rows > 0 or census.num_tables == 0)
        and (census.num_tables > 0 or census.num_tokens == 0)
        and freed <= (0 if census.pool.frees == "none" else census.counts[0])
        and freed <= census.num_tokens - census.num_held_tokens <= freed * size
        and held <= census.num_held_tokens <= held * size
        and pinned <= census.num_pinned_tokens <= pinned * size
        and pinned_live <= census.num_pinned_live_entries <= pinned_live * rows
        and live <= live_entries <= live * rows
        and live <= census.num_held_tokens - census.num_pinned_tokens
        and live_entries <= (census.num_floor_blocks - pinned) * size * rows
        and all(map(operator.le, census.movable, census.counts))
        and (compactor != "none" or census.num_packed_blocks == held)
        and (compactor != "none" or census.num_moved_entries == 0)
        and (compactor != "evacuate" or sum(census.movable) == census.num_compactable_blocks)
        and (compactor != "evacuate" or moves * rows == census.num_moved_entries)
    )


def merge(censuses: Iterable[Census]) -> Census:
    """Return the sum of censuses of one pool: the census of all their sequences together.

    Raises
    ------
    ValueError
        For no censuses at all, for different pools, or for tables of different numbers of rows.

    Examples
    --------
    >>> merge(take_census(mask, 2) for mask in ([1, 0, 0, 0], [1, 1])).counts
    (1, 1, 1)
    """
    hint = "write such as merge([a, b])"
    parts = _checks.as_items("censuses", censuses, "censuses to be added", hint)
    if not parts:
        raise ValueError(
            "censuses must hold at least one census; got none; write Census.empty(pool)."
        )
    for part in parts:
        require_census(part)
    rows = _rows_of_all(parts)
    counts, movable, summed = (
        map(sum, zip(*map(part_of, parts), strict=True))
        for part_of in (_counts_of, _movable_of, _summed_of)
    )
    return _from_sums(parts[0].pool, rows, counts, movable, summed)


_SUMMED: Final = tuple(
    field.name
    for field in attrs.fields(Census)
    if field.name not in ("pool", "rows_per_table", "counts", "movable")
)
_counts_of: Final = operator.attrgetter("counts")
_movable_of: Final = operator.attrgetter("movable")
_summed_of: Final = operator.attrgetter(*_SUMMED)


def _from_sums(
    pool: BlockPool,
    rows: int,
    counts: Iterable[int],
    movable: Iterable[int],
    summed: Iterable[int],
) -> Census:
    return Census(
        pool=pool,
        rows_per_table=rows,
        counts=tuple(counts),
        movable=tuple(movable),
        **dict(zip(_SUMMED, summed)),  # noqa: B905  # strict would take a tenth of a sum's time
    )


def _rows_of_all(parts: Sequence[Census]) -> int:
    """Return the rows per table of censuses that can be added, all of one pool."""
    pool, rows = parts[0].pool, parts[0].rows_per_table
    for part in parts:
        if part.pool is not pool and part.pool != pool:
            raise ValueError(
                f"censuses must be of one pool to be added; got {_difference(pool, part.pool)}; "
                "take both under the same pool."
            )
        if part.rows_per_table != rows:
            if part.rows_per_table and rows:
                raise ValueError(
                    "censuses must have tables of one number of rows to be added; got "
                    f"{rows} and {part.rows_per_table} rows per table; report them side by side "
                    "instead."
                )
            rows = rows or part.rows_per_table
    return rows


def _difference(a: BlockPool, b: BlockPool) -> str:
    fields = [field.name for field in attrs.fields(BlockPool)]
    differing = [name for name in fields if getattr(a, name) != getattr(b, name)]
    return " and ".join(
        "BlockPool(" + ", ".join(f"{name}={getattr(pool, name)!r}" for name in differing) + ")"
        for pool in (a, b)
    )


def take_census(
    keep: ArrayLike,
    pool: PoolLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
    pinned: ArrayLike = 0,
) -> Census:
    """Count what a keep-mask leaves in the blocks of a pool, in one pass over the tokens.

    Parameters
    ----------
    keep
        Boolean array, or integers that are all 0 and 1; True where a token's KV stays.
    pool
        A BlockPool, or a block size.
    axes
        One letter for each axis of `keep`: ``t`` the token axis, ``l`` layer, ``h`` kv head, ``b``
        sequence, or any other. Not needed for one axis, nor where the pool shares nothing and the
        last axis is tokens.
    lengths
        Tokens of each sequence: one axis for each outer letter (neither shared nor ``t``) in the
        order of the mask, size 1 to repeat; a flat array where there is one outer letter, or for
        letter ``b``. By default the full axis.
    offset
        Slots of a table's first block that precede token 0 and belong to nothing here, from 0 to
        the block size - 1; shaped like `lengths`.
    pinned
        Leading tokens of each sequence whose blocks something else holds as well, such as a prefix
        cache; these blocks are neither freed nor moved. Shaped like `lengths`.

    Raises
    ------
    TypeError, ValueError
        For what is no keep-mask, axes that do not fit, or a True beyond a length.

    Examples
    --------
    Two kv heads that share their blocks: a slot is live if either keeps it.

    >>> take_census([[1, 0, 0, 0], [0, 1, 0, 0]], 2, axes="ht").counts
    (1, 0, 1)
    """
    pool = as_pool(pool)
    layout = _layout.lay_out(keep, pool, axes=axes, lengths=lengths, offset=offset, pinned=pinned)
    return _count(layout, pool)


def take_census_packed(
    bits: ArrayLike,
    num_tokens: int,
    pool: PoolLike,
    *,
    bitorder: Literal["big", "little"] = "big",
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> Census:
    """Count a keep-mask of packed bits, eight tokens a byte, without unpacking it.

    Parameters
    ----------
    bits
        uint8 array of `numpy.packbits` along the last axis, which is the token axis.
    num_tokens
        Tokens of that axis; bits beyond them must be 0.
    bitorder
        ``"big"``: the first token is the highest bit of its byte, as `numpy.packbits` does.
    pool, axes, lengths, offset
        As in `take_census`; `axes` ends in ``t``.

    Raises
    ------
    TypeError, ValueError
        As `take_census`; and for what is no such array of bits.

    Examples
    --------
    >>> keep = np.array([1, 1, 0, 0, 0, 0, 0, 0, 1, 0], bool)
    >>> take_census_packed(np.packbits(keep), 10, 4) == take_census(keep, 4)
    True
    """
    pool = as_pool(pool)
    layout = _layout.lay_out_packed(
        bits, num_tokens, pool, bitorder=bitorder, axes=axes, lengths=lengths, offset=offset
    )
    return _count(layout, pool)


def take_census_of_rows(
    read: Callable[[int], NDArray[np.uint8]],
    shape: tuple[int, ...],
    axes: str,
    pool: BlockPool,
    *,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> Census:
    """Count a mask that arrives as packed rows: ``read(n)`` returns the bits of the next n."""
    tally, rows = tally_rows(read, shape, axes, pool, lengths=lengths, offset=offset)
    return Census(pool=pool, **tally.fields(rows))


def take_censuses(
    keep: ArrayLike,
    pool: PoolLike,
    *,
    by: str,
    axes: str,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
    pinned: ArrayLike = 0,
) -> dict[tuple[int, ...], Census]:
    """Take a census for each index of the axes named in `by`, such as one for each layer.

    Parameters are those of `take_census`. The letters of `by` must not share blocks.

    Examples
    --------
    >>> pool = BlockPool(2, shared_axes="h")
    >>> censuses = take_censuses([[[1, 0, 0, 0]], [[0, 0, 0, 0]]], pool, by="l", axes="lht")
    >>> {index: census.num_freed_blocks for index, census in censuses.items()}
    {(0,): 1, (1,): 2}
    """
    pool = as_pool(pool)
    layout = _layout.lay_out(keep, pool, axes=axes, lengths=lengths, offset=offset, pinned=pinned)
    outer = [letter for letter in axes if letter != "t" and letter not in pool.shared_axes]
    if not isinstance(by, str):
        raise TypeError(
            f"by must be letters of axes; got {_checks.shown(by)}; write such as 'l', or call "
            "take_census for one census of all."
        )
    for letter in by:
        if letter not in outer or by.count(letter) > 1:
            raise ValueError(
                f"by must name axes of keep that are neither tokens nor shared, each once, from "
                f"{''.join(outer)!r}; got {by!r}; leave out {letter!r}, or share other axes."
            )
    each = (*_layout.of_each_table(layout), np.broadcast_to(layout.pinned, layout.num_tables))
    lengths_of, offsets_of, pinned_of = (numbers.reshape(layout.outer) for numbers in each)
    mask = _checks.as_keep(keep)
    where = [axes.index(letter) for letter in by]
    where_outer = [outer.index(letter) for letter in by]
    return {
        index: take_census(
            mask[_at(where, index, mask.ndim)],
            pool,
            axes="".join(letter for letter in axes if letter not in by),
            lengths=lengths_of[_at(where_outer, index, len(outer))],
            offset=offsets_of[_at(where_outer, index, len(outer))],
            pinned=pinned_of[_at(where_outer, index, len(outer))],
        )
        for index in itertools.product(*(range(mask.shape[axis]) for axis in where))
    }


def _at(axes: list[int], index: tuple[int, ...], ndim: int) -> tuple[int | slice, ...]:
    at: list[int | slice] = [slice(None)] * ndim
    for axis, i in zip(axes, index, strict=True):
        at[axis] = i
    return tuple(at)


def as_census(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None,
    *,
    axes: str | None,
    lengths: ArrayLike | None,
    offset: ArrayLike,
    pinned: ArrayLike = 0,
) -> Census:
    """Return the census that came, or take it of the keep-mask that came."""
    if not isinstance(keep_or_census, Census):
        if pool is None:
            _checks.as_keep(keep_or_census)
            raise TypeError(
                "pool must be given with a keep-mask; got none; write the block size, such as 16, "
                "or a BlockPool."
            )
        return take_census(
            keep_or_census, pool, axes=axes, lengths=lengths, offset=offset, pinned=pinned
        )
    if pool is not None and as_pool(pool) != keep_or_census.pool:
        raise ValueError(
            "pool must be the one that the census was taken under; got "
            f"{_difference(keep_or_census.pool, as_pool(pool))}; leave it out."
        )
    given = axes is not None or lengths is not None
    if given or not (_checks.is_zero(offset) and _checks.is_zero(pinned)):
        raise ValueError(
            "axes, lengths, offset and pinned must go with a keep-mask; got them with a Census, "
            "which has them counted in; leave them out."
        )
    return keep_or_census


def require_census(census: object) -> None:
    """Refuse anything but a census, such as the keep-mask that other metrics take as well."""
    if not isinstance(census, Census):
        raise TypeError(
            f"census must be a Census; got {type(census).__name__}; write take_census(keep, pool)."
        )


def usable_blocks(census: Census) -> int:
    """Return the usable blocks of a census's sized pool, which must hold its masks."""
    usable = census.pool.num_usable_blocks
    if usable is None:
        raise ValueError(
            "pool must have a size; got a census of a pool without total_blocks; write "
            "pool.replace(total_blocks=...) before the census is taken."
        )
    if usable < census.num_blocks:
        raise ValueError(
            f"total_blocks must be at least the {census.num_blocks} blocks that the masks hold "
            f"and the {census.pool.reserved_blocks} reserved; got {census.pool.total_blocks}; "
            "write the size of the pool in which these masks fitted."
        )
    return usable


def _count(layout: _layout.Layout, pool: BlockPool) -> Census:
    if is_one_table(layout, pool):
        return Census(pool=pool, **count_table(layout, pool))
    tally = Tally(pool)
    if isinstance(layout.pinned, int):
        tally.add(layout)
    else:
        refuse_live_beyond(layout, pool)
        tally.add_pinned(layout, layout.pinned)
    return Census(pool=pool, **tally.fields(layout.rows))
