"""A comparison as tables: for a terminal, a notebook, a page and a paper, and as CSV."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from kvreclaim import _summary_tables
from kvreclaim._render import html, report_rows, tables
from kvreclaim._render.tables import Table
from kvreclaim.replicates import FigureSummary
from kvreclaim.reports import Report
from kvreclaim.signature import Signature, line_of

# The names of the figures of a wide table, in two lines above their columns.
_HEADINGS: Final = {
    "logical_saving": "logical\nsaving",
    "physical_reclaim": "in\nplace",
    "compacted_reclaim": "com-\npacted",
    "packed_reclaim": "packed",
    "decode_steps": "decode\nsteps",
    "admission_count": "admits",
    "reclaim_efficiency": "effi-\nciency",
    "fragmentation": "fragmen-\ntation",
    "memory_waste": "memory\nwaste",
}
_LABELS: Final = report_rows.LABELS | {
    "decode_steps": "copy, in decode steps",
    "slots_per_move": "slots per move",
    "pool_usage_before": "pool usage before",
    "pool_usage_after": "  after",
    "held_bytes": "bytes held",
    "reclaimed_bytes": "  reclaimed",
}
FIGURES: Final = (
    *_HEADINGS,
    "moved_tokens_per_block",
    "slots_per_move",
    "capacity_gain",
    "reclaimed",
    "stranded",
    "unshared",
    "pinned",
    "effective_tokens_per_block",
    "effective_rows",
    "pool_usage_before",
    "pool_usage_after",
    "held_bytes",
    "reclaimed_bytes",
)
"""The names of a report's figures, in the order of a table of all of them."""

_STARTS_A_GROUP: Final = ("reclaim_efficiency", "reclaimed", "pool_usage_before", "held_bytes")
_UNDEFINED: Final = "undefined"
_NO_SUMMARY: Final = (
    "A summary is undefined where all reports are alike, where fewer than two define the figure, "
    "and where it hangs on too few free blocks."
)


def terms_of(report: Report) -> dict[str, str]:
    """Return what the figures hold for: the fields of the signature, and the size of a request."""
    signature = Signature(report.census.pool, report.census.rows_per_table, report.version)
    request = report.blocks_per_request
    return signature.fields() | {"request": "-" if request is None else str(request)}


@attrs.frozen
class ComparisonTables:
    """What stands in a table of reports side by side.

    Parameters
    ----------
    names, reports
        Of each report; what it is of, and its figures.
    summaries
        Of the reports that are summarized together, by what they are of.
    differences
        Of some of those, by the same names, from the first.
    """

    names: tuple[str, ...]
    reports: tuple[Report, ...]
    summaries: Mapping[str, Mapping[str, FigureSummary]]
    differences: Mapping[str, Mapping[str, FigureSummary]]

    def as_csv(self) -> str:
        """Return a row for each report, in full precision, and rows of the summaries."""
        rows: list[dict[str, str]] = []
        for name, report in zip(self.names, self.reports, strict=True):
            written = report.to_dict()
            counts = written.pop("counts")
            numbers = {key: count for key, count in counts.items() if isinstance(count, int)}
            cells = {"source": name} | written.pop("metrics") | numbers | written
            rows.append({key: "" if cell is None else str(cell) for key, cell in cells.items()})
        if self.summaries:
            rows = [{"source": row["source"], "summary": ""} | row for row in rows]
            rows += [
                dict.fromkeys(rows[0], "")
                | {"source": name, "summary": kind}
                | _summary_tables.in_csv(cells)
                for name, figures in self._summarized(list(self.summaries))
                for kind, cells in _summary_tables.by_kind(figures).items()
            ]
        return tables.as_csv(Table(list(rows[0]), [list(row.values()) for row in rows]))

    def as_markdown(self) -> str:
        """Return a row for each report and each summary, and the signature below."""
        signature, table = self._as_rows()
        notes = map(tables.in_markdown, [*self._interval_notes(), *self._compactor_notes()])
        return "\n\n".join((tables.as_markdown(table), *notes, f"`{signature}`"))

    def as_latex(self) -> str:
        """Return the same for a paper, with the signature in its caption."""
        signature, table = self._as_rows(undefined="--")
        breakable = tables.in_latex(signature).replace(r"\textbar{}", r"|\allowbreak{}")
        caption = (
            "Share of the KV cache's blocks that comes back after eviction: in place (no copy), "
            "after compaction, and packed."
        )
        notes = map(tables.in_latex, [*self._interval_notes(), *self._compactor_notes()])
        whole = " ".join((caption, *notes, rf"\texttt{{{breakable}}}"))
        return tables.as_latex(table, whole)

    def as_rows(self) -> str:
        """Return a row for each report, of as many figures as fit into a terminal."""
        return self._as_text(*self._as_rows(summarized=False))

    def as_columns(self) -> str:
        """Return a column for each report, of all figures, if that fits; or rows."""
        signature, table = self._as_columns()
        if sum(tables.widths(table)) > tables.WIDTH:
            return self.as_rows()
        return self._as_text(signature, table)

    def as_html(self) -> str:
        """Return a row for each report and each summary, with why a figure is undefined."""
        signature, table = self._as_rows(undefined=_UNDEFINED)
        headings = [tables.on_one_line(heading) for heading in table.headings]
        rows = [list(row) for row in table.rows]
        of_heading = {tables.on_one_line(heading): name for name, heading in _HEADINGS.items()}
        for row, report in zip(rows, self.reports, strict=False):
            for column, heading in enumerate(headings):
                if row[column] == _UNDEFINED and heading in of_heading:
                    why = report_rows.why_undefined(of_heading[heading], report.census)
                    row[column] = f"{_UNDEFINED} ({why})"
        saving = headings.index("logical saving")
        order = [*range(len(headings))]
        order.insert(saving + 3, order.pop(saving))  # the three figures of what comes back first
        summaries = [] if len(rows) == len(self.reports) else [rows[len(self.reports) :]]
        groups = [
            [[row[column] for column in order] for row in group]
            for group in (rows[: len(self.reports)], *summaries)
        ]
        prefix, _ = self._short_names()
        notes = [f"All in {prefix}"] if prefix else []
        if any(_UNDEFINED in row for rows_of_one in summaries for row in rows_of_one):
            notes.append(_NO_SUMMARY)
        columns = [headings[column] for column in order]
        return html.as_html(
            signature, columns, groups, [*notes, *self._interval_notes(), *self._notes()]
        )

    def _as_text(self, signature: str, table: Table) -> str:
        prefix, _ = self._short_names()
        lines = [prefix] if prefix else []
        lines += [tables.as_text(table), "", *self._summary_lines(), *self._notes(), signature]
        return "\n".join(lines)

    def _short_names(self) -> tuple[str, list[str]]:
        return tables.without_prefix([tables.printable(name) for name in self.names])

    def _short_names_of_summaries(self) -> list[str]:
        """Return their names without the folder or the file that all the reports lie in."""
        prefix, _ = self._short_names()
        names = (tables.printable(name) for name in self.summaries)
        return [name.removeprefix(prefix) or name for name in names]

    def _summarized(
        self, called: Sequence[str]
    ) -> Iterator[tuple[str, Mapping[str, FigureSummary]]]:
        """Yield each of the summaries under what it is called, and then the differences."""
        yield from zip(called, self.summaries.values(), strict=True)
        of_name = dict(zip(self.summaries, called, strict=True))
        for name, figures in self.differences.items():
            yield f"{of_name[name]} less {called[0]}", figures

    def _summary_lines(self) -> Iterator[str]:
        methods = set()
        shown = self._values("")
        for name, figures in self._summarized(self._short_names_of_summaries()):
            given = {key: figures[key] for key in FIGURES if key in shown and key in figures}
            yield name
            yield tables.as_text(_summary_tables.as_table(given, _LABELS))
            yield ""
            methods |= {figure.interval.method for figure in given.values()}
        if self.summaries:
            yield from _summary_tables.legend(methods)
            yield ""

    def _interval_notes(self) -> Iterator[str]:
        """Yield how the intervals of a wide table were made, and of how many reports."""
        shown = [name for name in _HEADINGS if name in self._values("")]
        for name, figures in self._summarized(self._short_names_of_summaries()):
            made: dict[str, list[str]] = {}
            for figure in shown:
                interval = figures[figure].interval if figure in figures else None
                if interval and not math.isnan(interval.low):
                    heading = tables.on_one_line(_HEADINGS[figure])
                    made.setdefault(interval.method, []).append(heading)
            if made:
                number = max(figure.each.num_samples for figure in figures.values())
                ways = "; ".join(
                    f"{_summary_tables.OF_BLOCKS.get(method, method)} ({', '.join(of)})"
                    for method, of in made.items()
                )
                yield f"{name}, n = {number}: 95 % intervals by {ways}."

    def _signature(self) -> tuple[str, dict[str, list[str]]]:
        """Return the signature, starred where the reports differ, and what each has there."""
        of_each = [terms_of(report) for report in self.reports]
        differing = {
            name: [terms[name] for terms in of_each]
            for name in of_each[0]
            if len({terms[name] for terms in of_each}) > 1
        }
        starred = of_each[0] | dict.fromkeys(differing, "*")
        del starred["request"]
        return line_of(starred), differing

    def _values(self, undefined: str) -> dict[str, list[str]]:
        """Return the figures that any report has, by name, of each report."""
        of_each = [report.figures() for report in self.reports]
        return {
            name: [_shown(figures[name], undefined) for figures in of_each]
            for name in FIGURES
            if any(figures[name] is not None for figures in of_each)
        }

    def _compactor_notes(self) -> Iterator[str]:
        """Yield what a copy of nothing means where no pool of the table has a compactor."""
        if all(report.census.pool.compactor == "none" for report in self.reports):
            yield "Nothing is moved, since the pool has no compactor: packed has no price here."

    def _notes(self) -> Iterator[str]:
        """Yield what the pool does not have, and which of its letters the masks do not."""
        yield from self._compactor_notes()
        short = self._short_names()[1]
        absent = [report.absent_axes for report in self.reports]
        for letters in sorted({letters for letters in absent if letters}):
            names = [name for name, each in zip(short, absent, strict=True) if each == letters]
            masks = "every mask" if len(names) == len(short) else ", ".join(names)
            yield from textwrap.wrap(
                f"The pool shares blocks over {letters!r}, no axis of {masks}: counted as 1 row.",
                tables.WIDTH,
            )

    def _as_rows(self, undefined: str = "nan", *, summarized: bool = True) -> tuple[str, Table]:
        signature, differing = self._signature()
        values = self._values(undefined)
        figures = [name for name in _HEADINGS if name in values]
        columns = {"": self._short_names()[1]} | differing
        columns |= {_HEADINGS[name]: values[name] for name in figures}
        rows = list(zip(*columns.values(), strict=True))
        if summarized:
            rows += [
                (f"{name}, {kind}", *[""] * len(differing), *cells)
                for name, found in self._summarized(self._short_names_of_summaries())
                for kind, cells in _summary_tables.rows(found, figures, undefined).items()
            ]
        return signature, Table(list(columns), rows)

    def _as_columns(self) -> tuple[str, Table]:
        signature, differing = self._signature()
        rows = [[name, *cells] for name, cells in differing.items()]
        labels = dict(_LABELS)
        if {report.census.pool.compactor for report in self.reports} == {"none"}:
            labels["compacted_reclaim"] = report_rows.NOT_COMPACTED
        for name, cells in self._values("nan").items():
            if name in _STARTS_A_GROUP:
                rows.append([])
            rows.append([labels[name], *cells])
        return signature, Table(["", *self._short_names()[1]], rows)


def _shown(value: float | None, undefined: str) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    return undefined if math.isnan(value) else f"{value:.3f}"
