"""Names of policies and models, and numbers as cells of a table."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from kvreclaim.statistics import Summary

NAMES: Final = {
    "streaming_llm": "StreamingLLM",
    "snapkv": "SnapKV",
    "h2o": "H2O",
    "tova": "TOVA",
    "knorm": "Knorm",
    "ada_kv": "Ada-KV",
    "pyramid_kv": "PyramidKV",
    "chunk_kv_16": "ChunkKV 16",
    "chunk_kv_20": "ChunkKV 20",
    "random": "random",
    "snapkv_common": "SnapKV, in common",
    "whole_block_head": "whole blocks, per head",
    "whole_block_layer": "whole blocks, per layer",
    "whole_block_all": "whole blocks, in common",
    "evict_for_blocks_50": "evict for blocks, 50 %",
    "evict_for_blocks_75": "evict for blocks, 75 %",
}
MODELS: Final = {"smollm2-135m": "SmolLM2-135M", "gemma3-270m": "Gemma 3 270M"}
LAYOUTS: Final = {"head": "per head", "layer": "per layer", "all": "one for all"}
"""Whose block table it is."""

_SHOWN: Final = 0.0005  # what three decimals still show
NOTHING: Final = ""


def model_name(model: str) -> str:
    """Return what a model is called on a page."""
    return MODELS.get(model, model)


def plain(value: float) -> str:
    """Return a number with three decimals; empty where it is undefined.

    Examples
    --------
    >>> plain(0.12345), plain(-0.0001), plain(math.nan), plain(math.inf)
    ('0.123', '0.000', '', 'inf')
    """
    return NOTHING if math.isnan(value) else f"{value:z.3f}"


def small(value: float) -> str:
    """Return a number with three decimals, or in powers of ten where these would show none of it.

    Examples
    --------
    >>> small(0.12345), small(0.0), small(1.526e-05), small(1e-300), small(math.nan)
    ('0.123', '0', '1.5e-05', '<1e-9', '')
    """
    if value == 0:
        return "0"
    if 0 < value < 1e-9:  # noqa: PLR2004  # nothing, for any pool
        return "<1e-9"
    return f"{value:.1e}" if 0 < value < _SHOWN else plain(value)


def rounded(value: float) -> str:
    """Return a number with one decimal; empty where it is undefined.

    Examples
    --------
    >>> rounded(13.91), rounded(math.inf), rounded(math.nan)
    ('13.9', 'inf', '')
    """
    return NOTHING if math.isnan(value) else f"{value:.1f}"


def pair(first: float, second: float) -> str:
    """Return two numbers in one cell, such as what comes back in place and packed."""
    return f"{plain(first)} / {plain(second)}"


def interval(summary: Summary | None, *, signed: bool = False) -> str:
    """Return a mean with its t interval; the mean alone where there is none.

    Samples that are all alike have none: how far the next one may lie is not theirs to tell.

    Examples
    --------
    >>> from kvreclaim.statistics import summarize
    >>> interval(summarize([0.45, 0.47, 0.5])), interval(summarize([0.5, 0.5])), interval(None)
    ('0.473 (0.411 to 0.536)', '0.500', '')
    >>> interval(summarize([-0.001, 0.1, 0.3]), signed=True)
    '+0.133 (-0.248 to +0.514)'
    """
    if summary is None or math.isnan(summary.mean):
        return NOTHING
    form = "+z.3f" if signed else "z.3f"
    mean = f"{summary.mean:{form}}"
    if math.isnan(summary.low) or summary.method == "rule of three":
        return mean
    return f"{mean} ({summary.low:{form}} to {summary.high:{form}})"


def share_of(counts: Iterable[tuple[int, int]]) -> str:
    """Return how many of how many.

    Examples
    --------
    >>> share_of([(1, 3), (2, 3)])
    '3 of 6'
    """
    some = list(counts)
    return f"{sum(part for part, _ in some):,} of {sum(whole for _, whole in some):,}"
