"""What all displays have in common: looks, titles that name the pool, legends."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from kvreclaim import _checks
from kvreclaim._formats.libraries import imported
from kvreclaim._version import __version__
from kvreclaim.census import Census
from kvreclaim.metrics import packed_reclaim, physical_reclaim
from kvreclaim.pool import BlockPool
from kvreclaim.signature import Signature, line_of

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

    Axes: TypeAlias = matplotlib.axes.Axes
    AnyFigure: TypeAlias = matplotlib.figure.Figure | matplotlib.figure.SubFigure
else:
    Axes = AnyFigure = Any  # matplotlib may be absent

EDGE: Final = "#333333"
GREY: Final = "#777777"

_ALWAYS_NAMED: Final = ("B", "share", "frees", "tail", "move", "rows")
_NARROWEST: Final = 24  # letters of a line of a title
_LETTER: Final = 0.55  # width of a letter over the size of its font
_BELOW: Final = 40  # points from the axes to their legend: ticks and a label lie between
_COLUMN: Final = 3.6  # inches of a column of a legend
_LONGEST_NAME: Final = 40  # letters


class Look(NamedTuple):
    """How a kind of thing is drawn: alone by its lightness or its hatch one knows it in grey."""

    name: str
    colour: str  # of Okabe and Ito, white, or grey
    hatch: str


LIVE: Final = Look("live", "#0072B2", "")
STRANDED: Final = Look("stranded", "#E69F00", "////")
FREE: Final = Look("free", "#FFFFFF", "")
SLACK: Final = Look("slack", "#D9D9D9", "....")
SAVING: Final = Look("logical saving", GREY, "")
UNSHARED: Final = Look("kept alive by other rows", "#CC79A7", "xxx")
PINNED: Final = Look("in pinned blocks", "#56B4E9", "---")

MEANINGS: Final = {
    LIVE: "kept by a row",
    STRANDED: "dead, in a block that stays",
    FREE: "in a block that comes back in place",
    SLACK: "never written, in a block that stays",
}
"""The four kinds of slots, in the order in which they are numbered."""


def axes_for(ax: object, size: tuple[float, float]) -> Axes:
    """Return the axes that were given, or new ones of pyplot, which a notebook shows."""
    if ax is None:
        pyplot = imported("a plot", "matplotlib.pyplot", "plot")
        made: Axes = pyplot.subplots(figsize=size, layout="constrained")[1]
        return made
    given: type[Axes] = imported("a plot", "matplotlib.axes", "plot").Axes
    if not isinstance(ax, given):
        raise TypeError(
            f"ax must be the Axes of matplotlib to draw on; got {_checks.shown(ax)}; write one of "
            "those that figure.subplots() returns, or leave it out."
        )
    if ax.figure is None:
        raise ValueError(
            "ax must be on a figure; got one that was removed from it; write one of those that "
            "figure.subplots() returns, or leave it out."
        )
    return ax


def in_short(display: object, text: str, pool: BlockPool, rows: int) -> str:
    """Return a display as a line: what its title says."""
    return f"<{type(display).__name__}: {text}; {short_signature(pool, rows)}>"


def comes_back(census: Census) -> str:
    """Return how many blocks come back: in place, and packed."""
    if not census.num_blocks:
        return "no blocks: what comes back is undefined"
    packed = census.num_blocks - census.num_floor_blocks
    return (
        f"in place {census.num_freed_blocks:,} of {census.num_blocks:,} blocks come back "
        f"({physical_reclaim(census):.3f}), packed {packed:,} would ({packed_reclaim(census):.3f})"
    )


def short_signature(pool: BlockPool, rows: int) -> str:
    """Return the signature without the version and what has its default value."""
    fields = Signature(pool, rows, __version__).fields()
    usual = Signature(BlockPool(1), rows, __version__).fields()
    return line_of(
        {
            name: value
            for name, value in fields.items()
            if name in _ALWAYS_NAMED or value != usual[name]
        }
    )


def set_title(ax: Axes, text: str, pool: BlockPool, rows: int) -> None:
    """Write what is drawn above the axes, and under which pool, in lines that fit."""
    title = ax.set_title("", loc="left", fontsize="small")
    signature = short_signature(pool, rows).replace("|", "| ")
    of_pool = [line.replace("| ", "|") for line in wrapped(ax, title, signature)]
    title.set_text("\n".join([*wrapped(ax, title, text), *of_pool]))


def wrapped(ax: Axes, label: Any, text: str) -> list[str]:  # noqa: ANN401  # a Text
    """Return text in lines as wide as the axes, in the font of a label."""
    letters = int(72 * _inches_of(ax) / (_LETTER * label.get_fontsize()))
    return textwrap.wrap(text, max(_NARROWEST, letters), break_long_words=False)


def shortened(name: str) -> str:
    """Return a name with its middle left out where it would leave the axes no room."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}...{name[-half:]}"


def _inches_of(ax: Axes) -> float:
    return ax.get_position().width * ax.figure.bbox.width / ax.figure.dpi


def ink_of(ax: Axes) -> Any:  # noqa: ANN401  # a colour
    """Return the colour in which the style that is on writes, which is seen on its background."""
    return ax.xaxis.label.get_color()


def patch_of(look: Look) -> Any:  # noqa: ANN401  # a Patch
    """Return a sample of a look for a legend."""
    patches = imported("a plot", "matplotlib.patches", "plot")
    return patches.Patch(facecolor=look.colour, edgecolor=EDGE, hatch=look.hatch, linewidth=0.6)


def set_legend(
    ax: Axes, handles: Sequence[Any], labels: Sequence[str], points: float | None = None
) -> None:
    """Put a legend so far below the axes; labels are drawn as they are, whatever they hold.

    Where no distance is given, and no layout engine makes room there, it is put within the axes.
    """
    names = [f"{number}" for number in range(len(labels))]  # none begins with "_" for matplotlib
    if points is None and ax.figure.get_layout_engine() is None:
        legend = ax.legend(handles, names, fontsize="small")
    else:
        transforms = imported("a plot", "matplotlib.transforms", "plot")
        below = transforms.offset_copy(
            ax.transAxes, ax.figure, y=-(points or _BELOW), units="points"
        )
        legend = ax.legend(
            handles,
            names,
            loc="upper left",
            bbox_to_anchor=(0.0, 0.0),
            bbox_transform=below,
            borderaxespad=0.0,
            fontsize="small",
            frameon=False,
            ncols=max(1, int(_inches_of(ax) // _COLUMN)),
        )
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def say_instead(ax: Axes, text: str) -> None:
    """Write in the middle of empty axes why they are empty."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center")
    ax.set(xticks=[], yticks=[])
