"""Masks in .parquet: a row of the mask in each row of the table."""

from __future__ import annotations

import re
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim._formats.arrays import Array, check_size, integers, known
from kvreclaim._formats.libraries import NUMBERS, TEXTS, imported, note_as_array, refusals

_LIST_OF_BOOLEANS: Final = re.compile(r"\w*list<\w+: bool")


def arrays_in_parquet(where: str, file: BinaryIO, most: int) -> dict[str, Array]:
    """Return the masks of a parquet file, a row of the mask in each of its rows.

    A mask is a column of lists of booleans, or the column ``bits``, packed, beside ``num_tokens``.
    """
    parquet = imported(where, "pyarrow.parquet", "parquet")
    with refusals(where, "a complete parquet file"):
        table = parquet.ParquetFile(file, memory_map=False)
        kinds = {field.name: str(field.type) for field in table.schema_arrow}
        metadata = table.schema_arrow.metadata or {}
        notes = {key.decode(): note.decode() for key, note in metadata.items()}
        if len(kinds) < len(table.schema_arrow):
            raise ValueError
        places = _places(table.schema)

    def column(name: str) -> Any:  # noqa: ANN401  # an array of pyarrow
        here = f"{where}, column {name!r}"
        groups = range(table.metadata.num_row_groups)
        check_size(here, (sum(table.metadata.row_group(i).total_byte_size for i in groups),), most)
        with refusals(here, "a complete column"):  # to ask what it declares kills the process
            for group in groups:
                next(table.iter_batches(1, row_groups=[group], columns=[name]), None)
        chunks = [table.metadata.row_group(i).column(j) for i in groups for j in places[name]]
        check_size(here, (sum(chunk.num_values for chunk in chunks),), most)
        check_size(here, (sum(chunk.total_uncompressed_size for chunk in chunks),), most)
        with refusals(here, "a value in every row, none of them null"):
            found = table.read(columns=[name]).column(0).combine_chunks()
            if found.null_count or ("list<" in kinds[name] and found.flatten().null_count):
                raise ValueError
        return found

    said = {
        part: note_as_array(f"{where}, {part!r}", part, notes[part])._replace(shared=True)
        for part in NUMBERS
        if part in notes
    } | {
        part: known(f"{where}, column {part!r}", column(part).to_pylist())._replace(shared=True)
        for part in NUMBERS
        if part in kinds and not _LIST_OF_BOOLEANS.match(kinds[part])
    }
    arrays: dict[str, Array] = {}
    for name, kind in kinds.items():
        prefix = "" if name in ("keep", "bits", "") else f"{name}/"
        here = f"{where}, column {name!r}"
        if _LIST_OF_BOOLEANS.match(kind) or (name == "keep" and "list<" in kind):
            arrays |= _from_lists(here, prefix, column(name), most)
        elif name == "bits" and "num_tokens" in kinds:
            arrays |= _from_bits(here, column(name), column("num_tokens"), most)
        else:
            continue
        texts = {part: note for part, note in notes.items() if part in TEXTS}
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


def _places(schema: Any) -> dict[str, list[int]]:  # noqa: ANN401  # a schema of pyarrow
    """Return the numbers of the stored columns that make each column."""
    places: dict[str, list[int]] = {}
    for place in range(len(schema)):
        places.setdefault(schema.column(place).path.split(".")[0], []).append(place)
    return places


def _refuse_other_lengths(said: Array, of_rows: Array | None) -> None:
    """Refuse lengths that are not those of rows of different lengths."""
    if of_rows is not None and not np.array_equal(integers(said), integers(of_rows)):
        raise ValueError(
            f"{said.where} must be the lengths of the rows of {of_rows.where}, which differ; got "
            "others; leave them out, or write rows of one length."
        )


def _from_lists(where: str, prefix: str, column: Any, most: int) -> dict[str, Array]:  # noqa: ANN401
    with refusals(where, "lists of booleans"):
        flat = column.flatten().to_numpy(zero_copy_only=False)
        lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return _padded(where, prefix + "keep", flat, lengths, widths=lengths, most=most)


def _from_bits(where: str, bits: Any, tokens: Any, most: int) -> dict[str, Array]:  # noqa: ANN401
    with refusals(where, "binary, beside num_tokens of integers"):
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
    arrays = {name: known(where, padded)._replace(kept_as="" if "/" in name else name)}
    prefix = name.removesuffix("keep").removesuffix("bits")
    if name == "bits":
        arrays["num_tokens"] = known(where, longest)
    if (lengths < longest).any():
        arrays[f"{prefix}lengths"] = known(where, lengths)
    return arrays
