"""The page in a real browser: what it draws, what a mouse and a keyboard do, and what it fetches.

Needs Chromium and its driver (``apt-get install chromium chromium-driver``) and selenium. In CI
they must be there. Where a test fails, what the page looked like is kept as pictures at three
widths in the folder named by KVRECLAIM_ARTEFACTS, or in pytest's own temporary folder.
"""

from __future__ import annotations

import csv
import html
import http.server
import io
import json
import math
import os
import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import pytest
from browser.sample import NASTY, study
from optional import IN_CI, library

from benchmarks.study.__main__ import run
from benchmarks.study.results import Chart, Line, Study
from benchmarks.study.series import series_of, slug

if TYPE_CHECKING:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.actions.action_builder import ActionBuilder
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.remote.webelement import WebElement
    from selenium.webdriver.support.ui import Select, WebDriverWait

    from benchmarks.study import page
else:
    library("plotly")
    library("selenium")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.actions.action_builder import ActionBuilder
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.remote.webelement import WebElement
    from selenium.webdriver.support.ui import Select, WebDriverWait

    from benchmarks.study import page

CHROMIUM: Final = shutil.which("chromium")
CHROMEDRIVER: Final = shutil.which("chromedriver")
if not (CHROMIUM and CHROMEDRIVER):
    said = "needs chromium and chromedriver: apt-get install chromium chromium-driver"
    if IN_CI:
        raise RuntimeError(said)
    pytest.skip(said, allow_module_level=True)

WIDTHS: Final = (360, 768, 1280)
FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
ROWS: Final = {line["key"]: line for line in csv.DictReader(io.StringIO(study().to_csv()))}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "study.html"
    page.write(study(), path)
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    # With both paths given, nothing looks for a browser to download.
    driver = webdriver.Chrome(options=options, service=Service(executable_path=CHROMEDRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(
    browser: webdriver.Chrome, path: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[webdriver.Chrome]:
    resize(browser, 1280)
    prefer(browser, "light")
    browser.get("about:blank")
    for kind in ("performance", "browser"):
        log(browser, kind)  # what earlier tests left
    open_page(browser, path.as_uri())
    failed = request.session.testsfailed
    yield browser
    try:
        assert log(browser, "browser") == [], "the console must stay silent"
    finally:
        if request.session.testsfailed > failed:
            keep_pictures(browser, tmp_path, request.node.name)


def open_page(browser: webdriver.Chrome, address: str) -> None:
    browser.get(address)
    WebDriverWait(browser, 30).until(
        lambda _: browser.execute_script("return document.documentElement.dataset.ready") == "true"
    )


def resize(browser: webdriver.Chrome, width: int, height: int = 900) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    settle(browser)


def settle(browser: webdriver.Chrome) -> None:
    """Wait until what was asked of plotly is drawn, resizing included."""
    browser.execute_async_script("setTimeout(arguments[0], 300)")


def prefer(browser: webdriver.Chrome, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    settle(browser)


def keep_pictures(browser: webdriver.Chrome, folder: Path, test: str) -> list[Path]:
    """Write what the page looks like at three widths; say where."""
    folder = Path(os.environ.get("KVRECLAIM_ARTEFACTS") or folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for width in WIDTHS:
        resize(browser, width)
        resize(browser, width, browser.execute_script("return document.body.scrollHeight"))
        paths.append(folder / f"{slug(test)}-{width}.png")
        assert browser.save_screenshot(str(paths[-1]))
    print(f"pictures of the page: {', '.join(map(str, paths))}")  # noqa: T201  # for who reads CI
    return paths


def chart(browser: webdriver.Chrome, key: str) -> WebElement:
    box = browser.find_element(By.ID, f"chart-{key}")
    show(browser, box.find_element(By.CLASS_NAME, "plot"))
    return box


def show(browser: webdriver.Chrome, element: WebElement) -> None:
    centred = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
    browser.execute_script(centred, element)


def log(browser: webdriver.Chrome, kind: str) -> list[str]:
    """Return the messages of a log since it was last asked for."""
    entries = browser.get_log(kind)  # type: ignore[no-untyped-call]  # selenium's types end here
    return [entry["message"] for entry in entries]


def plotted(browser: webdriver.Chrome, key: str) -> dict[str, dict[str, Any]]:
    """Return y and visible of each trace by its name, as plotly has them."""
    found: list[tuple[str, dict[str, Any]]] = browser.execute_script(
        "return document.querySelector(arguments[0]).data.filter(({meta}) => !meta).map("
        "({name, y, visible, line, error_y: bars}) => "
        "[name, {y, visible, dash: line?.dash, up: bars?.array, down: bars?.arrayminus}])",
        f"#chart-{key} .plot",
    )
    assert len({name for name, _ in found}) == len(found)
    return {html.unescape(name): trace for name, trace in found}


def shown_traces(browser: webdriver.Chrome, key: str) -> set[str]:
    return {name for name, trace in plotted(browser, key).items() if trace["visible"] is True}


def axis_type(browser: webdriver.Chrome, key: str, axis: str) -> str:
    found: str = browser.execute_script(
        "return document.querySelector(arguments[0])._fullLayout[arguments[1]].type",
        f"#chart-{key} .plot",
        axis,
    )
    return found


def num_drawn(box: WebElement) -> int:
    """Return how many lines or bar groups are in the picture, without what helps bars."""
    drawn = box.find_elements(By.CSS_SELECTOR, ".scatterlayer .trace, .barlayer .trace")
    helpers = [one for one in drawn if one.find_elements(By.CSS_SELECTOR, ".textpoint")]
    rooms = [one for one in drawn if one.value_of_css_property("opacity") == "0"]
    return len(drawn) - len(helpers) - len(rooms)


def pixels(browser: webdriver.Chrome, key: str) -> dict[tuple[str, int], tuple[float, float]]:
    """Return where plotly's axes put the points of the series shown, in the window.

    Of a bar it is the middle; what lies on the frame is looked for a little within it.
    """
    found = browser.execute_script(
        """
        const plot = document.querySelector(arguments[0]);
        const { xaxis, yaxis } = plot._fullLayout;
        const area = plot.getBoundingClientRect();
        const inside = (at, length) => Math.min(Math.max(at, 2), length - 2);
        return plot.data.flatMap(({ meta, name, type, orientation, visible }, trace) =>
          meta || visible !== true ? [] : plot.calcdata[trace].map(({ x, y }, at) => {
            const isBar = type === "bar", lies = orientation === "h";
            const [across, down] = [
              xaxis.c2p(isBar && lies ? x / 2 : x), yaxis.c2p(isBar && !lies ? y / 2 : y),
            ];
            return [
              name,
              at,
              area.left + xaxis._offset + inside(across, xaxis._length),
              area.top + yaxis._offset + inside(down, yaxis._length),
            ];
          }));
        """,
        f"#chart-{key} .plot",
    )
    return {
        (html.unescape(name), at): (x, y)
        for name, at, x, y in found
        if x is not None and y is not None
    }


def hover(browser: webdriver.Chrome, key: str, name: str, point: int) -> str:
    """Move the mouse to a point and return what the page says there, a line for each line."""
    box = chart(browser, key)
    x, y = map(round, pixels(browser, key)[name, point])
    action = ActionBuilder(browser)
    for place in ((x - 3, y + 3), (x, y)):
        action.pointer_action.move_to_location(*place)  # type: ignore[no-untyped-call]
    action.perform()
    WebDriverWait(browser, 10).until(
        lambda _: box.find_elements(By.CSS_SELECTOR, ".hoverlayer .hovertext text")
    )
    lines = box.find_elements(By.CSS_SELECTOR, ".hoverlayer .hovertext .nums .line")
    return "\n".join(line.get_attribute("textContent") or "" for line in lines)


def legend(box: WebElement, name: str) -> WebElement:
    buttons = box.find_elements(By.CSS_SELECTOR, ".legend button")
    return next(button for button in buttons if button.text == name)


def shown_keys(box: WebElement) -> list[str | None]:
    """Return the keys of the rows of the one table that is shown."""
    (table,) = (one for one in box.find_elements(By.TAG_NAME, "table") if one.is_displayed())
    rows = table.find_elements(By.CSS_SELECTOR, "tr[data-key]")
    return [row.get_attribute("data-key") for row in rows]


def requests(browser: webdriver.Chrome) -> list[str]:
    """Return the addresses of all that Chromium asked for."""
    events = [json.loads(message)["message"] for message in log(browser, "performance")]
    return [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]


def use_everything(browser: webdriver.Chrome) -> None:
    """Use all that the page offers."""
    hover(browser, "line", "StreamingLLM", 2)
    hover(browser, "bars", "packed", 0)
    for button in browser.find_elements(By.TAG_NAME, "button"):
        show(browser, button)
        button.click()
    Select(browser.find_element(By.TAG_NAME, "select")).select_by_index(1)
    prefer(browser, "dark")
    resize(browser, 360)


# --- what leaves ---


def test_the_page_asks_for_nothing_but_itself(opened: webdriver.Chrome, path: Path) -> None:
    use_everything(opened)
    asked = requests(opened)
    assert [one for one in asked if not one.startswith(("data:", "blob:"))] == [path.as_uri()]
    loaded = opened.execute_script(
        "return performance.getEntriesByType('resource').map(({name}) => name)"
    )
    assert loaded == []


def test_a_server_of_the_page_sees_one_request(opened: webdriver.Chrome, path: Path) -> None:
    seen: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # the base's
            super().__init__(*arguments, directory=str(path.parent), **options)

        def log_message(self, *_: object) -> None:
            seen.append(self.requestline)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            open_page(opened, f"http://127.0.0.1:{server.server_port}/{path.name}")
            use_everything(opened)
            opened.get("about:blank")  # else a connection stays open
        finally:
            server.shutdown()
            thread.join()
    assert {*seen} == {f"GET /{path.name} HTTP/1.1"}
    assert len(seen) == 1


def test_the_policy_stops_what_a_script_would_fetch(opened: webdriver.Chrome) -> None:
    """A request that the policy did not stop would reach this server."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            stopped = opened.execute_async_script(
                """
                const [address, done] = arguments;
                const image = new Image();
                const failed = new Promise((resolve) => {
                  image.onerror = () => resolve("image");
                });
                image.src = address;
                Promise.all([failed, fetch(address).catch(() => "fetch")]).then(done);
                """,
                f"http://127.0.0.1:{server.server_port}/",
            )
        finally:
            server.shutdown()
            thread.join()
    assert stopped == ["image", "fetch"]
    assert seen == []
    refused = log(opened, "browser")  # and leaves it silent
    assert any("Content Security Policy" in message for message in refused)


# --- what is drawn and said ---


@pytest.mark.parametrize(
    ("key", "point", "row"),
    [
        ("line", 2, "line/StreamingLLM/16"),
        ("line", 1, "line/H2O/8"),
        ("line", 3, "line/q^B/32"),
        ("bars", 1, "lognormal/in place/sglang"),
        ("bars", 2, "lognormal/packed/tensorrt_llm"),
        ("points", 0, "points/random/1"),
        ("points", 3, "points/frontier/3"),
        ("odd", 1, f"odd/{NASTY}/1"),
    ],
)
@pytest.mark.parametrize("width", [1280, 360])
def test_the_mouse_on_a_point_shows_the_numbers_of_the_csv(
    opened: webdriver.Chrome, key: str, point: int, row: str, width: int
) -> None:
    """Also of the random point, which lies on the frontier."""
    resize(opened, width)
    said = hover(opened, key, ROWS[row]["series"], point).split("\n")
    x_title = next(one.x_title for one in study().charts if one.key == key)
    cells = ROWS[row]
    expected = [cells["series"], f"{x_title}: {cells['x']}", *numbers(cells)]
    if row == "points/random/1":
        expected.append("frontier: the same")
    if width == 1280:
        assert said == expected
    else:  # the same words on more lines
        assert " ".join(said).split() == " ".join(expected).split()
    label = opened.find_element(By.CSS_SELECTOR, ".hoverlayer .hovertext path")
    left, right = opened.execute_script(
        "const {left, right} = arguments[0].getBoundingClientRect(); return [left, right]", label
    )
    if key != "odd":  # a category of that length has no place on a phone
        assert 0 <= left < right <= width


def numbers(cells: dict[str, str]) -> list[str]:
    """Return what a hover says of a row, after its name and its x."""
    names = {
        "mean": "Mean",
        "sd": "sd",
        "low": "95 % from",
        "high": "95 % to",
        "n": "n",
        "closed_form": "Closed form",
        "article": "Article",
    }
    return [f"{said}: {cells[name]}" for name, said in names.items() if cells[name]]


def test_what_is_plotted_is_the_csv(opened: webdriver.Chrome) -> None:
    for made in study().charts:
        if made.choices:
            continue
        traces = plotted(opened, made.key)
        assert len(traces) == len(made.lines)
        assert num_drawn(chart(opened, made.key)) == len(made.lines)
        for line in made.lines:
            trace, rows = traces[line.name], [ROWS[key] for key in line.keys]
            means = [float(row["mean"]) for row in rows]
            shown = [mean if mean > 0 or not made.log_y else None for mean in means]
            assert trace["y"] == shown
            if all(row["interval"] == "exact" for row in rows):
                assert trace["up"] is trace["down"] is None
            else:
                assert trace["up"] == [float(row["high"]) - float(row["mean"]) for row in rows]
                assert trace["down"] == [float(row["mean"]) - float(row["low"]) for row in rows]
            if made.kind != "bar":
                assert (trace["dash"] != "solid") == line.dashed


def test_a_value_without_a_place_on_a_log_axis_is_told(opened: webdriver.Chrome) -> None:
    box = chart(opened, "line")
    note = box.find_element(By.CLASS_NAME, "note")
    assert note.text.startswith("2 of the values are 0 or less")
    legend(box, "H2O").click()
    assert note.text == ""
    legend(box, "H2O").click()
    box.find_element(By.CSS_SELECTOR, "[data-axis=logY]").click()
    assert note.text == ""
    assert plotted(opened, "line")["H2O"]["y"][-1] == 0


def test_every_cell_equals_the_csv(opened: webdriver.Chrome) -> None:
    found = cells_of(opened)
    assert {key for key, _ in found} == ROWS.keys()
    for key, cells in found:
        assert len(cells) >= 10  # columns without a value are left out
        for column, text in cells:
            assert is_cell(text, ROWS[key], column), (key, column)


def is_cell(text: str, row: dict[str, str], column: str) -> bool:
    """Return whether a cell is that of the CSV; a whole number has no decimal point."""
    expected = row["series" if column == "line" else column]
    return column == "line" or text in (expected, expected.removesuffix(".0"))


def cells_of(browser: webdriver.Chrome) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the key of each row of each table with its cells by column."""
    found: list[tuple[str, list[tuple[str, str]]]] = browser.execute_script(
        "return [...document.querySelectorAll('tr[data-key]')].map((row) => [row.dataset.key,"
        "[...row.cells].map((cell) => [cell.dataset.column, "
        "cell.dataset.value ?? cell.textContent])])"
    )
    return found


def test_a_name_in_the_legend_hides_its_series(opened: webdriver.Chrome) -> None:
    box = chart(opened, "line")
    assert shown_traces(opened, "line") == {"StreamingLLM", "H2O", "q^B"}
    assert num_drawn(box) == 3
    legend(box, "H2O").click()
    assert shown_traces(opened, "line") == {"StreamingLLM", "q^B"}
    assert legend(box, "H2O").get_attribute("aria-pressed") == "false"
    assert num_drawn(box) == 2
    legend(box, "H2O").click()
    assert shown_traces(opened, "line") == {"StreamingLLM", "H2O", "q^B"}
    assert legend(box, "H2O").get_attribute("aria-pressed") == "true"
    assert num_drawn(box) == 3


def test_a_name_of_markup_is_a_name(opened: webdriver.Chrome) -> None:
    box = chart(opened, "odd")
    legend(box, NASTY).click()
    assert num_drawn(box) == 0
    texts = [text.text for text in box.find_elements(By.CSS_SELECTOR, ".xtitle, .xtick text")]
    assert NASTY in texts


def test_the_selector_changes_the_chart_and_its_table(opened: webdriver.Chrome) -> None:
    box = chart(opened, "bars")
    select = box.find_element(By.TAG_NAME, "select")
    assert box.find_element(By.CSS_SELECTOR, "label").text == "Importance"
    assert select.accessible_name == "Importance"
    (made,) = (one for one in study().charts if one.key == "bars")
    legend(box, "packed").click()  # hidden under one choice is hidden under the other
    for choice in (*made.choices, made.choices[0]):
        Select(select).select_by_visible_text(choice)
        lines = [
            line for line, its in zip(made.lines, made.choice_of, strict=True) if its == choice
        ]
        traces = plotted(opened, "bars")
        assert {name: trace["y"] for name, trace in traces.items()} == {
            line.name: [float(ROWS[key]["mean"]) for key in line.keys] for line in lines
        }
        assert shown_traces(opened, "bars") == {"in place"}
        assert shown_keys(box) == [key for line in lines for key in line.keys]
        plot = box.find_element(By.CLASS_NAME, "plot")
        assert plot.accessible_name == f"{made.title}. {made.caption} ({choice})"
        caption = opened.find_element(By.ID, plot.get_attribute("aria-describedby") or "")
        assert caption.text == f"{made.title}: {choice}"
        assert caption.is_displayed()


def test_buttons_make_axes_logarithmic_and_linear(opened: webdriver.Chrome) -> None:
    box = chart(opened, "line")
    for name, axis, begins in (("logX", "xaxis", False), ("logY", "yaxis", True)):
        button = box.find_element(By.CSS_SELECTOR, f"[data-axis={name}]")
        for is_log in (begins, not begins, begins):
            assert axis_type(opened, "line", axis) == ("log" if is_log else "linear")
            assert button.get_attribute("aria-pressed") == str(is_log).lower()
            button.click()


def test_only_axes_that_may_be_logarithmic_have_a_button(opened: webdriver.Chrome) -> None:
    counts = [
        len(chart(opened, key).find_elements(By.CSS_SELECTOR, "[data-axis]"))
        for key in ("line", "bars", "points")
    ]
    assert counts == [2, 0, 0]


# --- the study itself ---


@pytest.fixture(scope="module")
def made() -> Study:
    return run(quick=True)


@pytest.fixture(scope="module")
def path_of_study(made: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("study") / "study.html"
    page.write(made, path)
    return path


@pytest.fixture
def whole(opened: webdriver.Chrome, path_of_study: Path) -> webdriver.Chrome:
    """Open the page of the study."""
    log(opened, "performance")
    open_page(opened, path_of_study.as_uri())
    return opened


def lines_of(chart: Chart) -> list[Line]:
    """Return the series of a chart that are shown at first."""
    first = chart.choices[0] if chart.choices else None
    choices = chart.choice_of or (None,) * len(chart.lines)
    return [line for line, its in zip(chart.lines, choices, strict=True) if its == first]


def assert_told(said: str, name: str, cells: dict[str, str], x_title: str) -> None:
    """Check that a hover tells of a row, alone or among others in its place."""
    lines = said.split("\n")
    first = [f"{x_title}: {cells['x']}", *numbers(cells)]
    if name == lines[0] or f"{name}: the same" in lines:
        assert lines[1 : 1 + len(first)] == first
    else:
        at = lines.index(name)
        assert " ".join(lines[at + 1 :]).startswith("; ".join(numbers(cells)))


def test_the_mouse_on_any_chart_of_the_study_shows_the_csv(
    whole: webdriver.Chrome, made: Study
) -> None:
    """In each chart the point that lies farthest from others."""
    cells = {line["key"]: line for line in csv.DictReader(io.StringIO(made.to_csv()))}
    sections = set()
    for one in made.charts:
        key = slug(one.key)
        chart(whole, key)
        places = pixels(whole, key)

        def room(
            place: tuple[float, float], places: Iterable[tuple[float, float]] = places.values()
        ) -> float:
            apart = [dist for other in places if (dist := math.dist(place, other)) > 2]
            return min(apart, default=0)

        name, at = max(places, key=lambda its: room(places[its]))
        (line,) = (line for line in lines_of(one) if line.name == name)
        assert_told(hover(whole, key, name, at), name, cells[line.keys[at]], one.x_title)
        sections.add(one.section)
    assert len(made.charts) >= 10
    assert sections == {title for title, _ in made.sections}


@pytest.mark.parametrize("width", [1280, 360])
def test_the_mouse_at_the_foot_of_a_bar_of_nothing_names_it(
    whole: webdriver.Chrome, made: Study, width: int
) -> None:
    resize(whole, width)
    rows = made.by_key()
    cells = {line["key"]: line for line in csv.DictReader(io.StringIO(made.to_csv()))}
    num = 0
    for one in (one for one in made.charts if one.kind == "bar"):
        empty = [
            (line.name, at, key)
            for line in lines_of(one)
            for at, key in enumerate(line.keys)
            if rows[key].mean == 0
        ]
        box = chart(whole, slug(one.key))
        zeros = [text.text.strip() for text in box.find_elements(By.CSS_SELECTOR, ".textpoint")]
        assert zeros == ["0"] * len(empty)
        for name, at, key in empty[:2]:
            said = hover(whole, slug(one.key), name, at)
            if width == 1280:
                assert_told(said, name, cells[key], one.x_title)
            else:
                words = [name, f"{one.x_title}: {cells[key]['x']}", *numbers(cells[key])]
                assert said.split() == " ".join(words).split()
            num += 1
    assert num >= 4


def test_points_in_one_place_are_told_together(whole: webdriver.Chrome, made: Study) -> None:
    rows = made.by_key()
    cells = {line["key"]: line for line in csv.DictReader(io.StringIO(made.to_csv()))}
    num = 0
    for one in (one for one in made.charts if one.kind != "bar"):
        places: dict[tuple[float | str, float], list[tuple[str, int, str]]] = {}
        for line in lines_of(one):
            for at, key in enumerate(line.keys):
                place = (rows[key].x, rows[key].mean)
                places.setdefault(place, []).append((line.name, at, key))
        chart(whole, slug(one.key))
        seen = pixels(whole, slug(one.key))
        several = [its for its in places.values() if len(its) > 1 and its[0][:2] in seen]
        for together in several[:1]:
            said = hover(whole, slug(one.key), *together[0][:2])
            for name, _, key in together:
                assert_told(said, name, cells[key], one.x_title)
            num += 1
    assert num >= 2


def test_the_controls_of_the_study_do_what_they_say(whole: webdriver.Chrome, made: Study) -> None:
    one = next(one for one in made.charts if one.choices and one.kind != "bar" and one.log_y)
    key = slug(one.key)
    box = chart(whole, key)
    name = lines_of(one)[0].name
    legend(box, name).click()
    assert plotted(whole, key)[name]["visible"] == "legendonly"
    legend(box, name).click()
    assert plotted(whole, key)[name]["visible"] is True
    ticks = [text.text for text in box.find_elements(By.CSS_SELECTOR, ".ytick text")]
    assert len(ticks) >= 3
    box.find_element(By.CSS_SELECTOR, "[data-axis=logY]").click()
    assert axis_type(whole, key, "yaxis") == "linear"
    Select(box.find_element(By.TAG_NAME, "select")).select_by_index(1)
    second = series_of(one, made.by_key(), one.choices[1])
    assert {n: trace["y"] for n, trace in plotted(whole, key).items()} == {
        series.name: series.means for series in second
    }
    assert shown_keys(box) == [row.key for series in second for row in series.rows]


def test_a_choice_shows_its_caption_on_one_scale(opened: webdriver.Chrome, tmp_path: Path) -> None:
    one = next(one for one in study().charts if one.key == "bars")
    captioned = attrs.evolve(one, captions=("Of one.", "Of two."), y_range=(0.0, 2.0))
    page.write(attrs.evolve(study(), charts=(captioned,)), tmp_path / "captions.html")
    open_page(opened, (tmp_path / "captions.html").as_uri())
    box = chart(opened, "bars")
    for number, choice in enumerate(one.choices):
        Select(box.find_element(By.TAG_NAME, "select")).select_by_index(number)
        shown = [p.text for p in box.find_elements(By.CLASS_NAME, "caption") if p.is_displayed()]
        assert shown == [f"{choice}: {captioned.captions[number]}"]
        plot = box.find_element(By.CLASS_NAME, "plot")
        said = f"{one.title}. {captioned.captions[number]} ({choice})"
        assert plot.accessible_name == said
        ends = opened.execute_script("return arguments[0]._fullLayout.yaxis.range", plot)
        assert ends == [0, 2]


def test_bars_lie_and_have_room_on_a_phone(whole: webdriver.Chrome, made: Study) -> None:
    resize(whole, 360)
    for one in (one for one in made.charts if one.kind == "bar"):
        box = chart(whole, slug(one.key))
        plot = box.find_element(By.CLASS_NAME, "plot")
        bars, room, thick = whole.execute_script(
            """
            const { data, _fullLayout: { xaxis, yaxis } } = arguments[0];
            const bars = data.filter(({ meta, type }) => type === "bar" && !meta);
            const step = Math.abs(yaxis.c2p(1) - yaxis.c2p(0));
            const ways = bars.map(({ orientation }) => orientation);
            return [ways, xaxis._length, step * bars[0].width];
            """,
            plot,
        )
        assert set(bars) == {"h"}
        assert room > 120
        assert thick > 8
        for title in box.find_elements(By.CSS_SELECTOR, ".xtitle, .ytick text"):
            left, right = whole.execute_script(
                "const {left, right} = arguments[0].getBoundingClientRect(); return [left, right]",
                title,
            )
            assert 0 <= left < right <= 360, title.text


def test_the_page_of_the_study_shows_all_of_it(
    whole: webdriver.Chrome, made: Study, path_of_study: Path
) -> None:
    opened = whole
    cells = {line["key"]: line for line in csv.DictReader(io.StringIO(made.to_csv()))}
    found = cells_of(opened)
    assert {key for key, _ in found} == cells.keys()
    assert all(is_cell(text, cells[key], column) for key, row in found for column, text in row)
    sections = [title.text for title in opened.find_elements(By.TAG_NAME, "h2")]
    assert sections == [title for title, _ in made.sections]
    for one in made.charts:
        for number in range(len(one.choices) or 1):
            box = chart(opened, slug(one.key))
            if one.choices:
                Select(box.find_element(By.TAG_NAME, "select")).select_by_index(number)
            traces = plotted(opened, slug(one.key))
            choice = one.choices[number] if one.choices else None
            lines = series_of(one, made.by_key(), choice)
            assert traces.keys() == {line.name for line in lines}
            assert num_drawn(box) == len(lines)
    for width in WIDTHS:
        resize(opened, width)
        assert opened.execute_script("return document.documentElement.scrollWidth") <= width
    assert requests(opened) == [path_of_study.as_uri()]


# --- by keyboard, on any screen ---


def test_a_keyboard_reaches_and_does_everything(opened: webdriver.Chrome) -> None:
    """Tab goes through every control in the order of the page, each with a visible focus."""
    reached: list[WebElement] = []
    outlines = []
    for _ in range(60):
        press(opened, Keys.TAB)
        active = opened.switch_to.active_element
        if active.tag_name == "body" or active in reached:
            break
        reached.append(active)
        outlines.append(active.value_of_css_property("outline-style"))
    assert reached[0].get_attribute("textContent") == "Skip to the figures"
    controls = [
        one
        for one in opened.find_elements(By.CSS_SELECTOR, "a, button, select, .scroll")
        if one.is_displayed()
    ]
    assert reached[1:] == controls  # the skip link is shown while it has the focus
    assert set(outlines) == {"solid"}

    button = chart(opened, "line").find_element(By.CSS_SELECTOR, "[data-axis=logX]")
    for key, kind in ((Keys.SPACE, "log"), (Keys.ENTER, "linear")):
        go_to(opened, button)
        press(opened, key)
        assert axis_type(opened, "line", "xaxis") == kind
    name = legend(chart(opened, "points"), "random")
    for key, visible in ((Keys.ENTER, "legendonly"), (Keys.SPACE, True)):
        go_to(opened, name)
        press(opened, key)
        assert plotted(opened, "points")["random"]["visible"] == visible
        assert opened.switch_to.active_element == name  # the focus stays where it was
    before = plotted(opened, "bars")
    go_to(opened, chart(opened, "bars").find_element(By.TAG_NAME, "select"))
    press(opened, Keys.ARROW_DOWN)
    assert plotted(opened, "bars") != before


def press(browser: webdriver.Chrome, key: str) -> None:
    action = ActionBuilder(browser)
    action.key_action.send_keys(key)
    action.perform()


def go_to(browser: webdriver.Chrome, element: WebElement) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(100):
        if browser.switch_to.active_element == element:
            return
        press(browser, Keys.TAB)
    pytest.fail("Tab never reached it")


def test_the_skip_link_leads_to_the_figures(opened: webdriver.Chrome) -> None:
    press(opened, Keys.TAB)
    assert opened.switch_to.active_element.rect["y"] >= 0
    press(opened, Keys.ENTER)
    assert opened.switch_to.active_element.tag_name == "main"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_does_not_scroll_sideways(opened: webdriver.Chrome, width: int) -> None:
    resize(opened, width)
    wide, window = opened.execute_script(
        "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert wide <= window <= width
    for plot in opened.find_elements(By.CLASS_NAME, "plot"):
        (drawn, *_) = plot.find_elements(By.CLASS_NAME, "main-svg")
        assert plot.rect["x"] >= 0
        assert drawn.rect["x"] + drawn.rect["width"] <= width
        assert drawn.rect["width"] > 0.85 * width - 64 or width == 1280


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(opened: webdriver.Chrome, scheme: str) -> None:
    """The contrast of every text is at least 4.5, in charts too."""
    prefer(opened, scheme)
    legend(chart(opened, "line"), "H2O").click()
    hover(opened, "line", "StreamingLLM", 2)
    paper = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert luminance(rgb(paper)) > 0.9 if scheme == "light" else luminance(rgb(paper)) < 0.1
    texts = opened.execute_script(
        """
        const found = new Map();
        for (const element of document.querySelectorAll("body *")) {
          const isText = (node) => node.nodeType === 3 && node.data.trim();
          if (![...element.childNodes].some(isText) || !element.checkVisibility()) continue;
          if (element.closest("script, noscript, option")) continue;
          const style = getComputedStyle(element);
          const inPicture = element.closest("svg.main-svg");
          const label = element.closest(".hovertext");
          let behind = label && getComputedStyle(label.querySelector("path")).fill;
          for (let at = inPicture || element; !behind && at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (!/, 0\\)$/.test(colour)) behind = colour;
          }
          found.set([inPicture ? style.fill : style.color, behind].join("|"), element.textContent);
        }
        return [...found];
        """
    )
    assert len(texts) >= 4
    for colours, text in texts:
        assert contrast(*colours.split("|")) >= 4.5, (colours, text)


def rgb(colour: str) -> list[float]:
    numbers = [float(part) for part in colour.partition("(")[2].rstrip(")").split(",")]
    assert len(numbers) == 3 or numbers[3] == 1, colour
    return numbers[:3]


def luminance(colour: list[float]) -> float:
    """WCAG 2: relative luminance."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (value / 255 for value in colour)
    ]
    return sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    lights = sorted(luminance(rgb(colour)) + 0.05 for colour in (one, other))
    return lights[1] / lights[0]


def test_contrast_is_that_of_wcag() -> None:
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(118, 118, 118)", "rgb(255, 255, 255)") == pytest.approx(4.54, abs=0.01)


def test_charts_are_drawn_anew_when_the_scheme_changes(opened: webdriver.Chrome) -> None:
    box = chart(opened, "line")
    legend(box, "H2O").click()
    for scheme in ("dark", "light"):
        prefer(opened, scheme)
        back, paper = opened.execute_script(
            "return [arguments[0].style, getComputedStyle(document.body)]"
            ".map(({backgroundColor}) => backgroundColor)",
            box.find_element(By.CSS_SELECTOR, ".main-svg"),
        )
        assert back == paper
        assert shown_traces(opened, "line") == {"StreamingLLM", "q^B"}  # and it is as it was left


def test_print_is_light_and_as_wide_as_paper(opened: webdriver.Chrome) -> None:
    prefer(opened, "dark")
    opened.execute_script("dispatchEvent(new Event('beforeprint'))")
    drawn = chart(opened, "line").find_element(By.CLASS_NAME, "main-svg")
    assert drawn.value_of_css_property("background-color") == "rgba(255, 255, 255, 1)"
    assert drawn.rect["width"] == 640
    opened.execute_script("dispatchEvent(new Event('afterprint'))")
    settle(opened)
    assert luminance(rgb(drawn.value_of_css_property("background-color"))) < 0.1
    assert drawn.rect["width"] > 900


def test_without_scripts_the_tables_are_there(opened: webdriver.Chrome, path: Path) -> None:
    opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened.get(path.as_uri())
        tables = opened.find_elements(By.TAG_NAME, "table")
        assert len(tables) == 8
        assert all(table.is_displayed() for table in tables)
        for hidden in (".controls", ".drawn"):
            parts = opened.find_elements(By.CSS_SELECTOR, hidden)
            assert parts
            assert not any(part.is_displayed() for part in parts)
    finally:
        opened.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_pictures_are_kept_at_three_widths(
    opened: webdriver.Chrome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVRECLAIM_ARTEFACTS", str(tmp_path / "artefacts"))
    paths = keep_pictures(opened, tmp_path, "some test[a-b]")
    assert [one.name for one in paths] == [f"some-test-a-b-{width}.png" for width in WIDTHS]
    for one, width in zip(paths, WIDTHS, strict=True):
        assert one.parent == tmp_path / "artefacts"
        assert int.from_bytes(one.read_bytes()[16:20], "big") == width
