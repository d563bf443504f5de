"""Python in a fresh interpreter: a line of it, or the scripts of a page.

A script is a fenced block whose first line names it, `# name.py`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import kvreclaim

_NAMED = re.compile(r"^```python\n(# (\w+\.py)\n.*?)^```", re.DOTALL | re.MULTILINE)


def scripts_of(page: Path) -> dict[str, str]:
    """Return the scripts of a page by name."""
    return {name: text for text, name in _NAMED.findall(page.read_text("utf-8"))}


def output_of(script: str, path: Path, *arguments: str) -> str:
    """Write a script, run it in a fresh interpreter where a warning is an error; what it prints."""
    path.write_text(script, "utf-8")
    folders = [
        str(Path(kvreclaim.__file__).parents[1]),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def fresh(code: str, *, silent: bool = False) -> str:
    """Run code in a fresh interpreter; what it prints, and, where it must be silent, no more."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(kvreclaim.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert not (silent and done.stderr), done.stderr
    return done.stdout.strip()
