"""Measure, and print the tables: `python -m benchmarks.speed [--quick] [--into PAGE]`.

A full run takes minutes of CPU time and some 3 GiB of memory. ``--into docs/performance.md``
also writes the tables between the two marks of that page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.pages import write_into
from benchmarks.speed import block_sizes, files, growth, inputs, parts, small, tried
from benchmarks.speed import workload as work
from benchmarks.speed.results import Section, machine
from benchmarks.speed.targets import judged

COMMAND: Final = "python -m benchmarks.speed"  # named by the marks of the page


def run(scale: work.Scale, folder: Path) -> str:
    """Return the tables in markdown, the one of targets first."""
    steps: dict[str, Callable[[], Section]] = {
        "block sizes": lambda: block_sizes.section(scale, folder),
        "small calls": lambda: small.section(scale),
        "shapes and kinds of input": lambda: inputs.section(scale),
        "rules of a pool": lambda: parts.section(scale),
        "growth and memory": lambda: growth.section(scale),
        "files": lambda: files.section(scale, folder),
        "other ways": lambda: tried.section(scale),
    }
    sections = []
    for name, step in steps.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        sections.append(step())
    reached = {key: value for each in sections for key, value in each.reached.items()}
    tables = [judged(reached), *(table for each in sections for table in each.tables)]
    return "\n".join((f"Machine: {machine()}; CPU time.", "", *map(str, tables)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and say how long it took."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller masks, in half a minute")
    parser.add_argument("--into", type=Path, metavar="PAGE", help="write the tables into a page")
    options = parser.parse_args(arguments)
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        text = run(work.QUICK if options.quick else work.FULL, Path(folder))
    print(text)
    if options.into is not None:
        write_into(options.into, {COMMAND: text})
    print(f"{time.process_time() - start:.0f} s of CPU time", file=sys.stderr)


if __name__ == "__main__":
    main()
