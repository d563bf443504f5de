"""One result: every figure as a row, every chart as rows in order. All that is written comes of it.

The table, the static figures, the data and the page are made of the same rows, so they cannot
differ.
"""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any, Final

import attrs

COLUMNS: Final = (
    "key",
    "section",
    "series",
    "setting",
    "x",
    "metric",
    "mean",
    "sd",
    "low",
    "high",
    "n",
    "interval",
    "closed_form",
    "law",
    "article",
    "verdict",
)


@attrs.frozen(kw_only=True)
class Row:
    """One figure.

    Parameters
    ----------
    key
        A name that no other row has, such as ``methods/H2O/B=16/reclaim``.
    section
        Title of the section.
    series
        The line, bar group or policy it belongs to, such as ``H2O``.
    setting
        What holds for it, in words, such as ``B = 16, half kept, 48 blocks``.
    x
        Where it stands on the chart's axis: a number, or a category.
    metric
        What is measured, such as ``physical reclaim``.
    mean, sd, low, high, n, interval
        Mean over `n` replications, sample standard deviation, 95 % interval, and how that was made;
        of an exact figure sd is 0, low and high are the mean, n is 1 and `interval` is ``exact``.
    closed_form
        What a closed form says; None where there is none.
    law
        The function or formula that says it.
    article
        The figure as the article prints it; empty where it has none.
    verdict
        Whether and why ours is the article's, or what the row shows; never empty.
    """

    key: str
    section: str
    series: str
    setting: str
    x: float | str
    metric: str
    mean: float
    sd: float
    low: float
    high: float
    n: int
    interval: str
    closed_form: float | None = None
    law: str = ""
    article: str = ""
    verdict: str

    def cells(self) -> dict[str, str | float | int | None]:
        """Return the row by column; what is undefined is None."""
        values = {name: getattr(self, name) for name in COLUMNS}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }


@attrs.frozen(kw_only=True)
class Line:
    """One series of a chart: the keys of its rows, in order."""

    name: str
    keys: tuple[str, ...]
    dashed: bool = False  # a closed form rather than a measurement


@attrs.frozen(kw_only=True)
class Chart:
    """What a chart shows; a page and a static figure draw the same.

    Parameters
    ----------
    key
        A name that no other chart has; the stem of the figure's file.
    section
        Title of the section it stands in.
    title, caption
        A heading, and a sentence that says what to see.
    x_title, y_title
        What the axes are, with units.
    kind
        ``"line"``, ``"bar"`` (categories on the x axis) or ``"scatter"`` (x is a row of its own).
    lines
        The series; with a selector those of each choice.
    choices
        What the selector offers, such as importance distributions; empty: no selector. With
        choices, `lines` holds the series of all of them, and `choice_of[i]` is that of `lines[i]`.
    choice_of
        The choice of each series.
    selector
        What the choices are, such as ``Importance``: the selector's label.
    log_x, log_y
        Whether an axis is logarithmic at first; a button changes it where it may be (``None``: no
        button, linear).
    captions
        The caption of each choice; empty: `caption` for all.
    y_range
        Ends of the y axis while it is linear, alike for all choices; None: what the data need.
    """

    key: str
    section: str
    title: str
    caption: str
    x_title: str
    y_title: str
    kind: str
    lines: tuple[Line, ...]
    choices: tuple[str, ...] = ()
    choice_of: tuple[str, ...] = ()
    selector: str = "Show"
    log_x: bool | None = None
    log_y: bool | None = None
    captions: tuple[str, ...] = ()
    y_range: tuple[float, float] | None = None

    def is_sorted(self) -> bool:
        """Return whether each series has a choice, and each choice a series."""
        num = len(self.lines) if self.choices else 0
        return len(self.choice_of) == num and set(self.choice_of) == set(self.choices)


@attrs.frozen(kw_only=True)
class Study:
    """All rows and all charts of one run."""

    rows: tuple[Row, ...]
    charts: tuple[Chart, ...]
    sections: tuple[tuple[str, str], ...]  # title, and a paragraph that introduces it
    replications: int
    version: str

    def __attrs_post_init__(self) -> None:
        """Refuse keys that stand twice, rows without a verdict, and charts of rows not there."""
        keys = [row.key for row in self.rows]
        if len(set(keys)) < len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})
            raise ValueError(f"each row must have a key of its own; got {twice} more than once.")
        silent = [row.key for row in self.rows if not row.verdict]
        if silent:
            raise ValueError(f"each row must have a verdict; got none for {silent}.")
        missing = {key for chart in self.charts for line in chart.lines for key in line.keys} - set(
            keys
        )
        if missing:
            raise ValueError(f"charts must draw rows; got unknown keys {sorted(missing)}.")
        titles = [title for title, _ in self.sections]
        placed = {row.section for row in self.rows} | {chart.section for chart in self.charts}
        lost = placed - set(titles)
        if lost:
            raise ValueError(f"rows and charts must stand in a section; got {sorted(lost)}.")
        mixed = [chart.key for chart in self.charts if not chart.is_sorted()]
        if mixed:
            raise ValueError(f"each series must have one of its chart's choices; got {mixed}.")

    def by_key(self) -> dict[str, Row]:
        """Return the rows by their keys."""
        return {row.key: row for row in self.rows}

    def to_csv(self) -> str:
        """Return the table: a line for each row, numbers in full."""
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow({k: "" if v is None else v for k, v in row.cells().items()})
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Return all of it: in each section its rows, as values by `columns`, and its charts."""
        columns = [name for name in COLUMNS if name != "section"]
        return {
            "version": self.version,
            "replications": self.replications,
            "columns": columns,
            "sections": [
                {
                    "title": title,
                    "text": text,
                    "rows": [
                        [row.cells()[name] for name in columns]
                        for row in self.rows
                        if row.section == title
                    ],
                    "charts": [
                        attrs.asdict(chart) for chart in self.charts if chart.section == title
                    ],
                }
                for title, text in self.sections
            ],
        }

    def to_json(self) -> str:
        """Return `to_dict` as JSON, a line for each row and chart; what is undefined is null."""
        whole = self.to_dict()
        sections = whole.pop("sections")
        body = ",\n".join(
            f"{_members({'title': one['title'], 'text': one['text']})},\n"
            f'"rows":{_listed(one["rows"])},\n"charts":{_listed(one["charts"])}}}'
            for one in sections
        )
        return f'{_members(whole)},\n"sections":[\n{body}\n]}}\n'


def _compact(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def _members(values: dict[str, Any]) -> str:
    """Return an object that is still open."""
    return _compact(values).removesuffix("}")


def _listed(values: list[Any]) -> str:
    return "[\n" + ",\n".join(map(_compact, values)) + "\n]"
