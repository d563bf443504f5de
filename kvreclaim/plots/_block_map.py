"""The block map: which slots of which blocks are live, stranded, free or slack."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final, NamedTuple

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _layout
from kvreclaim._formats.libraries import imported
from kvreclaim._render.block_map import TableOfBlocks, labels_of, num_blocks_of, tables_of
from kvreclaim.census import Census, take_census
from kvreclaim.plots import _drawing
from kvreclaim.plots._drawing import EDGE, MEANINGS, AnyFigure, Axes
from kvreclaim.pool import PoolLike, as_pool

KINDS: Final = tuple(look.name for look in MEANINGS)

_LIVE, _STRANDED, _FREE, _SLACK = range(4)
_A_LINE: Final = 256  # slots, at least one block
_MOST_SLOTS: Final = 1 << 16  # drawn, at least one block of each table
_GAP: Final = 0.04  # between blocks, as a share of one
_HEIGHT: Final = 0.8  # of a line


@attrs.frozen(kw_only=True, eq=False)
class DrawnTable:
    """A table of a block map, or the blocks of it that are drawn.

    Parameters
    ----------
    label
        Its index along each of the outer axes.
    num_blocks
        Blocks of the whole table.
    blocks
        The numbers of the blocks that are drawn: all of them, or the first and the last ones.
    kinds
        (blocks drawn, block size) of the kind of each slot: 0 live, 1 stranded, 2 free, 3 slack.
    """

    label: str
    num_blocks: int
    blocks: tuple[int, ...] = attrs.field(repr=False)
    kinds: NDArray[np.uint8] = attrs.field(converter=_checks.as_read_only, repr=False)


class _Line(NamedTuple):
    """Consecutive blocks side by side."""

    y: float
    blocks: tuple[int, ...]
    kinds: NDArray[np.uint8]


@attrs.define(kw_only=True, eq=False, on_setattr=attrs.setters.frozen)
class BlockMapDisplay:
    """A map of blocks: a box for each block, in it a column for each slot.

    It is made by `from_keep` and drawn by `plot`. Live slots are solid, stranded ones hatched,
    slots never written dotted; a block that comes back in place is an empty box.

    Parameters
    ----------
    census
        Of the whole mask, whatever part of it is drawn.
    tables
        The tables that are drawn, a `DrawnTable` each.
    ax_, figure_
        What `plot` drew on, there after it.

    Examples
    --------
    >>> display = BlockMapDisplay.from_keep([1, 1, 0, 0, 0, 0, 0, 0, 1], 4)
    >>> display.tables[0].kinds.tolist()
    [[0, 0, 1, 1], [2, 2, 2, 2], [0, 3, 3, 3]]
    """

    census: Census
    tables: tuple[DrawnTable, ...]
    ax_: Axes = attrs.field(init=False, repr=False, on_setattr=attrs.setters.NO_OP)
    figure_: AnyFigure = attrs.field(init=False, repr=False, on_setattr=attrs.setters.NO_OP)

    @classmethod
    def from_keep(
        cls,
        keep: ArrayLike,
        pool: PoolLike,
        *,
        axes: str | None = None,
        lengths: ArrayLike | None = None,
        offset: ArrayLike = 0,
        max_tables: int = 8,
        max_blocks: int = 64,
    ) -> BlockMapDisplay:
        """Return the map of a keep-mask, or of its first tables and the ends of long ones.

        Parameters
        ----------
        keep, pool, axes, lengths, offset
            As in `take_census`.
        max_tables
            Tables that are drawn at most: the first ones.
        max_blocks
            Blocks of a table that are drawn at most: as many of its first as of its last ones. Of
            very large blocks fewer are drawn, 65,536 slots in all, but one of each table.

        Raises
        ------
        TypeError, ValueError
            As `take_census`; and for numbers of tables or blocks below 1.
        """
        pool = as_pool(pool)
        most_tables = _checks.as_count("max_tables", max_tables, minimum=1)
        most_blocks = _checks.as_count("max_blocks", max_blocks, minimum=1)
        census = take_census(keep, pool, axes=axes, lengths=lengths, offset=offset)
        layout = _layout.lay_out(keep, pool, axes=axes, lengths=lengths, offset=offset)
        shown = min(layout.num_tables, most_tables)
        room = _MOST_SLOTS // (max(shown, 1) * pool.block_size)
        labels = labels_of(layout, axes, pool)[:shown]
        numbers = num_blocks_of(layout, pool)[:shown].tolist()
        return cls(
            census=census,
            tables=tuple(
                _drawn(label, table, number, min(most_blocks, max(room, 1)))
                for label, number, table in zip(
                    labels, numbers, itertools.islice(tables_of(layout, pool), shown), strict=True
                )
            ),
        )

    def __repr__(self) -> str:
        """Return what comes back, how much of it is drawn, and under which pool."""
        census = self.census
        drawn = f"{len(self.tables):,} of {census.num_tables:,} tables drawn"
        text = f"{_drawing.comes_back(census)}; {drawn}"
        return _drawing.in_short(self, text, census.pool, census.rows_per_table)

    def plot(self, ax: Axes | None = None) -> BlockMapDisplay:
        """Draw the map on an Axes, or on a new figure, and return the display.

        Raises
        ------
        TypeError
            For an `ax` that is no Axes.
        ValueError
            Where matplotlib is not installed.
        """
        census, pool = self.census, self.census.pool
        size = pool.block_size
        lines = list(self._lines())
        ax = _drawing.axes_for(ax, (8.0, 2.2 + 0.2 * (lines[-1][1].y if lines else 0)))
        self.ax_, self.figure_ = ax, ax.figure
        _drawing.set_title(
            ax, f"Block map: {_drawing.comes_back(census)}", pool, census.rows_per_table
        )
        if not lines:
            _drawing.say_instead(ax, "no blocks")
        else:
            _draw(ax, [line for _, line in lines], size)
            ax.set_yticks([line.y for _, line in lines], [name for name, _ in lines])
            ax.tick_params(axis="y", length=0, labelsize="small")
            ax.set_xticks([])
            ax.spines[:].set_visible(False)
        label = ax.set_xlabel("", fontsize="small", loc="left")
        notes = [part for note in self._notes() for part in _drawing.wrapped(ax, label, note)]
        label.set_text("\n".join(notes))
        counts = (
            census.num_live_tokens,
            census.num_stranded_tokens,
            census.num_freed_blocks * size,
            census.num_slack_slots,
        )
        _drawing.set_legend(
            ax,
            [_drawing.patch_of(look) for look in MEANINGS],
            [
                f"{look.name}, {count:,} slots: {meaning}"
                for (look, meaning), count in zip(MEANINGS.items(), counts, strict=True)
            ],
            10 + 1.3 * float(label.get_fontsize()) * len(notes),
        )
        return self

    def _lines(self) -> Iterator[tuple[str, _Line]]:
        """Yield the lines, from the top, with what stands before each."""
        a_line = max(1, _A_LINE // self.census.pool.block_size)
        y = -1.0
        for table in self.tables:
            y += 0.4  # between tables
            name = f"{table.label}   " if table.label else ""
            before = -1
            for part in _runs_of(table.blocks, a_line):
                first = table.blocks[part.start]
                y += 1.0 if first == before + 1 else 1.4
                yield (
                    f"{name}block {first:,}",
                    _Line(y, table.blocks[part], table.kinds[part]),
                )
                name, before = "", table.blocks[part.stop - 1]

    def _notes(self) -> Iterator[str]:
        """Yield what a box is, and what is not drawn."""
        yield f"A box is a block of {self.census.pool.block_size:,} slots, a column in it a slot."
        if len(self.tables) < self.census.num_tables:
            yield (
                f"Only the first {len(self.tables):,} of {self.census.num_tables:,} tables are "
                "drawn; counts are of all."
            )
        cut = [table for table in self.tables if len(table.blocks) < table.num_blocks]
        if cut:
            drawn = max(len(table.blocks) for table in cut)
            yield (
                f"Of tables of more than {drawn:,} blocks only the first {-(-drawn // 2):,} and "
                f"the last {drawn // 2:,} are drawn (of up to "
                f"{max(table.num_blocks for table in cut):,}); counts are of all."
            )


def _drawn(label: str, table: TableOfBlocks, num_blocks: int, most: int) -> DrawnTable:
    blocks = np.arange(num_blocks)
    if num_blocks > most:
        blocks = np.concatenate([blocks[: -(-most // 2)], blocks[num_blocks - most // 2 :]])
    live, written, freed = (part[blocks] for part in table)
    kinds = np.where(live, _LIVE, np.where(written, _STRANDED, _SLACK))
    kinds[freed] = _FREE
    return DrawnTable(
        label=label,
        num_blocks=num_blocks,
        blocks=tuple(blocks.tolist()),
        kinds=kinds.astype(np.uint8),
    )


def _runs_of(blocks: tuple[int, ...], most: int) -> Iterator[slice]:
    """Yield pieces of consecutive numbers, none of them too long."""
    start = 0
    for place in range(1, len(blocks) + 1):
        ends = place == len(blocks) or blocks[place] != blocks[place - 1] + 1
        if ends or place - start == most:
            yield slice(start, place)
            start = place


def _draw(ax: Axes, lines: list[_Line], size: int) -> None:
    """Draw a rectangle for each run of slots of one kind, and a box around each block."""
    collections = imported("a plot", "matplotlib.collections", "plot")
    kinds = np.concatenate([line.kinds for line in lines])
    y = np.concatenate([np.full(len(line.blocks), line.y) for line in lines])
    left = np.concatenate([np.arange(len(line.blocks)) for line in lines]) * (size * (1 + _GAP))
    begins = np.ones(kinds.shape, np.bool_)
    begins[:, 1:] = kinds[:, 1:] != kinds[:, :-1]
    block, slot = np.nonzero(begins)
    width = np.diff(block * size + slot, append=kinds.size)
    for number, look in enumerate(MEANINGS):
        some = kinds[block, slot] == number
        ax.add_collection(
            collections.PolyCollection(
                _rectangles(left[block[some]] + slot[some], width[some], y[block[some]]),
                facecolor=look.colour,
                edgecolor=EDGE if look.hatch else look.colour,
                hatch=look.hatch or None,
                linewidth=0.0,
                label=look.name,
            )
        )
    ax.add_collection(
        collections.PolyCollection(
            _rectangles(left, np.full(len(left), size), y),
            facecolor="none",
            edgecolor=EDGE,
            linewidth=0.5,
            label="blocks",
        )
    )
    ax.set_xlim(-0.02 * left.max() - 0.02 * size, 1.02 * left.max() + 1.02 * size)
    ax.set_ylim(y.max() + 0.6, y.min() - 0.6)


def _rectangles(
    left: NDArray[np.float64], width: NDArray[np.int64], y: NDArray[np.float64]
) -> NDArray[np.float64]:
    right, top, bottom = left + width, y - _HEIGHT / 2, y + _HEIGHT / 2
    corners = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)
