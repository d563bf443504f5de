"""What the real allocators are asked: scenarios from seeds, and drivers that take the answers.

A scenario is drawn before anything is allocated, so that it is the same where no server is at hand.
An answer is of lists and numbers, as JSON has them. Standard library only; nothing of ours.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from allocators.loaders import Vllm

Answer = dict[str, Any]

BLOCK_SIZES: Final = (1, 2, 3, 4, 8, 16, 16, 32)


def draw_mask(rng: random.Random, length: int) -> list[bool]:
    """Return which tokens stay: scattered, in runs, sinks and a window, all or none of them."""
    kind = rng.randrange(7)
    if kind == 0:
        share = rng.random()
        return [rng.random() < share for _ in range(length)]
    if kind == 1:
        return [rng.random() < 0.03 for _ in range(length)]
    if kind in (2, 3):
        keep = [kind == 2] * length
        for _ in range(1 + rng.randrange(3)):
            start, stop = sorted((rng.randrange(length + 1), rng.randrange(length + 1)))
            keep[start:stop] = [kind == 3] * (stop - start)
        return keep
    if kind == 4:
        sink, window = rng.randrange(length + 1), rng.randrange(length + 1)
        return [token < sink or token >= length - window for token in range(length)]
    return [kind == 5] * length


def blocks_for(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


def dead_blocks(keep: Sequence[bool], block_size: int) -> list[int]:
    """Return which blocks of a table hold no kept token."""
    return [
        number
        for number in range(blocks_for(len(keep), block_size))
        if not any(keep[number * block_size : (number + 1) * block_size])
    ]


# --- vLLM's block pool, each request with blocks of its own ---


class Alone(NamedTuple):
    """Requests that keep a mask each; then as many new ones as fit."""

    block_size: int
    total_blocks: int  # with the null block
    keeps: list[list[bool]]
    demands: list[int]
    need: int


def alone(seed: int) -> Alone:
    rng = random.Random(f"alone {seed}")  # noqa: S311  # a scenario is no secret
    size = rng.choice(BLOCK_SIZES)
    keeps = [draw_mask(rng, rng.randrange(8 * size)) for _ in range(rng.randrange(8))]
    used = sum(blocks_for(len(keep), size) for keep in keeps)
    demands = [1 + rng.randrange(9) for _ in range(12)]
    return Alone(size, 1 + used + rng.randrange(6), keeps, demands, 1 + rng.randrange(8))


def ask_alone(vllm: Vllm, scenario: Alone) -> Answer:
    """Free what is dead, but for a partly written last block: the next token goes there."""
    pool = vllm.BlockPool(scenario.total_blocks, False, scenario.block_size)
    size = scenario.block_size
    held = [pool.get_new_blocks(blocks_for(len(keep), size)) for keep in scenario.keeps]
    for keep, blocks in zip(scenario.keeps, held, strict=True):
        dead = dead_blocks(keep, size)
        if len(keep) % size and dead and dead[-1] == len(blocks) - 1:
            dead.pop()
        pool.free_blocks([blocks[number] for number in dead])
    free, usage = pool.get_num_free_blocks(), pool.get_usage()
    admitted = _take(pool, scenario.demands)
    return {
        "free": free,
        "usage": usage,
        "admitted": admitted,
        "equal": len(_take(pool, [scenario.need] * scenario.total_blocks)),
    }


def _take(pool: Any, demands: list[int]) -> list[int]:  # noqa: ANN401  # vLLM's
    """Give blocks until the pool refuses, and take them back: which requests got theirs."""
    taken: list[Any] = []
    admitted = []
    for request, need in enumerate(demands):
        try:
            taken += pool.get_new_blocks(need)
        except ValueError:
            break
        admitted.append(request)
    pool.free_blocks(taken)
    return admitted


# --- vLLM's block pool, with shared prefixes, and blocks that are used again ---


class Arrival(NamedTuple):
    """A request that begins with the first blocks of an earlier one of its wave."""

    keep: list[bool]
    parent: int  # of the same wave, or itself for none
    shared: int  # blocks
    stays: bool  # through the next wave


class Shared(NamedTuple):
    block_size: int
    total_blocks: int
    waves: list[list[Arrival]]


def shared(seed: int) -> Shared:
    rng = random.Random(f"shared {seed}")  # noqa: S311
    size = rng.choice(BLOCK_SIZES)
    waves = []
    for _ in range(3):
        wave: list[Arrival] = []
        for number in range(rng.randrange(6)):
            keep = draw_mask(rng, rng.randrange(6 * size))
            parent = rng.randrange(number + 1)
            most = 0
            if parent < number:
                most = min(len(keep), len(wave[parent].keep)) // size
            wave.append(Arrival(keep, parent, rng.randrange(most + 1), rng.random() < 0.4))
        waves.append(wave)
    # As many blocks as the fullest wave and all that may stay from earlier ones.
    new = [
        sum(blocks_for(len(request.keep), size) - request.shared for request in wave)
        for wave in waves
    ]
    return Shared(size, 1 + max(new[0], new[0] + new[1], new[1] + new[2]), waves)


def ask_shared(vllm: Vllm, scenario: Shared) -> Answer:
    """Each request drops its dead blocks; one that does not stay finishes before the wave after."""
    size = scenario.block_size
    pool = vllm.BlockPool(scenario.total_blocks, False, size)
    staying: list[list[Any]] = []
    waves = []
    for wave in scenario.waves:
        tables: list[list[Any]] = []
        for request in wave:
            prefix = tables[request.parent][: request.shared] if request.shared else []
            pool.touch(prefix)
            needed = blocks_for(len(request.keep), size) - len(prefix)
            tables.append([*prefix, *pool.get_new_blocks(needed)])
        ids = [[block.block_id for block in table] for table in tables]
        before = pool.get_num_free_blocks()
        left: list[list[Any]] = []
        for request, table in zip(wave, tables, strict=True):
            dead = dead_blocks(request.keep, size)
            pool.free_blocks([table[number] for number in dead])
            left.append([block for i, block in enumerate(table) if i not in dead])
        free = sorted(block.block_id for block in pool.free_block_queue.get_all_free_blocks())
        refs = {block.block_id: block.ref_cnt for table in tables for block in table}
        assert pool.get_num_free_blocks() == len(free)
        waves.append(
            {"tables": ids, "before": before, "free": free, "refs": sorted(map(list, refs.items()))}
        )
        for blocks in staying:  # they stayed for one wave
            pool.free_blocks(blocks)
        staying = []
        for request, blocks in zip(wave, left, strict=True):
            if request.stays:
                staying.append(blocks)
            else:
                pool.free_blocks(blocks)
    return {"waves": waves}


# --- vLLM's whole KV-cache manager ---


class Group(NamedTuple):
    """Layers that share a block table: full attention, or a rule by which old tokens drop out."""

    kind: str  # "full", "window", "chunk", "prompt" (the prompt and a window of what is generated)
    size: int  # of the window or chunk; 0 for full attention
    block_size: int


class Run(NamedTuple):
    prompt: int
    steps: list[int]  # tokens computed in each


class Groups(NamedTuple):
    """Requests that run one after another, and stay, under a hybrid model's groups of layers."""

    groups: list[Group]
    total_blocks: int
    runs: list[Run]


DOCUMENTED: Final = Groups(  # 7 + 2 + 2 blocks, in vLLM's docs/design/hybrid_kv_cache_manager.md
    [Group("full", 0, 16), Group("window", 32, 16), Group("window", 32, 16)], 101, [Run(112, [112])]
)
BLOCK_SIZES_OF_ITS_OWN: Final = Groups(  # https://github.com/vllm-project/vllm/issues/51163
    [Group("full", 0, 256), Group("window", 128, 64), Group("full", 0, 8), Group("window", 8, 4)],
    1001,
    [Run(1000, [1000]), Run(300, [256, 44, 1, 1, 1])],
)


def groups(seed: int) -> Groups:
    if seed < 2:
        return (DOCUMENTED, BLOCK_SIZES_OF_ITS_OWN)[seed]
    rng = random.Random(f"groups {seed}")  # noqa: S311
    size = rng.choice(BLOCK_SIZES)
    some = []
    for _ in range(1 + rng.randrange(4)):
        kind = rng.choice(("full", "window", "window", "chunk", "prompt"))
        some.append(
            Group(
                kind,
                0 if kind == "full" else 1 + rng.randrange(5 * size),
                size * rng.choice((1, 1, 1, 2, 4)),
            )
        )
    runs = []
    for _ in range(1 + rng.randrange(4)):
        prompt = left = 1 + rng.randrange(10 * size)
        steps = []
        while left:
            steps.append(min(left, 1 + rng.randrange(6 * size)))
            left -= steps[-1]
        steps += [1 + (rng.randrange(4) == 0) * rng.randrange(4) for _ in range(rng.randrange(12))]
        runs.append(Run(prompt, steps))
    # In one of four pools the last request may not fit.
    total = sum(
        blocks_for(sum(run.steps), group.block_size) for run in runs for group in some
    ) // rng.choice((1, 1, 1, 2))
    return Groups(some, 1 + total, runs)


def _manager(
    vllm: Vllm,
    some: Sequence[Group],
    total_blocks: int,
    *,
    caching: bool = False,
    watermark: float = 0.0,
) -> Any:  # noqa: ANN401  # vLLM's
    shape = {"num_kv_heads": 1, "head_size": 8, "dtype": vllm.dtype}
    make: dict[str, Callable[[Group], Any]] = {
        "full": lambda g: vllm.FullAttentionSpec(block_size=g.block_size, **shape),
        "window": lambda g: vllm.SlidingWindowSpec(
            block_size=g.block_size, sliding_window=g.size, **shape
        ),
        "chunk": lambda g: vllm.ChunkedLocalAttentionSpec(
            block_size=g.block_size, attention_chunk_size=g.size, **shape
        ),
        "prompt": lambda g: vllm.RSWASpec(block_size=g.block_size, rswa_window=g.size, **shape),
    }
    config = vllm.KVCacheConfig(
        num_blocks=total_blocks,
        kv_cache_tensors=[],
        kv_cache_groups=[
            vllm.KVCacheGroupSpec([f"layer {number}"], make[group.kind](group))
            for number, group in enumerate(some)
        ],
    )
    largest = max(group.block_size for group in some)  # each divides it
    return vllm.KVCacheManager(
        config,
        max_model_len=100_000,
        scheduler_block_size=largest,
        hash_block_size=min(group.block_size for group in some),
        enable_caching=caching,
        watermark=watermark,
    )


def ask_groups(vllm: Vllm, scenario: Groups) -> Answer:
    """What is free in each step, and which blocks of each group are held between steps.

    A manager frees what has left a window just before it allocates for the step after.
    """
    manager = _manager(vllm, scenario.groups, scenario.total_blocks)
    runs = []
    for number, run in enumerate(scenario.runs):
        request = vllm.request(str(number), [0] * run.prompt, 1)
        during: list[int | None] = []
        after: list[list[int]] = []
        for tokens in run.steps:
            if manager.allocate_slots(request, tokens) is None:
                during.append(None)
                break
            during.append(manager.block_pool.get_num_free_blocks())
            request.num_computed_tokens += tokens
            manager.remove_skipped_blocks(
                request.request_id, request.num_computed_tokens, run.prompt
            )
            held = [sum(map(bool, ids)) for ids in manager.get_block_ids(request.request_id)]
            after.append([manager.block_pool.get_num_free_blocks(), *held])
        runs.append({"during": during, "after": after})
        if None in during:
            break
    return {"runs": runs}


class Cached(NamedTuple):
    """Prompts of a few texts that begin alike, with prefix caching; then some requests finish."""

    block_size: int
    total_blocks: int
    prompts: list[list[int]]
    finish: list[int]


def cached(seed: int) -> Cached:
    rng = random.Random(f"cached {seed}")  # noqa: S311
    size = rng.choice((1, 2, 4, 16))
    texts = [[rng.randrange(100) for _ in range(8 * size)] for _ in range(2)]
    prompts = []
    for _ in range(1 + rng.randrange(7)):
        prompt = rng.choice(texts)[: rng.randrange(8 * size)]
        prompts.append([*prompt, *(100 + rng.randrange(100) for _ in range(1 + rng.randrange(9)))])
    finish = [number for number in range(len(prompts)) if rng.random() < 0.4]
    blocks = sum(blocks_for(len(prompt), size) for prompt in prompts)
    return Cached(size, 1 + blocks + rng.randrange(3), prompts, finish)


def ask_cached(vllm: Vllm, scenario: Cached) -> Answer:
    """The tables that requests get, what is free, and what is free after some have finished."""
    size = scenario.block_size
    manager = _manager(vllm, [Group("full", 0, size)], scenario.total_blocks, caching=True)
    requests = []
    for number, prompt in enumerate(scenario.prompts):
        request = vllm.request(str(number), prompt, size)
        blocks, hit, _ = manager.get_computed_blocks(request)
        assert manager.allocate_slots(request, len(prompt) - hit, hit, blocks) is not None
        request.num_computed_tokens = len(prompt)
        requests.append(request)
    tables = [manager.get_block_ids(request.request_id)[0] for request in requests]
    free = [manager.block_pool.get_num_free_blocks()]
    for number in scenario.finish:
        manager.free(requests[number])
        free.append(manager.block_pool.get_num_free_blocks())
    return {"tables": tables, "free": free}


class Queue(NamedTuple):
    """Prompts that arrive at a pool where others run."""

    groups: list[Group]
    total_blocks: int
    watermark: float
    running: list[int]
    waiting: list[int]


def queue(seed: int) -> Queue:
    rng = random.Random(f"queue {seed}")  # noqa: S311
    size = rng.choice(BLOCK_SIZES)
    some = [Group("full", 0, size)]
    some += [
        Group("window", 1 + rng.randrange(4 * size), size) for _ in range(rng.choice((0, 0, 2)))
    ]
    running = [1 + rng.randrange(6 * size) for _ in range(rng.randrange(4))]
    waiting = [1 + rng.randrange(8 * size) for _ in range(8)]
    used = sum(blocks_for(tokens + 1, size) for tokens in running) * len(some)
    total = 1 + used + rng.randrange(40)
    return Queue(some, total, rng.choice((0.0, 0.01, 0.05, 0.2)), running, waiting)


def ask_queue(vllm: Vllm, scenario: Queue) -> Answer:
    """Running requests write a token each; then which of the waiting ones get their slots."""
    manager = _manager(vllm, scenario.groups, scenario.total_blocks, watermark=scenario.watermark)
    running = [
        vllm.request(f"running {i}", [0] * tokens, 1) for i, tokens in enumerate(scenario.running)
    ]
    for request in running:
        tokens = request.num_tokens
        assert manager.allocate_slots(request, tokens, has_scheduled_reqs=False) is not None
        request.num_computed_tokens = tokens
        manager.remove_skipped_blocks(request.request_id, tokens)
    free = manager.block_pool.get_num_free_blocks()
    for request in running:
        assert manager.allocate_slots(request, 1, has_scheduled_reqs=False) is not None
    grown = manager.block_pool.get_num_free_blocks()
    admitted: list[int] = []
    for number, tokens in enumerate(scenario.waiting):
        request = vllm.request(f"waiting {number}", [0] * tokens, 1)
        slots = manager.allocate_slots(
            request,
            tokens,
            full_sequence_must_fit=True,
            has_scheduled_reqs=bool(running or admitted),
        )
        if slots is None:
            break
        admitted.append(number)
    return {
        "watermark": manager.watermark_blocks,
        "free": free,
        "grown": grown,
        "admitted": admitted,
    }


def ask_double_free(vllm: Vllm) -> Answer:
    """What happens where a block is given back twice."""
    pool = vllm.BlockPool(5, False, 16)
    blocks = pool.get_new_blocks(3)
    free = [pool.get_num_free_blocks()]
    for _ in range(2):
        pool.free_blocks(blocks[:1])
        free.append(pool.get_num_free_blocks())
    try:
        pool.get_new_blocks(2)
    except AssertionError as error:
        return {"free": free, "then": type(error).__name__}
    return {"free": free, "then": None}


# --- SGLang's paged allocator ---


class Paged(NamedTuple):
    page_size: int
    num_pages: int  # without the reserved one
    keeps: list[list[bool]]
    prefills: list[int]  # tokens of each sequence that are written first, the others after that
    demands: list[int]  # pages


def paged(seed: int) -> Paged:
    rng = random.Random(f"paged {seed}")  # noqa: S311
    size = rng.choice((1, 2, 3, 4, 8, 16, 64))
    keeps = [draw_mask(rng, 1 + rng.randrange(6 * size)) for _ in range(rng.randrange(6))]
    prefills = [1 + rng.randrange(len(keep)) for keep in keeps]
    used = sum(blocks_for(len(keep), size) for keep in keeps)
    demands = [1 + rng.randrange(6) for _ in range(8)]
    return Paged(size, used + rng.randrange(8), keeps, prefills, demands)


def ask_paged(allocator_class: Any, scenario: Paged) -> Answer:  # noqa: ANN401  # SGLang's
    """Free whole dead pages; and, in a pool of its own, every dead token, which frees more."""
    size, keeps = scenario.page_size, scenario.keeps
    allocator, slots = _written(allocator_class, scenario)
    tables = [(own[::size] // size).tolist() for own in slots]
    before = _free_pages(allocator)
    for keep, own in zip(keeps, slots, strict=True):
        for number in dead_blocks(keep, size):
            allocator.free(own[number * size : (number + 1) * size])
    free = _free_pages(allocator)
    assert allocator.available_size() == len(free) * size
    admitted = []
    for request, need in enumerate(scenario.demands):
        if allocator.alloc(need * size) is None:
            break
        admitted.append(request)

    reckless, slots = _written(allocator_class, scenario)
    for keep, own in zip(keeps, slots, strict=True):
        reckless.free(own[[token for token, kept in enumerate(keep) if not kept]])
    gone = {*_free_pages(reckless)}
    lost = [
        sum(kept and slot // size in gone for kept, slot in zip(keep, own.tolist(), strict=True))
        for keep, own in zip(keeps, slots, strict=True)
    ]
    return {
        "tables": tables,
        "before": len(before),
        "free": free,
        "admitted": admitted,
        "reckless": len(gone),
        "lost": lost,
    }


def _written(allocator_class: Any, scenario: Paged) -> tuple[Any, list[Any]]:  # noqa: ANN401
    """Return an allocator and the slots of each sequence, written in one go or in two."""
    torch = importlib.import_module("torch")
    allocator = allocator_class(
        size=scenario.num_pages * scenario.page_size,
        page_size=scenario.page_size,
        dtype=torch.float16,
        device="cpu",
        kvcache=None,
        need_sort=False,
    )
    slots = []
    for keep, prefill in zip(scenario.keeps, scenario.prefills, strict=True):
        own = torch.zeros(0, dtype=torch.int64)
        for end in sorted({prefill, len(keep)}):
            before, after = torch.tensor([len(own)]), torch.tensor([end])
            last = own[-1:] if len(own) else torch.tensor([-1])
            new = allocator.alloc_extend(before, before, after, after, last, end - len(own))
            own = torch.cat((own, new))
        slots.append(own)
    return allocator, slots


def _free_pages(allocator: Any) -> list[int]:  # noqa: ANN401
    return sorted(allocator.get_all_free_pages().tolist())
