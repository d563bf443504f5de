"""What a policy under test is asked: small inputs in order of size, and how it is called."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks

Policy: TypeAlias = Callable[..., object]
"""Called as ``policy(importance, num_kept)``; returns a keep-mask of that shape."""

Scores: TypeAlias = NDArray[np.float64]

Kind: TypeAlias = Literal["distinct", "tied"]

# Beyond sinks and window. Of 29 and 49 a budget over the tokens, times these, is not the budget.
_TOKENS: Final = (2, 3, 4, 5, 6, 8, 13, 17, 29, 49, 64, 100)
_FEW: Final = 6  # up to so many tokens, every budget is tried
_SEEDS: Final = 2


class RaisedError(Exception):
    """The policy itself has raised; what it raised is the cause."""


class Case(NamedTuple):
    """One call: scores that a seed gives, and a budget."""

    shape: tuple[int, ...]
    num_kept: int
    seed: int
    kind: Kind = "distinct"

    def importance(self) -> Scores:
        """Return the scores, anew each time."""
        rng = np.random.default_rng(self.seed)
        size = math.prod(self.shape)
        if self.kind == "tied":
            return rng.integers(2, size=self.shape).astype(np.float64)
        return rng.permutation(size).reshape(self.shape).astype(np.float64)

    def code(self) -> str:
        """Return what makes the same scores."""
        rng = f"numpy.random.default_rng({self.seed})"
        if self.kind == "tied":
            return f"{rng}.integers(2, size={self.shape}) * 1.0"
        return f"{rng}.permutation({math.prod(self.shape)}).reshape{self.shape} * 1.0"


class Asked(NamedTuple):
    """A policy, and what its author says of it."""

    policy: Policy
    axes: str
    mean_over: str
    sinks: int
    window: int
    takes_rng: bool
    takes_valid: bool
    seed: int
    calls: list[int]  # of one number: how many there were

    @property
    def token_axis(self) -> int:
        """The place of the tokens."""
        return self.axes.index("t")

    @property
    def reserved(self) -> int:
        """Tokens that always stay."""
        return self.sinks + self.window

    def raw(
        self, scores: Scores, num_kept: int, seed: int, valid: NDArray[np.bool_] | None = None
    ) -> object:
        """Call the policy."""
        self.calls[0] += 1
        more: dict[str, Any] = {}
        if self.takes_rng:
            more["rng"] = np.random.default_rng(seed)
        if self.takes_valid:
            more["valid"] = np.ones(scores.shape, np.bool_) if valid is None else valid
        try:
            return self.policy(scores, num_kept, **more)
        except Exception as error:
            raise RaisedError from error

    def keep(
        self, scores: Scores, num_kept: int, seed: int, valid: NDArray[np.bool_] | None = None
    ) -> NDArray[np.bool_]:
        """Call the policy and return its mask, tokens last, where it is one."""
        shape = scores.shape  # before the call, which might change it
        array = _checks.as_array(
            "what the policy returns", self.raw(scores, num_kept, seed, valid), "a keep-mask"
        )
        if array.shape != shape or array.dtype != np.bool_:
            raise ValueError(
                f"what the policy returns must be booleans of shape {shape}; got {array.dtype} of "
                f"shape {array.shape}; write one for each score."
            )
        return np.moveaxis(array.astype(np.bool_), self.token_axis, -1)

    def of(self, case: Case) -> NDArray[np.bool_]:
        """Return the mask of a case, tokens last."""
        return self.keep(case.importance(), case.num_kept, case.seed)


def ordinary(asked: Asked, kind: Kind = "distinct") -> Iterator[Case]:
    """Yield cases by size: budgets that hold what is reserved and evict at least one token."""
    low = max(1, asked.reserved)
    yield from (
        Case(shape, num_kept, seed, kind)
        for shape in _shapes(asked)
        for num_kept in _budgets(low, shape[asked.token_axis])
        for seed in range(asked.seed, asked.seed + _SEEDS)
    )


def alternating(asked: Asked) -> Iterator[Case]:
    """Yield the ordinary cases, every other one of them with scores that are tied."""
    for number, case in enumerate(ordinary(asked)):
        yield case._replace(kind="tied") if number % 2 else case


def edges(asked: Asked) -> Iterator[Case]:
    """Yield cases by size whose budget is 0, below what is reserved, all tokens, or more."""
    for shape in _shapes(asked):
        tokens = shape[asked.token_axis]
        below = {0, 1, asked.reserved // 2, asked.reserved - 1} - {-1}
        budgets = {*(n for n in below if n < max(1, asked.reserved)), tokens, tokens + 1}
        yield from (Case(shape, num_kept, asked.seed) for num_kept in sorted(budgets))


def _shapes(asked: Asked) -> list[tuple[int, ...]]:
    """Return shapes by size: one row, two of one axis, two of each."""
    others = asked.axes.replace("t", "")
    doubled = {"", *others, others}
    shapes = {
        tuple(
            asked.reserved + tokens if letter == "t" else 1 + (letter in two)
            for letter in asked.axes
        )
        for tokens in _TOKENS
        for two in doubled
    }
    return sorted(shapes, key=lambda shape: (math.prod(shape), shape))


def _budgets(low: int, tokens: int) -> list[int]:
    """Return budgets from `low` to one below the tokens: all, or both ends and between."""
    if tokens - low <= _FEW:
        return [*range(low, tokens)]
    more = tokens - low
    return [low, low + 1, low + more // 3, low + more // 2, tokens - 1]
