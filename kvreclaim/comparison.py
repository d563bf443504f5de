"""Comparison: reports side by side, as text, JSON, CSV, Markdown and LaTeX."""

from __future__ import annotations

import json
import math
import platform
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
import numpy as np

from kvreclaim._render import tables
from kvreclaim._render.tables import Table
from kvreclaim._version import __version__
from kvreclaim.reports import Report, read_json
from kvreclaim.signature import Signature, line_of

SCHEMA_VERSION: Final = 1

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
FIGURES: Final = (*_MAIN, *_OTHERS)
"""The names of a report's figures."""

_STARTS_A_GROUP: Final = ("reclaim_efficiency", "reclaimed", "pool_usage_before", "held_bytes")
_INCIDENTAL: Final = ("entry", "v")  # fields in which comparable signatures may differ


@attrs.frozen
class Comparison:
    """Reports side by side. It comes from `compare`.

    Parameters
    ----------
    names
        What each report is of.
    reports
        The reports, in the same order.
    """

    names: tuple[str, ...]
    reports: tuple[Report, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return all reports as built-in numbers, with what made them; undefined figures are None.

        ``data/report.schema.json`` in the package is its JSON schema.
        """
        return {
            "schema_version": SCHEMA_VERSION,
            "reports": [
                {"source": name} | report.to_dict()
                for name, report in zip(self.names, self.reports, strict=True)
            ],
            "environment": _environment(),
        }

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), allow_nan=False, indent=2)

    def to_json_lines(self) -> str:
        """Return each report as a line of JSON, the same as in `to_dict`."""
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
        found = [fields for item in _items(text) for fields in _reports_in(item)]
        if not found:
            raise ValueError("text must hold at least one report; got none; write compare(...).")
        reports = []
        for number, fields in enumerate(found):
            try:
                reports.append(Report.from_dict(fields))
            except ValueError as error:
                raise ValueError(f"report {number}: {error}") from None
        names = (str(fields.get("source", "report")) for fields in found)
        return cls(unique(names), tuple(reports))

    def to_csv(self) -> str:
        """Return a row for each report: every figure in full precision, empty where undefined."""
        rows: list[dict[str, str]] = []
        for name, report in zip(self.names, self.reports, strict=True):
            written = report.to_dict()
            counts = written.pop("counts")
            numbers = {key: count for key, count in counts.items() if isinstance(count, int)}
            cells = {"source": name} | written.pop("metrics") | numbers | written
            rows.append({key: "" if cell is None else str(cell) for key, cell in cells.items()})
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
        return self._as_text(*self._as_rows())

    def __str__(self) -> str:
        """Return a column for each report, of all figures, if that fits into 80 columns; or rows.

        The signature stands below, with a star for what the reports do not have in common.
        """
        signature, table = self._as_columns()
        if sum(tables.widths(table)) > tables.WIDTH:
            return self.to_rows()
        return self._as_text(signature, table)

    def _as_text(self, signature: str, table: Table) -> str:
        prefix, _ = self._short_names()
        lines = [prefix] if prefix else []
        return "\n".join([*lines, tables.as_text(table), "", *self._notes(), signature])

    def _short_names(self) -> tuple[str, list[str]]:
        return tables.without_prefix([tables.printable(name) for name in self.names])

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

    def _as_rows(self, undefined: str = "nan") -> tuple[str, Table]:
        signature, differing = self._signature()
        main = {
            _MAIN[name][0]: cells
            for name, cells in self._values(undefined).items()
            if name in _MAIN
        }
        columns = {"": self._short_names()[1]} | differing | main
        return signature, Table(list(columns), list(zip(*columns.values(), strict=True)))

    def _as_columns(self) -> tuple[str, Table]:
        signature, differing = self._signature()
        rows = [[name, *cells] for name, cells in differing.items()]
        labels = {name: label for name, (_, label) in _MAIN.items()} | _OTHERS
        for name, cells in self._values("nan").items():
            if name in _STARTS_A_GROUP:
                rows.append([])
            rows.append([labels[name], *cells])
        return signature, Table(["", *self._short_names()[1]], rows)


def compare(reports: Mapping[str, Report], *, force: bool = False) -> Comparison:
    r"""Return reports side by side, which must hold under one pool.

    Parameters
    ----------
    reports
        Reports by name.
    force
        True: also reports whose figures say different things.

    Raises
    ------
    TypeError
        For what is no dict of reports.
    ValueError
        For no reports; without `force`, for signatures that differ in more than ``entry`` and
        ``v``, and for requests of different sizes.

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
    return Comparison(tuple(named), tuple(named.values()))


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


def _items(text: str) -> list[Any]:
    """Return what each line holds, where the first one holds something whole; else the text."""
    lines = [line for line in text.split("\n") if line.strip()]
    if len(lines) > 1 and lines[0].rstrip().endswith("}"):
        return [read_json(line) for line in lines]
    return [read_json(text)]


def _reports_in(item: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # whatever JSON held
    """Return the reports in a document of several; or the item, which should be one."""
    found = item.get("reports", [item]) if isinstance(item, dict) else None
    if not isinstance(found, list) or not all(isinstance(fields, dict) for fields in found):
        raise ValueError(
            "text must be a JSON object of reports; got other JSON; write it with to_json, or with "
            "kvreclaim report --format json."
        )
    version = item.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"schema_version must be {SCHEMA_VERSION}; got {version!r}; read it with the kvreclaim "
            "that wrote it."
        )
    return found


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
