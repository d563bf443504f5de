"""A mask in a file: read in a stream, mapped, loaded whole, or packed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.pages import Table
from benchmarks.speed import workload as work
from benchmarks.speed import yardsticks
from benchmarks.speed.clock import Call, measure
from benchmarks.speed.growth import peak
from benchmarks.speed.results import Section, number
from kvreclaim import census_of_file, take_census


def section(scale: work.Scale, folder: Path) -> Section:
    """Return what a census of a file costs, against counting the same mask in memory."""
    keep = work.half(scale.file * work.MIB // work.TOKENS, work.TOKENS)
    plain, packed = folder / "mask.npy", folder / "packed.npz"
    np.save(plain, keep)
    bits = np.packbits(keep, axis=-1)
    np.savez(packed, bits=bits, num_tokens=keep.shape[-1], bitorder="big", axes="bt")
    del bits
    pool = work.apart(work.BLOCK)
    calls: dict[str, Call] = {
        "in memory: `take_census`": lambda: take_census(keep, pool),
        "`census_of_file`": lambda: census_of_file(plain, pool),
        "`census_of_file`, packed bits": lambda: census_of_file(packed, pool),
        "`take_census` of `np.load(mmap_mode='r')`": lambda: take_census(
            np.load(plain, mmap_mode="r"), pool
        ),
        "`np.load`, then `take_census`": lambda: take_census(np.load(plain), pool),
        "`np.load(mmap_mode='r')`, then the naive line": lambda: yardsticks.naive_dead(
            np.load(plain, mmap_mode="r"), work.BLOCK
        ),
    }
    expected = calls["in memory: `take_census`"]()
    for name, call in calls.items():
        if "naive" not in name:
            yardsticks.require(name, call() == expected, expected=True)
    times = measure(calls, rounds=scale.rounds)
    first = next(iter(calls))
    rows = tuple(
        (
            name,
            number(times.ratio(name, first)),
            number(times.gigabytes(name, keep.size)),
            number(peak(call) / work.MIB),
        )
        for name, call in calls.items()
    )
    plain.unlink()
    packed.unlink()
    table = Table(
        title="Files",
        text=f"{scale.file:,} MiB, rows of 131,072 tokens, B = 16, pages of the file in memory; "
        "CPU time, so that waiting for a disk is left out. GB/s are bytes of mask, one a token; "
        "the peak is of memory allocated, in MiB, beside the mask in memory and mapped pages.",
        header=("way", "x of memory", "GB/s", "peak"),
        rows=rows,
    )
    return Section(tables=(table,))
