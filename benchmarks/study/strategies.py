"""Strategies against importance loss: what each frees, what it loses, and the least it could lose.

A pool of 512 blocks of 16 tokens, half of them evicted; every strategy sees the same scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
from scipy import special

from benchmarks.study import choices, expected
from benchmarks.study.choices import AWARE, BEST, BLEND, LOWEST, RANDOM, WHOLE, Scores
from benchmarks.study.measure import (
    LIMIT,
    Section,
    each,
    exact,
    largest,
    line,
    of_blocks,
    of_values,
)
from benchmarks.study.results import Chart, Line, Row
from kvreclaim import bounds, frontier_excess, importance, reclaim_frontier, take_census

TITLE: Final = "Strategies against importance loss"
TEXT: Final = (
    "One budget, half of the tokens, spent in different ways. Tokens chosen by themselves lose "
    "least and free nothing; whole blocks free all that the budget pays for and lose more. Between "
    "them lies the frontier: the least loss at which so many blocks can come free at all, proved "
    "for each point by a bound that no mask beats. Other distributions of importance change what "
    "that costs; where cold tokens come in runs, the cheapest tokens free blocks, too."
)
BLOCK: Final = 16
BLOCKS: Final = 512
TOKENS: Final = BLOCKS * BLOCK
EVICTED: Final = TOKENS // 2
STRATEGIES: Final = (RANDOM, LOWEST, WHOLE, AWARE, BLEND)
SAMPLES: Final[dict[str, Callable[..., Scores]]] = {
    "lognormal": importance.lognormal,
    "pareto": importance.pareto,
    "exponential": importance.exponential,
    "uniform": importance.uniform,
    "two_level": importance.two_level,
}

# What the cheapest half holds of all importance.
_LOWEST_LOSS: Final = {
    "lognormal": (float(special.ndtr(-1)), "Phi(Phi^-1(q) - sigma)"),
    "pareto": (1 - math.pow(0.5, 1 / 3), "1 - (1 - q)^(1 - 1/alpha)"),
    "exponential": (0.5 - 0.5 * math.log(2), "q + (1 - q) ln(1 - q)"),
    "uniform": (0.25, "q^2"),
    "two_level": (0.25, "q^2"),
}
_WORDS: Final = {
    "lognormal": "lognormal importance, sigma 1",
    "pareto": "pareto importance, alpha 1.5",
    "exponential": "exponential importance",
    "uniform": "uniform importance, 0 to 1",
    "two_level": "two_level importance, runs of 16, low with chance 0.9 in half of them, else 0.1",
}
_ARTICLE: Final[dict[str, dict[str, str]]] = {
    RANDOM: {"reclaim": "0.0", "loss": "50%"},
    LOWEST: {"reclaim": "0.0", "loss": "16%"},
    WHOLE: {"reclaim": "0.50", "loss": "38%", "efficiency": "1.0"},
    AWARE: {"reclaim": "0.36", "loss": "28%"},
}


class Draw(NamedTuple):
    """What one draw of scores gives: by strategy, and along the frontier."""

    freed: dict[str, int]
    loss: dict[str, float]  # share of all importance
    excess: dict[str, float]
    frontier: tuple[float, ...]
    gap: float  # the largest share of a point's loss that is not proved


def _drawn(
    sample: Callable[..., Scores], points: tuple[int, ...], rng: np.random.Generator
) -> Draw:
    scores = sample(TOKENS, rng=rng)
    total = float(scores.sum())
    masks = {
        name: choose(scores, EVICTED)
        for name, choose in choices.by_row(BLOCK, rng).items()
        if name in STRATEGIES
    }
    best = reclaim_frontier(scores, BLOCK, EVICTED, points)
    proved = zip(best.loss, best.lower_bound, strict=True)
    return Draw(
        freed={name: take_census(keep, BLOCK).num_freed_blocks for name, keep in masks.items()},
        loss={name: float(scores[~keep].sum()) / total for name, keep in masks.items()},
        excess={name: frontier_excess(keep, scores, BLOCK) for name, keep in masks.items()},
        frontier=tuple(loss / total for loss in best.loss),
        gap=max((loss - bound) / loss for loss, bound in proved),
    )


def _reclaim_law(strategy: str, distribution: str) -> tuple[float | None, str]:
    """Return the expected reclaim; scores of independent tokens are scattered by any ranking."""
    if strategy == WHOLE:
        return bounds.free_block_bounds(TOKENS, EVICTED, BLOCK)[1] / BLOCKS, "most blocks it pays"
    if strategy == LOWEST and distribution == "two_level":
        law = "(p^B + (1 - p)^B) / 2, p = 0.9, less what a budget below the cold tokens leaves"
        return expected.two_level_reclaim(BLOCKS, BLOCK, EVICTED, 0.9), law
    if strategy in (RANDOM, LOWEST):
        law = "bounds.random_free_blocks / blocks"
        return bounds.random_free_blocks(TOKENS, EVICTED, BLOCK).mean / BLOCKS, law
    return None, ""


def _loss_law(strategy: str, distribution: str) -> tuple[float | None, str]:
    """Return the expected loss, for many tokens."""
    if strategy == RANDOM:
        return 0.5, "q"
    if strategy == LOWEST:
        loss, law = _LOWEST_LOSS[distribution]
        return loss, f"{LIMIT}: {law}"
    if strategy == WHOLE and distribution == "exponential":
        # The sum of a block is Gamma(B); a share of the total weighs it once more.
        median = special.gammaincinv(BLOCK, 0.5)
        return float(special.gammainc(BLOCK + 1, median)), f"{LIMIT}: P(B + 1, median of Gamma(B))"
    return None, ""


def _setting(distribution: str, strategy: str = "") -> str:
    words = f"{_WORDS[distribution]}, {BLOCKS} blocks of {BLOCK}, half evicted"
    return f"{words}: {choices.WORDS[strategy]}" if strategy in choices.WORDS else words


def _rows_of(strategy: str, distribution: str, draws: list[Draw]) -> list[Row]:
    article = _ARTICLE.get(strategy, {}) if distribution == "lognormal" else {}
    key = f"strategies/{distribution}/{strategy.replace(' ', '-')}"
    about: dict[str, Any] = {
        "section": TITLE,
        "series": strategy,
        "setting": _setting(distribution, strategy),
        "note": (choices.GUESS if strategy == AWARE else choices.SCORES) if article else "",
    }
    closed, law = _reclaim_law(strategy, distribution)
    first = of_blocks(
        [draw.freed[strategy] for draw in draws],
        BLOCKS,
        promised=strategy == WHOLE,
        key=f"{key}/reclaim",
        x=strategy,
        metric="physical reclaim",
        closed_form=closed,
        law=law,
        article=article.get("reclaim", ""),
        **about,
    )
    closed, law = _loss_law(strategy, distribution)
    loss = of_values(
        [draw.loss[strategy] for draw in draws],
        bounds=(0, 1),
        **about,
        key=f"{key}/loss",
        x=first.mean,
        metric="loss of importance",
        closed_form=closed,
        law=law,
        article=article.get("loss", ""),
    )
    over = [draw.excess[strategy] for draw in draws]
    said: dict[str, Any] = {
        "key": f"{key}/excess",
        "x": strategy,
        "metric": "excess over the frontier",
        "verdict": "loss beyond the least of its budget and free blocks, as a share of that",
    }
    rows = [
        first,
        loss,
        of_values(over, **about, **said) if any(over) else exact(0.0, **about, **said),
    ]
    if "efficiency" in article:
        rows.append(
            exact(
                first.mean / 0.5,
                **about,
                key=f"{key}/efficiency",
                x=strategy,
                metric="reclaim efficiency",
                closed_form=1.0,
                law="reclaim / saving",
                article=article["efficiency"],
            )
        )
    return rows


def _frontier_rows(distribution: str, points: tuple[int, ...], draws: list[Draw]) -> list[Row]:
    key = f"strategies/{distribution}/frontier"
    setting = _setting(distribution)
    rows = [
        of_values(
            [draw.frontier[place] for draw in draws],
            bounds=(0, 1),
            key=f"{key}/{blocks}/loss",
            section=TITLE,
            series=BEST,
            setting=setting,
            x=blocks / BLOCKS,
            metric="loss of importance",
            verdict="the least loss at so many free blocks",
        )
        for place, blocks in enumerate(points)
    ]
    gap = largest(
        [draw.gap for draw in draws],
        key=f"{key}/gap",
        section=TITLE,
        series=BEST,
        setting=setting,
        x=distribution,
        metric="certified gap",
        verdict=f"the largest share of a loss that is not proved, of {len(draws)} draws",
    )
    return [*rows, gap]


def section(replications: int, *, quick: bool = False) -> Section:
    """Return strategies and frontier for each distribution of importance."""
    points = tuple(range(0, BLOCKS // 2 + 1, 64 if quick else 16))
    rows: list[Row] = []
    lines: list[Line] = []
    choice_of: list[str] = []
    excess: list[Line] = []
    for distribution, sample in SAMPLES.items():
        draws: list[Draw] = each(partial(_drawn, sample, points), replications)
        best = _frontier_rows(distribution, points, draws)
        found = {name: _rows_of(name, distribution, draws) for name in STRATEGIES}
        rows += [row for some in found.values() for row in some] + best
        lines += [line(BEST, best[:-1]), *(line(name, [found[name][1]]) for name in STRATEGIES)]
        choice_of += [distribution] * (1 + len(STRATEGIES))
        excess.append(line(distribution, [found[name][2] for name in STRATEGIES if name != RANDOM]))
    return Section(
        title=TITLE,
        text=TEXT,
        rows=tuple(rows),
        charts=(
            Chart(
                key="strategies",
                section=TITLE,
                title="What is freed, and what it loses",
                caption="Right is more memory, down is less loss; nothing lies below the frontier.",
                x_title="physical reclaim (share of blocks)",
                y_title="loss (share of importance)",
                kind="scatter",
                lines=tuple(lines),
                selector="Importance",
                choices=tuple(SAMPLES),
                choice_of=tuple(choice_of),
                y_range=(0.0, 0.6),
            ),
            Chart(
                key="strategies-excess",
                section=TITLE,
                title="How far each strategy lies above the frontier",
                caption=(
                    "0 could not be better: cheapest tokens and whole blocks are end points. "
                    "Random eviction, which loses about two to three times the least, is left out."
                ),
                x_title="strategy",
                y_title="excess over the frontier (share of the least loss)",
                kind="bar",
                lines=tuple(excess),
            ),
        ),
    )
