"""Shapes of real methods: half kept, one block table a row, in place against packed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from benchmarks.study import expected, shapes, sweep
from benchmarks.study.measure import (
    LIMIT,
    Section,
    each,
    exact,
    line,
    of_ratio,
    of_values,
    same,
)
from benchmarks.study.results import Chart, Row
from benchmarks.study.sweep import BLOCKS, census_of, freed_of
from kvreclaim import Census, bounds, fragmentation

TITLE: Final = "Shapes of real methods"
BLOCK: Final = 16
TOKENS: Final = BLOCKS * BLOCK

# What the article prints.
PRINTED: Final = {
    "StreamingLLM": "0.47 ± 0.02",
    "SnapKV": "0.29 ± 0.04",
    "H2O": "0.001 ± 0.005",
    "random": "0.000",
}
# What meets the article beside what the methods' own code has.
POOLING: Final = {
    f"avg-pool 5, window {shapes.WINDOW}": (5, "avg", "the default of SnapKV's own code"),
    f"max-pool 7, window {shapes.WINDOW}": (7, "max", "SnapKV's own runs on LongBench"),
    f"max-pool {shapes.KERNEL}, window {shapes.WINDOW}": (
        shapes.KERNEL,
        "max",
        "not SnapKV's own: it is what meets the article",
    ),
}


def section(replications: int, *, quick: bool = False) -> Section:
    """Return what the shapes of methods free, and how that depends on the block size."""
    sizes = shapes.POWERS[::2] if quick else shapes.POWERS
    drawn = {
        name: each(partial(census_of, shape, TOKENS, BLOCK), replications)
        for name, shape in shapes.METHODS.items()
    }
    table = [row for name, some in drawn.items() for row in _figures(name, some)]
    by_count, lines_by_count = sweep.by_block_size(TITLE, replications, sizes, fixed="blocks")
    by_tokens, lines_by_tokens = sweep.by_block_size(TITLE, replications, sizes, fixed="tokens")
    in_place = [row for row in table if row.key.endswith("/reclaim")]
    packed = [row for row in table if row.key.endswith("/packed")]
    pooling = _pooling(replications)
    return Section(
        title=TITLE,
        text=(
            "Synthetic scores with the geometry of StreamingLLM, SnapKV, H2O and of no method, "
            f"half of the tokens kept, {BLOCKS} blocks to a sequence, and a block table of its own "
            "for each layer and head: where one block holds all heads, per-head choices free next "
            "to nothing. In place survivors stay where they were written; packed they are moved "
            "together, or nothing else was stored. The generators are the ones found to meet the "
            "article, whose own are not public."
        ),
        rows=(*table, *pooling, *by_count, *by_tokens),
        charts=(
            Chart(
                key="methods-reclaim",
                section=TITLE,
                title="In place and packed, half of the tokens kept",
                caption=(
                    "Three evict one half, StreamingLLM a share near it that varies from seed to "
                    "seed. What comes back in place is a matter of where the survivors lie; "
                    "packed, what is left of the difference is StreamingLLM's budget."
                ),
                x_title="shape",
                y_title="reclaim (share of blocks)",
                kind="bar",
                lines=(line("in place", in_place), line("packed", packed)),
                y_range=(0.0, 0.55),
            ),
            Chart(
                key="methods-pooling",
                section=TITLE,
                title="SnapKV by how it pools its scores",
                caption=(
                    "Pooling is what clusters survivors: on independent scores the article's 0.29 "
                    "takes a kernel of about 19."
                ),
                x_title="pooling",
                y_title="physical reclaim (share of blocks)",
                kind="bar",
                lines=(line("SnapKV", pooling),),
            ),
            sweep.chart(TITLE, "blocks", lines_by_count),
            sweep.chart(TITLE, "tokens", lines_by_tokens),
        ),
    )


def _figures(name: str, censuses: Sequence[Census]) -> list[Row]:
    """Return the rows of one method at blocks of 16."""
    said: dict[str, Any] = {
        "section": TITLE,
        "series": name,
        "setting": f"B = {BLOCK}, {BLOCKS} blocks, {TOKENS} tokens, one table a row, "
        f"{shapes.WORDS[name]}",
        "x": name,
    }
    where = f"methods/{name}/B={BLOCK}"
    freed, blocks = freed_of(censuses)
    notes = {
        "StreamingLLM": f"{sweep.GUESSES[name]}; the spread is that of the budget: at a fixed one "
        "it is deterministic",
        "SnapKV": sweep.GUESSES[name],
        "H2O": f"{sum(freed)} of {sum(blocks):,} blocks came free: {_spread_of(1)} is the spread "
        f"of one event, {_spread_of(2)} of two in two sequences; {sweep.GUESSES[name]}",
        "random": sweep.GUESSES[name],
    }
    laws = expected.LAWS | {"SnapKV": f"{LIMIT}: clustered_reclaim"}
    recent = shapes.WINDOW / TOKENS
    closed = expected.reclaim(name, TOKENS, BLOCK)
    if closed is None:
        closed = bounds.clustered_reclaim(0.5, shapes.KERNEL, BLOCK, recent)
    entries = [one.num_entries for one in censuses]
    live = [one.num_live_entries for one in censuses]
    moved = [one.num_moved_entries for one in censuses]
    gained = [one.num_compactable_blocks for one in censuses]
    is_window = name == "StreamingLLM"
    return [
        of_ratio(
            freed,
            blocks,
            key=f"{where}/reclaim",
            metric="physical reclaim",
            closed_form=closed,
            law=laws[name],
            article=PRINTED[name],
            note=notes[name],
            **said,
        ),
        _promised(
            name,
            [one.num_blocks - one.num_floor_blocks for one in censuses],
            blocks,
            key=f"{where}/packed",
            metric="packed reclaim",
            **said,
        ),
        _promised(
            name,
            [one.num_evicted_entries for one in censuses],
            entries,
            key=f"{where}/saving",
            metric="logical saving",
            **said,
        ),
        of_values(
            [fragmentation(one) for one in censuses],
            bounds=(0, 1),
            key=f"{where}/fragmentation",
            metric="fragmentation",
            **said,
        ),
        of_ratio(
            moved,
            live,
            key=f"{where}/moved",
            metric="survivors moved by a full compaction",
            closed_form=expected.moved_share(TOKENS, BLOCK) if is_window else None,
            law="mean over the budgets" if is_window else "",
            article="0.6%" if is_window else "",
            note=sweep.GUESSES[name] if is_window else "",
            **said,
        ),
        of_ratio(
            moved,
            gained,
            key=f"{where}/moves-per-block",
            metric="moved tokens per block",
            note=f"{gained.count(0)} replications left nothing to compact" if 0 in gained else "",
            **said,
        ),
    ]


def _spread_of(events: int) -> str:
    """Return the sd over 30 sequences of which so many freed one block, and the others none."""
    return f"{statistics.stdev([1 / BLOCKS] * events + [0.0] * (30 - events)):.4f}"


def _promised(name: str, tops: Sequence[int], bottoms: Sequence[int], **said: Any) -> Row:  # noqa: ANN401  # fields of a Row
    """Return what a fixed budget promises; of StreamingLLM, whose budget varies, the mean."""
    if name == "StreamingLLM":
        return of_ratio(tops, bottoms, **said)
    return exact(same(tops) / same(bottoms), **said)


def _pooling(replications: int) -> list[Row]:
    """Return SnapKV by its pooling, the article's among them."""
    rows = []
    for words, (kernel, pooling, note) in POOLING.items():
        shape = partial(shapes.snapkv, kernel=kernel, pooling=pooling)
        censuses = each(partial(census_of, shape, TOKENS, BLOCK), replications)
        recent = shapes.WINDOW / TOKENS
        rows.append(
            of_ratio(
                *freed_of(censuses),
                key=f"methods/SnapKV/{pooling}-pool={kernel}/reclaim",
                section=TITLE,
                series="SnapKV",
                setting=f"B = {BLOCK}, {BLOCKS} blocks, {TOKENS} tokens, one table a row, "
                f"half kept, lognormal scores, sigma 1, {words}",
                x=f"{pooling}-pool {kernel}",
                metric="physical reclaim",
                closed_form=bounds.clustered_reclaim(0.5, kernel, BLOCK, recent)
                if pooling == "max"
                else None,
                law=f"{LIMIT}: clustered_reclaim" if pooling == "max" else "",
                note=note,
            )
        )
    return rows
