"""Masks in the formats of other libraries, each imported by the function that reads with it.

A file is read before it is decoded, never mapped: a mapped file that is cut short kills the
process. What a library says of a file that it refuses is replaced, since some advise to load it
all the same.
"""

from __future__ import annotations

import functools
import importlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim._formats.arrays import (
    BESIDE,
    PARTS,
    Array,
    Values,
    beside,
    check_size,
    integers,
    known,
    last_of,
    made,
    named,
)

NOTE: Final = "kvreclaim"
"""The key in the header of a safetensors file under which `save_masks` writes what is no tensor."""

_SAFE_TORCH: Final = (2, 10)
"""Older ones can be led around weights_only: CVE-2025-32434, CVE-2026-24747."""
_TEXTS: Final = ("axes", "bitorder", "meta")
_NUMBERS: Final = ("lengths", "offset")
_SAFETENSORS_TYPES: Final = {"BOOL": "?", "U8": "u1", "I8": "i1"} | {
    f"{letter}{8 * size}": f"<{letter.lower()}{size}" for letter in "UIF" for size in (2, 4, 8)
}
_LIST_OF_BOOLEANS: Final = re.compile(r"\w*list<\w+: bool")


@contextmanager
def _refusals(where: str, rule: str) -> Iterator[None]:
    """Say ourselves what a library refuses, whatever it raises."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # a library raises anything
        raise ValueError(
            f"{where} must be {rule}; got other data ({type(error).__name__} on reading it); "
            "write it anew."
        ) from None


def imported(where: str, module: str, extra: str) -> Any:  # noqa: ANN401  # a module
    """Return an optional package, or say how to get it."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  # a broken install raises anything
        raise ValueError(
            f"{where} must be handled by the package {module.partition('.')[0]}; got "
            f"{type(error).__name__} on importing it; write pip install 'kvreclaim[{extra}]'."
        ) from None


def arrays_in_safetensors(where: str, data: bytes) -> dict[str, Array]:
    """Return the tensors of a safetensors file, and what its header says of them."""
    library = imported(where, "safetensors", "safetensors")
    with _refusals(where, "a complete safetensors file"):
        tensors = dict(library.deserialize(data))
        start = int.from_bytes(data[:8], "little") + 8
        if start + sum(len(tensor["data"]) for tensor in tensors.values()) != len(data):
            raise ValueError  # pragma: no cover  # not every release of the library looks
        notes = dict(json.loads(data[8:start]).get("__metadata__", {}))
        notes |= json.loads(notes.pop(NOTE, "{}"))
    arrays = {}
    for name, tensor in tensors.items():
        here = f"{where}, array {name!r}"
        arrays[name] = Array(here, functools.partial(_safetensor, here, tensor))
    plain = [name for name in tensors if last_of(name) not in PARTS]
    _, used = beside(plain, notes | tensors)
    for name, note in notes.items():
        part = last_of(name)
        prefix = name.removesuffix(part)
        of_mask = {f"{prefix}keep", f"{prefix}bits", prefix.removesuffix("/")} & {*tensors}
        if name not in tensors and ((part in PARTS and of_mask) or name in used):
            arrays[name] = _note(f"{where}, {name!r}", part, note)
    return arrays


def _safetensor(where: str, tensor: Mapping[str, Any]) -> Values:
    if tensor["dtype"] not in _SAFETENSORS_TYPES:
        raise TypeError(
            f"{where} must be booleans or integers; got {tensor['dtype']}; write keep == 1 if "
            "these are 0.0 and 1.0."
        )
    array = np.frombuffer(tensor["data"], _SAFETENSORS_TYPES[tensor["dtype"]])
    return known(where, array.reshape(tensor["shape"])).open()


def _note(where: str, part: str, note: object) -> Array:
    """Return what is written beside the arrays: a text, numbers, or numbers as JSON."""
    if part in _TEXTS or not isinstance(note, str):
        return known(where, note)
    try:
        return known(where, json.loads(note))
    except (ValueError, RecursionError):
        raise ValueError(
            f"{where} must be numbers as JSON writes them; got {note[:80]!r}; write it anew."
        ) from None


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
    with _refusals(where, "tensors alone, since other objects are pickles and never loaded"):
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=False)
    arrays = {}
    for name, leaf in _leaves("", loaded):
        said = last_of(name) in PARTS and leaf is not None
        if said or isinstance(leaf, torch.Tensor):
            here = f"{where}, array {name!r}" if name else where
            arrays[name] = Array(here, functools.partial(_torch_values, here, leaf, most))
    if not arrays:
        raise ValueError(
            f"{where} must hold a tensor; got {_checks.shown(loaded)}; write torch.save of one, or "
            "of a dict of them."
        )
    return arrays


def _leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    part = last_of(name)
    if part == "meta":
        with _refusals(name, "what JSON can hold"):
            yield name, json.dumps(value)
    elif part in _NUMBERS and isinstance(value, list | tuple):
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
    with _refusals(where, "a tensor of booleans or integers, in rows of one length"):
        shape = tuple(leaf.shape)
    check_size(where, shape, most)
    with named(where):
        array = _checks.as_array("keep", leaf, "an array of True and False, or of integers")
    return known(where, array).open()


def arrays_in_parquet(where: str, file: BinaryIO, most: int) -> dict[str, Array]:
    """Return the masks of a parquet file, a row of the mask in each of its rows.

    A mask is a column of lists of booleans, or the column ``bits``, packed, beside ``num_tokens``.
    """
    parquet = imported(where, "pyarrow.parquet", "parquet")
    with _refusals(where, "a complete parquet file"):
        table = parquet.ParquetFile(file, memory_map=False)
        kinds = {field.name: str(field.type) for field in table.schema_arrow}
        metadata = table.schema_arrow.metadata or {}
        notes = {key.decode(): note.decode() for key, note in metadata.items()}
        if len(kinds) < len(table.schema_arrow):
            raise ValueError

    def column(name: str) -> Any:  # noqa: ANN401  # an array of pyarrow
        here = f"{where}, column {name!r}"
        groups = [table.metadata.row_group(i) for i in range(table.metadata.num_row_groups)]
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        chunks = [chunk for chunk in chunks if chunk.path_in_schema.split(".")[0] == name]
        check_size(here, (sum(chunk.num_values for chunk in chunks),), most)
        check_size(here, (sum(chunk.total_uncompressed_size for chunk in chunks),), most)
        with _refusals(here, "a value in every row, none of them null"):
            found = table.read(columns=[name]).column(0).combine_chunks()
            if found.null_count or ("list<" in kinds[name] and found.flatten().null_count):
                raise ValueError
        return found

    said = {
        part: _note(f"{where}, {part!r}", part, notes[part])._replace(shared=True)
        for part in _NUMBERS
        if part in notes
    } | {
        part: known(f"{where}, column {part!r}", column(part).to_pylist())._replace(shared=True)
        for part in _NUMBERS
        if part in kinds and not _LIST_OF_BOOLEANS.match(kinds[part])
    }
    arrays: dict[str, Array] = {}
    for name, kind in kinds.items():
        prefix = "" if name in ("keep", "bits") else f"{name}/"
        here = f"{where}, column {name!r}"
        if _LIST_OF_BOOLEANS.match(kind) or (name == "keep" and "list<" in kind):
            arrays |= _from_lists(here, prefix, column(name), most)
        elif name == "bits" and "num_tokens" in kinds:
            arrays |= _from_bits(here, column(name), column("num_tokens"), most)
        else:
            continue
        texts = {part: note for part, note in notes.items() if part in _TEXTS}
        arrays |= {prefix + part: known(f"{where}, {part!r}", texts[part]) for part in texts}
        for part, numbers in said.items():
            _refuse_other_lengths(numbers, arrays.get(prefix + part))
            arrays[prefix + part] = numbers
    if not arrays:
        raise ValueError(
            f"{where} must have a column of lists of booleans, or bits (binary) beside num_tokens; "
            f"got {kinds!r:.200}; write one row of the mask in each row."
        )
    return arrays


def _refuse_other_lengths(said: Array, of_rows: Array | None) -> None:
    """Refuse lengths that are not those of rows of different lengths."""
    if of_rows is not None and not np.array_equal(integers(said), integers(of_rows)):
        raise ValueError(
            f"{said.where} must be the lengths of the rows of {of_rows.where}, which differ; got "
            "others; leave them out, or write rows of one length."
        )


def _from_lists(where: str, prefix: str, column: Any, most: int) -> dict[str, Array]:  # noqa: ANN401
    with _refusals(where, "lists of booleans"):
        flat = column.flatten().to_numpy(zero_copy_only=False)
        lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return _padded(where, prefix + "keep", flat, lengths, widths=lengths, most=most)


def _from_bits(where: str, bits: Any, tokens: Any, most: int) -> dict[str, Array]:  # noqa: ANN401
    with _refusals(where, "binary, beside num_tokens of integers"):
        rows = bits.to_pylist()
        flat = np.frombuffer(b"".join(rows), np.uint8)
        lengths = np.array(tokens.to_pylist(), np.int64)
    widths = np.array([len(row) for row in rows], np.int64)
    wrong = widths != -(-lengths // 8)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"{where} must be ceil(num_tokens / 8) bytes in each row; got {widths[row]} for "
            f"{lengths[row]} tokens in row {row}; write the true num_tokens."
        )
    return _padded(where, "bits", flat, lengths, widths=widths, most=most)


def _padded(
    where: str,
    name: str,
    flat: NDArray[Any],
    lengths: NDArray[np.int64],
    *,
    widths: NDArray[np.int64],
    most: int,
) -> dict[str, Array]:
    """Return rows that stand end to end as one array, with their lengths where these differ."""
    shape = (len(widths), int(widths.max(initial=0)))
    longest = int(lengths.max(initial=0))
    check_size(where, (len(lengths), longest), most)
    padded = np.zeros(shape, flat.dtype)
    padded[np.arange(shape[1]) < widths[:, None]] = flat
    arrays = {name: known(where, padded)}
    prefix = name.removesuffix("keep").removesuffix("bits")
    if name == "bits":
        arrays["num_tokens"] = known(where, longest)
    if (lengths < longest).any():
        arrays[f"{prefix}lengths"] = known(where, lengths)
    return arrays


def arrays_in_zarr(where: str, most: int) -> dict[str, Array]:
    """Return the arrays of a zarr folder; what is said of each stands in its attributes.

    Attributes of a group, and arrays that are called so, hold for each array in it.
    """
    zarr = imported(where, "zarr", "zarr")
    with _refusals(where, "a complete zarr folder"):
        root = zarr.open(where, mode="r")
        found = {"": root}
        if not isinstance(root, zarr.Array):
            found |= dict(root.members(max_depth=None))
        said = {name: {**node.attrs} for name, node in found.items()}
    called = {name: f"{where}, array {name!r}" if name else where for name in found}
    nodes = {
        name: Array(called[name], functools.partial(_zarr_values, called[name], node, most))
        for name, node in found.items()
        if isinstance(node, zarr.Array)
    }
    if not nodes:
        raise ValueError(f"{where} must hold an array; got a group without; write it anew.")
    attributes = {name: _zarr_attributes(called[name], of_node) for name, of_node in said.items()}
    of_groups = {
        f"{name}/{part}" if name else part: array
        for name, parts in attributes.items()
        if name not in nodes
        for part, array in parts.items()
    }
    masks = [name for name in nodes if last_of(name) not in BESIDE]
    around, used = beside(masks, of_groups | nodes)
    arrays: dict[str, Array] = {}
    for name, array in nodes.items():
        if name not in used:
            own = attributes[name]
            parts = {
                part: each._replace(shared=True) for part, each in around.get(name, {}).items()
            }
            parts |= own | {"bits" if "num_tokens" in own else "keep": array}
            arrays |= {f"{name}/{part}" if name else part: each for part, each in parts.items()}
    return arrays


def _zarr_attributes(where: str, attributes: Mapping[str, Any]) -> dict[str, Array]:
    """Return what the attributes of an array, or of a group, say of masks."""
    return {
        part: known(
            f"{where}, {part!r}",
            json.dumps(attributes[part]) if part == "meta" else attributes[part],
        )
        for part in PARTS
        if part not in ("keep", "bits") and attributes.get(part) is not None
    }


def _zarr_values(where: str, node: Any, most: int) -> Values:  # noqa: ANN401  # an array of zarr
    with _refusals(where, "an array that is read without pickles"):
        dtype, shape, pieces = np.dtype(node.dtype), tuple(node.shape), (node.chunks, node.shards)
        codecs = [
            getattr(node.metadata, name, None) for name in ("codecs", "filters", "compressor")
        ]
        if "pickle" in repr(codecs).lower():
            raise ValueError  # pragma: no cover  # today's zarr refuses them itself
    for sizes in (shape, *(piece for piece in pieces if piece is not None)):
        check_size(where, sizes, most)

    def read() -> NDArray[Any]:
        with _refusals(where, "a complete array"):
            return np.asarray(node[...])

    return made(where, shape, dtype, read).open()
