"""The site: each public name and each page has its place, and commands print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from scripts import output_of, scripts_of

import kvreclaim
from kvreclaim import plots, testing

DOCS = Path(__file__).parents[1] / "docs"
PACKAGE = Path(kvreclaim.__file__).parent
# A page of the site, by its name without a suffix.
FILES = [*DOCS.glob("*.md"), *DOCS.glob("api/*.md"), *DOCS.glob("tutorials/*.ipynb")]
PAGES = sorted(path.relative_to(DOCS).with_suffix("").as_posix() for path in FILES)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)
CONSOLE = re.compile(r"^```console\n(.*?)^```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^\.\. (currentmodule|auto\w+):: (\S+)$", re.MULTILINE)


def entries(page: str) -> list[str]:
    trees = TOCTREE.findall((DOCS / f"{page}.md").read_text("utf-8"))
    return [line for tree in trees for line in tree.splitlines() if line and line[0] != ":"]


def test_every_page_has_one_place() -> None:
    api = [f"api/{name}" for name in entries("api/index")]
    assert sorted(["index", *entries("index"), *api]) == PAGES


def listed_names() -> Counter[str]:
    """Return what the pages of the API list: a name with its module, or a module with all of it."""
    names: Counter[str] = Counter()
    for page in entries("api/index"):
        module = ""
        for kind, name in DIRECTIVE.findall((DOCS / f"api/{page}.md").read_text("utf-8")):
            if kind == "currentmodule":
                module = name
            elif kind == "automodule":
                names[name] += 1
            else:
                names[f"{module}.{name}"] += 1
    return names


def public_names(package: ModuleType) -> list[str]:
    return [f"{package.__name__}.{name}" for name in package.__all__]


def test_the_api_lists_every_public_name_once() -> None:
    packages = [kvreclaim, testing, plots]
    adapters = [path for path in PACKAGE.glob("adapters/*.py") if path.name[0] != "_"]
    assert adapters
    names = [name for package in packages for name in public_names(package)]
    names += [f"kvreclaim.adapters.{path.stem}" for path in adapters]
    assert listed_names() == Counter(names)


@pytest.mark.parametrize("page", [page for page in PAGES if (DOCS / f"{page}.md").exists()])
def test_a_page_has_one_title(page: str) -> None:
    text = FENCED.sub("", (DOCS / f"{page}.md").read_text("utf-8"))
    titles = re.findall(r"^# .+", text, re.MULTILINE)
    assert len(titles) == (0 if page in INCLUDED else 1), titles


INCLUDED = ("changelog", "contributing")  # their text, and title, is that of another file
WITH_COMMANDS = [page for page in FILES if CONSOLE.search(page.read_text("utf-8"))]


def run(line: str, folder: Path) -> str:
    """Run a line in a shell that has the command, in a folder; what it prints."""
    command = folder / "bin" / "kvreclaim"
    if not command.exists():
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvreclaim "$@"\n', "utf-8")
        command.chmod(0o755)
    path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
    modules = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
        cwd=folder,
        env=os.environ | {"PATH": path, "PYTHONPATH": modules, "PYTHONUTF8": "1"},
    )
    return done.stdout


@pytest.mark.skipif(os.name != "posix", reason="the lines are those of a POSIX shell")
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_of_a_page_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, script in scripts_of(page).items():
        assert not output_of(script, tmp_path / name)
    for block in CONSOLE.findall(page.read_text("utf-8")):
        assert block.startswith("$ ")
        got = ""
        for line in re.findall(r"^\$ (.*)", block, re.MULTILINE):
            got += f"$ {line}\n{run(line, tmp_path)}"
        assert re.sub(r"(?<=\|v:)[\w.+]+|\d+(?= bytes$)", "...", got, flags=re.MULTILINE) == block


def test_pages_with_commands_are_found() -> None:
    assert "files-and-command-line.md" in {page.name for page in WITH_COMMANDS}
