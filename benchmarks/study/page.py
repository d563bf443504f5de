"""The study as one HTML file that needs nothing else: no network, and no script for its tables."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from benchmarks.study.results import Chart, Row, Study
from benchmarks.study.series import (
    COLOURS,
    DARK_COLOURS,
    Series,
    caption_of,
    choices_of,
    has_categories,
    is_log_y,
    series_of,
    slug,
    ticks_of,
    y_ticks_of,
)

TITLE: Final = "What KV-cache eviction gives back: the article, figure by figure"
HEADINGS: Final = {
    "series": "Series",
    "metric": "Metric",
    "setting": "Setting",
    "x": "x",
    "mean": "Mean",
    "sd": "sd",
    "low": "95 % from",
    "high": "95 % to",
    "n": "n",
    "interval": "Interval",
    "closed_form": "Closed form",
    "law": "Law",
    "article": "Article",
    "verdict": "Verdict",
}
NUMBERS: Final = {"x", "mean", "sd", "low", "high", "n", "closed_form"}
LINE: Final = "line"  # the column of a series as the legend has it
WHOLE: Final = 10**12
OPTIONAL: Final = {"article", "closed_form", "law"}
OF_CHART: Final = (
    LINE,
    "x",
    "mean",
    "low",
    "high",
    "article",
    "verdict",
    "closed_form",
    "sd",
    "n",
    "metric",
    "setting",
    "interval",
    "law",
)
OF_ARTICLE: Final = (
    "series",
    "metric",
    "setting",
    "article",
    "mean",
    "verdict",
    "low",
    "high",
    "sd",
    "n",
    "closed_form",
)
HOVER: Final = ("x", "mean", "sd", "low", "high", "n", "closed_form", "article")


def write(study: Study, path: Path) -> None:
    """Write the page of a study.

    Parameters
    ----------
    study
        Whose rows and charts.
    path
        Of the file; about 5 MB, since it holds the script that draws the charts.
    """
    path.write_text(html(study), encoding="utf-8", newline="\n")


def html(study: Study) -> str:
    """Return the page of a study."""
    ids = [_section_id(title) for title, _ in study.sections] + list(map(_chart_id, study.charts))
    if len(set(ids)) < len(ids):
        raise ValueError(f"each section and chart must have an address of its own; got {ids}.")
    here = Path(__file__)
    offline: Any = importlib.import_module("plotly.offline")  # it has no types
    library: str = offline.get_plotlyjs()
    scripts = [
        f"\n{_unbroken(text)}\n"
        for text in (library, here.with_name("page.js").read_text(encoding="utf-8"))
    ]
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    style = here.with_name("page.css").read_text(encoding="utf-8")
    data = json.dumps(_drawn(study), allow_nan=False, separators=(",", ":"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{escape(TITLE)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the figures</a>
{_head(study)}
<main id="content" tabindex="-1">
{"".join(_section(study, title, text) for title, text in study.sections)}</main>
<footer><p>kvreclaim {escape(study.version)}. Every number stands in full in
<code>results_summary.csv</code>.</p></footer>
<script type="application/json" id="drawn">{data.replace("<", chr(92) + "u003c")}</script>
<script>{scripts[0]}</script>
<script>{scripts[1]}</script>
</body>
</html>
"""


def shown(value: str | float | None) -> str:
    """Return a cell as the CSV has it."""
    return "" if value is None else str(value)


def _unbroken(script: str) -> str:
    return script.replace("</script", "<\\/script").strip()


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _section_id(title: str) -> str:
    return f"section-{slug(title)}"


def _head(study: Study) -> str:
    links = "".join(
        f'<li><a href="#{_section_id(title)}">{escape(title)}</a></li>\n'
        for title, _ in study.sections
    )
    return f"""<header>
<h1>{escape(TITLE)}</h1>
<p>{study.replications} replications, each with a seed of its own; of an exact figure there is one.
Bars on a point are its 95 % interval. Point at it for its exact values, select a name in a legend
to hide a series. A table below each chart holds the numbers drawn; point at one for all of its
digits.</p>
<noscript><p>The charts need JavaScript; the tables hold everything that they show.</p></noscript>
</header>
<nav aria-label="Sections"><ul>
{links}</ul></nav>"""


def _section(study: Study, title: str, text: str) -> str:
    rows = study.by_key()
    charts = [chart for chart in study.charts if chart.section == title]
    of_section = [row for row in study.rows if row.section == title]
    of_article = [row for row in of_section if row.article]
    drawn = {key for chart in charts for line in chart.lines for key in line.keys}
    others = [row for row in of_section if row.key not in drawn and not row.article]
    name = _section_id(title)
    paragraphs = "".join(f"<p>{escape(part.strip())}</p>\n" for part in text.split("\n\n"))
    tables = (
        _table(f"{name}-article", "Figures of the article", _named(of_article), OF_ARTICLE),
        _table(f"{name}-others", "Figures in no chart", _named(others), tuple(HEADINGS)),
    )
    return f"""<section aria-labelledby="{name}">
<h2 id="{name}">{escape(title)}</h2>
{paragraphs}{tables[0] if of_article else ""}
{"".join(_chart(chart, rows) for chart in charts)}{tables[1] if others else ""}
</section>
"""


def _chart(chart: Chart, rows: Mapping[str, Row]) -> str:
    name = _chart_id(chart)
    tables = "".join(
        _table(
            f"{name}-table-{number}",
            f"{chart.title}: {choice}" if choice else chart.title,
            [(one.name, row) for one in series_of(chart, rows, choice) for row in one.rows],
            OF_CHART,
            HEADINGS | {LINE: HEADINGS["series"], "x": chart.x_title},
        )
        for number, choice in enumerate(choices_of(chart))
    )
    return f"""<article id="{name}" aria-labelledby="{name}-title">
<h3 id="{name}-title">{escape(chart.title)}</h3>
{_captions(chart)}
{_controls(chart, name)}
<div class="drawn" hidden>
<ul class="legend" aria-label="Series: select one to hide or show it"></ul>
<div class="plot" role="img" aria-label="{escape(_name(chart, choices_of(chart)[0]))}"
 aria-describedby="{name}-table-0-caption" aria-details="{name}-table-0"></div>
<p class="note" role="status"></p>
</div>
{tables}</article>
"""


def _named(rows: Iterable[Row]) -> list[tuple[str, Row]]:
    return [(row.series, row) for row in rows]


def _captions(chart: Chart) -> str:
    """Return a caption, or that of each choice, of which the script shows one."""
    if not chart.captions:
        return f"<p>{escape(chart.caption)}</p>"
    return "\n".join(
        f'<p class="caption"><b>{escape(choice)}:</b> {escape(caption_of(chart, choice))}</p>'
        for choice in chart.choices
    )


def _name(chart: Chart, choice: str | None) -> str:
    """Return what a chart is, for those who do not see it."""
    suffix = "" if choice is None else f" ({choice})"
    return f"{chart.title}. {caption_of(chart, choice)}{suffix}"


def _chart_id(chart: Chart) -> str:
    return f"chart-{slug(chart.key)}"


def _controls(chart: Chart, name: str) -> str:
    parts = []
    if chart.choices:
        options = "".join(f"<option>{escape(choice)}</option>" for choice in chart.choices)
        parts.append(
            f'<label for="{name}-choice">{escape(chart.selector)}</label>\n'
            f'<select id="{name}-choice">{options}</select>'
        )
    for axis, is_log in (
        ("X", None if chart.kind == "bar" else chart.log_x),
        ("Y", is_log_y(chart)),
    ):
        if is_log is not None:
            parts.append(
                f'<button type="button" data-axis="log{axis}" aria-pressed="{str(is_log).lower()}">'
                f"Logarithmic {axis.lower()} axis</button>"
            )
    inside = "\n".join(parts)
    return f'<div class="controls" hidden>\n{inside}\n</div>' if parts else ""


def _table(
    name: str,
    caption: str,
    rows: Sequence[tuple[str, Row]],
    columns: Iterable[str],
    headings: Mapping[str, str] = HEADINGS,
) -> str:
    all_cells = [row.cells() for _, row in rows]
    columns = tuple(
        column
        for column in columns
        if column not in OPTIONAL or any(cells[column] not in ("", None) for cells in all_cells)
    )
    head = "".join(f'<th scope="col">{escape(headings[column])}</th>' for column in columns)
    body = "".join(
        f'<tr data-key="{escape(row.key)}">{"".join(_cells(name, row, columns))}</tr>\n'
        for name, row in rows
    )
    return f"""<div class="scroll" tabindex="0" role="group" aria-labelledby="{name}-caption">
<table id="{name}">
<caption id="{name}-caption"><span>{escape(caption)}</span></caption>
<thead><tr>{head}</tr></thead>
<tbody>
{body}</tbody>
</table>
</div>
"""


def _cells(name: str, row: Row, columns: Sequence[str]) -> list[str]:
    values = row.cells()
    cells = []
    for column in columns:
        value = name if column == LINE else values[column]
        text = escape(shown(value))
        if column in (LINE, "series"):
            cells.append(f'<th scope="row" data-column="{column}">{text}</th>')
        elif column in NUMBERS and not isinstance(value, str):
            brief = "" if value is None else short(value)
            whole = "" if brief == text else f' title="{text}" data-value="{text}"'
            cells.append(f'<td class="number" data-column="{column}"{whole}>{brief}</td>')
        else:
            cells.append(f'<td class="words" data-column="{column}">{text}</td>')
    return cells


def short(value: float) -> str:
    """Return a number with four significant digits; a whole one with all of its own."""
    return str(int(value)) if value == int(value) and abs(value) < WHOLE else f"{value:.4g}"


def _drawn(study: Study) -> dict[str, Any]:
    """Return what the script draws; a hover shows the cells of the table."""
    rows = study.by_key()
    return {
        "charts": [_drawn_chart(chart, rows) for chart in study.charts],
        "colours": {"light": COLOURS, "dark": DARK_COLOURS},
        "labels": [HEADINGS[column] for column in HOVER],
    }


def _drawn_chart(chart: Chart, rows: Mapping[str, Row]) -> dict[str, Any]:
    categories = has_categories(chart, rows)
    return {
        "id": _chart_id(chart),
        "kind": chart.kind,
        "xTitle": chart.x_title,
        "yTitle": chart.y_title,
        "logX": chart.log_x,
        "logY": is_log_y(chart),
        "yRange": chart.y_range,
        "said": [_name(chart, choice) for choice in choices_of(chart)],
        "choices": chart.choices,
        "categories": categories,
        "ticks": ticks_of(chart, rows),
        "yTicks": y_ticks_of(chart, rows),
        "lines": [
            [_drawn_line(one, categories=categories) for one in series_of(chart, rows, choice)]
            for choice in choices_of(chart)
        ],
    }


def _drawn_line(one: Series, *, categories: bool) -> dict[str, Any]:
    cells = [row.cells() for row in one.rows]
    return {
        "name": one.name,
        "style": one.style,
        "dashed": one.dashed,
        "x": [shown(row["x"]) if categories else row["x"] for row in cells],
        "y": [row["mean"] for row in cells],
        "up": one.above,
        "down": one.below,
        "cells": [[shown(row[column]) for column in HOVER] for row in cells],
    }
