"""Figures over sequences: pooled as one census has them, and the mean of each."""

from __future__ import annotations

import math
import pickle
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import pools

from kvreclaim import BlockPool, Report, merge, report
from kvreclaim.replicates import FigureSummary, paired_differences, summarize_reports
from kvreclaim.statistics import Summary, summarize, summarize_ratio

NOT_POOLED = {
    "effective_tokens_per_block",
    "effective_rows",
    "admission_count",
    "pool_usage_before",
    "pool_usage_after",
    "held_bytes",
    "reclaimed_bytes",
}

SHARES = {
    "logical_saving",
    "physical_reclaim",
    "compacted_reclaim",
    "packed_reclaim",
    "fragmentation",
    "memory_waste",
    "reclaimed",
    "stranded",
    "unshared",
    "pinned",
}


def pooled(found: dict[str, FigureSummary], name: str) -> Summary:
    summary = found[name].pooled
    assert summary is not None
    return summary


def same(a: Summary, b: Summary) -> bool:
    """Return whether two summaries are equal, nan for nan."""
    return repr(a) == repr(b)


@st.composite
def sequences(draw: st.DrawFn) -> list[Report]:
    """Reports of one to six sequences of two heads under one pool."""
    pool = draw(pools(st.sampled_from([1, 2, 3, 8]))).replace(entry_bytes=4)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = []
    for _ in range(draw(st.integers(1, 6))):
        tokens = draw(st.integers(0, 40))
        keep = rng.random((2, tokens)) < rng.choice([0.1, 0.5, 1.0])
        keep[:, rng.integers(0, tokens + 1) :] &= rng.random() < 0.5
        found.append(report(keep, pool, axes="ht", blocks_per_request=2))
    return found


@given(sequences())
def test_pooled_figures_are_those_of_the_sum(reports: list[Report]) -> None:
    whole = Report.from_census(merge(part.census for part in reports), blocks_per_request=2)
    found = summarize_reports(reports)
    assert found.keys() == whole.figures().keys()
    assert {name for name, figure in found.items() if figure.pooled is None} == NOT_POOLED
    for name, figure in found.items():
        if figure.pooled is not None:
            assert repr(figure.pooled.mean) == repr(whole.figures()[name]), name
            assert figure.interval is figure.pooled
        else:
            assert figure.interval is figure.each


@given(sequences())
def test_each_is_the_mean_of_those_that_are_defined(reports: list[Report]) -> None:
    for name, figure in summarize_reports(reports, 0.9).items():
        values = [part.figures()[name] for part in reports]
        defined = [value for value in values if value is not None and not math.isnan(value)]
        assert figure.each.num_samples == len(defined)
        assert figure.each.confidence == 0.9
        if math.inf in defined:
            assert figure.each.mean == math.inf
            assert math.isnan(figure.each.sd)
            assert math.isnan(figure.each.low)
            assert figure.each.method == "none"
            continue
        plain = summarize(defined, 0.9)
        assert repr((figure.each.mean, figure.each.sd)) == repr((plain.mean, plain.sd))
        share = name in SHARES
        if share and plain.method == "constant":
            assert figure.each.method == "rule of three"
        if share and plain.method == "t":
            assert (figure.each.low, figure.each.high) == (max(plain.low, 0), min(plain.high, 1))
        if not share:
            assert same(figure.each, plain)


def windows(rng: np.random.Generator, num: int = 30, tokens: int = 512) -> NDArray[np.bool_]:
    """Sinks and windows whose budgets differ."""
    keep = np.zeros((num, tokens), bool)
    keep[:, :4] = True
    for row, kept in zip(keep, rng.integers(200, 300, num), strict=True):
        row[tokens - kept :] = True
    return keep


def reports_of(keep: NDArray[np.bool_], pool: BlockPool | int = 16) -> list[Report]:
    return [report(row, pool) for row in keep]


def test_intervals_are_those_of_the_counts() -> None:
    reports = reports_of(windows(np.random.default_rng(0)))
    found = summarize_reports(reports, 0.9)
    counts = [part.census for part in reports]
    assert pooled(found, "physical_reclaim") == summarize_ratio(
        [c.num_freed_blocks for c in counts], [c.num_blocks for c in counts], confidence=0.9
    )
    assert pooled(found, "reclaim_efficiency") == summarize_ratio(
        [[c.num_freed_blocks, c.num_entries] for c in counts],
        [[c.num_blocks, c.num_evicted_entries] for c in counts],
        confidence=0.9,
    )
    assert pooled(found, "fragmentation") == summarize_ratio(
        [c.num_held_blocks * 16 - c.num_live_tokens for c in counts],
        [c.num_held_blocks * 16 for c in counts],
        confidence=0.9,
    )


def test_reclaimed_blocks_are_events_and_evicted_tokens_are_none() -> None:
    rng = np.random.default_rng(1)
    keep = np.stack([rng.permutation(np.arange(128) % 2 == 0) for _ in range(10)])
    found = summarize_reports(reports_of(keep))
    assert pooled(found, "logical_saving").mean == 0.5
    assert pooled(found, "logical_saving").method == "constant"
    assert pooled(found, "physical_reclaim").method == "Clopper-Pearson"
    assert 0 < pooled(found, "physical_reclaim").high < 0.05
    # What a packed mask fills follows from its budget alone; without a compactor nothing is packed.
    assert pooled(found, "packed_reclaim").method == "constant"
    assert pooled(found, "compacted_reclaim").method == "constant"
    found = summarize_reports(reports_of(keep, BlockPool(16, compactor="none")))
    assert pooled(found, "compacted_reclaim") == pooled(found, "physical_reclaim")


def test_no_interval_of_a_share_leaves_0_to_1() -> None:
    keep = np.ones((8, 640), bool)
    keep[0, : 12 * 16] = keep[1, 5::7] = False
    found = summarize_reports(reports_of(keep))
    for name, least, most in (
        ("physical_reclaim", 0.0, 1.0),
        ("fragmentation", 0.0, 1.0),
        ("decode_steps", 0.0, math.inf),
    ):
        figure = pooled(found, name)
        assert (figure.method, figure.low) == ("linearised t", least)
        assert figure.mean < figure.high <= most
    stays = summarize_reports(reports_of(~keep))["memory_waste"].pooled
    assert stays is not None
    assert stays.high <= 1.0


def test_a_summary_prints_on_two_lines() -> None:
    figure = summarize_reports(reports_of(np.eye(2, 64, dtype=bool)))["physical_reclaim"]
    assert str(figure) == f"pooled: {figure.pooled}\neach: {figure.each}"


def test_what_hangs_on_too_few_free_blocks_has_no_t_interval() -> None:
    keep = np.ones((10, 64), bool)
    keep[0, :16] = keep[1, 16:32] = False
    keep[:, 40:44] = False
    keep[3, 44:46] = False
    found = summarize_reports(reports_of(keep))
    assert pooled(found, "physical_reclaim").method == "Clopper-Pearson"
    for name in ("reclaim_efficiency", "reclaimed", "capacity_gain"):
        summary = pooled(found, name)
        assert (summary.method, summary.num_samples) == ("none", 10)
        assert math.isnan(summary.low)
        assert math.isnan(summary.high)
        assert summary.sd > 0
    assert pooled(found, "stranded").method == "linearised t"


def test_an_infinite_figure_is_counted_and_has_no_interval() -> None:
    keep = np.stack([np.arange(64) % 2 == 0, np.arange(64) >= 32])
    each = summarize_reports(reports_of(keep))["effective_tokens_per_block"].each
    assert (each.mean, each.num_samples, each.method) == (math.inf, 2, "none")


def test_undefined_figures_are_left_out_of_the_mean_only() -> None:
    keep = np.ones((4, 64), bool)
    keep[0, :32] = keep[1, 5:30] = False
    found = summarize_reports(reports_of(keep))
    efficiency = found["reclaim_efficiency"]
    assert efficiency.each.num_samples == 2
    assert pooled(found, "reclaim_efficiency").num_samples == 4
    assert pooled(found, "reclaim_efficiency").mean == (2 / 16) / (57 / 256)


def test_moves_that_free_nothing_count_where_others_free() -> None:
    pool = BlockPool(4, compactor="pack")
    still, freeing = report([0, 1, 1, 1], pool), report([0, 1, 0, 0, 0, 1], pool)
    nothing = summarize_reports([still, still])["slots_per_move"]
    assert math.isnan(pooled({"": nothing}, "").mean)
    assert (nothing.each.num_samples, nothing.interval.method) == (0, "none")
    both = summarize_reports([still, freeing])
    assert pooled(both, "slots_per_move").mean == 4 / 5
    assert both["slots_per_move"].each.num_samples == 1


def test_undefined_summaries_equal_their_copies() -> None:
    found = summarize_reports([report([0, 0], 2)])
    again = pickle.loads(pickle.dumps(found))  # noqa: S301  # written on this line
    assert again == found
    assert hash(again["fragmentation"]) == hash(found["fragmentation"])


def test_written_out_what_is_undefined_is_none() -> None:
    keep = np.stack([np.arange(64) % 2 == 0, np.arange(64) >= 32])
    found = summarize_reports(reports_of(keep))
    written = found["effective_tokens_per_block"].to_dict()
    assert written["pooled"] is None
    assert (written["each"]["mean"], written["each"]["low"]) == (None, None)
    assert written["each"]["num_samples"] == 2
    assert found["physical_reclaim"].to_dict()["pooled"] == attrs.asdict(
        pooled(found, "physical_reclaim")
    )


def test_a_paired_difference_is_that_of_the_pools() -> None:
    rng = np.random.default_rng(2)
    a = windows(rng, num=20)
    b = a | (rng.random((20, 1)) < 0.5) & (np.arange(512) % 100 < 20)
    first, second = reports_of(a), reports_of(b)
    found = paired_differences(first, second, 0.9)
    one, other = summarize_reports(first), summarize_reports(second)
    assert set(found) == {"logical_saving", "physical_reclaim"}
    for name in found:
        difference = pooled(found, name)
        assert difference.mean == pytest.approx(pooled(one, name).mean - pooled(other, name).mean)
        values = [getattr(x, name) - getattr(y, name) for x, y in zip(first, second, strict=True)]
        assert found[name].each.mean == pytest.approx(float(np.mean(values)))
        assert found[name].each.method == "paired t"
        assert (difference.confidence, difference.num_samples) == (0.9, 20)
        assert (difference.low, difference.high) == pytest.approx(
            (found[name].each.low, found[name].each.high)
        )  # all sequences are equally long
        back = pooled(paired_differences(second, first, 0.9), name)
        assert (back.mean, back.low) == (-difference.mean, -difference.high)


def test_pairs_of_one_policy_differ_by_nothing_and_claim_nothing() -> None:
    reports = reports_of(windows(np.random.default_rng(3), num=5))
    found = paired_differences(reports, reports)["physical_reclaim"]
    assert found.pooled is not None
    assert (found.pooled.mean, found.pooled.method) == (0.0, "constant")
    assert found.each.method == "rule of three"
    assert found.each.low < 0 < found.each.high


def test_sequences_without_tokens_have_no_difference() -> None:
    reports = [report(np.zeros(n, bool), 2) for n in (0, 4, 5)]
    kept = [report(np.ones(n, bool), 2) for n in (0, 4, 5)]
    found = paired_differences(reports, kept)["physical_reclaim"]
    assert found.each.num_samples == 2
    assert found.pooled is not None
    assert found.pooled.num_samples == 2
    assert found.pooled.mean == 1.0


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            [report([1, 0, 1], 2)],
            "b must be of the same sequences as a, in the same order; got oth",
        ),
        ([report([1, 0], 2)] * 2, "b must be of the same sequences as a"),
        ([report([[1, 0]] * 2, 2, axes="ht")], "b must be of the same sequences as a"),
        ([report([1, 0], 2, offset=1)], "b must be of the same sequences as a"),
        ([], "b must be reports of sequences or seeds, at least one; got none; write such as"),
    ],
)
def test_other_sequences_are_not_paired(other: list[Report], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        paired_differences([report([1, 0], 2)], other)


@pytest.mark.parametrize(
    ("reports", "error", "words"),
    [
        ([], ValueError, "reports must be reports of sequences or seeds, at least one; got none"),
        ([1], TypeError, "reports must be reports of sequences or seeds; got int 1; write such"),
        (report([1], 1), TypeError, "reports must be reports of .*; got a Report; write such as"),
        ([report([1], 1), report([1], 2)], ValueError, "censuses must be of one pool to be added"),
        (
            [report([[1]] * n, BlockPool(1), axes="ht") for n in (1, 2)],
            ValueError,
            "censuses must have tables of one number of rows",
        ),
    ],
)
def test_other_things_are_not_summarized(reports: Any, error: type[Exception], words: str) -> None:  # noqa: ANN401  # that is the point
    with pytest.raises(error, match=words):
        summarize_reports(reports)


def test_a_confidence_is_checked() -> None:
    reports = [report([1, 0], 2)] * 2
    with pytest.raises(ValueError, match="confidence must be a number between 0 and 1"):
        summarize_reports(reports, 95)
    with pytest.raises(ValueError, match="confidence must be a number between 0 and 1"):
        paired_differences(reports, reports, 95)
