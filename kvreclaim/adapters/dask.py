"""Masks in dask arrays, larger than a machine: the census of the array in memory, exactly.

A chunk that holds whole tables becomes a census where it lies. Any other is packed there, eight
tokens a byte, and the bits of a table meet on one worker. Censuses are added in a tree.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _layout
from kvreclaim._formats.arrays import named
from kvreclaim._formats.libraries import imported
from kvreclaim.adapters import _npy_ranges, _table_parts
from kvreclaim.adapters._table_parts import Part
from kvreclaim.census import Census
from kvreclaim.pool import PoolLike, as_pool

DaskArray: TypeAlias = Any
"""A dask.array.Array; dask may be absent."""

_Library: TypeAlias = Any  # dask.array itself

CHUNK_BYTES: Final = 64 << 20
"""Bytes of a chunk of `from_npy`, unless told otherwise."""

_MEETING: Final = 64 << 20  # bytes of bits that meet in one task, unless one table has more
_ADDED_AT_ONCE: Final = 16  # censuses


def take_census(
    array: DaskArray,
    pool: PoolLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
) -> Census:
    """Count what a keep-mask in a dask array leaves in the blocks of a pool.

    It equals `kvreclaim.take_census` of the array in memory, whatever the chunks. It runs on the
    current client of dask.distributed, or on dask's own scheduler where there is none.

    Chunks that hold whole tables, all of the token axis and of the axes that share blocks, are
    counted where they lie: a worker needs memory for its chunk and a few MiB. Otherwise each chunk
    is packed where it lies, and the bits of whole tables meet on one worker, which needs twice
    their size: a quarter of a byte for each token of each row of a table, or 128 MiB where several
    tables fit into that.

    Parameters
    ----------
    array
        dask array of booleans, or of integers that are all 0 and 1, with chunks of known sizes.
    pool, axes, lengths, offset
        As in `kvreclaim.take_census`.

    Raises
    ------
    TypeError, ValueError
        As `kvreclaim.take_census`, before anything is computed unless it is a value that is wrong;
        for what is no such array; and where dask is not installed.

    Examples
    --------
    >>> import dask.array, numpy as np  # doctest: +SKIP
    >>> keep = np.array([[1, 0, 0, 0], [0, 1, 0, 0]], bool)  # doctest: +SKIP
    >>> array = dask.array.from_array(keep, chunks=(1, 3))  # doctest: +SKIP
    >>> take_census(array, 2, axes="ht").counts  # doctest: +SKIP
    (1, 0, 1)
    """
    da = imported("array", "dask.array", "dask")
    pool = as_pool(pool)
    _refuse_other_kinds(array, da)
    shape = tuple(map(int, array.shape))
    nothing = np.broadcast_to(np.False_, shape)
    layout = _layout.lay_out(nothing, pool, axes=axes, lengths=lengths, offset=offset)
    letters = _checks.as_axes(axes, shape, pool.shared_axes)
    shared = [axis for axis, letter in enumerate(letters) if letter in pool.shared_axes]
    outer = [axis for axis, letter in enumerate(letters) if letter not in {"t", *pool.shared_axes}]
    inner = [*shared, letters.index("t")]
    chunks = [tuple(map(int, sizes)) for sizes in array.chunks]
    tables = Part(
        axes="".join(letters[axis] for axis in outer),
        first=(0,) * len(outer),
        lengths=None if lengths is None else np.reshape(layout.lengths, layout.outer),
        offset=0 if isinstance(layout.offsets, int) else layout.offsets.reshape(layout.outer),
    )
    if all(len(chunks[axis]) == 1 for axis in inner):
        order = counted = [*range(len(shape))]  # no axis goes: read and counted in one task
        count: Any = functools.partial(
            _table_parts.census_of_chunk, shape=shape, outer=outer, axes=axes, pool=pool
        )
    else:
        order, counted = [*outer, *inner], outer
        array = _packed(array, chunks, letters, order, da)
        array = _cut(array, len(outer), layout.rows * array.shape[-1])
        count = functools.partial(
            _table_parts.census_of_bits,
            chunks=[chunks[axis] for axis in inner],
            axes=None if "?" in letters else "".join(letters[axis] for axis in order),
            pool=pool,
        )
    parts = _table_parts.parts_of(tables, [array.chunks[order.index(axis)] for axis in outer])
    parts = parts.reshape([len(array.chunks[order.index(axis)]) for axis in counted])
    censuses = da.blockwise(
        count,
        counted,
        *(array, order),
        *(_one_each(parts, da), counted),
        align_arrays=False,
        concatenate=False,
        dtype=object,
        meta=np.empty((0,) * len(counted), object),
    )
    total = da.reduction(
        censuses,
        chunk=_itself,
        aggregate=_merged,
        concatenate=False,
        split_every=dict.fromkeys(range(len(counted)), _width(censuses.numblocks)),
        dtype=object,
    )
    census: Census = total.compute()
    return census


def _refuse_other_kinds(array: DaskArray, da: _Library) -> None:
    """Refuse what is no array of dask, or cannot be a mask whatever its values are."""
    if not isinstance(array, da.Array):
        raise TypeError(
            f"array must be a dask array; got {_checks.shown(array)}; write "
            "kvreclaim.take_census(array, pool) for one in memory, dask.array.from_zarr(path) or "
            "kvreclaim.adapters.dask.from_npy(paths) for files."
        )
    if any(math.isnan(size) for size in array.shape):
        raise ValueError(
            f"array must have chunks of known sizes; got shape {array.shape}; call "
            "array.compute_chunk_sizes() first."
        )
    _checks.as_keep(np.ones((1,) * array.ndim, array.dtype))
    _checks.as_keep(da.utils.meta_from_array(array))  # an array of what class the chunks are


def _packed(
    array: DaskArray,
    chunks: Sequence[tuple[int, ...]],
    letters: str,
    order: Sequence[int],
    da: _Library,
) -> DaskArray:
    """Return the bits of each chunk, with the axes in another order, the last of them tokens."""
    parts = _table_parts.parts_of(Part(axes=letters, first=(0,) * len(chunks)), chunks)
    tokens = chunks[order[-1]]
    starts = itertools.accumulate(tokens, initial=0)
    widths = tuple(map(_table_parts.num_bytes, starts, tokens))
    return da.blockwise(
        functools.partial(_table_parts.packed, order=order),
        order,
        *(array, range(len(chunks))),
        *(_one_each(parts, da), range(len(chunks))),
        align_arrays=False,
        adjust_chunks={order[-1]: widths},
        dtype=np.uint8,
        meta=np.empty((0,) * len(chunks), np.uint8),
    )


def _cut(bits: DaskArray, outer: int, table_bytes: int) -> DaskArray:
    """Cut chunks along the first `outer` axes, until few enough tables meet in one task."""
    most = max(1, _MEETING // max(table_bytes, 1))
    for axis in range(outer):
        tables = math.prod(max(sizes) for sizes in bits.chunks[:outer])
        if tables <= most:
            break
        step = max(1, max(bits.chunks[axis]) * most // tables)
        sizes = [
            min(step, size - start) for size in bits.chunks[axis] for start in range(0, size, step)
        ]
        bits = bits.rechunk({axis: tuple(sizes)}, method="tasks")
    return bits


def _one_each(values: NDArray[np.object_], da: _Library) -> DaskArray:
    """Return a dask array of which each value is a chunk, and travels alone."""
    return da.from_array(values, chunks=(1,) * values.ndim)


def _width(counts: Sequence[int]) -> int:
    """Return how many censuses are added along each axis, so that a task has few in all."""
    cut = sum(count > 1 for count in counts)
    return max(2, math.floor(_ADDED_AT_ONCE ** (1 / max(cut, 1))))


def _itself(census: Census, **_: object) -> Census:
    return census


def _merged(censuses: object, **_: object) -> object:
    if isinstance(censuses, np.ndarray):  # dask asks for a sample, without values
        return censuses
    return _table_parts.merged(censuses)


def from_npy(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    chunk_bytes: int = CHUNK_BYTES,
) -> DaskArray:
    """Return a lazy dask array of a .npy file, or of several stacked along a new first axis.

    Headers are read here; values in the worker that needs them, each chunk by its path and range,
    which is all that is sent. Every worker must see the files by the same path. Nothing is mapped,
    and nothing is copied, as ``dask.array.from_array(numpy.load(path, mmap_mode="r"))`` does with
    the whole file. Chunks are cut along the first axis of a file, and along the next where one
    index of it is longer than a chunk; along the last first where the file is in Fortran order.

    Parameters
    ----------
    paths
        A path, or several of files that declare one shape, type and order.
    chunk_bytes
        The most bytes of a chunk, if that is not a single value: 64 MiB.

    Raises
    ------
    OSError
        Where a file cannot be opened.
    TypeError, ValueError
        For what is no .npy file of booleans or integers, files that differ, and where dask is not
        installed; and when the array is computed, for a file that has been cut or changed since.

    Examples
    --------
    >>> import tempfile, numpy as np  # doctest: +SKIP
    >>> from kvreclaim import BlockPool  # doctest: +SKIP
    >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
    ...     path = f"{folder}/keep.npy"
    ...     np.save(path, np.array([[1, 0, 0, 0], [1, 1, 1, 0]], bool))
    ...     array = from_npy(path)
    ...     array.shape, take_census(array, BlockPool(2, shared_axes="")).counts
    ((2, 4), (1, 2, 1))
    """
    da = imported("paths", "dask.array", "dask")
    most = _checks.as_count("chunk_bytes", chunk_bytes, minimum=1)
    one = isinstance(paths, str | os.PathLike)
    hint = "write such as 'keep.npy', or ['a.npy', 'b.npy']"
    given = [paths] if one else _checks.as_items("paths", paths, "paths of .npy files", hint)
    if not given:
        raise ValueError(f"paths must name at least one .npy file; got none; {hint}.")
    files = [_as_path(path, hint) for path in given]
    declared = [_npy_ranges.declared_by(path) for path in files]
    first = declared[0]
    for path, other in zip(files, declared, strict=True):
        if other != first:
            raise ValueError(
                "paths must be of files of one shape, type and order; got "
                f"{_npy_ranges.described(first)} in {files[0]} and {_npy_ranges.described(other)} "
                f"in {path}; make an array of each kind, and add their censuses."
            )
    with named(files[0]):
        _checks.as_keep(np.ones((1,) * len(first.shape), first.dtype))
    sizes = _npy_ranges.chunk_sizes(first.stored, max(1, most // first.dtype.itemsize))
    ranges = np.stack([_npy_ranges.ranges_of(path, first, sizes) for path in files])
    if one:
        ranges = ranges[0]
    else:
        sizes = ((1,) * len(files), *sizes)
    array = _one_each(ranges, da).map_blocks(
        _npy_ranges.read,
        chunks=sizes,
        dtype=first.dtype,
        meta=np.empty((0,) * len(sizes), first.dtype),
    )
    if not first.fortran:
        return array
    stacked = len(sizes) - len(first.shape)
    return array.transpose([*range(stacked), *reversed(range(stacked, len(sizes)))])


def _as_path(path: object, hint: str) -> str:
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"paths must be paths of .npy files; got {_checks.shown(path)}; {hint}.")
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100  # resolve() would follow links
