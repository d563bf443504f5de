"""Summaries over sequences or seeds as cells of tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kvreclaim._render.tables import Table
from kvreclaim.replicates import FigureSummary

_SHORT: Final = {
    "t": "t",
    "paired t": "t",
    "linearised t": "t",
    "Clopper-Pearson": "CP",
    "Korn-Graubard": "KG",
    "rule of three": "3/n",
    "constant": "same",
    "none": "-",
}
_MEANINGS: Final = {
    "CP": "CP: from counts of blocks (Clopper-Pearson): events are few, or all are alike.",
    "KG": "KG: from counts of blocks that come free in clusters (Korn-Graubard).",
    "3/n": "3/n: all alike; what may well not have been seen (rule of three).",
    "same": "same: all alike, which says nothing of how far others may lie.",
    "-": "-: no interval: fewer than two define it, or it hangs on too few free blocks.",
}
OF_BLOCKS: Final = {name: f"{name} over blocks" for name in ("Clopper-Pearson", "Korn-Graubard")}
"""What methods are called that count blocks, and not the sequences of which they are told."""

_LARGE: Final = 1e5  # from which on no decimals are shown


_KINDS: Final = {
    "pooled": "pooled",
    "low": "95 % from",
    "high": "95 % to",
    "mean": "mean",
    "sd": "sd",
}


def by_kind(figures: Mapping[str, FigureSummary]) -> dict[str, dict[str, float | str | None]]:
    """Return the numbers of every figure, kind by kind; None where there is none."""
    return {
        "pooled": {k: None if f.pooled is None else f.pooled.mean for k, f in figures.items()},
        "low": {name: figure.interval.low for name, figure in figures.items()},
        "high": {name: figure.interval.high for name, figure in figures.items()},
        "method": {name: figure.interval.method for name, figure in figures.items()},
        "mean": {name: figure.each.mean for name, figure in figures.items()},
        "sd": {name: figure.each.sd for name, figure in figures.items()},
        "n": {name: figure.each.num_samples for name, figure in figures.items()},
    }


def in_csv(numbers: Mapping[str, float | str | None]) -> dict[str, str]:
    """Return numbers in full precision, empty where undefined or infinite."""
    return {
        name: ""
        if number is None or (isinstance(number, float) and not math.isfinite(number))
        else str(number)
        for name, number in numbers.items()
    }


def rows(
    figures: Mapping[str, FigureSummary], names: Sequence[str], undefined: str
) -> dict[str, list[str]]:
    """Return the rows that a summary adds to a table of figures of these names."""
    numbers = by_kind(figures)
    return {
        label: [shown(numbers[kind].get(name)).replace("nan", undefined) for name in names]
        for kind, label in _KINDS.items()
    }


def as_table(figures: Mapping[str, FigureSummary], labels: Mapping[str, str]) -> Table:
    """Return a row for each figure; the last column says how its interval was made."""
    headings = ["", "pooled", "95 %\nfrom", "to", "each:\nmean", "sd", "n", "by"]
    rows = [
        [
            labels[name],
            "" if figure.pooled is None else shown(figure.pooled.mean),
            shown(figure.interval.low),
            shown(figure.interval.high),
            shown(figure.each.mean),
            shown(figure.each.sd),
            str(figure.each.num_samples),
            _SHORT[figure.interval.method],
        ]
        for name, figure in figures.items()
    ]
    return Table(headings, rows)


def legend(methods: set[str]) -> Iterator[str]:
    """Yield what the columns mean, and the ways in which intervals were made."""
    yield "pooled: the ratio of sums; each: mean and sd of the n that define the figure."
    yield "The interval is that of the pooled figure or, where there is none, of the mean."
    used = {_SHORT[method] for method in methods}
    for short, meaning in _MEANINGS.items():
        if short in used:
            yield meaning


def shown(value: float | str | None) -> str:
    """Return a number as a terminal shows it."""
    if value is None or isinstance(value, str | int):
        return "" if value is None else str(value)
    return f"{value:.4g}" if math.isfinite(value) and abs(value) >= _LARGE else f"{value:z.3f}"
