"""A block map in text: which slots of which blocks are live, stranded, free or slack."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _bits, _layout, occupancy
from kvreclaim._layout import Layout
from kvreclaim.census import Census, take_census
from kvreclaim.metrics import packed_reclaim, physical_reclaim
from kvreclaim.pool import BlockPool, PoolLike, as_pool

_WIDTH: Final = 80  # columns of a terminal


class Marks(NamedTuple):
    """The characters of a block map."""

    live: str
    stranded: str
    free: str
    slack: str
    eighths: str  # where a character is whole blocks: how many eighths of their slots are live


BLOCK_MARKS: Final = Marks("█", "░", "·", "-", "▁▂▃▄▅▆▇█")
ASCII_MARKS: Final = Marks("#", "x", ".", "-", "12345678")


def block_map(
    keep: ArrayLike,
    pool: PoolLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
    most_lines: int = 16,
    marks: Marks = BLOCK_MARKS,
) -> str:
    """Return a picture of a mask's blocks, of 80 columns, with a legend.

    A character is a slot where that takes at most `most_lines` lines; else a block, or 2, 4, 8 ...
    blocks, as few as that allows. Of more tables than lines the first ones are shown.

    Parameters
    ----------
    keep, pool, axes, lengths, offset
        As in `take_census`.
    most_lines
        Lines of the map, its legend not counted.
    marks
        The characters to draw with.

    Examples
    --------
    >>> print(block_map([1, 1, 0, 0, 0, 0, 0, 0, 1], 4, marks=ASCII_MARKS).splitlines()[3])
    |##xx|....|#---|
    """
    pool = as_pool(pool)
    census = take_census(keep, pool, axes=axes, lengths=lengths, offset=offset)
    layout = _layout.lay_out(keep, pool, axes=axes, lengths=lengths, offset=offset)
    shown = min(layout.num_tables, max(most_lines, 1))
    labels = labels_of(layout, axes, pool)[:shown]
    label_width = max(map(len, labels), default=0)
    scale = _scale(num_blocks_of(layout, pool)[:shown], pool.block_size, label_width, most_lines)
    lines = [
        line.rstrip()
        for label, table in zip(labels, tables_of(layout, pool), strict=False)
        for line in _drawn(f"{label:{label_width}}", table, scale, marks)
    ]
    if not lines:
        lines = ["no tables"]
    if shown < layout.num_tables:
        lines.append(f"{layout.num_tables - shown} more tables do not fit into {shown} lines")
    return "\n".join([*_head(census), "", *lines, "", *_legend(census, scale, marks)])


class TableOfBlocks(NamedTuple):
    """The blocks of a table, a row each; a column for each slot."""

    live: NDArray[np.bool_]
    written: NDArray[np.bool_]
    freed: NDArray[np.bool_]  # of each block


class _Scale(NamedTuple):
    """How finely a map is drawn."""

    blocks: int  # a character stands for; 0: a character is a slot
    blocks_a_line: int
    number_width: int  # of the first slot, which begins each line; 0 where a table is one line


def num_blocks_of(layout: Layout, pool: BlockPool) -> NDArray[np.int64]:
    """Return the blocks of each table."""
    lengths, offsets = _layout.of_each_table(layout)
    return -(-(lengths + offsets) // pool.block_size) * (lengths > 0)


def labels_of(layout: Layout, axes: str | None, pool: BlockPool) -> list[str]:
    """Return which index of the outer axes each table has."""
    letters = [c for c in axes or "" if c != "t" and c not in pool.shared_axes]
    names = [f"{letter}=" for letter in letters] or [""] * len(layout.outer)
    return [
        " ".join(f"{name}{i}" for name, i in zip(names, index, strict=True))
        for index in itertools.product(*map(range, layout.outer))
    ]


def _scale(blocks: NDArray[np.int64], block_size: int, label_width: int, most_lines: int) -> _Scale:
    """Return the finest scale at which tables of so many blocks take few enough lines."""
    most = int(blocks.max(initial=0))
    number_width = len(str(most * block_size))
    room = _WIDTH - label_width - number_width - 2

    def fits(a_line: int) -> bool:
        return bool(np.maximum(-(-blocks // a_line), 1).sum() <= most_lines)

    n, a_line = 0, (room - 1) // (block_size + 1)
    if a_line < 1 or not fits(a_line):
        characters = 1 << room.bit_length() - 1  # a power of two: lines begin at round numbers
        n, a_line = 1, characters
        while a_line < most and not fits(a_line):
            n, a_line = 2 * n, 2 * a_line
    return _Scale(n, a_line, number_width if a_line < most else 0)


def tables_of(layout: Layout, pool: BlockPool) -> Iterator[TableOfBlocks]:
    size = pool.block_size
    num_blocks = num_blocks_of(layout, pool)
    lengths, offsets = _layout.of_each_table(layout)
    for table, stretch in occupancy.stretches(layout, 1):
        length, offset = int(lengths[table]), int(offsets[table])
        slots = np.zeros(int(num_blocks[table]) * size, np.bool_)
        for start, count, bits in occupancy.pieces(layout, stretch, offset, pool):
            part = _bits.unpack(_bits.union(bits)[0], count)
            room = slots[start : start + count]  # a table may end before its row does
            room[:] = part[: len(room)]
        position = np.arange(len(slots))
        live = slots.reshape(-1, size)
        written = ((position >= offset) & (position < offset + length)).reshape(-1, size)
        yield TableOfBlocks(live, written, _freed(live, pool, whole=(offset + length) % size == 0))


def _freed(live: NDArray[np.bool_], pool: BlockPool, *, whole: bool) -> NDArray[np.bool_]:
    """Return which blocks of a table are taken back without a copy."""
    held: NDArray[np.bool_] = np.logical_or.reduce(live, axis=1)
    if pool.open_tail and not whole:
        held[-1:] = True
    if pool.frees == "none":
        held[:] = True
    elif pool.frees == "back":
        held = np.logical_or.accumulate(held[::-1])[::-1]
    elif pool.frees == "front":
        held = np.logical_or.accumulate(held)
    return np.logical_not(held)


def _drawn(label: str, table: TableOfBlocks, scale: _Scale, marks: Marks) -> Iterator[str]:
    """Yield the lines of one table."""
    size = table.live.shape[1]
    for start in range(0, max(len(table.live), 1), scale.blocks_a_line):
        part = TableOfBlocks(*(blocks[start : start + scale.blocks_a_line] for blocks in table))
        number = f"{start * size:{scale.number_width}}" if scale.number_width else ""
        before = (" " * len(label) if start else label, number)
        picture = _slots(part, marks) if scale.blocks == 0 else _summary(part, scale.blocks, marks)
        yield " ".join([*filter(None, before), picture])


def _slots(part: TableOfBlocks, marks: Marks) -> str:
    """Return a character for each slot, with bars between blocks."""
    if not len(part.live):
        return "no tokens"
    dead = np.where(part.written, marks.stranded, marks.slack)
    used = np.where(part.live, marks.live, dead)
    drawn = np.where(part.freed[:, None], marks.free, used)
    return f"|{'|'.join(''.join(block) for block in drawn)}|"


def _summary(part: TableOfBlocks, blocks: int, marks: Marks) -> str:
    """Return a character for every so many blocks."""
    if not len(part.live):
        return "no tokens"
    starts = np.arange(0, len(part.live), blocks)
    live = np.add.reduceat(part.live.sum(axis=1), starts)
    held = np.add.reduceat(~part.freed, starts, dtype=np.int64)
    slots = np.diff(starts, append=len(part.live)) * part.live.shape[1]
    eighths = np.array([marks.stranded, *marks.eighths])[-(-8 * live // slots)]
    return "".join(np.where(held == 0, marks.free, eighths))


def _head(census: Census) -> list[str]:
    packed = census.num_blocks - census.num_floor_blocks
    return [
        (
            f"block tables: {census.num_tables}, rows of each: {census.rows_per_table}, tokens: "
            f"{census.num_tokens}, blocks of {census.pool.block_size}: {census.num_blocks}"
        ),
        (
            f"comes back in place: {census.num_freed_blocks} ({physical_reclaim(census):.3f}), "
            f"packed: {packed} ({packed_reclaim(census):.3f})"
        ),
    ]


def _legend(census: Census, scale: _Scale, marks: Marks) -> list[str]:
    """Return what each character means, with how many slots of all tables are such."""
    free = census.num_freed_blocks * census.pool.block_size
    by_slot = scale.blocks == 0
    kinds = (
        (marks.live if by_slot else marks.eighths, "live", census.num_live_tokens, "kept by a row"),
        (marks.stranded, "stranded", census.num_stranded_tokens, "dead, in a block that stays"),
        (marks.free, "free", free, "in a block that comes back in place"),
        (
            marks.slack if by_slot else "",
            "slack",
            census.num_slack_slots,
            "never written, in a block that stays",
        ),
    )
    width = len(str(census.num_blocks * census.pool.block_size))
    lines = [
        f"{mark:{1 if by_slot else 8}} {name:<8} {count:>{width}}  {meaning}"
        for mark, name, count, meaning in kinds
    ]
    if by_slot:
        return lines
    what = "a block" if scale.blocks == 1 else f"{scale.blocks} blocks"
    return [
        f"A character is {what}: the eighths of its slots that are live, rounded up;",
        f"{marks.stranded} if none is, {marks.free} if all of it comes back. Of all slots:",
        *lines,
    ]
