"""Spatial correlation: where the unimportant tokens lie decides what evicting them frees.

A pool of 512 blocks of 16 tokens, half of them evicted; rho mixes noise (0) with a smooth field (1)
whose bumps are as wide as its scale.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.study import choices
from benchmarks.study.measure import (
    LIMIT,
    UNKNOWN,
    Section,
    each,
    exact,
    judged,
    line,
    of_blocks,
    of_values,
    same,
)
from benchmarks.study.results import Chart, Line, Row
from kvreclaim import BlockPool, bounds, importance, policies, take_census

TITLE: Final = "Spatial correlation"
TEXT: Final = (
    "The cheapest half of the tokens frees nothing where importance is scattered, and nearly half "
    "of the blocks where it comes in wide bumps: about one block is lost for each run of evicted "
    "tokens. Whole blocks free their half in any case; what they cost beyond the cheapest tokens "
    "shrinks as the bumps grow. Packed, every one of these masks gives back its half."
)
BLOCK: Final = 16
BLOCKS: Final = 512
TOKENS: Final = BLOCKS * BLOCK
EVICTED: Final = TOKENS // 2
SCALES: Final = (12, 48, 192)
ARTICLE_SCALE: Final = 48
LOWEST: Final = "lowest importance, in place"
GUESS: Final = (
    f"{UNKNOWN}; only its runs' length, one for each 27 blocks, can be told from its figures"
)


class Draw(NamedTuple):
    """What one field gives: blocks freed in place and packed, and shares of importance lost."""

    lowest: int
    packed: int
    whole: int
    lowest_loss: float
    whole_loss: float


def _drawn(rho: float, scale: float, rng: np.random.Generator) -> Draw:
    scores = importance.smooth_field(TOKENS, rho, scale=scale, rng=rng)
    total = float(scores.sum())
    cheapest = choices.lowest(scores, EVICTED)
    whole = policies.whole_block(scores, TOKENS - EVICTED, BlockPool(BLOCK))
    census = take_census(cheapest, BLOCK)
    return Draw(
        lowest=census.num_freed_blocks,
        packed=census.num_blocks - census.num_floor_blocks,
        whole=take_census(whole, BLOCK).num_freed_blocks,
        lowest_loss=float(scores[~cheapest].sum()) / total,
        whole_loss=float(scores[~whole].sum()) / total,
    )


def rice_reclaim(scale: float) -> float:
    """Return the reclaim of a smooth field cut at its median: q less a block lost for each run.

    ``q - (1 - 1 / B) * runs / blocks``, with runs of ``pi * sqrt(2) * scale`` evicted tokens on
    average (Rice's formula). For long sequences: a field cut at its own median, not at the law's,
    has about half a run more. And for runs that are seldom shorter than a block: those lose less.
    """
    runs_per_block = BLOCK * 0.5 / (math.pi * math.sqrt(2) * scale)
    return 0.5 - (1 - 1 / BLOCK) * runs_per_block


def _closed(rho: float, scale: float) -> tuple[float | None, str]:
    if rho == 0:
        scatter = bounds.random_free_blocks(TOKENS, EVICTED, BLOCK).mean / BLOCKS
        return scatter, "bounds.random_free_blocks / blocks"
    if rho == 1 and scale >= ARTICLE_SCALE:  # below, many runs are shorter than a block
        return rice_reclaim(scale), f"{LIMIT}: q - (1 - 1/B) runs / blocks, Rice's runs"
    return None, ""


def _article(rho: float, scale: float) -> tuple[str, str]:
    if scale != ARTICLE_SCALE:
        return "", ""
    return {0.0: ("0.000", "0.50"), 1.0: ("0.465", "0.035")}.get(rho, ("", ""))


def _rows_at(rho: float, scale: int, draws: list[Draw]) -> list[Row]:
    key = f"geometry/scale={scale}/rho={rho}"
    printed, printed_gap = _article(rho, scale)
    about: dict[str, Any] = {
        "section": TITLE,
        "setting": f"smooth_field, sigma 1, smoothed by a Gaussian of sd {scale} tokens; "
        f"{BLOCKS} blocks of {BLOCK}, half evicted",
        "x": rho,
    }
    note = GUESS if printed else ""
    if rho == 1 and scale < ARTICLE_SCALE:
        rice = rice_reclaim(scale)
        note = f"Rice's runs give {rice:.3f} if each loses a block, and short ones lose less"
    closed, law = _closed(rho, scale)
    lowest = of_blocks(
        [draw.lowest for draw in draws],
        BLOCKS,
        **about,
        key=f"{key}/lowest-importance/reclaim",
        series=LOWEST,
        metric="physical reclaim",
        closed_form=closed,
        law=law,
        article=printed,
        note=note,
    )
    gap = _gap_of(
        lowest,
        whole=same(draw.whole for draw in draws) / BLOCKS,
        **about,
        key=f"{key}/gap",
        series=f"scale {scale}",
        metric="gap to whole blocks",
        closed_form=None if closed is None else 0.5 - closed,
        law=_less(law),
        article=printed_gap,
        note=GUESS if printed_gap else "",
    )
    cost = of_values(
        [draw.whole_loss - draw.lowest_loss for draw in draws],
        bounds=(0, 1),
        **about,
        key=f"{key}/extra-loss",
        series=f"scale {scale}",
        metric="loss of whole blocks less that of the lowest",
        verdict="a share of all importance",
    )
    return [lowest, gap, cost]


def _less(law: str) -> str:
    """Return the law of the gap: one half less what the law of the reclaim says."""
    if law.startswith(LIMIT):
        return f"{LIMIT}: (1 - 1/B) runs / blocks, Rice's runs"
    return f"1/2 less {law}" if law else ""


def _gap_of(lowest: Row, whole: float, **said: Any) -> Row:  # noqa: ANN401
    """Return what whole blocks free beyond the cheapest tokens: a constant less a row."""
    mean, ends = whole - lowest.mean, (whole - lowest.high, whole - lowest.low)
    return Row(
        mean=mean,
        sd=lowest.sd,
        low=ends[0],
        high=ends[1],
        n=lowest.n,
        interval=lowest.interval,
        **judged(said, mean, lowest.sd / math.sqrt(lowest.n), ends),
    )


def _same_at_any_scale(rho: float, draws: list[Draw]) -> list[Row]:
    """Return what does not depend on the scores: whole blocks in place, and any mask packed."""
    about: dict[str, Any] = {
        "section": TITLE,
        "setting": f"smooth_field, sigma 1, scales {SCALES}; "
        f"{BLOCKS} blocks of {BLOCK}, half evicted",
        "x": rho,
        "closed_form": EVICTED // BLOCK / BLOCKS,
        "law": "k // B blocks",
    }
    return [
        exact(
            same(draw.packed for draw in draws) / BLOCKS,
            **about,
            key=f"geometry/rho={rho}/packed",
            series="lowest importance, packed",
            metric="packed reclaim",
        ),
        exact(
            same(draw.whole for draw in draws) / BLOCKS,
            **about,
            key=f"geometry/rho={rho}/whole-blocks",
            series="whole blocks, in place",
            metric="physical reclaim",
        ),
    ]


def section(replications: int, *, quick: bool = False) -> Section:
    """Return reclaim, gap and extra loss over rho, for fields of several scales."""
    rhos = [step / 10 for step in range(0, 11, 5 if quick else 1)]
    rows: list[Row] = []
    lines: list[Line] = []
    gaps: list[Line] = []
    costs: list[Line] = []
    draws = {
        (rho, scale): each(partial(_drawn, rho, scale), replications)
        for rho in rhos
        for scale in SCALES
    }
    every = [
        _same_at_any_scale(rho, [draw for scale in SCALES for draw in draws[rho, scale]])
        for rho in rhos
    ]
    packed, whole = zip(*every, strict=True)
    rows += [*packed, *whole]
    for scale in SCALES:
        found = [_rows_at(rho, scale, draws[rho, scale]) for rho in rhos]
        lowest, gap, cost = zip(*found, strict=True)
        rows += [*lowest, *gap, *cost]
        lines += [line(some[0].series, some) for some in (lowest, packed, whole)]
        gaps.append(line(gap[0].series, gap))
        costs.append(line(cost[0].series, cost))
    labels = tuple(f"scale {scale}" for scale in SCALES)
    opening = f"scale {ARTICLE_SCALE}"
    axis = "rho (0: scattered, 1: a smooth field)"
    return Section(
        title=TITLE,
        text=TEXT,
        rows=tuple(rows),
        charts=(
            Chart(
                key="geometry",
                section=TITLE,
                title="What evicting the cheapest tokens frees",
                caption="As unimportant tokens come together, their blocks come free in place.",
                y_range=(0.0, 0.55),
                x_title=axis,
                y_title="reclaim (share of blocks)",
                kind="line",
                lines=tuple(lines),
                selector="Width of the bumps",
                choices=(opening, *(label for label in labels if label != opening)),
                choice_of=tuple(label for label in labels for _ in range(3)),
            ),
            Chart(
                key="geometry-gap",
                section=TITLE,
                title="What whole blocks free beyond the cheapest tokens",
                caption="The gap closes to about a block for each run of evicted tokens.",
                x_title=axis,
                y_title="gap to whole blocks (share of blocks)",
                kind="line",
                lines=tuple(gaps),
            ),
            Chart(
                key="geometry-loss",
                section=TITLE,
                title="What whole blocks lose beyond the cheapest tokens",
                caption="Where the bumps are wider than a block, whole blocks cost almost nothing.",
                x_title=axis,
                y_title="extra loss (share of all importance)",
                kind="line",
                lines=tuple(costs),
            ),
        ),
    )
