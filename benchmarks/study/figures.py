"""The charts as files: a png and an svg each. The same study gives the same files."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from benchmarks.study.results import Chart, Row, Study
from benchmarks.study.series import (
    COLOURS,
    Series,
    caption_of,
    choices_of,
    has_categories,
    is_log_y,
    marked,
    series_of,
    slug,
    ticks_of,
    y_ticks_of,
)

MARKERS: Final = ("o", "s", "D", "^", "P", "v", "X", "*", "p")
HATCHES: Final = ("", "//", "..", "\\\\", "xx", "--", "||", "++", "oo")
DASHES: Final = ((0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (9, 2)))
SIDE_BY_SIDE: Final = 70  # letters of names along an axis
SETTINGS: Final[dict[Any, Any]] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9.0,
    "grid.color": "#dddddd",
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 5.0,
    "svg.hashsalt": "kvreclaim",  # else the ids of an svg differ from run to run
}


def draw(study: Study, folder: Path) -> list[Path]:
    """Write a png and an svg of each chart, of each choice where it has choices; return the paths.

    Parameters
    ----------
    study
        Whose charts.
    folder
        Made where it is not there.

    Raises
    ------
    ValueError
        For charts that would have one file between them.
    """
    rows = study.by_key()
    stems = {
        slug(f"{chart.key} {choice or ''}"): (chart, choice)
        for chart in study.charts
        for choice in choices_of(chart)
    }
    wanted = sum(len(choices_of(chart)) for chart in study.charts)
    if len(stems) < wanted:
        raise ValueError(f"each chart must have a file of its own; got {wanted} for {list(stems)}.")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context():
        mpl.rcdefaults()  # a matplotlibrc of the user's must not change them
        mpl.rcParams.update(SETTINGS)
        for stem, (chart, choice) in stems.items():
            figure = figure_of(chart, rows, choice)
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # laid out once for both files
            for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
                path = folder / f"{stem}.{suffix}"
                figure.savefig(path, metadata=metadata)
                paths.append(path)
    return paths


def figure_of(chart: Chart, rows: Mapping[str, Row], choice: str | None = None) -> Figure:
    """Return the figure of a chart, or of one of its choices."""
    series = series_of(chart, rows, choice)
    figure = Figure(figsize=(7.0, 4.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    title = chart.title if choice is None else f"{chart.title}: {choice}"
    if chart.captions:
        figure.suptitle(_plain(title), size="large", wrap=True)
        axes.set_title(textwrap.fill(_plain(caption_of(chart, choice)), 110), size="small")
    else:
        axes.set_title(_plain(title), wrap=True)
    axes.set_xlabel(textwrap.fill(_plain(chart.x_title), 90))
    axes.set_ylabel(textwrap.fill(_plain(chart.y_title), 50))
    if is_log_y(chart):
        _make_y_logarithmic(axes, series, y_ticks_of(chart, rows))
    if has_categories(chart, rows):
        places = list(dict.fromkeys(str(row.x) for one in series for row in one.rows))
        _name_places(axes, places)
        spots = [[float(places.index(str(row.x))) for row in one.rows] for one in series]
    else:
        spots = [[float(row.x) for row in one.rows] for one in series]
        if chart.log_x:
            _make_x_logarithmic(axes, ticks_of(chart, rows))
    for number, (one, xs) in enumerate(zip(series, spots, strict=True)):
        if chart.kind == "bar":
            width = 0.8 / len(series)
            left = -0.4 + (number + 0.5) * width
            _draw_bars(axes, one, [x + left for x in xs], width)
        else:
            _draw_line(axes, one, xs, joined=chart.kind == "line" or one.dashed)
    if chart.y_range and not is_log_y(chart):
        axes.set_ylim(*chart.y_range)
    if len(series) > 1:
        columns = min(4, max(1, 90 // (8 + max(len(one.name) for one in series))))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _name_places(axes: Axes, places: list[str]) -> None:
    axes.set_xticks(range(len(places)), [_plain(place) for place in places])
    axes.grid(visible=False, axis="x")
    if sum(map(len, places)) > SIDE_BY_SIDE:
        axes.tick_params(axis="x", labelrotation=30)
        for label in axes.get_xticklabels():
            label.set(horizontalalignment="right", rotation_mode="anchor")


def _make_x_logarithmic(axes: Axes, ticks: list[float]) -> None:
    axes.set_xscale("log")
    _set_ticks(axes.xaxis, ticks)


def _set_ticks(axis: Axis, ticks: list[float]) -> None:
    above = [tick for tick in ticks if tick > 0]
    if above:
        axis.set_ticks(above, labels=[f"{tick:g}" for tick in above])
        axis.set_minor_locator(NullLocator())


def _make_y_logarithmic(axes: Axes, series: list[Series], ticks: list[float]) -> None:
    axes.set_yscale("log")
    _set_ticks(axes.yaxis, ticks)
    lost = sum(mean <= 0 for one in series for mean in one.means)
    if lost:
        said = f"({lost} values of 0 or less have no place on a logarithmic axis)"
        axes.set_xlabel(f"{axes.get_xlabel()}\n{said}")


def _plain(text: str) -> str:
    """Return text that is drawn as it is: dollars would begin a formula."""
    return text.replace("$", r"\$")


def _draw_line(axes: Axes, one: Series, xs: list[float], *, joined: bool) -> None:
    colour = COLOURS[one.style % len(COLOURS)]
    is_log = axes.get_yscale() == "log"
    axes.errorbar(
        xs,
        [math.nan if is_log and mean <= 0 else mean for mean in one.means],
        yerr=(one.below, one.above) if any(one.below) or any(one.above) else None,
        label=_plain(one.name),
        color=colour,
        linestyle="none" if not joined else DASHES[one.style % len(DASHES)] if one.dashed else "-",
        marker=marked(one.style, MARKERS),
        markerfacecolor="white" if one.dashed else colour,
        markeredgecolor=colour if one.dashed else "black",
        markeredgewidth=0.9 if one.dashed else 0.5,
        markevery=max(1, len(xs) // 20) if joined else 1,
        capsize=2.5,
        elinewidth=0.9,
        zorder=2.0 if one.dashed else 3.0,
    )


def _draw_bars(axes: Axes, one: Series, xs: list[float], width: float) -> None:
    axes.bar(
        xs,
        one.means,
        width,
        yerr=(one.below, one.above) if any(one.below) or any(one.above) else None,
        label=_plain(one.name),
        facecolor="white" if one.dashed else COLOURS[one.style % len(COLOURS)],
        edgecolor="black",
        linewidth=0.6,
        linestyle="--" if one.dashed else "-",
        hatch=marked(one.style, HATCHES),
        capsize=2.5,
        error_kw={"elinewidth": 0.9},
    )
    for x, row, above in zip(xs, one.rows, one.above, strict=True):
        if row.mean == 0:  # a bar that is not seen
            axes.annotate(
                "0",
                (x, above),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                size="x-small",
            )
