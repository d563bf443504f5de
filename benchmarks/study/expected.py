"""What closed forms say of the shapes of methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

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
