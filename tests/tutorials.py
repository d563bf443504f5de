r"""Run the notebooks of docs/tutorials, and hold what they give to the outputs that they store.

    python3.11 -m venv venv
    venv/bin/pip install torch==2.13.0 '.[kvpress]' 'transformers<5.3'
    venv/bin/pip install nbclient ipykernel ipywidgets
    venv/bin/python tests/tutorials.py

`play` runs the cells of one without Jupyter. What is compared is what a reader sees: text that was
printed, and the last expression of a cell, as a table where it has one. Which version of kvreclaim
counted is not compared.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import difflib
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

FOLDER: Final = Path(__file__).parents[1] / "docs" / "tutorials"

Book: TypeAlias = dict[str, Any]
"""A notebook, as its file has it."""
Output: TypeAlias = dict[str, Any]
Run: TypeAlias = Callable[[Book], list[list[Output]]]
"""Runs a notebook, and returns the outputs of each code cell."""

_COMMAND: Final = "!kvreclaim "
_EXTRA: Final = re.compile(r"pip install '?kvreclaim(?:\[([\w,-]+)\])?'? ")
_VERSION: Final = re.compile(r"(?<=\bv:)\d+\.\d[\w.+]*")
_SECONDS: Final = 300  # of one cell


def notebooks() -> list[Path]:
    """Return the files."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> Book:
    """Return the notebook of a file."""
    book: Book = json.loads(path.read_text("utf-8"))
    return book


def text_of(book: Book) -> str:
    """Return a notebook as its file is written: in Jupyter's form, the same for the same cells."""
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def source(part: Sequence[str] | str) -> str:
    """Return a cell's text: the format has a string, or a list of lines."""
    return part if isinstance(part, str) else "".join(part)


def extras(book: Book) -> list[str]:
    """Return the extras that the first cell says are needed, which must say what to install."""
    said = _EXTRA.search(source(book["cells"][0]["source"]))
    if said is None:
        raise ValueError("a notebook must say first what to install: pip install kvreclaim ...")
    return said[1].split(",") if said[1] else []


def code_cells(book: Book) -> list[dict[str, Any]]:
    """Return the cells that run."""
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def tidy(outputs: Iterable[Output]) -> list[Output]:
    """Return outputs as they are stored: one for what is printed in a row, without counts.

    Of what has a table, the table alone: the text that stands for it is a line of every field.
    """
    kept: list[Output] = []
    for output in outputs:
        if output["output_type"] == "stream":
            text = source(output["text"]).replace("\r\n", "\n")  # a command writes to a terminal
            name = output["name"]
            if kept and kept[-1].get("name") == name:
                text = source(kept.pop()["text"]) + text
            lines = text.splitlines(keepends=True)
            kept.append({"name": name, "output_type": "stream", "text": lines})
        elif output["output_type"] in ("execute_result", "display_data"):
            data = {kind: source(each) for kind, each in output["data"].items()}
            if "text/html" in data:
                data.pop("text/plain", None)
            lines_of = {kind: each.splitlines(keepends=True) for kind, each in data.items()}
            shown: Output = {"data": lines_of, "metadata": {}, "output_type": output["output_type"]}
            if output["output_type"] == "execute_result":
                shown["execution_count"] = None
            kept.append(dict(sorted(shown.items())))
        else:  # an error
            kept.append(dict(output))
    return kept


def differences(stored: Iterable[Output], got: Iterable[Output]) -> str:
    """Return where the outputs of a cell differ, as a diff; nothing where they do not."""
    before, after = (_shown(tidy(outputs)) for outputs in (stored, got))
    return "\n".join(difflib.unified_diff(before, after, "stored", "now", lineterm=""))


def _shown(outputs: Iterable[Output]) -> list[str]:
    lines = []
    for output in outputs:
        if output["output_type"] == "stream":
            parts = {output["name"]: output["text"]}
        else:
            parts = output.get("data", {"error": source(output.get("evalue", ""))})
        for kind, part in parts.items():
            text = _VERSION.sub("...", source(part))
            lines += [f"[{kind}]", *text.split("\n")]
    return lines


def play(book: Book) -> list[list[Output]]:
    """Run the code cells in a plain namespace, in a new folder, as `Run` does, without Jupyter."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return [_play_cell(source(cell["source"]), names) for cell in code_cells(book)]


def _play_cell(text: str, names: dict[str, Any]) -> list[Output]:
    printed = io.StringIO()
    value: object = None
    with contextlib.redirect_stdout(printed):
        if text.startswith("!"):
            for line in text.splitlines():
                sys.stdout.write(_command(line))
        else:
            tree = ast.parse(text)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "cell", "exec"), names)  # noqa: S102  # that is what a notebook is
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    outputs: list[Output] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": printed.getvalue()})
    if value is not None:
        table = getattr(value, "_repr_html_", None)
        data = {"text/plain": repr(value)} if table is None else {"text/html": table()}
        outputs.append({"data": data, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _command(line: str) -> str:
    """Return what a line `!kvreclaim ...` prints, run with this interpreter."""
    if not line.startswith(_COMMAND):
        raise ValueError(f"a cell with a command must have no others; got {line!r}")
    arguments = shlex.split(line.removeprefix(_COMMAND))
    done = subprocess.run(
        [sys.executable, "-m", "kvreclaim", *arguments],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        check=True,
        env=_environment(),
    )
    return done.stdout


def _environment() -> dict[str, str]:
    """Return what a notebook runs with: this kvreclaim, its command first, and text in UTF-8."""
    package = importlib.import_module("kvreclaim").__file__
    folders = [str(Path(package or "").parents[1]), os.environ.get("PYTHONPATH", "")]
    commands = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        "PATH": os.pathsep.join(filter(None, commands)),
        "PYTHONUTF8": "1",
    }


def execute(book: Book) -> list[list[Output]]:
    """Run a notebook in a fresh kernel, in a new folder, without a user's settings of IPython."""
    try:
        nbclient, nbformat = map(importlib.import_module, ("nbclient", "nbformat"))
    except ImportError:
        raise SystemExit("Jupyter is absent: pip install nbclient ipykernel ipywidgets") from None
    book = copy.deepcopy(book)
    for cell in code_cells(book):
        cell["outputs"] = []
    node = nbformat.reads(json.dumps(book), as_version=4)
    nbformat.validate(node)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as settings:
        client = nbclient.NotebookClient(
            node,
            timeout=_SECONDS,
            kernel_name="python3",
            allow_errors=True,  # they are shown as differences
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=_environment() | {"IPYTHONDIR": settings})
    return [cell["outputs"] for cell in code_cells(node)]


def main(arguments: Sequence[str] | None = None, run: Run = execute) -> int:
    """Run notebooks, print where they differ from what they store, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        epilog="Needs kvreclaim[kvpress], nbclient, ipykernel and ipywidgets. The exit code is 1 "
        "where an output differs.",
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="notebooks (all)")
    parser.add_argument("--write", action="store_true", help="store the outputs, and compare none")
    options = parser.parse_args(arguments)
    num_differing = 0
    for path in options.files or notebooks():
        book = read(path)
        changes = []
        for cell, outputs in zip(code_cells(book), run(book), strict=True):
            if change := differences(cell["outputs"], outputs):
                changes.append(f"{source(cell['source'])}\n{change}\n")
            cell |= {"execution_count": None, "outputs": tidy(outputs)}
        if options.write:
            path.write_text(text_of(book), "utf-8")
        else:
            num_differing += bool(changes)
        verdict = f"{len(changes)} cells differ" if changes else "as stored"
        sys.stdout.write("\n".join([f"{path.name}: {verdict}", *changes]) + "\n")
    return 1 if num_differing else 0


if __name__ == "__main__":
    sys.exit(main())
