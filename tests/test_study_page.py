"""The page and the static figures of a study, without a browser."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from browser.sample import NASTY, fixed, row, study
from optional import library

if TYPE_CHECKING:
    from benchmarks.study import figures, page
else:
    library("matplotlib")
    library("plotly")
    from benchmarks.study import figures, page

from benchmarks.study.results import Chart, Line, Row, Study
from benchmarks.study.series import (
    COLOURS,
    DARK_COLOURS,
    marked,
    series_of,
    short_ticks,
    slug,
)

ROWS = study().by_key()
CHARTS = {chart.key: chart for chart in study().charts}
LINES = CHARTS["line"].lines


class Elements(HTMLParser):
    """Elements with their attributes; the text of scripts, of titles and of table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.rows: dict[str, list[dict[str, str]]] = {}
        self.inside: list[str] = []
        self.column = ""
        self.is_whole = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.elements.append((tag, values))
        if tag not in ("meta", "link", "input", "br"):
            self.inside.append(tag)
        if tag == "tr" and values.get("data-key"):
            self.rows.setdefault(values["data-key"] or "", []).append({})
            self.key = values["data-key"] or ""
        if "data-column" in values:
            self.column = values["data-column"] or ""
            self.rows[self.key][-1][self.column] = values.get("data-value") or ""
            self.is_whole = "data-value" in values

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop() == tag
        if tag in ("td", "th"):
            self.column = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.texts.append((self.inside[-1], data))
        if self.column and not self.is_whole:
            self.rows[self.key][-1][self.column] += data

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [values for name, values in self.elements if name == tag]


@pytest.fixture(scope="module")
def text() -> str:
    return page.html(study())


@pytest.fixture(scope="module")
def parsed(text: str) -> Elements:
    return Elements(text)


def cells_of_csv(made: Study) -> dict[str, dict[str, str]]:
    return {line["key"]: line for line in csv.DictReader(io.StringIO(made.to_csv()))}


def drawn_of(parsed: Elements) -> dict[str, Any]:
    found = [data for tag, data in parsed.texts if tag == "script" and data.startswith("{")]
    drawn: dict[str, Any] = json.loads(found[0])
    return drawn


# --- the page ---


def test_the_page_is_one_file_of_plotly_and_little_else(tmp_path: Path, text: str) -> None:
    page.write(study(), tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == [tmp_path / "page.html"]
    assert (tmp_path / "page.html").read_bytes() == text.encode()
    bundle = library("plotly.offline").get_plotlyjs()
    assert len(text) - len(bundle) < 100_000


def test_the_page_loads_nothing(parsed: Elements) -> None:
    for tag, values in parsed.elements:
        for name in ("src", "srcset", "href", "action", "data", "poster", "background"):
            target = values.get(name) or ""
            assert target.startswith("#") or target in ("", "data:,"), (tag, values)
    style = "".join(data for tag, data in parsed.texts if tag == "style")
    assert "url(" not in style
    assert "@import" not in style


def test_the_policy_of_the_page_allows_its_own_scripts_only(text: str, parsed: Elements) -> None:
    policy = next(values for values in parsed.of("meta") if "http-equiv" in values)["content"] or ""
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data: blob:"
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == 2
    assert rules["script-src"] == " ".join(f"'sha256-{page._digest(one)}'" for one in scripts)
    assert not any(name.startswith("on") for _, values in parsed.elements for name in values)


def test_the_page_asks_plotly_to_send_nothing() -> None:
    script = Path(page.__file__).with_name("page.js").read_text(encoding="utf-8")
    for said in ("showSendToCloud: false", "displaylogo: false", 'plotlyServerURL: ""'):
        assert said in script
    assert "http" not in script.replace("http://www.w3.org/2000/svg", "")


def test_every_row_stands_in_a_table_as_the_csv_has_it(parsed: Elements) -> None:
    expected = cells_of_csv(study())
    assert parsed.rows.keys() == expected.keys()
    for key, tables in parsed.rows.items():
        for cells in tables:
            assert cells.keys() >= {"mean", "low", "high", "sd", "n", "verdict"}
            assert cells.keys() & {"series", "line"}
            for name, cell in cells.items():  # of a number that is whole, its digits alone
                its = expected[key]["series" if name == "line" else name]
                assert cell in (its, its.removesuffix(".0"))


def test_the_table_of_a_chart_holds_the_rows_drawn_in_order(text: str) -> None:
    for chart in study().charts:
        for number, choice in enumerate(chart.choices or (None,)):
            table = text.split(f'<table id="chart-{chart.key}-table-{number}">')[1]
            keys = list(Elements(f"<table>{table.split('</table>')[0]}</table>").rows)
            drawn = series_of(chart, ROWS, choice)
            assert keys == [one.key for series in drawn for one in series.rows]


def test_rows_with_a_figure_of_the_article_stand_on_top_of_their_section(text: str) -> None:
    sections = text.split("<section ")[1:]
    for title, section in zip(("First", "Second"), sections, strict=True):
        top = section.split("</table>")[0]
        of_article = [one for one in study().rows if one.section == title and one.article]
        assert "Figures of the article" in top
        assert top.count("<tr data-key=") == len(of_article) > 0
        assert list(Elements(f"<table>{top.split('<table', 1)[1].split('>', 1)[1]}</table>").rows)


def test_a_row_that_stands_nowhere_else_has_a_table_of_its_own(text: str) -> None:
    table = text.split('<table id="section-second-others">')[1].split("</table>", maxsplit=1)[0]
    assert list(Elements(f"<table>{table}</table>").rows) == ["loose/alone"]
    assert "section-first-others" not in text


def test_what_is_drawn_is_the_rows(parsed: Elements) -> None:
    drawn = drawn_of(parsed)
    num_points = 0
    for sent, chart in zip(drawn["charts"], study().charts, strict=True):
        assert sent["categories"] == (chart.kind == "bar")
        for choice, lines in zip(chart.choices or (None,), sent["lines"], strict=True):
            for line, series in zip(lines, series_of(chart, ROWS, choice), strict=True):
                rows = series.rows
                assert line["name"] == series.name
                assert line["y"] == [one.mean for one in rows]
                if sent["categories"]:
                    assert line["x"] == [str(one.x) for one in rows]
                else:
                    assert line["x"] == [one.x for one in rows]
                for up, down, one in zip(line["up"], line["down"], rows, strict=True):
                    is_exact = one.interval == "exact"
                    assert up == (0 if is_exact else one.high - one.mean)
                    assert down == (0 if is_exact else one.mean - one.low)
                num_points += len(rows)
    assert num_points == sum(len(line.keys) for chart in study().charts for line in chart.lines)


def test_a_hover_shows_the_cells_of_the_csv(parsed: Elements) -> None:
    expected = cells_of_csv(study())
    drawn = drawn_of(parsed)
    names = ("x", "mean", "sd", "low", "high", "n", "closed_form", "article")
    for sent, chart in zip(drawn["charts"], study().charts, strict=True):
        shown = [cells for lines in sent["lines"] for line in lines for cells in line["cells"]]
        keys = [key for line in chart.lines for key in line.keys]
        assert shown == [[expected[key][name] for name in names] for key in keys]


def test_names_are_text_and_never_markup(text: str, parsed: Elements) -> None:
    assert NASTY not in text
    assert not any(tag in ("b", "i") for tag, _ in parsed.elements)
    titles = "".join(data for tag, data in parsed.texts if tag == "h3")
    assert f"Odd: {NASTY}" in titles
    assert f"Odd: {NASTY}. Odd: {NASTY}" in [
        values.get("aria-label") for values in parsed.of("div") if values.get("role") == "img"
    ]
    (odd,) = (sent for sent in drawn_of(parsed)["charts"] if sent["id"] == "chart-odd")
    assert odd["xTitle"] == odd["yTitle"] == odd["lines"][0][0]["name"] == NASTY


def test_the_page_can_be_read_by_its_structure(parsed: Elements) -> None:
    assert parsed.of("html") == [{"lang": "en"}]
    for landmark in ("header", "nav", "main", "footer", "h1", "title"):
        assert len(parsed.of(landmark)) == 1
    levels = [int(tag[1]) for tag, _ in parsed.elements if re.fullmatch("h[1-6]", tag)]
    assert all(below <= above + 1 for above, below in itertools.pairwise(levels))
    ids = [values["id"] for _, values in parsed.elements if "id" in values]
    assert len(set(ids)) == len(ids)
    named = ("aria-labelledby", "aria-describedby", "aria-details", "for")
    for _, values in parsed.elements:
        for name in named:
            assert name not in values or values[name] in ids
        assert not (values.get("href") or "").startswith("#") or (values["href"] or "")[1:] in ids
    assert all(values.get("scope") in ("col", "row") for values in parsed.of("th"))
    assert len(parsed.of("caption")) == len(parsed.of("table"))
    assert parsed.elements[[tag for tag, _ in parsed.elements].index("a")][1]["href"] == "#content"


def test_a_selector_and_buttons_stand_where_the_chart_has_them(parsed: Elements) -> None:
    options = [data for tag, data in parsed.texts if tag == "option"]
    assert options == ["lognormal", "uniform & <flat>"]
    assert [data for tag, data in parsed.texts if tag == "label"] == ["Importance"]
    buttons = [(v["data-axis"], v["aria-pressed"]) for v in parsed.of("button")]
    assert buttons == [("logX", "false"), ("logY", "true")]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.4741379310344828, "0.4741"),
        (-0.0013888888888888, "-0.001389"),
        (1.52587890625e-05, "1.526e-05"),
        (1646.2333, "1646"),
        (0.5, "0.5"),
        (0.0, "0"),
        (16384.0, "16384"),
        (123456, "123456"),
        (30, "30"),
        (1e300, "1e+300"),
    ],
)
def test_a_cell_shows_four_digits(number: float, shown: str) -> None:
    assert page.short(number) == shown


def test_a_shortened_cell_tells_the_whole_number(text: str) -> None:
    made = ROWS["line/StreamingLLM/16"]
    cell = f'<td class="number" data-column="mean" title="{made.mean}" data-value="{made.mean}">'
    assert f"{cell}{page.short(made.mean)}</td>" in text


def test_a_table_names_a_row_as_the_legend_does() -> None:
    """Lines may draw rows of one series."""
    made = study()
    named = tuple(attrs.evolve(one, name=f"{one.name} ({n})") for n, one in enumerate(LINES))
    chart = attrs.evolve(CHARTS["line"], lines=named)
    parsed = Elements(page.html(attrs.evolve(made, charts=(chart,))))
    for line in named:
        for key in line.keys:
            assert parsed.rows[key][-1]["line"] == line.name
    heads = [v for v in parsed.of("th") if v.get("data-column") == "line"]
    assert {v["scope"] for v in heads} == {"row"}
    assert len(heads) == sum(len(line.keys) for line in named)


def test_a_choice_has_its_caption_and_all_one_range(tmp_path: Path) -> None:
    made = study()
    chart = attrs.evolve(CHARTS["bars"], captions=("Of <one>.", "Of two."), y_range=(0.0, 2.0))
    with_captions = attrs.evolve(made, charts=(chart,))
    parsed = Elements(page.html(with_captions))
    texts = "".join(data for tag, data in parsed.texts if tag in ("p", "b"))
    (sent,) = drawn_of(parsed)["charts"]
    assert sent["yRange"] == [0, 2]
    for choice, caption in zip(chart.choices, chart.captions, strict=True):
        assert f"{choice}: {caption}" in texts
        assert f"{chart.title}. {caption} ({choice})" in sent["said"]
        drawn = figures.figure_of(chart, ROWS, choice)
        (axes,) = drawn.axes
        assert axes.get_ylim() == (0, 2)
        assert axes.get_title() == caption
        assert drawn.get_suptitle() == f"{chart.title}: {choice}"
    assert chart.caption not in texts
    assert len(figures.draw(with_captions, tmp_path)) == 4


def test_charts_that_share_an_address_are_refused(tmp_path: Path) -> None:
    made = study()
    twice = attrs.evolve(made.charts[0], key="LINE")
    twin = attrs.evolve(made, charts=(*made.charts, twice))
    with pytest.raises(ValueError, match="must have an address of its own; got"):
        page.html(twin)
    with pytest.raises(ValueError, match=r"must have a file of its own; got 6 for \['line', "):
        figures.draw(twin, tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"section": "Third"}, "rows and charts must stand in a section; got \\['Third'\\]"),
        ({"choice_of": ()}, "each series must have one of its chart's choices; got \\['bars'\\]"),
        ({"choices": ()}, "each series must have one of its chart's choices; got \\['bars'\\]"),
        ({"choices": ("a", "b")}, "each series must have one of its chart's choices"),
    ],
)
def test_a_chart_that_could_not_be_shown_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        attrs.evolve(study(), charts=(attrs.evolve(CHARTS["bars"], **change),))


# --- the static figures ---


def test_each_chart_and_choice_has_a_png_and_an_svg(tmp_path: Path) -> None:
    paths = figures.draw(study(), tmp_path / "new" / "folder")
    stems = ("line", "bars-lognormal", "bars-uniform-flat", "points", "odd")
    assert [path.name for path in paths] == [
        f"{s}.{kind}" for s in stems for kind in ("png", "svg")
    ]
    assert sorted(paths) == sorted((tmp_path / "new" / "folder").iterdir())
    for path in paths:
        data = path.read_bytes()
        if path.suffix == ".png":
            assert data.startswith(b"\x89PNG")
            size = [int.from_bytes(data[at : at + 4], "big") for at in (16, 20)]
            assert size == [1050, 690]
            per_metre = int.from_bytes(data[data.index(b"pHYs") + 4 :][:4], "big")
            assert per_metre == round(150 / 0.0254)
        else:
            assert b"<svg" in data
            assert b"dc:date" not in data


def test_the_same_study_gives_the_same_files(tmp_path: Path) -> None:
    first, second = (figures.draw(study(), tmp_path / name) for name in ("a", "b"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_a_figure_draws_the_rows_of_its_lines() -> None:
    drawn = figures.figure_of(CHARTS["line"], ROWS)
    (axes,) = drawn.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("linear", "log")
    assert axes.get_xlabel().startswith("block size (tokens)\n(2 values of 0 or less")
    for container, one in zip(axes.containers, series_of(CHARTS["line"], ROWS), strict=True):
        line, _, bars = container
        assert list(line.get_xdata()) == [4, 8, 16, 32, 64]
        means = [math.nan if mean <= 0 else mean for mean in one.means]
        assert list(map(str, line.get_ydata())) == list(map(str, means))
        assert line.get_linestyle() == ("--" if one.dashed else "-")
        if one.dashed:
            assert not bars
            continue
        ends = [segment[:, 1].tolist() for segment in bars[0].get_segments() if len(segment)]
        held = [row for row in one.rows if row.mean > 0]
        assert ends == [pytest.approx([row.low, row.high]) for row in held]


def test_a_figure_draws_the_bars_of_its_choice() -> None:
    chart = CHARTS["bars"]
    for choice in chart.choices:
        (axes,) = figures.figure_of(chart, ROWS, choice).axes
        assert axes.get_title() == f"In place against packed: {choice}"
        assert [label.get_text() for label in axes.get_xticklabels()] == [
            "vllm",
            "sglang",
            "tensorrt_llm",
        ]
        boxes = [
            patch.get_path().get_extents(patch.get_patch_transform()) for patch in axes.patches
        ]
        heights = [box.height for box in boxes]
        assert heights == pytest.approx(
            [row.mean for one in series_of(chart, ROWS, choice) for row in one.rows]
        )
        assert {patch.get_hatch() or "" for patch in axes.patches} == {"", "//"}
        lefts = sorted(box.x0 for box in boxes)
        assert all(b - a > 0.39 for a, b in itertools.pairwise(lefts))


def test_a_log_axis_is_where_the_chart_says() -> None:
    chart = attrs.evolve(CHARTS["line"], log_x=True, log_y=None)
    (axes,) = figures.figure_of(chart, ROWS).axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    assert axes.get_xlabel() == "block size (tokens)"


def test_many_series_differ_in_more_than_colour() -> None:
    rows = {
        one.key: one
        for number in range(18)
        for one in (row(f"many/{number}/{x}", x, number + x / 9) for x in (1, 2))
    }
    named = [Line(name=str(n), keys=(f"many/{n}/1", f"many/{n}/2")) for n in range(18)]
    chart = attrs.evolve(CHARTS["line"], key="many", lines=tuple(named), log_y=None)
    (axes,) = figures.figure_of(chart, rows).axes
    looks = [(line[0].get_marker(), line[0].get_color()) for line in axes.containers]
    assert len(set(looks)) == 18
    assert len({marker for marker, _ in looks[:9]}) == len({colour for _, colour in looks[:9]}) == 9
    (axes,) = figures.figure_of(attrs.evolve(chart, kind="bar"), rows).axes
    bars = {(patch.get_hatch() or "", patch.get_facecolor()) for patch in axes.patches}
    assert len(bars) == 18


@pytest.mark.parametrize(("colours", "paper"), [(COLOURS, "#ffffff"), (DARK_COLOURS, "#12161b")])
def test_colours_stand_out_from_the_page(colours: tuple[str, ...], paper: str) -> None:
    assert len(colours) == len(set(colours)) == 9
    for colour in colours:
        lights = sorted(light(one) + 0.05 for one in (colour, paper))
        assert lights[1] / lights[0] >= 3, colour


def light(colour: str) -> float:
    """WCAG 2: relative luminance."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_bars_of_nothing_say_so_and_have_no_logarithmic_axis() -> None:
    rows = {
        one.key: one for one in (fixed("bar/a/x", "x", 0.0), row("bar/a/y", "y", 3.0, series="a"))
    }
    chart = attrs.evolve(
        CHARTS["bars"],
        lines=(Line(name="a", keys=tuple(rows)),),
        choices=(),
        choice_of=(),
        log_y=True,
    )
    (axes,) = figures.figure_of(chart, rows).axes
    assert axes.get_yscale() == "linear"
    assert [text.get_text() for text in axes.texts] == ["0"]


def test_a_short_logarithmic_axis_has_more_ticks_than_powers_of_ten() -> None:
    rows = {one.key: one for one in (fixed(f"rows/a/{x}", x, float(x)) for x in (1, 20, 64))}
    chart = attrs.evolve(CHARTS["line"], lines=(Line(name="a", keys=tuple(rows)),))
    (axes,) = figures.figure_of(chart, rows).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "1",
        "2",
        "4",
        "8",
        "16",
        "32",
        "64",
    ]


# --- series ---


def test_a_name_has_one_style_under_every_choice() -> None:
    chart = Chart(
        **{
            **attrs.asdict(CHARTS["bars"], recurse=False),
            "lines": (
                Line(name="a", keys=()),
                Line(name="b", keys=()),
                Line(name="b", keys=()),
                Line(name="a", keys=()),
            ),
            "choice_of": ("one", "one", "two", "two"),
            "choices": ("one", "two"),
        }
    )
    assert [(one.name, one.style) for one in series_of(chart, {}, "one")] == [("a", 0), ("b", 1)]
    assert [(one.name, one.style) for one in series_of(chart, {}, "two")] == [("b", 1), ("a", 0)]


def test_an_interval_without_ends_is_not_drawn() -> None:
    rows: dict[str, Row] = {
        "a/b/1": row("a/b/1", 1, 0.5, low=math.nan, high=math.inf),
        "a/b/2": fixed("a/b/2", 2, 0.5),
    }
    chart = attrs.evolve(CHARTS["line"], lines=(Line(name="b", keys=tuple(rows)),))
    (one,) = series_of(chart, rows)
    assert (one.below, one.above) == ([0, 0], [0, 0])


def test_a_slug_is_small_letters_digits_and_hyphens() -> None:
    assert slug("q^B and the exact laws") == "q-b-and-the-exact-laws"
    assert slug("methods/H2O B=16!") == "methods-h2o-b-16"


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([1, 64], [1, 2, 4, 8, 16, 32, 64]),
        ([3, 70], [4, 8, 16, 32, 64]),
        ([0.02, 0.6], [0.02, 0.05, 0.1, 0.2, 0.5]),
        ([0.31, 0.62], [0.4, 0.5, 0.6]),
        ([1.5, 4.4], [2, 3, 4]),
        ([0.5, 0.501], []),
        ([0.001, 1], []),
        ([0, -1, math.inf], []),
        ([], []),
    ],
)
def test_ticks_of_a_short_logarithmic_axis(values: list[float], ticks: list[float]) -> None:
    assert short_ticks(values) == ticks


def test_marks_shift_where_colours_begin_anew() -> None:
    looks = {(style % 3, marked(style, "abc")) for style in range(9)}
    assert len(looks) == 9
