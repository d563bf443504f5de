"""The strategies that are compared: which tokens go, given their importance.

Each takes scores, rows of tokens, and how many tokens of each row go; every row chooses by itself.
Only `most_blocks` chooses for all rows of a table together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.study.measure import UNKNOWN
from kvreclaim import BlockPool, evict_for_blocks, max_free_blocks, policies

Scores: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Strategy: TypeAlias = Callable[[Scores, int], Mask]

RANDOM: Final = "random"
LOWEST: Final = "lowest importance"
WHOLE: Final = "whole blocks"
AWARE: Final = "reclaimability-aware"
BLEND: Final = "blend of scores"
BEST: Final = "frontier"

# What a setting says of a strategy that has a number of its own.
WORDS: Final = {
    AWARE: "half of the budget on the lowest tokens, then the blocks cheapest to finish",
    BLEND: "0.1 x own score + 0.9 x mean of its block",
}
SCORES: Final = f"{UNKNOWN}: lognormal scores of sigma 1 in 512 blocks of 16 are a guess"

GUESS: Final = (
    f"{UNKNOWN}, nor is its policy: half of the budget on the cheapest tokens, then the blocks "
    "that cost least to finish is a guess that meets its three figures"
)


def by_row(block_size: int, rng: np.random.Generator) -> dict[str, Strategy]:
    """Return the strategies in which every row chooses by itself, by name."""
    alone = BlockPool(block_size, shared_axes="")
    return {
        RANDOM: lambda scores, num: policies.random(scores.shape, scores.shape[-1] - num, rng=rng),
        LOWEST: lowest,
        WHOLE: lambda scores, num: policies.whole_block(scores, scores.shape[-1] - num, alone),
        AWARE: partial(finishing, block_size=block_size),
        BLEND: partial(blended, block_size=block_size),
    }


def lowest(scores: Scores, num_evicted: int) -> Mask:
    """Return the mask that evicts the lowest scores."""
    return policies.lowest_importance(scores, scores.shape[-1] - num_evicted)


def finishing(scores: Scores, num_evicted: int, block_size: int, share: float = 0.5) -> Mask:
    """Return the mask that spends a share on the lowest tokens, then finishes blocks.

    Blocks whose remaining tokens cost least come first; the first that does not fit ends it, and
    the cheapest other tokens spend what is left. Only full blocks are finished.
    """
    tokens = scores.shape[-1]
    full = tokens // block_size * block_size
    rows = np.array(lowest(scores, int(share * num_evicted))).reshape(-1, tokens)
    for row, own in zip(rows, scores.reshape(-1, tokens), strict=True):
        blocks = row[:full].reshape(-1, block_size)
        rest = np.where(blocks, own[:full].reshape(-1, block_size), 0.0).sum(axis=1)
        order = np.argsort(rest, kind="stable")
        left = num_evicted - int(np.count_nonzero(~row))
        fits = np.cumsum(np.count_nonzero(blocks[order], axis=1)) <= left
        blocks[order[fits]] = False
        row[:] = lowest(np.where(row, own, own.min() - 1.0), num_evicted)
    return rows.reshape(scores.shape)


def blended(scores: Scores, num_evicted: int, block_size: int, share: float = 0.1) -> Mask:
    """Return the mask of scores that blend a token's own with the mean of its block.

    The tokens must fill whole blocks.
    """
    blocks = scores.reshape(*scores.shape[:-1], -1, block_size)
    means = np.broadcast_to(blocks.mean(axis=-1, keepdims=True), blocks.shape)
    return lowest(share * scores + (1 - share) * means.reshape(scores.shape), num_evicted)


def most_blocks(
    scores: Scores, pool: BlockPool, num_evicted: int, *, axes: str | None = None
) -> Mask:
    """Return the mask of least loss that frees as many blocks as its budget of entries pays for.

    Rows that share blocks choose together.
    """
    blocks = max_free_blocks(scores, pool, num_evicted, axes=axes)
    return evict_for_blocks(scores, pool, num_evicted, blocks, axes=axes).keep
