"""Rows that share blocks: masks of rows that choose by chance, by importance, or together.

Rows of 512 tokens in blocks of 16, half of each row evicted.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from benchmarks.study import choices, shapes
from kvreclaim import BlockPool, Census, importance, policies, take_census

TOKENS: Final = 512
BLOCK: Final = 16
BLOCKS: Final = TOKENS // BLOCK
KEPT: Final = TOKENS // 2
POOL: Final = BlockPool(BLOCK, shared_axes="h")
AXES: Final = "ht"
RUN: Final = 64
RANDOM: Final = "random"
WINDOW: Final = "StreamingLLM"
RUNS: Final = f"runs of {RUN}, each row its own"
LOWEST: Final = "lowest importance by row"
SNAPKV: Final = "SnapKV-like by row"
JOINT: Final = "whole blocks chosen jointly"


# What a setting says of a series beside the size of its rows.
WORDS: Final = {
    WINDOW: f"{shapes.SINK} sinks and a window",
    RUNS: f"dead and live runs of {RUN} tokens on average, without memory",
    LOWEST: "lognormal importance, sigma 1",
    SNAPKV: f"lognormal importance, sigma 1, max-pool {shapes.KERNEL}, window {shapes.WINDOW}",
    JOINT: "lognormal importance, sigma 1",
}


class Drawn(NamedTuple):
    """The census of a mask, and the share of importance that it loses (nan without importance)."""

    census: Census
    loss: float = math.nan


def correlated(rows: int, correlation: float, rng: np.random.Generator) -> choices.Scores:
    """Return lognormal scores whose logarithms have a part in common to all rows.

    The correlation of two rows' logarithms is as given.
    """
    common = importance.lognormal(TOKENS, rng=rng) ** math.sqrt(correlation)
    return common * importance.lognormal((rows, TOKENS), rng=rng) ** math.sqrt(1 - correlation)


def by_chance(rows: int, rng: np.random.Generator) -> dict[str, Drawn]:
    """Return what rows without importance give: scattered, windows, and runs of chance."""
    runs = np.stack([shapes.markov(TOKENS, RUN, rng) for _ in range(rows)])
    masks = {
        RANDOM: policies.random((rows, TOKENS), KEPT, rng=rng),
        WINDOW: policies.streaming_llm((rows, TOKENS), KEPT, sink=shapes.SINK),
        RUNS: runs,
    }
    return {name: Drawn(take_census(keep, POOL, axes=AXES)) for name, keep in masks.items()}


def by_scores(rows: int, correlation: float, rng: np.random.Generator) -> dict[str, Drawn]:
    """Return what rows give that choose by their importance, by themselves or jointly."""
    scores = correlated(rows, correlation, rng)
    votes = scores[:, None]  # the attention of one query stands for that of the window
    masks = {
        LOWEST: choices.lowest(scores, TOKENS - KEPT),
        SNAPKV: policies.snapkv(
            votes, KEPT, window=shapes.WINDOW, kernel=shapes.KERNEL, pooling="max"
        ),
        JOINT: choices.most_blocks(scores, POOL, rows * (TOKENS - KEPT), axes=AXES),
    }
    total = float(scores.sum())
    return {
        name: Drawn(take_census(keep, POOL, axes=AXES), float(scores[~keep].sum()) / total)
        for name, keep in masks.items()
    }
