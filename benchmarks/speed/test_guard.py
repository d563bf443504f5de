"""The guard against a slower kernel: `python -m pytest benchmarks/speed/test_guard.py`, in seconds.

It needs no plugin, and is told apart from the tests, which never time anything.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.speed import guard, yardsticks
from kvreclaim import BlockPool


@pytest.fixture(scope="module")
def found() -> dict[str, float]:
    """Return today's ratios, measured once."""
    return guard.ratios()


def test_every_bar_is_measured(found: dict[str, float]) -> None:
    """A bar that nothing is held against guards nothing."""
    if set(found) != set(guard.BARS):
        pytest.fail(f"bars and ratios differ: {sorted(set(found) ^ set(guard.BARS))}")


@pytest.mark.parametrize("name", guard.BARS)
def test_the_bar_holds(name: str, found: dict[str, float]) -> None:
    """What was measured lies within its bar."""
    bar = guard.BARS[name]
    if not bar.holds(found[name]):
        pytest.fail(f"{name}: {found[name]:.2f} is not from {bar.low:g} to {bar.high:g}")


def test_a_slow_kernel_breaks_the_bars() -> None:
    """The naive kernel in the place of the census breaks each bar of a block size up to 64."""

    def slow(keep: NDArray[np.bool_], pool: BlockPool) -> object:
        return yardsticks.slow_counts(keep, pool.block_size)

    slow_ratios = guard.ratios_of_sizes(slow)
    whole = [name for name in slow_ratios if name in {f"B = {size}" for size in (8, 16, 32, 64)}]
    kept = [name for name in whole if guard.BARS[name].holds(slow_ratios[name])]
    if kept:
        pytest.fail(f"bars that a naive kernel passes: {kept}")


@pytest.mark.parametrize(
    ("ratio", "holds"), [(1.49, False), (1.5, True), (2.0, True), (3.0, True), (3.01, False)]
)
def test_a_bar_has_two_ends(ratio: float, holds: bool) -> None:  # noqa: FBT001  # a case of the table
    """Too little is as wrong as too much: it would mean that tokens are not read."""
    if guard.Bar(3, low=1.5).holds(ratio) != holds:
        pytest.fail(f"{ratio} within 1.5 to 3 is not {holds}")
