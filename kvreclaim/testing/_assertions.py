"""Assertions on keep-masks: what a policy's author promises of the memory that comes back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks
from kvreclaim._version import __version__
from kvreclaim.census import Census, take_census
from kvreclaim.metrics import (
    logical_saving,
    physical_reclaim,
    reclaim_efficiency,
    savings_breakdown,
)
from kvreclaim.pool import BlockPool, PoolLike, as_pool
from kvreclaim.signature import Signature
from kvreclaim.testing._pictures import Table, tables_of, tokens_of_rows


def assert_physical_reclaim(
    keep: ArrayLike,
    pool: PoolLike,
    *,
    at_least: float,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> None:
    """Check that at least this share of the blocks comes back in place.

    ``free blocks / blocks >= at_least``, compared as the floats that `physical_reclaim` and Python
    make of the two fractions, so that 3 of 10 blocks are 0.3. Where there are no blocks the share
    is nan, and an undefined figure misses its threshold: an AssertionError.

    Parameters
    ----------
    keep
        Keep-mask, True where a token's KV stays.
    pool
        A BlockPool or a block size.
    at_least
        Share of the blocks, from 0 to 1.
    axes, lengths, offset
        As in `take_census`.

    Raises
    ------
    AssertionError
        Where less comes back. The map is of the first table of which less comes back.
    TypeError, ValueError
        As `take_census`; for a share that is none.

    Examples
    --------
    >>> assert_physical_reclaim([1, 1, 0, 0, 0, 0, 0, 1], 2, at_least=0.5)
    >>> assert_physical_reclaim([1, 0, 1, 0, 1, 0, 1, 0], 2, at_least=0.5)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    AssertionError: physical_reclaim must be at least 0.5;
    got 0.0: 0 of 4 blocks come back in place
    under B:2|share:hl|frees:any|tail:closed|move:evacuate|...
    evicted entries: 4; back in place: 0, stranded: 4, kept by another row: 0
    <BLANKLINE>
    block tables: 1, rows of each: 1, tokens: 8, blocks of 2: 4
    comes back in place: 0 (0.000), packed: 2 (0.500)
    <BLANKLINE>
    |#x|#x|#x|#x|
    ...
    """
    __tracebackhide__ = True
    least = _checks.as_share("at_least", at_least)
    pool = as_pool(pool)
    census = take_census(keep, pool, axes=axes, lengths=lengths, offset=offset)
    measured = physical_reclaim(census)
    if measured >= least:
        return
    got = (
        "nan, since there are no blocks"
        if math.isnan(measured)
        else f"{measured}: {census.num_freed_blocks} of {census.num_blocks} blocks come back in "
        "place"
    )
    _fail(
        f"physical_reclaim must be at least {least};\ngot {got}",
        census,
        [*tables_of(keep, pool, axes, lengths, offset)],
        physical_reclaim,
        least,
    )


def assert_reclaim_efficiency(
    keep: ArrayLike,
    pool: PoolLike,
    *,
    at_least: float,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> None:
    """Check that at least this much of the logical saving comes back in place.

    ``physical_reclaim / logical_saving >= at_least``, compared as floats. Where nothing is evicted
    the ratio is nan, and an undefined figure misses its threshold: an AssertionError, so that a
    policy that evicts nothing does not pass unseen.

    Parameters
    ----------
    keep, pool, axes, lengths, offset
        As in `assert_physical_reclaim`.
    at_least
        A ratio of at least 0; above 1 only a partly written block that comes back can lift it.

    Raises
    ------
    AssertionError
        Where less comes back. The map is of the first table of which less does, or else, where
        tables are alike, of the one of the lowest efficiency.
    TypeError, ValueError
        As `take_census`; for a ratio that is none.

    Examples
    --------
    >>> assert_reclaim_efficiency([1, 0, 0, 0, 1, 0, 0, 0], 2, at_least=0.6)
    """
    __tracebackhide__ = True
    least = float(_checks.as_exact("at_least", at_least, maximum=None))
    pool = as_pool(pool)
    census = take_census(keep, pool, axes=axes, lengths=lengths, offset=offset)
    measured = reclaim_efficiency(census)
    if measured >= least:
        return
    got = (
        "nan, since nothing is evicted"
        if math.isnan(measured)
        else f"{measured}: {physical_reclaim(census):.3f} of the blocks come back in place, of "
        f"{logical_saving(census):.3f} evicted"
    )
    _fail(
        f"reclaim_efficiency must be at least {least};\ngot {got}",
        census,
        [*tables_of(keep, pool, axes, lengths, offset)],
        reclaim_efficiency,
        least,
    )


def assert_block_coherent(
    keep: ArrayLike,
    pool: PoolLike,
    *,
    at_most: int = 0,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> None:
    """Check that blocks are kept or evicted whole: in no block do both kinds of entries lie.

    A block is mixed where a row keeps one of its tokens and a row, the same or another, evicts one.
    It is a law of the mask and of how it is cut into blocks: of the pool, `block_size` and
    `shared_axes` count, not which blocks it takes back. Of no blocks it holds.

    Parameters
    ----------
    keep, pool, axes, lengths, offset
        As in `assert_physical_reclaim`.
    at_most
        Mixed blocks that each table may have: 1 where a budget is no multiple of the block size.

    Raises
    ------
    AssertionError
        Where a table has more. The map is of the first such table.
    TypeError, ValueError
        As `take_census`.

    Examples
    --------
    >>> assert_block_coherent([1, 1, 0, 0, 1, 1], 2)
    >>> assert_block_coherent([1, 1, 1, 0, 0, 0], 2, at_most=1)
    """
    __tracebackhide__ = True
    most = _checks.as_count("at_most", at_most)
    pool = as_pool(pool)
    census = take_census(keep, pool, axes=axes, lengths=lengths, offset=offset)
    tables = [*tables_of(keep, pool, axes, lengths, offset)]
    mixed = [_num_mixed_blocks(table) for table in tables]
    wrong = [number > most for number in mixed]
    if any(wrong):
        first = wrong.index(True)
        where = f" of table {tables[first].name}" if tables[first].name else ""
        raise AssertionError(
            _text(
                f"keep must have at most {most} mixed blocks in each table;\ngot {mixed[first]}"
                f"{where}: in {sum(mixed)} of {census.num_blocks} blocks lie kept and evicted "
                "entries",
                census,
                tables[first],
                len(tables),
            )
        )


def assert_num_kept(
    keep: ArrayLike,
    num_kept: int,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    mean_over: str = "",
) -> None:
    """Check that exactly the budget stays: of each row, or of rows together on average.

    ``min(num_kept, length)`` tokens of each row. Of no rows it holds.

    Parameters
    ----------
    keep
        Keep-mask, True where a token's KV stays.
    num_kept
        Tokens of each row that stay.
    axes
        One letter for each axis, ``t`` for tokens; without it the last axis is tokens.
    lengths
        Tokens of each row, or of each group of rows: one axis for each letter but ``t`` and those
        of `mean_over`, size 1 to repeat; or flat, for letter ``b``.
    mean_over
        Letters whose rows share a budget, such as ``"h"`` for Ada-KV: there the mean of their rows
        is what is checked. Needs `axes`.

    Raises
    ------
    AssertionError
        Where more or fewer stay. The first such row is shown, or the rows that share its budget.
    TypeError, ValueError
        For what is no keep-mask, axes that do not fit, or a True beyond a length.

    Examples
    --------
    >>> assert_num_kept([[1, 0, 0, 1], [0, 1, 1, 0]], 2)
    >>> assert_num_kept([[1, 1, 1, 0], [0, 0, 0, 1]], 2, axes="ht", mean_over="h")
    >>> assert_num_kept([[1, 0, 0, 1], [1, 1, 1, 0]], 2, axes="ht")
    Traceback (most recent call last):
        ...
    AssertionError: keep must have exactly 2 tokens of each row;
    got 3 in the row of h=1; 1 of 2 rows differ
    # kept, . evicted
    0 ###.
    """
    __tracebackhide__ = True
    wanted = _checks.as_count("num_kept", num_kept)
    pool = _rows(mean_over, axes)
    take_census(keep, pool, axes=axes, lengths=lengths)
    tables = [*tables_of(keep, pool, axes, lengths, 0)]
    limits = [min(wanted, table.length) for table in tables]
    wrong = [
        table.keep.sum() != len(table.keep) * limit
        for table, limit in zip(tables, limits, strict=True)
    ]
    if any(wrong):
        first = wrong.index(True)
        table = tables[first]
        mean = f" on average over {mean_over!r}" if mean_over else ""
        where = f" of {table.name}" if table.name else ""
        kind = "rows" if len(table.keep) == 1 else "groups of rows"
        shares = f"the {len(table.keep)} rows" if len(table.keep) > 1 else "the row"
        raise AssertionError(
            f"keep must have exactly {limits[first]} tokens of each row{mean};\n"
            f"got {table.keep.sum()} in {shares}{where}; {sum(wrong)} of {len(tables)} {kind} "
            "differ\n# kept, . evicted\n"
            + tokens_of_rows(np.where(table.keep, "#", ".")[:, : table.length])
        )


def assert_no_revival(
    before: ArrayLike,
    after: ArrayLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
) -> None:
    """Check that no token that was evicted is kept later: its KV is gone.

    `after` may have more tokens than `before`: those written since then, which it may keep.

    Parameters
    ----------
    before, after
        Keep-masks of the same rows, at two times.
    axes
        One letter for each axis of both, ``t`` for tokens; without it the last axis is tokens.
    lengths
        Tokens of each row of `before`: those behind are written later. One axis for each letter but
        ``t``, size 1 to repeat; or flat, for letter ``b``. By default the full axis.

    Raises
    ------
    AssertionError
        Where tokens come back to life. The first row with one is shown.
    TypeError, ValueError
        For what is no keep-mask, masks of different rows, or fewer tokens in `after`.

    Examples
    --------
    >>> assert_no_revival([1, 1, 0, 1], [1, 0, 0, 1, 1])
    >>> assert_no_revival([1, 1, 0, 1], [1, 0, 1, 1])
    Traceback (most recent call last):
        ...
    AssertionError: after must keep only what before keeps;
    got 1 token that comes back to life, the first in the only row, at token 2
    # kept, . evicted, ! evicted before and kept after
    0 #.!#
    """
    __tracebackhide__ = True
    first, then = _checks.as_keep(before, "before"), _checks.as_keep(after, "after")
    pool = _rows("", axes)
    letters = _checks.as_axes(axes, first.shape, "", name="before")
    token = letters.index("t")
    rest = [size for axis, size in enumerate(first.shape) if axis != token]
    if (
        first.ndim != then.ndim
        or rest != [size for axis, size in enumerate(then.shape) if axis != token]
        or first.shape[token] > then.shape[token]
    ):
        raise ValueError(
            f"after must have the rows of before, and no fewer tokens; got shape {then.shape} "
            f"after {first.shape}; write both masks over the same tokens, new ones at the end."
        )
    take_census(first, pool, axes=axes, lengths=lengths)
    num_revived, shown = 0, ""
    for old, new in zip(
        tables_of(first, pool, axes, lengths, 0),
        tables_of(then, pool, axes, None, 0),
        strict=True,
    ):
        written = old.keep[0, : old.length]
        revived = np.zeros(new.keep.shape[1], np.bool_)
        revived[: old.length] = new.keep[0, : old.length] & ~written
        if revived.any() and not shown:
            at = int(revived.argmax())
            row = np.where(revived, "!", np.where(new.keep[0], "#", "."))
            name = f"the row of {new.name}" if new.name else "the only row"
            shown = (
                f"first in {name}, at token {at}\n"
                "# kept, . evicted, ! evicted before and kept after\n"
                f"{tokens_of_rows(row[None], at)}"
            )
        num_revived += int(revived.sum())
    if shown:
        come = "token that comes" if num_revived == 1 else "tokens that come"
        raise AssertionError(
            f"after must keep only what before keeps;\ngot {num_revived} {come} back to life, the "
            f"{shown}"
        )


def _rows(mean_over: object, axes: object) -> BlockPool:
    """Return a pool whose tables are the rows, or the groups of rows that share a budget."""
    letters = _checks.as_shared_axes("mean_over", mean_over)
    if letters and not (isinstance(axes, str) and set(letters) <= set(axes)):
        raise ValueError(
            f"mean_over must name letters of axes; got {mean_over!r} for axes {axes!r}; write such "
            "as axes='lht', mean_over='h'."
        )
    return BlockPool(1, shared_axes=letters)


def _num_mixed_blocks(table: Table) -> int:
    """Return how many blocks of a table hold both kept and evicted entries."""
    size = table.pool.block_size
    slots = -(-(table.offset + table.length) // size) * size
    live, written = np.zeros((2, slots), np.int64)
    tokens = slice(table.offset, table.offset + table.length)
    live[tokens] = table.keep[:, : table.length].sum(axis=0)
    written[tokens] = len(table.keep)
    kept: NDArray[np.int64] = live.reshape(-1, size).sum(axis=1)
    return int(np.count_nonzero((kept > 0) & (kept < written.reshape(-1, size).sum(axis=1))))


def _fail(
    sentence: str,
    census: Census,
    tables: list[Table],
    metric: Callable[[Census], float],
    least: float,
) -> NoReturn:
    """Raise the error of a figure that is too low, with the first table of which it is."""
    __tracebackhide__ = True
    figures = [
        metric(
            take_census(
                table.alone,
                table.pool,
                axes=table.axes,
                lengths=table.length,
                offset=table.offset,
            )
        )
        for table in tables
    ]
    # A ratio of sums may be below where no table's is: then the lowest is shown. nan is no ratio.
    numbers = [math.inf if math.isnan(figure) else figure for figure in figures]
    below = [at for at, number in enumerate(numbers) if number < least]
    lowest = [at for at, number in enumerate(numbers) if number == min(numbers)]
    first = next(iter(below + lowest), None)
    shown = None if first is None else tables[first]
    raise AssertionError(_text(sentence, census, shown, len(tables)))


def _text(sentence: str, census: Census, table: Table | None, num_tables: int) -> str:
    """Return the whole message."""
    broken = savings_breakdown(census)
    signature = Signature(census.pool, census.rows_per_table, __version__)
    which = f"table {table.name} of {num_tables}:" if table and num_tables > 1 else ""
    parts = [
        sentence,
        f"under {signature}",
        (
            f"evicted entries: {census.num_evicted_entries}; "
            f"back in place: {broken.num_reclaimed}, stranded: {broken.num_stranded}, "
            f"kept by another row: {broken.num_unshared}"
        ),
        "",
        *([which] if which else []),
        table.block_map() if table else "no tables",
    ]
    return "\n".join(parts)
