"""Masks over layouts, on one screen: from one block table for all rows to one for each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kvreclaim._render import tables
from kvreclaim.census import Census
from kvreclaim.compaction import compaction_cost
from kvreclaim.metrics import logical_saving, packed_reclaim, physical_reclaim
from kvreclaim.pool import BlockPool
from kvreclaim.reports import Report

LEGEND: Final = """\
in place: no copy, as engines read it that free blocks where they lie. packed:
survivors moved, or stored, together. Neither is a verdict on method or engine."""

OWN_COMPACTOR: Final = """\
own compactor: what comes back once the runtime has moved survivors itself, and
that copy in decode steps; - where it moves none."""

_LAYOUTS: Final = ("lh", "h", "")
_COMPACTORS: Final = ("evacuate_rows", "pack_rows")  # row by row: the fewest moves, and in order
_NAME_WIDTH: Final = 14  # all that the figures leave of 80 columns


class Counted(NamedTuple):
    """A mask's axes, where known, and its census under each of `pools`.

    `replicate_of` names what several of them are replicates of, such as sequences of one mask.
    """

    axes: str | None
    censuses: Sequence[Census]
    replicate_of: str | None = None


def pools(block_size: int) -> list[BlockPool]:
    """Return the pools that an overview compares."""
    return [
        BlockPool(block_size, shared_axes=share, compactor=compactor)
        for share, compactor in itertools.product(_LAYOUTS, _COMPACTORS)
    ]


def overview(masks: Mapping[str, Counted]) -> str:
    """Return a row for each mask: in place and packed under each layout, and the copy's price."""
    titles = _titles("".join(mask.axes or "" for mask in masks.values()))
    prefix, names = tables.without_prefix([tables.printable(name) for name in masks])
    first, second = ("".join(f" {title[i]:<15}" for title in titles.values()) for i in (0, 1))
    blank = " " * _NAME_WIDTH
    lines = [
        *([prefix] if prefix else []),
        f"{blank}       {first} copy, in",
        f"{blank}       {second} decode",
        f"{blank}logical{' in place packed' * len(titles)} steps",
    ]
    for name, mask in zip(names, masks.values(), strict=True):
        fewest = mask.censuses[::2]
        figures = "".join(
            f"{physical_reclaim(fewest[layout]):9.3f}{packed_reclaim(fewest[layout]):7.3f}"
            for layout in titles
        )
        copy = "-".join(
            f"{compaction_cost(census).decode_steps:.1f}"
            for census in mask.censuses[2 * min(titles) :][:2]
        )
        lines += [name, blank] if len(name) > _NAME_WIDTH else [f"{name:{_NAME_WIDTH}}"]
        lines[-1] += f"{logical_saving(fewest[0]):7.3f}{figures} {copy}"
    return "\n".join(lines)


def by_runtime(reports: Mapping[str, Report]) -> str:
    """Return a row for each runtime: its block, and what comes back in place, packed, compacted.

    What its own compactor gives stands beside that copy's price; requests beside what admits them.
    """
    width = max(map(len, reports))
    admits = any(report.admission_count is not None for report in reports.values())
    requests = " admits" * admits
    blank, apart = " " * width, " " * len(requests)
    lines = [
        f"{blank}                     {apart}          own compactor",
        f"{blank} block share         {apart}          comes decode",
        f"{blank}  size rows  in place{requests} packed    back  steps",
    ]
    for name, report in reports.items():
        pool = report.census.pool
        compacted, copy = f"{report.compacted_reclaim:.3f}", f"{report.decode_steps:.1f}"
        if pool.compactor == "none":
            compacted = copy = "-"
        lines.append(
            f"{name:{width}}{pool.block_size:6} {pool.shared_axes or 'none':5}"
            f"{report.physical_reclaim:9.3f}"
            f"{f'{report.admission_count:7}' if admits else ''}"
            f"{report.packed_reclaim:7.3f}{compacted:>8}{copy:>7}"
        )
    return "\n".join(lines)


def _titles(letters: str) -> dict[int, tuple[str, str]]:
    """Return the numbers and names of the layouts that masks of these axes tell apart."""
    if "l" in letters and "h" in letters:
        return {
            0: ("one table for", "all rows"),
            1: ("a table for", "each layer"),
            2: ("a table for", "each head"),
        }
    for letter, row in {"l": "layer", "h": "head"}.items():
        if letter in letters:
            return {0: ("one table for", f"all {row}s"), 2: ("a table for", f"each {row}")}
    return {2: ("a table for", "each row")}
