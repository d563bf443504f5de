"""What file and caller say of a mask, where they do not contradict each other."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks
from kvreclaim._formats import arrays as _arrays
from kvreclaim._formats.arrays import Array, Mask
from kvreclaim._formats.grouping import OpenMasks, find


class Chosen(NamedTuple):
    """A mask of an open file, not read yet, and what is said of it."""

    mask: Mask
    axes: str | None
    lengths: NDArray[np.int64] | None
    offset: NDArray[np.int64] | int
    part: Mapping[str, Array]

    def tokens_of_rows(self, axes: str, shared_axes: str) -> NDArray[np.int64]:
        """Return the tokens of each row, in an array of all axes but ``t`` that takes no memory."""
        return tokens_of_rows(self.lengths, self.mask.shape, axes, shared_axes)

    def meta(self) -> dict[str, Any]:
        """Return what the writer noted."""
        if "meta" not in self.part:
            return {}
        where = self.part["meta"].where
        try:
            return {**json.loads(_arrays.text(self.part["meta"]))}
        except (json.JSONDecodeError, RecursionError, TypeError):
            raise ValueError(
                f"{where} must be a JSON object; got other text; save with kvreclaim.save_masks."
            ) from None

    def times(self, most: int) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
        """Return when each token came and went, where the file says so."""
        if "born_at" not in self.part and "evicted_at" not in self.part:
            return None, None
        with _arrays.named(self.mask.where):
            born_at, evicted_at = (
                _arrays.integers(self.part[name], most) if name in self.part else None
                for name in ("born_at", "evicted_at")
            )
            check_times(born_at, evicted_at, self.mask.shape)
        return born_at, evicted_at


def tokens_of_rows(
    lengths: NDArray[np.int64] | None, shape: tuple[int, ...], axes: str, shared_axes: str
) -> NDArray[np.int64]:
    """Return the tokens of each row of a mask, where lengths say which rows they are of."""
    rows = [size for size, letter in zip(shape, axes, strict=True) if letter != "t"]
    letters = axes.replace("t", "")
    outer = [i for i, letter in enumerate(letters) if letter not in shared_axes]
    tokens = shape[axes.index("t")]
    if lengths is None:
        return np.broadcast_to(np.int64(tokens), rows)
    of_tables = _checks.as_per_table(
        "lengths",
        lengths,
        letters="".join(letters[i] for i in outer),
        sizes=tuple(rows[i] for i in outer),
        maximum=tokens,
        hint="write one axis for each, so that it is clear which tokens were never there",
    )
    return np.broadcast_to(
        of_tables.reshape([size if i in outer else 1 for i, size in enumerate(rows)]), rows
    )


def check_times(
    born_at: NDArray[Any] | None, evicted_at: NDArray[Any] | None, shape: tuple[int, ...]
) -> None:
    """Refuse times that do not fit a mask of this shape."""
    if born_at is None or evicted_at is None:
        raise ValueError(
            f"{'born_at' if born_at is None else 'evicted_at'} must stand beside the other; got "
            "none; write both."
        )
    for name, times in (("born_at", born_at), ("evicted_at", evicted_at)):
        pairs = zip(reversed(times.shape), reversed(shape), strict=False)
        if times.ndim > len(shape) or any(size not in (1, full) for size, full in pairs):
            raise ValueError(
                f"{name} must have the shape {shape} of keep, or one that repeats to it; got "
                f"{times.shape}; write a time for each token."
            )


def choose(
    masks: OpenMasks,
    array: str | None,
    *,
    axes: str | None,
    lengths: ArrayLike | None,
    offset: ArrayLike,
    most: int,
) -> Chosen:
    """Choose a mask, check what it declares, and put together what is said of it."""
    part = find(masks, array)
    mask = _arrays.mask_of(part)
    with _arrays.named(mask.where):
        letters = _one_of("axes", part, axes, lambda here: _axes_in(here, mask.shape))
        if letters is not None:
            letters = _checks.as_axes(letters, mask.shape, "")
        axes_or_unnamed = letters or "?" * (len(mask.shape) - 1) + "t"
        given = {
            "lengths": None if lengths is None else _checks.as_integers("lengths", lengths),
            "offset": None if _checks.is_zero(offset) else _checks.as_integers("offset", offset),
        }
        said = {
            name: _one_of(
                name,
                part,
                given[name],
                functools.partial(
                    _numbers_in, name, shape=mask.shape, axes=axes_or_unnamed, most=most
                ),
            )
            for name in given
        }
        check_lengths(said["lengths"], mask.shape[axes_or_unnamed.index("t")])
    return Chosen(
        mask, letters, said["lengths"], 0 if said["offset"] is None else said["offset"], part
    )


def _axes_in(array: Array, shape: tuple[int, ...]) -> str:
    letters = _arrays.text(array)
    return _checks.as_axes(letters, shape, "") if array.shared else letters


def _numbers_in(
    name: str, array: Array, *, shape: tuple[int, ...], axes: str, most: int
) -> NDArray[np.int64]:
    """Return numbers of sequences; those said of several arrays must fit this one's shape."""
    numbers = _checks.as_integers(name, _arrays.integers(array, most))
    if array.shared:
        fits = "fit every array that it stands beside, in"
        hint = (
            f"write the {name} of an array NAME as NAME/{name}, or each array to a file of its own"
        )
        check_numbers(name, numbers, shape, axes, fits=fits, hint=hint)
    return numbers


def check_numbers(
    name: str,
    numbers: NDArray[np.int64],
    shape: tuple[int, ...],
    axes: str,
    *,
    fits: str = "have",
    hint: str = "write one axis for each that a number is told for",
) -> None:
    """Refuse numbers of sequences that a mask of this shape has under no pool."""
    one_each = "b" in axes and numbers.ndim == 1  # sequence
    rows = [
        size
        for size, letter in zip(shape, axes, strict=True)
        if letter == "b" or (letter != "t" and not one_each)
    ]
    left = iter(rows)
    if not all(any(size in (1, full) for full in left) for size in numbers.shape):
        raise ValueError(
            f"{name} must {fits} axes other than tokens, here of shape {tuple(rows)}; got shape "
            f"{numbers.shape}; {hint}."
        )
    if name == "lengths":
        check_lengths(numbers, shape[axes.index("t")])
    elif numbers.min(initial=0) < 0:
        raise ValueError(
            f"{name} must be at least 0; got {numbers.min()}; write the slots of the first block "
            "before token 0."
        )


def check_lengths(lengths: NDArray[np.int64] | None, tokens: int) -> None:
    """Refuse lengths that no sequence of so many tokens has."""
    if (
        lengths is not None
        and lengths.size
        and not (lengths.min() >= 0 and lengths.max() <= tokens)
    ):
        raise ValueError(
            f"lengths must be from 0 to {tokens}; got {lengths.min()} to {lengths.max()}; write "
            "each sequence's tokens."
        )


def _one_of(
    name: str,
    part: Mapping[str, Array],
    given: Any,  # noqa: ANN401  # letters, or integers
    read: Callable[[Array], Any],
) -> Any:  # noqa: ANN401  # the same
    """Return what the file or the caller says, where they do not contradict each other.

    What the file says of several arrays and does not fit this one gives way to the caller.
    """
    if name not in part:
        return given
    try:
        in_file = read(part[name])
    except (TypeError, ValueError):
        if given is None or not part[name].shared:
            raise
        return given
    if given is None:
        return in_file
    if not np.array_equal(in_file, given):
        raise ValueError(
            f"{name} must be those that the file names itself; got {_checks.shown(given)} for "
            f"{_checks.shown(in_file)}; leave {name} out."
        )
    return in_file
