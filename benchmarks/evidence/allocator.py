"""vLLM's own allocator, filled with contexts whose evicted blocks go back: what it then gives.

The contexts of a model are the running requests, and fill the pool exactly. Of each, the blocks in
which no row of their table keeps a token are given back; then new requests ask for blocks until
they are refused. Which blocks are dead is found here by looking at every one, not by a census, so
that the two can contradict each other.

For one table of all layers and heads, `vllm_manager_counts` asks vLLM's whole KVCacheManager, as
its scheduler does: it keeps back the null block, and the watermark, which is 0 unless it is set.
vLLM frees no block of a running request under full attention by itself; here they go the way of
those that have left a sliding window.

Only the layers of the masks are in the pool: those with full attention.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence.counts import pool_of
from benchmarks.evidence.masks import Keeps, Mask
from benchmarks.evidence.settings import AXES, REQUEST_TOKENS, STATES, TABLES
from benchmarks.evidence.tables import AdmissionRow
from kvreclaim import admission_count, merge, take_census

if TYPE_CHECKING:
    from allocators.loaders import Vllm


class Counts(NamedTuple):
    """What is free in a pool, and how many new requests get their blocks of it."""

    pool_blocks: int
    free_blocks: int
    admitted: int


AllCounts: TypeAlias = dict[tuple[str, float, str], Counts]  # by policy, ratio and state


def real_vllm() -> Vllm | None:
    """Return vLLM's allocator from its wheel, or None where there is none.

    The loader is the one of the tests, and says where it looks for the wheel.
    """
    folder = str(Path(__file__).parents[2] / "tests")
    sys.path.insert(0, folder)
    try:
        from allocators import loaders
    finally:
        sys.path.remove(folder)
    wheel = loaders.wheel_of(loaders.VLLM)
    return None if wheel is None else loaders.vllm_from_wheel(wheel)


def admission_rows(
    model: str, keeps: Keeps, block_sizes: Iterable[int], vllm: Vllm
) -> list[AdmissionRow]:
    """Return the rows of a model: ours beside those of vLLM's block pool."""
    rows = []
    for size in block_sizes:
        for tables in TABLES:
            real = vllm_counts(vllm, keeps, tables, size)
            for (policy, ratio, state), ours in our_counts(keeps, tables, size).items():
                theirs = real[policy, ratio, state]
                rows.append(
                    AdmissionRow(
                        model=model,
                        policy=policy,
                        ratio=ratio,
                        tables=tables,
                        block_size=size,
                        state=state,
                        pool_blocks=ours.pool_blocks,
                        free_blocks=ours.free_blocks,
                        free_blocks_vllm=theirs.free_blocks,
                        admission_count=ours.admitted,
                        admitted_vllm=theirs.admitted,
                    )
                )
    return rows


def our_counts(keeps: Keeps, tables: str, block_size: int) -> AllCounts:
    """Return what censuses of the masks say."""
    pool = pool_of(tables, block_size)
    found = {}
    for (policy, ratio), some in keeps.items():
        need = _num_tables(some[0], tables) * pool.num_blocks_for(REQUEST_TOKENS)
        for state in STATES:
            census = merge(take_census(_lying(keep, state), pool, axes=AXES) for keep in some)
            found[policy, ratio, state] = Counts(
                census.num_blocks,
                census.num_freed_blocks,
                admission_count(census, blocks_per_request=need),
            )
    return found


def vllm_counts(vllm: Vllm, keeps: Keeps, tables: str, block_size: int) -> AllCounts:
    """Return what vLLM's block pool says."""
    contexts = next(iter(keeps.values()))
    need = _num_tables(contexts[0], tables) * -(-REQUEST_TOKENS // block_size)
    of_each = [_num_tables(keep, tables) * -(-keep.shape[-1] // block_size) for keep in contexts]
    pool = vllm.BlockPool(1 + sum(of_each), False, block_size)  # noqa: FBT003  # no prefix caching
    held = np.empty(sum(of_each), object)
    held[:] = [block for blocks in of_each for block in pool.get_new_blocks(blocks)]
    found = {}
    for (policy, ratio), some in keeps.items():
        for state in STATES:
            dead = np.concatenate(
                [_dead(_lying(keep, state), tables, block_size).ravel() for keep in some]
            )
            pool.free_blocks(held[dead].tolist())
            free = pool.get_num_free_blocks()
            admitted = _admitted(pool.get_new_blocks, need)
            found[policy, ratio, state] = Counts(len(held), free, admitted)
            # All that is left is taken too: every block is held again, and the pool full.
            pool.get_new_blocks(pool.get_num_free_blocks())
    return found


def vllm_manager_counts(vllm: Vllm, keeps: Keeps, block_size: int) -> AllCounts:
    """Return what vLLM's KVCacheManager says: one table, admission by its `allocate_slots`."""
    return {
        (policy, ratio, state): _ask_manager(
            vllm, [_lying(keep, state) for keep in some], block_size
        )
        for (policy, ratio), some in keeps.items()
        for state in STATES
    }


def _ask_manager(vllm: Vllm, contexts: Sequence[Mask], block_size: int) -> Counts:
    manager, blocks = _manager(vllm, [keep.shape[-1] for keep in contexts], block_size)
    (group,) = manager.coordinator.single_type_managers

    def allocate(name: str, tokens: int) -> None:
        request = vllm.request(
            name, [0] * tokens, tokens + 1
        )  # no block to hash: nothing is cached
        if manager.allocate_slots(request, tokens, full_sequence_must_fit=True) is None:
            raise ValueError(f"vLLM must give {tokens} tokens their slots; it refuses {name}.")

    for number, keep in enumerate(contexts):
        name = f"context {number}"
        allocate(name, keep.shape[-1])
        for block in np.flatnonzero(_dead(keep, "all", block_size)).tolist():
            group._remove_blocks_in_range(name, block, block + 1)  # noqa: SLF001  # its own way
    free = manager.block_pool.get_num_free_blocks()
    numbers = itertools.count()
    admitted = _admitted(lambda tokens: allocate(f"new {next(numbers)}", tokens), REQUEST_TOKENS)
    return Counts(blocks, free, admitted)


def _manager(vllm: Vllm, contexts: Iterable[int], block_size: int) -> tuple[Any, int]:
    """Return vLLM's manager of one group of full-attention layers, and the contexts' blocks."""
    blocks = sum(-(-tokens // block_size) for tokens in contexts)
    spec = vllm.FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=8, dtype=vllm.dtype
    )
    config = vllm.KVCacheConfig(
        num_blocks=1 + blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[vllm.KVCacheGroupSpec(["layers"], spec)],
    )
    manager = vllm.KVCacheManager(
        config,
        max_model_len=1 << 20,
        scheduler_block_size=block_size,
        hash_block_size=block_size,
        enable_caching=False,
    )
    return manager, blocks


def _admitted(ask: Callable[[int], object], need: int) -> int:
    """Return how many requests of one size get what they ask for, until one is refused."""
    admitted = 0
    with contextlib.suppress(ValueError):
        while True:
            ask(need)
            admitted += 1
    return admitted


def _num_tables(keep: Mask, tables: str) -> int:
    """Return how many block tables a context has."""
    return math.prod(keep.shape[: 2 - len(TABLES[tables])])


def _lying(keep: Mask, state: str) -> Mask:
    """Return which slots are live: where their tokens were written, or packed row by row."""
    if state == "in place":
        return keep
    packed: Mask = np.arange(keep.shape[-1]) < keep.sum(axis=-1, keepdims=True)
    return packed


def _dead(keep: Mask, tables: str, block_size: int) -> NDArray[np.bool_]:
    """Return which blocks of each table hold no live slot."""
    rows = tuple(AXES.index(letter) for letter in TABLES[tables])
    live: Mask = np.logical_or.reduce(keep, axis=rows).reshape(-1, keep.shape[-1])
    padded = np.pad(live, ((0, 0), (0, -live.shape[1] % block_size)))
    dead: NDArray[np.bool_] = ~np.logical_or.reduce(
        padded.reshape(len(live), -1, block_size), axis=-1
    )
    return dead
