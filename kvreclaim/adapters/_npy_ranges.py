"""Ranges of .npy files, read where they are needed: what is sent is a path and two numbers.

Nothing is mapped: a mapped file that is cut short kills the process that reads it.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim._formats import npy
from kvreclaim._formats.arrays import Values, named


class Declared(NamedTuple):
    """What the header of a .npy file says."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def stored(self) -> tuple[int, ...]:
        """The sizes in the order of the file, in which the last axis varies fastest."""
        return self.shape[::-1] if self.fortran else self.shape


@attrs.frozen(kw_only=True)
class Range:
    """Consecutive values of a .npy file: a chunk."""

    path: str
    declared: Declared
    first: int  # number of the first value
    shape: tuple[int, ...]


def declared_by(path: str) -> Declared:
    """Return what a .npy file declares, if it holds as much."""
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(
            f"{path} must be a .npy file; got a folder, a pipe or a device; write a file's path."
        )
    with Path(path).open("rb") as file:
        return _declared(_values(path, file))


def described(declared: Declared) -> str:
    """Return what a file declares as text."""
    order = " in Fortran order" * declared.fortran
    return f"{declared.dtype.name} of shape {declared.shape}{order}"


def _values(path: str, file: BufferedReader, first: int = 0) -> Values:
    """Return the array of an open file, whose values come from a given one on."""
    return npy.values_in_npy(path, file, file.seek(0, os.SEEK_END), first)


def _declared(values: Values) -> Declared:
    return Declared(values.shape, values.dtype, values.fortran)


def chunk_sizes(shape: Sequence[int], most: int) -> tuple[tuple[int, ...], ...]:
    """Cut an array into ranges of at most so many values, and return the sizes on each axis."""
    sizes = []
    for axis, size in enumerate(shape):
        step = min(max(1, most // max(math.prod(shape[axis + 1 :]), 1)), max(size, 1))
        starts = range(0, size, step)
        sizes.append(tuple(min(step, size - start) for start in starts) or (0,))
    return tuple(sizes)


def ranges_of(
    path: str, declared: Declared, sizes: Sequence[tuple[int, ...]]
) -> NDArray[np.object_]:
    """Return the range of each chunk of a file that `chunk_sizes` has cut."""
    strides = [math.prod(declared.stored[axis + 1 :]) for axis in range(len(sizes))]
    starts = [list(itertools.accumulate(some, initial=0)) for some in sizes]
    ranges = np.empty([len(some) for some in sizes], object)
    for index in np.ndindex(ranges.shape):
        ranges[index] = Range(
            path=path,
            declared=declared,
            first=sum(starts[axis][i] * strides[axis] for axis, i in enumerate(index)),
            shape=tuple(sizes[axis][i] for axis, i in enumerate(index)),
        )
    return ranges


def read(parts: NDArray[np.object_]) -> NDArray[Any]:
    """Return the values of the one range there is, in the order of the file."""
    part: Range = parts.item()
    with Path(part.path).open("rb") as file:
        values = _values(part.path, file, part.first)
        if _declared(values) != part.declared:
            raise ValueError(
                f"{part.path} must stay as it was when the array was made, "
                f"{described(part.declared)}; got {described(_declared(values))}; make the array "
                "anew."
            )
        flat = values.take(math.prod(part.shape))
    if values.dtype.kind == "b":
        # A byte other than 0 and 1 is no boolean either: a file that is damaged may hold one.
        with named(f"{part.path}, from value {part.first} on"):
            flat = _checks.as_keep(flat.view(np.uint8))
    return flat.reshape([*(1,) * (parts.ndim - len(part.shape)), *part.shape])
