"""The columns of a task of lm-eval: a census of each document, the figures of their sum."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kvreclaim.census import Census, merge
from kvreclaim.replicates import summarize_reports
from kvreclaim.reports import Report
from kvreclaim.statistics import Summary

Task: TypeAlias = Any
"""A lm_eval.api.task.Task."""

CENSUS: Final = "reclaim"
"""The column that holds, of a document, its census, and of a task, the signature of its figures."""

HIGHER_IS_BETTER: Final[Mapping[str, bool]] = {
    "logical_saving": True,
    "physical_reclaim": True,
    "compacted_reclaim": True,
    "packed_reclaim": True,
    "reclaim_efficiency": True,
    "fragmentation": False,
    "memory_waste": False,
    "moved_tokens_per_block": False,
}
"""The columns of figures, and which way each is better."""

_UNDEFINED: Final = "N/A"  # what lm-eval writes where there is no standard error


class Columns:
    """What a task is asked of each document, and of all of them, beside its own metrics.

    lm-eval hands a metric the filtered answers alone, so the document that it goes through is
    noted; and an aggregation one column alone, so the censuses' figures are kept for the others.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._documents = task.doc_iterator
        self._process_results = task.process_results
        self._aggregation = task.aggregation
        self._higher_is_better = task.higher_is_better
        self._answers: list[object] = []
        self._pooled: dict[str, Any] = {}

    def doc_iterator(self, *which: Any, **options: Any) -> Iterator[tuple[int, Any]]:  # noqa: ANN401
        """Go through the documents as the task does, with the answers to each at hand."""
        answers: dict[int, list[object]] = {}
        for request in getattr(self._task, "instances", None) or ():  # not built yet
            # Ranks with fewer requests repeat their last one: what comes after is no answer of it.
            answers.setdefault(request.doc_id, []).extend(request.resps[: request.repeats])
        for number, document in self._documents(*which, **options):
            self._answers = answers.get(number, [])
            yield number, document

    def process_results(self, document: object, results: object) -> dict[str, Any]:
        """Return the task's own metrics of a document, and its columns."""
        census = _census_of(self._answers)
        figures = {} if census is None else Report.from_census(census).to_dict()["metrics"]
        columns: dict[str, Any] = {CENSUS: None if census is None else census.to_dict()}
        for name in HIGHER_IS_BETTER:
            columns[name] = figures.get(name)
            columns[f"{name}_stderr"] = None
        columns["num_measured_documents"] = int(census is not None)
        columns["num_unmeasured_documents"] = int(census is None)
        return {**self._process_results(document, results), **columns}

    def aggregation(self) -> dict[str, Any]:
        """Return what makes one value of a column, by its name."""
        columns = [name + end for name in HIGHER_IS_BETTER for end in ("", "_stderr")]
        return {
            **self._aggregation(),
            CENSUS: self._pool,
            **{name: functools.partial(self._pooled_figure, name) for name in columns},
            "num_measured_documents": sum,
            "num_unmeasured_documents": sum,
        }

    def higher_is_better(self) -> dict[str, Any]:
        """Return which way a column is better, by its name."""
        return {**self._higher_is_better(), **HIGHER_IS_BETTER}

    def _pool(self, items: Iterable[dict[str, Any] | None]) -> str:
        """Add up the documents' censuses; return under which signature the figures hold."""
        reports = [Report.from_census(Census.from_dict(item)) for item in items if item is not None]
        if not reports:
            self._pooled = {}
            return "no document has a keep-mask"
        total = Report.from_census(merge(report.census for report in reports))
        errors = {
            f"{name}_stderr": _standard_error(summary.pooled)
            for name, summary in summarize_reports(reports).items()
        }
        self._pooled = {**total.figures(), **errors}
        return total.signature

    def _pooled_figure(self, name: str, _: Sequence[object]) -> float | str:
        missing = _UNDEFINED if name.endswith("_stderr") else math.nan
        figure: float | str = self._pooled.get(name, missing)
        return figure


def _standard_error(pooled: Summary | None) -> float | str:
    if pooled is None or pooled.method != "linearised t":
        return _UNDEFINED
    return pooled.sd / math.sqrt(pooled.num_samples)


def _census_of(answers: Sequence[object]) -> Census | None:
    """Return the census of a document, if each of its answers has one."""
    censuses = [getattr(answer, "census", None) for answer in answers]
    known = [census for census in censuses if census is not None]
    return merge(known) if known and len(known) == len(censuses) else None
