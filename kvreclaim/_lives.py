"""The births and deaths of tokens, checked -> when each slot is written and when it dies."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks, _layout
from kvreclaim.pool import BlockPool

NEVER: Final = 2**31 - 1
"""The time of what does not happen: the largest int32."""

_MOST_STEPS: Final = 1 << 24  # a later time is no step, but a clock or another tool's "never"


def as_times(name: str, value: object) -> NDArray[np.int32]:
    rule = f"integers from 0 to NEVER, the largest int32 ({NEVER})"
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} must be {rule}; got a numpy.ma masked array; write {name}.filled(NEVER) if "
            "what is masked does not happen."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{name} must have rows of one length; got what makes no array ({error}); pad them and "
            "write their lengths."
        ) from None
    if array.size == 0:
        return np.zeros(array.shape, np.int32)  # an empty list says nothing of its kind
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must be {rule}; got an array of {array.dtype.name}; count the steps from 0, "
            "and write NEVER for what does not happen."
        )
    wrong = (array < 0) | (array > NEVER)
    if wrong.any():
        index = _checks.first_of(wrong)
        at = _checks.index_text(index)
        raise ValueError(
            f"{name} must be {rule}; got {int(array[index])} at index {at}; write NEVER for what "
            "does not happen."
        )
    return array.astype(np.int32, copy=False)


def aligned(
    born: NDArray[np.int32], evicted: NDArray[np.int32], axes: object, pool: BlockPool
) -> tuple[NDArray[np.int32], NDArray[np.int32], str]:
    """Return both with one axis for each letter, and the letters."""
    larger = max(born, evicted, key=np.ndim)
    if larger.ndim == 0:
        raise ValueError(
            "born_at and evicted_at must have a token axis; got two single numbers; write such as "
            "[0, 0, 1]."
        )
    letters = _checks.as_axes(axes, larger.shape, pool.shared_axes)
    along_tokens = [-1 if letter == "t" else 1 for letter in letters]
    aligned = [
        times.reshape(along_tokens) if times.ndim < min(larger.ndim, 2) else times
        for times in (born, evicted)
    ]
    sizes = zip(aligned[0].shape, aligned[1].shape, strict=False)
    if aligned[0].ndim != aligned[1].ndim or any(a != b and 1 not in (a, b) for a, b in sizes):
        raise ValueError(
            "born_at and evicted_at must have one axis for each letter of axes, of equal sizes or "
            "1 to repeat, or be flat, a number for each token; got shapes "
            f"{born.shape} and {evicted.shape}; write such as born_at[:, None, :]."
        )
    return aligned[0], aligned[1], letters


def row_axes(layout: _layout.Layout) -> tuple[int, ...]:
    """Return the axes of the rows that share blocks, where the tokens are last."""
    return tuple(range(layout.outer_axes, layout.array.ndim - 1))


def within(layout: _layout.Layout, letters: str, pool: BlockPool) -> NDArray[np.bool_]:
    """Return which tokens their tables have, to go with times in the order of the letters."""
    sizes = iter(layout.outer)
    shape = [1 if letter in pool.shared_axes + "t" else next(sizes) for letter in letters]
    tokens = np.arange(layout.tokens).reshape([-1 if letter == "t" else 1 for letter in letters])
    return np.asarray(tokens < np.reshape(layout.lengths, shape))


def check_lives(
    births: NDArray[np.int32], deaths: NDArray[np.int32], within: NDArray[np.bool_] | np.bool_
) -> None:
    late = (deaths > births) & ~within
    if late.any():
        raise ValueError(
            "evicted_at must not be after born_at beyond the lengths, where nothing is alive; got "
            f"{_life(births, deaths, late)}; write the true lengths, or zeros beyond them."
        )
    early = (deaths < births) & within
    if early.any():
        raise ValueError(
            f"evicted_at must be at least born_at; got {_life(births, deaths, early)}; write "
            "born_at for what is evicted within the step that writes it, NEVER for what is not "
            "evicted."
        )


def _life(births: NDArray[np.int32], deaths: NDArray[np.int32], wrong: NDArray[np.bool_]) -> str:
    index = _checks.first_of(wrong)
    at = _checks.index_text(index)
    return f"an entry born at {births[index]} and evicted at {deaths[index]}, at index {at}"


def latest(name: str, times: NDArray[np.int32], within: NDArray[np.bool_] | np.bool_) -> int:
    """Return the largest finite time."""
    latest = int(times.max(where=(times < NEVER) & within, initial=0))
    if latest >= _MOST_STEPS:
        raise ValueError(
            f"{name} must count steps from 0, fewer than {_MOST_STEPS}; got {latest}; subtract the "
            "first step's time, and write NEVER for what does not happen."
        )
    return latest


def slot_times(
    births: NDArray[np.int32], layout: _layout.Layout
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return when each slot is written and when its last entry dies, table by table."""
    rows, shape = row_axes(layout), (layout.num_tables, layout.tokens)
    born = births.min(axis=rows).reshape(shape)
    falls = born[:, 1:] < born[:, :-1]
    if falls.any():
        table, token = _checks.first_of(falls)
        raise ValueError(
            "born_at must not fall along the tokens of a table, which grows in token order; got "
            f"{born[table, token + 1]} after {born[table, token]} at token {token + 1} of table "
            f"{table} (of {layout.num_tables}); sort each sequence's tokens by birth."
        )
    last_born = births.max(axis=rows).reshape(shape)
    first_evicted = layout.array.min(axis=rows).reshape(shape)
    late = (last_born > first_evicted) & (born < NEVER)
    if late.any():
        table, token = index = _checks.first_of(late)
        raise ValueError(
            "born_at must not be after evicted_at of another row of the same slot; got one born at "
            f"{last_born[index]} and one evicted at {first_evicted[index]} at token {token} of "
            f"table {table} (of {layout.num_tables}); write the token's birth in all rows that "
            "share blocks, and as evicted_at where an entry is never stored."
        )
    return born, layout.array.max(axis=rows).reshape(shape)
