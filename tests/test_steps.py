"""One eviction step after another, and groups of layers with blocks of different sizes."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Case, cases

import kvreclaim
from kvreclaim import (
    BlockPool,
    admission_count,
    combine,
    load_masks,
    packed_reclaim,
    physical_reclaim,
    report,
    runtimes,
    step_saving,
    take_census,
    take_censuses,
)

VECTORS = json.loads((Path(__file__).parent / "data" / "vectors_public.json").read_text())["cases"]
DELTAS = {case["id"]: case for case in VECTORS if case["kind"] == "delta"}
DEMO = Path(kvreclaim.__file__).parent / "data" / "demo_masks.npz"


def bits(text: str) -> list[bool]:
    return [letter == "1" for letter in text]


@pytest.mark.parametrize("name", DELTAS)
def test_vectors(name: str) -> None:
    given_, expected = DELTAS[name]["input"], DELTAS[name]["expected"]
    size = given_["block_size"]
    before, after = bits(given_["before"]), bits(given_["after"])
    step = step_saving(before, after, size, offset=given_["offset"])
    assert step.num_evicted_entries == expected["newly_dead"]
    assert step.num_freed_blocks == expected["newly_freed"]
    assert step.logical_saving == float(Fraction(expected["logical_saving"]))
    assert step.physical_reclaim == float(Fraction(expected["reclaim_blocks"]))
    slots = Fraction(step.num_freed_blocks * size, step.num_evicted_entries)
    assert slots == Fraction(expected["efficiency_slots"])


@given(cases(), st.integers(0, 2**32 - 1))
def test_steps_add_up(case: Case, seed: int) -> None:
    after = case.keep & (np.random.default_rng(seed).random(case.keep.shape) < 0.5)
    step = step_saving(case.keep, after, case.pool, **case.said)
    first, then = (take_census(keep, case.pool, **case.said) for keep in (case.keep, after))
    assert then.num_live_entries == first.num_live_entries - step.num_evicted_entries
    assert then.num_held_blocks == first.num_held_blocks - step.num_freed_blocks
    assert step.num_freed_blocks >= 0


def test_a_step_that_does_nothing_is_undefined_where_it_must_be() -> None:
    step = step_saving([1, 0], [1, 0], 2)
    assert (step.logical_saving, step.physical_reclaim) == (0, 0)
    assert math.isnan(step.reclaim_efficiency)
    nothing = step_saving([0, 0], [0, 0], 2)
    assert math.isnan(nothing.logical_saving)
    assert math.isnan(nothing.physical_reclaim)


def test_no_token_comes_back_to_life() -> None:
    with pytest.raises(ValueError, match=r"after must keep only .* 1 tokens .* at index \(1, 0\)"):
        step_saving([[1, 1], [0, 1]], [[1, 1], [1, 0]], 2, axes="ht")
    with pytest.raises(ValueError, match=r"after must have the shape of before, \(2,\); got"):
        step_saving([1, 1], [1, 1, 0], 2)
    with pytest.raises(TypeError, match="after must be True and False"):
        step_saving([1, 1], [1.0, 0.0], 2)


def test_groups_of_different_blocks_add_in_bytes() -> None:
    full = take_census(np.arange(64) % 2 == 0, BlockPool(16))
    sliding = take_census(np.arange(64) >= 32, BlockPool(8))
    both = combine([(full, 100), (sliding, 10)], fixed_bytes=40)
    assert (both.num_bytes, both.num_freed_bytes) == (40 + 400 + 80, 40)
    assert both.num_compacted_bytes == both.num_packed_bytes == 40 + 200 + 40
    assert both.physical_reclaim == 40 / 520
    assert both.compacted_reclaim == both.packed_reclaim == 240 / 520
    assert math.isnan(combine([]).physical_reclaim)
    with pytest.raises(ValueError, match="block bytes must be an integer of at least 1"):
        combine([(full, 0)])


def test_groups_of_equal_blocks_add_as_censuses_do() -> None:
    pool = runtimes.vllm()
    full = take_census(np.ones(112, bool), pool)
    sliding = take_census(np.arange(112) >= 80, pool)
    apart = combine([(full, 64), (sliding, 64), (sliding, 64)])
    together = full + sliding + sliding
    assert apart.physical_reclaim == physical_reclaim(together)
    assert apart.num_bytes - apart.num_freed_bytes == 64 * 11


def test_pools_of_one_layer_each_admit_what_the_fullest_layer_does() -> None:
    keep = load_masks(DEMO, array="PyramidKV").keep
    pool = BlockPool(16, shared_axes="h")
    layers = take_censuses(keep, pool, by="l", axes="lht")
    assert round(packed_reclaim(keep, pool, axes="lht"), 3) == 0.496
    assert round(min(packed_reclaim(census) for census in layers.values()), 3) == 0.031
    held = {f"layer {layer}": census for (layer,), census in layers.items()}
    admitted = admission_count(held, blocks_per_request=1)
    assert admitted == min(census.num_freed_blocks for census in layers.values())


def test_a_report_leaves_pinned_blocks_in_place() -> None:
    figures = report([0, 0, 0, 0], 2, pinned=1)
    assert (figures.physical_reclaim, figures.savings.num_pinned) == (0.5, 2)
    given_: dict[str, Any] = {"pinned": 1}
    with pytest.raises(ValueError, match="offset and pinned must go with a keep-mask"):
        report(take_census([0, 0], 2), **given_)


@pytest.mark.parametrize(
    ("groups", "got"),
    [(5, "int 5"), ("ab", "str 'ab'"), (["ab"], "str 'ab' among them"), ([(1,)], "among them")],
)
def test_groups_that_are_no_pairs(groups: Any, got: str) -> None:  # noqa: ANN401  # wrong on purpose
    with pytest.raises(TypeError) as raised:
        combine(groups)
    text = str(raised.value)
    assert text.startswith("groups must be pairs of a Census and the bytes of a block; got ")
    assert got in text
    assert text.endswith("; write such as [(census, 4096)].")


def test_bytes_that_are_none() -> None:
    census = take_census([1, 0], 2)
    with pytest.raises(ValueError, match=r"^block bytes must be .* at least 1"):
        combine([(census, 0)])
    assert combine([(census, 1)]).num_bytes == 1
    with pytest.raises(ValueError, match=r"^fixed_bytes must be"):
        combine([], fixed_bytes=-1)


def test_the_efficiency_of_a_step_is_what_came_back_over_what_was_evicted() -> None:
    step = step_saving([1, 1, 1, 0], [1, 0, 0, 0], 2)
    assert (step.logical_saving, step.physical_reclaim) == (2 / 3, 1 / 2)
    assert step.reclaim_efficiency == 3 / 4
