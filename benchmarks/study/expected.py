"""What closed forms say of the shapes of methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from scipy import stats

from benchmarks.study import shapes
from kvreclaim import bounds, take_census

LAWS: Final = {
    "StreamingLLM": "window_free_blocks, mean over the budgets",
    "H2O": "heavy_hitter_free_blocks",
    "random": "random_free_blocks",
}


def reclaim(name: str, num_tokens: int, size: int) -> float | None:
    """Return what a closed form says of a shape, None where there is none."""
    blocks = -(-num_tokens // size)
    if name == "StreamingLLM":
        return _mean_over_budgets(
            num_tokens,
            lambda kept: (
                bounds.window_free_blocks(num_tokens, shapes.SINK, kept - shapes.SINK, size)
                / blocks
            ),
        )
    if name == "H2O":
        quarter = num_tokens // 4
        return bounds.heavy_hitter_free_blocks(num_tokens, quarter, quarter, size).mean / blocks
    if name == "random":
        return bounds.random_free_blocks(num_tokens, num_tokens // 2, size).mean / blocks
    return None


def two_level_reclaim(blocks: int, size: int, num_evicted: int, share: float) -> float:
    """Return the expected reclaim of the lowest scores of `importance.two_level`, runs of a block.

    So many blocks, half of them cold. The low tokens are two binomial counts; where they outnumber
    the budget, some at random stay, and where they fall short, some high ones go.
    """
    tokens, half = blocks * size, blocks // 2
    within = np.arange(size + 1)
    reclaim = 0.0
    for own, cold, hot in ((share, half - 1, blocks - half), (1 - share, half, blocks - half - 1)):
        others = np.convolve(
            stats.binom(cold * size, share).pmf(np.arange(cold * size + 1)),
            stats.binom(hot * size, 1 - share).pmf(np.arange(hot * size + 1)),
        )
        for inside, chance in zip(within, stats.binom(size, own).pmf(within), strict=True):
            low = inside + np.arange(others.size)
            spared, others_go = np.ones(others.size), np.ones(others.size)
            for taken in range(size):
                if taken < inside:  # each of them among those that go
                    spared *= np.clip((num_evicted - taken) / np.maximum(low - taken, 1), 0, 1)
                else:
                    rest, high = num_evicted - low - taken + inside, tokens - low - taken + inside
                    others_go *= np.clip(rest / np.maximum(high, 1), 0, 1)
            reclaim += float(chance * (others @ (spared * others_go))) / 2
    return reclaim


def _mean_over_budgets(num_tokens: int, of_kept: Callable[[int], float]) -> float:
    """Return the mean over the budgets that StreamingLLM's jitter gives."""
    chances = shapes.budgets_of_streaming_llm(num_tokens)
    return sum(chance * of_kept(kept) for kept, chance in chances.items())


def moved_share(num_tokens: int, size: int) -> float:
    """Return StreamingLLM's moves of a full compaction over its survivors, in the long run."""

    def moves(kept: int) -> int:
        keep = np.arange(num_tokens) < shapes.SINK
        keep[num_tokens - (kept - shapes.SINK) :] = True
        return take_census(keep, size).num_moved_entries

    return _mean_over_budgets(num_tokens, moves) / _mean_over_budgets(num_tokens, float)
