"""Write arrays to a file, whole or not at all; the same arrays give the same bytes."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim._formats.libraries import imported
from kvreclaim._formats.tensors import NOTE

_LARGE: Final = 1 << 31  # bytes from which on a member of an archive needs 64 bits for its size
_SHORT: Final = ("num_tokens", "lengths", "offset")


def write_whole(path: str, write: Callable[[BinaryIO], None]) -> None:
    """Write beside the target, then take its place; where the path is a link, what it links to."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise ValueError(
            f"path must be a file; got {path}, which is something else; write the path of a file."
        )
    partial = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")
    try:
        with partial.open("xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        partial.unlink(missing_ok=True)


def write_npz(file: BinaryIO, arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, str]) -> None:
    """Write arrays and texts as the members of an archive."""
    members = {**arrays, **{name: np.array(text) for name, text in texts.items()}}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in members.items():
            large = array.nbytes >= _LARGE
            with archive.open(f"{name}.npy", "w", force_zip64=large) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def write_safetensors(
    file: BinaryIO, arrays: Mapping[str, NDArray[Any]], texts: Mapping[str, str]
) -> None:
    """Write arrays as tensors, and texts and what is short in one note in the header.

    The library writes notes in an order that changes from run to run: hence one.
    """
    library = imported("a .safetensors file", "safetensors.numpy", "safetensors")
    notes = {
        name: array.tolist()
        for name, array in arrays.items()
        if name.rpartition("/")[2] in _SHORT and array.size
    }
    tensors = {name: array for name, array in arrays.items() if name not in notes}
    file.write(library.save(tensors, {NOTE: json.dumps({**notes, **texts}, sort_keys=True)}))
