"""Open what a path names, once for all its masks; its first bytes tell what it holds."""

from __future__ import annotations

import io
import os
import stat
import sys
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

from kvreclaim._formats import npy, parquet, tensors, zarr
from kvreclaim._formats import text as _text
from kvreclaim._formats.arrays import Array
from kvreclaim._formats.grouping import OpenMasks, masks_in

_File: TypeAlias = str | os.PathLike[str] | BinaryIO
Source: TypeAlias = _File | OpenMasks
"""A path, ``"-"`` for standard input, a binary file that can seek, or what `open_masks` yields."""

_ZIP: Final = (b"PK\x03\x04", b"PK\x05\x06")
_PICKLE: Final = b"\x80"
_PARQUET: Final = b"PAR1"
_SOME: Final = 512  # bytes that tell the formats apart
_JSON_LINES: Final = (".jsonl", ".ndjson")
_ZARR: Final = ("zarr.json", ".zarray", ".zgroup")
_READ: Final = "a .npy, .npz, .json, .jsonl, .csv, .txt, .safetensors, .pt, .parquet or .zarr"


@contextmanager
def masks_of(source: Source, most: int) -> Iterator[OpenMasks]:
    """Open a file and yield its masks, not read yet; those of an open one are yielded as they are.

    What cannot be read in a stream is read whole, if it is at most `most` bytes.
    """
    if isinstance(source, OpenMasks):
        if source.closed:
            raise ValueError(
                f"path must be a file that is open; got the masks of {source.where}, which is "
                "closed; write the call inside of its with block."
            )
        yield source
        return
    with _arrays_of(source, most) as (where, arrays):
        masks = OpenMasks(where, masks_in(arrays))
        try:
            yield masks
        finally:
            masks.closed = True


@contextmanager
def _arrays_of(source: _File, most: int) -> Iterator[tuple[str, dict[str, Array]]]:
    """Open a file and yield what messages call it, and its arrays by the names of our format."""
    if _is_folder(source):
        where = os.fspath(source)  # type: ignore[arg-type]  # a folder has a path
        yield where, _in_folder(where, most)
        return
    with _opened(source, most) as (where, file):
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        first = file.read(_SOME)
        file.seek(0)
        if first[:4] not in _ZIP:
            yield where, _arrays(where, file, first, size, most)
            return
        try:
            archive = zipfile.ZipFile(file)
        except Exception as error:  # noqa: BLE001  # what is wrong at its end raises anything
            raise ValueError(
                f"{where} must be a whole .npz archive, or .pt; got one that is damaged ({error}); "
                "write it anew."
            ) from None
        with archive:
            yield where, _in_zip(where, file, archive, size, most)


def standard_input(most: int) -> BinaryIO:
    """Return what stands on standard input, at most `most` bytes, as a file that can seek."""
    if sys.stdin is None:
        raise ValueError(
            "path must be a file where there is no standard input; got '-'; write one."
        )
    data = sys.stdin.buffer.read(most + 1)
    _check_present("standard input", len(data), most)
    return io.BytesIO(data)


@contextmanager
def _opened(source: _File, most: int) -> Iterator[tuple[str, BinaryIO]]:
    if isinstance(source, str) and source == "-":
        yield "standard input", standard_input(most)
        return
    if not isinstance(source, str | os.PathLike):
        if isinstance(source, AbstractContextManager) and not hasattr(source, "read"):
            raise TypeError(
                "path must be what open_masks yields; got open_masks itself; write with "
                "open_masks(...) as masks, and masks for the path."
            )
        if not _is_open_file(source):
            raise TypeError(
                "path must be a path, '-' for standard input, or a binary file that is open and "
                f"can seek; got a {type(source).__name__}; write the path."
            )
        name = getattr(source, "name", None)
        yield name if isinstance(name, str) else "the file", source
        return
    where = os.fspath(source)
    if not where or "\0" in where:
        raise ValueError(f"path must name a file; got {where!r}; write such as 'masks.npz'.")
    with open(where, "rb", opener=_open) as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise ValueError(
                f"{where} must be a file; got a pipe or a device; write its bytes to a file, or to "
                "standard input, and '-' as the path."
            )
        yield where, file
        after = os.fstat(file.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise ValueError(
                f"{where} must stay as it is while it is read; got one that changed; read it again."
            )


def _is_open_file(source: Any) -> bool:  # noqa: ANN401  # whatever is given for a path
    try:
        return not source.closed and source.seekable() and isinstance(source.read(0), bytes)
    except (AttributeError, OSError, TypeError, ValueError):
        return False


def _open(path: str, flags: int) -> int:
    """Open without waiting for a writer, as a pipe would."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _is_folder(source: _File) -> bool:
    if not isinstance(source, str | os.PathLike):
        return False
    return os.fspath(source) != "" and Path(source).is_dir()


def _in_folder(where: str, most: int) -> dict[str, Array]:
    if not any(Path(where, name).is_file() for name in _ZARR):
        raise ValueError(f"{where} must be {_READ}; got a folder; write the path of a file.")
    return zarr.arrays_in_zarr(where, most)


def _in_zip(
    where: str, file: BinaryIO, archive: zipfile.ZipFile, size: int, most: int
) -> dict[str, Array]:
    if any(name.endswith("data.pkl") for name in archive.namelist()):
        _check_present(where, size, most)
        return tensors.arrays_in_torch(where, file, archive, size, most)
    return npy.arrays_in_npz(where, archive, size)


def _arrays(where: str, file: BinaryIO, first: bytes, size: int, most: int) -> dict[str, Array]:
    if first.startswith(npy.MAGIC):
        return npy.arrays_in_npy(where, file, size)
    text = first.removeprefix(b"\xef\xbb\xbf").lstrip()
    if where.endswith(".safetensors") or (first[8:9] == b"{" and first[4:8] == bytes(4)):
        read = tensors.arrays_in_safetensors
    elif first.startswith(_PARQUET):
        _check_present(where, size, most)
        return parquet.arrays_in_parquet(where, file, most)
    elif text[:1] in (b"[", b"{"):
        read = _text.arrays_in_json
        if where.endswith(_JSON_LINES):
            read = _text.arrays_in_json_lines
    elif text[:1] in (b"0", b"1"):
        read = _text.arrays_in_text
    elif first.startswith(_PICKLE):
        raise ValueError(
            f"{where} must be {_READ}; got a pickle, which is never loaded; save the mask with "
            "kvreclaim.save_masks."
        )
    else:
        found = f"one that begins with {first[:8]!r}" if first else "an empty one"
        raise ValueError(
            f"{where} must be {_READ}; got {found}; save the mask with numpy.save or "
            "kvreclaim.save_masks."
        )
    _check_present(where, size, most)
    return read(where, file.read())


def _check_present(where: str, size: int, most: int) -> None:
    if size > most:
        raise ValueError(
            f"{where} must be at most max_bytes={most} bytes long, since it is read whole; got "
            f"{size}; write a larger max_bytes, or save it with kvreclaim.save_masks."
        )
