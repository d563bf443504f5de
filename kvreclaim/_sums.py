"""Sums and means that are rounded once, so that neither order nor memory layout matters.

A sum is held as two floats, ``high + low``, by additions whose errors are kept (TwoSum, as in SumK
of Ogita, Rump and Oishi 2005, doi:10.1137/030601818), and a bound on what the two still miss. Where
the bound leaves it open which float is nearest, the terms are added as fractions: every answer is
the float nearest to the true one, of two equally near ones the even one. +inf among the terms gives
+inf. Terms are at most 1e300 in size, so that no step overflows.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

_BLOCK: Final = 1 << 16  # terms at a time: they stay in the cache, and no large array is copied
_SPLIT: Final = 2.0**27 + 1  # cuts a float in two halves whose products are exact

Floats: TypeAlias = NDArray[np.float64]
_Parts: TypeAlias = tuple[Floats, Floats, Floats]  # high, low, and what both miss, as in `Sums`


class Sums(NamedTuple):
    """Sums before they are rounded, (group, column), and where their terms are found."""

    high: Floats
    low: Floats
    missed: Floats  # at least what the sum of both is off by; 0 where it is exact
    infinite: NDArray[np.bool_]  # whether a term is +inf; these count as 0 in the others
    terms: Callable[[int, int], NDArray[Any]]  # of a group and a column


def over_rows(values: Floats) -> Sums:
    """Return the sums of (group, row, column) over rows."""
    groups, rows, columns = values.shape
    high, low, missed = (np.zeros((groups, columns)) for _ in range(3))
    infinite = np.zeros((groups, columns), np.bool_)
    width = max(1, min(columns, _BLOCK // max(1, rows)))
    depth = max(1, _BLOCK // max(1, rows * width))
    for first in range(0, groups if rows else 0, depth):
        for start in range(0, columns, width):
            there = np.s_[first : first + depth, start : start + width]
            block = values[first : first + depth, :, start : start + width].swapaxes(0, 1)
            beyond = np.isinf(block)
            if beyond.any():
                infinite[there] = beyond.any(axis=0)
                block = np.where(beyond, 0.0, block)
            high[there], low[there], missed[there] = _of_terms(block)
    return Sums(high, low, missed, infinite, lambda group, column: values[group, :, column])


def over_chunks(sums: Sums, size: int, offsets: NDArray[np.int64]) -> tuple[Sums, NDArray[Any]]:
    """Return the sums over chunks of columns, and how many columns each has.

    ``offsets``, of shape (groups or 1, 1), are the places of the first chunk before column 0. The
    sums are (group, chunk); a chunk that a group does not reach has no columns, and sum 0.
    """
    groups, columns = sums.high.shape
    slots = offsets + np.arange(columns)
    numbers = slots // size
    chunks = int(numbers.max(initial=-1)) + 1
    width = min(size, columns)
    places = slots
    if width < size:  # there are two chunks at most: each is laid out from its first column on
        places = np.where(numbers == 0, np.arange(columns), columns + slots - size)

    def laid(values: NDArray[Any]) -> NDArray[Any]:
        out = np.zeros((groups, chunks * width), values.dtype)
        if len(places) == 1 and width == size:
            out[:, int(offsets[0, 0]) : int(offsets[0, 0]) + columns] = values
        else:
            np.put_along_axis(out, places, values, axis=-1)
        return np.ascontiguousarray(out.reshape(groups, chunks, width).transpose(2, 0, 1))

    def terms(group: int, chunk: int) -> NDArray[Any]:
        start = chunk * size - int(offsets[group % len(offsets), 0])
        inside = range(max(0, start), min(columns, start + size))
        return np.concatenate([sums.terms(group, column) for column in inside])

    borders = np.arange(chunks + 1) * size
    ends = np.clip(borders - offsets, 0, columns)
    if not chunks:
        none = np.zeros((groups, 0))
        return Sums(none, none, none, none.astype(np.bool_), terms), np.diff(ends)
    high, low, missed = _folded((laid(sums.high), laid(sums.low), laid(sums.missed)))
    infinite = np.zeros(high.shape, np.bool_)
    if sums.infinite.any():
        laid(sums.infinite).any(axis=0, out=infinite)
    return Sums(high, low, missed, infinite, terms), np.diff(ends)


def over_neighbours(values: Floats, kernel: int) -> Sums:
    """Return the sums of (group, column) over the ``kernel`` columns around each, an odd number.

    Windows of 1, 2, 4, ... columns are made of one another, and those put together that make one
    of ``kernel``.
    """
    columns, side = values.shape[-1], kernel // 2
    padded = np.pad(values, [(0, 0), (side, side)])
    beyond = np.isinf(padded)
    infinite = np.zeros(values.shape, np.bool_)
    if beyond.any():
        before = np.pad(beyond.cumsum(axis=-1), [(0, 0), (1, 0)])
        infinite = before[:, kernel:] > before[:, : before.shape[-1] - kernel]
    windows: _Parts = (np.where(beyond, 0.0, padded), *np.zeros((2, *padded.shape)))
    found = _columns(windows, 0, columns)
    start, width = 1, 1
    while start < kernel:
        fewer = windows[0].shape[-1] - width
        windows = _added(_columns(windows, 0, fewer), _columns(windows, width, fewer))
        width *= 2
        if kernel & width:
            found = _added(found, _columns(windows, start, columns))
            start += width
    return Sums(*found, infinite, lambda group, column: padded[group, column : column + kernel])


def rounded(sums: Sums) -> Floats:
    """Return each sum as the float nearest to it."""
    high, low = _two_sum(sums.high, sums.low)
    return _settled(high, low, sums.missed, sums, np.ones((1, 1), np.int64))


def means(sums: Sums, counts: NDArray[np.int64]) -> Floats:
    """Return each sum over a count, of at least 1, as the float nearest to the quotient."""
    number = counts.astype(np.float64)
    high, low = _two_sum(sums.high, sums.low)
    mean = high / number
    # The remainder of a division is exact, and so are these products, which a float underflows
    # in only where it is no multiple of the smallest one.
    rest, lost = _two_sum(_remainder(high, mean, number), low)
    more = rest / number
    missed = np.abs(_remainder(rest, more, number)) + np.abs(lost) + 2 * sums.missed
    mean, more = _two_sum(mean, more)
    return _settled(mean, more, missed, sums, counts)


def _settled(
    high: Floats, low: Floats, missed: Floats, sums: Sums, counts: NDArray[np.int64]
) -> Floats:
    """Return ``high`` where no error so large can change it; else what the terms give exactly."""
    counts = np.broadcast_to(counts, high.shape)
    doubtful = np.nonzero((missed > 0) & ~sums.infinite)
    top, bottom = high[doubtful], low[doubtful]
    error = 2 * missed[doubtful] / counts[doubtful]
    up, down = (np.nextafter(bottom + way * error, way * np.inf) for way in (1, -1))
    still = (top + up != top) | (top + down != top)
    out = np.where(sums.infinite, np.inf, high)
    for group, column in zip(*(axis[still].tolist() for axis in doubtful), strict=True):
        exact = sum(map(Fraction, sums.terms(group, column).tolist()), Fraction(0))
        out[group, column] = float(exact / int(counts[group, column]))
    return out


def _of_terms(terms: Floats) -> _Parts:
    """Return the sum of terms along the first axis: high, low, and what they miss."""
    half = len(terms) // 2
    high = np.array(terms[: len(terms) - half], order="C")
    low = np.zeros_like(high)
    high[:half], low[:half] = _two_sum(high[:half], terms[len(terms) - half :])
    return _folded((high, low, np.zeros_like(high)))


def _folded(sums: _Parts) -> _Parts:
    """Add the end along the first axis to the start, in place, until one is left."""
    length = len(sums[0])
    while length > 1:
        half = length // 2
        length -= half
        start = _slices(sums, 0, half)
        for part, added in zip(start, _added(start, _slices(sums, length, half)), strict=True):
            part[...] = added
    high, low, missed = sums
    return high[0], low[0], missed[0]


def _slices(sums: _Parts, start: int, number: int) -> _Parts:
    high, low, missed = (part[start : start + number] for part in sums)
    return high, low, missed


def _columns(sums: _Parts, start: int, number: int) -> _Parts:
    high, low, missed = (part[:, start : start + number] for part in sums)
    return high, low, missed


def _added(one: _Parts, other: _Parts) -> _Parts:
    high, error = _two_sum(one[0], other[0])
    low, lost = _two_sum(one[1], other[1])
    low, lost_2 = _two_sum(low, error)
    return high, low, one[2] + other[2] + (np.abs(lost) + np.abs(lost_2))


def _two_sum(one: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Return the rounded sum and its error, which together are exact."""
    total = one + other
    part = total - one
    return total, (one - (total - part)) + (other - part)


def _remainder(total: Floats, quotient: Floats, number: Floats) -> Floats:
    """Return ``total - quotient * number``, exactly, for a rounded quotient by a whole number."""
    product = quotient * number
    high, low = _halves(quotient)
    number_high, number_low = _halves(number)
    error = product - high * number_high - low * number_high - high * number_low
    return (total - product) - (low * number_low - error)


def _halves(value: Floats) -> tuple[Floats, Floats]:
    scaled = value * _SPLIT
    high = scaled - (scaled - value)
    return high, value - high
