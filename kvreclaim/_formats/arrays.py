"""An array in a file, not read yet: what it declares is checked before anything is allocated.

Every format yields its arrays in this form, by the names of our own .npz: ``keep`` or ``bits``,
``axes``, ``lengths`` .... Names, limits and checks are then written once, for all of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _bits, _checks, occupancy

PARTS: Final = (
    "keep",
    "bits",
    "num_tokens",
    "bitorder",
    "axes",
    "lengths",
    "offset",
    "born_at",
    "evicted_at",
    "meta",
)
"""What a mask of our own format may be made of; keep, or bits and num_tokens, it must have."""

BESIDE: Final = ("axes", "lengths", "offset", "born_at", "evicted_at")
"""Parts that hold for every plain array beside them which has none of its own."""

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the values of a mask that are read, and all there are."""

_LONGEST_TEXT: Final = 1 << 22  # bytes
_TIMES: Final = {"born_at": "evicted_at", "evicted_at": "born_at"}  # each is nothing by itself

_Part = TypeVar("_Part")


class Values(NamedTuple):
    """What an array declares of itself, and its values, still to be read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    take: Callable[[int], NDArray[Any]]  # the next values, flat; they may not outlive the next call
    fortran: bool = False
    streams: bool = True  # False: the first call of take makes all values at once


class Array(NamedTuple):
    """An array of an open file."""

    where: str  # file and name, for messages
    open: Callable[[], Values]
    shared: bool = False  # whether it is said of every array beside it, of which some may not fit


class Mask(NamedTuple):
    """A keep-mask of an open file, not read yet: booleans, 0/1 integers or packed bits."""

    where: str
    shape: tuple[int, ...]
    values: Values
    packed: Literal["big", "little"] | None = None

    @property
    def num_rows(self) -> int:
        """How many rows of tokens it has."""
        return math.prod(self.shape[:-1])


def known(where: str, value: object) -> Array:
    """Return what is in memory already as an array of a file."""

    def open_() -> Values:
        try:
            array = np.asarray(value)
        except (ValueError, OverflowError):
            raise ValueError(
                f"{where} must make an array of equal rows; got a {type(value).__name__} that does "
                "not; write rows of one length, in at most 64 axes."
            ) from None
        if isinstance(value, list) and not array.size:
            array = array.astype(np.bool_)  # an empty list says nothing of its kind
        return _of(array.shape, array.dtype, lambda: array)

    return Array(where, open_)


def made(
    where: str, shape: tuple[int, ...], dtype: np.dtype[Any], make: Callable[[], NDArray[Any]]
) -> Array:
    """Return an array that is made, as a whole, once its declared shape has been checked."""
    return Array(where, lambda: _of(shape, dtype, make))


def _of(shape: tuple[int, ...], dtype: np.dtype[Any], make: Callable[[], NDArray[Any]]) -> Values:
    left: NDArray[Any] | None = None

    def take(count: int) -> NDArray[Any]:
        nonlocal left
        if left is None:
            left = make().reshape(-1)
        some, left = left[:count], left[count:]
        return some

    return Values(shape, dtype, take, streams=False)


def last_of(name: str) -> str:
    """Return what an array is called in its folder."""
    return name.rpartition("/")[2]


def beside(
    names: Iterable[str], parts: Mapping[str, _Part]
) -> tuple[dict[str, dict[str, _Part]], set[str]]:
    """Return which parts hold for each plain array of these names, and which hold for any.

    They stand in the array's folder, ``a/b/`` of ``a/b/mask``, or in one around it; the nearest
    counts.
    """
    folders: dict[str, dict[str, _Part]] = {}
    for full_name, value in parts.items():
        part = last_of(full_name)
        folder = full_name.removesuffix(part)
        if part in BESIDE and f"{folder}{_TIMES.get(part, part)}" in parts:
            folders.setdefault(folder, {})[part] = value
    found: dict[str, dict[str, _Part]] = {}
    used: set[str] = set()
    for name in names:
        found[name] = {}
        end = len(name)
        while folders and end >= 0:
            end = name.rfind("/", 0, end)
            folder = name[: end + 1]
            if folder in folders:
                used.add(folder)
                found[name] = folders[folder] | found[name]
    return found, {f"{folder}{part}" for folder in used for part in folders[folder]}


@contextmanager
def named(where: str) -> Iterator[None]:
    """Put file and array in front of what is wrong, where they do not stand there yet."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        text = str(error)
        raise kind(text if text.startswith(where) else f"{where}: {text}") from None


def check_size(where: str, shape: tuple[int, ...], most: int) -> None:
    """Refuse a mask of more tokens than `most`, or of more rows where they are empty."""
    count = math.prod(max(size, 1) for size in shape)
    if count > most:
        raise ValueError(
            f"{where} must have at most max_bytes={most} tokens; got {count}; write a larger "
            "max_bytes to read it all the same."
        )


def mask_of(part: Mapping[str, Array]) -> Mask:
    """Return the mask that its parts make."""
    if "bits" not in part:
        where, values = part["keep"].where, part["keep"].open()
        _refuse_other_kinds(where, values)
        if not values.shape:
            raise ValueError(
                f"{where}: keep must have a token axis; got a single value; write such as "
                "[True, False]."
            )
        return Mask(where, values.shape, values)
    where = part["bits"].where
    if "keep" in part:
        raise ValueError(
            f"{part['keep'].where} must stand without bits; got both; write one of the two."
        )
    if "num_tokens" not in part:
        raise ValueError(
            f"{where} must stand beside num_tokens, since the last byte of packed bits holds up to "
            "7 too many; got none; save with kvreclaim.save_masks."
        )
    tokens = integers(part["num_tokens"])
    order = text(part["bitorder"]) if "bitorder" in part else "big"
    if tokens.ndim or int(tokens) < 0 or order not in ("big", "little"):
        raise ValueError(
            f"{where} must have one num_tokens from 0 up and bitorder 'big' or 'little'; got "
            f"{tokens.tolist()!r:.80} and {order!r:.80}; save with kvreclaim.save_masks."
        )
    values, num_tokens = part["bits"].open(), int(tokens)
    if values.dtype != np.uint8 or values.shape[-1:] != (-(-num_tokens // 8),):
        raise ValueError(
            f"{where} must be uint8 of ceil(num_tokens / 8) bytes in its last axis; got "
            f"{values.dtype.name} of shape {values.shape} for {num_tokens} tokens; write it anew."
        )
    shape = (*values.shape[:-1], num_tokens)
    return Mask(where, shape, values, "little" if order == "little" else "big")


def _refuse_other_kinds(where: str, values: Values) -> None:
    """Refuse what is neither boolean nor integer; say what floats look like."""
    if values.dtype.kind in "biu":
        return
    count = math.prod(values.shape)
    array: NDArray[Any] = np.empty(int(values.dtype.kind == "O"), values.dtype)
    if values.dtype.kind == "f" and count:
        array = values.take(min(count, occupancy.PIECE))
        if len(array) < count:
            where = f"{where}, its first {len(array)} values"
        else:
            array = array.reshape(values.shape, order="F" if values.fortran else "C")
    with named(where):
        _checks.as_keep(array)


def text(array: Array) -> str:
    """Return the one string that an array holds."""
    values = array.open()
    if values.shape or values.dtype.kind != "U" or values.dtype.itemsize > _LONGEST_TEXT:
        raise ValueError(
            f"{array.where} must be one string; got {values.dtype.name} of shape {values.shape}; "
            "save with kvreclaim.save_masks."
        )
    if not values.dtype.itemsize:
        return ""
    characters = values.take(1)
    if characters.view(f"{values.dtype.byteorder}u4").max() > sys.maxunicode:
        raise ValueError(
            f"{array.where} must be text; got a number that is no character; write it anew."
        )
    return str(characters[0])


def integers(array: Array, most: int = 1 << 20) -> NDArray[Any]:
    """Return the integers of an array of at most `most` bytes, in this machine's byte order."""
    values = array.open()
    count = math.prod(values.shape)
    if values.dtype.kind not in "iu" and count:
        raise TypeError(
            f"{array.where} must be integers; got {values.dtype.name} of shape {values.shape}; "
            "write whole numbers."
        )
    if max(count, *values.shape, 0) * values.dtype.itemsize > most:
        raise ValueError(
            f"{array.where} must be at most {most} bytes of integers; got {values.dtype.name} of "
            f"shape {values.shape}; write a larger max_bytes to read it all the same."
        )
    if not count:
        return np.zeros(values.shape, values.dtype if values.dtype.kind in "iu" else np.int64)
    numbers = values.take(count)
    numbers = numbers.astype(numbers.dtype.newbyteorder("="))  # a copy: take gives it for a moment
    return numbers.reshape(values.shape, order="F" if values.fortran else "C")


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
