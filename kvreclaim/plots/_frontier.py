"""The frontier: what policies lose, beside the least that has to go for so many free blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from numpy.typing import ArrayLike

from kvreclaim import _checks, _entries
from kvreclaim._entries import Entries
from kvreclaim._render.tables import printable
from kvreclaim.census import Census, take_census
from kvreclaim.frontier import Frontier, reclaim_frontier
from kvreclaim.plots import _drawing
from kvreclaim.plots._drawing import AnyFigure, Axes
from kvreclaim.pool import BlockPool, PoolLike, as_pool

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
COLOURS: Final = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
_FEW: Final = 40  # points of a line that have a marker each
_IN_LEGEND: Final = 6  # policies that a legend has room for
_LINE: Final = 0.2  # inches of each other


@attrs.frozen(kw_only=True)
class PolicyPoint:
    """What a policy's mask loses, and what it frees.

    Parameters
    ----------
    name
        As it was given.
    loss
        The sum of the importance that it evicts.
    census
        Of the mask.
    """

    name: str
    loss: float
    census: Census


@attrs.define(kw_only=True, eq=False, on_setattr=attrs.setters.frozen)
class FrontierDisplay:
    """The least loss for each number of free blocks, and policies of the same budget beside it.

    It is made by `from_importance` and drawn by `plot`.

    Parameters
    ----------
    frontier
        The least losses, and what is proved of them.
    pool
        The BlockPool.
    rows_per_table
        Rows whose entries live in the same blocks.
    num_entries, num_evicted
        Entries, and how many of them go.
    points
        A `PolicyPoint` for each policy.
    ax_, figure_
        What `plot` drew on, there after it.

    Examples
    --------
    >>> scores = [1, 9, 3, 4, 2, 9, 8, 8]
    >>> lowest = [0, 1, 0, 0, 0, 1, 1, 1]
    >>> display = FrontierDisplay.from_importance(scores, 2, 4, policies={"lowest": lowest})
    >>> display.frontier.loss
    (10.0, 10.0, 17.0)
    >>> display.points[0].loss, display.points[0].census.num_freed_blocks
    (10.0, 1)
    """

    frontier: Frontier
    pool: BlockPool
    rows_per_table: int
    num_entries: int
    num_evicted: int
    points: tuple[PolicyPoint, ...] = ()
    ax_: Axes = attrs.field(init=False, repr=False, on_setattr=attrs.setters.NO_OP)
    figure_: AnyFigure = attrs.field(init=False, repr=False, on_setattr=attrs.setters.NO_OP)

    @classmethod
    def from_importance(
        cls,
        importance: ArrayLike,
        pool: PoolLike,
        num_evicted: int,
        blocks: int | Sequence[int] | None = None,
        *,
        policies: Mapping[str, ArrayLike] | None = None,
        protected: ArrayLike | None = None,
        axes: str | None = None,
        lengths: ArrayLike | None = None,
        offset: ArrayLike = 0,
    ) -> FrontierDisplay:
        """Return the frontier of scores under a budget, and where policies lie.

        Parameters
        ----------
        importance, pool, num_evicted, blocks, protected, axes, lengths, offset
            As in `reclaim_frontier`.
        policies
            Keep-masks by name, in the shape of the importance. Each must evict exactly
            `num_evicted` entries, since under another budget another frontier holds.

        Raises
        ------
        TypeError, ValueError
            As `reclaim_frontier`; and for a mask of another shape or budget, or one that evicts
            what is protected.
        """
        pool = as_pool(pool)
        frontier = reclaim_frontier(
            importance,
            pool,
            num_evicted,
            blocks,
            protected=protected,
            axes=axes,
            lengths=lengths,
            offset=offset,
        )
        entries = _entries.lay_out(
            importance, pool, protected, axes=axes, lengths=lengths, offset=offset
        )
        masks = _as_policies(policies)
        points = []
        for name, keep in masks.items():
            where = f"policies[{name!r}]"
            mask = _checks.as_keep(keep, where)
            _entries.require_shape(where, mask, entries.shape)
            census = take_census(mask, pool, axes=axes, lengths=lengths, offset=offset)
            loss = _loss_of(where, entries, mask, census, int(num_evicted))
            points.append(PolicyPoint(name=name, loss=loss, census=census))
        shared = (entries.letters.index(c) for c in pool.shared_axes if c in entries.letters)
        return cls(
            frontier=frontier,
            pool=pool,
            rows_per_table=math.prod(entries.shape[axis] for axis in shared),
            num_entries=len(entries.problem.weights),
            num_evicted=int(num_evicted),
            points=tuple(points),
        )

    def __repr__(self) -> str:
        """Return the budget, how many points there are, and under which pool."""
        text = (
            f"{self.num_evicted:,} of {self.num_entries:,} entries evicted; "
            f"{len(self.frontier.free_blocks):,} numbers of free blocks, "
            f"{len(self.points):,} policies"
        )
        return _drawing.in_short(self, text, self.pool, self.rows_per_table)

    def plot(self, ax: Axes | None = None) -> FrontierDisplay:
        """Draw frontier and policies on an Axes, or on a new figure, and return the display.

        Raises
        ------
        TypeError
            For an `ax` that is no Axes.
        ValueError
            Where matplotlib is not installed.
        """
        frontier = self.frontier
        below = max(0, len(self.points) - _IN_LEGEND)
        ax = _drawing.axes_for(ax, (7.0, 4.6 + _LINE * below))
        self.ax_, self.figure_ = ax, ax.figure
        _drawing.set_title(
            ax,
            f"Frontier: the least loss of {self.num_evicted:,} of {self.num_entries:,} entries "
            "evicted, for blocks that come back in place",
            self.pool,
            self.rows_per_table,
        )
        proved = frontier.loss == frontier.lower_bound
        order = sorted(range(len(frontier.free_blocks)), key=frontier.free_blocks.__getitem__)
        places = [frontier.free_blocks[number] for number in order]
        dots = "." if len(places) <= _FEW else ""
        handles: list[Any] = ax.plot(
            places,
            [frontier.loss[number] for number in order],
            color=_drawing.LIVE.colour,
            marker=dots,
            linewidth=1.6,
        )
        labels = ["least loss, proved" if proved else "least loss found"]
        if not proved:
            bounds = [frontier.lower_bound[number] for number in order]
            handles += ax.plot(places, bounds, color=_drawing.GREY, linestyle="--")
            labels.append("no mask loses less (lower bound)")
        for number, point in enumerate(self.points):
            handles += ax.plot(
                [point.census.num_freed_blocks],
                [point.loss],
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                markeredgecolor="#000000",
                markersize=8,
                linestyle="none",
                clip_on=False,
                zorder=3,
            )
            packed = point.census.num_blocks - point.census.num_floor_blocks
            labels.append(
                f"{_drawing.shortened(printable(point.name))}: in place "
                f"{point.census.num_freed_blocks:,}, packed {packed:,}"
            )
        ax.set_xlabel("blocks that come back in place, at least")
        ax.set_ylabel("importance that is evicted")
        ax.locator_params(axis="x", integer=True)
        _drawing.set_legend(ax, handles, labels)
        return self


def _as_policies(policies: object) -> Mapping[str, ArrayLike]:
    if policies is None:
        return {}
    if not isinstance(policies, Mapping) or not all(isinstance(name, str) for name in policies):
        raise TypeError(
            f"policies must be a dict of keep-masks by name; got {_checks.shown(policies)}; write "
            "such as {'h2o': keep}."
        )
    return policies


def _loss_of(where: str, entries: Entries, keep: Any, census: Census, budget: int) -> float:  # noqa: ANN401  # a mask
    if census.num_evicted_entries != budget:
        raise ValueError(
            f"{where} must evict num_evicted={budget} entries, since under another budget another "
            f"frontier holds; got {census.num_evicted_entries}; draw it in a figure of its own."
        )
    loss = _entries.loss_of(entries.problem, ~entries.flatten(keep))
    if math.isinf(loss):
        raise ValueError(
            f"{where} must keep what is protected, or has importance +inf; got a mask that evicts "
            "some of it; protect only what every policy keeps."
        )
    return loss
