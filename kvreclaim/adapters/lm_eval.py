"""Reclaim beside accuracy in lm-evaluation-harness: of every document, and of every task pooled.

The model says what its eviction kept: it returns an `Answer`, or it is a `ReclaimMixin` and calls
`note`. A task manager `with_reclaim` gives every task a census of each document (the metric) and
the figures of their sum (the aggregation): a ratio of sums, never a mean of ratios.

The classes here stand in for others that lm-eval knows, hence they inherit.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias

from numpy.typing import ArrayLike

from kvreclaim import _checks
from kvreclaim._formats.libraries import imported
from kvreclaim.adapters._lm_eval_batches import Batches, Request, numbered
from kvreclaim.adapters._lm_eval_columns import CENSUS, Columns, Task
from kvreclaim.census import Census, as_census, merge
from kvreclaim.pool import PoolLike
from kvreclaim.reports import Report

TaskManagerLike: TypeAlias = Any
"""A lm_eval.tasks.TaskManager; lm-eval may be absent."""


class Answer(str):
    """The text that a model answers, with the census of what its eviction kept.

    It is a string wherever lm-eval looks: filters, metrics and saved samples see the text. It can
    be pickled, so that an answer that lm-eval's cache (``use_cache``) gives back has its census.

    Parameters
    ----------
    text
        What the model wrote.
    keep_or_census
        A keep-mask of the request, True where a token stays, or its `Census`; None: there is none,
        and the document counts as not measured.
    pool
        A BlockPool or a block size; with a census it can be left out.
    axes, lengths, offset
        As in `take_census`; only with a keep-mask.

    Raises
    ------
    TypeError, ValueError
        As `take_census`.

    Examples
    --------
    >>> answer = Answer("Paris", [1, 0, 0, 0], 2)
    >>> answer, answer.census.num_freed_blocks
    ('Paris', 1)
    """

    __slots__ = ("census",)
    census: Census | None

    def __new__(
        cls,
        text: object = "",
        keep_or_census: ArrayLike | Census | None = None,
        pool: PoolLike | None = None,
        *,
        axes: str | None = None,
        lengths: ArrayLike | None = None,
        offset: ArrayLike = 0,
    ) -> Self:
        """Make the text, and take the census."""
        if not isinstance(text, str):
            raise TypeError(
                f"text must be a string; got {_checks.shown(text)}; write what the model answered, "
                "'' where that is nothing."
            )
        answer = super().__new__(cls, text)
        answer.census = (
            None
            if keep_or_census is None
            else as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
        )
        return answer


class ReclaimMixin:
    """What a model of lm-eval inherits, first, to `note` what its eviction keeps of each request.

    While ``generate_until`` runs, the model calls `note` once for each row of a batch, in the order
    of the rows, before lm-eval reads the answers of that batch: in ``_model_generate`` of lm-eval's
    ``HFLM``. The answers are then `Answer`, and ``get_model_info``, which lm-eval writes under
    ``config``, tells the report of all of them.

    A model whose ``generate_until`` is its own returns `Answer` itself and needs no mixin.

    Examples
    --------
    >>> class Model(ReclaimMixin, HFLM):  # doctest: +SKIP
    ...     def _model_generate(self, context, **options):
    ...         tokens, keep = generate_and_evict(self.model, context, **options)
    ...         for census in take_censuses(keep, 16, by="b", axes="lbht").values():
    ...             self.note(census)
    ...         return tokens
    """

    cache_hook: Any
    _noted: Batches | None = None  # while generate_until runs
    _total: Census | None = None
    _num_measured: int = 0
    _num_unmeasured: int = 0

    def note(
        self,
        keep_or_census: ArrayLike | Census | None,
        pool: PoolLike | None = None,
        *,
        axes: str | None = None,
        lengths: ArrayLike | None = None,
        offset: ArrayLike = 0,
    ) -> None:
        """Say what stays of the next row of the batch that is being answered.

        Parameters
        ----------
        keep_or_census
            A keep-mask of that row, without the tokens that pad it, or its `Census`. None where it
            has none: its document is counted among those not measured.
        pool, axes, lengths, offset
            As in `Answer`.

        Raises
        ------
        TypeError, ValueError
            As `take_census`; and outside of ``generate_until``.
        """
        if self._noted is None:
            raise ValueError(
                "note must be called while ReclaimMixin.generate_until runs; got a call at another "
                "time; write the mixin first, class Model(ReclaimMixin, HFLM), and call note from "
                "_model_generate: a log-likelihood is read off before anything is evicted."
            )
        census = None
        if keep_or_census is not None:
            census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
        self._noted.note(census)

    def generate_until(
        self,
        requests: Sequence[Request],
        *options: Any,  # noqa: ANN401  # those of the model that this stands before
        **more: Any,  # noqa: ANN401
    ) -> list[str]:
        """Answer as the model does, and hand each answer the census that was noted for it.

        Raises
        ------
        ValueError
            Where the notes of a batch are not as many as its rows, and where their pools differ.
        """
        model: Any = super()
        hook, noted = self.cache_hook, Batches(self.cache_hook, type(self).__name__)
        self.cache_hook, self._noted = noted, noted
        try:
            texts = model.generate_until(
                [*map(numbered, requests, range(len(requests)))], *options, **more
            )
        finally:
            self.cache_hook, self._noted = hook, None
        noted.close()
        censuses = [noted.censuses.get(number) for number in range(len(requests))]
        measured = [census for census in censuses if census is not None]
        if measured:
            self._total = merge(measured if self._total is None else [self._total, *measured])
        self._num_measured += len(measured)
        self._num_unmeasured += len(censuses) - len(measured)
        return [Answer(text, census) for text, census in zip(texts, censuses, strict=True)]

    def get_model_info(self) -> dict[str, Any]:
        """Return what the model tells of itself, and under ``reclaim`` the report of its answers.

        ``report`` is `Report.to_dict` of all requests that this process has answered with a census,
        of whatever task, or None; beside it stands how many have one and how many do not. Answers
        from a cache, and those of other ranks, are not among them; in the columns of a task they
        are.
        """
        model: Any = super()
        told: dict[str, Any] = getattr(model, "get_model_info", dict)()
        report = None if self._total is None else Report.from_census(self._total).to_dict()
        return {
            **told,
            "reclaim": {
                "num_measured_answers": self._num_measured,
                "num_unmeasured_answers": self._num_unmeasured,
                "report": report,
            },
        }


def with_reclaim(manager: TaskManagerLike) -> TaskManagerLike:
    """Return a task manager whose tasks have columns of reclaim beside their own.

    A document is measured if all answers to its requests are `Answer` with a census: then its
    census is their sum. A task's figures are those of the sum over its measured documents. The
    columns of a task:

    ``reclaim``
        The signature under which the figures hold; in the samples, the document's census.
    the figures
        ``logical_saving``, ``physical_reclaim``, ``compacted_reclaim``, ``packed_reclaim``,
        ``reclaim_efficiency``, ``fragmentation``, ``memory_waste``, ``moved_tokens_per_block``; nan
        where undefined. In the samples, those of the document; None where undefined or not
        measured.
    ``..._stderr``
        The standard error of the ratio of sums over documents, linearised, as in
        `summarize_ratio`; ``"N/A"`` where that gives no t interval, such as for few documents, or
        few free blocks. lm-eval's own is a bootstrap of a list of functions that it knows, and
        ``"N/A"`` for all others. Documents are the samples.
    ``num_measured_documents``, ``num_unmeasured_documents``
        Documents with a census, and without one.

    What is read is what the model answered, before any filter, so that they are the same under each
    filter. All ranks' documents are pooled on the first, and none twice. A group of tasks has no
    columns: lm-eval would take a mean of the tasks' ratios; add `document_censuses` instead.

    Parameters
    ----------
    manager
        A ``lm_eval.tasks.TaskManager``, which stays as it is.

    Raises
    ------
    TypeError, ValueError
        For what is none, and where lm-eval is not installed. The aggregation raises a ValueError
        where the censuses of a task are of different pools.

    Examples
    --------
    >>> manager = with_reclaim(TaskManager())  # doctest: +SKIP
    >>> simple_evaluate(model, tasks=["gsm8k"], task_manager=manager)  # doctest: +SKIP
    """
    library = imported("manager", "lm_eval.tasks", "lm-eval")
    if not isinstance(manager, library.TaskManager):
        raise TypeError(
            f"manager must be a lm_eval.tasks.TaskManager; got {_checks.shown(manager)}; write "
            "with_reclaim(TaskManager())."
        )
    reclaiming = copy.copy(manager)
    reclaiming.load = functools.partial(_load, manager.load)
    return reclaiming


def _load(load: Callable[..., dict[str, Any]], *wanted: Any, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    loaded = load(*wanted, **options)
    tasks = {name: _with_columns(task) for name, task in loaded["tasks"].items()}
    return {**loaded, "tasks": tasks}


def _with_columns(task: Task) -> Task:
    columned = copy.copy(task)
    columns = Columns(columned)
    columned.doc_iterator = columns.doc_iterator
    columned.process_results = columns.process_results
    columned.aggregation = columns.aggregation
    columned.higher_is_better = columns.higher_is_better
    return columned


def document_censuses(samples: Iterable[Mapping[str, Any]]) -> list[Census | None]:
    """Return the census of each document of a task, in order; None of one that has none.

    They are for what lm-eval has no column for: pool tasks or runs with `merge`, intervals with
    `summarize_reports`, and two methods on the same documents with `paired_differences`.

    Parameters
    ----------
    samples
        The samples of one task, evaluated `with_reclaim`: ``results["samples"][task]``, or what
        ``json.loads`` reads from the lines of ``samples_*.jsonl``. Where the task has several
        filters, those of the first are read, since all hold the same censuses.

    Raises
    ------
    TypeError, ValueError
        For what are no samples, or without the column.

    Examples
    --------
    >>> from kvreclaim import take_census
    >>> samples = [{"reclaim": take_census([1, 0, 0, 0], 2).to_dict()}, {"reclaim": None}]
    >>> [census and census.num_freed_blocks for census in document_censuses(samples)]
    [1, None]
    """
    rule, hint = "samples of a task", "write results['samples'][task]"
    found = _checks.as_items("samples", samples, rule, hint)
    for sample in found:
        if not isinstance(sample, Mapping):
            raise TypeError(f"samples must be {rule}; got {_checks.shown(sample)}; {hint}.")
        if CENSUS not in sample:
            raise ValueError(
                f"samples must have the column {CENSUS!r}; got {', '.join(map(str, sample))}; "
                "evaluate with task_manager=with_reclaim(TaskManager())."
            )
    return [
        None if sample[CENSUS] is None else Census.from_dict(sample[CENSUS])
        for sample in found
        if sample.get("filter") == found[0].get("filter")
    ]
