"""The study's sections on strategies, geometry, admission, sharing and runtimes: laws they obey."""

from __future__ import annotations

import csv
import itertools
import math
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks import frontier as table
from benchmarks.study import (
    admission,
    choices,
    geometry,
    rows_of_blocks,
    servers,
    sharing,
    strategies,
)
from benchmarks.study.measure import LIMIT, Section, of_requests
from benchmarks.study.results import Row, Study
from kvreclaim import (
    BlockPool,
    bounds,
    frontier_excess,
    importance,
    logical_saving,
    reclaim_frontier,
    runtimes,
    summarize_ratio,
    take_census,
)

MODULES = (strategies, geometry, admission, sharing, servers)
REPLICATIONS = 3


@cache
def section_of(module: ModuleType) -> Section:
    found: Section = module.section(REPLICATIONS, quick=True)
    return found


def rows_of(module: ModuleType) -> dict[str, Row]:
    return {row.key: row for row in section_of(module).rows}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.TITLE))
def test_a_section_makes_a_study_of_its_own(module: ModuleType) -> None:
    found = section_of(module)
    study = Study(  # which refuses keys that stand twice, and charts of rows that are not there
        rows=found.rows,
        charts=found.charts,
        sections=((found.title, found.text),),
        replications=REPLICATIONS,
        version="0",
    )
    assert found.title == module.TITLE
    assert len(study.by_key()) == len(found.rows) > 30
    for chart in found.charts:
        assert chart.title
        assert chart.caption.endswith(".")


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.TITLE))
def test_a_section_is_the_same_when_run_again(module: ModuleType) -> None:
    again = {row.key: row.cells() for row in module.section(REPLICATIONS, quick=True).rows}
    assert again == {key: row.cells() for key, row in rows_of(module).items()}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.TITLE))
def test_intervals_hold_their_means_and_shares_stay_within_0_and_1(module: ModuleType) -> None:
    for row in section_of(module).rows:
        assert math.isfinite(row.mean), row.key
        if not math.isnan(row.low):
            assert row.low <= row.mean <= row.high, row.key
        if row.metric in ("physical reclaim", "packed reclaim", "loss of importance"):
            assert 0 <= row.mean <= 1, row.key
        if row.interval == "exact":
            assert (row.n, row.sd, row.low, row.high) == (1, 0, row.mean, row.mean), row.key
            if row.closed_form is not None:
                assert row.mean == pytest.approx(row.closed_form, rel=1e-12), row.key
        else:
            assert row.n == REPLICATIONS, row.key


# The strategies


@pytest.mark.parametrize("block_size", [4, 16, 64])
@pytest.mark.parametrize("shape", [(512,), (3, 2, 256)])
def test_every_strategy_spends_its_budget_in_every_row(
    shape: tuple[int, ...], block_size: int
) -> None:
    scores = importance.lognormal(shape, rng=np.random.default_rng(0))
    for choose in choices.by_row(block_size, np.random.default_rng(1)).values():
        assert ((~choose(scores, 100)).sum(axis=-1) == 100).all()
    pool = BlockPool(block_size, shared_axes="")
    entries = 100 * math.prod(shape[:-1])
    assert (~choices.most_blocks(scores, pool, entries)).sum() == entries


def test_rows_choose_by_themselves() -> None:
    rows = importance.lognormal((4, 512), rng=np.random.default_rng(0))
    for name, choose in choices.by_row(16, np.random.default_rng(1)).items():
        if name != choices.RANDOM:
            one_by_one = np.stack([choose(row, 256) for row in rows])
            assert (choose(rows, 256) == one_by_one).all(), name


@pytest.mark.parametrize("seed", range(5))
def test_strategies_are_those_of_the_table_of_the_frontier(seed: int) -> None:
    # That table leaves unspent what does not finish a block; here cheap tokens spend it.
    scores = importance.lognormal(8192, rng=np.random.default_rng(seed))
    loose = table.finishing(scores, 4096, 0.5)
    spent = choices.finishing(scores, 4096, 16)
    assert not (spent & ~loose).any()
    assert 0 <= (loose & ~spent).sum() == 4096 - (~loose).sum() < 16
    assert (choices.blended(scores, 4096, 16) == table.blended(scores, 4096, 0.1)).all()


def test_finishing_leaves_a_short_last_block_to_its_tokens() -> None:
    # Half of 4 goes to the cheapest two; the first block needs two more, and has them.
    scores = np.array([1.0, 5, 6, 2, 9, 9, 9, 9, 3])
    assert choices.finishing(scores, 4, 4).tolist() == [False] * 4 + [True] * 5


def test_finishing_stops_at_the_first_block_that_does_not_fit() -> None:
    # 0 and 1 go; then the second block is cheapest to finish (9 < 15), and needs three of two.
    scores = np.array([0.0, 5, 5, 5, 1, 3, 3, 3, 0.5, 4, 7, 7])
    keep = choices.finishing(scores, 4, 4)
    assert np.flatnonzero(~keep).tolist() == [0, 4, 5, 8]


def test_most_blocks_frees_what_the_budget_pays_for_and_loses_least() -> None:
    scores = importance.lognormal((3, 256), rng=np.random.default_rng(0))
    pool = BlockPool(16, shared_axes="h")
    keep = choices.most_blocks(scores, pool, 3 * 128, axes="ht")
    assert take_census(keep, pool, axes="ht").num_freed_blocks == 8
    assert frontier_excess(keep, scores, pool, axes="ht") == 0


# Strategies against importance loss


@pytest.mark.parametrize("distribution", strategies.SAMPLES)
def test_no_strategy_lies_below_the_frontier(distribution: str) -> None:
    # Draw by draw, at each strategy's own number of free blocks: a mean could hide one.
    rng = np.random.default_rng(7)
    scores = strategies.SAMPLES[distribution](strategies.TOKENS, rng=rng)
    points = range(0, 257, 32)
    best = reclaim_frontier(scores, 16, strategies.EVICTED, points)
    for choose in choices.by_row(16, rng).values():
        keep = choose(scores, strategies.EVICTED)
        freed, loss = take_census(keep, 16).num_freed_blocks, scores[~keep].sum()
        for point, least in zip(best.free_blocks, best.loss, strict=True):
            assert point > freed or loss >= least * (1 - 1e-12)


@pytest.mark.parametrize("distribution", strategies.SAMPLES)
def test_the_frontier_joins_the_cheapest_tokens_to_whole_blocks(distribution: str) -> None:
    rows = rows_of(strategies)
    losses = [rows[f"strategies/{distribution}/frontier/{b}/loss"].mean for b in range(0, 257, 64)]
    assert losses == sorted(losses)
    assert all(  # convex: each further block costs more
        after - before >= before - earlier - 1e-9
        for earlier, before, after in zip(losses, losses[1:], losses[2:], strict=False)
    )
    own = f"strategies/{distribution}"
    assert losses[-1] == pytest.approx(rows[f"{own}/whole-blocks/loss"].mean, rel=1e-12)
    if rows[f"{own}/lowest-importance/reclaim"].mean == 0:
        assert losses[0] == pytest.approx(rows[f"{own}/lowest-importance/loss"].mean, rel=1e-12)
    assert rows[f"{own}/lowest-importance/excess"].mean == 0
    assert rows[f"{own}/whole-blocks/excess"].mean == 0
    gap = rows[f"{own}/frontier/gap"]
    assert 0 <= gap.mean < 1e-4
    assert (gap.n, gap.interval) == (REPLICATIONS, "none, the largest of all")
    random, aware = rows[f"{own}/random/excess"].mean, rows[f"{own}/reclaimability-aware/excess"]
    assert 0 < aware.mean < 0.01 < random


def test_a_point_of_the_chart_has_its_reclaim_as_x() -> None:
    rows = rows_of(strategies)
    for key, row in rows.items():
        if key.endswith("/loss") and "/frontier/" not in key:
            assert row.x == rows[key.replace("/loss", "/reclaim")].mean


@pytest.mark.parametrize("distribution", strategies.SAMPLES)
def test_losses_have_the_closed_forms_that_are_printed(distribution: str) -> None:
    # Of the seeds of the study, 30 draws; a heavy tail spreads far, and so does its error.
    closed = strategies._LOWEST_LOSS[distribution][0]
    losses = []
    for seed in range(30):
        scores = strategies.SAMPLES[distribution](8192, rng=np.random.default_rng(seed))
        losses.append(np.sort(scores)[:4096].sum() / scores.sum())
    assert abs(np.mean(losses) - closed) < 4 * np.std(losses, ddof=1) / math.sqrt(30)


def test_the_loss_of_whole_blocks_of_exponential_importance() -> None:
    closed = strategies._loss_law(choices.WHOLE, "exponential")[0]
    assert closed is not None
    sums = np.random.default_rng(0).gamma(16, size=1_000_000)
    below = sums[sums < np.median(sums)].sum() / sums.sum()
    assert below == pytest.approx(closed, abs=4e-4)


# Spatial correlation


def test_the_chart_opens_with_the_scale_that_meets_the_article() -> None:
    chart = section_of(geometry).charts[0]
    assert chart.choices == ("scale 48", "scale 12", "scale 192")
    rows = rows_of(geometry)
    for line, choice in zip(chart.lines, chart.choice_of, strict=True):
        if line.name == geometry.LOWEST:
            assert f"sd {choice.removeprefix('scale ')} tokens" in rows[line.keys[0]].setting


def test_reclaim_rises_with_correlation_and_the_gap_falls() -> None:
    rows = rows_of(geometry)
    for scale in geometry.SCALES:
        own = [f"geometry/scale={scale}/rho={rho}" for rho in (0.0, 0.5, 1.0)]
        reclaim = [rows[f"{key}/lowest-importance/reclaim"].mean for key in own]
        assert reclaim == sorted(reclaim)
        for key, freed in zip(own, reclaim, strict=True):
            assert rows[f"{key}/gap"].mean == 0.5 - freed
        costs = [rows[f"{key}/extra-loss"].mean for key in own]
        assert costs == sorted(costs, reverse=True)
        assert costs[0] == pytest.approx(0.22, abs=0.01)  # at rho = 0 the scores are lognormal
        assert costs[-1] > 0


def test_a_field_of_wide_bumps_loses_a_block_a_run() -> None:
    # Counted from the masks: reclaim is q less (1 - 1/B) runs / blocks but for where blocks begin.
    reclaim, predicted = [], []
    for seed in range(40):
        scores = importance.smooth_field(8192, 1.0, scale=48, rng=np.random.default_rng(seed))
        keep = choices.lowest(scores, 4096)
        runs = sum(bounds.dead_run_lengths(keep))
        predicted.append(0.5 - (15 / 16) * runs / 512)
        reclaim.append(take_census(keep, 16).num_freed_blocks / 512)
    assert np.mean(reclaim) == pytest.approx(np.mean(predicted), abs=0.002)
    assert np.mean(predicted) == pytest.approx(geometry.rice_reclaim(48), abs=0.003)
    run = math.pi * math.sqrt(2) * 48  # tokens; one half of them is evicted
    assert geometry.rice_reclaim(48) == pytest.approx(0.5 - 15 / 16 * 16 / (2 * run), rel=1e-12)


def test_every_one_of_these_masks_packed_gives_back_its_half() -> None:
    rows = rows_of(geometry)
    for rho in (0.0, 0.5, 1.0):
        assert rows[f"geometry/rho={rho}/packed"].mean == 0.5
        assert rows[f"geometry/rho={rho}/whole-blocks"].mean == 0.5


# Admission


def test_requests_are_whole_multiples_of_their_blocks() -> None:
    drawn = [admission._censuses(6554, np.random.default_rng(seed)) for seed in range(3)]
    rows = admission._by_strategy(drawn, 5, "k")
    for row in rows[:-1]:
        freed = [some[row.series].num_freed_blocks for some in drawn]
        assert row.mean == pytest.approx(np.mean([blocks // 5 for blocks in freed]))
    census = drawn[0][choices.RANDOM]
    assert admission.freed_by_compaction(census) == census.num_blocks - census.num_packed_blocks


def test_smaller_requests_and_more_eviction_never_admit_fewer() -> None:
    rows = rows_of(admission)
    for name in (*admission.STRATEGIES, admission.COMPACTED):
        own = admission._slug(name)
        sizes = [rows[f"admission/size={need}/{own}"].mean for need in (1, 8, 32)]
        assert sizes == sorted(sizes, reverse=True)
        assert rows[f"admission/size=8/{own}"].mean == rows[f"admission/{own}"].mean
    for name in admission.STRATEGIES:
        own = admission._slug(name)
        ratios = [rows[f"admission/evicted={share}/{own}"].mean for share in (0.5, 0.8, 0.95)]
        assert ratios == sorted(ratios)


def test_the_same_saving_admits_none_some_or_all() -> None:
    rows = rows_of(admission)
    assert rows["admission/random"].mean == rows["admission/lowest-importance"].mean == 0
    assert rows["admission/whole-blocks"].mean == rows["admission/random-compacted"].mean == 32
    assert 22 <= rows["admission/reclaimability-aware"].mean <= 23
    several = [rows[f"admission/sequences={number}"].mean for number in (1, 4, 16, 64)]
    assert several == sorted(several, reverse=True)
    assert several[0] == 32


def test_counts_that_are_all_alike_have_the_interval_of_their_blocks() -> None:
    freed = [183, 185, 184]
    said: dict[str, Any] = {"setting": "s", "key": "k", "section": "s", "series": "s", "x": 1.0}
    row = of_requests([15, 15, 15], freed, blocks=512, need=12, **said)
    blocks = summarize_ratio(freed, [512] * 3)
    assert row.mean == 15
    assert row.low == pytest.approx((512 * blocks.low - 11) / 12)
    assert row.high == pytest.approx(512 * blocks.high / 12)
    assert row.low < (184 - 11) / 12 < 184 / 12 < row.high
    none = of_requests([0, 0, 0], [0, 0, 0], blocks=512, need=8, **said)
    assert (none.mean, none.low) == (0, 0)
    assert 0 < none.high < 1


def test_random_eviction_first_admits_about_where_so_many_blocks_are_free_on_average() -> None:
    row = rows_of(admission)["admission/first/random"]
    assert row.mean == pytest.approx((8 / 512) ** (1 / 16), abs=0.05)
    at = admission.first_admission(np.random.default_rng(5))
    order = np.random.default_rng(5).permutation(admission.TOKENS)
    evicted = round(at * admission.TOKENS)
    assert take_census(order >= evicted, 16).num_freed_blocks == 8
    assert take_census(order >= evicted - 1, 16).num_freed_blocks == 7


# Sharing


def test_sharing_never_raises_reclaim() -> None:
    # Rows of one draw, merged two by two: a wider block is free only where its halves are.
    for draw in range(4):
        scores = sharing_scores(draw)
        for keep in (choices.lowest(scores, 256), choices.blended(scores, 256, 16)):
            freed = []
            for rows in (1, 2, 4, 8, 16):
                tables = keep.reshape(16 // rows, rows, 512)
                census = take_census(tables, BlockPool(16, shared_axes="h"), axes="bht")
                freed.append(census.num_freed_blocks / census.num_blocks)
            assert freed == sorted(freed, reverse=True)


def sharing_scores(seed: int) -> choices.Scores:
    return rows_of_blocks.correlated(16, 0.9, np.random.default_rng(seed))


def test_scores_have_the_correlation_that_is_said() -> None:
    for correlation in sharing.CORRELATIONS:
        logs = np.log(rows_of_blocks.correlated(40, correlation, np.random.default_rng(0)))
        between = np.corrcoef(logs)[np.triu_indices(40, 1)].mean()
        assert between == pytest.approx(correlation, abs=0.05)
        assert logs.std() == pytest.approx(1, abs=0.05)


def test_rows_of_equal_budgets_pack_to_their_half() -> None:
    rng = np.random.default_rng(0)
    drawn = rows_of_blocks.by_chance(8, rng) | rows_of_blocks.by_scores(8, 0.5, rng)
    for name, (census, _) in drawn.items():
        floor = census.num_blocks - census.num_floor_blocks
        assert (floor == 16) == (name != rows_of_blocks.RUNS), name
        if name != rows_of_blocks.RUNS:
            assert logical_saving(census) == 0.5


def test_reclaim_over_rows_has_its_closed_forms() -> None:
    rows = rows_of(sharing)
    for count in (1, 8, 64):
        assert rows[f"sharing/StreamingLLM/rows={count}/reclaim"].mean == 15 / 32
        assert rows[f"sharing/random/rows={count}/packed"].mean == 0.5
        assert rows[f"sharing/closed-form/rows={count}"].mean == 0.5 ** (16 * count)
        for correlation in sharing.CORRELATIONS:
            own = f"sharing/correlation={correlation}"
            assert rows[f"{own}/whole-blocks-chosen-jointly/rows={count}/reclaim"].mean == 0.5
    assert rows["sharing/random/rows=2/effective-rows"].mean == pytest.approx(2, abs=0.2)
    assert "sharing/random/rows=64/effective-rows" not in rows  # no slot is dead in all of them
    for correlation in sharing.CORRELATIONS:
        own = f"sharing/correlation={correlation}"
        assert rows[f"{own}/lowest-importance-by-row/rows=1/effective-rows"].mean == 1
        losses = [rows[f"{own}/whole-blocks-chosen-jointly/rows={n}/loss"].mean for n in (1, 8, 64)]
        alone = [rows[f"{own}/lowest-importance-by-row/rows={n}/loss"].mean for n in (1, 8, 64)]
        assert all(one > other for one, other in zip(losses, alone, strict=True))


def test_runs_by_chance_multiply() -> None:
    # Two rows of independent runs, many draws: the closed form of the study.
    rng = np.random.default_rng(0)
    freed = [
        rows_of_blocks.by_chance(2, rng)[rows_of_blocks.RUNS].census.num_freed_blocks
        for _ in range(400)
    ]
    closed = sharing._reclaim_law(rows_of_blocks.RUNS, 2, None)["closed_form"]
    assert closed == pytest.approx((0.5 * (63 / 64) ** 15) ** 2, rel=1e-12)
    scattered = sharing._reclaim_law(rows_of_blocks.RANDOM, 2, None)["closed_form"]
    one = math.prod((256 - slot) / (512 - slot) for slot in range(16))
    assert scattered == pytest.approx(one**2, rel=1e-9)
    error = np.std(freed, ddof=1) / math.sqrt(400) / 32
    assert abs(np.mean(freed) / 32 - closed) < 4 * error


def test_correlated_rows_behave_like_fewer() -> None:
    rows = rows_of(sharing)
    many = [
        rows[f"sharing/correlation={c}/lowest-importance-by-row/rows=2/effective-rows"].mean
        for c in sharing.CORRELATIONS
    ]
    assert many == sorted(many, reverse=True)
    assert 1 < many[-1] < many[0]


# Runtimes


def test_every_preset_stands_under_every_strategy() -> None:
    rows = rows_of(servers)
    for name, strategy in itertools.product(runtimes.names(), servers.STRATEGIES):
        own = f"servers/{name}/{strategy.replace(' ', '-')}"
        place, moved, packed = (
            rows[f"{own}/{kind}"] for kind in ("in-place", "compacted", "packed")
        )
        assert place.mean <= moved.mean <= packed.mean == 0.5
        pool = runtimes.preset(name)
        assert (f"{own}/copy" in rows) == (pool.compactor != "none")
        # Requests of 128 tokens want a sixteenth of the blocks, or one of each table.
        whole = 16 if pool.block_size <= servers.REQUEST else pool.num_blocks_for(2_048)
        for reclaim in (place, moved):
            requests = rows[f"{reclaim.key}/requests"]
            assert reclaim.mean * whole - 1 < requests.mean <= reclaim.mean * whole
            assert requests.low <= requests.mean <= requests.high <= whole
        if pool.compactor == "none":
            assert moved.mean == place.mean
        if pool.frees == "none":
            assert place.mean == 0
        if pool.frees == "any" and strategy == choices.BEST:
            assert place.mean == 0.5


def test_charts_of_runtimes_have_a_bar_for_each_preset() -> None:
    *by_preset, copies = section_of(servers).charts
    rows = rows_of(servers)
    for chart, metrics in zip(by_preset, (3, 2), strict=True):
        assert set(chart.choice_of) == set(chart.choices) == set(servers.STRATEGIES)
        assert len(chart.lines) == metrics * len(servers.STRATEGIES)
        for line in chart.lines:
            assert tuple(rows[key].x for key in line.keys) == runtimes.names()
            assert {rows[key].series for key in line.keys} == {line.name}
    compacting = [name for name in runtimes.names() if runtimes.preset(name).compactor != "none"]
    for line in copies.lines:
        assert [rows[key].x for key in line.keys] == compacting


def test_verdicts_say_how_real_a_rule_is() -> None:
    rows = rows_of(servers)
    assert rows["servers/vllm/frontier/in-place"].verdict == "layout shipped, rule proposed"
    for name in runtimes.names():
        about = runtimes.about(name)
        said = f"layout {about.layout}, rule {about.status}"
        assert rows[f"servers/{name}/random/packed"].verdict == said


def test_copies_have_their_closed_forms_at_a_small_size() -> None:
    # 8 tokens of which 4 stay, every choice: holes are filled, or survivors slide.
    for compactor, size, law in (("fill", 2, 4 * 4 / 8), ("pack_rows", 1, 4 - 4 / 5)):
        pool = BlockPool(size, compactor=compactor)
        moves = [
            take_census(np.isin(np.arange(8), kept), pool).num_moved_entries
            for kept in itertools.combinations(range(8), 4)
        ]
        assert np.mean(moves) == pytest.approx(law)
    assert servers._copy_law(runtimes.preset("kv_compress"))["closed_form"] == 1
    gathered = servers._copy_law(runtimes.preset("hf_dynamic_cache"))["closed_form"]
    assert gathered == pytest.approx(2 * (1 - 1 / 1025))
    assert servers._copy_law(runtimes.preset("tensorrt_llm")) == {}


def test_a_copy_that_is_seldom_above_0_has_no_interval() -> None:
    rows = {row["key"]: row for row in kept_rows()}
    for strategy in servers.STRATEGIES:
        row = rows[f"servers/tensorrt_llm/{strategy.replace(' ', '-')}/copy"]
        assert (row["interval"], row["low"], row["high"]) == ("none, too few above 0", "", "")


# The table that is kept, of 30 replications


def kept_rows() -> list[dict[str, str]]:
    titles = {module.TITLE for module in MODULES}
    path = Path(__file__).parents[1] / "docs" / "study" / "results_summary.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["section"] in titles]


def test_what_was_measured_agrees_with_its_closed_form() -> None:
    counted = 0
    for row in kept_rows():
        if not row["closed_form"] or row["interval"] == "exact" or row["law"].startswith(LIMIT):
            continue
        counted += 1
        away = abs(float(row["mean"]) - float(row["closed_form"]))
        error = float(row["sd"]) / math.sqrt(int(row["n"]))
        rare = float(row["low"]) <= float(row["closed_form"]) <= float(row["high"])
        assert away <= 4 * error or rare, row["key"]
    assert counted > 70
