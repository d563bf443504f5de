"""A fixed budget: what a random choice of so many tokens frees, and what any choice can."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.study.measure import each, exact, line, of_ratio, of_values
from benchmarks.study.results import Chart, Row
from kvreclaim import bounds, policies, take_census

BLOCK: Final = 16
TOKENS: Final = 512
BLOCKS: Final = TOKENS // BLOCK
SEQUENCES: Final = 256  # in a replication
OFTEN: Final = 0.002  # reclaim from which a ratio of two of them says something


def against_coins(
    title: str, replications: int, retained: tuple[Fraction, ...]
) -> tuple[list[Row], Chart]:
    """Return what a fixed budget frees as a multiple of what independent eviction does."""
    reclaim: list[Row] = []
    ratios: dict[str, list[Row]] = {
        name: [] for name in ("fixed", "independent", "fixed, closed form")
    }
    for share in retained:
        kept = policies.num_kept_for(share, TOKENS)
        independent = bounds.independent_reclaim(Fraction(TOKENS - kept, TOKENS), BLOCK)
        laws = {
            "fixed": (_at_random(kept), "random_free_blocks"),
            "independent": (independent, "q^B"),
        }
        drawn = each(partial(_freed, kept), replications)
        said: dict[str, Any] = {
            "section": title,
            "setting": f"B = {BLOCK}, {_kept_words(share, kept)}, {SEQUENCES} sequences",
            "x": float(share),
        }
        metric = "physical reclaim, as a multiple of q^B"
        for name, (law, words) in laws.items():
            where = f"laws/{name}/N={TOKENS}/retained={float(share):.2f}"
            counts = [pair[name] for pair in drawn]
            reclaim.append(
                of_ratio(
                    counts,
                    [SEQUENCES * BLOCKS] * replications,
                    key=f"{where}/reclaim",
                    series=name,
                    metric="physical reclaim",
                    closed_form=law,
                    law=words,
                    **said,
                )
            )
            if law >= OFTEN:
                ratios[name].append(
                    of_values(
                        [count / (SEQUENCES * BLOCKS * independent) for count in counts],
                        key=f"{where}/measured-ratio",
                        series=name,
                        metric=metric,
                        closed_form=law / independent,
                        law=f"{words} over q^B" if name == "fixed" else "1",
                        **said,
                    )
                )
        ratios["fixed, closed form"].append(
            exact(
                laws["fixed"][0] / independent,
                key=f"laws/fixed/N={TOKENS}/retained={float(share):.2f}/ratio",
                series="fixed, closed form",
                metric=metric,
                law="random_free_blocks over q^B",
                verdict="below 1: q^B is no lower bound, random eviction itself is under it",
                **said,
            )
        )
    chart = Chart(
        key="laws-fixed",
        section=title,
        title="A fixed budget frees less than independent eviction",
        caption=(
            f"Sequences of {TOKENS} tokens, B = {BLOCK}: blocks compete for one budget, so a "
            "random choice of so many tokens frees less than q^B. Points are random masks, where "
            "blocks come free often enough to tell; the dashed line is the closed form."
        ),
        x_title="retained ratio (share of tokens kept)",
        y_title="physical reclaim as a multiple of q^B",
        kind="scatter",
        lines=tuple(line(name, some, dashed="closed" in name) for name, some in ratios.items()),
        log_x=False,
    )
    return [*reclaim, *(row for some in ratios.values() for row in some)], chart


def _kept_words(share: Fraction, kept: int) -> str:
    """Return the tokens kept, and where a share is not whole tokens that it was rounded down."""
    words = f"{kept} of {TOKENS} tokens kept"
    return words if share * TOKENS == kept else f"{words} ({float(share):.2f}, rounded down)"


def _at_random(kept: int) -> float:
    return bounds.random_free_blocks(TOKENS, TOKENS - kept, BLOCK).mean / BLOCKS


def _freed(kept: int, rng: np.random.Generator) -> dict[str, int]:
    """Return the blocks that a fixed budget frees, and coins with its share."""
    keeps = {
        "fixed": policies.random((SEQUENCES, TOKENS), kept, rng=rng),
        "independent": rng.random((SEQUENCES, TOKENS)) < kept / TOKENS,
    }
    return {
        name: take_census(keep, BLOCK, axes="bt").num_freed_blocks for name, keep in keeps.items()
    }


def between_bounds(title: str, retained: tuple[Fraction, ...]) -> tuple[list[Row], Chart]:
    """Return what any choice of so many tokens frees at least and at most, and a random one."""
    rows: dict[str, list[Row]] = {"at most": [], "at random": [], "at least": []}
    for share in retained:
        kept = policies.num_kept_for(share, TOKENS)
        fewest, most = bounds.free_block_bounds(TOKENS, TOKENS - kept, BLOCK)
        found = {
            "at most": (most / BLOCKS, "free_block_bounds", "a bound, and attained"),
            "at random": (_at_random(kept), "random_free_blocks", "an expectation, not a bound"),
            "at least": (fewest / BLOCKS, "free_block_bounds", "a bound, and attained"),
        }
        for name, (value, law, note) in found.items():
            where = name.replace(" ", "-")
            key = f"laws/bounds/{where}/retained={float(share):.2f}/reclaim"
            if name == "at random":
                key = f"laws/fixed/N={TOKENS}/retained={float(share):.2f}/closed"
            rows[name].append(
                exact(
                    value,
                    key=key,
                    section=title,
                    series=name,
                    setting=f"B = {BLOCK}, {_kept_words(share, kept)}",
                    x=float(share),
                    metric="physical reclaim",
                    closed_form=value,
                    law=law,
                    note=note,
                )
            )
    chart = Chart(
        key="laws-bounds",
        section=title,
        title="What any choice of tokens can free, and a random one",
        caption=(
            "Two bounds hold for every mask: as many blocks as the budget fills, and those that "
            "the survivors are too few to hold. Random eviction is an expectation between them."
        ),
        x_title="retained ratio (share of tokens kept)",
        y_title="physical reclaim (share of blocks)",
        y_range=(0.0, 1.0),
        kind="line",
        lines=tuple(line(name, some, dashed=name == "at random") for name, some in rows.items()),
        log_x=False,
    )
    return [row for some in rows.values() for row in some], chart
