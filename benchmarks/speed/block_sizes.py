"""One mask of 32 MiB under every block size, and what is in it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import Table
from benchmarks.speed import workload as work
from benchmarks.speed import yardsticks
from benchmarks.speed.clock import Call, measure
from benchmarks.speed.results import Section, cells, number
from kvreclaim import BlockPool, take_census

BYTES = work.ROWS * work.TOKENS
WORDS = (32, 64, 128, 256, 1024)
REST = (8, 12, 24, 100)


def section(scale: work.Scale, folder: Path) -> Section:
    """Return what the census costs at each block size, beside what less work costs."""
    keep = work.half(work.ROWS, work.TOKENS)
    rows, of_c, reached = [], {}, {}
    for size in scale.block_sizes:
        pool = work.apart(size)
        calls: dict[str, Call] = {
            "census": partial(take_census, keep, pool),
            "figures": partial(_figures, keep, pool),
            "naive": partial(yardsticks.naive_dead, keep, size),
            "read": partial(np.count_nonzero, keep),
        }
        expected = yardsticks.slow_counts(keep, size)
        yardsticks.require("take_census", take_census(keep, pool).counts, expected)
        yardsticks.require("the naive line", yardsticks.naive_dead(keep, size), expected[0])
        c_counts = yardsticks.c_counts(size, folder)
        if c_counts is not None:
            yardsticks.require("the loop in C", c_counts(keep), expected)
            calls["c"] = partial(c_counts, keep)
        if work.TOKENS % size == 0:
            counts = yardsticks.numpy_counts(keep, size)
            yardsticks.require("the histogram in numpy", counts, expected)
            calls["numpy"] = partial(yardsticks.numpy_counts, keep, size)
        torch_dead = yardsticks.torch_dead(keep, size) if scale.torch else None
        if torch_dead is not None:
            yardsticks.require("the line in torch", torch_dead(), expected[0])
            calls["torch"] = torch_dead
        times = measure(calls, rounds=scale.rounds)
        if "c" in calls:
            of_c[size] = times.ratio("census", "c")
        if size == work.BLOCK:
            reached["figures"] = times.ratio("naive", "figures")
        ratios = (
            times.gigabytes("figures", BYTES),
            times.ratio("naive", "figures"),
            times.ratio("torch", "figures") if "torch" in calls else None,
            of_c.get(size),
            times.ratio("census", "numpy") if "numpy" in calls else None,
            times.ratio("census", "read"),
        )
        rows.append((f"{size:,}", *cells(ratios)))
    if of_c:
        reached["c 16"] = of_c[work.BLOCK]
        reached["c words"] = max(of_c[size] for size in WORDS if size in of_c)
        reached["c rest"] = max(of_c[size] for size in REST if size in of_c)
    header = (
        "B",
        "GB/s",
        "naive / all",
        "torch / all",
        "census / C",
        "census / numpy",
        "census / read",
    )
    table = Table(
        title="Block sizes",
        text="256 tables of 131,072 tokens, 32 MiB, each token kept by the toss of a coin. *All* "
        "is `take_census`, the six metrics and `packed_reclaim`; GB/s are its bytes of mask. "
        "*Naive* is `(~keep.reshape(-1, B).any(-1)).sum()`, rows padded first where B does not "
        "divide them; *torch* is the same line on one thread; *C* a loop (gcc -O3, B a constant) "
        "and *numpy* packbits, bitwise_count, einsum and bincount in pieces, which make the "
        "histogram and nothing else; *read* is `np.count_nonzero(keep)`.",
        header=header,
        rows=tuple(rows),
    )
    return Section(tables=(table, _contents(scale), _reads(scale)), reached=reached)


def _figures(keep: NDArray[np.bool_], pool: BlockPool) -> object:
    return work.seven(take_census(keep, pool))


def _contents(scale: work.Scale) -> Table:
    shape = (work.ROWS, work.TOKENS)
    masks = {
        "each by the toss of a coin": work.half(*shape),
        "four sinks and a window": work.window(*shape),
        "whole blocks by the toss of a coin": work.whole_blocks(*shape),
        "none": np.zeros(shape, np.bool_),
        "all": np.ones(shape, np.bool_),
    }
    pool = work.apart(work.BLOCK)
    calls: dict[str, Call] = {name: partial(_figures, keep, pool) for name, keep in masks.items()}
    for name, keep in masks.items():
        calls[f"naive, {name}"] = partial(yardsticks.naive_dead, keep, work.BLOCK)
    times = measure(calls, rounds=scale.rounds)
    first = next(iter(masks))
    return Table(
        title="What is kept",
        text="The same shape, B = 16, against the first row; and the naive line on the same mask.",
        header=("tokens that stay", "all figures", "naive / all"),
        rows=tuple(
            (name, *cells((times.ratio(name, first), times.ratio(f"naive, {name}", name))))
            for name in masks
        ),
    )


def _reads(scale: work.Scale) -> Table:
    keep = work.half(32, 8, work.TOKENS)
    copy = np.empty_like(keep)
    calls: dict[str, Call] = {
        "`np.bitwise_or.reduce` of words, over layers and heads": partial(
            yardsticks.union_of_words, keep
        ),
        "`keep.any((0, 1))`": lambda: keep.any((0, 1)),
        "`np.count_nonzero`": lambda: np.count_nonzero(keep),
        "`np.packbits`": lambda: np.packbits(keep, axis=-1),
        "`np.copyto`": lambda: np.copyto(copy, keep),
        "`keep.sum()`": keep.sum,
    }
    yardsticks.require(
        "the union of words", yardsticks.union_of_words(keep).view(np.bool_), keep.any((0, 1))
    )
    times = measure(calls, rounds=scale.rounds)
    return Table(
        title="What the machine reads",
        text="32 MiB; what follows is a few of these.",
        header=("one pass", "GB/s"),
        rows=tuple((name, number(times.gigabytes(name, BYTES))) for name in calls),
    )
