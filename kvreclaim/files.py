"""Load and save masks, safely.

A file is refused before memory is allocated where what it declares does not fit what it holds.
Pickles are never loaded.
"""

from __future__ import annotations

import ast
import functools
import io
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks

MAX_BYTES: Final = 4 << 30
"""Unpacked bytes, one a token, that `load_masks` reads unless told otherwise."""

_NPY_MAGIC: Final = b"\x93NUMPY"
_ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
_MOST_HEADER_BYTES: Final = 10_000
_PARTS: Final = ("keep", "bits", "num_tokens", "bitorder", "axes", "lengths", "offset", "meta")


class SavedMasks(NamedTuple):
    """A keep-mask from a file, with what the file says of it.

    Parameters
    ----------
    keep
        Boolean array, True where a token stays.
    lengths
        Tokens of each sequence; None: the full axis.
    axes
        A letter for each axis of `keep`; None where neither the file nor the caller names them.
    meta
        Whatever the writer noted.
    offset
        Slots of the first block before token 0.
    """

    keep: NDArray[np.bool_]
    lengths: NDArray[np.int64] | None
    axes: str | None
    meta: dict[str, Any]
    offset: NDArray[np.int64] | int = 0


def load_masks(
    path: str | os.PathLike[str],
    *,
    array: str | None = None,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    polarity: Literal["keep", "evict"] = "keep",
    max_bytes: int = MAX_BYTES,
) -> SavedMasks:
    """Return a mask from a .npy or .npz file, checked.

    Parameters
    ----------
    path
        The file; its first bytes say what it is.
    array
        The name of the mask, in a file that holds several; `mask_names` lists them.
    axes, lengths
        What the file does not say itself.
    polarity
        What True means in the file: ``"keep"``, or ``"evict"``.
    max_bytes
        Refuse a mask of more tokens than this.

    Raises
    ------
    OSError
        Where the file cannot be opened.
    ValueError, TypeError
        For a file that is damaged, holds no such mask, or holds pickles; nothing is read by halves.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "mask.npy")
    ...     np.save(path, np.array([[1, 0, 1]], np.uint8))
    ...     load_masks(path, axes="ht").keep
    array([[ True, False,  True]])
    """
    most = _checks.as_count("max_bytes", max_bytes)
    sense = _checks.as_choice("polarity", polarity, ("keep", "evict"))
    with _arrays_of(path) as arrays:
        masks = _masks_in(arrays)
        name = _choose(os.fspath(path), array, masks)
        saved = _read_mask(arrays, name, masks[name], most)
    keep = ~saved.keep if sense == "evict" else saved.keep
    if axes is not None and saved.axes is not None and axes != saved.axes:
        raise ValueError(
            f"axes must be those that {os.fspath(path)} names itself; got {axes!r} for "
            f"{saved.axes!r}; leave axes out."
        )
    if lengths is not None:
        saved = saved._replace(lengths=np.asarray(lengths, np.int64))
    return saved._replace(keep=keep, axes=saved.axes or axes)


def mask_names(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the names of the masks in a file; a file of one unnamed mask has the name ``""``."""
    with _arrays_of(path) as arrays:
        return tuple(_masks_in(arrays))


def save_masks(
    path: str | os.PathLike[str],
    keep: ArrayLike | Mapping[str, SavedMasks],
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    meta: Mapping[str, Any] | None = None,
    packed: bool = True,
) -> None:
    """Write a mask, or several by name, as .npz; whole or not at all.

    Parameters
    ----------
    path
        The file to write; its suffix should be .npz.
    keep
        A keep-mask, or `SavedMasks` by name.
    axes
        A letter for each axis of the mask; bits are packed along the last, so it ends in ``t``.
    lengths
        Tokens of each sequence.
    meta
        Anything that JSON can hold.
    packed
        True: eight tokens a byte; False: one.

    Raises
    ------
    TypeError, ValueError
        For what is no keep-mask, and axes that do not fit it or do not end in ``t``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "masks.npz")
    ...     save_masks(path, [[1, 0, 1]], axes="ht", meta={"policy": "mine"})
    ...     load_masks(path).meta
    {'policy': 'mine'}
    """
    if isinstance(keep, Mapping):
        masks = {f"{name}/": saved for name, saved in keep.items()}
    else:
        array = _checks.as_keep(keep)
        given = None if lengths is None else np.asarray(lengths, np.int64)
        masks = {"": SavedMasks(array, given, axes, dict(meta or {}))}
    members: dict[str, NDArray[Any]] = {}
    for prefix, saved in masks.items():
        array = _checks.as_keep(saved.keep)
        letters = _checks.as_axes_tokens_last(saved.axes, array.shape, "lh")
        if packed:
            members[f"{prefix}bits"] = np.ascontiguousarray(np.packbits(array, axis=-1))
            members[f"{prefix}num_tokens"] = np.array(array.shape[-1], np.int64)
            members[f"{prefix}bitorder"] = np.array("big")
        else:
            members[f"{prefix}keep"] = np.ascontiguousarray(array)
        members[f"{prefix}axes"] = np.array(letters)
        if saved.lengths is not None:
            members[f"{prefix}lengths"] = np.asarray(saved.lengths, np.int64)
        if np.any(saved.offset):
            members[f"{prefix}offset"] = np.asarray(saved.offset, np.int64)
        if saved.meta:
            text = json.dumps(saved.meta, sort_keys=True, allow_nan=False)
            members[f"{prefix}meta"] = np.array(text)
    _write_whole(Path(path), members)


def _write_whole(path: Path, members: Mapping[str, NDArray[Any]]) -> None:
    """Write beside the target, then take its place; the same masks give the same bytes."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(partial, "x", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, array in members.items():
                buffer = io.BytesIO()
                np.lib.format.write_array(buffer, array, allow_pickle=False)
                member = zipfile.ZipInfo(f"{name}.npy")
                archive.writestr(member, buffer.getvalue(), zipfile.ZIP_DEFLATED)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


class _Array(NamedTuple):
    """An array in a file that is open, not read yet."""

    where: str  # for messages
    open: Callable[[], IO[bytes]]
    size: int  # bytes that the file gives it, header included


@contextmanager
def _arrays_of(path: str | os.PathLike[str]) -> Iterator[dict[str, _Array]]:
    """Open a file and yield its arrays by name; a .npy holds one, named ``""``."""
    where = os.fspath(path)
    with Path(path).open("rb") as file:
        magic = file.read(len(_NPY_MAGIC))
        if magic == _NPY_MAGIC:
            yield {"": _Array(where, lambda: _rewound(file), os.fstat(file.fileno()).st_size)}
        elif magic[:4] in _ZIP_MAGIC:
            try:
                with zipfile.ZipFile(file) as archive:
                    yield _members(where, archive)
            except (zipfile.BadZipFile, zlib.error, EOFError) as error:
                raise ValueError(
                    f"{where} must be a whole .npz archive; got one that is damaged ({error}); "
                    "write it anew."
                ) from None
        else:
            raise ValueError(
                f"{where} must be a .npy or .npz file; got one that begins with {magic!r}; save "
                "the mask with numpy.save or kvreclaim.save_masks."
            )


def _rewound(file: io.BufferedReader) -> io.BufferedReader:
    file.seek(0)
    return file


def _members(where: str, archive: zipfile.ZipFile) -> dict[str, _Array]:
    arrays: dict[str, _Array] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name in arrays:
            raise ValueError(
                f"{where} must hold each name once; got {info.filename!r} twice, and no telling "
                "which is meant; write it anew."
            )
        arrays[name] = _Array(
            f"{where}, array {name!r}", functools.partial(archive.open, info), info.file_size
        )
    if not arrays:
        raise ValueError(f"{where} must hold a mask; got an archive of no arrays; write it anew.")
    return arrays


def _masks_in(arrays: Mapping[str, _Array]) -> dict[str, str | None]:
    """Return the masks by name, each with the prefix of its parts, or None for a plain array."""
    own = {
        name.rpartition("/")[0] for name in arrays if name.rpartition("/")[2] in ("keep", "bits")
    }
    masks: dict[str, str | None] = {}
    for name in arrays:
        owner, _, part = name.rpartition("/")
        if owner in own and part in _PARTS:
            masks[owner] = f"{owner}/" if owner else ""
        else:
            masks[name] = None
    return masks


def _choose(where: str, array: str | None, masks: Mapping[str, str | None]) -> str:
    named = ", ".join(repr(name) for name in masks)
    if array is None:
        if len(masks) == 1:
            return next(iter(masks))
        raise ValueError(
            f"array must name one of the {len(masks)} masks in {where} ({named}); got none; write "
            f"array={next(iter(masks))!r}."
        )
    if array not in masks:
        raise ValueError(
            f"array must name a mask in {where} ({named}); got {array!r}; write one of these."
        )
    return array


def _read_mask(
    arrays: Mapping[str, _Array], name: str, prefix: str | None, most: int
) -> SavedMasks:
    if prefix is None:
        return SavedMasks(_as_mask(_read(arrays[name], most), arrays[name]), None, None, {})
    part = {key: arrays[prefix + key] for key in _PARTS if prefix + key in arrays}
    if "keep" in part and "bits" in part:
        raise ValueError(
            f"{part['keep'].where} must stand without bits; got both; write one of the two."
        )
    if "keep" in part:
        keep = _as_mask(_read(part["keep"], most), part["keep"])
    else:
        keep = _unpacked(part, most)
    meta = json.loads(_text(part["meta"])) if "meta" in part else {}
    return SavedMasks(
        keep=keep,
        lengths=_read(part["lengths"], most) if "lengths" in part else None,
        axes=_text(part["axes"]) if "axes" in part else None,
        meta=meta,
        offset=_read(part["offset"], most) if "offset" in part else 0,
    )


def _as_mask(array: NDArray[Any], source: _Array) -> NDArray[np.bool_]:
    try:
        return _checks.as_keep(array)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{source.where}: {error}") from None


def _unpacked(part: Mapping[str, _Array], most: int) -> NDArray[np.bool_]:
    where = part["bits"].where
    if "num_tokens" not in part:
        raise ValueError(
            f"{where} must stand beside num_tokens, since the last byte holds up to 7 bits too "
            "many; got none; save with kvreclaim.save_masks."
        )
    order = _text(part["bitorder"]) if "bitorder" in part else "big"
    num_tokens = _read(part["num_tokens"], most)
    bits = _read(part["bits"], most // 8 + 1)
    if num_tokens.ndim or num_tokens.dtype.kind not in "iu" or order not in ("big", "little"):
        raise ValueError(
            f"{where} must have an integer num_tokens and bitorder 'big' or 'little'; got "
            f"{num_tokens!r} and {order!r}; save with kvreclaim.save_masks."
        )
    tokens = int(num_tokens)
    if bits.dtype != np.uint8 or not bits.ndim or bits.shape[-1] != -(-tokens // 8) or tokens < 0:
        raise ValueError(
            f"{where} must be uint8 of ceil(num_tokens / 8) bytes in its last axis; got "
            f"{bits.dtype.name} of shape {bits.shape} for {tokens} tokens; write it anew."
        )
    total = math.prod(bits.shape[:-1]) * tokens
    if total > most:
        raise ValueError(_too_large(where, total, most))
    bitorder: Literal["big", "little"] = "little" if order == "little" else "big"
    return np.unpackbits(bits, axis=-1, count=tokens, bitorder=bitorder).view(np.bool_)


def _text(array: _Array) -> str:
    value = _read(array, 1 << 20)
    if value.ndim or value.dtype.kind != "U":
        raise ValueError(
            f"{array.where} must be one string; got {value.dtype.name} of shape {value.shape}; "
            "save with kvreclaim.save_masks."
        )
    return str(value)


def _read(array: _Array, most: int) -> NDArray[Any]:
    """Read an array whose declared size has been checked against what is there."""
    with array.open() as stream:
        shape, dtype, fortran, start = _npy_header(stream, array.where)
        count = math.prod(shape)
        if count > most:
            raise ValueError(_too_large(array.where, count, most))
        if count * dtype.itemsize != array.size - start:
            raise ValueError(
                f"{array.where} must hold the {count * dtype.itemsize} bytes that its header "
                f"declares ({dtype.name} of shape {shape}); got {array.size - start}; write it "
                "anew."
            )
        data = np.empty(count, dtype)
        left = data.view(np.uint8).data
        while len(left) and (got := stream.readinto(left)):  # type: ignore[attr-defined]  # both have it
            left = left[got:]
        if len(left):
            raise ValueError(
                f"{array.where} must hold {data.nbytes} bytes; got {data.nbytes - len(left)}; "
                "write it anew."
            )
    return data.reshape(shape, order="F" if fortran else "C")


def _too_large(where: str, count: int, most: int) -> str:
    return (
        f"{where} must have at most max_bytes={most} tokens; got {count}; write a larger max_bytes "
        "to read it all the same."
    )


def _npy_header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], np.dtype[Any], bool, int]:
    """Return shape, dtype, Fortran order and length of a .npy header."""
    start = stream.read(len(_NPY_MAGIC) + 2)
    width = {1: 2, 2: 4, 3: 4}.get(
        start[len(_NPY_MAGIC)] if len(start) > len(_NPY_MAGIC) + 1 else 0
    )
    if width is None or not start.startswith(_NPY_MAGIC):
        raise ValueError(f"{where} must be a .npy array; got {start!r}; save it with numpy.save.")
    length = int.from_bytes(stream.read(width), "little")
    text = stream.read(length) if length <= _MOST_HEADER_BYTES else b""
    try:
        header = ast.literal_eval(text.decode("latin1").strip())
        shape, descr, fortran = header["shape"], header["descr"], header["fortran_order"]
        dtype = np.dtype(descr)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        raise ValueError(
            f"{where} must have a .npy header that numpy.save writes; got {text[:80]!r}; write it "
            "anew."
        ) from None
    if dtype.hasobject:
        raise ValueError(
            f"{where} must be an array of booleans or 0/1; got Python objects, which are pickles "
            "and are never loaded; save rows of different lengths as one boolean array and their "
            "lengths."
        )
    sizes = shape if isinstance(shape, tuple) else (None,)
    if not all(type(size) is int and size >= 0 for size in sizes) or type(fortran) is not bool:
        raise ValueError(
            f"{where} must have a shape of sizes from 0 up; got {shape!r}; write it anew."
        )
    return shape, dtype, fortran, len(start) + width + length
