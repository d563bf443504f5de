"""Arrays in .npy files and .npz archives, read through one reused buffer; pickles never.

numpy's own loaders advise, where they refuse, to load the file all the same: hence the header is
read here, as https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html defines it.
"""

from __future__ import annotations

import ast
import functools
import math
import re
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim._formats.arrays import Array, Values, word_of_kept

MAGIC: Final = b"\x93NUMPY"

_HEADER_SIZE_BYTES: Final = {1: 2, 2: 4, 3: 4}  # by version of the format
_LONGEST_HEADER: Final = 10_000
_MOST_AXES: Final = 64  # numpy makes no more
_LARGEST_SIZE: Final = 1 << 63
_PLAIN_TYPE: Final = re.compile(r"[<>|=]?(\?|[biufcSUVOMm]\d{0,9}(\[\w+\])?)")
_MOST_INFLATED: Final = 1032  # bytes that deflate makes of one, at most


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    size: int


def arrays_in_npy(where: str, file: BinaryIO, size: int) -> dict[str, Array]:
    """Return the array of a .npy file of so many bytes; its name is empty."""
    lock = threading.Lock()
    return {"": _array(where, lambda: _Stream(file, lock), size)}


def values_in_npy(where: str, file: BinaryIO, size: int, first: int) -> Values:
    """Return what a .npy file of so many bytes declares, and its values from one of them on."""
    stream = _Stream(file, threading.Lock())
    values = _values(where, stream, size)
    stream.skip(first * values.dtype.itemsize)
    return values


class _Stream:
    """A file, read from a position of its own, whoever else reads it meanwhile."""

    def __init__(self, file: BinaryIO, lock: threading.Lock) -> None:
        self._file, self._lock = file, lock
        self._position = 0

    def skip(self, count: int) -> None:
        """Leave out the next bytes."""
        self._position += count

    def read(self, count: int) -> bytes:
        """Return the next bytes."""
        with self._lock:
            self._file.seek(self._position)
            some = self._file.read(count)
        self._position += len(some)
        return some

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with the next bytes, and return how many these are."""
        with self._lock:
            self._file.seek(self._position)
            count = int(self._file.readinto(buffer))  # type: ignore[attr-defined]  # each of ours has it
        self._position += count
        return count


def arrays_in_npz(where: str, archive: zipfile.ZipFile, size: int) -> dict[str, Array]:
    """Return the arrays of an archive of so many bytes by name."""
    arrays: dict[str, Array] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename:
            continue
        if name in arrays:
            raise ValueError(
                f"{where} must hold each name once; got the duplicate {name!r}, and no telling "
                "which is meant; write it anew."
            )
        member = f"{where}, array {name!r}"
        open_ = functools.partial(_open_member, member, archive, info, size - info.header_offset)
        array = _array(member, open_, info.file_size)
        arrays[name] = array._replace(kept_as=word_of_kept(name))
    if not arrays:
        raise ValueError(
            f"{where} must hold a mask; got an archive that is empty, or has no arrays "
            "(members NAME.npy); write it anew."
        )
    return arrays


def _open_member(
    where: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, present: int
) -> IO[bytes]:
    if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(
            f"{where} must be stored or deflated, as numpy.savez writes it; got another "
            "compression, or encryption; write it anew."
        )
    inflated = 1 if info.compress_type == zipfile.ZIP_STORED else _MOST_INFLATED
    if (
        info.header_offset < 0
        or info.compress_size > present
        or info.file_size > info.compress_size * inflated
    ):
        raise ValueError(
            f"{where} must have the size that its archive declares; got {info.file_size} bytes out "
            f"of {info.compress_size}, in a file that has {present} from there on; write it anew."
        )
    try:
        return archive.open(info)
    except (ValueError, RuntimeError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{where} must begin as its archive says; got one that is damaged "
            f"({type(error).__name__}); write it anew."
        ) from None


def _array(where: str, open_: Callable[[], IO[bytes] | _Stream], size: int) -> Array:
    return Array(where, lambda: _values(where, open_(), size))


@contextmanager
def _damage(where: str) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise ValueError(
            f"{where} must be whole; got one that is damaged ({error}); write it anew."
        ) from None


def _values(where: str, stream: IO[bytes] | _Stream, size: int) -> Values:
    with _damage(where):
        shape, dtype, fortran, start = _header(where, stream)
    declared = math.prod(shape) * dtype.itemsize
    if declared != size - start:
        raise ValueError(
            f"{where} must hold the {declared} bytes that its header declares ({dtype.name} of "
            f"shape {shape}); got {size - start}; write it anew."
        )
    buffer = np.empty(0, dtype)

    def take(count: int) -> NDArray[Any]:
        nonlocal buffer
        if len(buffer) < count:
            buffer = np.empty(count, dtype)
        some = buffer[:count]
        left = some.view(np.uint8).data
        while len(left):
            with _damage(where):
                got = stream.readinto(left)  # type: ignore[union-attr]  # each of ours has it
            if not got:
                raise ValueError(
                    f"{where} must hold the {declared} bytes that its header declares; got "
                    f"{len(left)} fewer; it was cut while being read: write it anew."
                )
            left = left[got:]
        return some

    return Values(shape, dtype, take, fortran)


def _header(where: str, stream: IO[bytes] | _Stream) -> _Header:
    start = stream.read(len(MAGIC) + 2)
    width = _HEADER_SIZE_BYTES.get(start[-2] if len(start) == len(MAGIC) + 2 else 0)
    if width is None or not start.startswith(MAGIC):
        raise ValueError(f"{where} must be a .npy array; got {start!r}; save it with numpy.save.")
    length = int.from_bytes(stream.read(width), "little")
    line = stream.read(length) if length <= _LONGEST_HEADER else b""
    try:
        header = ast.literal_eval(line.decode("latin1").strip())
        shape, descr, fortran = header["shape"], header["descr"], header["fortran_order"]
        plain = isinstance(descr, str) and _PLAIN_TYPE.fullmatch(descr)
        dtype = np.dtype(descr if plain else "V")
    except (ValueError, SyntaxError, TypeError, LookupError, MemoryError, RecursionError):
        raise ValueError(
            f"{where} must have a .npy header that numpy.save writes; got the header "
            f"{line[:80]!r}; write it anew."
        ) from None
    if not plain:
        raise ValueError(
            f"{where} must be an array of booleans or 0/1; got one of type {descr!r:.80}; save "
            "each field as an array of its own."
        )
    if dtype.hasobject:
        raise ValueError(
            f"{where} must be an array of booleans or 0/1; got an object array, which is a pickle "
            "and never loaded; save rows of different lengths as a padded mask and its lengths, or "
            "as a flat mask and its offsets (kvreclaim.masks.from_ragged)."
        )
    if (
        not isinstance(shape, tuple)
        or len(shape) > _MOST_AXES
        or not all(type(size) is int and 0 <= size < _LARGEST_SIZE for size in shape)
        or type(fortran) is not bool
    ):
        raise ValueError(
            f"{where} must have a shape of sizes from 0 up, and fortran_order True or False; got "
            f"{shape!r:.80} and {fortran!r:.80}; write it anew."
        )
    return _Header(shape, dtype, fortran, len(start) + width + length)
