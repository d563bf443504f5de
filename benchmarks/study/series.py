"""What a chart draws, in order: the static figures and the page take it from here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import attrs

from benchmarks.study.results import Chart, Row

_T = TypeVar("_T")
MAX_TICKS: Final = 12
MIN_TICKS: Final = 3
DIGITS: Final = ("125", "123456789")
CLOSED_FORM: Final = ", closed form"  # ends the name of the line beside a measured one
DARK_COLOURS: Final = (  # on a dark page: Okabe and Ito, and grey; black is not seen there
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#E6EDF3",
    "#F0E442",
    "#999999",
)
COLOURS: Final = (  # the same on white, those darker that would not stand out from it
    "#0072B2",
    "#D55E00",
    "#00906A",
    "#C0659A",
    "#B27A00",
    "#2E8BC7",
    "#000000",
    "#8A8000",
    "#707070",
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
    return found if len(found) <= MAX_TICKS else short_ticks(found)


def y_ticks_of(chart: Chart, rows: Mapping[str, Row]) -> list[float]:
    """Return where a logarithmic y axis has its ticks; empty: wherever a library puts them."""
    drawn = [rows[key] for line in chart.lines for key in line.keys]
    return short_ticks([end for row in drawn for end in (row.low, row.mean, row.high)])


def short_ticks(values: Iterable[float]) -> list[float]:
    """Return ticks for a logarithmic axis of less than three decades, where powers of ten are few.

    Powers of two from 1 on; below, 1, 2 and 5 in each decade, or all digits where those are few.
    Empty: powers of ten do, or nothing does.
    """
    held = [value for value in values if 0 < value < math.inf]
    if not held or max(held) >= 1000 * min(held):
        return []
    low, high = min(held), max(held)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    twos = [2.0**power for power in range(11 + math.floor(math.log2(high)))] if low >= 1 else []
    for all_ticks in (twos, *([float(f"{d}e{ten}") for ten in decades for d in s] for s in DIGITS)):
        ticks = [tick for tick in all_ticks if low <= tick <= high]
        if len(ticks) >= MIN_TICKS:
            return ticks
    return []


def marked(style: int, marks: Sequence[_T]) -> _T:
    """Return the mark of a style; where the colours begin anew, the marks do not."""
    return marks[(style + style // len(marks)) % len(marks)]


def caption_of(chart: Chart, choice: str | None) -> str:
    """Return the caption of a chart, or of one of its choices."""
    of_choices = dict(zip(chart.choices, chart.captions, strict=True)) if chart.captions else {}
    return of_choices.get(choice or "", chart.caption)


def is_log_y(chart: Chart) -> bool | None:
    """Return whether the y axis is logarithmic at first; of bars it never is."""
    return None if chart.kind == "bar" else chart.log_y


def slug(text: str) -> str:
    """Return text as part of a file's name or of an address: small letters, digits, hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
