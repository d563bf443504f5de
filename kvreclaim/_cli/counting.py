"""Counting the masks that the command line names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvreclaim._cli import console
from kvreclaim._cli.inputs import SavedMask, choose, load, named, opened
from kvreclaim._cli.overview import Counted
from kvreclaim._formats import reading
from kvreclaim._formats.grouping import OpenMasks
from kvreclaim.census import take_censuses
from kvreclaim.files import MAX_BYTES, SavedMasks
from kvreclaim.pool import BlockPool

_DRAWN: Final = "bs"  # letters of sequences and seeds: of one at a time, replicates


def count(
    masks: Mapping[str, SavedMask], pools: Sequence[BlockPool], options: argparse.Namespace
) -> dict[str, dict[str, Counted]]:
    """Count each mask under each pool, in a stream; with ``by``, each index of its letters."""
    counted: dict[str, dict[str, Counted]] = {}
    with console.Progress() as progress:
        for name, mask, held in opened(masks.items()):
            before = len(counted) * len(pools)
            steps = [
                progress.part(before + i, len(masks) * len(pools), name) for i in range(len(pools))
            ]
            with named(name, mask, options):
                if options.by:
                    saved = load(held, mask, options, steps[0])
                    counted[name] = _count_by(name, saved, pools[0], options)
                else:
                    counted[name] = {name: _count(held, mask, pools, options, steps)}
    return counted


def _count(
    held: OpenMasks,
    mask: SavedMask,
    pools: Sequence[BlockPool],
    options: argparse.Namespace,
    steps: Sequence[Callable[[int, int], None]],
) -> Counted:
    censuses = []
    for pool, step in zip(pools, steps, strict=True):
        chosen = choose(held, mask, options)
        census = reading.count(
            chosen,
            pool,
            evicted=options.polarity == "evict",
            most=MAX_BYTES,
            progress=step,
        )
        censuses.append(census)
    return Counted(chosen.axes, censuses)


def _count_by(
    name: str, saved: SavedMasks, pool: BlockPool, options: argparse.Namespace
) -> dict[str, Counted]:
    if saved.axes is None:
        raise ValueError(
            "axes must name the axes of the mask, so that by can tell them apart; got none; write "
            "such as --axes lht."
        )
    censuses = take_censuses(
        saved.keep,
        pool,
        by=options.by,
        axes=saved.axes,
        lengths=saved.lengths,
        offset=saved.offset,
    )
    drawn = [letter for letter in options.by if letter in _DRAWN]
    counted = {}
    for index, census in censuses.items():
        parts = dict(zip(options.by, map("{}={}".format, options.by, index), strict=True))
        fixed = [part for letter, part in parts.items() if letter not in drawn]
        counted[" ".join([name, *parts.values()])] = Counted(
            saved.axes,
            [census],
            " ".join([name, *fixed]) if len(drawn) == 1 else None,
        )
    return counted
