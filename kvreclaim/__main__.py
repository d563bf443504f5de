"""The command line."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import kvreclaim
from kvreclaim import runtimes
from kvreclaim._cli import (
    console,
    counting,
    inputs,
    overview,
    padding,
    parser,
    polarity,
    values,
)
from kvreclaim._cli.overview import Counted
from kvreclaim._render.block_map import ASCII_MARKS, BLOCK_MARKS, block_map
from kvreclaim._render.tables import printable
from kvreclaim.census import take_census
from kvreclaim.comparison import Comparison, compare
from kvreclaim.files import SavedMasks, load_masks, mask_names, save_masks
from kvreclaim.pool import BlockPool
from kvreclaim.reports import Report, absent_axes
from kvreclaim.signature import Signature

_BLOCK_SIZE: Final = 16

_FORMATS: Final[Mapping[str, Callable[[Comparison], str]]] = {
    "table": str,
    "json": Comparison.to_json,
    "jsonl": Comparison.to_json_lines,
    "csv": Comparison.to_csv,
    "markdown": Comparison.to_markdown,
    "latex": Comparison.to_latex,
}


class _Answer(NamedTuple):
    """What a command found."""

    text: str  # what to print
    notes: Sequence[str] = ()  # what was taken for granted, and may not be so
    missed: Sequence[str] = ()  # which thresholds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: all is well; 1: a threshold was missed; 2: bad usage, or input that cannot be read; 130:
    interrupted.
    """
    try:
        options = parser.parse(arguments)
        console.refuse_own_input(options.output, getattr(options, "files", ()))
        console.refuse_own_input(
            getattr(options, "target", None), getattr(options, "files", ()), "OUT"
        )
        text, notes, missed = _COMMANDS[options.command](options)
        console.write(text, options.output)
    except KeyboardInterrupt:
        return 130
    except (MemoryError, OSError, TypeError, ValueError) as error:
        console.complain(f"kvreclaim: {_text_of(error)}")
        return 2
    finally:
        console.settle()
    for line in (*notes, *missed):
        console.complain(f"kvreclaim: {line}")
    return 1 if missed else 0


def _text_of(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there is not enough memory for it"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _demo(_: argparse.Namespace) -> _Answer:
    with as_file(files("kvreclaim") / "data" / "demo_masks.npz") as path:
        masks = {name: load_masks(path, array=name) for name in mask_names(path)}
    layers, heads, tokens = masks["SnapKV"].keep.shape
    pools = overview.pools(_BLOCK_SIZE)
    counted = {
        name: Counted("lht", [take_census(saved.keep, pool, axes="lht") for pool in pools])
        for name, saved in masks.items()
    }
    table = overview.overview(counted)
    return _Answer(
        f"{masks['SnapKV'].meta['model']}, {layers} layers x {heads} kv heads, {tokens} tokens, "
        f"half dropped.\nWhich share of the blocks, of {_BLOCK_SIZE} tokens each, comes back?\n\n"
        f"{table}\n\n{overview.LEGEND}"
    )


def _report(options: argparse.Namespace) -> _Answer:
    if options.runtime is not None and options.runtime[0] == values.ALL:
        return _under_every_runtime(options)
    pool, fields = _pool(options), parser.pool_fields(options)
    plain = options.runtime is None and not (
        options.by or options.blocks_per_request or fields.keys() - {"block_size"}
    )
    with console.readable(options.files) as paths:
        masks = inputs.masks_in(paths, options)
        over_layouts = options.format == "table" and plain and len(masks) > 1
        pools = [pool, *(overview.pools(pool.block_size) if over_layouts else [])]
        of_each = counting.count(masks, pools, options)
        notes = _notes(masks, of_each, [pool], options)
    counted = {part: each for parts in of_each.values() for part, each in parts.items()}
    reports = _reports_of(counted, options)
    if not reports:
        raise ValueError(
            f"--by must name axes along which there is something; got {options.by!r}, of size 0 in "
            f"{', '.join(options.files)}; leave --by out."
        )
    if over_layouts:
        rest = {name: each._replace(censuses=each.censuses[1:]) for name, each in counted.items()}
        text = f"{overview.overview(rest)}\n\n{overview.LEGEND}"
    elif options.format == "table" and len(reports) == 1:
        ((name, report),) = reports.items()
        text = f"{printable(name)}\n{report}"
    else:
        comparison = compare(reports, force=True, replicates=_replicates(counted))
        text = {**_FORMATS, "table": Comparison.to_rows}[options.format](comparison)
    return _Answer(text, notes, _missed(reports, options.fail_under))


def _compare(options: argparse.Namespace) -> _Answer:
    pool = _pool(options)
    with console.readable(options.files) as paths:
        named = inputs.masks_and_reports_in(paths, options)
        masks = {name: each for name, each in named.items() if isinstance(each, inputs.SavedMask)}
        if not masks and parser.of_masks(options):
            raise ValueError(
                "FILE must be a mask where options of masks or of a pool are given; got reports, "
                "which were measured already; leave these options out."
            )
        counted = counting.count(masks, [pool], options)
        notes = _notes(masks, counted, [pool], options)
    reports: dict[str, Report] = {}
    parts: dict[str, Counted | inputs.SavedReport] = {}
    for name, each in named.items():
        if isinstance(each, inputs.SavedReport):
            reports[name], parts[name] = each.report, each
        else:
            reports |= _reports_of(counted[name], options)
            parts |= counted[name]
    comparison = compare(reports, force=options.force, replicates=_replicates(parts))
    return _Answer(
        _FORMATS[options.format](comparison), notes, _missed(reports, options.fail_under)
    )


def _map(options: argparse.Namespace) -> _Answer:
    pool = _pool(options)
    drawable = console.can_show("".join(BLOCK_MARKS), options.output)
    marks = BLOCK_MARKS if drawable else ASCII_MARKS
    drawn = []
    with console.readable(options.files) as paths:
        masks = inputs.masks_in(paths, options)
        for name, mask, held in inputs.opened(masks.items()):
            with inputs.named(name, mask, options):
                saved = inputs.load(held, mask, options)
                picture = block_map(
                    saved.keep,
                    pool,
                    axes=saved.axes,
                    lengths=saved.lengths,
                    offset=saved.offset,
                    most_lines=options.lines,
                    marks=marks,
                )
            drawn.append(f"{printable(name)}\n{picture}")
    return _Answer("\n\n".join(drawn), polarity.notes_on_polarity(masks.values(), options))


def _convert(options: argparse.Namespace) -> _Answer:
    with console.readable(options.files) as paths:
        found = inputs.masks_in(paths, options)
        masks = {}
        for name, mask, held in inputs.opened(found.items()):
            with inputs.named(name, mask, options):
                masks[mask.array] = _tokens_last(inputs.load(held, mask, options))
    with console.naming(options.target):
        save_masks(options.target, masks)
    count, size = len(masks), Path(options.target).stat().st_size
    what = "1 mask" if count == 1 else f"{count} masks"
    return _Answer(
        f"{printable(options.target)}: {what}, {size} bytes",
        polarity.notes_on_polarity(found.values(), options),
    )


def _signature(options: argparse.Namespace) -> _Answer:
    if options.signature is None:
        signature = Signature(_pool(options), options.rows or 1, kvreclaim.__version__)
        return _Answer(str(signature))
    if options.rows or parser.pool_fields(options):
        raise ValueError(
            "SIGNATURE must stand alone, since it spells a pool itself; got options beside it; "
            "leave them out."
        )
    return _Answer(Signature.parse(options.signature).explain())


def _pool(options: argparse.Namespace) -> BlockPool:
    fields = parser.pool_fields(options)
    if options.runtime is None:
        return BlockPool(**({"block_size": _BLOCK_SIZE} | fields))
    name, keywords = options.runtime
    if name == values.ALL:
        raise ValueError(
            f"--runtime must be one runtime here; got {name}; write kvreclaim report --runtime "
            f"{name} for a table of them."
        )
    return runtimes.preset(name, **(keywords | fields))


def _under_every_runtime(options: argparse.Namespace) -> _Answer:
    if options.by:
        raise ValueError(
            f"--by must go with one runtime; got --runtime {values.ALL}; write --runtime with the "
            "name of yours, or leave --by out."
        )
    names = runtimes.names()
    keywords = options.runtime[1] | parser.pool_fields(options)
    pools = [runtimes.preset(name, **keywords) for name in names]
    with console.readable(options.files) as paths:
        masks = inputs.masks_in(paths, options)
        counted = counting.count(masks, pools, options)
        notes = _notes(masks, counted, pools, options)
    reports: dict[str, Report] = {}
    for parts in counted.values():
        for part, (axes, censuses, _) in parts.items():
            for name, census in zip(names, censuses, strict=True):
                label = name if len(masks) == 1 and len(parts) == 1 else f"{part} {name}"
                reports |= _reports_of({label: Counted(axes, [census])}, options)
    if options.format == "table":
        text = f"{overview.by_runtime(reports)}\n\n{overview.LEGEND}\n{overview.OWN_COMPACTOR}"
    else:
        text = _FORMATS[options.format](compare(reports, force=True))
    return _Answer(text, notes, _missed(reports, options.fail_under))


def _notes(
    masks: Mapping[str, inputs.SavedMask],
    counted: Mapping[str, Mapping[str, Counted]],
    pools: Sequence[BlockPool],
    options: argparse.Namespace,
) -> list[str]:
    """Return what was taken for granted of masks, under pools of which the smallest block tells."""
    block_size = min(pool.block_size for pool in pools)
    of_sequences = [
        masks[name]
        for name, parts in counted.items()
        if any("b" in (each.axes or "") for each in parts.values())
    ]
    return [
        *polarity.notes_on_polarity(masks.values(), options),
        *padding.notes_on_padding(of_sequences, block_size, options),
    ]


def _reports_of(counted: Mapping[str, Counted], options: argparse.Namespace) -> dict[str, Report]:
    reports = {}
    for name, (axes, censuses, _) in counted.items():
        try:
            reports[name] = Report.from_census(
                censuses[0],
                absent_axes=absent_axes(censuses[0].pool, axes),
                blocks_per_request=options.blocks_per_request,
            )
        except ValueError as error:  # a pool too small for these masks
            raise ValueError(f"{name}: {error}") from None
    return reports


def _replicates(parts: Mapping[str, Counted | inputs.SavedReport]) -> dict[str, list[str]]:
    """Return which rows are of several sequences, or seeds, of one thing."""
    groups: dict[str, list[str]] = {}
    for name, part in parts.items():
        if part.replicate_of is not None:
            groups.setdefault(part.replicate_of, []).append(name)
    return {name: rows for name, rows in groups.items() if len(rows) > 1}


def _tokens_last(saved: SavedMasks) -> SavedMasks:
    """Return a mask whose last axis is tokens, along which bits are packed."""
    if saved.axes is None or saved.axes.endswith("t"):
        return saved
    axis, shape = saved.axes.index("t"), saved.keep.shape
    moved: dict[str, Any] = {
        name: np.moveaxis(np.broadcast_to(array, shape), axis, -1)
        for name in ("keep", "born_at", "evicted_at")
        if (array := getattr(saved, name)) is not None
    }
    return saved._replace(axes=saved.axes.replace("t", "") + "t", **moved)


def _missed(reports: Mapping[str, Report], thresholds: Sequence[tuple[str, float]]) -> list[str]:
    """Return which figures miss which thresholds."""
    missed = []
    for name, report in reports.items():
        for figure, least in thresholds:
            value = report.figures()[figure]
            if value is None or math.isnan(value):
                missed.append(f"{name}: {figure} is undefined, and so misses {least}")
            elif value < least:
                missed.append(f"{name}: {figure} is {value}, under {least}")
    return missed


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], _Answer]]] = {
    "demo": _demo,
    "report": _report,
    "compare": _compare,
    "map": _map,
    "convert": _convert,
    "signature": _signature,
}

if __name__ == "__main__":
    sys.exit(main())
