"""The command line."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from typing import Any, Final, NamedTuple

import numpy as np

import kvreclaim
from kvreclaim.census import Census, take_census
from kvreclaim.compaction import compaction_cost
from kvreclaim.files import SavedMasks, load_masks, mask_names
from kvreclaim.metrics import logical_saving, packed_reclaim, physical_reclaim
from kvreclaim.pool import BlockPool
from kvreclaim.reports import Report, report

SCHEMA_VERSION: Final = 1

_LEGEND: Final = """\
in place: no copy, as engines read it that free blocks where they lie. packed:
survivors moved, or stored, together. Neither is a verdict on method or engine."""


class _Mask(NamedTuple):
    """A mask to be reported, with the name of its row."""

    name: str
    saved: SavedMasks


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 2 for bad usage and unreadable input."""
    options = _parser().parse_args(arguments)
    try:
        text = options.command(options)
        print(text)
    except (OSError, TypeError, ValueError) as error:
        print(f"kvreclaim: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvreclaim",
        description="Measure how much memory a KV-cache eviction gives back to a paged server.",
    )
    parser.add_argument("--version", action="version", version=f"kvreclaim {kvreclaim.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="report real masks that come with the package")
    demo.set_defaults(command=_demo)

    files_command = commands.add_parser(
        "report",
        help="report masks on disk (.npy, .npz)",
        description="One mask: every figure. Several: a row each, over the layouts that differ.",
    )
    files_command.set_defaults(command=_report)
    files_command.add_argument("files", nargs="+", metavar="FILE")
    add = files_command.add_argument
    add("--block-size", type=int, default=16, help="tokens of one block (16)")
    add("--share", help="mask axes whose rows share blocks: lh, h, none ... (lh)")
    add("--axes", help="a letter for each axis of the mask, such as lht; t is tokens")
    add("--array", help="the name of one mask in a file of several")
    add("--polarity", choices=("keep", "evict"), default="keep", help="what True means (keep)")
    add("--blocks-per-request", type=int, help="also say how many such requests are admitted")
    add("--format", choices=("table", "json"), default="table")
    return parser


def _demo(_: argparse.Namespace) -> str:
    with as_file(files("kvreclaim") / "data" / "demo_masks.npz") as path:
        masks = [_Mask(name, load_masks(path, array=name)) for name in mask_names(path)]
    layers, heads, tokens = masks[0].saved.keep.shape
    return (
        f"{masks[0].saved.meta['model']}, {layers} layers x {heads} kv heads, {tokens} tokens, "
        "half dropped.\nWhich share of the blocks, of 16 tokens each, comes back?\n\n"
        f"{_overview(masks, 16)}\n\n{_LEGEND}"
    )


def _report(options: argparse.Namespace) -> str:
    masks = [mask for path in options.files for mask in _masks_of(path, options)]
    share = "lh" if options.share is None else options.share.replace("none", "")
    pool = BlockPool(options.block_size, shared_axes=share)
    if options.format == "table" and len(masks) > 1 and options.share is None:
        return f"{_overview(masks, pool.block_size)}\n\n{_LEGEND}"
    reports = {mask.name: _report_of(mask, pool, options.blocks_per_request) for mask in masks}
    if options.format == "json":
        return _as_json(reports)
    return "\n\n".join(f"{name}\n{figures}" for name, figures in reports.items())


def _masks_of(path: str, options: argparse.Namespace) -> list[_Mask]:
    names = [options.array] if options.array is not None else mask_names(path)
    return [
        _Mask(
            f"{path}:{name}" if name else path,
            load_masks(path, array=name, axes=options.axes, polarity=options.polarity),
        )
        for name in names
    ]


def _report_of(mask: _Mask, pool: BlockPool, blocks_per_request: int | None) -> Report:
    with _named(mask):
        return report(mask.saved.keep, pool, blocks_per_request=blocks_per_request, **_said(mask))


def _as_json(reports: Mapping[str, Report]) -> str:
    return json.dumps(
        {
            "schema_version": SCHEMA_VERSION,
            "reports": [{"source": name} | each.to_dict() for name, each in reports.items()],
            "environment": {
                "kvreclaim": kvreclaim.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        },
        allow_nan=False,
        indent=2,
    )


class _Cells(NamedTuple):
    """A mask's figures under one layout."""

    logical: float
    in_place: float
    packed: float
    fewest: float  # decode steps to pack row by row, with the fewest moves
    in_order: float  # decode steps to pack row by row, in order


def _overview(masks: Sequence[_Mask], block_size: int) -> str:
    """Return a row for each mask: in place and packed, from one table for all to one for each."""
    layouts = _layouts("".join(mask.saved.axes or "" for mask in masks))
    width = max(14, *(len(mask.name) for mask in masks))
    first, second = (
        "".join(f" {title[line]:<15}" for title in layouts.values()) for line in (0, 1)
    )
    lines = [
        f"{'':{width}}       {first} copy, in".rstrip(),
        f"{'':{width}}       {second} decode".rstrip(),
        f"{'':{width}}logical{' in place packed' * len(layouts)} steps",
    ]
    for mask in masks:
        cells = [_cells(mask, block_size, share) for share in layouts]
        figures = "".join(f"{cell.in_place:9.3f}{cell.packed:7.3f}" for cell in cells)
        lines.append(
            f"{mask.name:{width}}{cells[0].logical:7.3f}{figures} "
            f"{cells[0].fewest:.1f}-{cells[0].in_order:.1f}"
        )
    return "\n".join(lines)


def _layouts(letters: str) -> dict[str, tuple[str, str]]:
    """Return the letters that share blocks in each layout that these axes tell apart."""
    shared = "".join(letter for letter in "lh" if letter in letters)
    layouts = {shared: ("one table for", "all layers" if shared == "l" else "all heads")}
    if shared == "lh":
        layouts = {"lh": ("one table for", "all rows"), "h": ("a table for", "each layer")}
    return layouts | {"": ("a table for", "each layer" if shared == "l" else "each head")}


def _cells(mask: _Mask, block_size: int, share: str) -> _Cells:
    fewest, in_order = (
        _census(mask, BlockPool(block_size, shared_axes=share, compactor=compactor))
        for compactor in ("evacuate_rows", "pack_rows")
    )
    return _Cells(
        logical=logical_saving(fewest),
        in_place=physical_reclaim(fewest),
        packed=packed_reclaim(fewest),
        fewest=compaction_cost(fewest).decode_steps,
        in_order=compaction_cost(in_order).decode_steps,
    )


def _census(mask: _Mask, pool: BlockPool) -> Census:
    with _named(mask):
        return take_census(mask.saved.keep, pool, **_said(mask))


def _said(mask: _Mask) -> dict[str, Any]:
    return {"axes": mask.saved.axes, "lengths": mask.saved.lengths, "offset": mask.saved.offset}


@contextmanager
def _named(mask: _Mask) -> Iterator[None]:
    """Put the mask's name in front of what is wrong with it."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{mask.name}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
