"""The admission rules of real servers, each against a literal twin of the server's own loop."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import cases

from kvreclaim import BlockPool, admission_count, block_usage, take_census, take_censuses
from kvreclaim.admission import (
    Request,
    admit_sectors,
    admit_sglang,
    admit_tensorrt_llm,
    admit_vllm_v0,
    admit_vllm_v1,
    growth_blocks,
)

REQUESTS = st.builds(
    Request,
    prompt=st.integers(1, 40),
    max_new=st.integers(0, 40),
    num_tables=st.sampled_from([1, 1, 1, 2, 3]),
)
QUEUES = st.lists(REQUESTS, max_size=8)
RUNNING = st.lists(REQUESTS, max_size=3)
BLOCK_SIZES = st.sampled_from([1, 2, 4, 7, 16])


def ceil_blocks(tokens: int, block_size: int) -> int:
    """Write token after token; a new block where the last one is full."""
    blocks = 0
    for token in range(tokens):
        if token % block_size == 0:
            blocks += 1
    return blocks


# --- vLLM v0 ---


def vllm_v0(free: int, queue: list[Request], size: int, total: int, watermark: int) -> list[int]:
    admitted = []
    for index, request in enumerate(queue):
        required = ceil_blocks(request.prompt, size) * request.num_tables
        if total - required < watermark:
            continue  # NEVER: finished, ignored
        if free - required >= watermark:
            free -= required
            admitted.append(index)  # OK
        else:
            break  # LATER
    return admitted


@given(QUEUES, BLOCK_SIZES, st.integers(0, 40), st.integers(0, 30), st.integers(0, 6))
def test_vllm_v0(queue: list[Request], size: int, free: int, held: int, watermark: int) -> None:
    total = free + held
    pool = BlockPool(
        size, total_blocks=total + 1, reserved_blocks=1, watermark_blocks=min(watermark, total)
    )
    expected = vllm_v0(free, queue, size, total, pool.watermark_blocks)
    got = admit_vllm_v0(free, iter(queue), pool)
    assert got == tuple(expected)
    assert {type(index) for index in got} <= {int}
    unsized = pool.replace(total_blocks=None)
    waiting = vllm_v0(free, queue, size, 10**9, pool.watermark_blocks)
    assert admit_vllm_v0(free, queue, unsized) == tuple(waiting)


@pytest.mark.parametrize(
    ("total", "free", "blocks", "admitted"),
    [(512, 256, 8, 31), (512, 32, 8, 3), (100, 1, 1, 0), (1000, 18, 8, 1), (1000, 17, 8, 0)],
)
def test_vllm_v0_watermark_of_one_percent(
    total: int, free: int, blocks: int, admitted: int
) -> None:
    """``block_manager_v1.py``: ``int(0.01 * num_gpu_blocks)`` blocks stay free."""
    pool = BlockPool(16, total_blocks=total, watermark_blocks=int(0.01 * total), frees="none")
    queue = [Request(16 * blocks)] * (total // blocks)
    assert admit_vllm_v0(free, queue, pool) == tuple(range(admitted))


def test_vllm_v0_refuses_for_good_what_never_fits() -> None:
    pool = BlockPool(16, total_blocks=10, watermark_blocks=1)
    queue = [Request(16), Request(160), Request(16 * 8), Request(1)]
    assert admit_vllm_v0(10, queue, pool) == (0, 2)
    assert admit_vllm_v0(10, queue, pool.replace(total_blocks=None)) == (0,)
    assert admit_vllm_v0(5, queue, pool) == (0,)
    assert admit_vllm_v0(10, [Request(16 * 9)], pool) == (0,)
    assert admit_vllm_v0(9, [Request(16 * 9), Request(1)], pool) == ()  # has to wait


# --- vLLM v1 ---


def vllm_v1(
    free: int,
    queue: list[Request],
    size: int,
    watermark: int,
    running: list[Request],
    *,
    inflight: int,
) -> list[int]:
    for request in running:
        for _ in range(request.num_tables):
            if ceil_blocks(request.prompt + 1, size) > ceil_blocks(request.prompt, size):
                if free == 0:
                    return []  # one is preempted, and no waiting request is looked at
                free -= 1
    num_running = len(running)
    admitted = []
    for index, request in enumerate(queue):
        to_allocate = ceil_blocks(request.prompt, size) * request.num_tables
        required = to_allocate + (watermark if num_running else 0)
        if required > free:  # the full sequence must fit
            break
        if required > free - inflight:
            break
        free -= to_allocate
        num_running += 1
        admitted.append(index)
    return admitted


@example(queue=[Request(4)], size=4, free=1, watermark=1, running=[], inflight=0)
@example(queue=[Request(4)], size=4, free=2, watermark=1, running=[Request(4)], inflight=0)
@given(
    queue=QUEUES,
    size=BLOCK_SIZES,
    free=st.integers(0, 40),
    watermark=st.integers(0, 6),
    running=RUNNING,
    inflight=st.integers(0, 4),
)
def test_vllm_v1(
    queue: list[Request],
    size: int,
    free: int,
    watermark: int,
    running: list[Request],
    *,
    inflight: int,
) -> None:
    pool = BlockPool(size, watermark_blocks=watermark)
    expected = vllm_v1(free, queue, size, watermark, running, inflight=inflight)
    got = admit_vllm_v1(free, iter(queue), pool, running=iter(running), inflight_blocks=inflight)
    assert got == tuple(expected)


def test_vllm_v1_exempts_the_first_of_an_idle_server() -> None:
    pool = BlockPool(16, watermark_blocks=3)
    assert admit_vllm_v1(8, [Request(128)], pool) == (0,)
    assert admit_vllm_v1(8, [Request(1)] * 9, pool) == (0, 1, 2, 3, 4)
    assert admit_vllm_v1(8, [Request(128)], pool, running=[Request(1)]) == ()
    assert admit_vllm_v1(8, [Request(1)] * 9, pool, running=[Request(1)]) == (0, 1, 2, 3, 4)
    assert admit_vllm_v1(9, [Request(129)], 16) == (0,)
    assert admit_vllm_v1(8, [Request(129)], 16) == ()


def test_vllm_v1_leaves_prefills_in_flight_their_blocks() -> None:
    queue = [Request(16)] * 9
    assert admit_vllm_v1(4, queue, 16, inflight_blocks=3) == (0,)
    assert admit_vllm_v1(4, queue, 16, inflight_blocks=4) == ()
    assert admit_vllm_v1(4, queue, 16, inflight_blocks=5) == ()


def test_growth_may_use_the_watermark() -> None:
    pool = BlockPool(16, watermark_blocks=3)
    running = [Request(128), Request(15), Request(16, num_tables=2)]
    assert growth_blocks(running, pool) == growth_blocks(iter(running), 16) == 3
    assert growth_blocks([], pool) == 0
    assert admit_vllm_v1(3, [Request(1)], pool, running=running) == ()
    assert admit_vllm_v1(6, [Request(1)], pool, running=running) == ()
    assert admit_vllm_v1(7, [Request(1)], pool, running=running) == (0,)


@given(RUNNING, BLOCK_SIZES)
def test_growth_is_the_next_token_of_each_table(running: list[Request], size: int) -> None:
    expected = sum(
        request.num_tables
        * (ceil_blocks(request.prompt + 1, size) - ceil_blocks(request.prompt, size))
        for request in running
    )
    assert growth_blocks(running, size) == expected


# --- SGLang ---


def sglang(
    pages: int, queue: list[Request], page_size: int, running: list[Request], ratio: float
) -> list[int]:
    available = pages * page_size
    total_offset = sum(
        min(request.max_new, 4096) * ratio for request in running for _ in range(request.num_tables)
    )
    admitted = []
    for index, request in enumerate(queue):
        max_new = min(request.max_new, 4096)
        total_tokens = request.prompt + max_new + page_size
        if not total_tokens * request.num_tables < available - total_offset:
            break
        paged = ceil_blocks(request.prompt, page_size) * page_size
        total_offset += (paged + page_size + max_new) * request.num_tables
        admitted.append(index)
    return admitted


@example([Request(1, 5000), Request(1)], 1, 4200, [], 0.5)
@example([Request(1, 1)], 1, 4200, [Request(1, 9000)], 1.0)
@given(
    QUEUES,
    BLOCK_SIZES,
    st.integers(0, 60),
    RUNNING,
    st.sampled_from([0.25, 0.5, 1.0]),  # sums of these are exact
)
def test_sglang(
    queue: list[Request], size: int, pages: int, running: list[Request], ratio: float
) -> None:
    got = admit_sglang(pages, iter(queue), size, running=iter(running), new_token_ratio=ratio)
    assert got == tuple(sglang(pages, queue, size, running, ratio))


def test_sglang_by_hand() -> None:
    assert admit_sglang(40, [Request(30, 8)], 1) == (0,)  # 30 + 8 + 1 < 40
    assert admit_sglang(39, [Request(30, 8)], 1) == ()
    assert admit_sglang(10, [Request(17, 8)], 4) == (0,)  # 17 + 8 + 4 < 40
    assert admit_sglang(10, [Request(17, 8), Request(4)], 4) == (0,)  # 40 - (20 + 8 + 4) = 8
    assert admit_sglang(10, [Request(17, 7), Request(4)], 4) == (0, 1)
    assert admit_sglang(4100, [Request(2, 10**9)], 1) == (0,)  # clipped to 4,096
    assert admit_sglang(4099, [Request(2, 10**9)], 1) == ()
    assert admit_sglang(10, [Request(1)], 1, running=[Request(9, 10)]) == (0,)  # 10 - 7 > 2
    assert admit_sglang(10, [Request(2)], 1, running=[Request(9, 10)]) == ()
    assert admit_sglang(10, [Request(2)], 1, running=[Request(9, 10)], new_token_ratio=0.1) == (0,)


# --- TensorRT-LLM ---


def tensorrt_llm(
    free: dict[str, int],
    queue: list[Request],
    size: dict[str, int],
    window: dict[str, int],
    running: list[Request],
) -> list[int]:
    def to_completion(request: Request, name: str) -> int:
        tokens = min(request.prompt + request.max_new, window.get(name, 10**9))
        return ceil_blocks(tokens, size[name]) * request.num_tables

    def allocated(request: Request, name: str) -> int:
        tokens = min(request.prompt, window.get(name, 10**9))
        return ceil_blocks(tokens, size[name]) * request.num_tables

    available = dict(free)
    for request in running:
        for name in available:
            available[name] -= to_completion(request, name) - allocated(request, name)
    admitted = []
    for index, request in enumerate(queue):
        if not all(to_completion(request, name) <= available[name] for name in available):
            break
        for name in available:
            available[name] -= to_completion(request, name)
        admitted.append(index)
    return admitted


@given(
    QUEUES,
    st.dictionaries(
        st.sampled_from("abc"),
        st.tuples(st.integers(0, 40), BLOCK_SIZES, st.none() | st.integers(1, 60)),
        min_size=1,
    ),
    RUNNING,
)
def test_tensorrt_llm(
    queue: list[Request], pools: dict[str, tuple[int, int, int | None]], running: list[Request]
) -> None:
    free = {name: pool[0] for name, pool in pools.items()}
    size = {name: pool[1] for name, pool in pools.items()}
    window = {name: pool[2] for name, pool in pools.items() if pool[2] is not None}
    expected = tuple(tensorrt_llm(free, queue, size, window, running))
    got = admit_tensorrt_llm(free, iter(queue), size, running=iter(running), windows=window)
    assert got == expected
    if not window:
        assert admit_tensorrt_llm(free, queue, size, running=running) == expected
        for name, blocks in free.items():  # each pool alone admits no less
            alone = admit_tensorrt_llm(blocks, queue, size[name], running=running)
            assert set(expected) <= set(alone)


def test_tensorrt_llm_by_hand() -> None:
    assert len(admit_tensorrt_llm(256, [Request(128, 128)] * 40, 16)) == 16
    assert len(admit_tensorrt_llm(256, [Request(128)] * 40, 16)) == 32
    assert admit_tensorrt_llm(2, [Request(16, 16)], 16, running=[Request(16, 0)]) == (0,)
    assert admit_tensorrt_llm(2, [Request(16, 16)], 16, running=[Request(16, 1)]) == ()
    assert admit_tensorrt_llm(2, [Request(16)], 16, running=[Request(16, 99)]) == ()
    free = {"full": 20, "sliding": 3}
    assert admit_tensorrt_llm(free, [Request(64)] * 9, 16) == ()
    assert admit_tensorrt_llm(free, [Request(64)] * 9, 16, windows={"sliding": 16}) == (0, 1, 2)


# --- transformers ---


def sectors(
    free_sectors: int,
    free_blocks: dict[str, int],
    blocks_per_sector: dict[str, int],
    queue: list[dict[str, int]],
) -> int:
    """Count one block and one sector at a time."""
    free_blocks = dict(free_blocks)
    for num_storable, needed in enumerate(queue):
        for name, blocks in blocks_per_sector.items():
            for _ in range(needed[name]):
                if free_blocks[name] == 0:
                    if free_sectors == 0:
                        return num_storable
                    free_sectors -= 1
                    free_blocks[name] += blocks
                free_blocks[name] -= 1
    return len(queue)


@given(st.data())
def test_sectors(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from("abc"), min_size=1, unique=True))

    def each(low: int, high: int) -> dict[str, int]:
        return {name: data.draw(st.integers(low, high)) for name in names}

    free, cut, spare = data.draw(st.integers(0, 20)), each(1, 4), each(0, 5)
    queue = [each(0, 9) for _ in range(data.draw(st.integers(0, 6)))]
    expected = sectors(free, spare, cut, queue)
    assert admit_sectors(free, iter(queue), cut, free_blocks=spare) == tuple(range(expected))
    empty = dict.fromkeys(names, 0)
    assert admit_sectors(free, queue, cut) == tuple(range(sectors(free, empty, cut, queue)))


@given(QUEUES, st.integers(0, 20), BLOCK_SIZES, st.integers(1, 60))
def test_sectors_of_requests(queue: list[Request], free: int, size: int, window: int) -> None:
    cut = {"full": 3, "sliding": 1}
    needs = [
        {
            "full": ceil_blocks(request.prompt, size) * request.num_tables,
            "sliding": ceil_blocks(min(request.prompt, window), size) * request.num_tables,
        }
        for request in queue
    ]
    expected = admit_sectors(free, needs, cut)
    assert admit_sectors(free, queue, cut, pool=size, windows={"sliding": window}) == expected
    mixed: list[Any] = [*needs[:1], *queue[1:]]
    pools: dict[str, BlockPool | int] = {"full": BlockPool(size), "sliding": size}
    assert admit_sectors(free, mixed, cut, pool=pools, windows={"sliding": window}) == expected


@pytest.mark.parametrize(
    ("free_sectors", "free_blocks", "blocks_per_sector", "queue", "admitted"),
    [
        (
            10,
            {"full": 0, "sliding": 0},
            {"full": 3, "sliding": 1},
            [{"full": 7, "sliding": 2}] * 5,
            2,
        ),
        (256, {"full": 0}, {"full": 1}, [{"full": 8}] * 40, 32),
        (
            2,
            {"full": 2, "sliding": 0},
            {"full": 3, "sliding": 1},
            [{"full": 2, "sliding": 1}] * 5,
            1,
        ),
    ],
)
def test_count_storable_requests(
    free_sectors: int,
    free_blocks: dict[str, int],
    blocks_per_sector: dict[str, int],
    queue: list[dict[str, int]],
    admitted: int,
) -> None:
    """Numbers of the loop in ``generation/continuous_batching/cache.py``."""
    got = admit_sectors(free_sectors, queue, blocks_per_sector, free_blocks=free_blocks)
    assert got == tuple(range(admitted))


def test_pages_of_256_tokens_by_default() -> None:
    assert admit_sectors(4, [Request(512), Request(513)], {"full": 1}) == (0,)
    assert admit_sectors(5, [Request(512), Request(513)], {"full": 1}) == (0, 1)


# --- Separate pools ---


@given(cases(), st.integers(1, 3))
def test_separate_pools_admit_what_the_fullest_admits(case: Any, need: int) -> None:  # noqa: ANN401
    axes = case.said["axes"]
    outer = [letter for letter in axes if letter != "t" and letter not in case.pool.shared_axes]
    if not outer or 0 in case.keep.shape:
        return
    by = outer[0]
    censuses = take_censuses(case.keep, case.pool, by=by, **case.said)
    counts = [admission_count(part, blocks_per_request=need) for part in censuses.values()]
    got = admission_count(censuses, blocks_per_request=need)
    assert type(got) is int
    assert got == min(counts)
    pooled = admission_count(case.keep, case.pool, blocks_per_request=need, **case.said)
    assert got * len(counts) <= pooled


def test_separate_pools_by_hand() -> None:
    keep = np.zeros((2, 32), bool)
    keep[1, :24] = True
    pool = BlockPool(2, shared_axes="h")
    layers = take_censuses(keep, pool, by="l", axes="lt")
    assert admission_count(layers, blocks_per_request=2) == 2
    assert admission_count(keep, pool, axes="lt", blocks_per_request=4) == 5
    sized = {
        "a": take_census(keep[0], BlockPool(2, total_blocks=20)),
        "b": take_census(keep[1], BlockPool(4, total_blocks=20)),
    }
    assert admission_count(sized, blocks_per_request=1) == 14
    assert admission_count({"a": keep[0], "b": keep[1]}, 2, blocks_per_request=1) == 4
    with pytest.raises(ValueError, match="must hold at least one pool; got an empty mapping"):
        admission_count({}, blocks_per_request=1)
    said: dict[str, Any]
    for said in ({"axes": "t"}, {"lengths": 32}, {"offset": 1}):
        with pytest.raises(ValueError, match="must go with a keep-mask"):
            admission_count(layers, blocks_per_request=1, **said)
    with pytest.raises(ValueError, match="pool must be the one"):
        admission_count(layers, 2, blocks_per_request=1)


# --- Requests, and what is refused ---


def test_a_request_is_a_value() -> None:
    request = Request(np.int32(100), max_new=np.uint8(28))
    assert request == Request(100, 28, 1)
    assert {type(value) for value in attrs.astuple(request)} == {int}
    assert pickle.loads(pickle.dumps(request)) == request  # noqa: S301  # written on this line
    assert hash(request) == hash(Request(100, 28))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"prompt": 0}, ValueError, "prompt must be an integer of at least 1"),
        ({"prompt": 1.0}, TypeError, "prompt must be an integer"),
        ({"prompt": 1, "max_new": -1}, ValueError, "max_new must be an integer of at least 0"),
        ({"prompt": 1, "max_new": True}, TypeError, "max_new must be an integer"),
        ({"prompt": 1, "num_tables": 0}, ValueError, "num_tables must be an integer of at least 1"),
    ],
)
def test_requests_that_are_none(
    fields: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Request(**fields)


RULES: list[Callable[..., tuple[int, ...]]] = [
    admit_vllm_v0,
    admit_vllm_v1,
    admit_sglang,
    admit_tensorrt_llm,
]


@pytest.mark.parametrize("rule", RULES)
def test_what_every_rule_refuses(rule: Callable[..., tuple[int, ...]]) -> None:
    assert rule(5, [], 16) == ()
    assert rule(0, [Request(1)], 16) == ()
    assert rule(np.int8(9), [Request(1)], np.int8(4)) == (0,)
    with pytest.raises(ValueError, match="free_blocks must be an integer of at least 0; got -1"):
        rule(-1, [], 16)
    with pytest.raises(TypeError, match="free_blocks must be an integer"):
        rule(1.0, [], 16)
    with pytest.raises(ValueError, match="free_blocks must be at most the 7 usable blocks"):
        rule(8, [], BlockPool(16, total_blocks=8, reserved_blocks=1))
    with pytest.raises(TypeError, match="requests must be Requests; got int 5; write such as"):
        rule(8, [5], 16)
    with pytest.raises(TypeError, match="pool must be a BlockPool or a block size"):
        rule(8, [], "16")


@pytest.mark.parametrize("rule", [admit_vllm_v1, admit_sglang, admit_tensorrt_llm])
def test_what_runs_must_be_requests(rule: Callable[..., tuple[int, ...]]) -> None:
    with pytest.raises(TypeError, match="running must be Requests; got int 5"):
        rule(8, [], 16, running=[5])
    with pytest.raises(TypeError, match="running must be Requests"):
        growth_blocks([5], 16)  # type: ignore[list-item]


@pytest.mark.parametrize("ratio", [0, -1, math.nan, math.inf])
def test_ratios_that_are_none(ratio: float) -> None:
    with pytest.raises(ValueError, match="new_token_ratio must be a finite number above 0"):
        admit_sglang(8, [], 16, new_token_ratio=ratio)


def test_inflight_blocks_are_counted() -> None:
    with pytest.raises(ValueError, match="inflight_blocks must be an integer of at least 0"):
        admit_vllm_v1(8, [], 16, inflight_blocks=-1)


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"free_blocks": {}}, ValueError, "pool must name .*at least one; got none"),
        ({"pool": {"a": 16}}, ValueError, r"pool must name .*\('a', 'b'\).*got 'a'; write"),
        ({"pool": {"a": 1, "b": 1, "c": 1}}, ValueError, "got 'a', 'b', 'c'"),
        ({"windows": {"c": 1}}, ValueError, r"windows must name .*\('a', 'b'\).*got 'c'"),
        ({"windows": {"a": 0}}, ValueError, r"windows\['a'\] must be an integer of at least 1"),
        ({"windows": [1]}, TypeError, "windows must be a mapping from names; got list"),
        ({"free_blocks": {"a": 1, "b": -1}}, ValueError, "free_blocks must be an integer"),
    ],
)
def test_pools_that_are_none(said: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"free_blocks": {"a": 1, "b": 1}, "requests": [], "pool": 16}
    with pytest.raises(error, match=message):
        admit_tensorrt_llm(**arguments | said)


@pytest.mark.parametrize(
    ("said", "error", "message"),
    [
        ({"free_sectors": -1}, ValueError, "free_sectors must be an integer of at least 0"),
        ({"blocks_per_sector": {}}, ValueError, "blocks_per_sector must name .*at least one"),
        ({"blocks_per_sector": {"a": 0}}, ValueError, r"blocks_per_sector\['a'\] must be"),
        ({"blocks_per_sector": 3}, TypeError, "blocks_per_sector must be a mapping"),
        ({"free_blocks": {"b": 1}}, ValueError, r"free_blocks must name .*\('a'\).*got 'b'"),
        ({"free_blocks": {"a": -1}}, ValueError, r"free_blocks\['a'\] must be"),
        ({"requests": [{}]}, ValueError, r"requests must name .*\('a'\).*got none"),
        ({"requests": [{"a": 1, "b": 1}]}, ValueError, "got 'a', 'b'"),
        ({"requests": [{"a": -1}]}, ValueError, r"requests\['a'\] must be an integer"),
        ({"requests": [3]}, TypeError, "requests must be a mapping from names; got int 3"),
        ({"pool": {"b": 1}}, ValueError, r"pool must name .*\('a'\).*got 'b'"),
    ],
)
def test_sectors_that_are_none(said: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"free_sectors": 1, "requests": [], "blocks_per_sector": {"a": 1}}
    with pytest.raises(error, match=message):
        admit_sectors(**arguments | said)


@given(QUEUES, st.integers(0, 40), st.integers(0, 5))
def test_rules_agree_where_they_are_the_same(
    queue: list[Request], free: int, watermark: int
) -> None:
    """Without a size, output, running requests or a watermark all admit by prompt, first come."""
    plain = [attrs.evolve(request, max_new=0) for request in queue]
    demands = [ceil_blocks(request.prompt, 4) * request.num_tables for request in queue]
    by_prompt = oracle.admit(free, demands)
    assert admit_vllm_v0(free, queue, 4) == admit_vllm_v1(free, queue, 4) == by_prompt
    assert admit_tensorrt_llm(free, plain, 4) == by_prompt
    assert admit_sectors(free, queue, {"a": 1}, pool=4) == by_prompt
    pool = BlockPool(4, watermark_blocks=watermark)
    busy = admit_vllm_v1(free, queue, pool, running=[Request(1)])
    assert admit_vllm_v0(free, queue, pool) == busy == oracle.admit(free, demands, watermark)
    assert set(admit_sglang(free, plain, 4)) <= set(by_prompt)


def test_usage_needs_a_size() -> None:
    with pytest.raises(ValueError, match="pool must have a size; got one without total_blocks"):
        block_usage(BlockPool(16), 1)
