"""What a chart draws, in order: the static figures and the page take it from here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

import attrs

from benchmarks.study.results import Chart, Row

MAX_TICKS: Final = 12
CLOSED_FORM: Final = ", closed form"  # ends the name of the line beside a measured one
COLOURS: Final = (  # Okabe and Ito, those first that stand out from white
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#F0E442",
)


@attrs.frozen(kw_only=True)
class Series:
    """A line or bar group with its rows; `style` is its number among the names of the chart.

    A closed form has the number of what it predicts.
    """

    name: str
    style: int
    dashed: bool
    rows: tuple[Row, ...]

    @property
    def means(self) -> list[float]:
        """What is drawn."""
        return [row.mean for row in self.rows]

    @property
    def below(self) -> list[float]:
        """How far the interval reaches down; 0 where the row is exact or has none."""
        return [_reach(row.mean - row.low) for row in self.rows]

    @property
    def above(self) -> list[float]:
        """How far the interval reaches up; 0 where the row is exact or has none."""
        return [_reach(row.high - row.mean) for row in self.rows]


def _reach(length: float) -> float:
    return length if math.isfinite(length) else 0.0


def series_of(chart: Chart, rows: Mapping[str, Row], choice: str | None = None) -> list[Series]:
    """Return the series of a chart, or of one of its choices.

    A name has the same style under every choice.
    """
    names = list(dict.fromkeys(line.name.removesuffix(CLOSED_FORM) for line in chart.lines))
    choices = chart.choice_of or (None,) * len(chart.lines)
    return [
        Series(
            name=line.name,
            style=names.index(line.name.removesuffix(CLOSED_FORM)),
            dashed=line.dashed,
            rows=tuple(rows[key] for key in line.keys),
        )
        for line, its_choice in zip(chart.lines, choices, strict=True)
        if its_choice == choice
    ]


def choices_of(chart: Chart) -> tuple[str | None, ...]:
    """Return the choices of a chart; of one without a selector, None alone."""
    return chart.choices or (None,)


def has_categories(chart: Chart, rows: Mapping[str, Row]) -> bool:
    """Return whether the x axis names things, rather than measuring."""
    return chart.kind == "bar" or any(
        isinstance(rows[key].x, str) for line in chart.lines for key in line.keys
    )


def ticks_of(chart: Chart, rows: Mapping[str, Row]) -> list[float]:
    """Return where a logarithmic x axis has its ticks: where the points are, if those are few.

    Empty: wherever a library puts them.
    """
    if has_categories(chart, rows):
        return []
    found = sorted({float(rows[key].x) for line in chart.lines for key in line.keys})
    return found if len(found) <= MAX_TICKS else []


def slug(text: str) -> str:
    """Return text as part of a file's name or of an address: small letters, digits, hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
