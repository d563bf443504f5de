"""Masks in .safetensors and in .pt: tensors by name."""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final

import numpy as np

from kvreclaim import _checks
from kvreclaim._formats.arrays import (
    PARTS,
    Array,
    Values,
    beside,
    check_size,
    known,
    last_of,
    named,
    word_of_kept,
)
from kvreclaim._formats.libraries import NUMBERS, imported, note_as_array, refusals

NOTE: Final = "kvreclaim"
"""The key in the header of a safetensors file under which `save_masks` writes what is no tensor."""

_SAFE_TORCH: Final = (2, 10)
"""Older ones can be led around weights_only: CVE-2025-32434, CVE-2026-24747."""
_SAFETENSORS_TYPES: Final = {"BOOL": "?", "U8": "u1", "I8": "i1"} | {
    f"{letter}{8 * size}": f"<{letter.lower()}{size}" for letter in "UIF" for size in (2, 4, 8)
}


def arrays_in_safetensors(where: str, data: bytes) -> dict[str, Array]:
    """Return the tensors of a safetensors file, and what its header says of them."""
    library = imported(where, "safetensors", "safetensors")
    with refusals(where, "a complete safetensors file"):
        found = dict(library.deserialize(data))
        start = int.from_bytes(data[:8], "little") + 8
        if start + sum(len(tensor["data"]) for tensor in found.values()) != len(data):
            raise ValueError  # pragma: no cover  # not every release of the library looks
        header = json.loads(data[8:start])
        notes = dict(header.pop("__metadata__", {}))
        # The library lists them in another order each time.
        tensors = {
            name: found[name] for name in sorted(found, key=functools.partial(_place, header))
        }
        notes |= json.loads(notes.pop(NOTE, "{}"))
    arrays = {}
    for name, tensor in tensors.items():
        here = f"{where}, array {name!r}"
        open_ = functools.partial(_safetensor, here, tensor)
        arrays[name] = Array(here, open_, kept_as=word_of_kept(name))
    plain = [name for name in tensors if last_of(name) not in PARTS]
    _, used = beside(plain, notes | tensors)
    names = {*tensors}
    for name, note in notes.items():
        part = last_of(name)
        prefix = name.removesuffix(part)
        of_mask = {f"{prefix}keep", f"{prefix}bits", prefix.removesuffix("/")} & names
        if name not in tensors and ((part in PARTS and of_mask) or name in used):
            arrays[name] = note_as_array(f"{where}, {name!r}", part, note)
    return arrays


def _place(header: Mapping[str, Any], name: str) -> tuple[list[int], str]:
    """Return where a tensor lies in its file, and its name, which tells empty ones apart."""
    return header[name]["data_offsets"], name


def _safetensor(where: str, tensor: Mapping[str, Any]) -> Values:
    if tensor["dtype"] not in _SAFETENSORS_TYPES:
        raise TypeError(
            f"{where} must be booleans or integers; got {tensor['dtype']}; write keep == 1 if "
            "these are 0.0 and 1.0."
        )
    array = np.frombuffer(tensor["data"], _SAFETENSORS_TYPES[tensor["dtype"]])
    return known(where, array.reshape(tensor["shape"])).open()


def arrays_in_torch(
    where: str, file: BinaryIO, archive: zipfile.ZipFile, size: int, most: int
) -> dict[str, Array]:
    """Return the tensors of a file of `torch.save`: one, or those in dicts and lists, by name."""
    members = archive.infolist()
    declared = sum(info.file_size for info in members)
    if declared > size or any(info.compress_type != zipfile.ZIP_STORED for info in members):
        raise ValueError(
            f"{where} must be as torch.save writes it, not compressed; got {declared} bytes in "
            f"{size}; write it anew."
        )
    torch = imported(where, "torch", "torch")
    release = torch.__version__
    if tuple(map(int, release.split(".")[:2])) < _SAFE_TORCH:
        raise ImportError(
            f"{where} must be read by torch 2.10 or newer, whose weights_only runs no pickle; got "
            f"torch {release}; install a newer one, or write a .safetensors or .npz file."
        )
    file.seek(0)
    if file.read(4) != b"PK\x03\x04":  # what only zipfile takes for a zip, torch may unpickle
        raise ValueError(
            f"{where} must begin as torch.save writes it, since objects are pickles and never "
            "loaded; got an archive behind something else; write it anew."
        )
    file.seek(0)
    with refusals(where, "tensors alone, since other objects are pickles and never loaded"):
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    arrays = {}
    for name, leaf in _leaves("", loaded):
        said = last_of(name) in PARTS and leaf is not None
        if said or isinstance(leaf, torch.Tensor):
            here = f"{where}, array {name!r}" if name else where
            if name in arrays:
                raise ValueError(
                    f"{where} must hold each name once; got several tensors that are called "
                    f"{name!r}, such as a[1] and a['1'], and no telling which is meant; write it "
                    "anew."
                )
            open_ = functools.partial(_torch_values, here, leaf, most)
            arrays[name] = Array(here, open_, kept_as=word_of_kept(name))
    if not arrays:
        raise ValueError(
            f"{where} must hold a tensor; got {_checks.shown(loaded)}; write torch.save of one, or "
            "of a dict of them."
        )
    return arrays


def _leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    part = last_of(name)
    if part == "meta":
        with refusals(name, "what JSON can hold"):
            yield name, json.dumps(value)
    elif part in NUMBERS and isinstance(value, list | tuple):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name}/{key}" if name else str(key), item)
    elif isinstance(value, list | tuple) and not all(isinstance(item, int) for item in value):
        yield from _leaves(name, dict(enumerate(value)))
    else:
        yield name, value


def _torch_values(where: str, leaf: Any, most: int) -> Values:  # noqa: ANN401  # a tensor, or less
    if isinstance(leaf, str | int | list | tuple):
        return known(where, leaf).open()
    with refusals(where, "a tensor of booleans or integers, in rows of one length"):
        shape = tuple(leaf.shape)
    check_size(where, shape, most)
    with named(where):
        array = _checks.as_array("keep", leaf, "an array of True and False, or of integers")
    return known(where, array).open()
