"""Rows of positions, end to end or nested -> booleans that are True there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks


class Rows(NamedTuple):
    """Rows of different lengths, end to end."""

    items: NDArray[np.int64]  # positions, or pairs (start, stop)
    counts: NDArray[np.int64]  # items of each row
    outer: tuple[int, ...]  # the shape that the rows have together

    def numbers(self) -> NDArray[np.int64]:
        """Return the number of the row of each item."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def where(self, row: int) -> str:
        """Return which row is meant, for a message."""
        return in_row(np.unravel_index(row, self.outer))


def in_row(index: tuple[Any, ...]) -> str:
    return f" in row {_checks.index_text(index)}" if index else ""


def rows_of(name: str, value: object, item_axes: int) -> Rows:
    """Read rows of positions (`item_axes` 0) or of pairs (1) from an array or from nested lists."""
    row_axes = 1 + item_axes
    if isinstance(value, list | tuple) and depth(value) > row_axes:
        parts = [rows_of(f"{name}[{i}]", row, item_axes) for i, row in enumerate(value)]
        outer = parts[0].outer
        if any(part.outer != outer for part in parts):
            raise ValueError(
                f"{name} must be nested alike throughout; got rows in shapes {outer} and "
                f"{next(part.outer for part in parts if part.outer != outer)}; write as many rows "
                "everywhere."
            )
        return Rows(
            np.concatenate([part.items for part in parts]),
            np.concatenate([part.counts for part in parts]),
            (len(parts), *outer),
        )
    array = _checks.as_integers(name, value)
    if item_axes and array.size == 0 and array.shape[-1:] != (2,):
        array = array.reshape(*array.shape, 2)  # lists of no pairs
    if array.ndim < row_axes or (item_axes and array.shape[-1] != 2):  # noqa: PLR2004  # a pair
        what = "pairs (start, stop)" if item_axes else "positions"
        raise ValueError(
            f"{name} must be rows of {what}; got shape {array.shape}; write a list of {what}."
        )
    split = array.ndim - row_axes
    outer = array.shape[:split]
    counts = np.full(math.prod(outer), array.shape[split])
    return Rows(array.reshape(-1, *array.shape[split + 1 :]), counts, outer)


def depth(value: object) -> int:
    """Return how many axes an array has, or how deep a list is nested."""
    if isinstance(value, list | tuple):
        if {*map(type, value)} == {int}:  # no need to ask each
            return 1
        return 1 + max(map(depth, value), default=0)
    return int(getattr(value, "ndim", 0))


def from_positions(
    name: str, value: object, num_tokens: int, fill: int | None
) -> NDArray[np.bool_]:
    rows = rows_of(name, value, item_axes=0)
    if fill is not None:
        empty = _checks.as_count("fill", fill, minimum=np.iinfo(np.int64).min)
        if 0 <= empty < num_tokens:
            raise ValueError(
                f"fill must be no position of {num_tokens} tokens; got {empty}; write the number "
                "that marks an empty place, such as -1."
            )
        real = rows.items != empty
        counts = np.bincount(rows.numbers()[real], minlength=len(rows.counts))
        rows = Rows(rows.items[real], counts, rows.outer)
    hint = "count from the row's token 0, and name what marks an empty place, such as fill=-1"
    return kept_at(name, rows, num_tokens, hint)


def kept_at(
    name: str,
    rows: Rows,
    lengths: NDArray[np.int64] | int,
    hint: str = "count from the row's token 0, and leave repeats and empty places out",
) -> NDArray[np.bool_]:
    """Return rows that are True at their positions, each below the row's length and given once."""
    row, position = rows.numbers(), rows.items
    limit = lengths if isinstance(lengths, int) else lengths[row]
    wrong = (position < 0) | (position >= limit)
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"{name} must be positions from 0 up and below length "
            f"{limit if isinstance(limit, int) else limit[first]}; got {position[first]}"
            f"{rows.where(row[first])}; {hint}."
        )
    width = lengths if isinstance(lengths, int) else int(lengths.max(initial=0))
    keep = np.zeros((len(rows.counts), width), np.bool_)
    keep[row, position] = True
    if np.count_nonzero(keep) < position.size:
        at = row * width + position
        order = at.argsort(kind="stable")
        again = int(order[1:][at[order[1:]] == at[order[:-1]]].min())
        raise ValueError(
            f"{name} must name each position once; got {position[again]} twice"
            f"{rows.where(row[again])}; {hint}."
        )
    return keep.reshape(*rows.outer, width)


TRIPLE: Final = 3  # batch, head, token


def at_coordinates(name: str, triple: object, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return booleans of shape (batch, head, token), True at the coordinates."""
    if triple is None:
        return np.zeros(shape, np.bool_)
    parts: list[NDArray[np.int64]] = []
    if getattr(triple, "shape", None) == (TRIPLE, TRIPLE):
        raise ValueError(
            f"{name} must be three flat arrays (batch, head, token); got one of shape (3, 3), "
            "whose rows may as well be three entries; write tuple(array), or tuple(array.T) if "
            "each row is an entry."
        )
    if isinstance(triple, Iterable):
        parts = [_checks.as_integers(f"{name}[{i}]", part) for i, part in enumerate(triple)]
    shapes = [part.shape for part in parts]
    if len(parts) != TRIPLE or len(set(shapes)) > 1 or parts[0].ndim != 1:
        came = f"arrays of shapes {shapes}" if parts else _checks.shown(triple)
        raise ValueError(
            f"{name} must be three flat arrays of one length (batch, head, token), or None; got "
            f"{came}; write them as torch.where(...) gives them."
        )
    for what, part, size in zip(("batch", "head"), parts, shape, strict=False):
        wrong = (part < 0) | (part >= size)
        if wrong.any():
            first = int(wrong.argmax())
            raise ValueError(
                f"{name} must have a {what} from 0 up and below {size}, as shape says; got "
                f"{part[first]} at index {first}; write the true shape."
            )
    row = parts[0] * shape[1] + parts[1]
    order = row.argsort(kind="stable")
    counts = np.bincount(row, minlength=shape[0] * shape[1])
    return kept_at(name, Rows(parts[2][order], counts, shape[:2]), shape[2])
