"""The tools of the benchmark are right: clock, yardsticks, targets, tables, page."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.pages import END, Table, begin, between, write_into
from benchmarks.speed import growth, targets, yardsticks
from benchmarks.speed import workload as work
from benchmarks.speed.clock import SPAN, Times, measure
from benchmarks.speed.results import number
from kvreclaim import take_census


def check(got: object, expected: object) -> None:
    """Fail where a value is not the expected one."""
    if got != expected:
        pytest.fail(f"got {got!r}, not {expected!r}")


class Machine:
    """A clock that only what is called moves on."""

    def __init__(self) -> None:
        self.now = 0
        self.log: list[str] = []

    def clock(self) -> int:
        """Return the nanoseconds so far."""
        return self.now

    def call(self, name: str, costs: Iterator[int]) -> None:
        """Spend the next cost."""
        self.log.append(name)
        self.now += next(costs)


def test_rounds_have_every_call_once_in_random_order_and_the_first_run_is_dropped() -> None:
    """The warm-up is slow, then the times are those of the rounds."""
    machine = Machine()
    costs = {
        "a": iter([9 * SPAN, 2 * SPAN, 4 * SPAN, 8 * SPAN] + 9 * [3 * SPAN]),
        "b": iter([9 * SPAN] + 12 * [SPAN]),
    }
    times = measure(
        {name: lambda name=name: machine.call(name, costs[name]) for name in costs},  # type: ignore[misc]  # mypy infers no default of a lambda
        rounds=12,
        clock=machine.clock,
    )
    check(times.rounds["a"], [2 * SPAN, 4 * SPAN, 8 * SPAN] + 9 * [3 * SPAN])
    check(times.median("a"), 3 * SPAN)
    check(times.ratio("a", "b"), 3.0)
    check(times.ratio_of_minima("a", "b"), 2.0)
    rounds = ["".join(machine.log[i : i + 2]) for i in range(2, 26, 2)]
    check(set(rounds), {"ab", "ba"})


def test_a_short_call_is_repeated_within_its_turn() -> None:
    """A quarter of the span, four times; the time is that of one."""
    machine = Machine()
    costs = iter([SPAN // 2] + [SPAN // 4] * 100)
    times = measure({"a": lambda: machine.call("a", costs)}, rounds=3, clock=machine.clock)
    check(times.rounds["a"], [SPAN // 4] * 3)
    check(len(machine.log), 2 + 3 * 4)


def test_gigabytes_are_bytes_in_a_nanosecond() -> None:
    """2,000 bytes in 500 ns are 4 GB/s."""
    check(Times(rounds={"a": [400, 500, 900]}).gigabytes("a", 2000), 4.0)


SHAPES = [(48,), (3, 40), (2, 2, 23), (1, 5), (4, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1, 3, 8, 16, 24, 256])
def test_yardsticks_count_as_a_loop_over_blocks_does(
    shape: tuple[int, ...], size: int, tmp_path: Path
) -> None:
    """Short last blocks too."""
    keep = work.half(*shape, seed=3)
    expected = [0] * (size + 1)
    for row in keep.reshape(-1, shape[-1]).tolist():
        for start in range(0, shape[-1], size):
            expected[sum(row[start : start + size])] += 1
    check(yardsticks.slow_counts(keep, size).tolist(), expected)
    check(yardsticks.naive_dead(keep, size), expected[0])
    check(list(take_census(keep, work.apart(size)).counts), expected)
    count = yardsticks.c_counts(size, tmp_path)
    if count is not None:
        check(count(keep).tolist(), expected)
    torch_dead = yardsticks.torch_dead(keep, size)
    if torch_dead is not None:
        check(torch_dead(), expected[0])
    if shape[-1] % size == 0:
        check(yardsticks.numpy_counts(keep, size).tolist(), expected)


def test_the_histogram_in_numpy_goes_on_after_a_piece() -> None:
    """More than two pieces."""
    keep = work.half(48 * 50_000)
    for size in (12, 16):
        counts = yardsticks.numpy_counts(keep, size).tolist()
        check(counts, yardsticks.slow_counts(keep, size).tolist())


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither torch, nor a compiler, nor one that builds."""
    monkeypatch.setattr(yardsticks, "SOURCE", "no C")
    check(yardsticks.c_counts(16, tmp_path), expected=None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    check(yardsticks.c_counts(16, tmp_path), expected=None)
    monkeypatch.setitem(sys.modules, "torch", None)
    check(yardsticks.torch_dead(work.half(32), 16), expected=None)


def test_a_wrong_yardstick_is_refused() -> None:
    """Its time is worth nothing."""
    with pytest.raises(ValueError, match="the line must give the answer"):
        yardsticks.require("the line", np.array([1, 2]), np.array([1, 3]))


@pytest.mark.parametrize(
    ("bounds", "value", "met"),
    [
        ({"high": 2}, 2.0, "yes"),
        ({"high": 2}, 2.001, "**no**"),
        ({"low": 7}, 7.0, "yes"),
        ({"low": 7}, 6.999, "**no**"),
        ({"low": 0.95, "high": 1.05}, 1.0, "yes"),
        ({"low": 0.95, "high": 1.05}, 0.94, "**no**"),
        ({"low": 0.95, "high": 1.05}, 1.06, "**no**"),
        ({"high": 2}, None, "not measured"),
    ],
)
def test_a_verdict_is_computed(bounds: dict[str, Any], value: float | None, met: str) -> None:
    """At the border a target is met."""
    check(targets.Target("key", "what", **bounds).cells(value)[-1], met)


def test_targets_have_keys_of_their_own() -> None:
    """Two with one key would be one."""
    keys = [target.key for target in targets.TARGETS]
    check(len(set(keys)), len(keys))
    if any(target.low is None and target.high is None for target in targets.TARGETS):
        pytest.fail("a target without a bound is always met")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.004, "0.00"), (9.994, "9.99"), (9.996, "10.0"), (99.94, "99.9"), (99.96, "100")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    """More would be noise."""
    check(number(value), text)


def test_a_table_is_markdown_and_refuses_rows_that_do_not_fit() -> None:
    """A header, a border, a row."""
    table = Table(title="T", text="What.", header=("a", "b"), rows=(("x", "1"),))
    check(str(table), "### T\n\nWhat.\n\n| a | b |\n| --- | ---: |\n| x | 1 |\n")
    with pytest.raises(ValueError, match="rows must have the 2 cells of the header"):
        Table(title="T", text="", header=("a", "b"), rows=(("x",),))


def test_a_page_keeps_what_stands_around_the_tables(tmp_path: Path) -> None:
    """Twice, too, and beside the tables of another command."""
    page = tmp_path / "page.md"
    one, other = begin("one"), begin("other")
    page.write_text(f"before\n{other}theirs\n{END}{one}old\n{END}after\n", "utf-8")
    for text in ("first", "second\n"):
        write_into(page, {"one": text})
        whole = f"before\n{other}theirs\n{END}{one}\n{text}\n{END}after\n"
        check(page.read_text("utf-8"), whole)
        check(between(page, "one"), text)
    with pytest.raises(ValueError, match="must hold the lines"):
        write_into(page, {"one": "new", "none": "text"})
    check(page.read_text("utf-8"), whole)
    with pytest.raises(ValueError, match="must hold the lines"):
        between(page, "none")


def test_a_peak_is_what_one_call_allocates_at_most() -> None:
    """8 MiB at once, of 12 in all; what was there before is no part of it."""
    before = np.ones(1 << 22)

    def call() -> float:
        return float(np.ones(1 << 20).sum() + np.ones(1 << 19).sum() + before[0])

    found = growth.peak(call)
    if not 8 * work.MIB <= found < 8 * work.MIB + (1 << 16):
        pytest.fail(f"{found} bytes are not 8 MiB")
