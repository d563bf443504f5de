"""Which request of lm-eval a note belongs to: models sort their requests, and answer in batches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, TypeAlias

from kvreclaim.census import Census

Request: TypeAlias = Any
"""A lm_eval.api.instance.Instance."""


class Numbered(str):
    """A context that knows of which request it is, wherever the model sorts it."""

    __slots__ = ("number",)
    number: int


def numbered(request: Request, number: int) -> Request:
    """Return the request with a context that knows its number."""
    context = Numbered(request.args[0])
    context.number = number
    copied = copy.copy(request)
    copied.arguments = (context, *request.args[1:])
    return copied


class Batches:
    """Stand before a model's cache hook, which it tells each answer, and hand on what is noted.

    A batch is a run of notes and the run of answers that follows; they are in one order.
    """

    def __init__(self, hook: Any, model: str) -> None:  # noqa: ANN401  # a CacheHook
        self.censuses: dict[int, Census | None] = {}
        self._hook = hook
        self._model = model
        self._notes: list[Census | None] = []
        self._answered: list[int] = []

    def note(self, census: Census | None) -> None:
        """Remember the census of the next row."""
        if self._answered:
            self.close()
        self._notes.append(census)

    def add_partial(self, kind: str, arguments: Sequence[Any], text: object) -> None:
        """Remember which request is answered, and tell the hook."""
        if isinstance(arguments[0], Numbered):
            self._answered.append(arguments[0].number)
        self._hook.add_partial(kind, arguments, text)

    def close(self) -> None:
        """Hand the notes of a batch to its requests."""
        if self._notes and len(self._notes) != len(self._answered):
            raise ValueError(
                "note must be called once for each row of a batch; got "
                f"{len(self._notes)} notes and {len(self._answered)} rows that {self._model} told "
                "its cache_hook; write note(None) for a row without a keep-mask, or return Answer "
                "where generate_until tells its hook nothing."
            )
        self.censuses.update(zip(self._answered, self._notes, strict=False))
        self._notes, self._answered = [], []
