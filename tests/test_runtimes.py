"""The presets: what they say, and the anchors of the runtimes' own formulas."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from kvreclaim import (
    BlockPool,
    admission_count,
    block_size_from_bytes,
    compacted_reclaim,
    entry_bytes_for,
    entry_bytes_mla,
    logical_saving,
    packed_reclaim,
    physical_reclaim,
    pool_usage,
    runtimes,
    take_census,
)

ANCHORS = {
    anchor["name"]: (anchor["inputs"], anchor["expected"])
    for anchor in json.loads((Path(__file__).parent / "data" / "anchors.json").read_text())
}

# block size, shared axes, frees, compactor, open tail, reserved blocks
PRESETS = {
    "vllm": (16, "hl", "any", "none", True, 1),
    "vllm_v0": (16, "hl", "none", "none", False, 0),
    "nano_vllm": (256, "hl", "none", "none", False, 0),
    "sglang": (1, "hl", "any", "none", False, 1),
    "tensorrt_llm": (32, "hl", "back", "pack", False, 0),
    "vattention": (1024, "h", "back", "none", False, 0),
    "kv_compress": (16, "", "back", "fill", False, 0),
    "kvcached": (16, "hl", "any", "none", False, 0),
    "hf_dynamic_cache": (1, "h", "back", "pack_rows", False, 0),
    "hf_continuous_batching": (256, "hl", "none", "none", False, 0),
    "openvino_genai": (32, "h", "any", "none", False, 0),
    "lmdeploy": (64, "hl", "front", "none", False, 0),
    "llama_cpp": (1, "hl", "any", "none", False, 0),
    "masked_attention": (16, "hl", "none", "none", False, 0),
}


def anchors(start: str) -> list[str]:
    return [name for name in ANCHORS if name.startswith(start)]


def test_every_preset_is_in_the_table() -> None:
    assert runtimes.names() == tuple(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_preset(name: str) -> None:
    pool = runtimes.preset(name)
    assert pool == getattr(runtimes, name)()
    fields = pool.block_size, pool.shared_axes, pool.frees, pool.compactor
    assert (*fields, pool.open_tail, pool.reserved_blocks) == PRESETS[name]
    assert runtimes.preset(name, block_size=24, entry_bytes=8).block_size == 24
    about = runtimes.about(name)
    assert about.name == name
    assert about.rule.endswith(".")
    assert about.source
    assert {about.layout, about.status} <= {"shipped", "proposed", "fork", "hypothetical"}


def test_keywords_override_any_field() -> None:
    pool = runtimes.vllm(total_blocks=100, frees="none", open_tail=False)
    assert (pool.total_blocks, pool.frees, pool.compactor) == (100, "none", "none")
    assert runtimes.vllm(compactor="evacuate").compactor == "evacuate"
    assert runtimes.kv_compress(frees="any").compactor == "evacuate"
    with pytest.raises(TypeError, match="colour"):
        runtimes.sglang(colour="red")
    with pytest.raises(ValueError, match="name must be one of 'vllm'"):
        runtimes.about("vllm_v9")


@pytest.mark.parametrize(
    ("mode", "compactor"),
    [("union", "pack"), ("per_head", "pack_rows"), ("per_layer_perhead", "pack_rows")],
)
def test_tensorrt_llm_modes(
    mode: Literal["union", "per_head", "per_layer_perhead"], compactor: str
) -> None:
    assert runtimes.tensorrt_llm(mode).compactor == compactor
    with pytest.raises(ValueError, match="mode must be one of 'union'"):
        runtimes.tensorrt_llm("per_layer")  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("name", anchors("vllm_v0_watermark"))
def test_vllm_v0_watermark(name: str) -> None:
    given, expected = ANCHORS[name]
    pool = runtimes.vllm_v0(total_blocks=given["total"])
    held = take_census(np.ones(16 * (given["total"] - given["free"]), bool), pool)
    admitted = admission_count(held, blocks_per_request=given["blocks_per_request"])
    assert admitted == expected["admitted"]


@pytest.mark.parametrize("name", anchors("vattention"))
def test_vattention_pages(name: str) -> None:
    given, expected = ANCHORS[name]
    heads = given["kv_heads"] // given["tp"]
    page = given["page_kib"] * 1024
    size = block_size_from_bytes(page, heads, given["head_size"], given["bytes_per_elem"])
    assert size == expected["tokens_per_page"]
    pool = runtimes.vattention(heads, given["head_size"], page, given["bytes_per_elem"])
    assert pool.block_size == size
    assert pool.entry_bytes is not None
    # One token in each layer's table: all but that token of a K and a V page is waste, at most.
    pages = take_census(np.ones((given["layers"], heads, 1), bool), pool, axes="lht").num_blocks
    waste = pages * 2 * page * given["tp"] / 2**20
    assert waste == expected["worst_waste_mib_per_request"]


@pytest.mark.parametrize("name", anchors("interval_dead"))
def test_a_dead_interval_frees_what_vllm_frees(name: str) -> None:
    given, expected = ANCHORS[name]
    start, stop = given["dead"]
    keep = np.ones(stop + 200, bool)
    keep[start:stop] = False
    census = take_census(keep, runtimes.vllm(block_size=given["block_size"]))
    assert census.num_freed_blocks == expected["freed_blocks"]


@pytest.mark.parametrize("name", anchors("kvcompress_evicted"))
def test_kv_compress_leaves_multiples_of_the_block(name: str) -> None:
    given, expected = ANCHORS[name]
    length, evicted = given["context_len"], expected["evicted_kv"]
    keep = np.ones(length, bool)
    keep[np.random.default_rng(0).choice(length, evicted, replace=False)] = False
    census = take_census(keep, runtimes.kv_compress(block_size=given["block_size"]))
    assert census.num_live_tokens == expected["len_after"]
    assert census.num_packed_blocks == expected["blocks_after"]
    assert census.num_blocks - census.num_packed_blocks == given["evicted_blocks"]


def test_kv_compress_moves() -> None:
    given, expected = ANCHORS["kvcompress_moves_small"]
    census = take_census(given["mask"], runtimes.kv_compress(block_size=given["block_size"]))
    assert census.num_moved_entries == expected["n_moves"]
    assert census.num_blocks - census.num_packed_blocks == expected["blocks_freed"]


@pytest.mark.parametrize("name", anchors("flashinfer_len"))
def test_flashinfer_pages(name: str) -> None:
    given, expected = ANCHORS[name]
    census = take_census(np.ones(given["kv_len"], bool), given["page_size"])
    assert census.num_blocks == expected["pages"]
    assert given["page_size"] - census.num_slack_slots == expected["last_page_len"]


@pytest.mark.parametrize("name", ["vllm_usage_513_256", "vllm_usage_101_100"])
def test_vllm_usage(name: str) -> None:
    given, expected = ANCHORS[name]
    pool = runtimes.vllm(total_blocks=given["num_gpu_blocks"])
    used = given["num_gpu_blocks"] - 1 - given["free"]
    usage = pool_usage(take_census(np.ones(16 * used, bool), pool)).after
    assert usage == expected["kv_cache_usage_perc"]


def test_hybrid_groups_add_in_blocks() -> None:
    given, expected = ANCHORS["vllm_hybrid_11_blocks"]
    tokens, window = given["tokens"], given["sliding_window"]
    full, sliding = np.ones(tokens, bool), np.arange(tokens) >= tokens - window
    pool = runtimes.vllm(block_size=given["block_size"])
    groups = [take_census({"full": full, "sw": sliding}[kind], pool) for kind in given["groups"]]
    assert [group.num_held_blocks for group in groups] == expected["per_group"]
    assert sum(groups, start=groups[0].empty(pool)).num_held_blocks == expected["blocks"]


def test_streaming_llm_in_the_large_blocks_of_a_hybrid_model() -> None:
    keep = np.zeros(2048, bool)
    keep[:4] = keep[-1020:] = True
    assert take_census(keep, runtimes.vllm(block_size=528)).num_freed_blocks == 0
    assert take_census(keep, 528).num_blocks == 4


def test_gathered_caches_give_back_what_they_say_and_masks_nothing() -> None:
    keep = np.zeros((4, 2, 64), bool)
    for layer in range(4):
        for head in range(2):
            keep[layer, head, np.random.default_rng(layer * 2 + head).permutation(64)[:16]] = True
    gathered = take_census(keep, runtimes.hf_dynamic_cache(), axes="lht")
    assert compacted_reclaim(gathered) == logical_saving(gathered) == 0.75
    masked = take_census(keep, runtimes.masked_attention(), axes="lht")
    assert compacted_reclaim(masked) == physical_reclaim(masked) == 0
    assert packed_reclaim(masked) == 0.75


def test_the_articles_pool_under_every_runtime() -> None:
    keep = np.zeros(8192, bool)
    keep[np.random.default_rng(0).permutation(8192)[:4096]] = True
    in_place = {
        name: physical_reclaim(keep, runtimes.preset(name, block_size=16))
        for name in runtimes.names()
    }
    assert set(in_place.values()) == {0.0}
    token_sized = {"sglang", "llama_cpp"}
    for name in token_sized:
        assert physical_reclaim(keep, runtimes.preset(name)) == 0.5
    packed = {
        name: compacted_reclaim(keep, runtimes.preset(name, block_size=16))
        for name in ("tensorrt_llm", "kv_compress", "hf_dynamic_cache")
    }
    assert set(packed.values()) == {0.5}
    assert admission_count(keep, BlockPool(16), blocks_per_request=8) == 0


@pytest.mark.parametrize(
    ("function", "least", "answer"),
    [
        (entry_bytes_for, {"head_dim": 1, "dtype_bytes": 1, "v_head_dim": 1}, 2),
        (entry_bytes_mla, {"kv_lora_rank": 1, "rope_dim": 0, "dtype_bytes": 1}, 1),
        (
            block_size_from_bytes,
            {"page_bytes": 1, "kv_heads": 1, "head_dim": 1, "dtype_bytes": 1},
            1,
        ),
    ],
)
def test_the_least_sizes_and_one_less(
    function: Callable[..., int], least: dict[str, int], answer: int
) -> None:
    assert function(**least) == answer
    for name, size in least.items():
        with pytest.raises(ValueError, match=rf"^{name} must be .*; got {size - 1}"):
            function(**least | {name: size - 1})
