"""Matched quality: what each policy retains where all lose as much, and what it frees there.

What is measured at some retained shares is a curve, from the whole cache on, which costs and frees
nothing. A document is one sample: contexts of one document are averaged first.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from benchmarks.evidence.settings import BLOCK_SIZE, TABLES
from benchmarks.evidence.tables import Context, QualityRow, ReclaimRow
from kvreclaim.statistics import Summary, paired_difference, summarize

INCREASE: Final = 0.05  # nats
FEWEST: Final = "evacuate_rows"  # the compactor of fewest moves, row by row
IN_ORDER: Final = "pack_rows"  # the compactor that keeps every row in its order
WHOLE: Final = math.inf  # stands for the ratio of the whole cache
SHARES: Final = (
    "retained",
    "found",
    "in place",
    "packed",
)  # names of what lies from 0 to 1 begin so

Figures: TypeAlias = dict[str, float]
"""What is known at a retained share, by name.

``retained``, ``loss`` (its increase), ``kl``, ``found`` (a share of the planted keys); and of each
kind of tables, such as all, ``in place all``, ``packed all``, ``fewest all`` and ``in order all``,
the last two in decode steps of copy.
"""

Curve: TypeAlias = tuple[Figures, ...]
"""From the whole cache down."""

Points: TypeAlias = dict[Context, dict[float, Figures]]
"""What was measured of a policy on each context, at each nominal ratio and at `WHOLE`."""


class Matched(NamedTuple):
    """The figures at a matched point, and whether the curve really crosses there."""

    figures: Figures
    reached: bool


class Comparison(NamedTuple):
    """One policy at matched quality over documents: each figure, and how far it is from a rival."""

    documents: tuple[str, ...]
    figures: Mapping[str, Summary]
    differences: Mapping[str, Summary]
    num_not_reached: int


def matched(curve: Sequence[Figures], measure: str, limit: float) -> Matched:
    """Return the figures at the lowest share down to which a measure stays within a limit.

    From the whole cache down, up to the first measured share whose measure is above the limit; on
    the straight line to it, where that crosses the limit. So a curve that rises and falls again is
    left where it first rises. One that never rises so far ends at its lowest measured share.

    Parameters
    ----------
    curve
        Figures at measured shares, the whole cache first.
    measure
        What must not rise, such as ``"loss"`` or ``"kl"``.
    limit
        How far it may; at least what the whole cache has.

    Examples
    --------
    >>> whole, half = {"retained": 1.0, "kl": 0.0}, {"retained": 0.5, "kl": 0.2}
    >>> matched([whole, half], "kl", 0.1)
    Matched(figures={'retained': 0.75, 'kl': 0.1}, reached=True)
    """
    if not curve[0][measure] <= limit:
        raise ValueError(
            f"limit must be at least the {measure} of the whole cache, {curve[0][measure]}; got "
            f"{limit}; write a larger one."
        )
    for before, after in itertools.pairwise(curve):
        if math.isnan(after[measure]):
            raise ValueError(f"{measure} must be a number at every share; got nan in {after}.")
        if after[measure] > limit:
            weight = (limit - before[measure]) / (after[measure] - before[measure])
            return Matched(
                {name: (1 - weight) * one + weight * after[name] for name, one in before.items()},
                reached=True,
            )
    return Matched(curve[-1], reached=False)


def mean(figures: Iterable[Figures]) -> Figures:
    """Return the mean of each figure; nan where one of them is."""
    some = list(figures)
    return {name: math.fsum(one[name] for one in some) / len(some) for name in some[0]}


def points_of(
    quality: Iterable[QualityRow], reclaim: Iterable[ReclaimRow], block_size: int = BLOCK_SIZE
) -> dict[tuple[str, str], Points]:
    """Return what was measured, by (model, policy), from the rows of both files.

    Raises
    ------
    ValueError
        For a row of quality whose reclaim is missing.
    """
    freed = {
        (row.model, row.document, row.tokens, row.policy, row.ratio, row.tables): row
        for row in reclaim
        if row.block_size == block_size
    }
    found: defaultdict[tuple[str, str], Points] = defaultdict(dict)
    for row in quality:
        whole, figures = _figures(row, freed)
        context = Context(row.model, row.document, row.tokens)
        some = found[row.model, row.policy].setdefault(context, {WHOLE: whole})
        some[row.ratio] = figures
    return dict(found)


def curves_of(points: Points) -> dict[str, Curve]:
    """Return the curve of each document: at each ratio the mean over its contexts.

    Raises
    ------
    ValueError
        For contexts of one document that were measured at different ratios.
    """
    documents: defaultdict[str, list[dict[float, Figures]]] = defaultdict(list)
    for context, some in points.items():
        documents[context.document].append(some)
    curves = {}
    for document, contexts in documents.items():
        ratios = sorted(contexts[0], reverse=True)
        if any(sorted(one, reverse=True) != ratios for one in contexts):
            raise ValueError(
                f"contexts of {document} must be measured at the same ratios; got "
                f"{[sorted(one) for one in contexts]}."
            )
        averaged = [mean(one[ratio] for one in contexts) for ratio in ratios]
        curves[document] = tuple(sorted(averaged, key=lambda one: -one["retained"]))
    return curves


def _figures(
    row: QualityRow, freed: Mapping[tuple[str, str, int, str, float, str], ReclaimRow]
) -> tuple[Figures, Figures]:
    """Return what is known of the whole cache, and at the share of a row."""
    whole = {"retained": 1.0, "loss": 0.0, "kl": 0.0, "found": _share(row, row.probes_right_full)}
    figures = {
        "retained": row.retained,
        "loss": row.loss - row.loss_full,
        "kl": row.kl,
        "found": _share(row, row.probes_right),
    }
    for tables in TABLES:
        key = (row.model, row.document, row.tokens, row.policy, row.ratio, tables)
        if key not in freed:
            raise ValueError(f"reclaim must have a row for each of quality; got none for {key}.")
        of_tables = freed[key]
        figures |= {
            f"in place {tables}": of_tables.physical_reclaim,
            f"packed {tables}": of_tables.packed_reclaim,
            f"fewest {tables}": getattr(of_tables, f"decode_steps_{FEWEST}"),
            f"in order {tables}": getattr(of_tables, f"decode_steps_{IN_ORDER}"),
        }
    return whole | dict.fromkeys((name for name in figures if name not in whole), 0.0), figures


def _share(row: QualityRow, right: int) -> float:
    return right / row.probes if row.probes else math.nan


def pooled(curves: Mapping[str, Curve], measure: str, limit: float) -> Matched:
    """Return the matched point of the mean curve over documents, at each nominal ratio.

    Raises
    ------
    ValueError
        For documents that were measured at different numbers of ratios.
    """
    return matched(mean_curve(curves), measure, limit)


def mean_curve(curves: Mapping[str, Curve]) -> Curve:
    """Return the mean over documents, ratio by ratio."""
    return tuple(mean(some) for some in zip(*curves.values(), strict=True))


def compared(
    curves: Mapping[str, Mapping[str, Curve]], measure: str, limit: float, rival: str
) -> dict[str, Comparison]:
    """Return each policy at matched quality over documents, and its distance to a rival.

    Intervals are t intervals over documents; a difference is paired: the same document under both
    policies, the policy's figure less the rival's. Intervals of shares are cut off at the ends of
    what can be. A figure that is nan in a document has neither.

    Parameters
    ----------
    curves
        Of one model.
    measure, limit
        As in `matched`.
    rival
        The policy to compare with.
    """
    points = {
        policy: {document: matched(curve, measure, limit) for document, curve in some.items()}
        for policy, some in curves.items()
    }
    return {policy: _comparison(some, points.get(rival, {})) for policy, some in points.items()}


def _comparison(points: Mapping[str, Matched], rivals: Mapping[str, Matched]) -> Comparison:
    names = next(iter(points.values())).figures
    both = [document for document in points if document in rivals]
    differences = {
        name: paired_difference(
            [points[document].figures[name] for document in both],
            [rivals[document].figures[name] for document in both],
            bounds=(-1, 1) if name.startswith(SHARES) else None,
        )
        for name in names
        if both and _defined(points.values(), name) and _defined(rivals.values(), name)
    }
    return Comparison(
        documents=tuple(points),
        figures={
            name: summarize(
                [point.figures[name] for point in points.values()],
                bounds=(0, 1) if name.startswith(SHARES) else None,
            )
            for name in names
            if _defined(points.values(), name)
        },
        differences=differences,
        num_not_reached=sum(not point.reached for point in points.values()),
    )


def _defined(points: Iterable[Matched], name: str) -> bool:
    return not any(math.isnan(point.figures[name]) for point in points)
