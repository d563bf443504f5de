"""What chance gives: each closed form against every case, and long sequences against a census."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import oracle_bounds as oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvreclaim import (
    BlockPool,
    _chance,
    bounds,
    fragmentation,
    logical_saving,
    physical_reclaim,
    pool,
    reclaim_efficiency,
    slots_per_move,
    take_census,
    take_censuses,
)
from kvreclaim.bounds import (
    Distribution,
    clustered_reclaim,
    dead_run_lengths,
    free_block_bounds,
    heavy_hitter_free_blocks,
    independent_efficiency,
    independent_fragmentation,
    independent_free_blocks,
    independent_moves_per_evicted_token,
    independent_reclaim,
    markov_free_blocks,
    markov_reclaim,
    max_reclaim_efficiency,
    phase_averaged_curve,
    phase_averaged_free_blocks,
    random_admission,
    random_fragmentation,
    random_free_blocks,
    random_moves,
    shared_markov_reclaim,
    two_level_slots_per_move,
    window_free_blocks,
)

HALF = Fraction(1, 2)
SHARES = [Fraction(0), Fraction(1, 3), HALF, Fraction(9, 10), Fraction(1)]
# Every length, number of evicted tokens, block size and offset that can be gone through.
SMALL = [
    (tokens, evicted, size, offset)
    for tokens in range(8)
    for evicted in range(tokens + 1)
    for size in range(1, tokens + 2)
    for offset in range(size)
]
LONGER = [(10, 7, 3, 1), (10, 8, 2, 1), (11, 8, 4, 0), (12, 9, 5, 3)]


def agrees(chance: Distribution, law: list[Fraction], *, rounded_once: bool = True) -> None:
    """Check a distribution against a law in Fractions."""
    mean, variance = float(oracle.mean(law)), float(oracle.variance(law))
    if rounded_once:
        assert (chance.mean, chance.variance) == (mean, variance)
    else:
        assert chance.mean == pytest.approx(mean, rel=1e-14)
        assert chance.variance == pytest.approx(variance, rel=1e-14, abs=1e-16)
    assert len(chance.pmf) == len(law)
    assert (
        max(abs(got - float(wanted)) for got, wanted in zip(chance.pmf, law, strict=True)) < 1e-13
    )
    assert math.fsum(chance.pmf) == pytest.approx(1, abs=1e-15)
    for got, wanted in zip(chance.pmf, law, strict=True):
        assert got >= 0
        assert wanted > 0 or got == 0
    assert chance.sd == math.sqrt(chance.variance)


def z_of_mean(sample: NDArray[Any], expected: float) -> float:
    """Return how many standard errors, taken from the sample, its mean lies from what it should."""
    return float((sample.mean() - expected) / (sample.std(ddof=1) / math.sqrt(len(sample))))


def simulated_well(counts: NDArray[np.int64], chance: Distribution) -> None:
    """Check mean, variance and the chance of none by sampling errors that the law itself gives."""
    law, values = np.array(chance.pmf), np.arange(len(chance.pmf))
    assert chance.mean == pytest.approx(law @ values, rel=1e-9)
    assert chance.variance == pytest.approx(law @ (values - chance.mean) ** 2, rel=1e-9)

    def of_mean(count: NDArray[Any]) -> NDArray[Any]:
        return count.astype(float)

    def of_variance(count: NDArray[Any]) -> NDArray[Any]:
        return np.asarray((count - chance.mean) ** 2)

    def of_shape(count: NDArray[Any]) -> NDArray[Any]:
        return (count <= chance.mean).astype(float)

    for of in (of_mean, of_variance, of_shape):
        theirs, ours = of(counts), of(values)
        mean = float(law @ ours)
        error = math.sqrt(float(law @ (ours - mean) ** 2) / len(counts))
        assert abs(theirs.mean() - mean) < 4 * error


def random_keep(
    rng: np.random.Generator, num_rows: int, num_tokens: int, num_evicted: int
) -> NDArray[np.bool_]:
    keep = np.ones((num_rows, num_tokens), bool)
    keep[:, :num_evicted] = False
    return rng.permuted(keep, axis=1)


def by_row(
    keep: NDArray[np.bool_], block_size: int, figure: str, offset: int = 0, axes: str = "bt"
) -> NDArray[np.int64]:
    """Return a figure of each sequence's own census."""
    censuses = take_censuses(keep, BlockPool(block_size), by="b", axes=axes, offset=offset)
    return np.array([getattr(census, figure) for census in censuses.values()])


# --- exactly so many tokens, at random


@pytest.mark.parametrize("offset", range(8))
def test_random_free_blocks_against_every_choice(offset: int) -> None:
    for tokens, evicted, size, before in [*SMALL, *LONGER]:
        if before == offset:
            law = oracle.fixed_pmf(tokens, evicted, size, before)
            agrees(random_free_blocks(tokens, evicted, size, before), law)


def test_random_admission_against_every_choice() -> None:
    for tokens, evicted, size, offset in [*SMALL, *LONGER]:
        law = oracle.fixed_pmf(tokens, evicted, size, offset)
        for need in (1, 2, 3):
            wanted = sum(chance * (free // need) for free, chance in enumerate(law))
            got = random_admission(tokens, evicted, size, need, offset)
            assert got == pytest.approx(float(wanted), abs=1e-13)


def test_random_fragmentation_against_every_choice() -> None:
    for tokens, evicted, size, offset in [*SMALL, *LONGER]:
        law = oracle.fixed_pmf(tokens, evicted, size, offset)
        got = random_fragmentation(tokens, evicted, size, offset)
        if evicted == tokens:
            assert math.isnan(got)
            continue
        wanted = sum(
            chance * (1 - Fraction(tokens - evicted, (len(law) - 1 - free) * size))
            for free, chance in enumerate(law)
            if chance
        )
        assert got == pytest.approx(float(wanted), abs=1e-13)


def test_random_moves_against_every_choice() -> None:
    for tokens, evicted, size, offset in [*SMALL, *LONGER]:
        wanted = oracle.fixed_moves(tokens, evicted, size, offset)
        got = random_moves(tokens, evicted, size, offset)
        assert got == pytest.approx(float(wanted), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("tokens", "evicted", "size"),
    [(512, 400, 16), (8192, 4096, 16), (8192, 6144, 16), (600, 596, 2), (2048, 12, 2)],
)
def test_pmf_of_long_sequences_against_big_integers(tokens: int, evicted: int, size: int) -> None:
    wanted = oracle.fixed_pmf_counted(tokens, evicted, size)
    got = random_free_blocks(tokens, evicted, size).pmf
    assert max(abs(a - b) for a, b in zip(got, wanted, strict=True)) < 1e-13


@pytest.mark.parametrize(
    ("tokens", "evicted", "size", "offset"),
    [
        (8192 * 16, 65_536, 16, 0),
        (8192 * 16, 118_000, 16, 5),
        (65_536, 60_000, 1024, 1000),
        (131_070, 131_000, 65_535, 9),
        (1_000_003, 900_000, 16, 0),
        (100_000, 40_000, 1, 0),
    ],
)
def test_the_pmf_has_the_exact_mean_and_variance(
    tokens: int, evicted: int, size: int, offset: int
) -> None:
    chance = random_free_blocks(tokens, evicted, size, offset)
    law, free = np.array(chance.pmf), np.arange(len(chance.pmf))
    assert math.fsum(chance.pmf) == pytest.approx(1, abs=1e-14)
    assert law @ free == pytest.approx(chance.mean, rel=1e-9)
    assert law @ (free - chance.mean) ** 2 == pytest.approx(chance.variance, rel=1e-7, abs=1e-9)


def test_few_survivors_of_a_long_sequence_against_every_set_of_blocks() -> None:
    tokens, size, survivors = 160_000, 16, 3
    blocks = tokens // size
    chance = random_free_blocks(tokens, tokens - survivors, size)
    for held in range(1, survivors + 1):
        # In just these blocks: as many ways as there are, less those that leave some out.
        ways = sum(
            (-1) ** out * math.comb(held, out) * math.comb((held - out) * size, survivors)
            for out in range(held)
        )
        wanted = math.comb(blocks, held) * ways / math.comb(tokens, survivors)
        assert chance.pmf[blocks - held] == pytest.approx(wanted, abs=1e-12)


def test_blocks_too_large_to_come_free_by_chance() -> None:
    chance = random_free_blocks(100_000, 50_000, 100)
    assert chance.pmf == (1.0,) + (0.0,) * 1000
    assert 0 < chance.mean < 1000 * 0.5**100


def test_random_eviction_against_a_census() -> None:
    tokens, evicted, size, offset, rows = 1000, 800, 8, 3, 2000
    keep = random_keep(np.random.default_rng(1), rows, tokens, evicted)
    free = by_row(keep, size, "num_freed_blocks", offset)
    simulated_well(free, random_free_blocks(tokens, evicted, size, offset))
    moves = by_row(keep, size, "num_moved_entries", offset)
    assert abs(z_of_mean(moves, random_moves(tokens, evicted, size, offset))) < 4
    held = by_row(keep, size, "num_held_blocks", offset) * size
    scattered = (held - (tokens - evicted)) / held
    assert scattered[0] == fragmentation(keep[0], size, offset=offset)
    assert abs(z_of_mean(scattered, random_fragmentation(tokens, evicted, size, offset))) < 4
    admitted = free // 8
    assert abs(z_of_mean(admitted, random_admission(tokens, evicted, size, 8, offset))) < 4


@given(st.integers(0, 300), st.floats(0, 1), st.integers(1, 40), st.data())
def test_laws_of_random_eviction(tokens: int, share: float, size: int, data: st.DataObject) -> None:
    evicted, offset = round(share * tokens), data.draw(st.integers(0, size - 1))
    chance = random_free_blocks(tokens, evicted, size, offset)
    fewest, most = free_block_bounds(tokens, evicted, size, offset)
    assert all(p == 0 for p in chance.pmf[:fewest] + chance.pmf[most + 1 :])
    assert fewest <= chance.mean <= most
    if tokens:  # blocks compete for the budget
        alone = independent_free_blocks(tokens, Fraction(evicted, tokens), size, offset)
        assert chance.mean <= alone.mean * (1 + 1e-12)
        borders = [0, *range(size - offset, tokens, size), tokens]
        chances = [
            Fraction(math.comb(evicted, width), math.comb(tokens, width))
            for width in map(int, np.diff(borders))
        ]
        assert chance.mean == float(sum(chances))
        assert chance.variance <= float(sum(p * (1 - p) for p in chances))
    if evicted < tokens:
        more = random_free_blocks(tokens, evicted + 1, size, offset)
        assert more.mean >= chance.mean
    assert random_admission(tokens, evicted, size, 1, offset) == pytest.approx(
        chance.mean, rel=1e-10, abs=1e-12
    )


def test_a_fixed_budget_may_vary_more_than_independent_eviction() -> None:
    fixed, alone = random_free_blocks(27, 20, 25), independent_free_blocks(27, Fraction(20, 27), 25)
    assert 0.5 < fixed.mean < alone.mean
    assert fixed.variance > alone.variance


# --- each token by itself


@pytest.mark.parametrize("q", SHARES)
def test_independent_free_blocks_against_every_mask(q: Fraction) -> None:
    for tokens, size, offset in [(0, 2, 1), (1, 1, 0), (3, 5, 4), (7, 2, 1), (8, 4, 0), (9, 4, 2)]:
        law = oracle.pmf(oracle.independent(tokens, q), tokens, size, offset)
        agrees(independent_free_blocks(tokens, q, size, offset), law, rounded_once=False)


def test_independent_eviction_of_a_long_sequence_is_binomial() -> None:
    chance = independent_free_blocks(1500, HALF, 1)
    assert (chance.mean, chance.variance) == (750, 375)
    wanted = [math.comb(1500, free) / 2**1500 for free in range(1501)]
    assert max(abs(a - b) for a, b in zip(chance.pmf, wanted, strict=True)) < 1e-13
    assert math.fsum(chance.pmf) == pytest.approx(1, abs=1e-15)


def test_few_survivors_by_themselves_are_binomial() -> None:
    tokens, survivors = 30_000, 3
    chance = independent_free_blocks(tokens, 1 - Fraction(survivors, tokens), 1)
    for live in range(12):
        ways = math.comb(tokens, live) * survivors**live * (tokens - survivors) ** (tokens - live)
        assert chance.pmf[tokens - live] == pytest.approx(ways / tokens**tokens, abs=1e-12)


@pytest.mark.parametrize("q", SHARES)
def test_independent_reclaim_against_every_mask(q: Fraction) -> None:
    for size in range(1, 9):
        law = oracle.pmf(oracle.independent(size, q), size, size)
        assert independent_reclaim(q, size) == float(law[1])
        if q:
            assert independent_efficiency(q, size) == float(law[1] / q)


def test_independent_eviction_against_a_census() -> None:
    rng = np.random.default_rng(2)
    keep = rng.random((3000, 500)) >= 0.85
    free = by_row(keep, 8, "num_freed_blocks", 6)
    simulated_well(free, independent_free_blocks(500, 0.85, 8, 6))


def test_long_random_eviction_tends_to_the_independent_one() -> None:
    tokens = 8192 * 16
    for q in (0.5, 0.75, 0.9):
        evicted = round(q * tokens)
        reclaim = random_free_blocks(tokens, evicted, 16).mean / 8192
        assert reclaim == pytest.approx(independent_reclaim(q, 16), rel=2e-3)
        scattered = random_fragmentation(tokens, evicted, 16)
        assert scattered == pytest.approx(independent_fragmentation(q, 16), rel=1e-3)
        moves = random_moves(tokens, evicted, 16) / evicted
        assert moves == pytest.approx(independent_moves_per_evicted_token(q, 16), rel=2e-3)


@pytest.mark.parametrize(
    ("tokens", "evicted", "size"), [(144_000, 72_000, 160), (100_000, 99_000, 100)]
)
def test_moves_between_many_large_blocks(tokens: int, evicted: int, size: int) -> None:
    wanted = independent_moves_per_evicted_token(Fraction(evicted, tokens), size) * evicted
    assert random_moves(tokens, evicted, size) == pytest.approx(wanted, rel=1e-4)


def test_nearly_all_blocks_come_free_where_nearly_all_tokens_are_evicted() -> None:
    for q in (Fraction(99, 100), 1 - Fraction(1, 10**9)):
        assert independent_reclaim(q, 16) == float(q**16)


def test_a_float_is_the_decimal_that_it_is_written_as() -> None:
    assert independent_reclaim(0.9, 3) == float(Fraction(729, 1000)) != 0.9**3
    assert markov_reclaim(0.9, 9, 2) == 0.8  # live runs of one token, not of a little less


@pytest.mark.parametrize("q", SHARES[1:-1])
def test_independent_fragmentation_is_a_ratio_of_expectations(q: Fraction) -> None:
    for size in range(1, 8):
        held = 1 - oracle.pmf(oracle.independent(size, q), size, size)[1]
        assert independent_fragmentation(q, size) == float(1 - size * (1 - q) / (size * held))


def test_independent_moves_are_the_survivors_of_the_emptiest_blocks() -> None:
    for q in (*SHARES[1:], Fraction(1, 7), Fraction(2, 3)):
        for size in (1, 2, 3, 5, 8, 16, 24):
            wanted = oracle.moves_per_evicted_token(q, size)
            assert independent_moves_per_evicted_token(q, size) == float(wanted)


def test_independent_moves_at_one_half() -> None:
    for size in range(2, 66, 2):
        wanted = (1 - Fraction(math.comb(size, size // 2), 2**size)) / 2
        assert independent_moves_per_evicted_token(0.5, size) == float(wanted)


def test_two_levels_against_a_census() -> None:
    # The emptier half is evacuated; that r is not exactly half of the blocks is the 1 percent.
    rng, size = np.random.default_rng(3), 16
    for p in (0.8, 0.9):
        dead = rng.random((20_000, size)) < np.repeat([p, 1 - p], 10_000)[:, None]
        got = slots_per_move(~dead.reshape(-1), size)
        assert got == pytest.approx(two_level_slots_per_move(p, size), rel=0.01)
    assert two_level_slots_per_move(Fraction(3, 4), 3) == float(
        1 + Fraction(3, 4) + Fraction(9, 16)
    )
    assert two_level_slots_per_move(0.5, 1) == 1


# --- windows and heavy hitters


def test_window_free_blocks_against_every_window() -> None:
    for tokens, size in itertools.product(range(13), range(1, 8)):
        for sink, window, offset in itertools.product(range(14), range(14), range(size)):
            dead = tuple(sink <= token < tokens - window for token in range(tokens))
            got = window_free_blocks(tokens, sink, window, size, offset)
            assert got == oracle.num_free(dead, size, offset)


@given(st.integers(0, 24), st.integers(0, 25), st.integers(0, 25), st.integers(1, 26), st.data())
def test_window_free_blocks_against_a_census(
    tokens: int, sink: int, window: int, size: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, size - 1))
    keep = np.zeros(tokens, bool)
    keep[:sink] = True
    keep[max(0, tokens - window) :] = True
    wanted = take_census(keep, size, offset=offset).num_freed_blocks
    assert window_free_blocks(tokens, sink, window, size, offset) == wanted


def test_heavy_hitters_against_every_choice() -> None:
    for tokens, recent, heavy in itertools.product(range(8), range(9), range(9)):
        older = max(0, tokens - recent)
        evicted = max(0, older - heavy)
        for size, offset in [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2), (4, 1), (9, 3)]:
            outcomes = (
                oracle.Outcome(dead + (False,) * (tokens - older), chance)
                for dead, chance in oracle.fixed(older, evicted)
            )
            law = oracle.pmf(outcomes, tokens, size, offset)
            agrees(heavy_hitter_free_blocks(tokens, recent, heavy, size, offset), law)


def test_heavy_hitters_against_a_census() -> None:
    tokens, recent, heavy, size = 777, 192, 150, 4
    older = tokens - recent
    keep = np.ones((2000, tokens), bool)
    keep[:, :older] = random_keep(np.random.default_rng(4), 2000, older, older - heavy)
    free = by_row(keep, size, "num_freed_blocks")
    simulated_well(free, heavy_hitter_free_blocks(tokens, recent, heavy, size))


# --- clusters and runs


def test_clustered_reclaim_against_every_way_to_begin() -> None:
    for cluster, size, starts in [(1, 3, HALF), (2, 3, HALF), (3, 2, Fraction(1, 5)), (4, 4, HALF)]:
        law = oracle.pmf(oracle.clusters(size, cluster, starts), size, size)
        got = clustered_reclaim((1 - starts) ** cluster, cluster, size)
        assert got == pytest.approx(float(law[1]), rel=1e-14)


def test_clustered_reclaim_against_a_census() -> None:
    rng, size, cluster, older, recent = np.random.default_rng(5), 16, 6, 480, 160
    starts = 0.06
    begins = rng.random((1500, older + cluster - 1)) < starts
    keep = np.ones((1500, older + recent), bool)
    keep[:, :older] = np.lib.stride_tricks.sliding_window_view(begins, cluster, axis=1).any(axis=2)
    q = (1 - starts) ** cluster * older / (older + recent)
    expected = clustered_reclaim(q, cluster, size, recent / (older + recent))
    free = by_row(keep, size, "num_freed_blocks") / ((older + recent) // size)
    assert abs(z_of_mean(free, expected)) < 4


def test_clusters_reach_from_scatter_to_one_piece() -> None:
    assert clustered_reclaim(0.5, 1, 16) == independent_reclaim(0.5, 16)
    assert clustered_reclaim(0.5, math.inf, 16, 0.25) == 0.5
    assert clustered_reclaim(0, 3, 16, 1.0) == clustered_reclaim(0, 3, 16) == 0
    assert clustered_reclaim(1, 3, 16) == clustered_reclaim(1, math.inf, 16) == 1
    assert clustered_reclaim(0.75, 3, 16, 0.25) == 0.75
    values = [clustered_reclaim(0.5, cluster, 16, 0.125) for cluster in (1, 1.5, 2, 8, 64, 1e9)]
    assert values == sorted(values)
    assert 0.4999 < values[-1] < 0.5


MARKOV = [
    (HALF, Fraction(2), 3, 2),
    (HALF, Fraction(4), 3, 3),
    (Fraction(3, 4), Fraction(3), 2, 4),  # live runs of one token
    (Fraction(1, 3), Fraction(1), 1, 6),  # dead runs of one token
    (Fraction(1, 3), Fraction(5, 2), 2, 5),
    (Fraction(9, 10), Fraction(11), 4, 2),
    (HALF, Fraction(1), 2, 4),  # strictly in turn
]


@pytest.mark.parametrize(("q", "run", "size", "num_blocks"), MARKOV)
def test_markov_chains_against_every_mask(
    q: Fraction, run: Fraction, size: int, num_blocks: int
) -> None:
    tokens = num_blocks * size
    law = oracle.pmf(oracle.markov(tokens, q, run), tokens, size)
    assert markov_reclaim(q, run, size) == float(oracle.mean(law) / num_blocks)
    agrees(markov_free_blocks(num_blocks, q, run, size), law, rounded_once=False)


def test_markov_chains_of_one_kind() -> None:
    assert markov_free_blocks(0, 0.5, 4, 16) == Distribution(mean=0, variance=0, pmf=(1.0,))
    assert markov_free_blocks(2, 0, 4, 16) == Distribution(mean=0, variance=0, pmf=(1.0, 0.0, 0.0))
    assert markov_free_blocks(2, 1, math.inf, 16) == Distribution(
        mean=2, variance=0, pmf=(0.0, 0.0, 1.0)
    )
    # One run, all dead or all live.
    assert markov_free_blocks(2, 0.25, math.inf, 16) == Distribution(
        mean=0.5, variance=0.75, pmf=(0.75, 0.0, 0.25)
    )
    assert markov_reclaim(0.25, math.inf, 16) == 0.25


def chain(
    rng: np.random.Generator, shape: tuple[int, ...], q: float, run: float
) -> NDArray[np.bool_]:
    """Return keep-masks whose tokens follow one another as a chain does."""
    dead = np.empty(shape, bool)
    dead[..., 0] = rng.random(shape[:-1]) < q
    for token in range(1, shape[-1]):
        dies = np.where(dead[..., token - 1], 1 - 1 / run, q / (1 - q) / run)
        dead[..., token] = rng.random(shape[:-1]) < dies
    return ~dead


def test_markov_chains_against_a_census() -> None:
    keep = chain(np.random.default_rng(6), (2000, 40 * 8), 0.6, 9.0)
    free = by_row(keep, 8, "num_freed_blocks")
    chance = markov_free_blocks(40, 0.6, 9, 8)
    simulated_well(free, chance)
    reclaim = markov_reclaim(0.6, 9, 8)
    assert chance.variance > 1.3 * 40 * reclaim * (1 - reclaim)  # neighbours come free together


def test_autocorrelation_is_the_other_name_of_the_run_length() -> None:
    q, run, size = 0.5, 8, 16
    keep = chain(np.random.default_rng(7), (4000, 200), q, run)
    both = (~keep[:, 1:] & ~keep[:, :-1]).mean(axis=1)
    r = 1 - (1 / run) / (1 - q)
    assert abs(z_of_mean(both, q * (q + r * (1 - q)))) < 4
    assert markov_reclaim(q, run, size) == pytest.approx(q * (q + r * (1 - q)) ** (size - 1))


def test_rows_that_share_blocks_against_a_census() -> None:
    rng, rows = np.random.default_rng(8), [(0.9, 30.0), (0.8, 9.0), (0.7, 4.0)]
    keep = np.stack([chain(rng, (1500, 30 * 8), q, run) for q, run in rows], axis=1)
    free = by_row(keep, 8, "num_freed_blocks", axes="bht") / 30
    expected = shared_markov_reclaim([q for q, _ in rows], [run for _, run in rows], 8)
    assert abs(z_of_mean(free, expected)) < 4


def test_rows_that_share_blocks_in_fractions() -> None:
    assert shared_markov_reclaim([], [], 16) == 1
    assert shared_markov_reclaim([0.75], [4], 16) == markov_reclaim(0.75, 4, 16)
    alone = [1 / (1 - q) for q in (HALF, Fraction(3, 4))]
    got = shared_markov_reclaim((HALF, Fraction(3, 4)), alone, 4)
    assert got == float((HALF * Fraction(3, 4)) ** 4)
    assert shared_markov_reclaim([HALF] * 3, [2] * 3, 4) == 0.5 ** (4 * 3)


# --- bounds


def every_mask(most_tokens: int) -> list[NDArray[np.bool_]]:
    """Return, for each length, all its masks as rows."""
    return [
        (np.arange(2**tokens)[:, None] >> np.arange(tokens) & 1).astype(bool)
        for tokens in range(most_tokens + 1)
    ]


def test_free_block_bounds_are_attained() -> None:
    for masks in every_mask(10):
        tokens, evicted = masks.shape[1], (~masks).sum(axis=1)
        for size, offset in [(1, 0), (2, 0), (2, 1), (3, 0), (3, 2), (4, 0), (4, 3), (11, 5)]:
            dead = [tuple(row) for row in (~masks).tolist()]
            free = np.array([oracle.num_free(row, size, offset) for row in dead])
            for some in range(tokens + 1):
                these = free[evicted == some]
                got = free_block_bounds(tokens, some, size, offset)
                assert got == (these.min(), these.max())


def test_most_free_blocks_by_the_last_block() -> None:
    for tokens, size in itertools.product(range(1, 60), range(1, 20)):
        last = (tokens - 1) % size + 1
        for evicted in range(tokens + 1):
            wanted = 0 if evicted < last else 1 + (evicted - last) // size
            assert free_block_bounds(tokens, evicted, size)[1] == wanted


def test_when_efficiency_exceeds_one() -> None:
    for masks, size in itertools.product(every_mask(9)[1:], range(1, 6)):
        tokens = masks.shape[1]
        num_blocks = -(-tokens // size)
        last = tokens - (num_blocks - 1) * size
        largest = 0.0
        for keep in masks:
            census = take_census(keep, size)
            efficiency, free = reclaim_efficiency(census), census.num_freed_blocks
            largest = max(largest, 0.0 if math.isnan(efficiency) else efficiency)
            exceeds = census.num_evicted_entries * num_blocks < tokens * free
            assert (efficiency > 1) == exceeds
            stray = census.num_stranded_tokens
            last_is_free = not keep[-last:].any()
            room = (num_blocks - free) * (size - last)
            assert exceeds == (last_is_free and stray * num_blocks < room)
        assert max_reclaim_efficiency(tokens, size) == largest
    assert math.isnan(max_reclaim_efficiency(0, 16))


def test_expectations_are_no_bounds() -> None:
    keep = np.arange(512) % 2 == 0  # every second token
    assert logical_saving(keep, 16) == 0.5
    assert physical_reclaim(keep, 16) == 0.0 < independent_reclaim(0.5, 16)
    assert random_free_blocks(512, 256, 16).mean / 32 < independent_reclaim(0.5, 16)
    keep = np.arange(512) % 16 == 0  # one token in each block
    assert logical_saving(keep, 16) == 15 / 16
    assert physical_reclaim(keep, 16) == 0.0 == free_block_bounds(512, 480, 16)[0]


# --- runs of evicted tokens, for every block size at once

MASKS = st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 12)).flatmap(
    lambda shape: st.lists(st.booleans(), min_size=math.prod(shape), max_size=math.prod(shape)).map(
        lambda flat: np.array(flat, bool).reshape(shape)
    )
)


@given(MASKS)
def test_dead_run_lengths_against_a_walk(keep: NDArray[np.bool_]) -> None:
    lengths = [
        run for row in keep.reshape(-1, keep.shape[2] or 1).tolist() for run in oracle.runs(row)
    ]
    wanted = [lengths.count(run) for run in range(max(lengths, default=0) + 1)]
    assert dead_run_lengths(keep) == tuple(wanted)


@given(MASKS)
def test_dead_runs_add_up_over_rows(keep: NDArray[np.bool_]) -> None:
    added = np.zeros(keep.shape[2] + 1, int)
    for row in keep.reshape(-1, keep.shape[2] or 1):
        counts = dead_run_lengths(row)
        added[: len(counts)] += counts
    assert np.trim_zeros(added, "b").tolist() == list(dead_run_lengths(keep)) * bool(added.any())


def test_dead_runs_are_the_same_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    keep = np.random.default_rng(9).random((7, 5, 40)) < 0.2
    whole = dead_run_lengths(keep)
    assert sum(count * run for run, count in enumerate(whole)) == np.count_nonzero(~keep)
    assert dead_run_lengths(keep[:, ::-1]) == dead_run_lengths(np.asfortranarray(keep)) == whole
    for tokens in (1, 100, 1000):
        monkeypatch.setattr(bounds, "_TOKENS_AT_A_TIME", tokens)
        assert dead_run_lengths(keep) == whole


def test_phase_average_of_every_mask_is_the_mean_over_all_phases() -> None:
    for masks in every_mask(8)[1:]:
        for size in range(1, 6):
            # Between two kept tokens a run at the edge is shorter than its first or last block.
            between = np.pad(masks, ((0, 0), (1, 1)), constant_values=True)
            phases = [by_row(between, size, "num_freed_blocks", offset) for offset in range(size)]
            wanted = np.sum(phases, axis=0)
            got = [phase_averaged_free_blocks(keep, size) for keep in masks]
            assert got == (wanted / size).tolist()


@given(MASKS, st.integers(1, 14))
def test_the_curve_is_the_average_for_each_block_size(
    keep: NDArray[np.bool_], largest: int
) -> None:
    curve = phase_averaged_curve(keep, largest)
    assert curve == tuple(phase_averaged_free_blocks(keep, size) for size in range(1, largest + 1))
    assert curve[0] == np.count_nonzero(~keep)


# --- the article's figures, and others that the docs print


def test_random_eviction_frees_next_to_nothing() -> None:
    assert independent_reclaim(0.5, 16) == 2.0**-16  # 0.0015 percent
    assert round(independent_reclaim(0.75, 16), 4) == 0.0100
    ratio = random_free_blocks(512, 256, 16).mean / 32 / 2.0**-16
    assert ratio == pytest.approx(math.exp(-16 * 15 * 0.5 / (2 * 0.5 * 512)), rel=0.01)
    assert round(ratio, 3) == 0.785


def test_heavy_hitters_by_block_size() -> None:
    assert round(clustered_reclaim(0.5, 1, 4, 0.25), 4) == 0.1481
    assert round(clustered_reclaim(0.5, 1, 16, 0.25), 5) == 0.00114
    for size in (4, 16):  # the limit of long sequences
        tokens = 4096 * size
        reclaim = heavy_hitter_free_blocks(tokens, tokens // 4, tokens // 4, size).mean / 4096
        assert reclaim == pytest.approx(clustered_reclaim(0.5, 1, size, 0.25), rel=5e-3)


def test_moves_after_evicting_half() -> None:
    moves = random_moves(512 * 16, 512 * 8, 16)
    assert round(moves, 1) == 1646.2
    assert round(independent_moves_per_evicted_token(0.5, 16) * 512 * 8, 1) == 1645.8
    assert round(4096 / moves, 2) == 2.49  # slots for each move
    keep = random_keep(np.random.default_rng(10), 200, 512 * 16, 512 * 8)
    assert abs(z_of_mean(by_row(keep, 16, "num_moved_entries"), moves)) < 4


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (8, (1.81, 2.73, 4.71, 6.75)),
        (16, (1.64, 2.49, 4.84, 9.44)),
        (32, (1.54, 2.33, 4.61, 10.85)),
    ],
)
def test_slots_per_move_of_a_full_compaction(size: int, wanted: tuple[float, ...]) -> None:
    for q, slots in zip((0.25, 0.5, 0.75, 0.9), wanted, strict=True):
        new_blocks = 1 - independent_efficiency(q, size)  # slots of them, per evicted token
        got = new_blocks / independent_moves_per_evicted_token(q, size)
        assert round(got, 2) == slots


def test_what_random_eviction_needs_to_admit() -> None:
    tokens = 512 * 16
    for requests, q in ((1, 0.771), (16, 0.917)):
        assert round((8 * requests / 512) ** (1 / 16), 3) == q
        mean = random_free_blocks(tokens, round(q * tokens), 16).mean
        assert mean == pytest.approx(8 * requests, rel=0.06)
    assert random_admission(tokens, tokens // 2, 16, 8) < 1e-9


@pytest.mark.parametrize("tokens", [300, 30_000, 300_000])
def test_blocks_of_one_token_need_no_moves_however_many(tokens: int) -> None:
    assert random_moves(tokens, tokens // 3, 1) == 0.0


def test_clusters_never_exceed_the_share_that_is_evicted() -> None:
    assert clustered_reclaim(0.7, math.inf, 16, 0.1) == 0.7
    assert clustered_reclaim(0.106, 7, 1, 0.37) == 0.106
    assert clustered_reclaim(0.5, np.float32("inf"), 16) == 0.5  # type: ignore[arg-type]  # NumPy's


def test_shares_too_small_for_a_float_are_none() -> None:
    chance = markov_free_blocks(3, Fraction(1, 10**400), 1, 2)
    assert (chance.mean, chance.pmf) == (0.0, (1.0, 0.0, 0.0, 0.0))
    with pytest.raises(ValueError, match="mean_dead_run must be at least"):
        markov_reclaim(1 - Fraction(1, 10**400), 1, 2)


def test_windows_lose_about_a_block_at_any_block_size() -> None:
    for size in (8, 16, 32, 64):
        keep = np.zeros(4096, bool)
        keep[:4] = keep[-2044:] = True
        average = phase_averaged_free_blocks(keep, size)
        assert average == (2048 - size + 1) / size
        census = [take_census(keep, size, offset=offset).num_freed_blocks for offset in range(size)]
        assert average == sum(census) / size


def test_the_page_names_every_function_and_only_tests_that_exist() -> None:
    page = (Path(__file__).parents[1] / "docs" / "what-chance-gives.md").read_text("utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 20
    assert named <= set(globals())
    functions = {
        name
        for name, value in vars(bounds).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }
    assert {name for name in functions if f"`{name}`" not in page} == set()


# --- edges, kinds and bad input


def test_a_float_where_nothing_is_defined() -> None:
    for undefined in (
        independent_fragmentation(1, 16),
        independent_moves_per_evicted_token(0, 16),
        two_level_slots_per_move(1, 16),
        random_fragmentation(0, 0, 16),
        random_fragmentation(5, 5, 2),
    ):
        assert math.isnan(undefined)


def test_edges() -> None:
    nothing = Distribution(mean=0.0, variance=0.0, pmf=(1.0,))
    assert random_free_blocks(0, 0, 16, 5) == independent_free_blocks(0, 0.5, 16) == nothing
    assert random_free_blocks(3, 0, 2).pmf == independent_free_blocks(3, 0, 2).pmf == (1.0, 0, 0)
    assert random_free_blocks(3, 3, 2).pmf == independent_free_blocks(3, 1, 2).pmf == (0, 0, 1.0)
    assert independent_reclaim(0, 1) == 0
    assert independent_reclaim(1, 65_535) == 1
    assert independent_reclaim(0.5, 65_535) == independent_reclaim(1e-300, 65_535) == 0
    assert independent_efficiency(0, 16) == independent_fragmentation(0, 16) == 0
    assert independent_efficiency(0, 1) == 1
    assert random_moves(0, 0, 4) == random_moves(9, 9, 4) == random_moves(9, 0, 4) == 0
    assert random_moves(2, 0, 2, 1) == take_census([1, 1], 2, offset=1).num_moved_entries == 1
    assert free_block_bounds(0, 0, 16) == (0, 0)
    assert dead_run_lengths([]) == dead_run_lengths([1, 1]) == (0,)
    assert phase_averaged_curve([], 2) == (0.0, 0.0)


def test_blocks_begin_with_token_0_unless_an_offset_is_given() -> None:
    assert independent_free_blocks(3, 0.5, 2).mean == 0.75  # 1/4 and 1/2
    assert random_free_blocks(3, 2, 2).mean == 1  # 1/3 and 2/3
    assert random_fragmentation(2, 0, 2) == 0  # one block, full
    assert random_admission(8, 8, 2, 5) == 0  # of four blocks
    assert random_moves(2, 1, 2) == 0  # one block
    assert window_free_blocks(8, 1, 1, 2) == 2  # of four blocks, the inner ones
    assert heavy_hitter_free_blocks(4, 2, 1, 2).mean == 0  # one of two older tokens, in one block
    assert free_block_bounds(2, 1, 2) == (0, 0)  # one block


def test_built_in_numbers_come_out() -> None:
    number: Any = np.int64
    for chance in (
        random_free_blocks(number(40), number(30), number(4)),
        independent_free_blocks(40, np.float64(0.5), 4),
        heavy_hitter_free_blocks(40, 8, 8, 4),
        markov_free_blocks(4, np.float64(0.5), 4, 4),
    ):
        assert {type(x) for x in (chance.mean, chance.variance, chance.sd, *chance.pmf)} == {float}
        assert hash(chance) == hash(chance)
    figures: list[Any] = [
        independent_reclaim(np.float64(0.5), number(4)),
        independent_moves_per_evicted_token(0.5, 3),
        random_fragmentation(9, 4, 2),
        random_admission(9, 4, 2, 1),
        random_moves(9, 4, 2),
        clustered_reclaim(0.5, 2, 2),
        markov_reclaim(0.5, 4, 2),
        max_reclaim_efficiency(9, 2),
        *phase_averaged_curve([0, 0, 1], 3),
    ]
    assert {type(figure) for figure in figures} == {float}
    whole: list[Any] = [*dead_run_lengths([0, 0, 1]), *free_block_bounds(9, 4, 2)]
    assert {type(number) for number in [*whole, window_free_blocks(9, 1, 1, 2)]} == {int}


def test_inputs_are_left_alone() -> None:
    keep = np.array([[1, 0, 0, 1], [0, 0, 0, 1]], np.uint8)
    keep.flags.writeable = False
    assert dead_run_lengths(keep) == (0, 0, 1, 1)
    assert phase_averaged_curve(keep, 2) == (5.0, 1.5)


def test_blocks_are_as_large_as_a_pool_allows() -> None:
    assert independent_reclaim(1, pool.MAX_BLOCK_SIZE) == 1
    with pytest.raises(ValueError, match="block_size must be an integer from 1 to 65535"):
        independent_reclaim(1, pool.MAX_BLOCK_SIZE + 1)


def test_blocks_of_a_table() -> None:
    for tokens, size in itertools.product(range(20), range(1, 8)):
        for offset in range(size):
            per_block = oracle.occupancies((False,) * tokens, size, offset)
            wanted = {tokens: per_block.count(tokens) for tokens in per_block}
            assert _chance.cut(tokens, size, offset) == wanted


NO_LIST = r"must be a list of numbers, one for each row; got .*; write one for each row\.$"
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: independent_reclaim(-0.1, 16), ValueError, "q must be a number from 0 to 1"),
    (lambda: independent_reclaim(50, 16), ValueError, "q must be .* write a share"),
    (lambda: independent_efficiency(math.nan, 16), ValueError, "q must be a number from 0 to 1"),
    (lambda: independent_fragmentation("a", 16), TypeError, "q must be .* got str 'a'"),  # type: ignore[arg-type]  # text is no share
    (lambda: independent_moves_per_evicted_token(True, 16), TypeError, "q must be"),
    (lambda: independent_reclaim(0.5, 0), ValueError, "block_size must be an integer from 1"),
    (lambda: independent_reclaim(0.5, 1.5), TypeError, "block_size must be"),  # type: ignore[arg-type]  # a half slot
    (lambda: two_level_slots_per_move(0.4, 16), ValueError, r"p must be from 1/2 .* write 1 - p"),
    (lambda: two_level_slots_per_move(1.1, 16), ValueError, "p must be a number from 0 to 1"),
    (lambda: independent_free_blocks(-1, 0.5, 16), ValueError, "num_tokens must be"),
    (lambda: random_free_blocks(2**63, 1, 2), ValueError, "num_tokens must be .* 1099511627776;"),
    (lambda: independent_free_blocks(10**400, 0.5, 2), ValueError, "num_tokens must be .* 1099511"),
    (lambda: markov_free_blocks(2**63, 0.5, 2, 2), ValueError, "num_blocks must be .* 109951162"),
    (lambda: independent_free_blocks(9, 2, 16), ValueError, "q must be"),
    (lambda: independent_free_blocks(9, 0.5, 16, 16), ValueError, "offset must be .* from 0 to 15"),
    (lambda: random_free_blocks(8, 9, 2), ValueError, "num_evicted must be .* from 0 to 8; got 9"),
    (lambda: random_free_blocks(8, -1, 2), ValueError, "num_evicted must be"),
    (lambda: random_free_blocks(8, 4, 2, -1), ValueError, "offset must be"),
    (lambda: random_fragmentation(8, 9, 2), ValueError, "num_evicted must be"),
    (lambda: random_admission(8, 9, 2, 1), ValueError, "num_evicted must be"),
    (lambda: random_admission(8, 4, 2, 0), ValueError, "blocks_per_request must be"),
    (lambda: random_moves(8, 9, 2), ValueError, "num_evicted must be"),
    (lambda: window_free_blocks(8, -1, 2, 2), ValueError, "sink must be"),
    (lambda: window_free_blocks(8, 1, -2, 2), ValueError, "window must be"),
    (lambda: window_free_blocks(8, 1, 2, 2, 2), ValueError, "offset must be"),
    (lambda: heavy_hitter_free_blocks(8, -1, 2, 2), ValueError, "recent must be"),
    (lambda: heavy_hitter_free_blocks(8, 1, -2, 2), ValueError, "heavy must be"),
    (lambda: clustered_reclaim(0.5, 0.5, 2), ValueError, "cluster must be .* at least 1"),
    (lambda: clustered_reclaim(0.5, math.nan, 2), ValueError, "cluster must be"),
    (lambda: clustered_reclaim(0.5, -math.inf, 2), ValueError, "cluster must be"),
    (lambda: clustered_reclaim(0.5, 2, 2, 0.6), ValueError, r"recent must be at most 1 - q, 0\.5"),
    (lambda: clustered_reclaim(0.5, 2, 2, -0.1), ValueError, "recent must be a number from 0"),
    (lambda: clustered_reclaim(1.5, 2, 2), ValueError, "^q must be a number from 0 to 1"),
    (lambda: markov_reclaim(1.5, 2, 2), ValueError, "^q must be a number from 0 to 1"),
    (lambda: markov_reclaim(0.5, 0.5, 2), ValueError, "mean_dead_run must be .* at least 1"),
    (lambda: markov_reclaim(0.9, 8, 2), ValueError, r"at least q / \(1 - q\), 9\.0 for q = 0\.9"),
    (lambda: markov_reclaim(1, 99, 2), ValueError, "at least .* math.inf for q = 1"),
    (lambda: markov_free_blocks(-1, 0.5, 2, 2), ValueError, "num_blocks must be"),
    (lambda: markov_free_blocks(1, 1.5, 2, 2), ValueError, "^q must be a number from 0 to 1"),
    (lambda: markov_free_blocks(1, 0.9, 2, 2), ValueError, "mean_dead_run must be"),
    (lambda: shared_markov_reclaim([0.5], [], 2), ValueError, "a length for each of the 1 rows"),
    (lambda: shared_markov_reclaim([0.5, 2], [4, 4], 2), ValueError, r"qs\[1\] must be"),
    (lambda: shared_markov_reclaim([0.5], [0.1], 2), ValueError, r"mean_dead_runs\[0\] must be"),
    (lambda: shared_markov_reclaim(0.5, [4], 2), TypeError, f"^qs {NO_LIST}"),  # type: ignore[arg-type]  # a number is no list
    (lambda: shared_markov_reclaim([0.5], 4, 2), TypeError, f"^mean_dead_runs {NO_LIST}"),  # type: ignore[arg-type]  # a number is no list
    (lambda: free_block_bounds(8, 9, 2), ValueError, "num_evicted must be"),
    (lambda: max_reclaim_efficiency(-1, 2), ValueError, "num_tokens must be"),
    (lambda: dead_run_lengths([0.5]), TypeError, "keep must be True and False"),
    (lambda: dead_run_lengths(True), ValueError, "keep must have a token axis"),
    (lambda: phase_averaged_free_blocks([1, 2], 2), ValueError, "keep must be True and False"),
    (lambda: phase_averaged_free_blocks([1, 0], 0), ValueError, "block_size must be"),
    (lambda: phase_averaged_curve([1, 0], 0), ValueError, "max_block_size must be"),
]


@pytest.mark.parametrize(("call", "kind", "words"), BAD)
def test_bad_input(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        call()
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    assert "; got " in text


def all_laws() -> list[object]:
    """Return what comes of chances that are too small for a float."""
    return [
        independent_free_blocks(2000, 1e-300, 2),
        independent_free_blocks(2000, 0.6, 2, 1),
        random_free_blocks(300, 17, 500, 201),
        random_free_blocks(2000, 1052, 2, 1),
        random_fragmentation(2000, 1610, 500, 319),
        random_admission(300, 94, 2, 1),
        random_moves(2000, 186, 16, 12),
        heavy_hitter_free_blocks(2000, 943, 351, 16, 4),
        markov_free_blocks(300, 1e-20, 5.5, 500),
        markov_free_blocks(300, 1e-300, 1e5, 2),
    ]


def test_chances_too_small_for_a_float_are_0_whatever_numpy_is_told_of_them() -> None:
    with np.errstate(all="raise"):
        found = all_laws()
    assert found == all_laws()


@pytest.mark.parametrize("need", [51, 2**63, 10**400])
def test_a_request_of_more_blocks_than_there_are_is_never_admitted(need: int) -> None:
    assert random_admission(100, 100, 2, need) == 0
    assert random_admission(100, 100, 2, 50) == 1
