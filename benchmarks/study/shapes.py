"""Where methods leave holes: the masks of the study, each of half of the tokens unless told.

The first four have the shapes of real methods on synthetic scores, and are what meets the figures
of the article; they are selection rules, not runs of the methods. The others have a geometry that a
closed form describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvreclaim import importance, policies

Mask: TypeAlias = NDArray[np.bool_]
Shape: TypeAlias = Callable[[int, np.random.Generator], Mask]

SIZES: Final = (4, 8, 12, 16, 24, 32, 48, 64)  # slots of a block
POWERS: Final = (4, 8, 16, 32, 64)

SINK: Final = 4
JITTER: Final = 0.03
WINDOW: Final = 32
KERNEL: Final = 19
LOW_SHARE: Final = 0.864


def streaming_llm(num_tokens: int, rng: np.random.Generator, *, jitter: float = JITTER) -> Mask:
    """Return four sinks and a window; the share kept is 1/2, give or take up to the jitter."""
    share = 0.5 + rng.uniform(-jitter, jitter)
    return policies.streaming_llm(num_tokens, round(share * num_tokens), sink=SINK)


def snapkv(
    num_tokens: int, rng: np.random.Generator, *, kernel: int = KERNEL, pooling: str = "max"
) -> Mask:
    """Return a window of 32, and the tokens of the highest pooled scores before it."""
    votes = importance.lognormal((1, num_tokens), rng=rng)
    return policies.snapkv(votes, num_tokens // 2, window=WINDOW, kernel=kernel, pooling=pooling)


def h2o(num_tokens: int, rng: np.random.Generator) -> Mask:
    """Return the last quarter of the tokens, and as many of the others by their scores."""
    attention = importance.lognormal((1, num_tokens), rng=rng)
    return policies.h2o(attention, num_tokens // 2, recent_share=0.5)


def scattered(num_tokens: int, rng: np.random.Generator) -> Mask:
    """Return half of the tokens, each choice of so many as likely."""
    return policies.random(num_tokens, num_tokens // 2, rng=rng)


METHODS: Final[dict[str, Shape]] = {
    "StreamingLLM": streaming_llm,
    "SnapKV": snapkv,
    "H2O": h2o,
    "random": scattered,
}

WORDS: Final = {
    "StreamingLLM": f"{SINK} sinks and a window, share kept uniform in 0.5 ± {JITTER}",
    "SnapKV": f"half kept, lognormal scores, sigma 1, max-pool {KERNEL}, window {WINDOW}",
    "H2O": "a quarter kept as recent, a quarter of the highest scores, lognormal, sigma 1",
    "random": "a random half kept",
}


def budgets_of_streaming_llm(num_tokens: int, jitter: float = JITTER) -> dict[int, float]:
    """Return how likely `streaming_llm` keeps how many tokens, where the jitter is above 0."""
    least, most = (0.5 - jitter) * num_tokens, (0.5 + jitter) * num_tokens
    return {
        kept: (min(kept + 0.5, most) - max(kept - 0.5, least)) / (most - least)
        for kept in range(round(least), round(most) + 1)
    }


def markov(num_tokens: int, mean_run: float, rng: np.random.Generator) -> Mask:
    """Return runs without memory, dead and live by turns and of one mean length."""
    # A run is as long from wherever it is seen, so the chain may begin with a whole one.
    ends = np.cumsum(rng.geometric(1 / mean_run, num_tokens))
    turns = np.searchsorted(ends, np.arange(num_tokens), side="right")
    keep: Mask = (turns + rng.integers(2)) % 2 == 0
    return keep


def clusters(num_tokens: int, cluster: int, rng: np.random.Generator, *, q: float = 0.5) -> Mask:
    """Return survivors in clusters that begin anywhere and may overlap, a share of 1 - q."""
    begins = rng.random(num_tokens + cluster - 1) < 1 - math.pow(q, 1 / cluster)
    covered = np.concatenate([[0], np.cumsum(begins)])
    keep: Mask = covered[cluster:] > covered[:-cluster]
    return keep


def two_level(num_tokens: int, rng: np.random.Generator, *, run: int = 16) -> Mask:
    """Return aligned runs, half nearly dead and half nearly live, both with strays.

    Half of the tokens are kept on average.
    """
    keep: Mask = importance.two_level(num_tokens, run, LOW_SHARE, rng=rng) > 1
    return keep
