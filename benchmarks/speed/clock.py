"""Ratios of CPU time that hold on a busy machine: rounds of every call, in random order.

What else runs slows all calls of a round alike, and CPU time leaves out the waiting; a time of its
own is worth little, a ratio within one run is.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs
import numpy as np

Call: TypeAlias = Callable[[], object]
"""What is timed; what it returns is dropped."""

ROUNDS: Final = 7
SPAN: Final = 2_000_000  # nanoseconds that a call is repeated for in each round, at least


@attrs.frozen(kw_only=True)
class Times:
    """CPU nanoseconds of one call, by name: one number a round."""

    rounds: Mapping[str, Sequence[float]]

    def median(self, name: str) -> float:
        """Return the median over the rounds, in nanoseconds."""
        return statistics.median(self.rounds[name])

    def ratio(self, name: str, to: str) -> float:
        """Return how many times as long one takes as another, by medians: what to expect."""
        return self.median(name) / self.median(to)

    def ratio_of_minima(self, name: str, to: str) -> float:
        """Return how many times as long one takes as another, by minima: what repeats best."""
        return min(self.rounds[name]) / min(self.rounds[to])

    def gigabytes(self, name: str, num_bytes: int) -> float:
        """Return the bytes read in a nanosecond, which are gigabytes in a second."""
        return num_bytes / self.median(name)


def measure(
    calls: Mapping[str, Call],
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    clock: Callable[[], int] = time.thread_time_ns,
) -> Times:
    """Return the times of calls that take turns: once each a round, in an order drawn anew.

    A call that takes less than SPAN is repeated that long within its turn. The first run of each
    warms up, and is not counted.
    """
    repeats = {name: -(-SPAN // max(1, _once(call, clock))) for name, call in calls.items()}
    # The first run pays for imports, caches and pages; what is repeated is measured by the second.
    for name, call in calls.items():
        if repeats[name] > 1:
            repeats[name] = -(-SPAN // max(1, _once(call, clock)))
    found: dict[str, list[float]] = {name: [] for name in calls}
    rng = np.random.default_rng(seed)
    names = list(calls)
    for _ in range(rounds):
        for i in rng.permutation(len(names)):
            call, repeat = calls[names[i]], repeats[names[i]]
            start = clock()
            for _ in range(repeat):
                call()
            found[names[i]].append((clock() - start) / repeat)
    return Times(rounds=found)


def _once(call: Call, clock: Callable[[], int]) -> int:
    start = clock()
    call()
    return clock() - start
