"""Padding that nobody told of: whole blocks at the ends of sequences that no row keeps.

Published policies keep the last tokens, so that a sequence which ends in dead blocks is nearly
always shorter than the axis, and what is counted as evicted was never there. They keep as many of
the last tokens of one sequence as of another, so that one which ends in more whole blocks of which
a file of evictions names none is likely shorter too, and what is counted as kept was never there.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim import occupancy
from kvreclaim._cli import console
from kvreclaim._cli.inputs import SavedMask, by_file, choose
from kvreclaim._formats import reading
from kvreclaim._formats.choice import Chosen
from kvreclaim._formats.grouping import OpenMasks
from kvreclaim.files import MAX_BYTES, open_masks

_TOKENS: Final = np.array(  # up to the last bit that is set, of each byte
    [0, *(9 - (byte & -byte).bit_length() for byte in range(1, 256))]
)


_FEW: Final = 32  # tokens, up to which a sequence may by chance keep more of its last than another


class _End(NamedTuple):
    """The end of the first sequence that ends in whole blocks which no row keeps, or evicts."""

    kept: bool
    sequence: int
    num_end_tokens: int
    num_end_blocks: int  # whole ones
    num_others: int  # sequences that end so too
    num_tokens: int  # of the axis


def notes_on_padding(
    masks: Iterable[SavedMask], block_size: int, options: argparse.Namespace
) -> list[str]:
    """Return a note for each mask whose sequences end in dead blocks and that has no lengths."""
    if options.lengths is not None:
        return []
    distinct = {mask.called: mask for mask in masks}
    notes = []
    done = itertools.count()
    # The figures are there: a note must not take them away.
    anything = suppress(MemoryError, OSError, TypeError, ValueError)
    with console.Progress() as progress:
        for path, of_file in by_file(distinct.items()):
            with anything, open_masks(path) as held:
                for called, mask in of_file:
                    step = progress.part(next(done), len(distinct), called)
                    with anything:
                        end = _end_of(held, mask, block_size, options, step)
                        if end is not None:
                            notes.append(_note(called, block_size, end))
    return notes


def _note(called: str, block_size: int, end: _End) -> str:
    tokens, blocks, others = end.num_end_tokens, end.num_end_blocks, end.num_others
    s = "s" * (others != 1)
    done, else_ = ("evicts", "kept") if end.kept else ("keeps", "evicted")
    more = f", nor the end{s} of {others} more sequence{s}" if others else ""
    return (
        f"note: {called}: no row {done} the last {tokens} token{'s' * (tokens != 1)} of "
        f"b={end.sequence} ({blocks} whole block{'s' * (blocks != 1)} of {block_size}){more}; "
        "write --lengths with each sequence's tokens if that is padding, "
        f"--lengths {end.num_tokens} if it was {else_}"
    )


def _end_of(
    held: OpenMasks,
    mask: SavedMask,
    block_size: int,
    options: argparse.Namespace,
    progress: Callable[[int, int], None],
) -> _End | None:
    chosen = choose(held, mask, options)
    axes, shape = chosen.axes, chosen.mask.shape
    if axes is None or "b" not in axes or chosen.lengths is not None:
        return None
    sequences, tokens = shape[axes.index("b")], shape[axes.index("t")]
    offset = np.asarray(chosen.offset)
    if sequences <= 1 or not math.prod(shape) or offset.ndim > 1:
        return None

    def ends(unread: Chosen, *, evicted: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return up to where each sequence goes, and how many whole blocks lie behind that."""
        last = _last_tokens(unread, axes, evicted=evicted, progress=progress)
        return last, (tokens + offset) // block_size - -(-(last + offset) // block_size)

    evicted = options.polarity == "evict"
    last, blocks = ends(chosen, evicted=evicted)
    kept = evicted and not (blocks > 0).any()
    if kept:
        last, blocks = ends(choose(held, mask, options), evicted=False)
        blocks = np.where((blocks - blocks.min()) * block_size > _FEW, blocks, 0)
    where = np.flatnonzero(blocks > 0)
    if not len(where):
        return None
    first = int(where[0])
    return _End(kept, first, tokens - int(last[first]), int(blocks[first]), len(where) - 1, tokens)


def _last_tokens(
    chosen: Chosen, axes: str, *, evicted: bool, progress: Callable[[int, int], None]
) -> NDArray[np.int64]:
    """Return, of each sequence, up to where some row keeps a token; turned round if `evicted`."""
    mask, shape = chosen.mask, chosen.mask.shape
    rows = [size for size, letter in zip(shape, axes, strict=True) if letter != "t"]
    sequence = axes.replace("t", "").index("b")
    live = np.zeros(rows[sequence], np.int64)
    if not mask.comes_in_rows(axes):
        keep = np.moveaxis(reading.read(mask, MAX_BYTES, progress), axes.index("t"), -1)
        keep = np.moveaxis(keep, sequence, 0)
        for index, rows_of in enumerate(keep):
            any_row = (~rows_of if evicted else rows_of).any(axis=tuple(range(rows_of.ndim - 1)))
            live[index] = int(np.flatnonzero(any_row)[-1]) + 1 if any_row.any() else 0
        return live
    turned = chosen.tokens_of_rows(axes, "") if evicted else None
    read = reading.row_reader(mask, evicted=turned, progress=progress)
    step = max(1, occupancy.PIECE // shape[-1])
    count = math.prod(rows)
    for start in range(0, count, step):
        stop = min(start + step, count)
        ends = _ends(read(stop - start))
        of_rows = np.unravel_index(np.arange(start, stop), rows)[sequence]
        np.maximum.at(live, of_rows, ends)
    return live


def _ends(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return up to which token each row of bits keeps any."""
    last = bits.shape[-1] - 1 - (bits != 0)[:, ::-1].argmax(axis=1)
    byte = bits[np.arange(len(bits)), last]
    return np.where(byte != 0, 8 * last + _TOKENS[byte], 0)
