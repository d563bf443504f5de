"""What the rules of a pool add to counting: parts that are settled for each block table."""

from __future__ import annotations

from typing import Final

from benchmarks.pages import Table
from benchmarks.speed import workload as work
from benchmarks.speed import yardsticks
from benchmarks.speed.clock import Call, measure
from benchmarks.speed.results import Section, cells
from kvreclaim import BlockPool, take_census

ALONE: Final = {"frees": "none"}
RULES: Final = (
    {"frees": "any", "compactor": "none"},
    {"frees": "any", "compactor": "evacuate"},
    {"frees": "any", "compactor": "evacuate_rows"},
    {"frees": "any", "compactor": "fill"},
    {"frees": "any", "compactor": "pack"},
    {"frees": "any", "compactor": "pack_rows"},
    {"frees": "back", "compactor": "none"},
    {"frees": "back", "compactor": "fill"},
    {"frees": "front", "compactor": "none"},
)
SHAPES: Final = {
    "256 tables": (1, work.ROWS, work.TOKENS),
    "8,192 tables": (1, 32 * work.ROWS, work.SHORT),
    "32 tables of 8 rows": (8, 32, work.TOKENS),
}


def section(scale: work.Scale) -> Section:
    """Return the cost of each rule against the census that has none."""
    ratios = {name: _ratios(shape, scale) for name, shape in SHAPES.items()}
    rows = []
    for rule in ({"frees": "any", "compactor": "none"}, *RULES[1:]):
        name = _name(rule)
        rows.append((name, *cells([ratios[shape][name] for shape in SHAPES])))
    histogram = [ratios[shape].get("histogram") for shape in SHAPES]
    rows.append(("the histogram in numpy", *cells(histogram)))
    table = Table(
        title="Rules of a pool",
        text="32 MiB, B = 16: the census under each freeing rule and compactor, against the one "
        "with neither (`frees='none'`); and the bare histogram in numpy, against it too.",
        header=("frees, compactor", *SHAPES),
        rows=tuple(rows),
    )
    names = [_name(rule) for rule in RULES]
    reached = {
        "parts of long": max(ratios["256 tables"][name] for name in names),
        "parts of short": max(ratios["8,192 tables"][name] for name in names),
    }
    return Section(tables=(table,), reached=reached)


def _name(rule: dict[str, str]) -> str:
    return ", ".join(rule.values())


def _ratios(shape: tuple[int, ...], scale: work.Scale) -> dict[str, float]:
    keep = work.half(*shape)

    def counting(rule: dict[str, str]) -> Call:
        pool = BlockPool(work.BLOCK, shared_axes="h", **rule)
        return lambda: take_census(keep, pool, axes="hbt")

    calls = {_name(rule): counting(rule) for rule in RULES}
    calls["alone"] = counting(ALONE)
    if shape[0] == 1:
        yardsticks.require(
            "the histogram in numpy",
            yardsticks.numpy_counts(keep, work.BLOCK),
            yardsticks.slow_counts(keep, work.BLOCK),
        )
        calls["histogram"] = lambda: yardsticks.numpy_counts(keep, work.BLOCK)
    times = measure(calls, rounds=scale.rounds)
    return {name: times.ratio(name, "alone") for name in calls if name != "alone"}
