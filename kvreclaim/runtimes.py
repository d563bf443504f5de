"""BlockPool presets for real servers, each with its source.

A preset returns a `BlockPool`; keywords override its fields: ``vllm(total_blocks=513)``. `about`
says how real a preset is, what it requires, and which file it was read from; `names` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import attrs

from kvreclaim import _checks
from kvreclaim.pool import BlockPool, block_size_from_bytes, entry_bytes_for

Status: TypeAlias = Literal["shipped", "proposed", "fork", "hypothetical"]


def vllm(**fields: Any) -> BlockPool:  # noqa: ANN401  # any field of a BlockPool, here and below
    """Any empty block of the one table for all layers and heads comes free, but for the open tail.

    That freeing is proposed: today vLLM frees no block of a running full-attention request, and
    every block out of the window of a sliding-window one. Block 0 is a null block. Hybrid models
    have one such table for each group of layers: take a census a group and add them, in blocks.
    Source: vLLM 0.32, ``v1/core/block_pool.py``, ``v1/core/single_type_kv_cache_manager.py``.

    Examples
    --------
    >>> vllm(total_blocks=513).num_usable_blocks
    512
    """
    preset = {"open_tail": True, "compactor": "none", "reserved_blocks": 1}
    return _pool(16, preset, fields)


def vllm_v0(**fields: Any) -> BlockPool:  # noqa: ANN401
    """No block of a running request comes free; a sized pool keeps 1 % of its blocks in reserve.

    Source: vLLM 0.6, ``core/block_manager_v1.py``.

    Examples
    --------
    >>> vllm_v0(total_blocks=512).watermark_blocks
    5
    """
    total = fields.get("total_blocks")
    watermark = 0 if total is None else _checks.as_count("total_blocks", total) // 100
    return _pool(16, {"frees": "none", "watermark_blocks": watermark}, fields)


def nano_vllm(**fields: Any) -> BlockPool:  # noqa: ANN401
    """No block of a running request comes free; blocks of 256, as FlashAttention-2 wants them.

    Source: nano-vllm, ``nanovllm/config.py``, ``nanovllm/engine/block_manager.py``.

    Examples
    --------
    >>> nano_vllm().block_size
    256
    """
    return _pool(256, {"frees": "none"}, fields)


def sglang(page_size: int = 1, **fields: Any) -> BlockPool:  # noqa: ANN401
    """Any page whose tokens are all dead may be freed, in one table for all layers and heads.

    The allocator's ``free`` releases a page as soon as *any* of its tokens is passed: pass whole
    dead pages only (`placement.unsafe_free` counts what would be lost). Slot or page 0 is reserved.
    Source: SGLang 0.5.23, ``srt/mem_cache/allocator/paged.py``.

    Examples
    --------
    >>> sglang().block_size
    1
    """
    return _pool(page_size, {"compactor": "none", "reserved_blocks": 1}, fields)


def tensorrt_llm(
    mode: Literal["union", "per_head", "per_layer_perhead"] = "union",
    **fields: Any,  # noqa: ANN401
) -> BlockPool:
    """Survivors are packed forward, then the pages at the back of the table come free.

    ``"union"``: whole slots, one set for all layers and heads. ``"per_head"``: each head by
    itself. ``"per_layer_perhead"``: each layer and head by itself. All in shared blocks.
    Source: TensorRT-LLM, ``docs/source/features/kvcache.md``, ``llmapi/llm_args.py``.

    Examples
    --------
    >>> tensorrt_llm("per_head").compactor
    'pack_rows'
    """
    _checks.as_choice("mode", mode, ("union", "per_head", "per_layer_perhead"))
    compactor = "pack" if mode == "union" else "pack_rows"
    return _pool(32, {"frees": "back", "compactor": compactor}, fields)


def vattention(
    kv_heads: int = 8,
    head_dim: int = 128,
    page_bytes: int = 2 * 1024 * 1024,
    dtype_bytes: int = 2,
    **fields: Any,  # noqa: ANN401
) -> BlockPool:
    """Only the last page of a layer's table can be unmapped; K and V have pages of their own.

    A block stands for the K page and the V page of the same tokens. Pages are 64, 128 or 256 KiB
    with the patched driver, 2 MiB without. `kv_heads` are those of one worker.
    Source: vAttention, ``vattention/vattention.cu``, ``vattention/utils.h``.

    Examples
    --------
    >>> vattention(kv_heads=4, page_bytes=64 * 1024).block_size
    64
    """
    size = block_size_from_bytes(page_bytes, kv_heads, head_dim, dtype_bytes)
    preset = {
        "shared_axes": "h",
        "frees": "back",
        "compactor": "none",
        "entry_bytes": entry_bytes_for(head_dim, dtype_bytes),
    }
    return _pool(size, preset, fields)


def kv_compress(**fields: Any) -> BlockPool:  # noqa: ANN401
    """Holes of each layer and head's own table are filled from its back, then that comes free.

    Its own eviction makes every length a multiple of the block size.
    Source: vllm-kvcompress, ``vllm/kvcompress/``, ``csrc/kvcompress_eviction_kernels.cu``.

    Examples
    --------
    >>> kv_compress().shared_axes, kv_compress().compactor
    ('', 'fill')
    """
    return _pool(16, {"shared_axes": "", "frees": "back"}, fields)


def kvcached(block_size: int = 16, **fields: Any) -> BlockPool:  # noqa: ANN401
    """Any empty block can be reused, but memory returns by pages of 2 MiB and more.

    A page returns when all its blocks are free: `placement.page_reclaim` counts them.
    Source: kvcached, ``kvcached/kv_cache_manager.py``.

    Examples
    --------
    >>> kvcached().frees
    'any'
    """
    return _pool(block_size, {"compactor": "none"}, fields)


def hf_dynamic_cache(**fields: Any) -> BlockPool:  # noqa: ANN401
    """Each layer's tensor is gathered to its survivors: every head packed, to the token.

    kvpress's own runtime: SnapKV gives back what it says, mask-only presses give back nothing (use
    `masked_attention` for those). While a layer is gathered, both copies are there.
    Source: transformers 5.24, ``cache_utils.py``; kvpress, ``presses/scorer_press.py``.

    Examples
    --------
    >>> hf_dynamic_cache().compactor
    'pack_rows'
    """
    preset = {"shared_axes": "h", "frees": "back", "compactor": "pack_rows"}
    return _pool(1, preset, fields)


def hf_continuous_batching(**fields: Any) -> BlockPool:  # noqa: ANN401
    """No block of a running full-attention request comes free; blocks live in larger sectors.

    A sector returns when all its blocks are free: `placement.page_reclaim` counts them.
    Source: transformers 5.24, ``generation/continuous_batching/cache.py``.

    Examples
    --------
    >>> hf_continuous_batching().block_size
    256
    """
    return _pool(256, {"frees": "none"}, fields)


def openvino_genai(block_size: int = 32, **fields: Any) -> BlockPool:  # noqa: ANN401
    """Whole filled blocks of each layer's own table are evicted, during generation only.

    Blocks are of 32 tokens on CPUs, 16 on GPUs; the eviction sizes are multiples of it.
    Source: openvino.genai, ``CacheEvictionConfig``,
    ``site/docs/concepts/optimization-techniques/kvcache-eviction-algorithm.md``.

    Examples
    --------
    >>> openvino_genai().shared_axes
    'h'
    """
    return _pool(block_size, {"shared_axes": "h", "compactor": "none"}, fields)


def lmdeploy(**fields: Any) -> BlockPool:  # noqa: ANN401
    """Only blocks at the front, out of a sliding window, come free before the request ends.

    Source: LMDeploy, ``pytorch/paging/block_manager/window_block_manager.py``, ``messages.py``.

    Examples
    --------
    >>> lmdeploy().frees
    'front'
    """
    return _pool(64, {"frees": "front"}, fields)


def llama_cpp(**fields: Any) -> BlockPool:  # noqa: ANN401
    """Any empty cell, which is one token over all layers and heads, is used again, by anyone.

    Holes cost attention work, not memory. Defragmentation was removed in August 2025.
    Source: llama.cpp, ``src/llama-kv-cache.cpp``.

    Examples
    --------
    >>> llama_cpp().block_size
    1
    """
    return _pool(1, {"compactor": "none"}, fields)


def masked_attention(block_size: int = 16, **fields: Any) -> BlockPool:  # noqa: ANN401
    """Nothing is freed: evicted entries stay where they are and attention skips them.

    H2O with masks, Quest, and kvpress's AdaKV, DMS and KVzip.
    Source: kvpress, ``attention_patch.py``; H2O, ``utils_hh/modify_llama.py``.

    Examples
    --------
    >>> masked_attention().compactor
    'none'
    """
    return _pool(block_size, {"frees": "none"}, fields)


def _pool(block_size: int, preset: dict[str, Any], fields: dict[str, Any]) -> BlockPool:
    """Return the preset with some fields overridden; a compactor follows a `frees` that is."""
    if "frees" in fields and "compactor" not in fields:
        preset = {name: value for name, value in preset.items() if name != "compactor"}
    known = [field.name for field in attrs.fields(BlockPool)]
    unknown = ", ".join(name for name in fields if name not in known)
    if unknown:
        raise TypeError(
            f"fields must be those of a BlockPool ({', '.join(known)}); got {unknown}; write one "
            "of these, or a keyword that the preset itself has."
        )
    return BlockPool(**({"block_size": block_size} | preset | fields))


@attrs.frozen(kw_only=True)
class Runtime:
    """How real a preset is.

    Parameters
    ----------
    name
        The preset's name.
    rule
        What the runtime takes back, in one sentence.
    layout
        Whether the block layout is ``"shipped"``, ``"proposed"``, in a ``"fork"``, or
        ``"hypothetical"``.
    status
        The same of the rule by which it frees blocks.
    requires
        What must hold for the rule to apply.
    source
        Where it was read.
    """

    name: str
    rule: str
    layout: Status
    status: Status
    requires: tuple[str, ...]
    source: str


_CACHING_OFF: Final = "prefix caching off"
_ONE_RANK: Final = "tensor parallel size 1"

# Preset, status of the layout, status of the freeing rule, what it requires.
_RUNTIMES: Final[dict[str, tuple[Callable[..., BlockPool], Status, Status, tuple[str, ...]]]] = {
    "vllm": (vllm, "shipped", "proposed", (_CACHING_OFF,)),
    "vllm_v0": (vllm_v0, "shipped", "shipped", ()),
    "nano_vllm": (nano_vllm, "shipped", "shipped", ()),
    "sglang": (sglang, "shipped", "hypothetical", ("radix cache off", "whole dead pages only")),
    "tensorrt_llm": (
        tensorrt_llm,
        "shipped",
        "shipped",
        (_CACHING_OFF, "prompt kept", "one length for all layers and heads"),
    ),
    "vattention": (vattention, "shipped", "shipped", ()),
    "kv_compress": (
        kv_compress,
        "fork",
        "fork",
        (_CACHING_OFF, _ONE_RANK, "no chunked prefill"),
    ),
    "kvcached": (kvcached, "shipped", "hypothetical", ("whole pages of free blocks",)),
    "hf_dynamic_cache": (hf_dynamic_cache, "shipped", "shipped", ("batch of 1",)),
    "hf_continuous_batching": (hf_continuous_batching, "shipped", "shipped", ()),
    "openvino_genai": (openvino_genai, "shipped", "shipped", ("eviction during generation",)),
    "lmdeploy": (lmdeploy, "shipped", "shipped", ("sliding-window attention",)),
    "llama_cpp": (llama_cpp, "shipped", "shipped", ()),
    "masked_attention": (masked_attention, "shipped", "shipped", ()),
}


def names() -> tuple[str, ...]:
    """Return the names of the presets.

    Examples
    --------
    >>> names()[:2]
    ('vllm', 'vllm_v0')
    """
    return tuple(_RUNTIMES)


def preset(name: str, **fields: Any) -> BlockPool:  # noqa: ANN401
    """Return the pool of a preset by its name, as the command line spells it.

    Raises
    ------
    ValueError
        For a name that no preset has.

    Examples
    --------
    >>> preset("sglang", page_size=64).block_size
    64
    """
    make, *_ = _RUNTIMES[_checks.as_choice("name", name, names())]
    return make(**fields)


def about(name: str) -> Runtime:
    """Return how real a preset is, what it requires, and where it was read.

    Examples
    --------
    >>> about("vllm").layout, about("vllm").status
    ('shipped', 'proposed')
    """
    make, layout, status, requires = _RUNTIMES[_checks.as_choice("name", name, names())]
    text = " ".join((make.__doc__ or "").split())
    return Runtime(
        name=name,
        rule=text.partition(". ")[0] + ".",
        layout=layout,
        status=status,
        requires=requires,
        source=text.partition("Source: ")[2].partition(". Examples")[0],
    )
