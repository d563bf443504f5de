"""Admission: how many requests fit into what each strategy frees.

A full pool of 512 blocks of 16 tokens, half of them evicted; requests of 8 blocks unless told.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.study import choices
from benchmarks.study.choices import AWARE, LOWEST, RANDOM, WHOLE
from benchmarks.study.measure import Section, each, exact, line, of_requests, of_values
from benchmarks.study.results import Chart, Line, Row
from kvreclaim import (
    Census,
    admission_count,
    blocks_for_moves,
    bounds,
    importance,
    policies,
    take_census,
)

TITLE: Final = "Admission"
TEXT: Final = (
    "A request is admitted when all its blocks are free at once. Strategies of the same logical "
    "saving admit none, some, or all that the saving is worth; scattered eviction admits its first "
    "request of 8 blocks only beyond a saving of three quarters. Compaction makes up for it, as "
    "far as a block may mix sequences: each sequence keeps a partly filled last block of its own. "
    "The count is an integer, so the least and the most of all draws stand beside the mean."
)
BLOCK: Final = 16
BLOCKS: Final = 512
TOKENS: Final = BLOCKS * BLOCK
EVICTED: Final = TOKENS // 2
NEED: Final = 8
COMPACTED: Final = "random, compacted"
STRATEGIES: Final = (RANDOM, LOWEST, WHOLE, AWARE)
_ARTICLE: Final = {RANDOM: "0", LOWEST: "0", WHOLE: "32", AWARE: "22.6", COMPACTED: "32"}


def _censuses(evicted: int, rng: np.random.Generator) -> dict[str, Census]:
    scores = importance.lognormal(TOKENS, rng=rng)
    every = choices.by_row(BLOCK, rng)
    return {name: take_census(every[name](scores, evicted), BLOCK) for name in STRATEGIES}


def freed_by_compaction(census: Census) -> int:
    """Return the blocks free in place, and those that moves without a limit free beside them."""
    return census.num_freed_blocks + blocks_for_moves(census, census.num_live_tokens)


def _random_law(evicted: int, need: int) -> dict[str, Any]:
    mean = bounds.random_admission(TOKENS, evicted, BLOCK, need)
    # Its chances are within 1e-12: below that it says 0.
    return {"closed_form": mean if mean > 1e-12 else 0.0, "law": "bounds.random_admission"}  # noqa: PLR2004


def _setting(name: str, evicted: str, need: int) -> str:
    words = f"{BLOCKS} blocks of {BLOCK}, {evicted} evicted, {need} blocks a request"
    if name not in (RANDOM, COMPACTED):
        words += ", lognormal importance, sigma 1"
    return f"{words}: {choices.WORDS[name]}" if name in choices.WORDS else words


def _slug(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def _by_strategy(drawn: list[dict[str, Census]], need: int, key: str, **said: Any) -> list[Row]:  # noqa: ANN401
    """Return what each strategy, and random eviction after compaction, admits at half evicted."""
    most = bounds.free_block_bounds(TOKENS, EVICTED, BLOCK)[1] // need
    random = _random_law(EVICTED, need)
    budget = {"closed_form": float(most), "law": "blocks of the budget // need"}
    laws = {RANDOM: random, LOWEST: random, WHOLE: budget, COMPACTED: budget}
    rows = []
    for name in (*STRATEGIES, COMPACTED):
        if name == COMPACTED:
            freed = [freed_by_compaction(some[RANDOM]) for some in drawn]
            counts = [blocks // need for blocks in freed]
        else:
            freed = [some[name].num_freed_blocks for some in drawn]
            counts = [admission_count(some[name], blocks_per_request=need) for some in drawn]
        own: dict[str, Any] = {"x": name} | said
        if "article" in own:
            own["article"] = _ARTICLE[name]
            own["note"] = choices.GUESS if name == AWARE else choices.SCORES
        rows.append(
            of_requests(
                counts,
                freed,
                blocks=BLOCKS,
                need=need,
                section=TITLE,
                setting=_setting(name, "half", need),
                promised=name in (WHOLE, COMPACTED),
                key=f"{key}/{_slug(name)}",
                series=name,
                **own,
                **laws.get(name, {}),
            )
        )
    return rows


def _by_eviction(share: float, replications: int) -> list[Row]:
    """Return what the strategies admit where another share of the tokens is evicted."""
    evicted = round(share * TOKENS)
    drawn = each(partial(_censuses, evicted), replications)
    random = _random_law(evicted, NEED)
    about: dict[str, Any] = {"x": share}
    words = f"{share:.3g}"
    if share * TOKENS != evicted:
        words += f" ({evicted:,} of {TOKENS:,} tokens)"
    rows = [
        of_requests(
            [admission_count(some[name], blocks_per_request=NEED) for some in drawn],
            [some[name].num_freed_blocks for some in drawn],
            blocks=BLOCKS,
            need=NEED,
            section=TITLE,
            promised=name == WHOLE,
            key=f"admission/evicted={share:.3g}/{_slug(name)}",
            series=name,
            setting=_setting(name, words, NEED),
            **about,
            **(random if name in (RANDOM, LOWEST) else {}),
        )
        for name in STRATEGIES
    ]
    law = exact(
        random["closed_form"],
        setting=_setting(RANDOM, words, NEED),
        **about,
        **random,
        key=f"admission/evicted={share:.3g}/closed-form",
        section=TITLE,
        series="random, closed form",
        metric="requests admitted",
    )
    return [*rows, law]


def first_admission(rng: np.random.Generator) -> float:
    """Return the saving at which random eviction, token by token, first admits a request."""
    order = rng.permutation(TOKENS)
    low, high = 0, TOKENS  # so many evicted admit none, and one
    while high - low > 1:
        middle = (low + high) // 2
        if admission_count(order >= middle, BLOCK, blocks_per_request=NEED):
            high = middle
        else:
            low = middle
    return high / TOKENS


def _first_row(replications: int) -> Row:
    return of_values(
        each(first_admission, replications),
        bounds=(0, 1),
        key="admission/first/random",
        section=TITLE,
        series=RANDOM,
        setting=f"{BLOCKS} blocks of {BLOCK}, tokens evicted one by one, {NEED} blocks a request",
        x=RANDOM,
        metric="logical saving at which the first request is admitted",
        verdict=(
            f"{math.pow(NEED / BLOCKS, 1 / BLOCK):.3f} is where {NEED} blocks are free on average, "
            "(r / M)^(1 / B)"
        ),
    )


def _by_sequences(sequences: int, replications: int) -> Row:
    """Return what a full compaction admits where the pool's tokens belong to several sequences."""

    def free(rng: np.random.Generator) -> int:
        keep = policies.random(TOKENS, TOKENS - EVICTED, rng=rng).reshape(sequences, -1)
        return freed_by_compaction(take_census(keep, BLOCK, axes="bt"))

    blocks = each(free, replications)
    return of_requests(
        [some // NEED for some in blocks],
        blocks,
        blocks=BLOCKS,
        need=NEED,
        section=TITLE,
        setting=(
            f"{sequences} sequences, {BLOCKS} blocks of {BLOCK}, half evicted at random, "
            f"{NEED} blocks a request"
        ),
        promised=sequences == 1,
        key=f"admission/sequences={sequences}",
        series=COMPACTED,
        x=float(sequences),
    )


def section(replications: int, *, quick: bool = False) -> Section:
    """Return requests admitted by strategy, request size, eviction ratio and sequences."""
    drawn = each(partial(_censuses, EVICTED), replications)
    bars = _by_strategy(drawn, NEED, "admission", article="")
    needs = (1, 8, 32) if quick else (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    sizes = [_by_strategy(drawn, need, f"admission/size={need}", x=float(need)) for need in needs]
    shares = (0.5, 0.8, 0.95) if quick else (*(step / 20 for step in range(6, 19)), 0.771, 0.917)
    ratios = [_by_eviction(share, replications) for share in sorted(shares)]
    many = [_by_sequences(sequences, replications) for sequences in (1, 4, 16, 64)]
    by_size, by_ratio = list(zip(*sizes, strict=True)), list(zip(*ratios, strict=True))
    rows = [*bars, *(row for some in (*sizes, *ratios) for row in some)]
    return Section(
        title=TITLE,
        text=TEXT,
        rows=(*rows, *many, _first_row(replications)),
        charts=(
            Chart(
                key="admission",
                section=TITLE,
                title="Requests admitted by strategies of the same saving",
                caption="Half of the tokens are evicted each time; what counts is whole blocks.",
                x_title="strategy",
                y_title=f"requests of {NEED} blocks admitted",
                kind="bar",
                lines=(line("requests admitted", bars),),
            ),
            Chart(
                key="admission-size",
                section=TITLE,
                title="Requests admitted by their size",
                caption="Smaller requests do not help where no block is free.",
                x_title="blocks a request",
                y_title="requests admitted",
                kind="line",
                lines=tuple(line(some[0].series, some) for some in by_size),
                log_x=True,
            ),
            Chart(
                key="admission-eviction",
                section=TITLE,
                title="Requests admitted by how much is evicted",
                caption="Scattered eviction admits its first request near a saving of 0.77.",
                x_title="logical saving (share of tokens)",
                y_title=f"requests of {NEED} blocks admitted",
                kind="line",
                lines=_lines_by_ratio(by_ratio),
            ),
            Chart(
                key="admission-sequences",
                section=TITLE,
                title="Requests admitted after compaction, by the number of sequences",
                caption="A block holds one sequence, so each keeps a partly filled last block.",
                x_title="sequences in the pool",
                y_title=f"requests of {NEED} blocks admitted",
                kind="line",
                lines=(line(COMPACTED, many),),
                log_x=True,
            ),
        ),
    )


def _lines_by_ratio(series: list[tuple[Row, ...]]) -> tuple[Line, ...]:
    *measured, law = series
    return (
        *(line(some[0].series, some) for some in measured),
        line(law[0].series, law, dashed=True),
    )
