"""q^B and the exact laws: what chance gives, and what structure gives, by closed forms."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from benchmarks.study import fixed_budget, structure
from benchmarks.study.measure import Section, exact, line
from benchmarks.study.results import Chart, Row
from benchmarks.study.shapes import POWERS, SIZES
from kvreclaim import bounds

TITLE: Final = "q^B and the exact laws"
RETAINED: Final = tuple(
    Fraction(percent, 100) for percent in (2, 5, 10, 15, 20, 25, 30, 40, 50, 75)
)
BLOCK: Final = 16

# What the article prints of the curve, by share evicted.
PRINTED: Final = {Fraction(1, 2): "0.0015%", Fraction(3, 4): "1.0%"}


def section(replications: int, *, quick: bool = False) -> Section:
    """Return what closed forms say, and what random masks make of them."""
    retained = RETAINED[2::3] if quick else RETAINED
    parts = [
        _independent(retained),
        _efficiency(retained),
        fixed_budget.against_coins(TITLE, replications, retained),
        fixed_budget.between_bounds(TITLE, retained),
        structure.by_block_size(TITLE, replications, SIZES[::3] if quick else SIZES),
        structure.by_alignment(TITLE, (1, 2, *SIZES)),
    ]
    return Section(
        title=TITLE,
        text=(
            "A block comes free where all of its B tokens are evicted. Of tokens evicted "
            "independently with chance q that is q^B: an expectation, and no bound. A fixed budget "
            "at random frees less, a policy that spaces its survivors evenly frees nothing, and "
            "windows, clusters and long runs free far more. All of that is known in closed form; "
            "the points are random masks."
        ),
        rows=tuple(row for rows, _ in parts for row in rows),
        charts=tuple(chart for _, chart in parts),
    )


def _percent(share: Fraction) -> str:
    return f"{float(share):.2f}"


def _independent(retained: tuple[Fraction, ...]) -> tuple[list[Row], Chart]:
    rows = {
        size: [
            exact(
                bounds.independent_reclaim(1 - share, size),
                key=f"laws/independent/B={size}/retained={_percent(share)}/reclaim",
                section=TITLE,
                series=f"B = {size}",
                setting=f"B = {size}, each token evicted with chance {_percent(1 - share)}",
                x=float(share),
                metric="physical reclaim",
                closed_form=float((1 - share) ** size),
                law="q^B",
                article=PRINTED.get(1 - share, "") if size == BLOCK else "",
                note="an expectation, not a lower bound"
                if size == BLOCK and 1 - share in PRINTED
                else "",
            )
            for share in retained
        ]
        for size in SIZES
    }
    logical = [
        exact(
            float(1 - share),
            key=f"laws/logical/retained={_percent(share)}/saving",
            section=TITLE,
            series="logical saving",
            setting=f"share {_percent(share)} kept",
            x=float(share),
            metric="logical saving",
            law="q",
            verdict="what papers report",
        )
        for share in retained
    ]
    chart = Chart(
        key="laws-independent",
        section=TITLE,
        title="Physical reclaim of independent eviction",
        caption=(
            "Expected share of free blocks, q^B, over the share of tokens kept: the larger the "
            "block, the sharper the knee. Logical saving is what is evicted."
        ),
        x_title="retained ratio (share of tokens kept)",
        y_title="physical reclaim (share of blocks)",
        kind="line",
        lines=(
            line("logical saving", logical, dashed=True),
            *(line(f"B = {size}", some) for size, some in rows.items()),
        ),
        log_x=False,
        log_y=False,
        y_range=(0.0, 1.0),
    )
    return [*logical, *(row for some in rows.values() for row in some)], chart


def _efficiency(retained: tuple[Fraction, ...]) -> tuple[list[Row], Chart]:
    rows = {
        size: [
            exact(
                bounds.independent_efficiency(1 - share, size),
                key=f"laws/independent/B={size}/retained={_percent(share)}/efficiency",
                section=TITLE,
                series=f"B = {size}",
                setting=f"B = {size}, each token evicted with chance {_percent(1 - share)}",
                x=float(share),
                metric="reclaim efficiency",
                closed_form=float((1 - share) ** (size - 1)),
                law="q^(B-1)",
            )
            for share in retained
        ]
        for size in POWERS
    }
    chart = Chart(
        key="laws-efficiency",
        section=TITLE,
        title="Reclaim efficiency of independent eviction",
        caption="Physical reclaim over logical saving, q^(B-1): what a saved token is worth.",
        x_title="retained ratio (share of tokens kept)",
        y_title="reclaim efficiency (blocks freed per block saved)",
        kind="line",
        lines=tuple(line(f"B = {size}", some) for size, some in rows.items()),
        log_x=False,
        log_y=True,
    )
    return [row for some in rows.values() for row in some], chart
