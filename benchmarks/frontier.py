"""How fast, how exact, and how far policies are from it: `python benchmarks/frontier.py`.

Three tables: the time of a point, of a whole frontier and of the mixed-integer program; what the
program finds and what both can prove; and policies against the frontier on the pool of 512 blocks
of 16 tokens, importance lognormal with sigma = 1, half of the tokens evicted.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from kvreclaim import (
    evict_for_blocks,
    frontier_excess,
    importance,
    max_free_blocks,
    policies,
    reclaim_frontier,
    take_census,
)

BLOCK: Final = 16

Scores = NDArray[np.float64]
Mask = NDArray[np.bool_]


def lowest(scores: Scores, num_evicted: int) -> Mask:
    """Return the mask that evicts the lowest scores."""
    return policies.lowest_importance(scores, len(scores) - num_evicted)


def whole_blocks(scores: Scores, num_evicted: int) -> Mask:
    """Return the mask that evicts the blocks of lowest mean."""
    return policies.whole_block(scores, len(scores) - num_evicted, BLOCK)


def blended(scores: Scores, num_evicted: int, share: float) -> Mask:
    """Return the mask of scores that blend a token's own with the mean of its block."""
    means = np.repeat(scores.reshape(-1, BLOCK).mean(axis=1), BLOCK)
    return lowest(share * scores + (1 - share) * means, num_evicted)


def blended_ranks(scores: Scores, num_evicted: int, share: float) -> Mask:
    """Return the mask of ranks that blend a token's own with that of its block's mean."""
    means = np.repeat(scores.reshape(-1, BLOCK).mean(axis=1), BLOCK)
    ranks = share * rankdata(scores) + (1 - share) * rankdata(means)
    return lowest(ranks, num_evicted)


def finishing(scores: Scores, num_evicted: int, share: float) -> Mask:
    """Return the mask that spends a share on the lowest tokens, then finishes blocks.

    Blocks whose remaining tokens cost least come first; the first that does not fit ends it.
    """
    keep = lowest(scores, int(share * num_evicted))
    blocks = keep.reshape(-1, BLOCK)
    rest = np.where(blocks, scores.reshape(-1, BLOCK), 0.0).sum(axis=1)
    left = num_evicted - int(np.count_nonzero(~keep))
    for block in np.argsort(rest, kind="stable"):
        needed = int(np.count_nonzero(blocks[block]))
        if needed > left:
            break
        left -= needed
        blocks[block] = False
    return keep


def compared(rng: np.random.Generator) -> dict[str, Callable[[Scores, int], Mask]]:
    """Return the policies of the table, by name."""
    return {
        "random": lambda scores, num: policies.random(len(scores), len(scores) - num, rng=rng),
        "lowest tokens": lowest,
        "whole blocks": whole_blocks,
        **{
            f"finishing, {share} on tokens": partial(finishing, share=share)
            for share in (0.25, 0.5, 0.75)
        },
        **{
            f"{share} token + {1 - share} block": partial(blended, share=share)
            for share in (0.05, 0.1, 0.2)
        },
        "ranks, 0.25 token + 0.75 block": partial(blended_ranks, share=0.25),
    }


class Figures(NamedTuple):
    """What a policy gives on one draw of scores."""

    reclaim: float
    loss: float  # share of all importance
    excess: float


def measured(seeds: int, *, num_tokens: int = 8_192) -> dict[str, list[Figures]]:
    """Return the figures of every policy, a draw for each seed."""
    figures: dict[str, list[Figures]] = {}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        scores = importance.lognormal(num_tokens, rng=rng)
        for name, policy in compared(rng).items():
            keep = policy(scores, num_tokens // 2)
            census = take_census(keep, BLOCK)
            figures.setdefault(name, []).append(
                Figures(
                    census.num_freed_blocks / census.num_blocks,
                    float(scores[~keep].sum() / scores.sum()),
                    frontier_excess(keep, scores, BLOCK),
                )
            )
    return figures


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the least time of a few runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def print_times() -> None:
    """Print how long a point and a frontier take."""
    print(f"{'tokens':>8} {'one point':>12} {'whole frontier':>16} {'points':>7}")
    for tokens in (512, 2_048, 8_192, 16_384, 65_536):
        scores = importance.lognormal(tokens, rng=np.random.default_rng(0))
        num = tokens // 2
        blocks = max_free_blocks(scores, BLOCK, num) // 2
        point = seconds(partial(evict_for_blocks, scores, BLOCK, num, blocks))
        whole = seconds(partial(reclaim_frontier, scores, BLOCK, num), repeats=1)
        print(f"{tokens:8} {point * 1e3:9.2f} ms {whole:14.3f} s {2 * blocks + 1:7}")


def print_gaps(*, milp: bool) -> None:
    """Print what is proved of points, and the mixed-integer program beside it."""
    print(f"\n{'tokens':>8} {'sigma':>6} {'blocks':>7} {'loss':>12} {'gap':>9}", end="")
    print(f" {'milp loss':>12} {'milp gap':>9} {'seconds':>8} {'ratio':>7}" if milp else "")
    for tokens in (512, 2_048, 8_192):
        for sigma in (1.0, 2.0):
            scores = importance.lognormal(tokens, sigma, rng=np.random.default_rng(1))
            blocks = tokens // BLOCK // 4
            best = evict_for_blocks(scores, BLOCK, tokens // 2, blocks)
            line = f"{tokens:8} {sigma:6} {blocks:7} {best.loss:12.4f} {best.gap:9.1e}"
            if milp:
                point = seconds(partial(evict_for_blocks, scores, BLOCK, tokens // 2, blocks))
                start = time.perf_counter()
                slow = evict_for_blocks(scores, BLOCK, tokens // 2, blocks, method="milp")
                took = time.perf_counter() - start
                line += f" {slow.loss:12.4f} {slow.gap:9.1e} {took:8.2f} {took / point:7.0f}"
            print(line)


def print_policies(seeds: int) -> None:
    """Print the policies against the frontier, and the frontier itself."""
    scores = [importance.lognormal(8_192, rng=np.random.default_rng(seed)) for seed in range(seeds)]
    points = (0, 64, 128, 192, 256)
    lines = [reclaim_frontier(some, BLOCK, 4_096, points).loss for some in scores]
    shares = np.array(lines) / np.array([some.sum() for some in scores])[:, None]
    print(f"\nfrontier, {seeds} draws of 512 blocks of {BLOCK}, half of the tokens evicted")
    print("reclaim ", *(f"{point / 512:7.3f}" for point in points))
    print("loss    ", *(f"{share:7.3f}" for share in shares.mean(axis=0)))
    print(f"\n{'policy':30} {'reclaim':>15} {'loss':>15} {'above the frontier':>19}")
    for name, figures in measured(seeds).items():
        mean, sd = np.mean(figures, axis=0), np.std(figures, axis=0, ddof=min(1, seeds - 1))
        print(
            f"{name:30} {mean[0]:7.3f} ± {sd[0]:.3f} {mean[1]:7.3f} ± {sd[1]:.3f} "
            f"{mean[2]:10.2%} ± {sd[2]:.2%}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=30, help="draws of scores (30)")
    parser.add_argument("--no-milp", action="store_true", help="leave the slow program out")
    options = parser.parse_args()
    print_times()
    print_gaps(milp=not options.no_milp)
    print_policies(options.seeds)


if __name__ == "__main__":
    main()
