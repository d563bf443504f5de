"""How many requests fit into the blocks that came free, and which ones real servers would admit.

A server's rule takes its free blocks and its `Request` queue, and returns which requests it admits
in one step, by index, ascending. It looks at blocks alone: no limit on requests or tokens a step,
no chunked prefill, no prefix in a cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import attrs
from numpy.typing import ArrayLike

from kvreclaim import _checks
from kvreclaim.census import Census, as_census, usable_blocks
from kvreclaim.pool import BlockPool, PoolLike, as_pool


def admission_count(
    keep_or_census: ArrayLike | Census | Mapping[Any, Census],
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
        As in `logical_saving`. A mapping holds the censuses of separate pools, such as one for each
        layer: each request needs its blocks in every one of them, so the fullest decides. Groups
        of layers that share one pool, as a hybrid model's in vLLM, are not for a mapping: `merge`
        their censuses, and let `blocks_per_request` be the blocks of all groups together.
    blocks_per_request
        Blocks that each request needs, at least 1.

    Raises
    ------
    ValueError
        Where a sized pool has fewer usable blocks than the masks hold: they never fitted; and for a
        mapping of no pools.

    Examples
    --------
    >>> admission_count([1, 1, 0, 0, 0, 0, 0, 0], 2, blocks_per_request=2)
    1
    >>> from kvreclaim import take_census
    >>> layers = {0: take_census([1, 1, 0, 0, 0, 0], 2), 1: take_census([1] * 6, 2)}
    >>> admission_count(layers, blocks_per_request=1)
    0

    As groups that share one pool, where a request takes a block for each of the two:

    >>> from kvreclaim import merge
    >>> admission_count(merge(layers.values()), blocks_per_request=2)
    1
    """
    need = _checks.as_count("blocks_per_request", blocks_per_request, minimum=1)
    if isinstance(keep_or_census, Mapping):
        if not keep_or_census:
            raise ValueError(
                "keep_or_census must hold at least one pool; got an empty mapping; write such as "
                "take_censuses(keep, pool, by='l', axes=axes)."
            )
        return min(
            admission_count(
                part, pool, blocks_per_request=need, axes=axes, lengths=lengths, offset=offset
            )
            for part in keep_or_census.values()
        )
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    free = census.num_freed_blocks
    if census.pool.total_blocks is not None:
        free = usable_blocks(census) - census.num_held_blocks
    return max(0, (free - census.pool.watermark_blocks) // need)


def block_usage(pool: PoolLike, num_free_blocks: int) -> float:
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
    pool = as_pool(pool)
    free = _free_of("num_free_blocks", num_free_blocks, pool)
    usable = pool.num_usable_blocks
    if usable is None:
        raise ValueError(
            "pool must have a size; got one without total_blocks; write "
            "pool.replace(total_blocks=...)."
        )
    return (usable - free) / usable if usable else math.nan


def _free_of(name: str, value: object, pool: BlockPool) -> int:
    """Return the free blocks of a pool, at most those that are usable where it has a size."""
    free, usable = _checks.as_count(name, value), pool.num_usable_blocks
    if usable is not None and free > usable:
        raise ValueError(
            f"{name} must be at most the {usable} usable blocks (total_blocks "
            f"{pool.total_blocks} - reserved_blocks {pool.reserved_blocks}); got {free}; take both "
            "from one moment of one pool."
        )
    return free


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
    needs = _checks.as_demands(demands)
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


def _prompt(value: object) -> int:
    return _checks.as_count("prompt", value, minimum=1)


def _max_new(value: object) -> int:
    return _checks.as_count("max_new", value)


def _num_tables(value: object) -> int:
    return _checks.as_count("num_tables", value, minimum=1)


@attrs.frozen
class Request:
    """What a request asks of an allocator.

    Parameters
    ----------
    prompt
        Tokens of its prompt, at least 1; of a running request, all that it has written so far.
    max_new
        Tokens that it may still generate.
    num_tables
        Block tables that it needs in one pool, of that many tokens each: 1 where one table serves
        all layers and heads, layers where each has its own.

    Examples
    --------
    >>> Request(100, max_new=28)
    Request(prompt=100, max_new=28, num_tables=1)
    """

    prompt: int = attrs.field(converter=_prompt)
    max_new: int = attrs.field(default=0, converter=_max_new)
    num_tables: int = attrs.field(default=1, converter=_num_tables)


def growth_blocks(running: Iterable[Request], pool: PoolLike) -> int:
    """Return the blocks that running requests need to write one more token each.

    One for each table whose last block is full. Growth may use the watermark, which is there for
    it: a server compares these blocks with all that are free, and preempts where they are not.

    Examples
    --------
    >>> growth_blocks([Request(128), Request(100)], 16)
    1
    """
    pool = as_pool(pool)
    return sum(
        request.num_tables
        for request in _requests("running", running)
        if request.prompt % pool.block_size == 0
    )


def admit_vllm_v0(free_blocks: int, requests: Iterable[Request], pool: PoolLike) -> tuple[int, ...]:
    """Return which requests vLLM v0 admits: the blocks of the prompt, above the watermark.

    The queue stops at the first request that has to wait. One that would not leave the watermark
    even in an empty pool is refused for good, and the queue goes on. Prompts come before the growth
    of running requests (`growth_blocks`), for which the watermark is left.
    Source: vLLM 0.6, ``can_allocate`` in ``core/block_manager_v1.py``, ``_schedule_prefills`` in
    ``core/scheduler.py``; watermark 0.01 of all blocks.

    Parameters
    ----------
    free_blocks
        Blocks to give away.
    requests
        The queue, in the order of arrival.
    pool
        With its ``watermark_blocks``, as in ``runtimes.vllm_v0(total_blocks=...)``. Without a size
        no request is refused for good.

    Examples
    --------
    >>> pool = BlockPool(16, total_blocks=512, watermark_blocks=5)
    >>> len(admit_vllm_v0(256, [Request(128)] * 40, pool))
    31
    """
    pool = as_pool(pool)
    free, usable = _free_of("free_blocks", free_blocks, pool), pool.num_usable_blocks
    needs = [_blocks(request, request.prompt, pool) for request in _requests("requests", requests)]
    ever = [
        request
        for request, need in enumerate(needs)
        if usable is None or usable - need >= pool.watermark_blocks
    ]
    admitted = admit(free, [needs[i] for i in ever], watermark_blocks=pool.watermark_blocks)
    return tuple(ever[i] for i in admitted)


def admit_vllm_v1(
    free_blocks: int,
    requests: Iterable[Request],
    pool: PoolLike,
    *,
    running: Iterable[Request] = (),
    inflight_blocks: int = 0,
) -> tuple[int, ...]:
    """Return which requests vLLM v1 admits: the blocks of the whole prompt, above the watermark.

    Running requests grow first, and may use the watermark; where their blocks are not there, one is
    preempted and nothing is admitted. The first request is exempt from the watermark where nothing
    runs. The queue stops at the first miss. Output tokens are not reserved; count speculative
    lookahead tokens into the prompt.
    Source: vLLM 0.33, ``allocate_slots`` in ``v1/core/kv_cache_manager.py``, ``schedule`` in
    ``v1/core/sched/scheduler.py``; ``watermark`` 0, ``scheduler_reserve_full_isl`` on.

    Parameters
    ----------
    free_blocks
        Blocks to give away, without the null block.
    requests
        The queue, in the order of arrival.
    pool
        With its ``watermark_blocks``.
    running
        Requests that are running.
    inflight_blocks
        Blocks that prefills in flight still need: left free by requests whose KV a connector loads
        (its ``reserved_blocks``), 0 for all others.

    Examples
    --------
    >>> pool = BlockPool(16, watermark_blocks=3)
    >>> admit_vllm_v1(10, [Request(128), Request(16)], pool)
    (0,)
    >>> admit_vllm_v1(10, [Request(128), Request(16)], pool, running=[Request(100)])
    ()
    """
    pool = as_pool(pool)
    active = _requests("running", running)
    needs = [_blocks(request, request.prompt, pool) for request in _requests("requests", requests)]
    left = (
        _free_of("free_blocks", free_blocks, pool)
        - growth_blocks(active, pool)
        - _checks.as_count("inflight_blocks", inflight_blocks)
    )
    return admit(
        max(left, 0), needs, watermark_blocks=pool.watermark_blocks, exempt_first=not active
    )


_MOST_NEW: Final = 4096


def admit_sglang(
    free_blocks: int,
    requests: Iterable[Request],
    pool: PoolLike,
    *,
    running: Iterable[Request] = (),
    new_token_ratio: float = 0.7,
) -> tuple[int, ...]:
    """Return which requests SGLang admits: prompt, output up to 4,096 tokens, and a page.

    ``prompt + min(max_new, 4096) + page_size < available - reserved``, in tokens, where running
    requests reserve ``new_token_ratio * min(max_new, 4096)`` each, and admitted ones their
    prompt rounded up to pages, output and page. The queue stops at the first miss.
    Source: SGLang 0.5.23, ``add_one_req`` in ``srt/managers/schedule_policy.py``, ``reserve`` in
    ``srt/mem_cache/prefill_budget.py``; ``SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`` 4096.

    Parameters
    ----------
    free_blocks
        Pages that are free, or cached and evictable.
    requests
        The queue, in the order of arrival.
    pool
        Its block size is the page size, by default 1.
    running
        Requests that are running, with the output that is still to come.
    new_token_ratio
        Share of their output that running requests are expected to need: 0.7 at first, falling to
        0.098 within 600 decode steps; 1 for requests that ignore the end of sequence.

    Examples
    --------
    >>> admit_sglang(256, [Request(128, max_new=126)] * 2, 1)
    (0,)
    >>> admit_sglang(256, [Request(128, max_new=127)] * 2, 1)
    ()
    """
    pool = as_pool(pool)
    page = pool.block_size
    ratio = _checks.as_positive("new_token_ratio", new_token_ratio)
    available = _free_of("free_blocks", free_blocks, pool) * page
    reserved = sum(
        request.num_tables * min(request.max_new, _MOST_NEW) * ratio
        for request in _requests("running", running)
    )
    admitted: list[int] = []
    for i, request in enumerate(_requests("requests", requests)):
        behind = min(request.max_new, _MOST_NEW) + page
        if request.num_tables * (request.prompt + behind) >= available - reserved:
            break
        reserved += _blocks(request, request.prompt, pool) * page + request.num_tables * behind
        admitted.append(i)
    return tuple(admitted)


def admit_tensorrt_llm(
    free_blocks: int | Mapping[Any, int],
    requests: Iterable[Request],
    pool: PoolLike | Mapping[Any, PoolLike],
    *,
    running: Iterable[Request] = (),
    windows: Mapping[Any, int] | None = None,
) -> tuple[int, ...]:
    """Return which requests TensorRT-LLM admits: their blocks to completion, in every pool.

    ``ceil((prompt + max_new) / block_size)``, where running requests have set aside what they still
    need to complete. The queue stops at the first miss.
    Source: TensorRT-LLM, ``GuaranteedNoEvictScheduler`` in ``batch_manager/capacityScheduler.cpp``,
    ``getRemainingBlocksToCompletion`` in ``batch_manager/kvCacheManager.cpp``; the default
    ``GUARANTEED_NO_EVICT``, a beam width of 1.

    Parameters
    ----------
    free_blocks
        Blocks to give away; a mapping from the names of several pools.
    requests
        The queue, in the order of arrival.
    pool
        One for all, or a mapping with the same names.
    running
        Requests that are running, with the output that is still to come.
    windows
        Tokens of the attention window of pools that have one: a table holds no more.

    Examples
    --------
    >>> len(admit_tensorrt_llm(256, [Request(128, max_new=128)] * 40, 16))
    16
    >>> admit_tensorrt_llm({"full": 8, "sliding": 4}, [Request(100, 28)] * 2, 16,
    ...                    windows={"sliding": 32})
    (0,)
    """
    free_of = free_blocks if isinstance(free_blocks, Mapping) else {None: free_blocks}
    pools = _pools(pool, free_of)
    left = {name: _free_of("free_blocks", free, pools[name]) for name, free in free_of.items()}
    most = _windows(windows, free_of)

    def blocks(request: Request, tokens: int) -> dict[Any, int]:
        return {name: _blocks(request, tokens, pools[name], most[name]) for name in left}

    for request in _requests("running", running):
        held, completed = (
            blocks(request, tokens) for tokens in (request.prompt, request.prompt + request.max_new)
        )
        left = {name: left[name] + held[name] - completed[name] for name in left}
    admitted: list[int] = []
    for i, request in enumerate(_requests("requests", requests)):
        needs = blocks(request, request.prompt + request.max_new)
        if any(needs[name] > left[name] for name in left):
            break
        left = {name: left[name] - needs[name] for name in left}
        admitted.append(i)
    return tuple(admitted)


def admit_sectors(
    free_sectors: int,
    requests: Iterable[Request | Mapping[Any, int]],
    blocks_per_sector: Mapping[Any, int],
    *,
    free_blocks: Mapping[Any, int] | None = None,
    pool: PoolLike | Mapping[Any, PoolLike] = 256,
    windows: Mapping[Any, int] | None = None,
) -> tuple[int, ...]:
    """Return which requests transformers' continuous batching can store: whole sectors, in order.

    Groups of layers take whole sectors from one pool, and cut them into blocks of their own sizes.
    A request takes what blocks its groups have free, then sectors. The queue stops at the first
    miss. The scheduler's margin (of 15 %, below which one new prompt a step is let in) is not
    looked at.
    Source: transformers 5.24, ``count_storable_requests`` in
    ``generation/continuous_batching/cache.py``.

    Parameters
    ----------
    free_sectors
        Sectors to give away.
    requests
        The queue, in the order of arrival: the blocks that each needs in each group, or `Request`,
        whose prompt is stored in every group.
    blocks_per_sector
        Blocks that each group cuts a sector into.
    free_blocks
        Blocks that groups have free in sectors of their own; none by default.
    pool
        For `Request`: the block size of all groups, 256 unless told, or of each.
    windows
        For `Request`: tokens of the window of groups that have one.

    Examples
    --------
    >>> admit_sectors(10, [{"full": 7, "sliding": 2}] * 5, {"full": 3, "sliding": 1})
    (0, 1)
    """
    sectors = _checks.as_count("free_sectors", free_sectors)
    cut = _numbers("blocks_per_sector", blocks_per_sector, blocks_per_sector, minimum=1)
    pools, most = _pools(pool, cut), _windows(windows, cut)
    some = {} if free_blocks is None else free_blocks
    spare = dict.fromkeys(cut, 0) | _numbers("free_blocks", some, cut)
    rule, hint = "requests, or the blocks of each", "write a list, such as [{'full': 7}]"
    count = 0
    for request in _checks.as_items("requests", requests, rule, hint):
        if isinstance(request, Request):
            needs = {
                name: _blocks(request, request.prompt, pools[name], most[name]) for name in cut
            }
        else:
            needs = _numbers("requests", request, cut, every=True)
        for name, blocks in needs.items():
            new = max(0, -((spare[name] - blocks) // cut[name]))
            if new > sectors:
                return tuple(range(count))
            sectors -= new
            spare[name] += new * cut[name] - blocks
        count += 1
    return tuple(range(count))


def _requests(name: str, values: Iterable[Request]) -> list[Request]:
    rule, hint = "Requests", "write a list of them, such as [Request(prompt=512, max_new=128)]"
    requests = _checks.as_items(name, values, rule, hint)
    for request in requests:
        if not isinstance(request, Request):
            raise TypeError(
                f"{name} must be Requests; got {_checks.shown(request)}; write such as "
                "Request(prompt=512, max_new=128)."
            )
    return requests


def _blocks(request: Request, tokens: int, pool: BlockPool, window: int | None = None) -> int:
    """Return the blocks of a request's tables while they hold so many tokens each."""
    return request.num_tables * pool.num_blocks_for(
        tokens if window is None else min(tokens, window)
    )


def _pools(
    pool: PoolLike | Mapping[Any, PoolLike], names: Mapping[Any, int]
) -> dict[Any, BlockPool]:
    """Return the pool of each name."""
    pool_of = pool if isinstance(pool, Mapping) else dict.fromkeys(names, pool)
    _refuse_other_names("pool", pool_of, names, every=True)
    return {name: as_pool(pool_of[name]) for name in names}


def _windows(windows: Mapping[Any, int] | None, names: Mapping[Any, int]) -> dict[Any, int | None]:
    """Return the most tokens that a table of each pool holds; None: all that there are."""
    some = _numbers("windows", {} if windows is None else windows, names, minimum=1)
    return {name: some.get(name) for name in names}


def _numbers(
    argument: str,
    values: Mapping[Any, int],
    names: Mapping[Any, int],
    *,
    minimum: int = 0,
    every: bool = False,
) -> dict[Any, int]:
    """Return a number for each of some names, or for every one."""
    _refuse_other_names(argument, values, names, every=every)
    return {
        name: _checks.as_count(f"{argument}[{name!r}]", value, minimum=minimum)
        for name, value in values.items()
    }


def _refuse_other_names(
    argument: str, values: Mapping[Any, object], names: Mapping[Any, int], *, every: bool
) -> None:
    if not isinstance(values, Mapping):
        raise TypeError(
            f"{argument} must be a mapping from names; got {_checks.shown(values)}; write such as "
            "{'full': 3, 'sliding': 1}."
        )
    if not names or set(values) - set(names) or (every and set(names) - set(values)):
        listed, got = (", ".join(map(repr, some)) or "none" for some in (names, values))
        raise ValueError(
            f"{argument} must name the pools or groups that there are ({listed}), at least one; "
            f"got {got}; write the same names."
        )
