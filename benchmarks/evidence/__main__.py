"""Measure eviction policies on language models, and write what came of it.

    python -m benchmarks.evidence run [--quick]
    python -m benchmarks.evidence tables [--into docs/evidence.md] [--figures docs/evidence]

``run`` needs torch, transformers, kvpress and the packages that `models` names, and for the counts
of its allocator a wheel of vLLM. Each context that is done stands in a folder of parts: a run that
was stopped goes on where it was. On two cores, run two: ``--share 1/2`` and ``--share 2/2``, which
is faster than threads; the one that ends last collects. ``tables`` needs none of it.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.evidence.settings import DATA

BAR: Final = 24  # letters


def show(stem: str, done: int, count: int) -> None:
    """Draw how far a context is, over the line before."""
    bar = ("#" * (BAR * done // count)).ljust(BAR, ".")
    end = "\n" if done == count else ""
    print(f"\r\x1b[K[{bar}] {done}/{count} {stem}", end=end, file=sys.stderr, flush=True)


def run(options: argparse.Namespace) -> None:
    """Measure every context of one's share, and collect once all are there."""
    from benchmarks.evidence import run

    importlib.import_module("torch").set_num_threads(1)
    number, of = options.share
    plan = run.QUICK if options.quick else run.FULL
    parts = options.parts / ("quick" if options.quick else "full")
    parts.mkdir(parents=True, exist_ok=True)
    run.run(plan._replace(contexts=plan.contexts[number - 1 :: of]), parts, show)
    missing = [each.stem for each in plan.contexts if not (parts / f"{each.stem}.json").exists()]
    if missing:
        print(f"not yet: {', '.join(missing)}", file=sys.stderr)
    else:
        run.collect(plan, parts, options.out or (parts / "data" if options.quick else DATA))


def tables(options: argparse.Namespace) -> None:
    """Print the tables of a folder of data, or write them into a page; and draw its figures."""
    from benchmarks.evidence import answers

    if options.into is None:
        print("\n".join(answers.texts(options.data).values()))
    else:
        answers.write_into(options.into, options.data)
    if options.figures is not None:
        from benchmarks.evidence import figures

        figures.draw(options.data, options.figures)


def _share(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"must be such as 1/2; got {text!r}")
    return int(number), int(of)


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="let the models read, and measure")
    one.set_defaults(do=run)
    one.add_argument("--quick", action="store_true", help="one document, three policies")
    one.add_argument("--parts", type=Path, metavar="FOLDER", default=Path("build/evidence"))
    one.add_argument("--share", type=_share, metavar="I/N", default=(1, 1), help="every N-th")
    one.add_argument("--out", type=Path, metavar="FOLDER", help="of the tables and masks")
    other = commands.add_parser("tables", help="compute the tables and figures of the page")
    other.set_defaults(do=tables)
    other.add_argument("--data", type=Path, metavar="FOLDER", default=DATA)
    other.add_argument("--into", type=Path, metavar="PAGE")
    other.add_argument("--figures", type=Path, metavar="FOLDER")
    options = parser.parse_args(arguments)
    options.do(options)


if __name__ == "__main__":
    main()
