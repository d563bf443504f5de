"""Exact cases of a slow reference, `data/vectors_public.json`, through the public functions."""

from __future__ import annotations

import json
import math
from fractions import Fraction
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
    blocks_for_moves,
    compacted_reclaim,
    compaction_cost,
    effective_rows,
    fragmentation,
    logical_saving,
    merge,
    moved_tokens_per_block,
    packed_reclaim,
    physical_reclaim,
    reclaim_curve,
    reclaim_efficiency,
    savings_breakdown,
    slots_per_move,
    take_census,
)
from kvreclaim.bounds import (
    dead_run_lengths,
    free_block_bounds,
    heavy_hitter_free_blocks,
    independent_reclaim,
    markov_reclaim,
    phase_averaged_free_blocks,
    random_free_blocks,
    random_moves,
    window_free_blocks,
)
from kvreclaim.frontier import evict_for_blocks, max_free_blocks, reclaim_frontier

VECTORS = json.loads(
    (Path(__file__).parent / "data" / "vectors_public.json").read_text(encoding="utf-8")
)


def vectors(kind: str) -> list[Any]:
    return [
        pytest.param(case["input"], case["expected"], id=case["id"])
        for case in VECTORS["cases"]
        if case["kind"] == kind
    ]


def bits(text: str) -> NDArray[np.bool_]:
    return np.array([letter == "1" for letter in text], bool)


def batch(texts: list[str]) -> tuple[NDArray[np.bool_], list[int]]:
    """Return sequences padded on the right, and their lengths."""
    longest = max(map(len, texts), default=0)
    padded = [bits(text.ljust(longest, "0")) for text in texts]
    return np.array(padded, bool).reshape(len(texts), longest), [len(text) for text in texts]


def same(got: float, ratio: str | None) -> bool:
    return math.isnan(got) if ratio is None else got == float(Fraction(ratio))


def check_counts(census: Census, expected: dict[str, Any]) -> None:
    """Check what one sequence and a batch of them have in common."""
    assert census.num_tokens == census.num_entries == expected["tokens"]
    assert census.num_live_tokens == census.num_live_entries == expected["live"]
    assert census.num_evicted_entries == expected["dead"]
    assert census.num_blocks == expected["blocks"]
    assert census.num_freed_blocks == expected["freed"]
    assert census.num_nonempty_blocks == census.num_held_blocks == expected["nonempty"]
    assert census.num_stranded_tokens == expected["stranded_tokens"]
    assert census.num_slack_slots == expected["slack_slots"]
    assert same(logical_saving(census), expected["logical_saving"])
    assert same(physical_reclaim(census), expected["reclaim_blocks"])
    assert same(reclaim_efficiency(census), expected["efficiency_fraction"])
    assert same(savings_breakdown(census).reclaimed, expected["reclaim_tokens"])
    # The vectors print 0 where nothing is held.
    assert same(fragmentation(census), expected["fragmentation"] if expected["nonempty"] else None)


def check_compaction(census: Census, expected: dict[str, Any], curve: list[int]) -> None:
    assert [0, *reclaim_curve(census)] == curve
    assert census.num_compactable_blocks == expected["freed_by_compaction"]
    assert census.num_moved_entries == expected["moves"]
    assert same(moved_tokens_per_block(census), expected["moves_per_block"])
    assert same(slots_per_move(census), expected["slots_per_move"])
    steps = compaction_cost(census).decode_steps
    share = expected["moved_share_of_survivors"]
    assert same(steps, None if share is None else str(2 * Fraction(share)))


@pytest.mark.parametrize(("given", "expected"), vectors("sequence"))
def test_sequence(given: dict[str, Any], expected: dict[str, Any]) -> None:
    keep, size, offset = bits(given["keep"]), given["block_size"], given["offset"]
    census = take_census(keep, size, offset=offset)
    check_counts(census, expected)
    assert census.num_packed_blocks == census.num_floor_blocks == expected["min_blocks"]
    assert census.num_compactable_blocks == expected["recoverable_blocks"]
    if expected["blocks"]:
        freed = Fraction(expected["blocks"] - expected["min_blocks"], expected["blocks"])
        assert packed_reclaim(census) == compacted_reclaim(census) == float(freed)
    assert list(census.counts) == expected["histogram"]
    assert np.bincount(expected["occupancies"], minlength=size + 1).tolist() == list(census.counts)
    assert census.num_held_tokens == sum(
        written
        for written, live in zip(expected["valid_sizes"], expected["occupancies"], strict=True)
        if live
    )
    # The vectors average over dead runs alone: between two kept tokens there is no free edge.
    between = np.pad(keep, 1, constant_values=True)
    phases = [take_census(between, size, offset=phase).num_freed_blocks for phase in range(size)]
    assert Fraction(sum(phases), size) == Fraction(expected["phase_averaged_freed"])
    assert same(phase_averaged_free_blocks(keep, size), expected["phase_averaged_freed"])
    if offset == 0:
        bounds = (expected["min_freed"], expected["max_freed"])
        assert free_block_bounds(len(keep), expected["dead"], size) == bounds
        assert bounds[0] <= census.num_freed_blocks <= bounds[1]
        check_compaction(census, expected["compaction"], expected["compaction_curve"])
        for frees, compactor, moves in (
            ("any", "evacuate_rows", expected["compaction"]["moves"]),
            ("any", "pack", expected["stable_pack_moves"]),
            ("back", "pack_rows", expected["stable_pack_moves"]),
            ("any", "fill", expected["prefix_fill_moves"]),
            ("back", "fill", expected["prefix_fill_moves"]),
        ):
            pool = BlockPool(size, frees=frees, compactor=compactor)
            assert take_census(keep, pool).num_moved_entries == moves


@pytest.mark.parametrize(("given", "expected"), vectors("pool"))
def test_pool(given: dict[str, Any], expected: dict[str, Any]) -> None:
    keep, lengths = batch(given["keep"])
    census = take_census(keep, given["block_size"], axes="bt", lengths=lengths)
    check_counts(census, expected)
    check_compaction(census, expected["compaction_sequence"], expected["curve_sequence"])
    moves_for = [0, *reclaim_curve(census)]
    for budget, (blocks, moves) in zip(
        given["budgets"], expected["budgeted_sequence"], strict=True
    ):
        assert blocks_for_moves(census, budget) == blocks
        assert moves_for[blocks] == moves
    if given["keep"]:
        alone = [take_census(bits(text), given["block_size"]) for text in given["keep"]]
        assert merge(alone) == census


@pytest.mark.parametrize(("given", "expected"), vectors("compaction_target"))
def test_compaction_target(given: dict[str, Any], expected: dict[str, Any]) -> None:
    size = given["block_size"]
    texts = [
        "".join(("1" * live).ljust(size, "0") for live in sequence)
        for sequence in given["occupancies"]
    ]
    keep, lengths = batch(texts)
    census = take_census(keep, size, axes="bt", lengths=lengths)
    to_free = max(0, census.num_nonempty_blocks - given["target_blocks"])
    curve = [0, *reclaim_curve(census)]
    if expected["sequence"] is None:
        assert to_free >= len(curve)
    else:
        assert curve[to_free] == expected["sequence"]
        assert blocks_for_moves(census, expected["sequence"]) >= to_free
        if expected["sequence"] > 0:
            assert blocks_for_moves(census, expected["sequence"] - 1) < to_free


@pytest.mark.parametrize(("given", "expected"), vectors("admission"))
def test_admission(given: dict[str, Any], expected: dict[str, Any]) -> None:
    free, demands, watermark = expected["free"], given["sizes"], given["watermark"]
    fifo = admit(free, demands, watermark_blocks=watermark)
    skip = admit(free, demands, watermark_blocks=watermark, order="skip")
    exempt = admit(free, demands, watermark_blocks=watermark, exempt_first=True)
    smallest = admit(free, demands, watermark_blocks=watermark, order="smallest")
    assert list(fifo) == expected["fifo"]
    assert list(skip) == expected["fifo_skip"]
    assert list(exempt) == expected["fifo_exempt_first"]
    assert len(smallest) == expected["max_count"]

    flags = given["free_flags"]  # as a mask with blocks of one slot
    keep = [flag == "0" for flag in flags]
    full = BlockPool(1, watermark_blocks=watermark)
    # The same blocks free in a pool with a size, where the watermark may not exceed the pool.
    sized = full.replace(total_blocks=len(flags) + 3, reserved_blocks=3)
    for need, count in expected["equal"].items():
        assert len(admit(free, [int(need)] * (free + 1), watermark_blocks=watermark)) == count
        for pool in (full, sized):
            assert admission_count(keep, pool, blocks_per_request=int(need)) == count


@pytest.mark.parametrize(("given", "expected"), vectors("shared_axes"))
def test_shared_axes(given: dict[str, Any], expected: dict[str, Any]) -> None:
    shared = {"per_head": "", "per_layer": "h", "all": "lh"}[given["share"]]
    keep = [[bits(head) for head in layer] for layer in given["keep"]]
    census = take_census(keep, BlockPool(given["block_size"], shared_axes=shared), axes="lht")
    assert census.num_blocks == expected["blocks"]
    assert census.num_freed_blocks == expected["freed"]
    assert same(logical_saving(census), expected["logical_saving"])
    assert same(physical_reclaim(census), expected["reclaim_bytes"])
    assert same(reclaim_efficiency(census), expected["efficiency_fraction"])
    dead_in_every_row = Fraction(expected["union_saving"])
    assert census.num_tokens - census.num_live_tokens == dead_in_every_row * census.num_tokens
    if dead_in_every_row and 0 < (saving := Fraction(expected["logical_saving"])) < 1:
        assert effective_rows(census) == math.log(dead_in_every_row) / math.log(saving)


@pytest.mark.parametrize(("given", "expected"), vectors("delta"))
def test_delta(given: dict[str, Any], expected: dict[str, Any]) -> None:
    before, after = (
        take_census(bits(given[name]), given["block_size"], offset=given["offset"])
        for name in ("before", "after")
    )
    newly_freed = after.num_freed_blocks - before.num_freed_blocks
    newly_dead = before.num_live_tokens - after.num_live_tokens
    assert newly_freed == expected["newly_freed"]
    assert newly_dead == expected["newly_dead"]


@pytest.mark.parametrize(("given", "expected"), vectors("streaming"))
def test_streaming(given: dict[str, Any], expected: dict[str, Any]) -> None:
    keep = np.zeros(given["n"], bool)
    keep[: given["sink"]] = True
    keep[max(0, given["n"] - given["window"]) :] = True
    census = take_census(keep, given["block_size"], offset=given["offset"])
    assert census.num_freed_blocks == expected["freed"]
    assert census.num_live_tokens == expected["live"]
    tokens, sink, window = given["n"], given["sink"], given["window"]
    free = window_free_blocks(tokens, sink, window, given["block_size"], given["offset"])
    assert free == expected["freed"]
    assert list(dead_run_lengths(keep)) == np.bincount(expected["dead_runs"], minlength=1).tolist()


@pytest.mark.parametrize(("given", "expected"), vectors("random_eviction"))
def test_random_eviction(given: dict[str, Any], expected: dict[str, Any]) -> None:
    of = given["n"], given["evicted"], given["block_size"], given["offset"]
    chance = random_free_blocks(*of)
    assert same(chance.mean, expected["mean_freed"])
    assert same(chance.variance, expected["var_freed"])
    for got, wanted in zip(chance.pmf, map(Fraction, expected["pmf"]), strict=True):
        assert abs(got - wanted) < 1e-12
    if "expected_full_compaction_moves" in expected:
        moves = Fraction(expected["expected_full_compaction_moves"])
        assert random_moves(*of) == pytest.approx(float(moves), rel=1e-12)


@pytest.mark.parametrize(("given", "expected"), vectors("h2o_model"))
def test_h2o_model(given: dict[str, Any], expected: dict[str, Any]) -> None:
    chance = heavy_hitter_free_blocks(
        given["n"], given["recent"], given["heavy"], given["block_size"]
    )
    assert same(chance.mean, expected["mean_freed"])
    assert same(chance.variance, expected["var_freed"])


@pytest.mark.parametrize(("given", "expected"), vectors("reclaim_model"))
def test_reclaim_model(given: dict[str, Any], expected: dict[str, Any]) -> None:
    q, size = Fraction(given["q"]), given["block_size"]
    assert same(independent_reclaim(q, size), expected["independent"])
    run = 1 / (1 - Fraction(given["stay"]))
    assert same(markov_reclaim(q, run, size), expected["markov"])


@pytest.mark.parametrize(("given", "expected"), vectors("frontier"))
def test_frontier(given: dict[str, Any], expected: dict[str, Any]) -> None:
    scores, size, num_evicted = given["importance"], given["block_size"], given["evicted"]
    assert max_free_blocks(scores, size, num_evicted) == expected["max_freed"]
    least = [float(Fraction(loss)) for loss in expected["min_loss"]]
    line = reclaim_frontier(scores, size, num_evicted)
    assert list(line.loss) == list(line.lower_bound) == least
    for blocks, loss in enumerate(least):
        found = evict_for_blocks(scores, size, num_evicted, blocks)
        assert found.loss == found.lower_bound == loss
        census = take_census(found.keep, size)
        assert census.num_freed_blocks >= blocks
        assert census.num_evicted_entries == num_evicted
        # Buying the blocks of least sum is never better.
        assert loss <= float(Fraction(expected["cheapest_blocks_loss"][blocks]))
    lowest = evict_for_blocks(scores, size, num_evicted, 0)
    assert lowest.keep.tolist() == bits(expected["lowest_tokens_keep"]).tolist()


def test_no_kind_is_empty() -> None:
    kinds = {case["kind"] for case in VECTORS["cases"]}
    used = {"sequence", "pool", "compaction_target", "admission", "shared_axes"}
    used |= {"random_eviction", "h2o_model", "reclaim_model"}
    assert used | {"delta", "streaming", "frontier"} <= kinds
