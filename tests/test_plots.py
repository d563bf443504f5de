"""The displays: what they draw is what was counted, and can be told apart without colour."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray
from optional import library
from scripts import fresh, output_of, scripts_of
from strategies import Case, cases

import kvreclaim
from kvreclaim import (
    NEVER,
    BlockPool,
    Frontier,
    policies,
    reclaim_frontier,
    report,
    savings_breakdown,
    take_census,
)
from kvreclaim.plots import (
    BlockMapDisplay,
    FrontierDisplay,
    OccupancyDisplay,
    PolicyPoint,
    SavingsDisplay,
    TimelineDisplay,
    _block_map,
    _drawing,
    _frontier,
)

Axes: TypeAlias = Any
"""The Axes of matplotlib, which may be absent."""

RNG = np.random.default_rng(0)
UNSHARED = BlockPool(4, shared_axes="")
SCATTER = np.random.default_rng(1).random((4, 512)) < 0.3
BORN = np.maximum(np.arange(60) - 19, 0)
EVICTED = np.where(np.arange(60) % 7 == 0, NEVER, BORN + 9)
SCORES = np.random.default_rng(2).lognormal(size=128)
MASKS = {
    "_lowest $x$": policies.lowest_importance(SCORES, 64),
    "whole": policies.whole_block(SCORES, 64, BlockPool(16)),
}
FOUR_HEADS = take_census(SCATTER, BlockPool(16, total_blocks=99), axes="ht")
DISPLAYS: dict[str, Callable[[], Any]] = {
    "map": lambda: BlockMapDisplay.from_keep(SCATTER[0], 16),
    "map of a part": lambda: BlockMapDisplay.from_keep(
        SCATTER, BlockPool(16, shared_axes=""), axes="ht", max_tables=3, max_blocks=9
    ),
    "occupancy": lambda: OccupancyDisplay.from_keep(SCATTER, 16, axes="ht", chance=True),
    "occupancy of large blocks": lambda: OccupancyDisplay.from_keep(SCATTER[0], 300, chance=True),
    "savings": lambda: SavingsDisplay.from_census(FOUR_HEADS),
    "pinned savings": lambda: SavingsDisplay.from_keep(SCATTER[0], 16, pinned=100),
    "frontier": lambda: FrontierDisplay.from_importance(SCORES, 16, 64, policies=MASKS),
    "timeline": lambda: TimelineDisplay.from_lives(BORN, EVICTED, 4),
}
EMPTY: dict[str, Callable[[], Any]] = {
    "map": lambda: BlockMapDisplay.from_keep(np.ones((0, 4), bool), 2, axes="bt"),
    "map of an empty table": lambda: BlockMapDisplay.from_keep([], 2),
    "occupancy": lambda: OccupancyDisplay.from_keep([], 2, chance=True),
    "savings": lambda: SavingsDisplay.from_keep([], 2),
    "frontier": lambda: FrontierDisplay.from_importance([], 2, 0),
    "timeline": lambda: TimelineDisplay.from_lives([], [], 2),
}


@pytest.fixture
def ax() -> Axes:
    figure = library("matplotlib.figure").Figure(figsize=(7, 5), layout="constrained")
    return figure.add_subplot()


@pytest.fixture
def pyplot(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    library("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    pyplot = library("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    yield pyplot
    pyplot.close("all")


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def title(ax: Axes) -> str:
    return str(ax.get_title(loc="left"))


# --- All displays ---


@pytest.mark.parametrize("make", DISPLAYS.values(), ids=DISPLAYS)
def test_a_title_names_the_pool_and_says_in_place_and_packed(
    make: Callable[[], Any], ax: Axes
) -> None:
    display = make().plot(ax)
    pool = display.timeline.pool if isinstance(display, TimelineDisplay) else None
    pool = pool or (display.pool if isinstance(display, FrontierDisplay) else display.census.pool)
    written = title(ax).replace("\n", " ")
    assert f"B:{pool.block_size}|share:{pool.shared_axes or 'none'}|" in written
    assert "in place" in written
    assert "packed" in written + " ".join(texts(ax) if ax.get_legend() else [])


def test_the_signature_is_short_but_names_all_that_is_unusual() -> None:
    assert _drawing.short_signature(BlockPool(16), 4) == (
        "B:16|share:hl|frees:any|tail:closed|move:evacuate|rows:4"
    )
    pool = BlockPool(
        8, shared_axes="", total_blocks=9, reserved_blocks=2, watermark_blocks=1, entry_bytes=5
    )
    full = report([1], pool).signature
    assert _drawing.short_signature(pool, 1) == full.rpartition("|")[0]


def test_a_title_is_broken_between_fields_of_the_signature(ax: Axes) -> None:
    figure = library("matplotlib.figure").Figure(figsize=(12, 3))
    small = figure.subplots(1, 4)[0]
    DISPLAYS["savings"]().plot(small)
    lines = title(small).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("B:"))
    assert start > 1
    assert len(lines) > start + 1
    wanted = "B:16|share:hl|frees:any|tail:closed|move:evacuate|pool:99|rows:4"
    assert "".join(lines[start:]) == wanted
    assert all(line.endswith("|") for line in lines[start:-1])
    DISPLAYS["savings"]().plot(ax)
    assert title(ax).splitlines()[-1] == wanted


@pytest.mark.parametrize("make", DISPLAYS.values(), ids=DISPLAYS)
def test_nothing_overlaps_and_nothing_is_cut_off(make: Callable[[], Any], pyplot: Any) -> None:  # noqa: ANN401  # a module
    display = make().plot()
    assert display.figure_ is pyplot.gcf()
    figure, ax = display.figure_, display.ax_
    figure.canvas.draw()
    boxes = [ax.title, ax._left_title, ax.xaxis.label, *filter(None, [ax.get_legend()])]
    boxes = [box.get_window_extent() for box in boxes]
    ticks = [
        [
            tick.label1.get_window_extent()
            for tick in axis.get_major_ticks()
            if min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
        ]
        for axis in (ax.xaxis, ax.yaxis)
    ]
    bars = [text.get_window_extent() for text in ax.texts]
    for group in ([*boxes, *ticks[0]], ticks[1], bars):
        seen = [box for box in group if box.width]
        assert not any(a.overlaps(b) for a, b in itertools.combinations(seen, 2))
        for box in seen:
            assert figure.bbox.x0 - 1 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1
            assert figure.bbox.y0 - 1 <= box.y0 <= box.y1 <= figure.bbox.y1 + 1


@pytest.mark.parametrize("name", sorted({*DISPLAYS} - {"savings", "pinned savings"}))
def test_where_nothing_makes_room_below_a_legend_is_within_the_axes(
    name: str,
    pyplot: Any,  # noqa: ANN401  # a module
) -> None:
    figure, ax = pyplot.subplots()
    DISPLAYS[name]().plot(ax)
    figure.canvas.draw()
    legend, within = ax.get_legend().get_window_extent(), ax.get_window_extent()
    if name.startswith("map"):  # it would hide what is drawn
        assert legend.y1 < within.y0
    else:
        assert within.y0 < legend.y0 < legend.y1 < within.y1
        assert within.x0 < legend.x0 < legend.x1 < within.x1


def test_what_stands_on_a_bar_stays_below_the_frame(pyplot: Any) -> None:  # noqa: ANN401
    for rows, columns in ((1, 1), (1, 2), (2, 1)):
        figure, axes = pyplot.subplots(rows, columns, layout="constrained", squeeze=False)
        ax = axes[0, 0]
        DISPLAYS["savings"]().plot(ax)
        figure.canvas.draw()
        tops = [text.get_window_extent().y1 for text in ax.texts]
        assert max(tops) < ax.get_window_extent().y1


@pytest.mark.parametrize("make", [*DISPLAYS.values(), *EMPTY.values()])
def test_a_display_is_a_line_in_a_notebook(make: Callable[[], Any]) -> None:
    display = make()
    text = repr(display)
    assert text.startswith(f"<{type(display).__name__}: ")
    assert text.endswith("|rows:4>") or "|rows:1>" in text or "|rows:0>" in text
    assert "\n" not in text
    assert len(text) < 200
    for table in getattr(display, "tables", ()):
        assert len(repr(table)) < 100


def test_what_the_line_of_a_display_says() -> None:
    census = "in place 0 of 32 blocks come back (0.000), packed 21 would (0.656)"
    pool = "B:16|share:hl|frees:any|tail:closed|move:evacuate|"
    assert repr(DISPLAYS["occupancy"]()) == f"<OccupancyDisplay: {census}; {pool}rows:4>"
    assert repr(DISPLAYS["savings"]()) == f"<SavingsDisplay: {census}; {pool}pool:99|rows:4>"
    assert "; 3 of 4 tables drawn; B:16|share:none|" in repr(DISPLAYS["map of a part"]())
    assert repr(DISPLAYS["frontier"]()) == (
        "<FrontierDisplay: 64 of 128 entries evicted; 5 numbers of free blocks, 2 policies; "
        f"{pool}rows:1>"
    )
    assert repr(DISPLAYS["timeline"]()).startswith(
        "<TimelineDisplay: 50 steps; at most 10 blocks are held; B:4|"
    )


@pytest.mark.parametrize("make", EMPTY.values(), ids=EMPTY)
def test_nothing_is_drawn_of_nothing(make: Callable[[], Any], ax: Axes) -> None:
    make().plot(ax)
    ax.figure.draw_without_rendering()
    assert "B:2|" in title(ax)


@pytest.mark.parametrize("make", DISPLAYS.values(), ids=DISPLAYS)
def test_plot_returns_the_display_with_what_it_drew_on(make: Callable[[], Any], ax: Axes) -> None:
    display = make()
    with pytest.raises(AttributeError):
        _ = display.ax_
    assert display.plot(ax) is display
    assert (display.ax_, display.figure_) == (ax, ax.figure)
    field = attrs.fields(type(display))[0].name
    with pytest.raises(attrs.exceptions.FrozenAttributeError):
        setattr(display, field, None)


def test_a_subfigure_will_do() -> None:
    figure = library("matplotlib.figure").Figure(layout="constrained")
    part = figure.subfigures(1, 2)[0]
    display = DISPLAYS["occupancy"]().plot(part.add_subplot())
    figure.draw_without_rendering()
    assert display.figure_ is part


@pytest.mark.parametrize("make", DISPLAYS.values(), ids=DISPLAYS)
@pytest.mark.parametrize("wrong", [3, [1, 2], "ax"])
def test_other_things_are_no_axes(make: Callable[[], Any], wrong: Any) -> None:  # noqa: ANN401
    library("matplotlib")
    with pytest.raises(TypeError, match=r"^ax must be the Axes of matplotlib to draw on; got .*"):
        make().plot(wrong)


@pytest.mark.parametrize("make", DISPLAYS.values(), ids=DISPLAYS)
def test_axes_that_were_removed_are_refused(make: Callable[[], Any], ax: Axes) -> None:
    ax.remove()
    with pytest.raises(ValueError, match=r"^ax must be on a figure; got one that was removed"):
        make().plot(ax)


def test_matplotlib_is_needed_to_draw_alone() -> None:
    shown = fresh(
        "import sys; sys.modules['matplotlib'] = None\n"
        "from kvreclaim.plots import *\n"
        "display = OccupancyDisplay.from_keep([1, 0, 0, 0], 2)\n"
        "print(display.census.counts)\n"
        "try: display.plot()\n"
        "except ValueError as error: print(error)"
    )
    assert shown == (
        "(1, 1, 0)\n"
        "a plot must be handled by the package matplotlib; got ModuleNotFoundError on importing "
        "it; write pip install 'kvreclaim[plot]'."
    )


def test_importing_and_computing_load_neither_matplotlib_nor_scipy() -> None:
    shown = fresh(
        "import sys; from kvreclaim.plots import *\n"
        "SavingsDisplay.from_keep([1, 0, 0, 0], 2)\n"
        "print([name for name in ('matplotlib', 'scipy') if name in sys.modules])"
    )
    assert shown == "[]"


def test_given_axes_nothing_of_pyplot_is_loaded_and_no_setting_changes() -> None:
    library("matplotlib")
    shown = fresh(
        "import sys, matplotlib\n"
        "from matplotlib.figure import Figure\n"
        "from kvreclaim.plots import *\n"
        "settings = matplotlib.rcParams\n"
        "read = lambda: {key: dict.__getitem__(settings, key) for key in dict.keys(settings)}\n"
        "before = read()  # by the methods of a dict, since its own choose a backend\n"
        "axes = Figure().subplots(5)\n"
        "BlockMapDisplay.from_keep([1, 0, 0, 0], 2).plot(axes[0])\n"
        "OccupancyDisplay.from_keep([1, 0, 0, 0], 2).plot(axes[1])\n"
        "SavingsDisplay.from_keep([1, 0, 0, 0], 2).plot(axes[2])\n"
        "FrontierDisplay.from_importance([1, 2, 3, 4], 2, 2).plot(axes[3])\n"
        "TimelineDisplay.from_lives([0, 0], [1, 2], 2).plot(axes[4])\n"
        "print('matplotlib.pyplot' in sys.modules, before == read())"
    )
    assert shown == "False True"


def lightness(colour: str) -> float:
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize(
    "looks",
    [
        [*_drawing.MEANINGS],
        [
            _drawing.SAVING,
            _drawing.STRANDED,
            _drawing.UNSHARED,
            _drawing.PINNED,
            _drawing.FREE,
        ],
    ],
)
def test_looks_can_be_told_apart_in_grey(looks: list[_drawing.Look]) -> None:
    assert len({look.colour for look in looks}) == len(looks)
    for one, other in itertools.combinations(looks, 2):
        apart = abs(lightness(one.colour) - lightness(other.colour))
        assert apart > 0.1 or one.hatch != other.hatch, (one, other)


def test_slots_differ_in_lightness_since_narrow_ones_show_no_hatch() -> None:
    lights = sorted(lightness(look.colour) for look in _drawing.MEANINGS)
    assert min(np.diff(lights)) > 0.1


def test_policies_have_markers_of_their_own() -> None:
    assert len({*_frontier.MARKERS}) == len(_frontier.MARKERS)
    assert len({*_frontier.COLOURS}) == len(_frontier.COLOURS)
    assert _drawing.LIVE.colour not in _frontier.COLOURS  # that of the line


# --- Block map ---


@given(cases())
def test_the_map_has_every_slot_once(case: Case) -> None:
    census = take_census(case.keep, case.pool, **case.said)
    display = BlockMapDisplay.from_keep(
        case.keep, case.pool, **case.said, max_tables=10_000, max_blocks=10_000
    )
    assert display.census == census
    assert len(display.tables) == census.num_tables
    assert sum(table.num_blocks for table in display.tables) == census.num_blocks
    found = Counter(kind for table in display.tables for kind in table.kinds.reshape(-1).tolist())
    assert [found[number] for number in range(4)] == [
        census.num_live_tokens,
        census.num_stranded_tokens,
        census.num_freed_blocks * case.pool.block_size,
        census.num_slack_slots,
    ]
    for table in display.tables:
        assert table.blocks == tuple(range(table.num_blocks))
        assert table.kinds.shape == (table.num_blocks, case.pool.block_size)


@pytest.mark.parametrize(
    ("pool", "kinds"),
    [
        (BlockPool(2), "22 00 22 01 22 22"),
        (BlockPool(2, open_tail=True), "22 00 22 01 22 13"),
        (BlockPool(2, frees="back"), "11 00 11 01 22 22"),
        (BlockPool(2, frees="front"), "22 00 11 01 11 13"),
        (BlockPool(2, frees="none"), "11 00 11 01 11 13"),
    ],
)
def test_the_map_says_what_comes_back_under_a_pool(pool: BlockPool, kinds: str) -> None:
    (table,) = BlockMapDisplay.from_keep([0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0], pool).tables
    assert [" ".join("".join(map(str, block)) for block in table.kinds.tolist())] == [kinds]
    assert not table.kinds.flags.writeable


def rectangles(ax: Axes, label: str) -> list[tuple[float, float, float]]:
    """Return left, right and middle of each rectangle of a kind."""
    (found,) = (part for part in ax.collections if part.get_label() == label)
    corners = [path.vertices[:-1] for path in found.get_paths()]
    return [
        (float(xs.min()), float(xs.max()), float(ys.min() + ys.max()) / 2)
        for xs, ys in (corner.T for corner in corners)
    ]


def test_the_map_draws_runs_of_slots_in_their_blocks(ax: Axes) -> None:
    display = BlockMapDisplay.from_keep([1, 1, 0, 0, 0, 0, 0, 0, 1], 4).plot(ax)
    drawn = {
        kind: [(left, right) for left, right, _ in rectangles(ax, kind)]
        for kind in (*_block_map.KINDS, "blocks")
    }
    second, third = 4 * 1.04, 8 * 1.04
    assert drawn == {
        "live": [(0, 2), (third, third + 1)],
        "stranded": [(2, 4)],
        "free": [(second, second + 4)],
        "slack": [(third + 1, third + 4)],
        "blocks": [(0, 4), (second, second + 4), (third, third + 4)],
    }
    assert display.figure_ is ax.figure
    looks = {part.get_label(): part for part in ax.collections}
    assert looks["stranded"].get_hatch() == "////"
    assert looks["live"].get_hatch() is None


@given(cases())
def test_the_map_draws_as_many_slots_as_the_display_has(case: Case) -> None:
    display = BlockMapDisplay.from_keep(case.keep, case.pool, **case.said)
    ax = library("matplotlib.figure").Figure().add_subplot()
    display.plot(ax)
    found = Counter(kind for table in display.tables for kind in table.kinds.reshape(-1).tolist())
    if not found:
        assert [text.get_text() for text in ax.texts] == ["no blocks"]
        return
    for number, kind in enumerate(_block_map.KINDS):
        widths = sum(right - left for left, right, _ in rectangles(ax, kind))
        assert widths == pytest.approx(found[number])
    boxes = rectangles(ax, "blocks")
    assert len(boxes) == sum(len(table.blocks) for table in display.tables)
    lines = {y for *_, y in boxes}
    assert len(lines) == len(ax.get_yticks())
    for one, other in itertools.pairwise(sorted(boxes, key=lambda box: (box[2], box[0]))):
        assert one[2] < other[2] or one[1] < other[0]


def test_a_large_mask_is_drawn_in_part_and_the_figure_says_so(ax: Axes) -> None:
    keep = np.zeros((12, 400), bool)
    keep[:, ::40] = True
    display = BlockMapDisplay.from_keep(keep, UNSHARED, axes="ht", max_tables=3, max_blocks=7).plot(
        ax
    )
    assert [table.label for table in display.tables] == ["h=0", "h=1", "h=2"]
    for table in display.tables:
        assert table.blocks == (0, 1, 2, 3, 97, 98, 99)
        assert table.num_blocks == 100
        assert table.kinds.tolist()[0] == [0, 1, 1, 1]
    notes = " ".join(ax.get_xlabel().split())
    assert "Only the first 3 of 12 tables are drawn; counts are of all." in notes
    assert "only the first 4 and the last 3 are drawn (of up to 100); counts are of all." in notes
    assert texts(ax)[0] == "live, 120 slots: kept by a row"
    assert [label.get_text().split() for label in ax.get_yticklabels()][:3] == [
        ["h=0", "block", "0"],
        ["block", "97"],
        ["h=1", "block", "0"],
    ]


def test_a_whole_mask_has_no_note_of_parts(ax: Axes) -> None:
    BlockMapDisplay.from_keep([1, 0, 0], 2).plot(ax)
    assert ax.get_xlabel() == "A box is a block of 2 slots, a column in it a slot."


def test_very_large_blocks_are_drawn_few_at_a_time() -> None:
    (table,) = BlockMapDisplay.from_keep(np.ones(200_000, bool), 30_000).tables
    assert table.blocks == (0, 6)
    tables = BlockMapDisplay.from_keep(
        np.ones((3, 61_000), bool), BlockPool(20_000, shared_axes=""), axes="ht"
    ).tables
    assert [table.blocks for table in tables] == [(0,)] * 3
    (table,) = BlockMapDisplay.from_keep(np.ones(131_000, bool), 65_535).tables
    assert table.blocks == (0,)


@pytest.mark.parametrize("name", ["max_tables", "max_blocks"])
def test_at_least_one_block_is_drawn(name: str) -> None:
    limits: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1; got 0"):
        BlockMapDisplay.from_keep([1, 0], 2, **limits)


# --- Occupancy ---


def heights(ax: Axes) -> dict[float, list[tuple[float, float]]]:
    """Return bottom and height of the bars at each place."""
    found: dict[float, list[tuple[float, float]]] = {}
    for bar in ax.patches:
        place = round(bar.get_x() + bar.get_width() / 2, 6)
        found.setdefault(place, []).append((float(bar.get_y()), float(bar.get_height())))
    return found


@pytest.mark.parametrize("frees", ["any", "back", "front", "none"])
def test_bars_are_the_counts_of_the_census(frees: str, ax: Axes) -> None:
    keep = np.zeros(90, bool)
    keep[[20, 21, 30, 31, 32, 60]] = True
    pool = BlockPool(6, frees=frees)
    census = take_census(keep, pool)
    OccupancyDisplay.from_census(census).plot(ax)
    drawn = heights(ax)
    freed, empty = census.num_freed_blocks, census.counts[0]
    assert drawn.pop(0) == [(0, freed), (freed, empty - freed)]
    assert drawn == {place: [(0, count)] for place, count in enumerate(census.counts[1:], start=1)}
    assert [text.partition(" blocks")[0] for text in texts(ax)] == [
        str(freed),
        str(empty - freed),
        str(census.num_blocks - empty),
    ]


def test_bars_of_large_blocks_stand_for_several_numbers(ax: Axes) -> None:
    keep = np.concatenate([np.arange(130) < live for live in (0, 1, 3, 4, 128, 129, 130, 130)])
    display = OccupancyDisplay.from_keep(keep, 130, chance=True).plot(ax)
    drawn = {place: sum(height for _, height in bars) for place, bars in heights(ax).items()}
    assert {place: count for place, count in drawn.items() if count} == {
        0: 1,
        1: 2,  # 1 to 3
        2: 1,  # 4 to 6
        43: 2,  # 127 to 129
        44: 2,  # 130
    }
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels[0] == "0"
    assert labels[1].count("-") == 1
    assert display.chance is not None
    (line,) = ax.lines
    expected = [display.chance[0], sum(display.chance[1:4]), sum(display.chance[4:7])]
    assert line.get_ydata()[:3].tolist() == pytest.approx(expected)
    assert len(line.get_ydata()) == len(drawn)


def by_chance(sizes: list[int], live: int, block_size: int) -> list[Fraction]:
    """How many blocks have 0, 1, ... live slots if each slot is live with one chance."""
    share = Fraction(live, sum(sizes))
    return [
        sum(
            (
                math.comb(size, count) * share**count * (1 - share) ** (size - count)
                for size in sizes
                if count <= size
            ),
            Fraction(0),
        )
        for count in range(block_size + 1)
    ]


@pytest.mark.parametrize(
    ("said", "sizes"),
    [
        ({}, [5, 5, 3] * 2),
        ({"lengths": [13, 6]}, [5, 5, 3, 5, 1]),
        ({"offset": [4, 0]}, [1, 5, 5, 2, 5, 5, 3]),
    ],
)
def test_chance_scatters_the_live_slots_over_the_blocks_there_are(
    said: dict[str, Any], sizes: list[int], ax: Axes
) -> None:
    keep = np.zeros((2, 13), bool)
    keep[:, :4] = True
    display = OccupancyDisplay.from_keep(keep, 5, axes="bt", **said, chance=True)
    expected = by_chance(sizes, 8, 5)
    assert display.chance == pytest.approx([float(blocks) for blocks in expected], abs=1e-12)
    assert display.chance is not None
    assert sum(display.chance) == pytest.approx(display.census.num_blocks)
    display.plot(ax)
    assert tuple(ax.lines[0].get_ydata()) == display.chance


def test_chance_is_only_drawn_where_it_was_asked_for(ax: Axes) -> None:
    assert OccupancyDisplay.from_keep([1, 0], 2).chance is None
    OccupancyDisplay.from_keep([1, 0], 2).plot(ax)
    assert not ax.lines
    with pytest.raises(TypeError, match="chance must be True or False"):
        OccupancyDisplay.from_keep([1, 0], 2, chance=1)  # type: ignore[arg-type]


# --- Savings ---


@pytest.mark.parametrize(
    "census",
    [FOUR_HEADS, take_census(SCATTER[0], 16, pinned=99), take_census([1, 1], 2)],
    ids=["heads", "pinned", "nothing evicted"],
)
def test_the_waterfall_falls_from_the_saving_to_what_is_reclaimed(
    census: kvreclaim.Census, ax: Axes
) -> None:
    savings = savings_breakdown(census)
    SavingsDisplay.from_census(census).plot(ax)
    bars = [bar for _, (bar,) in sorted(heights(ax).items())]
    lost = [savings.num_stranded, savings.num_unshared, savings.num_pinned]
    if not census.num_pinned_blocks:
        lost.pop()
    counts = [census.num_evicted_entries, *lost, savings.num_reclaimed]
    assert [height * census.num_entries for _, height in bars] == pytest.approx(counts)
    assert bars[0][0] == bars[-1][0] == 0
    for (_, top), (bottom, height) in zip(
        [(0, bars[0][1]), *((0, bottom) for bottom, _ in bars[1:-1])], bars[1:-1], strict=False
    ):
        assert bottom + height == pytest.approx(top)
    assert bars[-2][0] == pytest.approx(bars[-1][1])
    assert [text.get_text() for text in ax.texts] == [
        f"{count / census.num_entries:.3f}\n{count:,}" for count in counts
    ]
    names = [label.get_text().replace("\n", " ") for label in ax.get_xticklabels()]
    assert names[0] == "logical saving"
    assert names[-1] == "reclaimed in place"
    assert ("in pinned blocks" in names) == bool(census.num_pinned_blocks)
    hatches = [bar.get_hatch() for bar in ax.patches]
    assert hatches[1] == "////"
    for end, line in zip(
        (bars[0][1], *(bottom for bottom, _ in bars[1:-1])), ax.lines, strict=True
    ):
        assert line.get_ydata().tolist() == pytest.approx([end, end])


def test_savings_of_nothing_are_undefined(ax: Axes) -> None:
    SavingsDisplay.from_keep([], 2).plot(ax)
    assert [text.get_text() for text in ax.texts] == ["undefined: there are no entries"]
    assert "no blocks: what comes back is undefined" in title(ax)


@pytest.mark.parametrize("display", [OccupancyDisplay, SavingsDisplay])
def test_other_things_are_no_census(display: Any) -> None:  # noqa: ANN401  # a class
    with pytest.raises(TypeError, match="census must be a Census; got list; write take_census"):
        display.from_census([1, 0])


# --- Frontier ---


def test_the_frontier_and_the_policies_are_drawn_where_they_lie(ax: Axes) -> None:
    display = FrontierDisplay.from_importance(SCORES, 16, 64, policies=MASKS).plot(ax)
    frontier = reclaim_frontier(SCORES, 16, 64)
    line, *points = ax.lines
    assert display.frontier == frontier
    assert tuple(line.get_xdata()) == frontier.free_blocks
    assert tuple(line.get_ydata()) == frontier.loss
    for point, (name, keep), text in zip(points, MASKS.items(), texts(ax)[1:], strict=True):
        census = take_census(keep, 16)
        loss = math.fsum(SCORES[~keep].tolist())
        assert (point.get_xdata()[0], point.get_ydata()[0]) == (census.num_freed_blocks, loss)
        packed = census.num_blocks - census.num_floor_blocks
        assert text == f"{name}: in place {census.num_freed_blocks}, packed {packed}"
    assert len({point.get_marker() for point in points}) == len(points)
    assert texts(ax)[0] == "least loss, proved"
    assert (display.num_entries, display.num_evicted, display.rows_per_table) == (128, 64, 1)


def test_numbers_of_blocks_may_come_in_any_order(ax: Axes) -> None:
    display = FrontierDisplay.from_importance(SCORES, 16, 64, [3, 0, 2]).plot(ax)
    assert display.frontier.free_blocks == (3, 0, 2)
    assert tuple(ax.lines[0].get_xdata()) == (0, 2, 3)
    losses = dict(zip((3, 0, 2), display.frontier.loss, strict=True))
    assert tuple(ax.lines[0].get_ydata()) == tuple(losses[number] for number in (0, 2, 3))


def test_what_is_not_proved_has_its_lower_bound(ax: Axes) -> None:
    FrontierDisplay(
        frontier=Frontier(free_blocks=(0, 1), loss=(1.0, 3.0), lower_bound=(1.0, 2.5)),
        pool=BlockPool(2),
        rows_per_table=1,
        num_entries=8,
        num_evicted=3,
    ).plot(ax)
    assert [tuple(line.get_ydata()) for line in ax.lines] == [(1.0, 3.0), (1.0, 2.5)]
    assert texts(ax) == ["least loss found", "no mask loses less (lower bound)"]
    assert ax.lines[1].get_linestyle() == "--"


def test_rows_that_share_blocks_are_named_in_the_title(ax: Axes) -> None:
    scores = SCORES.reshape(2, 2, 32)
    pool = BlockPool(4, shared_axes="h")
    keep = policies.lowest_importance(scores, 16)
    display = FrontierDisplay.from_importance(
        scores, pool, 64, 0, axes="lht", policies={"mine": keep}
    ).plot(ax)
    assert display.rows_per_table == display.points[0].census.rows_per_table == 2
    assert title(ax).endswith("|rows:2")
    assert display.num_entries == 128


HOSTILE = ["_hidden", "$x^$", "a\nb\x1b[2J", "<b>", ""]


def test_names_are_drawn_as_they_are(ax: Axes) -> None:
    keep = MASKS["whole"]
    FrontierDisplay.from_importance(SCORES, 16, 64, policies=dict.fromkeys(HOSTILE, keep)).plot(ax)
    ax.figure.draw_without_rendering()
    names = [text.rpartition(": in place")[0] for text in texts(ax)[1:]]
    assert names == ["_hidden", "$x^$", "a\\nb\\x1b[2J", "<b>", ""]


@pytest.mark.parametrize("names", [["x" * 10_000], [str(number) for number in range(100)]])
def test_long_names_and_many_policies_leave_room_for_the_axes(
    names: list[str],
    pyplot: Any,  # noqa: ANN401  # a module
) -> None:
    policies = dict.fromkeys(names, MASKS["whole"])
    display = FrontierDisplay.from_importance(SCORES, 16, 64, policies=policies).plot()
    figure: Any = display.figure_
    figure.draw_without_rendering()
    box, dpi = display.ax_.get_window_extent(), figure.dpi
    assert box.width > 5 * dpi
    assert box.height > 2 * dpi
    assert max(map(len, texts(display.ax_))) < 100
    pyplot.close(figure)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ([1, 2], TypeError, r"policies must be a dict of keep-masks by name; got list \[1, 2\]; w"),
        ({1: MASKS["whole"]}, TypeError, "policies must be a dict of keep-masks by name"),
        ({"a": SCORES}, TypeError, r"policies\['a'\] must be True and False, or integers"),
        ({"a": [True]}, ValueError, r"policies\['a'\] must have the shape of importance, \(128,\)"),
        (
            {"a": np.ones(128, bool)},
            ValueError,
            r"policies\['a'\] must evict num_evicted=64 entries, .*; got 0; draw it in a figure",
        ),
    ],
)
def test_masks_that_do_not_belong_there_are_refused(
    wrong: Any,  # noqa: ANN401
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        FrontierDisplay.from_importance(SCORES, 16, 64, policies=wrong)


def test_a_mask_that_evicts_what_is_protected_is_refused() -> None:
    protected = ~MASKS["whole"]
    protected[np.flatnonzero(protected)[:-1]] = False
    with pytest.raises(ValueError, match=r"policies\['whole'\] must keep what is protected"):
        FrontierDisplay.from_importance(
            SCORES, 16, 64, policies={"whole": MASKS["whole"]}, protected=protected
        )


def test_many_policies_differ_in_marker_or_colour(ax: Axes) -> None:
    count = 20
    points = tuple(
        PolicyPoint(name=str(number), loss=1.0, census=take_census([1, 0], 2))
        for number in range(count)
    )
    display = FrontierDisplay.from_importance([1, 2], 2, 1)
    attrs.evolve(display, points=points).plot(ax)
    looks = {(line.get_marker(), line.get_color()) for line in ax.lines[1:]}
    assert len(looks) == count


# --- Timeline ---


def outline(ax: Axes, name: str) -> set[tuple[float, float]]:
    """Return the corners of a layer."""
    (found,) = (part for part in ax.collections if part.get_label() == name)
    return {(float(x), round(float(y), 9)) for x, y in found.get_paths()[0].vertices}


@pytest.mark.parametrize("reuse_holes", [False, True])
def test_layers_reach_as_high_as_what_they_hold(ax: Axes, reuse_holes: bool) -> None:
    display = TimelineDisplay.from_lives(BORN, EVICTED, 4, reuse_holes=reuse_holes).plot(ax)
    line = display.timeline
    tops: dict[str, NDArray[Any]] = {
        "live": line.num_live_tokens / 4,
        "stranded": (line.num_live_tokens + line.num_stranded_tokens) / 4,
        "slack": line.num_held_blocks,
        "free": line.num_held_blocks + line.num_freed_blocks,
    }
    for name, top in tops.items():
        corners = outline(ax, name)
        for step, height in enumerate(top.tolist()):
            assert {(step, height), (step + 1, height)} <= corners, (name, step)
    (peak,) = ax.lines
    assert peak.get_ydata()[0] == line.peak_held_blocks
    assert line.num_held_blocks[int(peak.get_xdata()[0])] == line.peak_held_blocks
    assert ("holes are reused" in title(ax)) == reuse_holes
    assert ax.get_xlabel() == "step"
    written = title(ax).replace("\n", " ")
    last = line.census_at(len(line.num_tokens) - 1)
    assert f"at most {line.peak_held_blocks} are held, {line.mean_held_blocks:.1f} on" in written
    assert (
        f"at the last step {line.num_held_blocks[-1]} in place, {last.num_floor_blocks} if packed"
    ) in written


def test_of_many_steps_some_are_drawn_and_the_axis_says_so(ax: Axes) -> None:
    born = np.arange(5000)
    TimelineDisplay.from_lives(born, np.full(5000, NEVER), 4).plot(ax)
    assert ax.get_xlabel() == "step (one of 3 is drawn)"
    corners = outline(ax, "live")
    assert {(0, 0.25), (3, 1.0)} <= corners
    assert (1, 0.5) not in corners
    assert max(x for x, _ in corners) == 5000


def test_a_timeline_that_is_there_already_will_do() -> None:
    line = kvreclaim.timeline(BORN, EVICTED, 4)
    assert TimelineDisplay.from_timeline(line).timeline is line
    with pytest.raises(TypeError, match="timeline must be a Timeline; got int 3; write kvrec"):
        TimelineDisplay.from_timeline(3)  # type: ignore[arg-type]


# --- The page ---

PAGE = Path(__file__).parents[1] / "docs" / "plots.md"
SCRIPTS = scripts_of(PAGE)


def test_the_page_shows_every_display() -> None:
    text = PAGE.read_text("utf-8")
    assert {*SCRIPTS} == {
        f"{n}.py" for n in ["block_map", "occupancy", "savings", "frontier", "timeline"]
    }
    for name in kvreclaim.plots.__all__:
        assert (f"`{name}`" in text) == name.endswith("Display")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_the_page_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library("matplotlib")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    picture = tmp_path / "picture.png"
    output_of(SCRIPTS[name], tmp_path / name, str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")
