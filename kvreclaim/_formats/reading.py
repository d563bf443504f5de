"""A mask of an open file, read whole or counted row by row, through one reused buffer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _bits, _checks, _layout, occupancy
from kvreclaim._formats.arrays import Mask, check_size, named
from kvreclaim._formats.choice import Chosen
from kvreclaim.census import Census, merge, take_census, take_census_of_rows, take_census_packed
from kvreclaim.pool import BlockPool

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the values of a mask that are read, and all there are."""

_LISTS: Final = ("kept", "runs")  # words that mean what is kept, whatever else is said


def load(
    chosen: Chosen, *, evicted: bool, most: int, progress: Progress | None
) -> NDArray[np.bool_]:
    """Return a mask as a whole, True where a token stays; `evicted`: where it goes, in the file."""
    mask = chosen.mask
    with named(mask.where):
        if evicted:
            _refuse_kept(mask)
        keep = read(mask, most, progress)
        if evicted:
            letters = chosen.axes or "?" * (keep.ndim - 1) + "t"
            _turn_round(keep, chosen.tokens_of_rows(letters, ""), letters.index("t"))
    return keep


def count(
    chosen: Chosen, pool: BlockPool, *, evicted: bool, most: int, progress: Progress | None
) -> Census:
    """Return the census of a mask, in a stream where its rows come one after another."""
    mask, shape = chosen.mask, chosen.mask.shape
    with named(mask.where):
        axes = _checks.as_axes(chosen.axes, shape, pool.shared_axes)
        if evicted:
            _refuse_kept(mask)
        tokens = chosen.tokens_of_rows(axes, pool.shared_axes) if evicted else None
        said: dict[str, Any] = {"lengths": chosen.lengths, "offset": chosen.offset}
        if mask.comes_in_rows(axes):
            rows = row_reader(mask, evicted=tokens, progress=progress)
            return _census_of_rows(mask, axes, pool, rows, most, **said)
        keep = read(mask, most, progress)
        if tokens is not None:
            _turn_round(keep, tokens, axes.index("t"))
        return take_census(keep, pool, axes=chosen.axes, **said)


def also_polarity(text: str, option: str) -> str:
    """Add, to what is wrong with a mask that is True in its padding, that True may mean evicted."""
    if _checks.BEYOND_LENGTHS not in text:
        return text
    return f"{text.removesuffix('.')}, or {option} if True means evicted."


def _refuse_kept(mask: Mask) -> None:
    """Refuse to take for evicted what a file lists as kept."""
    if mask.kept_as in _LISTS:
        raise ValueError(
            f"polarity must be 'keep' for what a file lists as {mask.kept_as!r}; got 'evict'; "
            "leave it out, in a call of its own."
        )


def _census_of_rows(
    mask: Mask,
    axes: str,
    pool: BlockPool,
    rows: Callable[[int], NDArray[np.uint8]],
    most: int,
    **said: Any,  # noqa: ANN401  # lengths and offset
) -> Census:
    """Count rows as they come."""
    # An axis of one row that shares blocks changes nothing, but would keep its tables open.
    kept = [i for i, c in enumerate(axes) if mask.shape[i] != 1 or c not in pool.shared_axes]
    axes, shape = "".join(axes[i] for i in kept), tuple(mask.shape[i] for i in kept)
    if 0 in shape:
        check_size(mask.where, shape, most)  # no bytes: any number of rows is there
    _check_open(mask.where, axes, shape, pool, most)
    if shape[-1] > occupancy.PIECE and mask.num_rows and not {*axes} & {*pool.shared_axes}:
        return _census_of_long_rows(rows, axes, shape, pool, **said)
    return take_census_of_rows(rows, shape, axes, pool, **said)


def _census_of_long_rows(
    read: Callable[[int], NDArray[np.uint8]],
    axes: str,
    shape: tuple[int, ...],
    pool: BlockPool,
    **said: Any,  # noqa: ANN401  # lengths and offset
) -> Census:
    """Count rows that are a table each, one at a time, without a second copy of its bits."""
    nothing = _layout.arrange(np.broadcast_to(np.False_, shape), axes, pool, **said)
    rows = math.prod(shape[:-1])
    lengths, offsets = _layout.of_each_table(nothing)
    censuses = []
    for row in range(rows):
        bits = read(1)[0]
        with named(f"row {row}"):
            census = take_census_packed(
                bits, shape[-1], pool, lengths=lengths[row], offset=int(offsets[row])
            )
        censuses.append(census)
    return merge(censuses)


def _check_open(where: str, axes: str, shape: tuple[int, ...], pool: BlockPool, most: int) -> None:
    """Refuse tables that keep more bits open at once than fit."""
    first = next((i for i, c in enumerate(axes) if c in pool.shared_axes), len(axes) - 1)
    inner = [shape[i] for i in range(first, len(axes) - 1) if axes[i] not in pool.shared_axes]
    needed = math.prod(inner) * -(-shape[-1] // 8)
    if needed > most:
        raise ValueError(
            f"{where} must have tables whose bits fit into max_bytes={most}; got {needed} bytes of "
            f"them open at once, for axes {axes!r} of shape {shape}; write the axes that share "
            "blocks last but 't', or a larger max_bytes."
        )


def _turn_round(evicted: NDArray[np.bool_], tokens: NDArray[np.int64], axis: int) -> None:
    """Make a keep-mask of its opposite, in place; tokens that are not there are not kept."""
    np.logical_not(evicted, out=evicted)
    size = evicted.shape[axis]
    if (tokens < size).any():
        positions = np.arange(size).reshape([-1 if i == axis else 1 for i in range(evicted.ndim)])
        evicted &= positions < np.expand_dims(tokens, axis)


def read(mask: Mask, most: int, progress: Progress | None = None) -> NDArray[np.bool_]:
    """Return the whole mask, of at most `most` tokens."""
    check_size(mask.where, mask.shape, most)
    keep = np.empty(math.prod(mask.shape), np.bool_)
    take = _Reader(mask, progress)
    if mask.packed is None:
        for start in range(0, len(keep), occupancy.PIECE):
            stop = min(start + occupancy.PIECE, len(keep))
            keep[start:stop] = take.tokens(stop - start)
        return keep.reshape(mask.shape, order="F" if mask.values.fortran else "C")
    rows, tokens = keep.reshape(mask.num_rows, mask.shape[-1]), mask.shape[-1]
    if mask.values.fortran and len(rows) > 1:
        bits = take.values(math.prod(mask.values.shape)).reshape(mask.values.shape, order="F")
        bits = take.checked(bits.reshape(len(rows), -1), tokens)
        return _bits.unpack(bits, tokens).reshape(mask.shape)
    step = max(1, occupancy.PIECE // max(tokens, 1))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        some[...] = _bits.unpack(take.rows(len(some)), tokens)
    return keep.reshape(mask.shape)


def row_reader(
    mask: Mask, *, evicted: NDArray[np.int64] | None, progress: Progress | None
) -> Callable[[int], NDArray[np.uint8]]:
    """Return a function that gives the packed bits of the next n rows of a mask in C order.

    With `evicted`, which holds the tokens of each row, True means evicted in the file. The bits
    may not outlive the next call.
    """
    return _Reader(mask, progress, evicted).rows


class _Reader:
    """Takes the values of a mask in order, checks them, and counts how far it has come."""

    def __init__(
        self, mask: Mask, progress: Progress | None, evicted: NDArray[np.int64] | None = None
    ) -> None:
        self._mask, self._progress, self._evicted = mask, progress, evicted
        self._done, self._row = 0, 0

    def values(self, count: int) -> NDArray[Any]:
        """Return the next values as they are."""
        values = self._mask.values.take(count)
        self._done += count
        if self._progress is not None:
            self._progress(self._done, math.prod(self._mask.values.shape))
        return values

    def tokens(self, count: int) -> NDArray[np.bool_]:
        """Return the next values as booleans."""
        values = self.values(count)
        if not count:
            return np.zeros(0, np.bool_)
        # A byte other than 0 and 1 is no boolean either: a file that is damaged may hold one.
        numbers = values.view(np.uint8) if values.dtype.kind == "b" else values
        if int(numbers.max()) > 1 or int(numbers.min()) < 0:
            self._refuse(numbers)
        return numbers.view(np.bool_) if numbers.itemsize == 1 else numbers.astype(np.bool_)

    def _refuse(self, numbers: NDArray[Any]) -> None:
        first = int(((numbers != 0) & (numbers != 1)).argmax())
        values, mask = self._mask.values, self._mask
        at = np.unravel_index(
            self._done - len(numbers) + first, values.shape, order="F" if values.fortran else "C"
        )
        index = int(at[0]) if len(at) == 1 else tuple(map(int, at))
        raise ValueError(
            f"{mask.where} must be True and False, or integers that are all 0 and 1; got "
            f"{values.dtype.name} {int(numbers[first])} at index {index}; write keep != 0 if every "
            "other value means kept, kvreclaim.masks.from_indices(...) if these are positions, "
            "kvreclaim.masks.from_packed(...) if these are packed bits."
        )

    def checked(self, bits: NDArray[np.uint8], tokens: int) -> NDArray[np.uint8]:
        """Return packed bits in big order, none of them set beyond the tokens."""
        with named(self._mask.where):
            _checks.as_bits(bits, tokens, self._mask.packed)
        return _bits.reverse(bits) if self._mask.packed == "little" else bits

    def rows(self, count: int) -> NDArray[np.uint8]:
        """Return the packed bits of the next rows."""
        tokens = self._mask.shape[-1]
        step = max(occupancy.PIECE // 8 * 8, 8)
        if count != 1 or tokens <= step:
            bits = self._bits(count, 0, tokens)
        else:
            bits = np.empty((1, -(-tokens // 8)), np.uint8)
            for start in range(0, tokens, step):
                stop = min(start + step, tokens)
                bits[:, start // 8 : -(-stop // 8)] = self._bits(1, start, stop)
        self._row += count
        return bits

    def _bits(self, rows: int, start: int, stop: int) -> NDArray[np.uint8]:
        """Return the bits of the next tokens of the next rows: of several, all their tokens."""
        if self._mask.packed is None:
            tokens = self.tokens(rows * (stop - start))
            bits = _bits.pack(tokens.reshape(rows, stop - start))
        else:
            width = -(-stop // 8) - start // 8
            bits = self.checked(self.values(rows * width).reshape(rows, width), stop - start)
        if self._evicted is not None:
            lengths = self._evicted.flat[self._row : self._row + rows]
            bits = ~bits & _bits.first_bits(lengths - start, bits.shape[-1])
        return bits
