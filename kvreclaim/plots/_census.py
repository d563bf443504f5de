"""What a census says: how full its blocks are, and where the savings went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _chance, _checks, _layout
from kvreclaim._layout import Layout
from kvreclaim.census import Census, require_census, take_census
from kvreclaim.metrics import SavingsBreakdown, logical_saving, savings_breakdown
from kvreclaim.plots import _drawing
from kvreclaim.plots._drawing import (
    EDGE,
    FREE,
    LIVE,
    PINNED,
    SAVING,
    STRANDED,
    UNSHARED,
    AnyFigure,
    Axes,
    Look,
)
from kvreclaim.pool import PoolLike, as_pool

_MOST_BARS: Final = 64  # beside that of blocks without a live slot
_MOST_LETTERS: Final = 50  # along an axis
_HEADROOM: Final = 1.4  # for the two lines above a bar, in axes that are an inch high and more


@attrs.define(kw_only=True, eq=False, on_setattr=attrs.setters.frozen)
class OccupancyDisplay:
    """A histogram: how many blocks have so many live slots.

    It is made by `from_keep` or `from_census` and drawn by `plot`. The first bar, blocks without a
    live slot, is parted into those that come back in place and those that do not.

    Parameters
    ----------
    census
        Whose ``counts`` are drawn.
    chance
        Blocks that have 0, 1, ... live slots on average where each written slot is live by chance,
        by itself, as often as in the mask; None where that was not asked for.
    ax_, figure_
        What `plot` drew on, there after it.

    Examples
    --------
    >>> display = OccupancyDisplay.from_keep([1, 1, 0, 0, 1, 0, 0, 0], 4, chance=True)
    >>> display.census.counts
    (0, 1, 1, 0, 0)
    >>> [round(blocks, 3) for blocks in display.chance]
    [0.305, 0.732, 0.659, 0.264, 0.04]
    """

    census: Census
    chance: tuple[float, ...] | None = None
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
        chance: bool = False,
    ) -> OccupancyDisplay:
        """Return the histogram of a keep-mask.

        Parameters
        ----------
        keep, pool, axes, lengths, offset
            As in `take_census`.
        chance
            True: beside it, what chance gives.

        Raises
        ------
        TypeError, ValueError
            As `take_census`.
        """
        pool = as_pool(pool)
        asked = _checks.as_flag("chance", chance)
        census = take_census(keep, pool, axes=axes, lengths=lengths, offset=offset)
        if not asked:
            return cls(census=census)
        layout = _layout.lay_out(keep, pool, axes=axes, lengths=lengths, offset=offset)
        return cls(census=census, chance=tuple(_by_chance(census, layout).tolist()))

    @classmethod
    def from_census(cls, census: Census) -> OccupancyDisplay:
        """Return the histogram of a census, which does not tell what chance would give.

        Raises
        ------
        TypeError
            For what is no Census.
        """
        require_census(census)
        return cls(census=census)

    def __repr__(self) -> str:
        """Return what comes back, and under which pool."""
        return _in_short(self, self.census)

    def plot(self, ax: Axes | None = None) -> OccupancyDisplay:
        """Draw the histogram on an Axes, or on a new figure, and return the display.

        Raises
        ------
        TypeError
            For an `ax` that is no Axes.
        ValueError
            Where matplotlib is not installed.
        """
        census = self.census
        size = census.pool.block_size
        ax = _drawing.axes_for(ax, (7.0, 4.4))
        self.ax_, self.figure_ = ax, ax.figure
        _drawing.set_title(
            ax, f"Occupancy: {_drawing.comes_back(census)}", census.pool, census.rows_per_table
        )
        starts, names = _bars(size)
        heights = np.add.reduceat(census.counts, starts).tolist()
        freed = census.num_freed_blocks
        stays = census.counts[0] - freed
        _bar(ax, [0], [freed], FREE, 0)
        _bar(ax, [0], [stays], STRANDED, freed)
        _bar(ax, list(range(1, len(heights))), heights[1:], LIVE, 0)
        handles: list[Any] = [_drawing.patch_of(look) for look in (FREE, STRANDED, LIVE)]
        labels = [
            f"{freed:,} blocks: no live slot, comes back in place",
            f"{stays:,} blocks: no live slot, stays all the same",
            f"{census.num_nonempty_blocks:,} blocks: a slot is live",
        ]
        if self.chance is not None:
            handles += ax.plot(
                range(len(heights)),
                np.add.reduceat(self.chance, starts),
                color=_drawing.ink_of(ax),
                linestyle="--",
                marker="o",
                markerfacecolor="#FFFFFF",
                markersize=4,
            )
            labels.append("by chance: as many live slots, each anywhere")
        step = -(-len(names) * max(map(len, names)) // _MOST_LETTERS)
        ax.set_xticks(range(0, len(names), step), names[::step])
        ax.set_xlabel("live slots of a block")
        ax.set_ylabel("blocks")
        ax.margins(x=0.02)
        _drawing.set_legend(ax, handles, labels)
        return self


@attrs.define(kw_only=True, eq=False, on_setattr=attrs.setters.frozen)
class SavingsDisplay:
    """A waterfall: what is lost on the way from the logical saving to what is reclaimed.

    It is made by `from_keep` or `from_census` and drawn by `plot`. Bars are shares of the entries;
    the last one reaches as high as the first one less those between.

    Parameters
    ----------
    census
        Whose savings are drawn.
    ax_, figure_
        What `plot` drew on, there after it.

    Examples
    --------
    >>> display = SavingsDisplay.from_keep([[1, 0, 0, 0], [0, 0, 0, 0]], 2, axes="ht")
    >>> display.savings.num_stranded, display.savings.num_unshared, display.savings.num_reclaimed
    (2, 1, 4)
    """

    census: Census
    ax_: Axes = attrs.field(init=False, repr=False, on_setattr=attrs.setters.NO_OP)
    figure_: AnyFigure = attrs.field(init=False, repr=False, on_setattr=attrs.setters.NO_OP)

    @property
    def savings(self) -> SavingsBreakdown:
        """Where the evicted entries went."""
        return savings_breakdown(self.census)

    @classmethod
    def from_keep(
        cls,
        keep: ArrayLike,
        pool: PoolLike,
        *,
        axes: str | None = None,
        lengths: ArrayLike | None = None,
        offset: ArrayLike = 0,
        pinned: ArrayLike = 0,
    ) -> SavingsDisplay:
        """Return the waterfall of a keep-mask; parameters and errors are those of `take_census`."""
        return cls(
            census=take_census(keep, pool, axes=axes, lengths=lengths, offset=offset, pinned=pinned)
        )

    @classmethod
    def from_census(cls, census: Census) -> SavingsDisplay:
        """Return the waterfall of a census.

        Raises
        ------
        TypeError
            For what is no Census.
        """
        require_census(census)
        return cls(census=census)

    def __repr__(self) -> str:
        """Return what comes back, and under which pool."""
        return _in_short(self, self.census)

    def plot(self, ax: Axes | None = None) -> SavingsDisplay:
        """Draw the waterfall on an Axes, or on a new figure, and return the display.

        Raises
        ------
        TypeError
            For an `ax` that is no Axes.
        ValueError
            Where matplotlib is not installed.
        """
        census, savings = self.census, self.savings
        ax = _drawing.axes_for(ax, (7.0, 4.0))
        self.ax_, self.figure_ = ax, ax.figure
        _drawing.set_title(
            ax, f"Savings: {_drawing.comes_back(census)}", census.pool, census.rows_per_table
        )
        if not census.num_entries:
            _drawing.say_instead(ax, "undefined: there are no entries")
            return self
        lost = [
            (STRANDED, "stranded in\nheld blocks", savings.num_stranded),
            (UNSHARED, "kept alive by\nother rows", savings.num_unshared),
            (PINNED, "in pinned\nblocks", savings.num_pinned),
        ]
        bars = [
            (SAVING, "logical\nsaving", census.num_evicted_entries),
            *(lost if census.num_pinned_blocks else lost[:-1]),
            (FREE, "reclaimed\nin place", savings.num_reclaimed),
        ]
        level, ends = census.num_evicted_entries, []
        for place, (look, _, count) in enumerate(bars):
            hangs = 0 < place < len(bars) - 1
            level -= count if hangs else 0
            ends.append(level / census.num_entries)
            share = count / census.num_entries
            base = ends[-1] if hangs else 0.0
            _bar(ax, [place], [share], look, base)
            ax.annotate(
                f"{share:.3f}\n{count:,}",
                (place, base + share),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                size="small",
            )
        for place, end in enumerate(ends[:-1]):
            ax.plot([place + 0.4, place + 0.6], [end] * 2, color=_drawing.ink_of(ax), linewidth=0.8)
        ax.set_xticks(range(len(bars)), [name for _, name, _ in bars])
        ax.set_ylabel("share of all entries")
        ax.set_ylim(0, (logical_saving(census) or 1) * _HEADROOM)
        return self


def _in_short(display: object, census: Census) -> str:
    return _drawing.in_short(
        display, _drawing.comes_back(census), census.pool, census.rows_per_table
    )


def _bar(
    ax: Axes,
    places: list[int],
    heights: Sequence[float],
    look: Look,
    bottom: float,
) -> None:
    ax.bar(
        places,
        heights,
        0.8,
        bottom=bottom,
        facecolor=look.colour,
        edgecolor=EDGE,
        hatch=look.hatch or None,
        linewidth=0.8,
    )


def _bars(size: int) -> tuple[list[int], list[str]]:
    """Return where each bar starts and which numbers of live slots it is of: 0 by itself."""
    width = -(-size // _MOST_BARS)
    starts = [0, *range(1, size + 1, width)]
    ends = [*starts[1:], size + 1]
    return starts, [
        f"{start}" if end == start + 1 else f"{start}-{end - 1}"
        for start, end in zip(starts, ends, strict=True)
    ]


def _by_chance(census: Census, layout: Layout) -> NDArray[np.float64]:
    """Return how many blocks have so many live slots where each is live by itself."""
    size = census.pool.block_size
    blocks = np.zeros(size + 1)
    if not census.num_tokens:
        return blocks
    from scipy import stats

    share = census.num_live_tokens / census.num_tokens
    shapes = np.stack(_layout.of_each_table(layout))
    alike, tables = np.unique(shapes, axis=1, return_counts=True)
    written: dict[int, int] = {}
    for (length, offset), count in zip(alike.T.tolist(), tables.tolist(), strict=True):
        for slots, number in _chance.cut(length, size, offset).items():
            written[slots] = written.get(slots, 0) + number * count
    for slots, number in written.items():
        blocks[: slots + 1] += number * stats.binom.pmf(np.arange(slots + 1), slots, share)
    return blocks
