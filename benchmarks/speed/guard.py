"""Bars that a slower kernel breaks: `python -m benchmarks.speed.guard` prints today's ratios.

Ratios of CPU time by minima, which repeat best on a busy machine, to a call of numpy on the same
mask. A bar of a ratio is twice what was measured when it was set; bars of growth are what a linear
cost allows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from benchmarks.speed import growth, small
from benchmarks.speed import workload as work
from benchmarks.speed.clock import Call, Times, measure
from kvreclaim import BlockPool, take_census

CensusOf: TypeAlias = Callable[[NDArray[np.bool_], BlockPool], object]

ROUNDS: Final = 11
MANY_ROUNDS: Final = 33  # where two calls hardly differ
SIZES: Final = (8, 16, 24, 32, 64, 100, 128, 256, 1024)


@attrs.frozen
class Bar:
    """The highest that a ratio may be, and the lowest."""

    high: float
    low: float = 0.0

    def holds(self, ratio: float) -> bool:
        """Return whether a ratio lies within."""
        return self.low <= ratio <= self.high


BARS: Final = {
    # a census of 4 MiB / np.count_nonzero of it
    "B = 8": Bar(9.6),
    "B = 16": Bar(7.6),
    "B = 24": Bar(10.3),
    "B = 32": Bar(6.3),
    "B = 64": Bar(5.2),
    "B = 100": Bar(9.4),
    "B = 128": Bar(5.1),
    "B = 256": Bar(5.3),
    "B = 1024": Bar(5.9),
    # a call on 4,096 tokens / (~keep.reshape(-1, 16).any(-1)).sum() of them
    "take_census": Bar(3.7),
    "six metrics of a census": Bar(1.6),
    "Census + Census": Bar(1.9),
    "report of a mask": Bar(9.7),
    # growth
    "twice the tokens": Bar(3, low=1.5),
    "census and six metrics / census": Bar(1.25),  # a metric that reads the mask would add 1
    "one call of 256 rows / 256 calls": Bar(0.25),
    "MiB at the peak, mask of 4 MiB": Bar(4),
    "MiB at the peak, mask of 64 MiB": Bar(4),
}


def ratios() -> dict[str, float]:
    """Return today's figure for every bar, by name."""
    return {**ratios_of_sizes(), **ratios_of_small_calls(), **ratios_of_growth(), **peaks()}


def ratios_of_sizes(census: CensusOf = take_census) -> dict[str, float]:
    """Return a census, or what stands in for it, against one read of its mask."""
    keep = work.half(32, work.TOKENS)
    calls: dict[str, Call] = {"read": partial(np.count_nonzero, keep)}
    for size in SIZES:
        calls[f"B = {size}"] = partial(census, keep, work.apart(size))
    times = measure(calls, rounds=ROUNDS)
    return {name: times.ratio_of_minima(name, "read") for name in calls if name != "read"}


def ratios_of_small_calls() -> dict[str, float]:
    """Return small calls against the line that a user writes for one metric."""
    times = measure(small.calls(), rounds=ROUNDS)
    names = ("take_census", "six metrics of a census", "Census + Census", "report of a mask")
    return {name: times.ratio_of_minima(name, "naive") for name in names} | {
        "one call of 256 rows / 256 calls": times.ratio_of_minima(
            "one call of 256 rows", "256 calls"
        )
    }


def ratios_of_growth() -> dict[str, float]:
    """Return what twice the tokens cost, and what six metrics do."""
    keep, pool = work.half(64, work.TOKENS), work.apart(work.BLOCK)
    part = keep[:32]
    times: Times = measure(
        {
            "4 MiB": lambda: take_census(part, pool),
            "8 MiB": lambda: take_census(keep, pool),
            "figures": lambda: work.six(take_census(part, pool)),
        },
        rounds=MANY_ROUNDS,
    )
    return {
        "twice the tokens": times.ratio_of_minima("8 MiB", "4 MiB"),
        "census and six metrics / census": times.ratio_of_minima("figures", "4 MiB"),
    }


def peaks() -> dict[str, float]:
    """Return the highest peak of memory in MiB under any pool, by size of the mask."""
    keep = work.half(64, growth.HEADS, work.TOKENS)
    masks = {4: keep[:4], 64: keep}
    return {
        f"MiB at the peak, mask of {mib} MiB": max(
            growth.peak(call) / work.MIB for call in growth.memory_calls(mask).values()
        )
        for mib, mask in masks.items()
    }


def main() -> None:
    """Print today's ratios beside their bars."""
    print(f"{'':36} {'today':>8} {'bar':>8}  share of it")
    for name, ratio in ratios().items():
        bar = BARS[name]
        said = "" if bar.holds(ratio) else "  BROKEN"
        print(f"{name:36} {ratio:8.2f} {bar.high:8.2f} {ratio / bar.high:12.0%}{said}")


if __name__ == "__main__":
    main()
