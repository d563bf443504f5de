"""Run the study and write it: `python -m benchmarks.study [--out FOLDER] [--quick] [--data-only]`.

One result is computed, and everything written is made of it: results_summary.csv,
interactive_data.json, the static figures and the page.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.pages import write_text
from benchmarks.study import (
    admission,
    compaction,
    geometry,
    laws,
    methods,
    servers,
    sharing,
    strategies,
)
from benchmarks.study.measure import REPLICATIONS, Section
from benchmarks.study.results import Study
from kvreclaim import __version__

MODULES: Final = (laws, methods, strategies, geometry, compaction, admission, sharing, servers)
QUICK_REPLICATIONS: Final = 3
BAR: Final = 24  # letters


def run(*, quick: bool = False, tell: Callable[[int, str], None] | None = None) -> Study:
    """Return the study; before each section `tell` is given its number and its title."""
    replications = QUICK_REPLICATIONS if quick else REPLICATIONS
    sections: list[Section] = []
    for number, module in enumerate(MODULES):
        if tell is not None:
            tell(number, module.TITLE)
        sections.append(module.section(replications, quick=quick))
    return Study(
        rows=tuple(row for section in sections for row in section.rows),
        charts=tuple(chart for section in sections for chart in section.charts),
        sections=tuple((section.title, section.text) for section in sections),
        replications=replications,
        version=__version__,
    )


def write_data(study: Study, folder: Path) -> list[Path]:
    """Write the table and what the charts are made of."""
    files = {"results_summary.csv": study.to_csv(), "interactive_data.json": study.to_json()}
    for name, text in files.items():
        write_text(folder / name, text)
    return [folder / name for name in files]


def show_progress(number: int, title: str) -> None:
    """Draw how far the run is, over the line before."""
    done = BAR * number // len(MODULES)
    bar = "#" * done + "." * (BAR - done)
    print(f"\r\x1b[K[{bar}] {number}/{len(MODULES)} {title}", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run, write, and print what was written."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.study", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/study"), help="folder to write to")
    parser.add_argument("--quick", action="store_true", help="3 replications and fewer points")
    parser.add_argument(
        "--data-only", action="store_true", help="neither figures nor the page, which need plotting"
    )
    options = parser.parse_args(arguments)
    if not options.data_only:  # what is missing is said before the run, not after it
        from benchmarks.study import figures, page
    start = time.perf_counter()
    shown = sys.stderr.isatty()
    study = run(quick=options.quick, tell=show_progress if shown else None)
    if shown:
        show_progress(len(MODULES), "done\n")
    written = write_data(study, options.out)
    if not options.data_only:
        written += figures.draw(study, options.out / "figures")
        page.write(study, options.out / "index.html")
        written.append(options.out / "index.html")
    for path in written:
        print(f"{path}  {path.stat().st_size:,} bytes")
    print(
        f"{len(study.rows)} figures, {len(study.charts)} charts, {study.replications} "
        f"replications, {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
