"""Which mask of a file is meant, and what file and caller say of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks
from kvreclaim._formats import arrays as _arrays
from kvreclaim._formats.arrays import Array, Mask

_MOST_LISTED: Final = 20


class Chosen(NamedTuple):
    """A mask of an open file, not read yet, and what is said of it."""

    mask: Mask
    axes: str | None
    lengths: NDArray[np.int64] | None
    offset: NDArray[np.int64] | int
    part: Mapping[str, Array]

    def tokens_of_rows(self, axes: str, shared_axes: str) -> NDArray[np.int64]:
        """Return the tokens of each row, in an array of all axes but ``t`` that takes no memory."""
        shape = self.mask.shape
        rows = [size for size, letter in zip(shape, axes, strict=True) if letter != "t"]
        letters = axes.replace("t", "")
        outer = [i for i, letter in enumerate(letters) if letter not in shared_axes]
        tokens = shape[axes.index("t")]
        if self.lengths is None:
            return np.broadcast_to(np.int64(tokens), rows)
        lengths = _checks.as_per_table(
            "lengths",
            self.lengths,
            letters="".join(letters[i] for i in outer),
            sizes=tuple(rows[i] for i in outer),
            maximum=tokens,
            hint="write one axis for each, so that it is clear which tokens were never there",
        )
        return np.broadcast_to(
            lengths.reshape([size if i in outer else 1 for i, size in enumerate(rows)]), rows
        )

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


def masks_in(arrays: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """Return the parts of each mask by its name; a plain array is a mask too."""
    own = {
        name.removesuffix(form)
        for name in arrays
        for form in ("keep", "bits")
        if name.rpartition("/")[2] == form
    }
    masks: dict[str, dict[str, Array]] = {}
    for full_name, array in arrays.items():
        part = full_name.rpartition("/")[2]
        prefix = full_name.removesuffix(part)
        if prefix in own and part in _arrays.PARTS:
            name = prefix[:-1] if len(prefix) > 1 else prefix
        else:
            name, part = full_name, "keep"
        if part in masks.setdefault(name, {}):
            raise ValueError(
                f"{array.where} must be the only mask of its name; got another one that is called "
                f"{name!r}; write it anew."
            )
        masks[name][part] = array
    return masks


def meant(names: Iterable[str], array: str) -> str:
    """Return the name of the mask that is asked for: ``keep`` is also the one without a name."""
    bare = {name.removeprefix("/") for name in names}
    return "" if array == "keep" and "keep" not in bare and "" in bare else array


def choose(
    where: str,
    arrays: Mapping[str, Array],
    array: str | None,
    *,
    axes: str | None,
    lengths: ArrayLike | None,
    offset: ArrayLike,
    most: int,
) -> Chosen:
    """Choose a mask, check what it declares, and put together what is said of it."""
    part = _named(where, masks_in(arrays), array)
    mask = _arrays.mask_of(part)
    with _arrays.named(mask.where):
        letters = _one_of("axes", _arrays.text(part["axes"]) if "axes" in part else None, axes)
        if letters is not None:
            letters = _checks.as_axes(letters, mask.shape, "")
        there: dict[str, NDArray[np.int64]] = {
            name: _checks.as_integers(name, _arrays.integers(part[name], most))
            for name in ("lengths", "offset")
            if name in part
        }
        given = {
            "lengths": None if lengths is None else _checks.as_integers("lengths", lengths),
            "offset": None if _checks.is_zero(offset) else _checks.as_integers("offset", offset),
        }
        said = {name: _one_of(name, there.get(name), given[name]) for name in given}
        tokens = mask.shape[-1 if letters is None else letters.index("t")]
        check_lengths(said["lengths"], tokens)
    return Chosen(
        mask, letters, said["lengths"], 0 if said["offset"] is None else said["offset"], part
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


def _named(
    where: str, masks: Mapping[str, dict[str, Array]], array: str | None
) -> dict[str, Array]:
    """Return the parts of the mask of a name; without a name, of the only one."""
    if array is None and len(masks) == 1:
        return next(iter(masks.values()))
    asked = None if array is None else meant(masks, array)
    for name, part in masks.items():
        if asked is not None and asked in (name, name.removeprefix("/")):
            return part
    names = list(masks)
    if not names:
        raise ValueError(f"{where} must hold a mask; got none; save with kvreclaim.save_masks.")
    listed = ", ".join(map(repr, names[:_MOST_LISTED]))
    if len(names) > _MOST_LISTED:
        listed += f" and {len(names) - _MOST_LISTED} more"
    raise ValueError(
        f"array must name one of the {len(names)} masks in {where} ({listed}); got "
        f"{'none' if array is None else repr(array)}; write such as array={names[0]!r}."
    )


def _one_of(name: str, in_file: Any, given: Any) -> Any:  # noqa: ANN401  # letters, or integers
    """Return what the file or the caller says, where they do not contradict each other."""
    if in_file is None or given is None:
        return given if in_file is None else in_file
    if not np.array_equal(in_file, given):
        raise ValueError(
            f"{name} must be those that the file names itself; got {_checks.shown(given)} for "
            f"{_checks.shown(in_file)}; leave {name} out."
        )
    return in_file
