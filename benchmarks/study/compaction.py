"""Compaction: what emptying blocks costs, what a budget of moves frees, and who pays less."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from benchmarks.study import compactors, sequences, shapes
from benchmarks.study.measure import (
    LIMIT,
    UNKNOWN,
    Section,
    each,
    exact,
    line,
    of_blocks,
    of_ratio,
    of_values,
    same,
)
from benchmarks.study.results import Chart, Row
from kvreclaim import (
    Census,
    blocks_for_moves,
    bounds,
    importance,
    policies,
    take_census,
)

TITLE: Final = "Compaction"
BLOCK: Final = 16
BLOCKS: Final = 512
TOKENS: Final = BLOCKS * BLOCK
KEPT: Final = TOKENS // 2
BUDGETS: Final = (0, 64, 128, 256, 384, 512, 768, 1_024, 1_280, 1_536, 1_792, 2_048)

TWO_LEVEL: Final = "two levels"
WINDOW: Final = "StreamingLLM"
SHAPES: Final[dict[str, shapes.Shape]] = {
    **shapes.METHODS,
    WINDOW: partial(shapes.streaming_llm, jitter=0.0),
    TWO_LEVEL: shapes.two_level,
}
GUESS: Final = (
    f"{UNKNOWN}; half of the blocks lose a token with chance "
    f"{shapes.LOW_SHARE}, half keep it, is a guess that meets it"
)
NOT_BLOCKS: Final = (
    "the article calls them blocks-worth of space, and they are slots: a move frees 0.16 blocks"
)
EXACTLY_HALF: Final = (
    f"{UNKNOWN}; exactly half evicted at random, of {BLOCKS} blocks of one table, is a guess"
)


def section(replications: int, *, quick: bool = False) -> Section:
    """Return what it costs to free the blocks that survivors hold."""
    budgets = BUDGETS[::4] if quick else BUDGETS
    keeps = {
        name: each(partial(shape, TOKENS), 1 if name == WINDOW else replications)
        for name, shape in SHAPES.items()
    }
    censuses = {name: [take_census(keep, BLOCK) for keep in some] for name, some in keeps.items()}
    price = [row for name, some in censuses.items() for row in _prices(name, some)]
    curves = {name: _curve(name, some, budgets) for name, some in censuses.items()}
    by_compactor = {
        name: compactors.moves(some, BLOCK, _said(name), promised=name == WINDOW)
        for name, some in keeps.items()
    }
    shared = sequences.after_compaction(TITLE, keeps["random"], BLOCK)
    return Section(
        title=TITLE,
        text=(
            f"A pool of {BLOCKS} blocks of {BLOCK}, half of the tokens evicted. Moving the "
            "survivors of the emptiest blocks into the holes of the others frees what scatter "
            "strands, at the price of copies. What is scored is the increment: blocks that come "
            "free by moves alone, and the moves."
        ),
        rows=(
            *price,
            _whole_blocks(replications),
            *(row for some in curves.values() for row in some),
            *(row for some in by_compactor.values() for row in some),
            *shared,
        ),
        charts=(
            Chart(
                key="compaction-budget",
                section=TITLE,
                title="What a budget of moves frees",
                caption=(
                    "Free blocks, those that came free in place among them, by the fewest moves: "
                    "the emptiest blocks are emptied first."
                ),
                x_title="moves allowed (slots)",
                y_title="free blocks (share of all)",
                y_range=(0.0, 0.55),
                kind="line",
                lines=tuple(line(name, some) for name, some in curves.items()),
            ),
            Chart(
                key="compaction-price",
                section=TITLE,
                title="Slots that come free for each move",
                caption=(
                    "Of a full compaction with the fewest moves. Two levels are cheap since half "
                    "of their blocks are nearly empty; pooled clusters as SnapKV's are not. A "
                    "window leaves nothing to compact but its two partly filled blocks."
                ),
                x_title="shape",
                y_title="slots freed by compaction per move",
                kind="bar",
                lines=(
                    line("slots per move", [row for row in price if row.key.endswith("/slots")]),
                ),
            ),
            compactors.chart(TITLE, by_compactor),
            sequences.chart(TITLE, shared),
        ),
    )


def _said(name: str) -> dict[str, Any]:
    words = shapes.WORDS | {
        WINDOW: f"{shapes.SINK} sinks and a window",
        TWO_LEVEL: f"runs of {BLOCK}; a token of one half of them goes with chance "
        f"{shapes.LOW_SHARE}, of the others with {1 - shapes.LOW_SHARE:.3f}",
    }
    return {
        "section": TITLE,
        "series": name,
        "setting": f"{BLOCKS} blocks of {BLOCK}, half evicted: {words[name]}",
        "x": name,
    }


def _ratio(name: str, tops: Sequence[int], bottoms: Sequence[int], **said: Any) -> Row:  # noqa: ANN401
    """Return a ratio of sums; of a window, which is the same each time, the exact one."""
    if name == WINDOW:
        return exact(tops[0] / bottoms[0], **said)
    return of_ratio(tops, bottoms, **said)


def _prices(name: str, censuses: Sequence[Census]) -> list[Row]:
    """Return the price of a full compaction with the fewest moves."""
    said, where = _said(name), f"compaction/{name}"
    moves = [one.num_moved_entries for one in censuses]
    gained = [one.num_compactable_blocks for one in censuses]
    slots = [BLOCK * blocks for blocks in gained]
    total: dict[str, Any] = {}
    per_move: dict[str, Any] = {}
    per_block: dict[str, Any] = {}
    if name == "random":
        law = bounds.random_moves(TOKENS, TOKENS - KEPT, BLOCK)
        total = {
            "article": "1,649",
            "closed_form": law,
            "law": "random_moves",
            "note": EXACTLY_HALF,
        }
        per_move = {
            "article": "2.48",
            "closed_form": KEPT / law,
            "law": "freed slots / random_moves",
            "note": f"{NOT_BLOCKS}; {EXACTLY_HALF}",
        }
        per_block = {"closed_form": law / (BLOCKS // 2), "law": "random_moves / freed blocks"}
    elif name == TWO_LEVEL:
        per_move = {
            "article": "6.65",
            "closed_form": bounds.two_level_slots_per_move(shapes.LOW_SHARE, BLOCK),
            "law": f"{LIMIT}: two_level_slots_per_move",
            "note": f"slots, not blocks; {GUESS}",
        }
    elif name == WINDOW:
        total = {
            "verdict": f"{moves[0]} moves would buy one more block; the others came free in place",
        }
    rows = [
        _ratio(
            name,
            slots,
            moves,
            key=f"{where}/slots",
            metric="slots freed by compaction per move",
            **per_move,
            **said,
        ),
        _ratio(
            name,
            moves,
            gained,
            key=f"{where}/moves-per-block",
            metric="moved tokens per block",
            **per_block,
            **said,
        ),
    ]
    where_total: dict[str, Any] = {"key": f"{where}/moves", "metric": "moves of a full compaction"}
    if name == WINDOW:
        return [exact(moves[0], **where_total, **total, **said), *rows]
    return [of_values(moves, **where_total, **total, **said), *rows]


def _whole_blocks(replications: int) -> Row:
    """Return the moves that eviction of whole blocks leaves to make."""

    def moves(rng: np.random.Generator) -> int:
        scores = importance.lognormal(TOKENS, rng=rng)
        return take_census(policies.whole_block(scores, KEPT, BLOCK), BLOCK).num_moved_entries

    found = same(each(moves, replications))
    return exact(
        found,
        key="compaction/whole blocks/moves",
        section=TITLE,
        series="whole blocks",
        setting=f"{BLOCKS} blocks of {BLOCK}, half evicted: the blocks of lowest mean importance, "
        "lognormal, sigma 1",
        x="whole blocks",
        metric="moves of a full compaction",
        article="no copy",
        verdict="reached: nothing is left to move" if found == 0 else "differs",
        note=f"{UNKNOWN}, which makes no difference here",
    )


def _curve(name: str, censuses: Sequence[Census], budgets: tuple[int, ...]) -> list[Row]:
    """Return the free blocks for each budget of moves."""
    rows = []
    for budget in budgets:
        gained = [blocks_for_moves(one, budget) for one in censuses]
        free = [one.num_freed_blocks + more for one, more in zip(censuses, gained, strict=True)]
        # A window is the same each time; of half of the tokens, all moved, all blocks come free.
        all_moved = [one.num_compactable_blocks for one in censuses] == gained
        rows.append(
            of_blocks(
                free,
                BLOCKS,
                promised=name == WINDOW or (all_moved and name != TWO_LEVEL),
                **_said(name)
                | {
                    "x": budget,
                    "setting": f"{_said(name)['setting']}, at most {budget:,} moves",
                    "key": f"compaction/{name}/budget={budget}/free",
                    "metric": "free blocks over blocks, in place and by moves",
                },
            )
        )
    return rows
