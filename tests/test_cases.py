"""Mistakes that were met in public, as small inputs: `data/cases.json`, a test for each.

``expected.must`` of each case is checked in full; ``depends_on_definition`` where ours decides it.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvreclaim import (
    BlockPool,
    Census,
    admission_count,
    admit,
    block_usage,
    fragmentation,
    logical_saving,
    merge,
    moved_tokens_per_block,
    physical_reclaim,
    pool_usage,
    reclaim_efficiency,
    take_census,
)

DATA = Path(__file__).parent / "data"
CASES = {case["id"]: case for case in json.loads((DATA / "cases.json").read_text(encoding="utf-8"))}


def given_and_must(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    case = copy.deepcopy(CASES[name])
    return case["input"], case["expected"]["must"]


def bits(text: str) -> NDArray[np.bool_]:
    return np.array([letter == "1" for letter in text], bool)


def refusal(function: Callable[..., object], *arguments: object) -> str:
    """Return the message of the ValueError or TypeError that a call raises."""
    with pytest.raises((ValueError, TypeError)) as refused:
        function(*arguments)
    assert refused.type in (ValueError, TypeError)
    return str(refused.value)


def counts_of(census: Census) -> dict[str, Any]:
    """Return counts and metrics under the names of the cases."""
    return {
        "blocks_allocated": census.num_blocks,
        "blocks_freed": census.num_freed_blocks,
        "blocks_nonempty": census.num_nonempty_blocks,
        "live_token_slots": census.num_live_tokens,
        "tokens_total": census.num_tokens,
        "tokens_evicted": census.num_evicted_entries,
        "histogram": list(census.counts),
        "logical_saving": logical_saving(census),
        "physical_reclaim": physical_reclaim(census),
        "fragmentation": fragmentation(census),
    }


def check(census: Census, must: dict[str, Any], *undefined: str) -> None:
    """Check all that a case demands, of which some is undefined."""
    found = counts_of(census)
    assert must.keys() <= found.keys()
    for name, value in must.items():
        if name in undefined:
            assert math.isnan(found[name]), name
        else:
            assert found[name] == value, name


def test_h03_a_last_block_that_is_exactly_full() -> None:
    given, must = given_and_must("H03")
    size = given["pool"]["block_size"]
    censuses = [take_census([True] * length, size) for length in given["lengths"]]
    assert [census.num_blocks for census in censuses] == must["num_blocks"]
    assert [BlockPool(size).num_blocks_for(n) for n in given["lengths"]] == must["num_blocks"]
    in_last = [size - census.num_slack_slots if census.num_blocks else 0 for census in censuses]
    assert in_last == must["tokens_in_last_block"]
    longest = max(given["lengths"])
    padded = np.arange(longest) < np.array(given["lengths"])[:, None]
    together = take_census(padded, size, axes="bt", lengths=given["lengths"])
    assert together == merge(censuses)


def test_h04_block_usage_is_not_token_occupancy() -> None:
    given, must = given_and_must("H04")
    pool = BlockPool(given["pool"]["block_size"], total_blocks=given["pool"]["total_blocks"])
    keep = np.ones((given["n_sequences"], given["length_each"]), bool)
    before = take_census(keep, pool, axes="bt")
    keep[:, 16] = False
    after = take_census(keep, pool, axes="bt")

    usage = must["before"].pop("block_usage"), must["before"].pop("token_slot_usage")
    check(before, must["before"])
    check(after, must["after"])
    slots = given["pool"]["total_blocks"] * pool.block_size
    free = given["pool"]["total_blocks"] - before.num_blocks
    assert (pool_usage(before).after, before.num_live_tokens / slots) == usage
    assert pool_usage(after).before == block_usage(pool, free) == usage[0]
    # Fractions of blocks over fractions of tokens: above 1, and not clipped.
    assert reclaim_efficiency(after) == (10 / 20) / (10 / 170) == 8.5


def test_h05_more_free_than_there_is() -> None:
    given, names = CASES["H05"]["input"], CASES["H05"]["expected"]["message_should_name"]
    pool = BlockPool(16, total_blocks=given["total_blocks"])
    message = refusal(block_usage, pool, given["free_blocks"])
    assert names == ["free_blocks", "7936", "total_blocks", "7934"]
    for name in names:
        assert name in message
    assert message.startswith("num_free_blocks must")
    assert refusal(block_usage, pool, -1).startswith("num_free_blocks must")


def test_h06_a_reserved_block_is_no_capacity() -> None:
    given, must = given_and_must("H06")
    for snapshot, usable, tokens, usage in zip(
        given["pools"], must["usable_blocks"], must["capacity_tokens"], must["usage"], strict=True
    ):
        pool = BlockPool(
            given["block_size"],
            total_blocks=snapshot["total_blocks"],
            reserved_blocks=snapshot["reserved_blocks"],
        )
        assert pool.num_usable_blocks == usable
        assert usable * pool.block_size == tokens
        used = block_usage(pool, snapshot["free_blocks"])
        if isinstance(usage, str):
            assert usage.startswith("undefined")
            assert math.isnan(used)
        else:
            assert used == usage
            keep = np.ones(tokens - snapshot["free_blocks"] * pool.block_size, bool)
            assert pool_usage(take_census(keep, pool)).after == usage


def test_h08_admission_leaves_a_watermark() -> None:
    given, must = given_and_must("H08")
    for case, admitted in zip(given["cases"], must["admitted"], strict=True):
        pool = BlockPool(1, watermark_blocks=case["watermark_blocks"])
        dead = [False] * given["free_blocks"]
        assert admission_count(dead, pool, blocks_per_request=case["need"]) == admitted
        requests = admit(
            given["free_blocks"], [case["need"]] * 9, watermark_blocks=case["watermark_blocks"]
        )
        assert requests == tuple(range(admitted))
    assert BlockPool(1).watermark_blocks == 0


def test_h09_the_price_depends_on_the_compactor() -> None:
    given, must = given_and_must("H09")
    for compactor, name in (
        ("evacuate", "fewest moves, any hole"),
        ("pack", "order-preserving forward packing"),
    ):
        pool = BlockPool(given["pool"]["block_size"], compactor=compactor)
        census = take_census(bits(given["mask"]), pool)
        assert census.num_nonempty_blocks == must["blocks_nonempty_before"]
        assert census.num_packed_blocks == must["blocks_nonempty_after"]
        assert census.num_compactable_blocks == must["blocks_freed_by_compaction"]
        assert census.num_moved_entries == must["moved_tokens"][name]
        assert moved_tokens_per_block(census) == must["moved_tokens_per_reclaimed_block"][name]
    assert set(must["moved_tokens"]) == {
        "fewest moves, any hole",
        "order-preserving forward packing",
    }


def test_h10_true_means_kept() -> None:
    given, must = given_and_must("H10")
    mask, size = bits(given["mask"]), given["pool"]["block_size"]
    check(take_census(mask, size), must["True means kept"])
    check(take_census(~mask, size), must["True means evicted"])


def test_h12_integers_other_than_0_and_1() -> None:
    given, names = CASES["H12"]["input"], CASES["H12"]["expected"]["message_should_name"]
    mask = np.load(DATA / given["file"])
    assert mask.tolist() == given["values"]
    assert mask.dtype.name == given["dtype"]
    for function in (take_census, physical_reclaim):
        message = refusal(function, mask, given["pool"]["block_size"])
        assert names == ["uint8", "254", "0 and 1"]
        for name in names:
            assert name in message
    assert "0 and 1" in refusal(take_census, np.array([0, 255], "u1"), 4)


def test_h13_nan_is_neither_kept_nor_evicted() -> None:
    given, names = CASES["H13"]["input"], CASES["H13"]["expected"]["message_should_name"]
    mask = np.load(DATA / given["file"])
    assert [value if value == value else "nan" for value in mask.tolist()] == given["values"]  # noqa: PLR0124  # nan differs from itself
    assert mask.dtype.name == given["dtype"]
    assert names == ["NaN", "2 (how many)", "index of the first"]
    for function in (take_census, physical_reclaim):
        message = refusal(function, mask, given["pool"]["block_size"])
        assert "2 NaN" in message
        assert "first at index 2" in message


def test_h17_everything_evicted() -> None:
    given, must = given_and_must("H17")
    mask = bits(given["mask"])
    assert len(mask) == given["length"]
    check(take_census(mask, given["pool"]["block_size"]), must, "fragmentation")
    assert must["fragmentation"].startswith("undefined")


def test_h19_padding_is_not_evicted() -> None:
    given, must = given_and_must("H19")
    keep = np.array([bits(row) for row in given["mask"]])
    size = given["pool"]["block_size"]
    check(take_census(keep, size, axes="bt", lengths=given["lengths"]), must)
    # What the case warns of, without the lengths.
    ignored = take_census(keep, size, axes="bt")
    assert (ignored.num_tokens, ignored.num_evicted_entries) == (24, 15)
    assert (ignored.num_freed_blocks, ignored.num_blocks) == (3, 6)


def test_h20_a_ratio_of_sums_is_no_mean_of_ratios() -> None:
    given, must = given_and_must("H20")
    size = given["part_a"]["pool"]["block_size"]
    a = take_census(np.zeros(given["part_a"]["tokens"], bool), size)
    b = take_census(np.arange(given["part_b"]["tokens"]) % 2 == 0, size)
    wrong = must.pop("mean_of_efficiencies_which_is_wrong")
    efficiency = must.pop("efficiency_fraction_ratio")
    empty = Census.empty(size)
    for whole in (a + b, b + a, merge([a, empty, b]), merge([empty, b, a]), sum([b, empty, a])):
        assert isinstance(whole, Census)
        check(whole, must)
        assert reclaim_efficiency(whole) == efficiency
    assert (reclaim_efficiency(a) + reclaim_efficiency(b)) / 2 == wrong


def test_h21_nothing_over_nothing_is_undefined() -> None:
    given, must = given_and_must("H21")
    mask = bits(given["mask"])
    assert len(mask) == given["length"]
    census = take_census(mask, given["pool"]["block_size"])
    assert must.pop("reclaim_efficiency") == must.pop("moved_tokens_per_reclaimed_block") == "0/0"
    assert math.isnan(reclaim_efficiency(census))
    assert math.isnan(moved_tokens_per_block(census))
    check(census, must)


def test_each_case_has_a_test() -> None:
    tested = {
        name.split("_")[1].upper() for name in globals() if name.startswith(("test_h", "test_e"))
    }
    assert set(CASES) <= tested
