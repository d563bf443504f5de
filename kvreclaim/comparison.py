"""Comparison: reports side by side, which must hold under one pool."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np

from kvreclaim import _checks
from kvreclaim._comparison_tables import ComparisonTables, terms_of
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

_INCIDENTAL: Final = ("entry", "v")  # fields in which comparable signatures may differ
_CONFIDENCE: Final = 0.95


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
        return self._tables().as_csv()

    def to_markdown(self) -> str:
        """Return a table for a page, a row for each report, and the signature below it."""
        return self._tables().as_markdown()

    def to_latex(self) -> str:
        """Return a table for a paper, a row for each report, with the signature in its caption."""
        return self._tables().as_latex()

    def to_rows(self) -> str:
        """Return a row for each report, of as many figures as fit into 80 columns."""
        return self._tables().as_rows()

    def __str__(self) -> str:
        """Return a column for each report, of all figures, if that fits into 80 columns; or rows.

        The signature stands below, with a star for what the reports do not have in common.
        """
        return self._tables().as_columns()

    def _repr_html_(self) -> str:
        """Return a table for a notebook, a row for each report, with why a figure is undefined."""
        return self._tables().as_html()

    def _tables(self) -> ComparisonTables:
        return ComparisonTables(self.names, self.reports, self.summaries(), self.differences())


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
    named, forced = _as_reports(reports), _checks.as_flag("force", force)
    (first, base), *others = ((name, terms_of(report)) for name, report in named.items())
    for name, terms in others if not forced else ():
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
