"""From a mask to every column of reclaim.csv: censuses of each layout of its blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence.settings import AXES, COMPACTORS, TABLES
from benchmarks.evidence.tables import Context, ReclaimRow
from kvreclaim import (
    BlockPool,
    Census,
    compaction_cost,
    fragmentation,
    logical_saving,
    memory_waste,
    moved_tokens_per_block,
    packed_reclaim,
    physical_reclaim,
    take_census,
)


def reclaim_rows(
    context: Context,
    policy: str,
    ratio: float,
    keep: NDArray[np.bool_],
    block_sizes: Iterable[int],
) -> list[ReclaimRow]:
    """Return the rows of a mask (layer, kv head, token): each way to share blocks, each size."""
    sizes = tuple(block_sizes)
    return [_row(context, policy, ratio, keep, tables, size) for tables in TABLES for size in sizes]


def _row(  # noqa: PLR0917  # what names a row, in the order of its columns
    context: Context,
    policy: str,
    ratio: float,
    keep: NDArray[np.bool_],
    tables: str,
    block_size: int,
) -> ReclaimRow:
    censuses = {
        compactor: take_census(keep, pool_of(tables, block_size, compactor), axes=AXES)
        for compactor in COMPACTORS
    }
    census = censuses[COMPACTORS[0]]  # what is not about compaction is alike in all
    each = [physical_reclaim(one) for one in of_each_table(keep, tables, block_size)]
    copies: dict[str, Any] = {  # a column's name each
        column: value
        for compactor, one in censuses.items()
        for column, value in (
            (f"moved_per_block_{compactor}", moved_tokens_per_block(one)),
            (f"decode_steps_{compactor}", compaction_cost(one).decode_steps),
        )
    }
    return ReclaimRow(
        **context._asdict(),
        policy=policy,
        ratio=ratio,
        tables=tables,
        block_size=block_size,
        blocks=census.num_blocks,
        logical_saving=logical_saving(census),
        dead_in_all_rows=(census.num_tokens - census.num_live_tokens) / census.num_tokens,
        physical_reclaim=physical_reclaim(census),
        packed_reclaim=packed_reclaim(census),
        fragmentation=fragmentation(census),
        memory_waste=memory_waste(census),
        reclaim_min=min(each),
        reclaim_max=max(each),
        **copies,
    )


def pool_of(tables: str, block_size: int, compactor: str = "none") -> BlockPool:
    """Return a pool that takes back any empty block, with one of the ways to share its blocks."""
    return BlockPool(block_size, shared_axes=TABLES[tables], compactor=compactor)


def of_each_table(keep: NDArray[np.bool_], tables: str, block_size: int) -> Iterator[Census]:
    """Yield the census of each block table: `take_censuses`, in a tenth of its time."""
    pool = pool_of(tables, block_size)
    outer = [letter for letter in AXES[:-1] if letter not in pool.shared_axes]
    for index in np.ndindex(keep.shape[: len(outer)]):
        yield take_census(keep[index], pool, axes=AXES[len(outer) :])
