"""Times to compare between commits, with pytest-benchmark (the dependency group `bench`).

    python -m pytest benchmarks/speed/test_suite.py --benchmark-save=before
    python -m pytest benchmarks/speed/test_suite.py --benchmark-compare=0001

They are CPU times, and compare on one machine only; `python -m benchmarks.speed` has ratios.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import numpy as np
import pytest

from benchmarks.speed import small
from benchmarks.speed import workload as work
from kvreclaim import BlockPool, take_census, take_census_packed

pytest.importorskip("pytest_benchmark")

Benchmark: TypeAlias = Callable[..., object]

pytestmark = pytest.mark.benchmark(timer=time.thread_time)

SHAPES: Final = {
    "4096": ((work.SHORT,), "t"),
    "8x4096": ((8, work.SHORT), "ht"),
    "32x8x131072": ((32, 8, work.TOKENS), "lht"),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", work.BLOCK_SIZES)
def test_block_sizes(benchmark: Benchmark, shape: str, size: int) -> None:
    """A table for each row."""
    sizes, axes = SHAPES[shape]
    benchmark(take_census, work.half(*sizes), work.apart(size), axes=axes)


@pytest.mark.parametrize("shared", ["", "h", "lh"])
@pytest.mark.parametrize("size", [16, 64, 1024])
def test_sharing(benchmark: Benchmark, shared: str, size: int) -> None:
    """Tables of one row, of 8, of 256."""
    keep, pool = work.half(32, 8, work.TOKENS), BlockPool(size, shared_axes=shared)
    benchmark(take_census, keep, pool, axes="lht")


@pytest.mark.parametrize(
    "rule", ["evacuate", "evacuate_rows", "fill", "pack", "pack_rows", "none", "back", "front"]
)
@pytest.mark.parametrize("tokens", [work.SHORT, work.TOKENS])
def test_rules(benchmark: Benchmark, rule: str, tokens: int) -> None:
    """Every compactor, and the freeing rules that look at the ends of a table."""
    keep = work.half(work.ROWS * work.TOKENS // tokens, tokens)
    key = "frees" if rule in ("back", "front") else "compactor"
    benchmark(take_census, keep, work.apart(work.BLOCK, **{key: rule}))


@pytest.mark.parametrize("bitorder", ["big", "little"])
@pytest.mark.parametrize("size", [16, 64, 100, 1024])
def test_packed_bits(benchmark: Benchmark, bitorder: Literal["big", "little"], size: int) -> None:
    """An eighth of the bytes."""
    bits = np.packbits(work.half(work.ROWS, work.TOKENS), axis=-1, bitorder=bitorder)
    benchmark(take_census_packed, bits, work.TOKENS, work.apart(size), bitorder=bitorder)


@pytest.mark.parametrize("name", small.calls())
def test_small_calls(benchmark: Benchmark, name: str) -> None:
    """What harnesses call by the hundred thousand."""
    benchmark(small.calls()[name])
