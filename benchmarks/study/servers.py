"""Runtimes: the same strategies under every preset, in place, compacted and packed.

Masks of 4 layers, 4 kv heads and 2,048 tokens, half of each row evicted by lognormal scores.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.study import choices
from benchmarks.study.choices import AWARE, BEST, LOWEST, RANDOM, WHOLE, Mask, Scores
from benchmarks.study.measure import Section, each, line, of_blocks, of_rare, of_requests
from benchmarks.study.results import Chart, Line, Row
from kvreclaim import (
    BlockPool,
    Census,
    admission_count,
    compaction_cost,
    importance,
    runtimes,
    take_census,
)

TITLE: Final = "Runtimes"
TEXT: Final = (
    "The same masks under every preset. In place counts the empty blocks that the runtime takes "
    "back where they are; compacted is what its own compactor leaves; packed is what an engine "
    "holds that stores only survivors. Every row evicts half and chooses by itself, but for the "
    "frontier: where the runtime takes back any empty block, it chooses whole blocks for all rows "
    "that share them. None of these figures is a verdict on a runtime: the rule of each may be "
    "shipped, proposed or hypothetical, as its rows say."
)
SHAPE: Final = (4, 4, 2_048)
AXES: Final = "lht"
EVICTED: Final = 1_024  # of each row
REQUEST: Final = 128  # tokens of a new request
STRATEGIES: Final = (RANDOM, LOWEST, WHOLE, AWARE, BEST)


def _best(scores: Scores, pool: BlockPool) -> Mask:
    """Return the mask of the frontier's end: jointly where that helps, else row by row."""
    rows = scores.shape[0] * scores.shape[1]
    if pool.frees == "any":
        return choices.most_blocks(scores, pool, rows * EVICTED, axes=AXES)
    alone = BlockPool(pool.block_size)
    flat = scores.reshape(rows, -1)
    return np.stack([choices.most_blocks(row, alone, EVICTED) for row in flat]).reshape(SHAPE)


def _censuses(rng: np.random.Generator) -> dict[tuple[str, str], Census]:
    """Return a census for each runtime and strategy; runtimes of one block size share masks."""
    scores = importance.lognormal(SHAPE, rng=rng)
    masks: dict[int, dict[str, Mask]] = {}
    found = {}
    for name in runtimes.names():
        pool = runtimes.preset(name)
        size = pool.block_size
        if size not in masks:
            every = choices.by_row(size, rng)
            masks[size] = {
                each_name: every[each_name](scores, EVICTED)
                for each_name in STRATEGIES
                if each_name != BEST
            }
        for strategy, keep in (masks[size] | {BEST: _best(scores, pool)}).items():
            found[name, strategy] = take_census(keep, pool, axes=AXES)
    return found


def _copy_law(pool: BlockPool) -> dict[str, Any]:
    """Return the expected copy of a table of one row: survivors that move are read and written.

    In units of one read of all survivors. Scores are independent, so that blocks, and in blocks of
    one token tokens, survive at random places by any of the strategies.
    """
    kept = SHAPE[-1] - EVICTED
    if pool.compactor == "fill" and not pool.shared_axes:
        moves, law = kept * EVICTED / SHAPE[-1], "survivors x share evicted"
    elif pool.compactor == "pack_rows" and pool.block_size == 1:
        moves, law = kept - kept / (EVICTED + 1), "survivors behind the first evicted token"
    else:
        return {}
    return {"closed_form": 2 * moves / kept, "law": f"2 x moves / survivors, moves = {law}"}


def _rows_of(name: str, strategy: str, censuses: list[Census]) -> list[Row]:
    pool, about = runtimes.preset(name), runtimes.about(name)
    words = f": {choices.WORDS[strategy]}" if strategy in choices.WORDS else ""
    key = f"servers/{name}/{strategy.replace(' ', '-')}"
    said: dict[str, Any] = {
        "section": TITLE,
        "setting": f"{strategy}, 4 layers x 4 kv heads x 2,048 tokens, half of each row evicted, "
        f"lognormal importance, sigma 1{words}",
        "x": name,
        "verdict": f"layout {about.layout}, rule {about.status}",
    }
    blocks = censuses[0].num_blocks
    joint = strategy == BEST and pool.frees == "any"
    all_rows_packed = pool.compactor == "pack_rows" or (
        pool.compactor != "none" and censuses[0].rows_per_table == 1
    )
    rows = [
        of_blocks(
            [census.num_freed_blocks for census in censuses],
            blocks,
            promised=joint or pool.frees == "none",
            key=f"{key}/in-place",
            series="in place",
            metric="physical reclaim",
            **said,
        ),
        of_blocks(
            [blocks - census.num_packed_blocks for census in censuses],
            blocks,
            promised=joint or pool.frees == "none" or all_rows_packed,
            key=f"{key}/compacted",
            series="compacted",
            metric="compacted reclaim",
            **said,
        ),
        of_blocks(
            [blocks - census.num_floor_blocks for census in censuses],
            blocks,
            promised=True,  # every row keeps as many tokens
            key=f"{key}/packed",
            series="packed",
            metric="packed reclaim",
            **said,
        ),
    ]
    need = censuses[0].num_tables * pool.num_blocks_for(REQUEST)
    admitted = [admission_count(census, blocks_per_request=need) for census in censuses]
    in_place = [census.num_freed_blocks for census in censuses]
    compacted = [blocks - census.num_packed_blocks for census in censuses]
    for blocks_row, counts, freed in (
        (rows[0], admitted, in_place),
        (rows[1], [some // need for some in compacted], compacted),
    ):
        rows.append(
            of_requests(
                counts,
                freed,
                blocks=blocks,
                need=need,
                promised=blocks_row.interval == "exact",
                key=f"{blocks_row.key}/requests",
                series=blocks_row.series,
                **(said | {"setting": f"{said['setting']}; requests of {REQUEST} tokens"}),
            )
        )
    if pool.compactor != "none":
        copies = [compaction_cost(census).decode_steps for census in censuses]
        most = 2 * censuses[0].rows_per_table  # a slot that one row keeps is copied for all
        rows.append(
            of_rare(
                copies,
                bounds=(0, most),
                **_copy_law(pool),
                key=f"{key}/copy",
                series=strategy,
                metric="copy in decode steps",
                **said,
            )
        )
    return rows


def section(replications: int, *, quick: bool = False) -> Section:  # noqa: ARG001  # nothing to leave out
    """Return the strategies under every runtime."""
    draws: list[dict[tuple[str, str], Census]] = each(_censuses, replications)
    found = {
        (name, strategy): _rows_of(name, strategy, [draw[name, strategy] for draw in draws])
        for strategy in STRATEGIES
        for name in runtimes.names()
    }
    reclaims: list[Line] = []
    requests: list[Line] = []
    for strategy in STRATEGIES:
        of_names = [found[name, strategy] for name in runtimes.names()]
        by_row = [line(some[0].series, some) for some in zip(*of_names, strict=False)]
        reclaims += by_row[:3]
        requests += by_row[3:5]
    copying = [name for name in runtimes.names() if runtimes.preset(name).compactor != "none"]
    chart = partial(Chart, section=TITLE, x_title="runtime", kind="bar")
    return Section(
        title=TITLE,
        text=TEXT,
        rows=tuple(row for some in found.values() for row in some),
        charts=(
            chart(
                key="servers",
                title="What comes back, by runtime",
                caption="The same masks: in place, after the runtime's own compactor, and packed.",
                y_title="reclaim (share of blocks)",
                y_range=(0.0, 0.55),
                lines=tuple(reclaims),
                selector="Strategy",
                choices=STRATEGIES,
                choice_of=tuple(strategy for strategy in STRATEGIES for _ in range(3)),
            ),
            chart(
                key="servers-requests",
                title="Requests admitted, by runtime",
                caption=(
                    f"New requests of {REQUEST} tokens into a pool that one sequence of 2,048 "
                    "filled: in place, and after the runtime's own compactor."
                ),
                y_title="requests admitted",
                lines=tuple(requests),
                selector="Strategy",
                choices=STRATEGIES,
                choice_of=tuple(strategy for strategy in STRATEGIES for _ in range(2)),
            ),
            chart(
                key="servers-copy",
                title="What compaction copies, by runtime",
                caption="In units of what one decode step reads; only runtimes that compact.",
                y_title="copy (decode steps)",
                lines=tuple(
                    line(strategy, [found[name, strategy][-1] for name in copying])
                    for strategy in STRATEGIES
                ),
            ),
        ),
    )
