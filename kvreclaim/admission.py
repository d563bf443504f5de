"""How many requests fit into the blocks that came free."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from numpy.typing import ArrayLike

from kvreclaim import _checks
from kvreclaim.census import Census, as_census, usable_blocks
from kvreclaim.pool import BlockPool, PoolLike


def admission_count(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    blocks_per_request: int,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> int:
    """Return how many requests of one size the free blocks admit.

    ``floor((free - watermark_blocks) / blocks_per_request)``, at least 0. Free are the blocks that
    the eviction frees in place or, where the pool has a size, all usable blocks that are not held.

    Parameters
    ----------
    keep_or_census, pool, axes, lengths, offset
        As in `logical_saving`.
    blocks_per_request
        Blocks that each request needs, at least 1.

    Raises
    ------
    ValueError
        Where a sized pool has fewer usable blocks than the masks hold: they never fitted.

    Examples
    --------
    >>> admission_count([1, 1, 0, 0, 0, 0, 0, 0], 2, blocks_per_request=2)
    1
    """
    need = _checks.as_count("blocks_per_request", blocks_per_request, minimum=1)
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    free = census.num_freed_blocks
    if census.pool.total_blocks is not None:
        free = usable_blocks(census) - census.num_held_blocks
    return max(0, (free - census.pool.watermark_blocks) // need)


def block_usage(pool: BlockPool, num_free_blocks: int) -> float:
    """Return how full a pool is that has so many free blocks: used over usable blocks.

    From 0 to 1; nan where nothing is usable.

    Raises
    ------
    ValueError
        Where the pool has no size, or more is free than usable.

    Examples
    --------
    >>> block_usage(BlockPool(16, total_blocks=1001, reserved_blocks=1), 1000)
    0.0
    """
    free = _checks.as_count("num_free_blocks", num_free_blocks)
    usable = pool.num_usable_blocks
    if usable is None:
        raise ValueError(
            "pool must have a size; got one without total_blocks; write "
            "pool.replace(total_blocks=...)."
        )
    if free > usable:
        raise ValueError(
            f"num_free_blocks must be at most the {usable} usable blocks (total_blocks "
            f"{pool.total_blocks} - reserved_blocks {pool.reserved_blocks}); got {free}; take both "
            "from one moment of one pool."
        )
    return (usable - free) / usable if usable else math.nan


def admit(
    free_blocks: int,
    demands: Iterable[int],
    *,
    watermark_blocks: int = 0,
    order: Literal["fifo", "skip", "smallest"] = "fifo",
    exempt_first: bool = False,
) -> tuple[int, ...]:
    """Return which requests are admitted, by index, ascending.

    A request is admitted while it leaves the watermark free.

    Parameters
    ----------
    free_blocks
        Blocks to give away.
    demands
        Blocks that each request needs, in the order of arrival, each at least 1.
    watermark_blocks
        Blocks that must be free after each admission.
    order
        ``"fifo"`` stops at the first request that does not fit (vLLM); ``"skip"`` goes on to the
        next; ``"smallest"`` takes the smallest first, which admits the most.
    exempt_first
        True: the first request admitted need not leave the watermark (vLLM v1, when idle).

    Examples
    --------
    >>> admit(10, [4, 8, 2])
    (0,)
    >>> admit(10, [4, 8, 2], order="skip")
    (0, 2)
    """
    free = _checks.as_count("free_blocks", free_blocks)
    reserve = _checks.as_count("watermark_blocks", watermark_blocks)
    needs = [_checks.as_count("demands", demand, minimum=1) for demand in demands]
    rule = _checks.as_choice("order", order, ("fifo", "skip", "smallest"))
    exempt = _checks.as_flag("exempt_first", exempt_first)
    queue = (
        sorted(range(len(needs)), key=needs.__getitem__)
        if rule == "smallest"
        else range(len(needs))
    )
    admitted: list[int] = []
    for request in queue:
        keep_free = 0 if exempt and not admitted else reserve
        if free - needs[request] >= keep_free:
            free -= needs[request]
            admitted.append(request)
        elif rule != "skip":
            break
    return tuple(sorted(admitted))
