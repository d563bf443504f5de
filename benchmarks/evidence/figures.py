"""Three figures of docs/evidence.md, as SVG: the same data give the same files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmarks.evidence import matched
from benchmarks.evidence.answers_memory import freed, losses
from benchmarks.evidence.cells import LAYOUTS, NAMES, model_name
from benchmarks.evidence.found import Evidence, digest, read
from benchmarks.evidence.settings import BLOCK_SIZE, BLOCK_SIZES, POLICIES, PUBLISHED
from benchmarks.study.series import COLOURS

SETTINGS: Final[dict[Any, Any]] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 8.5,
    "grid.color": "#dddddd",
    "hatch.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",  # text stays text: a third of the size
    "svg.hashsalt": "kvreclaim",  # else the ids of an svg differ from run to run
}


class Look(NamedTuple):
    """How a policy is drawn: its marker alone tells it among those of its kind of line."""

    colour: str
    marker: str
    dashes: Literal["-", "--"]


_COLOURS: Final = (*COLOURS, "#A0522D")
_MARKERS: Final = "osD^vP*Xph"
LOOKS: Final[Mapping[str, Look]] = {
    policy: Look(
        _COLOURS[number % len(PUBLISHED)],
        _MARKERS[number % len(PUBLISHED)],
        "-" if policy in PUBLISHED else "--",
    )
    for number, policy in enumerate(POLICIES)
}

PARTS: Final = (  # what is said, colour, hatch
    ("comes back in place", "#0072B2", ""),
    ("lost to the size of a block", "#E69F00", "////"),
    ("lost to sharing", "#CC79A7", "xxx"),
)
PACKED: Final[dict[str, Any]] = {
    "linestyle": "none",
    "marker": "D",
    "markerfacecolor": "white",
    "markeredgecolor": "black",
}


def draw(folder: Path, into: Path) -> list[Path]:
    """Write the figures of a folder of data into another, and return their paths.

    Each says in its metadata of which data it is: their `found.digest`.
    """
    evidence = read(folder)
    metadata = {"Date": None, "Description": f"sha256 of the data: {digest(folder)}"}
    drawn: dict[str, Callable[[Evidence], Figure]] = {
        "quality-and-reclaim": quality_and_reclaim,
        "block-sizes": over_block_sizes,
        "sharing": where_savings_went,
    }
    into.mkdir(parents=True, exist_ok=True)
    paths = []
    with mpl.rc_context():
        mpl.rcdefaults()  # a matplotlibrc of the user's must not change them
        mpl.rcParams.update(SETTINGS)
        for stem, make in drawn.items():
            path = into / f"{stem}.svg"
            make(evidence).savefig(path, metadata=metadata)
            paths.append(path)
    return paths


def _grid(evidence: Evidence, columns: int, height: float) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with a row of axes for each model."""
    rows = len(evidence.models)
    figure = Figure(figsize=(8.0, 0.9 + height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    return figure, [list(row) for row in axes]


def quality_and_reclaim(evidence: Evidence) -> Figure:
    """Return reclaim over KL, in place and packed, one table for all: a point for each ratio."""
    figure, grid = _grid(evidence, 2, 2.9)
    for model, row in zip(evidence.models, grid, strict=True):
        for ax, way in zip(row, ("in place", "packed"), strict=True):
            ax.set_title(f"{model_name(model)}, {way}")
            ax.set_xscale("log")
            for policy in evidence.policies(model):
                curve = matched.mean_curve(matched.curves_of(evidence.points[model, policy]))
                below = curve[1:]  # the whole cache, KL 0, has no place on a logarithmic axis
                _line(
                    ax, policy, [one["kl"] for one in below], [one[f"{way} all"] for one in below]
                )
    for ax in grid[-1]:
        ax.set_xlabel("KL against the whole cache (nats)")
    for row in grid:
        row[0].set_ylabel("blocks that come back (share)")
    _name_policies(figure, evidence)
    return figure


def over_block_sizes(evidence: Evidence) -> Figure:
    """Return reclaim over the block size, one half retained."""
    shown = (("head", "in place"), ("all", "in place"), ("all", "packed"))
    figure, grid = _grid(evidence, len(shown), 2.6)
    for model, row in zip(evidence.models, grid, strict=True):
        for ax, (tables, way) in zip(row, shown, strict=True):
            ax.set_title(f"{model_name(model)}, {LAYOUTS[tables]}, {way}", size="small")
            ax.set_xscale("log", base=2)
            ax.set_xticks(BLOCK_SIZES, [str(size) for size in BLOCK_SIZES])
            for policy in evidence.policies(model):
                pairs = [freed(evidence, model, policy, tables, size) for size in BLOCK_SIZES]
                _line(ax, policy, BLOCK_SIZES, [one[way == "packed"] for one in pairs])
    for ax in grid[-1]:
        ax.set_xlabel("block size B (slots)")
    for row in grid:
        row[0].set_ylabel("blocks that come back (share)")
    _name_policies(figure, evidence)
    return figure


def _line(ax: Axes, policy: str, xs: Any, ys: list[float]) -> None:  # noqa: ANN401  # numbers
    look = LOOKS[policy]
    ax.plot(
        xs,
        ys,
        color=look.colour,
        linestyle=look.dashes,
        marker=look.marker,
        markerfacecolor=look.colour if look.dashes == "-" else "white",
        markeredgecolor=look.colour,
        markeredgewidth=0.9,
        label=policy,
    )


def _name_policies(figure: Figure, evidence: Evidence) -> None:
    there = {policy for model in evidence.models for policy in evidence.policies(model)}
    handles = [
        Line2D(
            [],
            [],
            color=look.colour,
            linestyle=look.dashes,
            marker=look.marker,
            markerfacecolor=look.colour if look.dashes == "-" else "white",
            label=NAMES[policy],
        )
        for policy, look in LOOKS.items()
        if policy in there
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)


def where_savings_went(evidence: Evidence) -> Figure:
    """Return bars of what was evicted: what came back, what was lost to blocks and to sharing."""
    figure, grid = _grid(evidence, len(LAYOUTS), 3.4)
    for model, row in zip(evidence.models, grid, strict=True):
        policies = [one for one in evidence.policies(model) if (model, one) in evidence.lies]
        for ax, tables in zip(row, LAYOUTS, strict=True):
            ax.set_title(f"{model_name(model)}, {LAYOUTS[tables]}", size="small")
            ax.grid(visible=False, axis="y")
            each = [losses(evidence.lies[model, policy], tables) for policy in policies]
            left = [0.0] * len(each)
            names = [NAMES[policy] for policy in policies]
            for place, (_, colour, hatch) in enumerate(PARTS):
                widths = [one[place] for one in each]
                ax.barh(
                    names,
                    widths,
                    left=left,
                    facecolor=colour,
                    edgecolor="#333333",
                    hatch=hatch,
                    linewidth=0.5,
                )
                left = [one + more for one, more in zip(left, widths, strict=True)]
            packed = [freed(evidence, model, policy, tables, BLOCK_SIZE)[1] for policy in policies]
            ax.plot(packed, names, **PACKED)
            ax.yaxis.set_inverted(True)
            ax.set_xlim(0.0, max([*left, *packed, ax.get_xlim()[1]]) * 1.02)
    for ax in grid[-1]:
        ax.set_xlabel(f"share of entries, B = {BLOCK_SIZE}")
    handles = [
        *(
            Patch(facecolor=colour, edgecolor="#333333", hatch=hatch, label=words)
            for words, colour, hatch in PARTS
        ),
        Line2D([], [], label="blocks that come back packed", **PACKED),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    return figure
