"""Our counts against the allocators of vLLM and SGLang, as they were shipped.

Where the wheels are (see `allocators.loaders`), the real code answers thousands of scenarios;
elsewhere its recorded answers to the first of them stand in. In CI the real code must be there.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import itertools
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from allocators import loaders, record, scenarios
from allocators.scenarios import Alone, Answer, Cached, Group, Groups, Paged, Queue, Shared
from numpy.typing import NDArray
from optional import IN_CI

from kvreclaim import (
    BlockPool,
    Census,
    admission_count,
    admit,
    block_usage,
    merge,
    pool_usage,
    runtimes,
    take_census,
)
from kvreclaim.admission import Request, admit_vllm_v1
from kvreclaim.placement import free_runs, place, unsafe_free

VLLM = loaders.wheel_of(loaders.VLLM)
SGLANG = loaders.wheel_of(loaders.SGLANG) if importlib.util.find_spec("torch") else None


def source(server: object) -> pytest.MarkDecorator:
    """Show in a test's name what it was held against."""
    return pytest.mark.parametrize("source", ["real" if server else "recorded"])


@functools.cache
def real_vllm() -> loaders.Vllm:
    assert VLLM is not None
    return loaders.vllm_from_wheel(VLLM)


@functools.cache
def real_sglang() -> Any:  # noqa: ANN401  # a class of SGLang
    assert SGLANG is not None
    importlib.import_module("torch").set_num_threads(1)  # its tensors are tiny
    return loaders.sglang_from_wheel(SGLANG)


def recorded(release: str, kind: str) -> list[Answer]:
    path = record.FOLDER / f"{release.partition('-')[0]}.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert saved["release"] == release
    answers: list[Answer] = saved[kind]
    return answers


@functools.cache
def asked(kind: str, source: str, count: int) -> list[tuple[Any, Answer]]:
    """Return scenarios and answers: real ones to `count` of them, or the recorded ones."""
    in_vllm = kind in record.VLLM_KINDS
    release = loaders.VLLM if in_vllm else loaders.SGLANG
    scenario, ask = (record.VLLM_KINDS if in_vllm else record.SGLANG_KINDS)[kind]
    saved = recorded(release, kind)
    if source == "recorded":
        assert not IN_CI, f"no wheel of {release} in KVRECLAIM_WHEELS, or no torch: CI needs both"
        return [(scenario(seed), answer) for seed, answer in enumerate(saved)]
    server = real_vllm() if in_vllm else real_sglang()
    answers = [json.loads(json.dumps(ask(server, scenario(seed)))) for seed in range(count)]
    assert answers[: len(saved)] == saved, f"the recorded answers to {kind!r} are out of date"
    return [(scenario(seed), answer) for seed, answer in enumerate(answers)]


def merged(censuses: list[Census], pool: BlockPool) -> Census:
    return merge([Census.empty(pool), *censuses])


@functools.cache
def pool_of(block_size: int) -> BlockPool:
    return runtimes.vllm(block_size=block_size)


def ids_of(free: tuple[bool, ...]) -> list[int]:
    return [block for block, is_free in enumerate(free) if is_free]


# --- vLLM's block pool ---


@source(VLLM)
def test_vllm_frees_what_the_census_says_and_admits_what_fits(source: str) -> None:
    """Its own free count, usage and refusals; a partly written last block stays."""
    num_freed = 0
    scenario: Alone
    for scenario, answer in asked("alone", source, 3000):
        pool = runtimes.vllm(block_size=scenario.block_size, total_blocks=scenario.total_blocks)
        census = merged([take_census(keep, pool) for keep in scenario.keeps], pool)
        num_freed += census.num_freed_blocks
        usable = scenario.total_blocks - 1
        assert answer["free"] == usable - census.num_held_blocks, scenario
        assert answer["admitted"] == list(admit(answer["free"], scenario.demands)), scenario
        assert answer["equal"] == admission_count(census, blocks_per_request=scenario.need)
        usage = block_usage(pool, answer["free"])
        if usable:
            assert usage == pool_usage(census).after == float(1 - Fraction(answer["free"], usable))
            # vLLM takes 1 - free / usable in floats, which rounds twice.
            assert answer["usage"] == 1.0 - answer["free"] / usable
            assert abs(usage - answer["usage"]) <= 2**-53
        else:
            assert math.isnan(usage)
            assert answer["usage"] == 0
    assert num_freed > 100


@source(VLLM)
def test_vllm_counts_shared_blocks_as_place_does(source: str) -> None:
    """Free ids and reference counts, over three waves that use the blocks of finished requests."""
    spared = reused = 0
    scenario: Shared
    for scenario, answer in asked("shared", source, 2000):
        pool = runtimes.vllm(block_size=scenario.block_size, total_blocks=scenario.total_blocks)
        size = scenario.block_size
        staying: list[tuple[list[bool], list[int]]] = []
        seen: set[int] = set()
        for wave, real in zip(scenario.waves, answer["waves"], strict=True):
            keeps = [request.keep for request in wave] + [keep for keep, _ in staying]
            tables = real["tables"] + [table for _, table in staying]
            before = place([[True] * len(keep) for keep in keeps], tables, pool)
            assert sum(before.free) == real["before"], scenario
            after = place(keeps, tables, pool)
            assert ids_of(after.free) == real["free"], scenario
            assert {block: after.ref_counts[block] for block, _ in real["refs"]} == dict(
                real["refs"]
            )
            assert len(real["free"]) - real["before"] == after.num_freed_blocks
            spared += after.num_spared_blocks
            mine = {block for table in real["tables"] for block in table}
            reused += len(mine & seen)
            seen |= mine
            # What stays keeps only blocks with a live token.
            staying = []
            for request, table in zip(wave, real["tables"], strict=True):
                cut = range(0, len(request.keep), size)
                blocks = [request.keep[start : start + size] for start in cut]
                left = [(b, block) for b, block in zip(blocks, table, strict=True) if any(b)]
                if request.stays:
                    kept = [token for block, _ in left for token in block]
                    staying.append((kept, [block for _, block in left]))
    assert spared > 10
    assert reused > 100


@source(VLLM)
def test_vllm_says_nothing_of_a_block_that_is_freed_twice(source: str) -> None:
    """Its count stays right until the block is handed out again; `place` refuses such a table."""
    (answer,) = recorded(loaders.VLLM, "double_free")
    if source == "real":
        assert scenarios.ask_double_free(real_vllm()) == answer
    assert answer == {"free": [1, 2, 2], "then": "AssertionError"}
    with pytest.raises(ValueError, match="once in each sequence"):
        place([[False] * 32], [[1, 1]], runtimes.vllm(total_blocks=5))


# --- vLLM's KV-cache manager: hybrid models, a prefix cache, and its queue ---


def mask_of(group: Group, prompt: int, processed: int, written: int) -> NDArray[np.bool_]:
    """Return what a group still reads once so many tokens are processed, of those written."""
    keep = np.ones(written, bool)
    if group.kind == "window":  # the next token reads window - 1 tokens before itself
        keep[: max(0, processed - group.size + 1)] = False
    if group.kind == "chunk":
        keep[: processed // group.size * group.size] = False
    if group.kind == "prompt":  # the prompt, and a window of what was generated
        keep[prompt : max(prompt, processed - group.size)] = False
    return keep


def held_by(
    some: list[Group], prompt: int, processed: int, written: int
) -> tuple[list[int], list[Census]]:
    """Return the blocks that each group holds, and the census of each block size."""
    censuses = [
        take_census(mask_of(group, prompt, processed, written), pool_of(group.block_size))
        for group in some
    ]
    by_size: dict[int, list[Census]] = {}
    for group, census in zip(some, censuses, strict=True):
        by_size.setdefault(group.block_size, []).append(census)
    return [census.num_held_blocks for census in censuses], [*map(merge, by_size.values())]


@source(VLLM)
def test_vllm_holds_for_each_group_what_its_census_says(source: str) -> None:
    """Free blocks during each step and after it, of full, window, chunked and prompt groups."""
    refused = num_steps = 0
    scenario: Groups
    for scenario, answer in asked("groups", source, 800):
        free = scenario.total_blocks - 1
        for run, real in zip(scenario.runs, answer["runs"], strict=False):
            computed, held = 0, [0] * len(scenario.groups)
            for step, tokens in enumerate(run.steps):
                end = computed + tokens
                at_peak, added = held_by(scenario.groups, run.prompt, computed, end)
                assert sum(at_peak) == sum(census.num_held_blocks for census in added)
                during = real["during"][step]
                if during is None:
                    assert sum(at_peak) > free, scenario
                    refused += 1
                    break
                assert during == free - sum(at_peak), scenario
                held, added = held_by(scenario.groups, run.prompt, end, end)
                assert real["after"][step][1:] == held, scenario
                assert real["after"][step][0] == free - sum(
                    census.num_blocks - census.num_freed_blocks for census in added
                )
                computed = end
                num_steps += 1
            free -= sum(held)
    assert refused > 1
    assert num_steps > 500


def test_the_documented_hybrid_request_holds_11_blocks() -> None:
    """7 + 2 + 2 of 7 + 7 + 7: 112 tokens, full attention and two windows of 32, blocks of 16."""
    (run,) = recorded(loaders.VLLM, "groups")[0]["runs"]
    assert scenarios.groups(0) == scenarios.DOCUMENTED
    assert run == {"during": [100 - 21], "after": [[100 - 11, 7, 2, 2]]}
    held, (census,) = held_by(scenarios.DOCUMENTED.groups, 112, 112, 112)
    assert held == [7, 2, 2]
    assert (census.num_blocks, census.num_held_blocks, census.num_freed_blocks) == (21, 11, 10)


@source(VLLM)
def test_vllm_shares_cached_prefixes_as_place_counts_them(source: str) -> None:
    """A block in the prefix cache that no request holds is free."""
    num_shared = 0
    scenario: Cached
    for scenario, answer in asked("cached", source, 1500):
        pool = runtimes.vllm(block_size=scenario.block_size, total_blocks=scenario.total_blocks)
        keeps = [[True] * len(prompt) for prompt in scenario.prompts]
        running = place(keeps, answer["tables"], pool)
        num_shared += running.num_shared_blocks
        assert [sum(running.free)] == answer["free"][:1], scenario
        for finished, free in zip(scenario.finish, answer["free"][1:], strict=True):
            keeps[finished] = [False] * len(keeps[finished])  # all of it is dead, to this request
            assert sum(place(keeps, answer["tables"], pool).free) == free, scenario
    assert num_shared > 50


@source(VLLM)
def test_vllm_admits_a_queue_as_we_do(source: str) -> None:
    """Whole prompts, first come first served, above the watermark; the first of all is exempt."""
    stopped = 0
    scenario: Queue
    for scenario, answer in asked("queue", source, 1500):
        some, size = scenario.groups, scenario.groups[0].block_size
        pool = runtimes.vllm(
            block_size=size,
            total_blocks=scenario.total_blocks,
            watermark_blocks=answer["watermark"],
        )
        usable = scenario.total_blocks - 1
        resting = [sum(held_by(some, n, n, n)[0]) for n in scenario.running]
        growing = [sum(held_by(some, n, n, n + 1)[0]) for n in scenario.running]
        assert answer["free"] == usable - sum(resting), scenario
        assert answer["grown"] == usable - sum(growing), scenario
        demands = [len(some) * pool.num_blocks_for(tokens) for tokens in scenario.waiting]
        assert answer["admitted"] == list(
            admit(
                answer["grown"],
                demands,
                watermark_blocks=pool.watermark_blocks,
                exempt_first=not scenario.running,
            )
        ), scenario
        tables = len(some)
        assert answer["admitted"] == list(
            admit_vllm_v1(
                answer["free"],
                [Request(tokens, num_tables=tables) for tokens in scenario.waiting],
                pool,
                running=[Request(tokens, num_tables=tables) for tokens in scenario.running],
            )
        ), scenario
        stopped += len(answer["admitted"]) < len(demands)
    assert stopped > 10


# --- SGLang's paged allocator ---


@source(SGLANG)
def test_sglang_frees_whole_dead_pages_as_place_does(source: str) -> None:
    """Its own free pages, by id; and what it gives until it refuses."""
    num_freed = 0
    scenario: Paged
    for scenario, answer in asked("paged", source, 1000):
        pool = runtimes.sglang(scenario.page_size, total_blocks=scenario.num_pages + 1)
        placement = place(scenario.keeps, answer["tables"], pool)
        census = merged([take_census(keep, pool) for keep in scenario.keeps], pool)
        assert ids_of(placement.free) == answer["free"], scenario
        assert placement.num_freed_blocks == census.num_freed_blocks
        assert len(answer["free"]) - answer["before"] == census.num_freed_blocks
        assert answer["admitted"] == list(admit(len(answer["free"]), scenario.demands)), scenario
        assert sum(free_runs(placement.free)) == len(answer["free"])
        num_freed += census.num_freed_blocks
    assert num_freed > 50


@source(SGLANG)
def test_sglang_loses_the_live_tokens_that_unsafe_free_counts(source: str) -> None:
    """Its free() is given every dead token, and releases their pages whole."""
    unsafe = safe = 0
    scenario: Paged
    for scenario, answer in asked("paged", source, 1000):
        pool = runtimes.sglang(scenario.page_size)
        lost = [unsafe_free(keep, pool) for keep in scenario.keeps]
        assert lost == answer["lost"], scenario
        # Pages that are freed have at least one dead token: all but those without any.
        whole = sum(
            all(keep[start : start + scenario.page_size])
            for keep in scenario.keeps
            for start in range(0, len(keep), scenario.page_size)
        )
        num_pages = len({*itertools.chain.from_iterable(answer["tables"])})
        assert answer["reckless"] == answer["before"] + num_pages - whole
        unsafe += sum(map(bool, lost))
        safe += lost.count(0)
    assert unsafe > 50
    assert safe > 50
