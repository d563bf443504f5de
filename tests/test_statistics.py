"""Summaries against exact twins, tables, SciPy's own tests, and by how often they cover."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import attrs
import numpy as np
import oracle_statistics as oracle
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from kvreclaim import BlockPool, Census, take_census
from kvreclaim.statistics import (
    Summary,
    design_effect,
    paired_difference,
    reclaim_interval,
    summarize,
    summarize_ratio,
)

FIGURES = st.floats(-1e6, 1e6, allow_subnormal=False) | st.integers(-1000, 1000)
CONFIDENCES = st.sampled_from([0.5, 0.9, 0.95, 0.99, 0.999])
EXACT: dict[str, Any] = {"rel": 1e-9, "abs": 1e-9}


def z_of_coverage(held: int, times: int, confidence: float = 0.95) -> float:
    return (held / times - confidence) / math.sqrt(confidence * (1 - confidence) / times)


def holds(summary: Summary, truth: float) -> bool:
    return summary.low <= truth <= summary.high


@given(st.lists(FIGURES, min_size=2, max_size=30), CONFIDENCES)
def test_mean_sd_and_interval_are_those_of_the_definition(
    values: list[float], confidence: float
) -> None:
    summary = summarize(values, confidence)
    mean, variance = oracle.mean(values), oracle.variance(values)
    assert summary.mean == pytest.approx(float(mean), **EXACT)
    assert summary.sd == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-6)
    assert summary.num_samples == len(values)
    if summary.method == "constant":
        assert float(max(values)) - min(values) <= 1e-12 * max(map(abs, values))
        return
    t = scipy.stats.t(len(values) - 1).ppf((1 + confidence) / 2)
    margin = t * math.sqrt(variance / len(values))
    assert summary.method == "t"
    assert summary.high - summary.mean == pytest.approx(margin, rel=1e-6, abs=1e-6)
    assert summary.mean - summary.low == pytest.approx(margin, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "summary",
    [summarize([]), summarize([0.5]), summarize([0.5, 0.5]), summarize_ratio([1], [0])],
)
def test_an_undefined_summary_equals_its_copies(summary: Summary) -> None:
    again = pickle.loads(pickle.dumps(summary))  # noqa: S301  # written on this line
    assert again == summary
    assert hash(again) == hash(summary)
    fields = ("mean", "sd", "low", "high", "confidence")
    others: list[dict[str, Any]] = [{name: 0.25} for name in fields]
    assert all(attrs.evolve(summary, **other) != summary for other in others)


@pytest.mark.parametrize(("freedom", "t"), oracle.T_975.items())
def test_the_quantile_is_that_of_printed_tables(freedom: int, t: float) -> None:
    n = freedom + 1
    values = [0.0] * (n - 1) + [1.0]  # mean 1 / n, standard error 1 / n
    summary = summarize(values)
    assert (summary.high - summary.mean) * n == pytest.approx(t, abs=0.0005)
    assert (summary.mean - summary.low) * n == pytest.approx(t, abs=0.0005)


def test_few_samples_have_no_interval() -> None:
    for samples, mean in (([], math.nan), ([3], 3.0)):
        summary = summarize(samples)
        assert summary.num_samples == len(samples)
        assert repr(summary.mean) == repr(mean)
        assert [repr(part) for part in (summary.sd, summary.low, summary.high)] == ["nan"] * 3
        assert summary.method == "none"
    assert summarize([0.3], bounds=(0, 1)).method == "none"


@pytest.mark.parametrize("values", [[0.0] * 5, [0.1 + 0.2, 0.3], [7] * 2, [-1e9] * 3])
def test_equal_values_claim_no_certainty(values: list[float]) -> None:
    summary = summarize(values)
    assert (summary.sd, summary.method) == (0.0, "constant")
    assert math.isnan(summary.low)
    assert math.isnan(summary.high)


def test_a_small_spread_is_no_rounding() -> None:
    assert summarize([1.0, 1.0 + 1e-11]).method == "t"


@pytest.mark.parametrize("size", [1e-300, 1e300])
def test_numbers_may_be_as_large_or_small_as_floats_are(size: float) -> None:
    plain, summary = summarize([-1, 1, 1.5]), summarize([-size, size, 1.5 * size])
    for name in ("mean", "sd", "low", "high"):
        assert getattr(summary, name) == pytest.approx(size * getattr(plain, name), rel=1e-9)
    assert summarize([1.7e308] * 3).mean == 1.7e308


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("n", [2, 30, 1000])
def test_within_bounds_equal_values_have_the_widest_interval_that_may_be(
    value: float, n: int
) -> None:
    summary = summarize([value] * n, 0.95, bounds=(0, 1))
    assert (summary.mean, summary.sd, summary.method) == (value, 0.0, "rule of three")
    # A second value, as far off as can be and as likely as this, stays unseen 1 time in 20.
    for end, other in ((summary.low, 0), (summary.high, 1)):
        if value != other:
            unseen = (end - value) / (other - value)
            assert (1 - unseen) ** n == pytest.approx(0.05)
        else:
            assert end == value
    if n == 1000:
        assert summary.high - summary.low == pytest.approx(3 / n, rel=0.01)


def test_integers_that_differ_are_not_constant_however_large() -> None:
    found = summarize([10**13, 10**13 + 1, 10**13 + 2])
    assert (found.mean, found.sd, found.method) == (10**13 + 1, 1.0, "t")
    assert summarize([1e13, 1e13 * (1 + 2e-16)]).method == "constant"


def test_no_samples_have_no_design_effect() -> None:
    assert math.isnan(design_effect([], []))
    assert math.isnan(design_effect([1], [2]))


def test_a_bootstrap_of_resamples_without_a_ratio_says_nothing() -> None:
    tops, bottoms = [[1, 2], [2, 5], [1, 0]], [[1, 2], [3, 4], [0, 3]]
    found = summarize_ratio(tops, bottoms, rng=np.random.default_rng(0))
    assert (found.method, found.num_samples) == ("none", 3)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_bounds_cut_off_a_t_interval_and_nothing_else() -> None:
    values = [0.0, 0.0, 0.1, 0.9]
    free, bound = summarize(values), summarize(values, bounds=(0, 0.95))
    assert free.low < 0
    assert free.high < 0.95
    assert bound == attrs.evolve(free, low=0.0)
    values = [1 - value for value in values]
    assert summarize(values, bounds=(0, 1)).high == 1.0
    assert summarize(values, bounds=(-9, 9)) == summarize(values)


def test_intervals_widen_with_confidence_and_narrow_with_samples() -> None:
    widths = [(s.high - s.low) for c in (0.5, 0.9, 0.99) for s in [summarize([1, 2, 4], c)]]
    assert widths == sorted(widths)
    assert summarize([1, 2, 4], 0.9).confidence == 0.9
    few, many = summarize([1, 2, 4]), summarize([1, 2, 4] * 5)
    assert many.high - many.low < few.high - few.low
    assert many.mean == pytest.approx(few.mean)


def test_a_t_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    times = 4000
    held = sum(holds(summarize(rng.normal(3, 2, 5)), 3) for _ in range(times))
    assert abs(z_of_coverage(held, times)) < 4


def test_a_summary_is_one_line() -> None:
    summary = Summary(
        mean=0.4741,
        sd=0.0191,
        low=0.467,
        high=0.4812,
        confidence=0.95,
        num_samples=30,
        method="t",
    )
    assert str(summary) == "0.474 +- 0.019 (sd), 95 % 0.467 to 0.481, n = 30, t"
    assert ", 99.9 % " in str(summarize([1, 2], 0.999))


ROWS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=2, max_size=20)


@given(ROWS)
def test_a_ratio_of_sums_has_the_variance_of_the_textbook(rows: list[tuple[int, int]]) -> None:
    tops, bottoms = [list(column) for column in zip(*rows, strict=True)]
    summary = summarize_ratio(tops, bottoms, binomial=False)
    assert summary.mean == sum(tops) / sum(bottoms)
    assert summary.num_samples == len(rows)
    variance = oracle.textbook_variance(tops, bottoms)
    assert summary.sd == pytest.approx(math.sqrt(variance * len(rows)), rel=1e-9, abs=1e-9)
    if variance == 0:
        assert summary.method == "constant"
        return
    t = scipy.stats.t(len(rows) - 1).ppf(0.975)
    assert summary.method == "linearised t"
    assert summary.high - summary.low == pytest.approx(2 * t * math.sqrt(variance), rel=1e-9)
    assert (summary.high + summary.low) / 2 == pytest.approx(summary.mean, rel=1e-9)


PAIRS = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(st.lists(st.tuples(PAIRS, PAIRS), min_size=2, max_size=8))
def test_a_ratio_of_products_is_linearised_in_every_sum(
    rows: list[tuple[tuple[int, int], tuple[int, int]]],
) -> None:
    tops, bottoms = ([[Fraction(x) for x in row[side]] for row in rows] for side in (0, 1))
    summary = summarize_ratio([row[0] for row in rows], [row[1] for row in rows])
    assert summary.mean == float(oracle.ratio(tops, bottoms, [Fraction(1)] * len(rows)))
    variance = oracle.variance([float(part) for part in oracle.influences(tops, bottoms)])
    assert summary.sd == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-6)
    assert summary.method == ("linearised t" if summary.sd else "constant")


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=20))
def test_with_equal_denominators_it_is_the_mean_of_ratios(tops: list[int]) -> None:
    whole = summarize_ratio(tops, [8] * len(tops), binomial=False)
    each = summarize([top / 8 for top in tops])
    assert whole.mean == pytest.approx(each.mean, abs=1e-15)
    assert whole.num_samples == each.num_samples
    assert whole.sd == pytest.approx(each.sd)
    assert (whole.low, whole.high) == pytest.approx((each.low, each.high), nan_ok=True)


def test_long_sequences_weigh_more_than_in_a_mean_of_ratios() -> None:
    """A sink of 4 and a window of half a sequence, which short ones cannot give back."""
    freed, blocks = [], []
    for length in (24, 40, 64, 128, 1024, 8192):
        keep = np.zeros(length, bool)
        keep[:4] = keep[length // 2 + 4 :] = True
        census = take_census(keep, 16)
        freed.append(census.num_freed_blocks)
        blocks.append(census.num_blocks)
    whole = summarize_ratio(freed, blocks)
    each = summarize([x / y for x, y in zip(freed, blocks, strict=True)])
    assert whole.mean == sum(freed) / sum(blocks)
    assert round(whole.mean, 3) == 0.489
    assert round(each.mean, 3) == 0.268


def test_a_linearised_variance_is_that_of_resampling() -> None:
    rng = np.random.default_rng(2)
    n, times = 200, 4000
    lengths = rng.integers(50, 150, n)
    freed = rng.binomial(lengths, np.clip(rng.normal(0.4, 0.1, n), 0, 1))
    drawn = rng.integers(0, n, (times, n))
    ratios = freed[drawn].sum(axis=1) / lengths[drawn].sum(axis=1)
    expected = summarize_ratio(freed, lengths).sd ** 2 / n * (n - 1) / n
    z = (ratios.var(ddof=1) / expected - 1) / math.sqrt(2 / (times - 1))
    assert abs(z) < 4


def test_a_bootstrap_is_made_only_where_it_is_asked_for() -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(50, 150, 60)
    freed = rng.binomial(lengths, 0.3)
    made = [summarize_ratio(freed, lengths, rng=np.random.default_rng(4)) for _ in range(2)]
    plain = summarize_ratio(freed, lengths)
    assert made[0] == made[1]
    assert (made[0].method, plain.method) == ("bootstrap", "linearised t")
    assert (made[0].mean, made[0].sd) == (plain.mean, plain.sd)
    width = plain.high - plain.low
    assert made[0].low == pytest.approx(plain.low, abs=0.15 * width)
    assert made[0].high == pytest.approx(plain.high, abs=0.15 * width)
    narrow = summarize_ratio(freed, lengths, confidence=0.5, rng=np.random.default_rng(4))
    assert made[0].low < narrow.low < narrow.high < made[0].high
    few = summarize_ratio([0] * 5, [9] * 5, rng=np.random.default_rng(4))
    assert few.method == "Clopper-Pearson"


def test_a_bootstrap_resamples_rows_of_several_columns() -> None:
    rng = np.random.default_rng(5)
    tops = rng.integers(50, 100, (40, 2))
    bottoms = tops + rng.integers(0, 30, (40, 2))
    made = summarize_ratio(tops, bottoms, rng=rng)
    plain = summarize_ratio(tops, bottoms)
    width = plain.high - plain.low
    assert made.method == "bootstrap"
    assert (made.low, made.high) == pytest.approx((plain.low, plain.high), abs=0.15 * width)


def test_a_linearised_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(6)
    times = 1500
    held = 0
    for _ in range(times):
        lengths = rng.integers(20, 200, 60)
        freed = rng.binomial(lengths, np.clip(rng.normal(0.4, 0.1, 60), 0, 1))
        held += holds(summarize_ratio(freed, lengths), 0.4)
    assert abs(z_of_coverage(held, times)) < 4


def test_rare_events_are_covered_where_a_t_interval_fails() -> None:
    """H2O's 0.00107 of 30 sequences of 48 blocks: one or two events in all."""
    rng = np.random.default_rng(7)
    times, truth = 1000, 0.00107
    exact, bare = 0, 0
    for _ in range(times):
        freed = rng.binomial(48, truth, 30)
        summary = summarize_ratio(freed, [48] * 30)
        assert summary.method in ("Clopper-Pearson", "Korn-Graubard")
        exact += holds(summary, truth)
        bare += holds(summarize_ratio(freed, [48] * 30, binomial=False), truth)
    assert z_of_coverage(exact, times) > -4
    assert abs(z_of_coverage(bare, times, 0.75)) < 4  # about 3 times in 4, not 19 in 20


def test_rare_events_in_clusters_are_not_taken_for_independent() -> None:
    """A sequence in ten frees three blocks at once."""
    rng = np.random.default_rng(8)
    times, truth = 1000, 3 * 0.1 / 48
    held = naive = rare = 0
    for _ in range(times):
        freed = 3 * (rng.random(30) < 0.1)
        total = int(freed.sum())
        if not 0 < total < 10:
            continue
        rare += 1
        summary = summarize_ratio(freed, [48] * 30)
        assert summary.method == "Korn-Graubard"
        held += holds(summary, truth)
        interval = scipy.stats.binomtest(total, 1440).proportion_ci()
        naive += bool(interval.low <= truth <= interval.high)
    assert rare > 500
    assert z_of_coverage(held, rare) > -4
    assert z_of_coverage(naive, rare) < -4


@pytest.mark.parametrize(
    ("successes", "trials"), [(0, 1), (1, 1), (0, 30), (1, 30), (15, 30), (29, 30), (30, 30)]
)
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_clopper_pearson_by_its_definition(successes: int, trials: int, confidence: float) -> None:
    census = of_blocks(successes, trials)
    summary = reclaim_interval(census, confidence)
    tail = (1 - confidence) / 2
    assert summary.mean == successes / trials
    if successes:
        low = oracle.at_least(successes, trials, Fraction(summary.low))
        assert float(low) == pytest.approx(tail, rel=1e-9)
    else:
        assert summary.low == 0.0
    if successes < trials:
        high = 1 - oracle.at_least(successes + 1, trials, Fraction(summary.high))
        assert float(high) == pytest.approx(tail, rel=1e-9)
    else:
        assert summary.high == 1.0


def of_blocks(free: int, blocks: int) -> Census:
    """A census of so many blocks of one token."""
    return take_census(np.arange(blocks) >= free, 1)


@given(st.integers(1, 300), st.floats(0, 1), CONFIDENCES)
def test_clopper_pearson_is_that_of_scipy(trials: int, share: float, confidence: float) -> None:
    successes = round(trials * share)
    summary = reclaim_interval(of_blocks(successes, trials), confidence)
    expected = scipy.stats.binomtest(successes, trials).proportion_ci(confidence)
    assert summary.low == pytest.approx(expected.low, rel=1e-6, abs=1e-12)
    assert summary.high == pytest.approx(expected.high, rel=1e-6, abs=1e-12)
    assert summary.low <= summary.mean <= summary.high
    blocks = [1.0] * successes + [0.0] * (trials - successes)
    assert summary.sd == pytest.approx(summarize(blocks).sd, nan_ok=True)
    assert (summary.num_samples, summary.confidence) == (trials, confidence)


@pytest.mark.parametrize("truth", [0.0005, 0.01, 0.3, 0.5, 0.97])
def test_clopper_pearson_covers_at_least_what_it_says(truth: float) -> None:
    """Summed over every outcome, not drawn."""
    trials = 60
    covered = sum(
        scipy.stats.binom.pmf(free, trials, truth)
        for free in range(trials + 1)
        if holds(reclaim_interval(of_blocks(free, trials)), truth)
    )
    assert covered >= 0.95


def test_no_block_of_1440_still_has_an_upper_end() -> None:
    single = reclaim_interval(of_blocks(0, 1440))
    assert (single.low, round(single.high, 4)) == (0.0, 0.0026)
    assert summarize_ratio([0] * 30, [48] * 30).high == single.high
    assert summarize_ratio([48] * 30, [48] * 30).low == pytest.approx(1 - single.high)


def test_no_blocks_have_no_interval() -> None:
    summary = reclaim_interval(Census.empty(BlockPool(16)))
    assert (summary.num_samples, summary.method) == (0, "none")
    assert math.isnan(summary.mean)


@pytest.mark.parametrize(
    ("events", "method"), [(0, "Clopper"), (9, "Clopper"), (10, "linear"), (70, "linear")]
)
def test_ten_events_are_enough_for_a_t_interval(events: int, method: str) -> None:
    freed = [events // 8] * 8
    freed[0] += events - sum(freed) - 1  # no two alike would be left for 0
    freed[1] += 1
    if events == 0:
        freed = [0] * 8
    assert sum(freed) == events
    for counts in (freed, [10 - each for each in freed]):
        assert summarize_ratio(counts, [10] * 8).method.startswith((method, "Korn"))
    assert summarize_ratio(freed, [10] * 8).method.startswith(method) or events == 9


def test_the_design_effect_divides_the_evidence() -> None:
    freed, blocks = [9, *[0] * 29], [48] * 30
    effect = design_effect(freed, blocks)
    assert effect > 8
    summary = summarize_ratio(freed, blocks)
    assert summary.method == "Korn-Graubard"
    # The ends by their definition: quantiles of beta distributions.
    successes, trials = 9 / effect, 1440 / effect
    low = scipy.stats.beta.ppf(0.025, successes, trials - successes + 1)
    high = scipy.stats.beta.ppf(0.975, successes + 1, trials - successes)
    assert (summary.low, summary.high) == pytest.approx((low, high), rel=1e-9)


def test_equal_ratios_of_counts_fall_back_on_their_counts() -> None:
    summary = summarize_ratio([15, 30, 45], [30, 60, 90])
    expected = scipy.stats.binomtest(90, 180).proportion_ci()
    assert (summary.sd, summary.method) == (0.0, "Clopper-Pearson")
    assert (summary.low, summary.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("tops", "bottoms", "binomial"),
    [
        ([1, 2, 3], [2, 4, 6], False),
        ([0.5, 1.0, 1.5], [1, 2, 3], True),
        ([0.1, 0.3, 0.7], [1.0, 3.0, 7.0], True),
        ([4, 8], [2, 4], True),
        ([0, 0], [0.5, 0.7], True),
        ([-1, -2], [2, 4], True),
        ([[1, 1], [2, 2]], [[3, 3], [6, 6]], True),
    ],
)
def test_equal_ratios_of_what_is_not_counted_have_no_interval(
    tops: list[Any], bottoms: list[Any], *, binomial: bool
) -> None:
    summary = summarize_ratio(tops, bottoms, binomial=binomial)
    assert (summary.sd, summary.method) == (0.0, "constant")
    assert math.isnan(summary.low)
    assert math.isnan(summary.high)


def test_sums_are_rounded_once() -> None:
    assert summarize_ratio([0.1] * 10, [1.0] * 10).mean == 0.1
    assert summarize_ratio([2**53, 1, 1], [2**53 + 1, 0, 1]).mean == 1.0


def test_sequences_of_nothing_are_left_out() -> None:
    plain = summarize_ratio([5, 20, 33], [10, 40, 80])
    assert summarize_ratio([5, 0, 20, 33, 0], [10, 0, 40, 80, 0]) == plain
    moved = summarize_ratio([5, 2], [10, 0])
    assert (moved.mean, moved.num_samples) == (0.7, 2)


@pytest.mark.parametrize(
    ("tops", "bottoms", "mean", "n"),
    [
        ([], [], math.nan, 0),
        ([0, 0], [0, 0], math.nan, 0),
        ([3], [0], math.nan, 1),
        ([1], [2], 0.5, 1),
    ],
)
def test_ratios_without_an_interval(
    tops: list[int], bottoms: list[int], mean: float, n: int
) -> None:
    summary = summarize_ratio(tops, bottoms)
    assert repr(summary.mean) == repr(mean)
    assert (summary.num_samples, summary.method) == (n, "none")
    assert [repr(part) for part in (summary.sd, summary.low, summary.high)] == ["nan"] * 3


@given(ROWS, st.randoms(use_true_random=False))
def test_the_order_of_sequences_does_not_matter(rows: list[tuple[int, int]], random: Any) -> None:  # noqa: ANN401  # Hypothesis's own Random
    shuffled = random.sample(rows, len(rows))
    one, other = (
        summarize_ratio([x for x, _ in some], [y for _, y in some]) for some in (rows, shuffled)
    )
    assert one.method == other.method
    assert (one.mean, one.num_samples) == (other.mean, other.num_samples)
    for first, second in ((one.sd, other.sd), (one.low, other.low), (one.high, other.high)):
        assert first == pytest.approx(second, rel=1e-9, abs=1e-12, nan_ok=True)


COUNTS = st.lists(
    st.integers(0, 30).flatmap(lambda y: st.tuples(st.integers(0, y), st.just(y))),
    min_size=2,
    max_size=20,
)


@given(COUNTS)
def test_the_design_effect_by_its_definition(rows: list[tuple[int, int]]) -> None:
    tops, bottoms = [list(column) for column in zip(*rows, strict=True)]
    effect = design_effect(tops, bottoms)
    told = [(x, y) for x, y in rows if y]
    if len(told) < 2 or sum(tops) in (0, sum(bottoms)):
        assert math.isnan(effect)
        return
    whole = Fraction(sum(tops), sum(bottoms))
    binomial = whole * (1 - whole) / sum(bottoms)
    variance = oracle.textbook_variance([x for x, _ in told], [y for _, y in told])
    assert effect == pytest.approx(float(variance / binomial), rel=1e-9, abs=1e-9)


@given(COUNTS, st.integers(2, 9))
def test_blocks_that_come_free_together_count_once(
    rows: list[tuple[int, int]], together: int
) -> None:
    tops, bottoms = [list(column) for column in zip(*rows, strict=True)]
    clustered = design_effect([together * x for x in tops], [together * y for y in bottoms])
    expected = together * design_effect(tops, bottoms)
    assert clustered == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)


def test_independent_blocks_have_a_design_effect_of_1() -> None:
    rng = np.random.default_rng(9)
    n = 4000
    effect = design_effect(rng.binomial(48, 0.3, n), [48] * n)
    assert abs(effect - 1) / math.sqrt(2 / n) < 4


def test_a_fixed_budget_has_a_small_design_effect_and_runs_a_large_one() -> None:
    rng = np.random.default_rng(10)
    n = 300
    fixed, runs = [], []
    for _ in range(n):
        keep = np.zeros(64, bool)
        keep[rng.permutation(64)[:32]] = True
        fixed.append(take_census(keep, 2).num_freed_blocks)
        runs.append(take_census(np.repeat(rng.random(8) < 0.5, 8), 2).num_freed_blocks)
    assert design_effect(fixed, [32] * n) < 0.8
    assert design_effect(runs, [32] * n) == pytest.approx(4, abs=4 * 4 * math.sqrt(2 / n))


@given(st.lists(st.tuples(FIGURES, FIGURES), min_size=2, max_size=20), CONFIDENCES)
def test_a_paired_difference_is_that_of_scipy(
    rows: list[tuple[float, float]], confidence: float
) -> None:
    a, b = ([row[side] for row in rows] for side in (0, 1))
    summary = paired_difference(a, b, confidence)
    plain = summarize([x - y for x, y in rows], confidence)
    assert (summary.mean, summary.sd) == (plain.mean, plain.sd)
    if plain.method == "constant":
        assert summary.method == "constant"
        return
    assert summary == attrs.evolve(plain, method="paired t")
    if summary.sd > 1e-6:
        test = scipy.stats.ttest_rel(np.asarray(a, float), np.asarray(b, float))
        interval = test.confidence_interval(confidence)
        assert (summary.low, summary.high) == pytest.approx(
            (interval.low, interval.high), rel=1e-6, abs=1e-6
        )


def test_pairs_tell_more_than_two_intervals_do() -> None:
    rng = np.random.default_rng(11)
    prompts = rng.normal(0.5, 0.1, 30)
    a, b = (prompts + shift + rng.normal(0, 0.01, 30) for shift in (0.02, 0.0))
    paired = paired_difference(a, b, bounds=(-1, 1))
    alone = summarize(a).high - summarize(a).low
    assert paired.high - paired.low < alone / 4
    assert paired.low > 0
    swapped = paired_difference(b, a)
    assert (swapped.mean, swapped.low) == (-paired.mean, -paired.high)


def test_equal_differences_claim_no_certainty() -> None:
    assert paired_difference([1, 2, 3], [0, 1, 2]).method == "constant"
    bound = paired_difference([0.5, 0.75], [0.25, 0.5], bounds=(-1, 1))
    assert bound.method == "rule of three"
    assert bound.low < 0
    assert bound.high > 0.25


@pytest.mark.parametrize(
    "summary",
    [
        summarize(np.array([1, 2, 3], np.int32)),
        summarize(np.ones(3, np.float32), np.float64(0.9), bounds=(np.float64(0), 3)),
        summarize_ratio(np.array([1, 2, 3]), np.array([20, 20, 21], np.uint8)),
        summarize_ratio(np.array([11, 12, 13]), np.array([20.0, 20.0, 21.0])),
        summarize_ratio([11, 12, 13], [20, 20, 20], rng=np.random.default_rng(0)),
        reclaim_interval(take_census([1, 0], 1)),
        paired_difference(np.array([1, 2]), np.array([2, 5])),
    ],
)
def test_numbers_out_are_built_in(summary: Summary) -> None:
    kinds = {name: type(value) for name, value in attrs.asdict(summary).items()}
    assert {kind for name, kind in kinds.items() if name not in ("num_samples", "method")} == {
        float
    }
    assert (kinds["num_samples"], kinds["method"]) == (int, str)
    json.dumps(attrs.asdict(summary))


def test_input_is_not_written_to() -> None:
    tops, bottoms = np.array([0.0, 1.0, 2.0]), np.array([0.0, 2.0, 3.0])
    for array in (tops, bottoms):
        array.setflags(write=False)
    summarize(tops[::-1])
    summarize_ratio(tops, bottoms)
    assert (tops.tolist(), bottoms.tolist()) == ([0, 1, 2], [0, 2, 3])


nan, inf = math.nan, math.inf
BAD: list[tuple[Callable[..., object], Sequence[Any], dict[str, Any], type[Exception], str]] = [
    (summarize, ["0.5"], {}, TypeError, "values must be finite numbers.*got str '0.5'; write"),
    (summarize, [["a"]], {}, TypeError, "values must be finite numbers.*array of str.*write numb"),
    (summarize, [[True, False]], {}, TypeError, "values must be .*; got an array of bool; write"),
    (summarize, [None], {}, TypeError, "values must be finite numbers, one for each sample; got"),
    (summarize, [0.5], {}, ValueError, r"of shape \(n,\); got shape \(\); write a flat list"),
    (summarize, [[[0.5]]], {}, ValueError, r"of shape \(n,\); got shape \(1, 1\); write a flat"),
    (summarize, [[1, nan, nan]], {}, ValueError, "2 of 3 that are nan or infinite, the first nan "),
    (summarize, [[1, 2, -inf]], {}, ValueError, "the first -inf at index 2; leave out the samples"),
    (summarize, [[1, 2], 95], {}, ValueError, "confidence must be a number between 0 and 1.*95 %"),
    (summarize, [[1, 2], 1.0], {}, ValueError, "confidence must be .*; got 1.0; write 0.95 for 95"),
    (summarize, [[1, 2], 0], {}, ValueError, "confidence must be a number between 0 and 1, nei"),
    (summarize, [[1, 2], nan], {}, ValueError, "confidence must be .*; got nan; write"),
    (summarize, [[1, 2], "95"], {}, TypeError, "confidence must be .*; got str '95'; write"),
    (summarize, [[1, 2], True], {}, TypeError, "confidence must be .*; got bool True; write"),
    (
        summarize,
        [[1, 2]],
        {"bounds": (0, 1)},
        ValueError,
        "values must lie within bounds, 0.0 to 1",
    ),
    (summarize, [[1]], {"bounds": (1, 0)}, ValueError, "bounds must be two finite numbers, the lo"),
    (summarize, [[1]], {"bounds": (0, 1, 2)}, ValueError, r"bounds must be .*; write such as \(0"),
    (summarize, [[1]], {"bounds": (0, inf)}, ValueError, "bounds must be two finite numbers"),
    (
        summarize,
        [[1]],
        {"bounds": (0, nan)},
        ValueError,
        r"bounds must be .*; write such as \(0, 1",
    ),
    (summarize, [[1]], {"bounds": "01"}, TypeError, "bounds must be two finite numbers"),
    (
        summarize_ratio,
        [[1e308] * 2] * 2,
        {},
        ValueError,
        r"numerators must be .*; got 1e\+308; wri",
    ),
    (
        paired_difference,
        [[5, 1], [1, 2]],
        {"bounds": (-1, 1)},
        ValueError,
        "a - b must lie within bounds, -1.0 to 1.0; got 4 at index 0",
    ),
    (summarize_ratio, [[1, 2], [3]], {}, ValueError, "denominators must have a sample for each of"),
    (
        summarize_ratio,
        [[1, 2], [3, -4]],
        {},
        ValueError,
        "denominators must be at least 0; got -4 at",
    ),
    (summarize_ratio, [[1, nan], [3, 4]], {}, ValueError, "numerators must be finite.*at index 1;"),
    (summarize_ratio, [[1, 2], [3, inf]], {}, ValueError, "denominators must be finite.*inf at in"),
    (summarize_ratio, [[[[1]]], [[1]]], {}, ValueError, r"of shape \(n,\), or of shape \(n, k\); "),
    (
        summarize_ratio,
        [[[], []], [1, 2]],
        {},
        ValueError,
        r"or of shape \(n, k\); got shape \(2, 0",
    ),
    (summarize_ratio, [[1], [2]], {"rng": 0}, TypeError, "rng must be a numpy.random.Generator; g"),
    (
        summarize_ratio,
        [[1], [2]],
        {"binomial": 1},
        TypeError,
        "binomial must be True or False; got",
    ),
    (summarize_ratio, [[1], [2]], {"confidence": 2}, ValueError, "confidence must be a number bet"),
    (
        design_effect,
        [[3], [2]],
        {},
        ValueError,
        "numerators must be counts among denominators.*wri",
    ),
    (design_effect, [[-1], [2]], {}, ValueError, "numerators must be counts among denominators"),
    (design_effect, [[0.5], [1]], {}, ValueError, "numerators must be counts among denominators"),
    (design_effect, [[1, 1], [1]], {}, ValueError, "denominators must have a sample for each of t"),
    (reclaim_interval, [[1, 0]], {}, TypeError, "census must be a Census; got list; write take_c"),
    (reclaim_interval, [take_census([1], 1), 1], {}, ValueError, "confidence must be a number bet"),
    (
        paired_difference,
        [[1, 2], [1]],
        {},
        ValueError,
        "b must have a sample for each of the 2 of a",
    ),
    (paired_difference, [[1], [nan]], {}, ValueError, "b must be finite numbers"),
    (paired_difference, [[inf], [1]], {}, ValueError, "a must be finite numbers"),
]


@pytest.mark.parametrize(("function", "arguments", "keywords", "error", "words"), BAD)
def test_what_is_refused(
    function: Callable[..., object],
    arguments: Sequence[Any],
    keywords: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        function(*arguments, **keywords)


def test_scipy_is_imported_by_those_who_call() -> None:
    code = (
        "import sys, kvreclaim.statistics as s; assert 'scipy' not in sys.modules; "
        "s.summarize([1, 2]); s.summarize_ratio([0, 0], [9, 9]); "
        "assert 'scipy.stats' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
