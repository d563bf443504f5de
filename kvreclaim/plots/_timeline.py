"""A timeline: what the blocks of a generation hold, step by step."""

from __future__ import annotations

from typing import Any, Final

import attrs
import numpy as np
from numpy.typing import ArrayLike

from kvreclaim import _checks
from kvreclaim.census import Census
from kvreclaim.lifetimes import Timeline, timeline
from kvreclaim.plots import _drawing
from kvreclaim.plots._drawing import EDGE, FREE, LIVE, SLACK, STRANDED, AnyFigure, Axes
from kvreclaim.pool import PoolLike

_MOST_STEPS: Final = 2000


@attrs.define(kw_only=True, eq=False, on_setattr=attrs.setters.frozen)
class TimelineDisplay:
    """Blocks over the steps of a generation: what is in those held, and those that came back.

    It is made by `from_lives` or `from_timeline` and drawn by `plot`. Slots are drawn in blocks, so
    that live, stranded and slack ones together reach as high as the blocks held.

    Parameters
    ----------
    timeline
        What is drawn.
    last
        The census of the last step, for what packing would give then.
    ax_, figure_
        What `plot` drew on, there after it.

    Examples
    --------
    >>> display = TimelineDisplay.from_lives([0, 0, 0, 0], [9, 2, 1, 1], 2)
    >>> display.timeline.num_held_blocks.tolist()
    [2, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    """

    timeline: Timeline
    last: Census
    ax_: Axes = attrs.field(init=False, repr=False, on_setattr=attrs.setters.NO_OP)
    figure_: AnyFigure = attrs.field(init=False, repr=False, on_setattr=attrs.setters.NO_OP)

    @classmethod
    def from_lives(
        cls,
        born_at: ArrayLike,
        evicted_at: ArrayLike,
        pool: PoolLike,
        *,
        axes: str | None = None,
        lengths: ArrayLike | None = None,
        offset: ArrayLike = 0,
        reuse_holes: bool = False,
    ) -> TimelineDisplay:
        """Return the display of births and deaths; parameters and errors are `timeline`'s."""
        return cls.from_timeline(
            timeline(
                born_at,
                evicted_at,
                pool,
                axes=axes,
                lengths=lengths,
                offset=offset,
                reuse_holes=reuse_holes,
            )
        )

    @classmethod
    def from_timeline(cls, timeline: Timeline) -> TimelineDisplay:
        """Return the display of a timeline.

        Raises
        ------
        TypeError
            For what is no Timeline.
        """
        if not isinstance(timeline, Timeline):
            raise TypeError(
                f"timeline must be a Timeline; got {_checks.shown(timeline)}; write "
                "kvreclaim.timeline(born_at, evicted_at, pool)."
            )
        return cls(timeline=timeline, last=timeline.census_at(len(timeline.num_tokens) - 1))

    def __repr__(self) -> str:
        """Return how long it is, the peak, and under which pool."""
        line = self.timeline
        text = f"{len(line.num_tokens):,} steps; at most {line.peak_held_blocks:,} blocks are held"
        return _drawing.in_short(self, text, line.pool, self.last.rows_per_table)

    def plot(self, ax: Axes | None = None) -> TimelineDisplay:
        """Draw the timeline on an Axes, or on a new figure, and return the display.

        Raises
        ------
        TypeError
            For an `ax` that is no Axes.
        ValueError
            Where matplotlib is not installed.
        """
        line, last = self.timeline, self.last
        ax = _drawing.axes_for(ax, (7.0, 4.6))
        self.ax_, self.figure_ = ax, ax.figure
        held, peak = line.num_held_blocks, line.peak_held_blocks
        packed = last.num_floor_blocks
        _drawing.set_title(
            ax,
            f"Blocks over time: at most {peak:,} are held, {line.mean_held_blocks:,.1f} on "
            f"average; at the last step {int(held[-1]):,} in place, {packed:,} if packed"
            + "; holes are reused"
            * line.reuse_holes,
            line.pool,
            last.rows_per_table,
        )
        size = line.pool.block_size
        layers = (
            (LIVE, line.num_live_tokens, "live slots, in blocks"),
            (STRANDED, line.num_stranded_tokens, "stranded slots"),
            (
                SLACK,
                held * size - line.num_live_tokens - line.num_stranded_tokens,
                "slack: held, never written",
            ),
            (FREE, line.num_freed_blocks * size, "came back in place"),
        )
        steps = len(held)
        stride = -(-steps // _MOST_STEPS)
        places = np.append(np.arange(0, steps, stride), steps)  # the last step is as wide as others
        below = np.zeros(len(places))
        for look, slots, _ in layers:
            drawn = slots[::stride] / size
            above = below + np.append(drawn, drawn[-1])
            ax.fill_between(
                places,
                below,
                above,
                step="post",
                facecolor=look.colour,
                edgecolor=EDGE,
                hatch=look.hatch or None,
                linewidth=0.6,
                label=look.name,
            )
            below = above
        handles: list[Any] = [_drawing.patch_of(look) for look, *_ in layers]
        labels = [meaning for *_, meaning in layers]
        handles += ax.plot(
            [int(held.argmax()) + 0.5],
            [peak],
            color=_drawing.ink_of(ax),
            marker="v",
            linestyle="none",
            clip_on=False,
        )
        labels.append(f"peak: {peak:,} blocks held")
        ax.set_xlim(0, steps)
        ax.set_ylim(0, max(1.0, float(below.max())) * 1.05)
        every = "" if stride == 1 else f" (one of {stride:,} is drawn)"
        ax.set_xlabel(f"step{every}")
        ax.set_ylabel("blocks")
        _drawing.set_legend(ax, handles, labels)
        return self
