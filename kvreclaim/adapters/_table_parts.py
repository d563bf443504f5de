"""What is done with one chunk: tables that are whole are counted, others are packed until they are.

Each function runs where its chunk lies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim._formats.arrays import named
from kvreclaim.census import Census, merge, take_census, take_census_packed
from kvreclaim.pool import BlockPool


@attrs.frozen(kw_only=True)
class Part:
    """Where a chunk begins, and its sizes, on some axes of its array; and what its tables have."""

    axes: str
    first: tuple[int, ...]
    sizes: tuple[int, ...] = ()
    lengths: NDArray[np.int64] | None = None
    offset: NDArray[np.int64] | int = 0


def parts_of(whole: Part, chunks: Sequence[Sequence[int]]) -> NDArray[np.object_]:
    """Return the part of each chunk, where the chunks have these sizes on each axis."""
    borders = [_borders(sizes) for sizes in chunks]
    parts = np.empty([len(sizes) for sizes in chunks], object)
    for index in np.ndindex(parts.shape):
        at = tuple(slice(*borders[axis][i : i + 2]) for axis, i in enumerate(index))
        parts[index] = Part(
            axes=whole.axes,
            first=tuple(borders[axis][i] for axis, i in enumerate(index)),
            sizes=tuple(chunks[axis][i] for axis, i in enumerate(index)),
            lengths=None if whole.lengths is None else whole.lengths[at],
            offset=whole.offset if isinstance(whole.offset, int) else whole.offset[at],
        )
    return parts


def _borders(sizes: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(sizes, initial=0))


def _named(part: Part) -> AbstractContextManager[None]:
    """Say, where something is wrong, from where in the array its indices count."""
    places = [
        f"{f'axis {axis}' if letter == '?' else letter}={start}"
        for axis, (letter, start) in enumerate(zip(part.axes, part.first, strict=True))
        if start
    ]
    return named(f"array, from {', '.join(places)} on" if places else "array")


def _refuse_other_shapes(keep: NDArray[Any], declared: Sequence[int]) -> None:
    if keep.shape != tuple(declared):
        raise ValueError(
            f"a chunk must have the shape that the array declares, {tuple(declared)}; got "
            f"{keep.shape}; write map_blocks(..., chunks=...) where a function changes shapes."
        )


def census_of_chunk(
    keep: NDArray[Any],
    parts: NDArray[np.object_],
    *,
    shape: Sequence[int],
    outer: Sequence[int],
    axes: str | None,
    pool: BlockPool,
) -> Census:
    """Return the census of a chunk of whole tables, of an array whose outer axes may be cut."""
    part: Part = parts.item()
    declared = [*shape]
    for axis, size in zip(outer, part.sizes, strict=True):
        declared[axis] = size
    with _named(part):
        _refuse_other_shapes(keep, declared)
        return take_census(keep, pool, axes=axes, lengths=part.lengths, offset=part.offset)


def packed(
    keep: NDArray[Any], parts: NDArray[np.object_], *, order: Sequence[int]
) -> NDArray[np.uint8]:
    """Return the bits of a chunk, its axes in another order, the last of them tokens.

    Each stands in its byte where it stands in that of the whole axis, so that what two chunks have
    of one byte can be united.
    """
    part: Part = parts.item()
    with _named(part):
        _refuse_other_shapes(keep, part.sizes)
        bits = np.packbits(_checks.as_keep(keep).transpose(order), axis=-1)
    start, tokens = part.first[order[-1]], keep.shape[order[-1]]
    shift = start % 8
    if not shift:
        return bits
    out = np.zeros((*bits.shape[:-1], bits.shape[-1] + 1), np.uint8)
    out[..., :-1] = bits >> shift
    out[..., 1:] |= bits << (8 - shift)
    return out[..., : num_bytes(start, tokens)]


def num_bytes(start: int, tokens: int) -> int:
    """Return in how many bytes so many tokens stand, of which this is the first."""
    return -(-(start % 8 + tokens) // 8) if tokens else 0


def census_of_bits(
    blocks: object,
    parts: NDArray[np.object_],
    *,
    chunks: Sequence[Sequence[int]],
    axes: str | None,
    pool: BlockPool,
) -> Census:
    """Return the census of whole tables, of which each block has the bits of some rows and tokens.

    Parameters
    ----------
    blocks
        What `packed` returned, in lists of lists, a level for each axis that is cut.
    parts
        The part of these tables, on the axes that are not cut.
    chunks
        Sizes of the chunks on each axis that is cut, tokens last.
    axes, pool
        As in `take_census`, the axes that are not cut first.
    """
    part: Part = parts.item()
    rows = [[slice(*ends) for ends in itertools.pairwise(_borders(sizes))] for sizes in chunks[:-1]]
    columns = [
        slice(start // 8, start // 8 + num_bytes(start, size))
        for start, size in zip(_borders(chunks[-1]), chunks[-1], strict=False)
    ]
    tokens = sum(chunks[-1])
    leaves = list(_leaves(blocks))
    outer = leaves[0].shape[: -len(chunks)]
    bits = np.zeros((*outer, *map(sum, chunks[:-1]), num_bytes(0, tokens)), np.uint8)
    for leaf, at in zip(leaves, itertools.product(*rows, columns), strict=True):
        where: tuple[Any, ...] = (..., *at)
        bits[where] |= leaf
    with _named(part):
        return take_census_packed(
            bits, tokens, pool, axes=axes, lengths=part.lengths, offset=part.offset
        )


def merged(censuses: object) -> Census:
    """Return the sum of censuses in lists of lists."""
    return merge(_leaves(censuses))


def _leaves(nested: object) -> Iterator[Any]:
    if isinstance(nested, list):
        for item in nested:
            yield from _leaves(item)
    else:
        yield nested
