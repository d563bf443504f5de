"""What the figures of reports of many sequences, or seeds, come to together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

import attrs

from kvreclaim import _checks
from kvreclaim._ratios import RATIOS, Ratio
from kvreclaim.census import Census, merge
from kvreclaim.metrics import savings_breakdown
from kvreclaim.reports import Report
from kvreclaim.statistics import Summary, paired_difference, summarize, summarize_ratio

# Each count is summed over a pool before they are multiplied and divided.
_COUNTS: Final[Mapping[str, Callable[[Census], Ratio]]] = {
    **RATIOS,
    "reclaimed": lambda c: Ratio((savings_breakdown(c).num_reclaimed,), (c.num_entries,)),
    "stranded": lambda c: Ratio((savings_breakdown(c).num_stranded,), (c.num_entries,)),
    "unshared": lambda c: Ratio((savings_breakdown(c).num_unshared,), (c.num_entries,)),
    "pinned": lambda c: Ratio((savings_breakdown(c).num_pinned,), (c.num_entries,)),
}
_SHARES: Final = (
    "physical_reclaim",
    "compacted_reclaim",
    "packed_reclaim",
    "logical_saving",
    "fragmentation",
    "memory_waste",
    "reclaimed",
    "stranded",
    "unshared",
    "pinned",
    "pool_usage_before",
    "pool_usage_after",
)
_OF_FREED: Final = ("reclaim_efficiency", "reclaimed", "capacity_gain")
_PAIRED: Final = ("logical_saving", "physical_reclaim")


@attrs.frozen
class Replicates:
    """Which reports of a comparison are of the same thing over sequences, or over seeds.

    Parameters
    ----------
    name
        What they are of, such as a policy.
    rows
        Their places among the reports, in the order of the sequences.
    """

    name: str
    rows: tuple[int, ...]


@attrs.frozen(kw_only=True)
class FigureSummary:
    """What one figure comes to over sequences or seeds.

    Parameters
    ----------
    pooled
        The figure of all of them together, a ratio of sums, with its interval; None for a figure
        that is no ratio of counts, such as bytes.
    each
        Mean, spread and interval of their own figures, of those that are defined.
    """

    pooled: Summary | None
    each: Summary

    @property
    def interval(self) -> Summary:
        """The one whose interval is shown: the pooled one, where there is one."""
        return self.each if self.pooled is None else self.pooled

    def __str__(self) -> str:
        """Return both on a line each."""
        return f"pooled: {self.pooled}\neach: {self.each}"

    def to_dict(self) -> dict[str, Any]:
        """Return both as built-in numbers; what is undefined or infinite is None."""
        return {
            "pooled": None if self.pooled is None else _plain(self.pooled),
            "each": _plain(self.each),
        }


def summarize_reports(
    reports: Iterable[Report], confidence: float = 0.95
) -> dict[str, FigureSummary]:
    """Return what each figure comes to over reports of sequences, or of seeds, by its name.

    *Pooled* is the figure of the sum of their censuses, a ratio of sums: what a pool that holds all
    of them gives back. Its interval is that of `summarize_ratio`, where reclaimed blocks are counts
    of events. *Each* is `summarize` of their own figures: the mean and the standard deviation that
    papers print; undefined ones (nan) are left out, so that its `num_samples` says how many are
    defined, and an infinite one makes the mean infinite. Where too few blocks come free, or too
    regularly, for anything but an interval of counts, figures that hang on the same blocks
    (efficiency, reclaimed entries, capacity gain) have none.

    The reports must be replicates: sequences, or seeds, drawn independently. Layers and heads of
    one sequence are not, nor are steps of one decoding run.

    Parameters
    ----------
    reports
        One of each sequence or seed, under one pool.
    confidence
        Between 0 and 1.

    Raises
    ------
    TypeError, ValueError
        For what are no reports, none at all, and reports that do not add up.

    Examples
    --------
    >>> from kvreclaim import report
    >>> masks = ([1, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0, 0, 1])
    >>> found = summarize_reports(report(keep, 2) for keep in masks)["physical_reclaim"]
    >>> round(found.pooled.mean, 4), found.each.mean  # 4 of 7 blocks; the mean of 1/2 and 3/5
    (0.5714, 0.55)
    """
    parts = _as_reports("reports", reports)
    merge(report.census for report in parts)  # refuses different pools and rows
    figures = [report.figures() for report in parts]
    found = {
        name: FigureSummary(
            pooled=_pooled(name, parts, confidence),
            each=_of_each([figure[name] for figure in figures], name, confidence),
        )
        for name in figures[0]
    }
    if found["physical_reclaim"].interval.method != "linearised t":
        for name in _OF_FREED:
            found[name] = _without_t(found[name])
    return found


def paired_differences(
    a: Iterable[Report], b: Iterable[Report], confidence: float = 0.95
) -> dict[str, FigureSummary]:
    """Return a's logical saving and physical reclaim less b's, over the same sequences or seeds.

    *Pooled* is the difference of the two ratios of sums, whose denominators are the same; *each* is
    `paired_difference` of their own figures, where both are defined.

    Parameters
    ----------
    a, b
        One report of each sequence or seed, in the same order.
    confidence
        Between 0 and 1.

    Raises
    ------
    TypeError, ValueError
        For what are no reports, none at all, and reports of other numbers of sequences, blocks or
        entries: such were not of the same sequences.

    Examples
    --------
    >>> from kvreclaim import report
    >>> window, scatter = ([0, 0, 1, 1], [0, 0, 0, 1, 1, 1]), ([0, 1, 0, 1], [0, 0, 1, 0, 1, 1])
    >>> a, b = ([report(keep, 2) for keep in masks] for masks in (window, scatter))
    >>> paired_differences(a, b)["physical_reclaim"].pooled.mean
    0.2
    """
    first, second = _as_reports("a", a), _as_reports("b", b)
    if not same_sequences(first, second):
        raise ValueError(
            "b must be of the same sequences as a, in the same order; got other numbers of them, "
            "of their blocks, or of their entries; write reports of both on the same sequences."
        )
    found = {}
    for name in _PAIRED:
        (tops, bottoms), (less, _) = (_counts(name, reports) for reports in (first, second))
        pairs = [
            (one.figures()[name], other.figures()[name])
            for one, other in zip(first, second, strict=True)
        ]
        defined = [(x, y) for x, y in pairs if _is_defined(x) and _is_defined(y)]
        found[name] = FigureSummary(
            pooled=summarize_ratio(
                [x[0] - y[0] for x, y in zip(tops, less, strict=True)],
                [y[0] for y in bottoms],
                confidence=confidence,
                binomial=False,
            ),
            each=paired_difference(
                [x for x, _ in defined], [y for _, y in defined], confidence, bounds=(-1, 1)
            ),
        )
    return found


def same_sequences(a: Sequence[Report], b: Sequence[Report]) -> bool:
    """Return whether two lists of reports can be of the same sequences, by blocks and entries."""
    sizes = [
        [(report.census.num_blocks, report.census.num_entries) for report in reports]
        for reports in (a, b)
    ]
    return sizes[0] == sizes[1]


def as_replicates(groups: object, named: Mapping[str, Report]) -> tuple[Replicates, ...]:
    """Return which of the reports are named together."""
    rule, hint = "lists of names of reports by name", "write such as {'SnapKV': ['0', '1']}"
    if not isinstance(groups, Mapping) or not all(
        isinstance(name, str)
        and isinstance(rows, list | tuple)
        and all(isinstance(row, str) for row in rows)
        for name, rows in groups.items()
    ):
        raise TypeError(f"replicates must be {rule}; got {_checks.shown(groups)}; {hint}.")
    place = {name: row for row, name in enumerate(named)}
    for name, rows in groups.items():
        missing = [each for each in rows if each not in place]
        if missing or not rows or len(set(rows)) < len(rows):
            got = f"{missing[0]!r}, which is none" if missing else "one twice" if rows else "none"
            raise ValueError(f"replicates must be {rule}; got {got}, for {name!r}; {hint}.")
        merge(named[each].census for each in rows)  # refuses different pools and rows
    return tuple(
        Replicates(name, tuple(place[row] for row in rows)) for name, rows in groups.items()
    )


def _as_reports(name: str, reports: object) -> list[Report]:
    rule, hint = "reports of sequences or seeds", "write such as [report(keep, pool), ...]"
    found = _checks.as_items(name, reports, rule, hint)
    for each in found:
        if not isinstance(each, Report):
            raise TypeError(f"{name} must be {rule}; got {_checks.shown(each)}; {hint}.")
    if not found:
        raise ValueError(f"{name} must be {rule}, at least one; got none; {hint}.")
    return found


def _counts(
    name: str, reports: Sequence[Report]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the counts above and below a figure, of each report."""
    counts = [_COUNTS[name](report.census) for report in reports]
    return [above for above, _ in counts], [below for _, below in counts]


def _pooled(name: str, reports: Sequence[Report], confidence: float) -> Summary | None:
    if name not in _COUNTS:
        return None
    above, below = _counts(name, reports)
    found = summarize_ratio(
        above, below, confidence=confidence, binomial=_is_of_events(name, reports)
    )
    low = max(found.low, 1.0 if name == "capacity_gain" else 0.0)
    high = min(found.high, 1.0) if name in _SHARES else found.high
    return found if math.isnan(found.low) else attrs.evolve(found, low=low, high=high)


def _is_of_events(name: str, reports: Sequence[Report]) -> bool:
    """Return whether a figure counts blocks that come free, or not, as they lie.

    How many blocks survivors fill when they are packed follows from their number alone.
    """
    still = reports[0].census.pool.compactor == "none"
    return name == "physical_reclaim" or (name == "compacted_reclaim" and still)


def _of_each(values: Sequence[float | None], name: str, confidence: float) -> Summary:
    defined = [value for value in values if _is_defined(value)]
    if math.inf in defined:  # then no mean of the others speaks for all
        nothing = summarize([], confidence)
        return attrs.evolve(nothing, mean=math.inf, num_samples=len(defined))
    return summarize(defined, confidence, bounds=(0, 1) if name in _SHARES else None)


def _is_defined(value: float | None) -> TypeGuard[float]:
    return value is not None and not math.isnan(value)


def _without_t(figure: FigureSummary) -> FigureSummary:
    pooled = figure.pooled
    if pooled is None or pooled.method != "linearised t":
        return figure
    none = attrs.evolve(pooled, low=math.nan, high=math.nan, method="none")
    return attrs.evolve(figure, pooled=none)


def _plain(summary: Summary) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in attrs.asdict(summary).items()
    }
