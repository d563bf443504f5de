"""The notebooks of docs/tutorials are tidy, and their cells give the outputs that they store.

Jupyter is not needed here; `python tests/tutorials.py` runs them in its kernels.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tutorials
from optional import noisy_library
from tutorials import Book, Output

BOOKS = {path.name: path for path in tutorials.notebooks()}
MINUTES = re.compile(r"\b(?:five|six|seven|eight|nine|ten)\s+minutes\b", re.IGNORECASE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
OF_ONE_MACHINE = re.compile(  # addresses, paths, times
    r"\b0x[0-9a-f]{4,}|(?<![\w.])/(?:tmp|home|root|usr|Users|var)/|\b\d+(?:\.\d+)? ?m?s\b"
)
EVERY = pytest.mark.parametrize("name", BOOKS)


def shown(cell: dict[str, Any]) -> str:
    """Return whatever a cell stores as text."""
    return json.dumps(cell.get("outputs", []))


def test_there_are_four() -> None:
    assert [*BOOKS] == [
        "choosing-a-pool.ipynb",
        "harness.ipynb",
        "saved-masks.ipynb",
        "unit-test.ipynb",
    ]


@EVERY
def test_a_notebook_is_stored_without_noise(name: str) -> None:
    text = BOOKS[name].read_text("utf-8")
    book = tutorials.read(BOOKS[name])
    assert text == tutorials.text_of(book)
    assert {*book} == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert book["nbformat"] == 4
    assert book["metadata"] == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
    }
    for cell in book["cells"]:
        code = cell["cell_type"] == "code"
        fields = {"cell_type", "metadata", "source"}
        assert {*cell} == (fields | {"execution_count", "outputs"} if code else fields)
        assert cell["metadata"] == {}
        assert cell["cell_type"] in ("code", "markdown")
        if code:
            assert cell["execution_count"] is None
            assert cell["outputs"] == tutorials.tidy(cell["outputs"])


@EVERY
def test_outputs_are_no_errors_and_of_no_machine(name: str) -> None:
    cells = tutorials.code_cells(tutorials.read(BOOKS[name]))
    kinds = {
        output.get("name", output["output_type"]) for cell in cells for output in cell["outputs"]
    }
    assert {"stdout", "execute_result"} >= kinds != set()
    for cell in cells:
        assert OF_ONE_MACHINE.search(shown(cell)) is None


@pytest.mark.parametrize(
    "text", ["<Pool at 0x7f3a10>", "in /home/someone/a.npz", "took 1.5 s", "12ms"]
)
def test_what_is_of_one_machine_is_seen(text: str) -> None:
    assert OF_ONE_MACHINE.search(text) is not None


@EVERY
def test_the_first_cell_says_what_is_needed_and_how_long_it_takes(name: str) -> None:
    first = tutorials.read(BOOKS[name])["cells"][0]
    text = tutorials.source(first["source"])
    assert first["cell_type"] == "markdown"
    assert text.startswith("# ")
    assert "    pip install " in text
    assert MINUTES.search(text)


@EVERY
def test_links_lead_somewhere(name: str) -> None:
    book = tutorials.read(BOOKS[name])
    texts = [tutorials.source(c["source"]) for c in book["cells"] if c["cell_type"] == "markdown"]
    links = LINK.findall("\n".join(texts))
    assert links
    for link in links:
        assert (tutorials.FOLDER / link).exists(), link


@EVERY
def test_a_notebook_is_short(name: str) -> None:
    book = tutorials.read(BOOKS[name])
    words = sum(len(tutorials.source(cell["source"]).split()) for cell in book["cells"])
    assert words < 1_200
    assert all(len(cell["source"]) <= 30 for cell in book["cells"])


def test_one_notebook_needs_an_extra() -> None:
    needs = {name: tutorials.extras(tutorials.read(path)) for name, path in BOOKS.items()}
    assert {name: extras for name, extras in needs.items() if extras} == {
        "harness.ipynb": ["kvpress"]
    }


@pytest.mark.parametrize("name", [name for name in BOOKS if name != "harness.ipynb"])
def test_cells_give_what_is_stored(name: str) -> None:
    gives_what_is_stored(BOOKS[name])


@pytest.mark.filterwarnings("default")  # kvpress and what it imports warn of their deprecations
def test_cells_with_kvpress_give_what_is_stored() -> None:
    for needed in ("torch", "transformers", "kvpress"):
        noisy_library(needed)
    gives_what_is_stored(BOOKS["harness.ipynb"])


def gives_what_is_stored(path: Path) -> None:
    book = tutorials.read(path)
    before = Path.cwd()
    played = tutorials.play(book)
    assert Path.cwd() == before
    for cell, outputs in zip(tutorials.code_cells(book), played, strict=True):
        assert tutorials.differences(cell["outputs"], outputs) == ""


def printed(text: str, name: str = "stdout") -> Output:
    return {"name": name, "output_type": "stream", "text": text}


def result(**data: str) -> Output:
    named = {f"text/{kind}": text for kind, text in data.items()}
    return {"data": named, "metadata": {}, "output_type": "execute_result", "execution_count": 3}


@pytest.mark.parametrize(
    ("stored", "got"),
    [
        ([printed("a\n")], [printed("b\n")]),
        ([printed("a\n")], [printed("a")]),
        ([printed("a\n")], []),
        ([], [printed("a\n")]),
        ([printed("a\n")], [printed("a\n", "stderr")]),
        ([printed("1")], [result(plain="1")]),
        ([result(plain="1")], [result(plain="2")]),
        ([result(html="<p>1</p>")], [result(html="<p>2</p>")]),
        ([result(plain="1")], [printed("1"), result(plain="1")]),
        ([result(plain="v: 0.25")], [result(plain="v: 0.35")]),
        ([], [{"output_type": "error", "ename": "E", "evalue": "no", "traceback": []}]),
    ],
)
def test_outputs_that_differ(stored: list[Output], got: list[Output]) -> None:
    assert tutorials.differences(stored, got)
    assert not tutorials.differences(stored, stored)
    assert not tutorials.differences(got, got)


@pytest.mark.parametrize(
    ("stored", "got"),
    [
        ([printed("a\nb\n")], [printed("a\n"), printed("b\n")]),
        ([printed("a\nb\n")], [printed("a\r\nb\r\n")]),
        ([result(html="<p>1</p>")], [result(html="<p>1</p>", plain="Report(...)")]),
        ([printed("B:16|rows:1|v:0.1.0\n")], [printed("B:16|rows:1|v:0.2.0.dev1+abc\n")]),
    ],
)
def test_outputs_that_read_the_same(stored: list[Output], got: list[Output]) -> None:
    assert tutorials.differences(stored, got) == ""


def book_of(*sources: str) -> Book:
    cells = [
        {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": [], "source": source}
        for source in sources
    ]
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}


def test_playing_prints_then_shows_the_last_expression() -> None:
    book = book_of("x = 2", "print(x)\nx + 1", "None", "if x:\n    x", "!kvreclaim --version")
    *others, (version,) = tutorials.play(book)
    assert [tutorials.tidy(outputs) for outputs in others] == [
        [],
        tutorials.tidy([printed("2\n"), result(plain="3")]),
        [],
        [],
    ]
    assert version["text"].startswith("kvreclaim ")


@pytest.mark.parametrize("command", ["!ls", "!kvreclaim --version\nprint(1)"])
def test_playing_refuses_other_commands(command: str) -> None:
    with pytest.raises(ValueError, match="a cell with a command must have no others; got"):
        tutorials.play(book_of(command))


def test_playing_stops_at_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        tutorials.play(book_of("1 / 0"))


def test_a_first_cell_without_an_installation_is_refused() -> None:
    with pytest.raises(ValueError, match="a notebook must say first what to install"):
        tutorials.extras(book_of("x = 2"))


def test_the_runner_stores_and_then_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "small.ipynb"
    path.write_text(json.dumps(book_of("x = 2", "print(x)", "x")), "utf-8")
    assert tutorials.main([str(path)], run=tutorials.play) == 1
    assert "small.ipynb: 2 cells differ\nprint(x)\n--- stored\n+++ now" in capsys.readouterr().out
    assert tutorials.main(["--write", str(path)], run=tutorials.play) == 0
    written = tutorials.read(path)
    assert [cell["outputs"] for cell in tutorials.code_cells(written)] == [
        [],
        [{"name": "stdout", "output_type": "stream", "text": ["2\n"]}],
        tutorials.tidy([result(plain="2")]),
    ]
    assert all(cell["execution_count"] is None for cell in written["cells"])
    capsys.readouterr()
    assert tutorials.main([str(path)], run=tutorials.play) == 0
    assert capsys.readouterr().out == "small.ipynb: as stored\n"
    changed = copy.deepcopy(written)
    changed["cells"][1]["source"] = ["print(x + 1)"]
    path.write_text(json.dumps(changed), "utf-8")
    assert tutorials.main([str(path)], run=tutorials.play) == 1
    assert "-2\n+3\n" in capsys.readouterr().out
    assert tutorials.read(path) == changed  # compared only


def test_a_kernel_gives_what_is_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for needed in ("nbclient", "ipykernel"):
        pytest.importorskip(needed)
    path = tmp_path / "small.ipynb"
    sources = ("print(1)", "!kvreclaim --version", "import os\nos.listdir()", "1 / 0")
    path.write_text(json.dumps(book_of(*sources)), "utf-8")
    assert tutorials.main(["--write", str(path)]) == 0
    one, command, files, error = (
        cell["outputs"] for cell in tutorials.code_cells(tutorials.read(path))
    )
    assert tutorials.differences(one, [printed("1\n")]) == ""
    assert command[0]["text"][0].startswith("kvreclaim ")
    assert tutorials.differences(files, [result(plain="[]")]) == ""
    assert error[0]["output_type"] == "error"
    capsys.readouterr()
