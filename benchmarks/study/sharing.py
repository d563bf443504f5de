"""Sharing: what comes back where one block holds many rows, from 1 to 256.

Rows of 512 tokens in blocks of 16, half of each row evicted; a block is free when all its rows are.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from typing import Any, Final

from benchmarks.study import shapes
from benchmarks.study.measure import (
    Section,
    each,
    exact,
    judged,
    line,
    of_blocks,
    of_values,
)
from benchmarks.study.results import Chart, Line, Row
from benchmarks.study.rows_of_blocks import (
    BLOCK,
    BLOCKS,
    JOINT,
    KEPT,
    LOWEST,
    RANDOM,
    RUN,
    RUNS,
    SNAPKV,
    TOKENS,
    WINDOW,
    WORDS,
    Drawn,
    by_chance,
    by_scores,
)
from kvreclaim import Census, bounds, effective_rows, logical_saving, merge, summarize_ratio

TITLE: Final = "Sharing of layers and heads"
TEXT: Final = (
    "Where one block holds the rows of many layers and heads, it comes free only when all of them "
    "have left it. Independent rows multiply: a block of R rows behaves like one R times as large. "
    "Rows that agree, as those of StreamingLLM do, lose nothing; rows that choose by importance "
    "agree as far as their importance does. Choosing blocks for all their rows at once frees what "
    "the budget pays for at any number of rows, and loses the more, the less the rows agree. "
    "Packed row by row, equal budgets give back their half in any case; runs of chance length do "
    "not, since the fullest row decides."
)
CORRELATIONS: Final = (0.0, 0.5, 0.9)
FEWEST: Final = 10  # slots dead in every row, below which their share says nothing

_CHARTS: Final = (
    (
        "sharing",
        "What comes free in place, by the rows of a block",
        "Rows that choose by themselves free nothing together, unless they agree.",
        "in place",
        (RANDOM, LOWEST, SNAPKV, RUNS, WINDOW, JOINT),
        "physical reclaim (share of blocks)",
        (0.0, 0.55),
    ),
    (
        "sharing-packed",
        "What comes back packed, by the rows of a block",
        "Equal budgets give back their half; with runs of chance the fullest row decides.",
        "packed",
        (RANDOM, RUNS),
        "packed reclaim (share of blocks)",
        (0.0, 0.6),
    ),
    (
        "sharing-rows",
        "As how many independent rows a block behaves",
        "Correlated rows behave like few; where no slot is dead in all of them, none is shown.",
        "effective rows",
        (RANDOM, LOWEST, SNAPKV),
        "effective rows (rows)",
        None,
    ),
    (
        "sharing-loss",
        "What whole blocks for all rows lose, by the rows of a block",
        "The less the rows agree, the more they must give up to leave blocks together.",
        "loss",
        (LOWEST, JOINT),
        "loss (share of importance)",
        (0.0, 0.6),
    ),
)


def _reclaim_law(name: str, rows: int, correlation: float | None) -> dict[str, Any]:
    """Return the expected reclaim in place of rows that are independent, or all alike."""
    if name == RANDOM or (name == LOWEST and correlation == 0):
        one = bounds.random_free_blocks(TOKENS, TOKENS - KEPT, BLOCK).mean / BLOCKS
        law = "(bounds.random_free_blocks / blocks)^R"
        chance = math.pow(one, rows)
        return {"closed_form": chance if chance > sys.float_info.min else 0.0, "law": law}
    if name == WINDOW:
        window = KEPT - shapes.SINK
        free = bounds.window_free_blocks(TOKENS, shapes.SINK, window, BLOCK)
        return {"closed_form": free / BLOCKS, "law": "bounds.window_free_blocks / blocks"}
    if name == RUNS:
        law = "bounds.shared_markov_reclaim"
        closed = bounds.shared_markov_reclaim([0.5] * rows, [RUN] * rows, BLOCK)
        return {"closed_form": closed, "law": law}
    if name == JOINT:
        return {"closed_form": KEPT // BLOCK / BLOCKS, "law": "k // B blocks"}
    return {}


def _effective_row(censuses: list[Census], closed: float | None, **said: Any) -> Row | None:  # noqa: ANN401
    """Return as how many independent rows the tables behave, of all draws together.

    A monotone function of the share of slots that are dead in every row, whose interval it maps;
    None where such slots are too few.
    """
    dead = [census.num_tokens - census.num_live_tokens for census in censuses]
    if sum(dead) < FEWEST:
        return None
    share = summarize_ratio(dead, [census.num_tokens for census in censuses], binomial=False)
    pooled = merge(censuses)
    value = effective_rows(pooled)
    about = {
        "metric": "effective rows",
        "closed_form": closed,
        "law": "R" if closed else "",
        **said,
    }
    if share.sd == 0:
        return exact(value, **about)
    scale = -math.log(logical_saving(pooled))
    low, high = (-math.log(end) / scale if end > 0 else math.inf for end in (share.high, share.low))
    sd = share.sd / share.mean / scale  # to first order
    error = sd / math.sqrt(share.num_samples)
    return Row(
        mean=value,
        sd=sd,
        low=low,
        high=high,
        n=share.num_samples,
        interval=share.method,
        **judged(about, value, error, (low, high)),
    )


def _rows_of(name: str, rows: int, correlation: float | None, draws: list[Drawn]) -> dict[str, Row]:
    """Return the figures of one series at one number of rows, by what they are."""
    censuses = [draw.census for draw in draws]
    of_scores = "" if correlation is None else f"correlation={correlation}/"
    key = f"sharing/{of_scores}{name.replace(',', '').replace(' ', '-')}/rows={rows}"
    setting = f"{rows} rows a block, {TOKENS} tokens, blocks of {BLOCK}, half evicted"
    setting += f", {WORDS[name]}" if name in WORDS else ""
    if correlation is not None:
        setting += f", correlation of two rows' logarithms {correlation}"
    about: dict[str, Any] = {
        "section": TITLE,
        "series": name,
        "setting": setting,
        "x": float(rows),
    }
    found = {
        "in place": of_blocks(
            [census.num_freed_blocks for census in censuses],
            BLOCKS,
            promised=name in (WINDOW, JOINT),
            key=f"{key}/reclaim",
            metric="physical reclaim",
            **about,
            **_reclaim_law(name, rows, correlation),
        ),
    }
    packed = [BLOCKS - census.num_floor_blocks for census in censuses]
    said = about | {"key": f"{key}/packed", "metric": "packed reclaim"}
    if name == RUNS:
        found["packed"] = of_blocks(packed, BLOCKS, **said)
    elif name == RANDOM:  # which stands for all whose rows keep as many tokens
        law = {"series": "any rows of equal budgets", "closed_form": 0.5, "law": "k // B blocks"}
        found["packed"] = of_blocks(packed, BLOCKS, promised=True, **(said | law))
    if name in (RANDOM, LOWEST, SNAPKV):
        independent = name == RANDOM or (name == LOWEST and correlation == 0)
        closed = float(rows) if independent else None
        row = _effective_row(censuses, closed, key=f"{key}/effective-rows", **about)
        if row is not None:
            found["effective rows"] = row
    if name in (LOWEST, JOINT):
        found["loss"] = of_values(
            [draw.loss for draw in draws],
            bounds=(0, 1),
            key=f"{key}/loss",
            metric="loss of importance",
            **about,
        )
    return found


def _law_rows(counts: tuple[int, ...]) -> list[Row]:
    return [
        exact(
            bounds.independent_reclaim(0.5, BLOCK * rows),
            key=f"sharing/closed-form/rows={rows}",
            section=TITLE,
            series="q^(B R)",
            setting=f"{rows} rows a block, blocks of {BLOCK}, half evicted",
            x=float(rows),
            metric="physical reclaim",
            closed_form=math.pow(0.5, BLOCK * rows),
            law="q^(B R)",
        )
        for rows in counts
    ]


def section(replications: int, *, quick: bool = False) -> Section:
    """Return reclaim in place and packed, effective rows and loss over the rows of a block."""
    counts = (1, 2, 8, 64) if quick else tuple(2**power for power in range(9))
    found: dict[tuple[float | None, str], list[dict[str, Row]]] = {}
    for rows in counts:
        chance = each(partial(by_chance, rows), replications)
        for name in (RANDOM, WINDOW, RUNS):
            own = _rows_of(name, rows, None, [draw[name] for draw in chance])
            found.setdefault((None, name), []).append(own)
        for correlation in CORRELATIONS:
            scored = each(partial(by_scores, rows, correlation), replications)
            for name in (LOWEST, SNAPKV, JOINT):
                own = _rows_of(name, rows, correlation, [draw[name] for draw in scored])
                found.setdefault((correlation, name), []).append(own)
    law = _law_rows(counts)

    def lines_of(names: tuple[str, ...], figure: str, correlation: float | None) -> list[Line]:
        lines = []
        for name in names:
            own = found.get((None, name)) or found[correlation, name]
            rows = [some[figure] for some in own if figure in some]
            if rows:
                lines.append(line(rows[0].series, rows))
        if figure == "in place":
            lines.append(line(law[0].series, law, dashed=True))
        return lines

    charts = []
    for key, title, caption, figure, names, y_title, y_range in _CHARTS:
        of_scores = CORRELATIONS if LOWEST in names else (None,)
        lines = [lines_of(names, figure, correlation) for correlation in of_scores]
        labels = [] if LOWEST not in names else [f"correlation {some}" for some in CORRELATIONS]
        choice_of = [
            label for label, some in zip(labels, lines, strict=False) for _ in range(len(some))
        ]
        charts.append(
            Chart(
                key=key,
                section=TITLE,
                title=title,
                caption=caption,
                x_title="rows a block",
                y_title=y_title,
                y_range=y_range,
                kind="line",
                selector="Importance of two rows",
                lines=tuple(one for some in lines for one in some),
                choices=tuple(labels),
                choice_of=tuple(choice_of),
                log_x=True,
                log_y=True if figure == "effective rows" else None,
            )
        )
    rows_found = [row for some in found.values() for own in some for row in own.values()]
    return Section(title=TITLE, text=TEXT, rows=(*rows_found, *law), charts=tuple(charts))
