"""An array in a file, not read yet: what it declares is checked before anything is allocated.

Every format yields its arrays in this form, by the names of our own .npz: ``keep`` or ``bits``,
``axes``, ``lengths`` .... Names, limits and checks are then written once, for all of them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks, occupancy

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
    kept_as: str = ""  # the word of the file for it, where that says that what is listed is kept


class Mask(NamedTuple):
    """A keep-mask of an open file, not read yet: booleans, 0/1 integers or packed bits."""

    where: str
    shape: tuple[int, ...]
    values: Values
    packed: Literal["big", "little"] | None = None
    kept_as: str = ""

    @property
    def num_rows(self) -> int:
        """How many rows of tokens it has."""
        return math.prod(self.shape[:-1])

    def comes_in_rows(self, axes: str) -> bool:
        """Return whether its rows of tokens can be taken one after another."""
        in_order = not (self.values.fortran and len(self.shape) > 1)
        return self.values.streams and in_order and axes[-1] == "t"


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


def word_of_kept(name: str) -> str:
    """Return what an array is called, where that says that True is kept, as `save_masks` writes."""
    word = last_of(name)
    return word if word in ("keep", "bits") else ""


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
        return Mask(where, values.shape, values, kept_as=part["keep"].kept_as)
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
    packed: Literal["big", "little"] = "little" if order == "little" else "big"
    return Mask(where, shape, values, packed, part["bits"].kept_as)


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
