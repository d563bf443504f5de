"""What else counts live tokens, counts blocks, or unites rows, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import Table
from benchmarks.speed import workload as work
from benchmarks.speed import yardsticks
from benchmarks.speed.clock import Call, measure
from benchmarks.speed.results import Section, cells, number
from kvreclaim import take_census

WORD: Final = 64

Occupancy: TypeAlias = Callable[[NDArray[np.bool_], int], NDArray[Any]]


def _words(keep: NDArray[np.bool_], size: int) -> NDArray[Any]:
    live = np.bitwise_count(keep.reshape(-1).view(np.uint64))
    return np.asarray(live.reshape(-1, size * 8 // WORD).sum(-1, dtype=np.uint8))


def _packed(keep: NDArray[np.bool_], size: int) -> NDArray[Any]:
    live = np.bitwise_count(np.packbits(keep).view(f"u{min(size, WORD) // 8}"))
    if size > WORD:
        live = np.einsum("ij->i", live.reshape(-1, size // WORD))
    return np.asarray(live)


def _cumsum(keep: NDArray[np.bool_], size: int) -> NDArray[Any]:
    return np.diff(keep.reshape(-1).cumsum()[size - 1 :: size], prepend=0)


OCCUPANCY: Final[dict[str, Occupancy]] = {
    "`reshape(-1, B).sum(-1)`": lambda keep, size: keep.reshape(-1, size).sum(-1),
    "`np.count_nonzero(reshape(-1, B), -1)`": (
        lambda keep, size: np.count_nonzero(keep.reshape(-1, size), axis=-1)
    ),
    "the same sum of bytes into a byte": (
        lambda keep, size: keep.view(np.uint8).reshape(-1, size).sum(-1, dtype=np.uint8)
    ),
    "`np.cumsum`, then `np.diff`": _cumsum,
    "matrix product with ones, float32": (
        lambda keep, size: keep.reshape(-1, size).astype(np.float32) @ np.ones(size, np.float32)
    ),
    "`np.add.reduceat` of bytes": (
        lambda keep, size: np.add.reduceat(
            keep.reshape(-1).view(np.uint8), np.arange(0, keep.size, size)
        )
    ),
    "`np.einsum` of bytes": (
        lambda keep, size: np.einsum("ij->i", keep.view(np.uint8).reshape(-1, size))
    ),
    "`np.bitwise_count` of the bytes as words": _words,
    "`np.packbits`, `np.bitwise_count` of words, `np.einsum`": _packed,
}


def section(scale: work.Scale) -> Section:
    """Return the costs of ways not taken, beside the one that is."""
    return Section(tables=(_occupancies(scale), _histograms(scale), _unions(scale)))


def _occupancies(scale: work.Scale) -> Table:
    keep = work.half(work.ROWS, work.TOKENS)
    found: dict[str, list[float]] = {name: [] for name in (*OCCUPANCY, "`take_census`")}
    for size in scale.others:
        expected = yardsticks.blocked(keep, size).sum(-1).ravel()
        calls: dict[str, Call] = {"read": partial(np.count_nonzero, keep)}
        for name, method in OCCUPANCY.items():
            yardsticks.require(name, method(keep, size), expected)
            calls[name] = partial(method, keep, size)
        pool = work.apart(size)
        calls["`take_census`"] = partial(take_census, keep, pool)
        times = measure(calls, rounds=scale.rounds)
        for name, ratios in found.items():
            ratios.append(times.ratio(name, "read"))
    return Table(
        title="Live tokens of each block, other ways",
        text="256 x 131,072 tokens, 32 MiB, whole arrays at once, against "
        "`np.count_nonzero(keep)`. Last the whole census, which does more.",
        header=("way", *(f"B = {size}" for size in scale.others)),
        rows=tuple((name, *cells(ratios)) for name, ratios in found.items()),
    )


def _histograms(scale: work.Scale) -> Table:
    live = _packed(work.half(work.ROWS, work.TOKENS), work.BLOCK)
    bins = work.BLOCK + 1

    def in_pieces() -> NDArray[Any]:
        counts = np.zeros(bins, np.int64)
        for start in range(0, live.size, 1 << 16):
            counts += np.bincount(live[start : start + (1 << 16)], minlength=bins)
        return counts

    def by_pairs() -> NDArray[Any]:
        pairs = np.bincount(live.view(np.uint16), minlength=1 << 16).reshape(256, 256)
        return np.asarray(pairs.sum(0) + pairs.sum(1))[:bins]

    ways: dict[str, Callable[[], NDArray[Any]]] = {
        "`np.bincount`": lambda: np.bincount(live, minlength=bins),
        "`np.bincount`, in pieces": in_pieces,
        "`np.bincount` of pairs, then folded": by_pairs,
        "a comparison for each count": lambda: np.array(
            [np.count_nonzero(live == k) for k in range(bins)]
        ),
        "`np.sort`, then `np.searchsorted`": lambda: np.diff(
            np.searchsorted(np.sort(live), np.arange(bins + 1))
        ),
        "`np.unique`": lambda: np.unique(live, return_counts=True)[1],
        "`np.histogram`": lambda: np.histogram(live, bins, (0, bins))[0],
    }
    for name, way in ways.items():
        yardsticks.require(name, way(), np.bincount(live, minlength=bins))
    times = measure(ways, rounds=scale.rounds)
    return Table(
        title="Blocks by live tokens, other ways",
        text="2,097,152 blocks of 16 tokens, against `np.bincount`.",
        header=("way", "x"),
        rows=tuple((name, number(times.ratio(name, "`np.bincount`"))) for name in ways),
    )


def _unions(scale: work.Scale) -> Table:
    keep = work.half(32, 8, work.TOKENS)
    inner = np.ascontiguousarray(keep.transpose(0, 2, 1))
    calls: dict[str, Call] = {
        "read": lambda: np.count_nonzero(keep),
        "`keep.any((0, 1))`": lambda: keep.any((0, 1)),
        "OR of 64-bit words": lambda: yardsticks.union_of_words(keep),
        "`np.packbits`, then OR of bits": lambda: np.bitwise_or.reduce(
            np.packbits(keep, axis=-1), axis=(0, 1)
        ),
        "`keep.any(1)`, heads only": lambda: keep.any(1),
        "`keep.any(-1)`, heads only and innermost": lambda: inner.any(-1),
    }
    times = measure(calls, rounds=scale.rounds)
    return Table(
        title="Unions, other ways",
        text="32 x 8 x 131,072 tokens, 32 MiB, against `np.count_nonzero(keep)`.",
        header=("way", "x"),
        rows=tuple((name, number(times.ratio(name, "read"))) for name in calls if name != "read"),
    )
