"""Comparison: reports side by side, as text, JSON, CSV, Markdown and LaTeX."""

from __future__ import annotations

import json
import math
import platform
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np

from kvreclaim import _summary_tables
from kvreclaim._render import html, report_rows, tables
from kvreclaim._render.tables import Table
from kvreclaim._saved_reports import SCHEMA_VERSION, groups_in, items_in, reports_in
from kvreclaim._version import __version__
from kvreclaim.replicates import (
    FigureSummary,
    Replicates,
    as_replicates,
    paired_differences,
    same_sequences,
    summarize_reports,
)
from kvreclaim.reports import Report
from kvreclaim.signature import Signature, line_of

# The name of a figure above a column of values; the text before a row of them.
_MAIN: Final = {
    "logical_saving": ("logical\nsaving", "logical saving"),
    "physical_reclaim": ("in\nplace", "comes back in place"),
    "compacted_reclaim": ("com-\npacted", "  after compaction"),
    "packed_reclaim": ("packed", "  packed"),
    "decode_steps": ("decode\nsteps", "copy, in decode steps"),
    "admission_count": ("admits", "requests admitted"),
    "reclaim_efficiency": ("effi-\nciency", "reclaim efficiency"),
    "fragmentation": ("fragmen-\ntation", "fragmentation"),
    "memory_waste": ("memory\nwaste", "memory waste"),
}
_OTHERS: Final = {
    "moved_tokens_per_block": "moved tokens per block",
    "slots_per_move": "slots per move",
    "capacity_gain": "capacity gain",
    "reclaimed": "evicted entries: reclaimed",
    "stranded": "  stranded in held blocks",
    "unshared": "  kept alive by other rows",
    "pinned": "  in pinned blocks",
    "effective_tokens_per_block": "effective tokens per block",
    "effective_rows": "effective rows",
    "pool_usage_before": "pool usage before",
    "pool_usage_after": "  after",
    "held_bytes": "bytes held",
    "reclaimed_bytes": "  reclaimed",
}
_LABELS: Final = {name: label for name, (_, label) in _MAIN.items()} | _OTHERS
FIGURES: Final = (*_MAIN, *_OTHERS)
"""The names of a report's figures."""

_STARTS_A_GROUP: Final = ("reclaim_efficiency", "reclaimed", "pool_usage_before", "held_bytes")
_INCIDENTAL: Final = ("entry", "v")  # fields in which comparable signatures may differ
_CONFIDENCE: Final = 0.95
_UNDEFINED: Final = "undefined"
_NO_SUMMARY: Final = (
    "A summary is undefined where all reports are alike, where fewer than two define the figure, "
    "and where it hangs on too few free blocks."
)


@attrs.frozen
class Comparison:
    """Reports side by side. It comes from `compare`.

    Parameters
    ----------
    names
        What each report is of.
    reports
        The reports, in the same order.
    replicates
        Which of them are summarized together.
    """

    names: tuple[str, ...]
    reports: tuple[Report, ...]
    replicates: tuple[Replicates, ...] = ()

    def summaries(self, confidence: float = _CONFIDENCE) -> dict[str, dict[str, FigureSummary]]:
        """Return what each figure comes to over each of `replicates`, as `summarize_reports` does.

        Examples
        --------
        >>> from kvreclaim import report
        >>> reports = {str(seed): report([1, 0] * seed, 2) for seed in (1, 2)}
        >>> both = compare(reports, replicates={"scatter": ["1", "2"]})
        >>> both.summaries()["scatter"]["logical_saving"].pooled.mean
        0.5
        """
        return {
            each.name: summarize_reports(self._reports_of(each), confidence)
            for each in self.replicates
        }

    def differences(self, confidence: float = _CONFIDENCE) -> dict[str, dict[str, FigureSummary]]:
        """Return the `paired_differences` of all further `replicates` from the first, by name.

        Those that cannot be of the same sequences are left out.
        """
        if not self.replicates:
            return {}
        first, *others = self.replicates
        base = self._reports_of(first)
        return {
            each.name: paired_differences(self._reports_of(each), base, confidence)
            for each in others
            if same_sequences(self._reports_of(each), base)
        }

    def _reports_of(self, replicates: Replicates) -> list[Report]:
        return [self.reports[row] for row in replicates.rows]

    def to_dict(self) -> dict[str, Any]:
        """Return all reports as built-in numbers, with what made them; undefined figures are None.

        ``data/report.schema.json`` in the package is its JSON schema.
        """
        summaries = {"summaries": self._summaries()} if self.replicates else {}
        return {
            "schema_version": SCHEMA_VERSION,
            "reports": [
                {"source": name} | report.to_dict()
                for name, report in zip(self.names, self.reports, strict=True)
            ],
            **summaries,
            "environment": _environment(),
        }

    def _summaries(self) -> list[dict[str, Any]]:
        differences = self.differences()
        return [
            {
                "source": each.name,
                "reports": [self.names[row] for row in each.rows],
                "metrics": _plain(figures),
                "less_first": _plain(differences[each.name]) if each.name in differences else None,
            }
            for each, figures in zip(self.replicates, self.summaries().values(), strict=True)
        ]

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False, indent=2)

    def to_json_lines(self) -> str:
        """Return each report as a line of JSON, the same as in `to_dict`, without summaries."""
        return "\n".join(json.dumps(each, allow_nan=False) for each in self.to_dict()["reports"])

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Return the reports that `to_json` or `to_json_lines` wrote, or `Report.to_json`.

        Their signatures may differ.

        Raises
        ------
        ValueError
            For anything else, and for figures that are not those of the counts beside them.
        """
        items = items_in(text)
        found = [fields for item in items for fields in reports_in(item)]
        if not found:
            raise ValueError("text must hold at least one report; got none; write compare(...).")
        reports = []
        for number, fields in enumerate(found):
            try:
                reports.append(Report.from_dict(fields))
            except ValueError as error:
                raise ValueError(f"report {number}: {error}") from None
        names = unique(str(fields.get("source", "report")) for fields in found)
        named = dict(zip(names, reports, strict=True))
        return cls(names, tuple(reports), as_replicates(groups_in(items[0]), named))

    def to_csv(self) -> str:
        """Return a row for each report: every figure in full precision, empty where undefined.

        Summaries follow in rows whose column ``summary``, there only where they are, says which of
        their numbers it is: pooled, low, high, method, mean, sd or n.
        """
        rows: list[dict[str, str]] = []
        for name, report in zip(self.names, self.reports, strict=True):
            written = report.to_dict()
            counts = written.pop("counts")
            numbers = {key: count for key, count in counts.items() if isinstance(count, int)}
            cells = {"source": name} | written.pop("metrics") | numbers | written
            rows.append({key: "" if cell is None else str(cell) for key, cell in cells.items()})
        if self.replicates:
            rows = [{"source": row["source"], "summary": ""} | row for row in rows]
            rows += [
                dict.fromkeys(rows[0], "")
                | {"source": name, "summary": kind}
                | _summary_tables.in_csv(cells)
                for name, figures in self._summarized([each.name for each in self.replicates])
                for kind, cells in _summary_tables.by_kind(figures).items()
            ]
        return tables.as_csv(Table(list(rows[0]), [list(row.values()) for row in rows]))

    def to_markdown(self) -> str:
        """Return a table for a page, a row for each report, and the signature below it."""
        signature, table = self._as_rows()
        return f"{tables.as_markdown(table)}\n\n`{signature}`"

    def to_latex(self) -> str:
        """Return a table for a paper, a row for each report, with the signature in its caption."""
        signature, table = self._as_rows(undefined="--")
        breakable = tables.in_latex(signature).replace(r"\textbar{}", r"|\allowbreak{}")
        caption = (
            "Share of the KV cache's blocks that comes back after eviction: in place (no copy), "
            rf"after compaction, and packed. \texttt{{{breakable}}}"
        )
        return tables.as_latex(table, caption)

    def to_rows(self) -> str:
        """Return a row for each report, of as many figures as fit into 80 columns."""
        return self._as_text(*self._as_rows(summarized=False))

    def __str__(self) -> str:
        """Return a column for each report, of all figures, if that fits into 80 columns; or rows.

        The signature stands below, with a star for what the reports do not have in common.
        """
        signature, table = self._as_columns()
        if sum(tables.widths(table)) > tables.WIDTH:
            return self.to_rows()
        return self._as_text(signature, table)

    def _repr_html_(self) -> str:
        """Return a table for a notebook, a row for each report, with why a figure is undefined."""
        signature, table = self._as_rows(undefined=_UNDEFINED)
        headings = [tables.on_one_line(heading) for heading in table.headings]
        rows = [list(row) for row in table.rows]
        of_heading = {tables.on_one_line(heading): name for name, (heading, _) in _MAIN.items()}
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
        return html.as_html(signature, columns, groups, [*notes, *self._notes()])

    def _as_text(self, signature: str, table: Table) -> str:
        prefix, _ = self._short_names()
        lines = [prefix] if prefix else []
        lines += [tables.as_text(table), "", *self._summary_lines(), *self._notes(), signature]
        return "\n".join(lines)

    def _short_names(self) -> tuple[str, list[str]]:
        return tables.without_prefix([tables.printable(name) for name in self.names])

    def _short_names_of_replicates(self) -> list[str]:
        """Return their names without the folder or the file that all the reports lie in."""
        prefix, _ = self._short_names()
        names = (tables.printable(each.name) for each in self.replicates)
        return [name.removeprefix(prefix) or name for name in names]

    def _summarized(self, names: Sequence[str]) -> Iterator[tuple[str, dict[str, FigureSummary]]]:
        """Yield the summary of each of the replicates under its name, and then the differences."""
        yield from zip(names, self.summaries().values(), strict=True)
        called = {each.name: name for each, name in zip(self.replicates, names, strict=True)}
        for name, figures in self.differences().items():
            yield f"{called[name]} less {names[0]}", figures

    def _summary_lines(self) -> Iterator[str]:
        methods = set()
        shown = self._values("")
        for name, figures in self._summarized(self._short_names_of_replicates()):
            given = {key: figures[key] for key in FIGURES if key in shown and key in figures}
            yield name
            yield tables.as_text(_summary_tables.as_table(given, _LABELS))
            yield ""
            methods |= {figure.interval.method for figure in given.values()}
        if self.replicates:
            yield from _summary_tables.legend(methods)
            yield ""

    def _signature(self) -> tuple[str, dict[str, list[str]]]:
        """Return the signature, starred where the reports differ, and what each has there."""
        of_each = [_terms(report) for report in self.reports]
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

    def _notes(self) -> Iterator[str]:
        """Yield which letters of the pool the masks do not have."""
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
        main = {
            _MAIN[name][0]: cells
            for name, cells in self._values(undefined).items()
            if name in _MAIN
        }
        columns = {"": self._short_names()[1]} | differing | main
        rows = list(zip(*columns.values(), strict=True))
        if summarized:
            figures = [name for name in _MAIN if name in self._values("")]
            rows += [
                (f"{name}, {kind}", *[""] * len(differing), *cells)
                for name, found in self._summarized(self._short_names_of_replicates())
                for kind, cells in _summary_tables.rows(found, figures, undefined).items()
            ]
        return signature, Table(list(columns), rows)

    def _as_columns(self) -> tuple[str, Table]:
        signature, differing = self._signature()
        rows = [[name, *cells] for name, cells in differing.items()]
        labels = dict(_LABELS)
        if {report.census.pool.compactor for report in self.reports} == {"none"}:
            labels["compacted_reclaim"] = "  no compactor"
        for name, cells in self._values("nan").items():
            if name in _STARTS_A_GROUP:
                rows.append([])
            rows.append([labels[name], *cells])
        return signature, Table(["", *self._short_names()[1]], rows)


def compare(
    reports: Mapping[str, Report],
    *,
    force: bool = False,
    replicates: Mapping[str, Sequence[str]] | None = None,
) -> Comparison:
    r"""Return reports side by side, which must hold under one pool.

    Parameters
    ----------
    reports
        Reports by name.
    force
        True: also reports whose figures say different things.
    replicates
        Reports of the same thing over sequences, or over seeds: what they are of, and the names of
        its reports. Each such list is summarized, and compared with the first one where both are
        of the same sequences in the same order. Layers and heads of one sequence are no replicates.

    Raises
    ------
    TypeError
        For what is no dict of reports, or of lists of their names.
    ValueError
        For no reports; without `force`, for signatures that differ in more than ``entry`` and
        ``v``, and for requests of different sizes; for replicates that name no report, one twice,
        or such as do not add up.

    Examples
    --------
    >>> from kvreclaim import report
    >>> pair = compare({"a": report([1, 0, 0, 0], 2), "b": report([1, 0, 1, 0], 2)})
    >>> print("\n".join(str(pair).splitlines()[:5]))
                                    a      b
    logical saving              0.750  0.500
    comes back in place         0.500  0.000
      after compaction          0.500  0.500
      packed                    0.500  0.500
    """
    named = _as_reports(reports)
    (first, base), *others = ((name, _terms(report)) for name, report in named.items())
    for name, terms in others if not force else ():
        differing = [
            term
            for term, value in base.items()
            if term not in _INCIDENTAL and value != terms[term] and "-" not in (value, terms[term])
        ]
        if differing:
            one, two = (
                "|".join(f"{term}:{of[term]}" for term in differing) for of in (base, terms)
            )
            raise ValueError(
                f"reports must hold under one pool to be compared; got {one} for {first!r} and "
                f"{two} for {name!r}; measure both alike, or write force=True (--force)."
            )
    groups = {} if replicates is None else replicates
    return Comparison(tuple(named), tuple(named.values()), as_replicates(groups, named))


def _as_reports(reports: object) -> dict[str, Report]:
    if not isinstance(reports, Mapping) or not all(
        isinstance(name, str) and isinstance(report, Report) for name, report in reports.items()
    ):
        raise TypeError(
            f"reports must be a dict of Report by name; got {type(reports).__name__}; write "
            "{'mine': report(keep, pool)}."
        )
    if not reports:
        raise ValueError("reports must hold at least one; got none; write such as {'mine': ...}.")
    return dict(reports)


def _terms(report: Report) -> dict[str, str]:
    """Return what the figures hold for: the fields of the signature, and the size of a request."""
    signature = Signature(report.census.pool, report.census.rows_per_table, report.version)
    request = report.blocks_per_request
    return signature.fields() | {"request": "-" if request is None else str(request)}


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """Return names of which none is there twice: the second ``a`` becomes ``a (2)``."""
    found: dict[str, int] = {}
    for name in names:
        here, number = name, found.get(name, 0)
        while here in found:
            number += 1
            here = f"{name} ({number})"
        found[name] = max(number, 1)
        found.setdefault(here, 1)
    return tuple(found)


def _plain(figures: Mapping[str, FigureSummary]) -> dict[str, dict[str, Any]]:
    return {name: figure.to_dict() for name, figure in figures.items()}


def _environment() -> dict[str, str]:
    return {
        "kvreclaim": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _shown(value: float | None, undefined: str) -> str:
    if value is None:
        return ""
    if isinstance(value, int):
        return str(value)
    return undefined if math.isnan(value) else f"{value:.3f}"
