"""Every number of the public functions against its slow twin, with ``==``."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Literal, TypeAlias, get_args

import attrs
import numpy as np
import oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import Case, cases, pools

import kvreclaim
from kvreclaim import (
    BlockPool,
    Census,
    admission_count,
    admit,
    block_size_from_bytes,
    block_usage,
    blocks_for_moves,
    capacity_gain,
    compacted_reclaim,
    compaction_cost,
    effective_rows,
    effective_tokens_per_block,
    entry_bytes_for,
    entry_bytes_mla,
    fragmentation,
    logical_saving,
    memory_waste,
    moved_tokens_per_block,
    packed_reclaim,
    physical_reclaim,
    pool_usage,
    reclaim_curve,
    reclaim_efficiency,
    report,
    savings_breakdown,
    slots_per_move,
    step_saving,
    take_census,
)

OF_MASKS: list[Callable[..., float]] = [
    logical_saving,
    physical_reclaim,
    reclaim_efficiency,
    fragmentation,
    packed_reclaim,
    compacted_reclaim,
    moved_tokens_per_block,
    slots_per_move,
]
OF_CENSUSES: list[Callable[[Census], float]] = [
    memory_waste,
    capacity_gain,
    effective_tokens_per_block,
    effective_rows,
]


def census_of(case: Case) -> Census:
    return take_census(case.keep, case.pool, **case.said)


def twin_of(case: Case) -> oracle.Census:
    said = {name: np.asarray(value).tolist() for name, value in case.said.items()}
    return oracle.census(case.keep.tolist(), case.pool, **said, shape=case.keep.shape)


def same(got: float, expected: Fraction | float | None) -> bool:
    """Whether a built-in float is the exact quotient, rounded once; nan for undefined."""
    if type(got) is not float:
        return False
    return math.isnan(got) if expected is None else got == float(expected)


# --- Metrics ---


@given(cases())
def test_every_metric_is_the_exact_quotient(case: Case) -> None:
    census, twin = census_of(case), twin_of(case)
    for metric in (*OF_MASKS, *OF_CENSUSES):
        assert same(metric(census), getattr(oracle, metric.__name__)(twin)), metric.__name__


@given(cases())
def test_a_mask_and_its_census_have_the_same_metrics(case: Case) -> None:
    census = census_of(case)
    for metric in OF_MASKS:
        of_mask = metric(case.keep, case.pool, **case.said)
        assert type(of_mask) is float, metric.__name__
        assert str(of_mask) == str(metric(census)) == str(metric(census, case.pool))


@pytest.mark.parametrize("metric", OF_MASKS)
def test_pools_that_a_metric_takes(metric: Callable[..., float]) -> None:
    keep = [1, 1, 0, 1, 0, 1, 0, 0]
    census = take_census(keep, 4)
    value = metric(census)
    assert metric(census, 4) == metric(census, BlockPool(4)) == metric(keep, 4) == value
    assert metric(keep, pool=np.int8(4)) == value
    for other in (8, BlockPool(4, frees="back"), BlockPool(4, entry_bytes=2)):
        with pytest.raises(ValueError, match="pool must be the one that the census was taken"):
            metric(census, other)
    with pytest.raises(TypeError, match="pool must be given with a keep-mask"):
        metric(keep)
    for wrong in (None, report(census)):  # no mask, whatever the pool
        with pytest.raises(
            TypeError, match=f"keep must be an array .*; got {type(wrong).__name__}"
        ):
            metric(wrong)


@pytest.mark.parametrize("metric", OF_MASKS)
@pytest.mark.parametrize(
    "said", [{"axes": "t"}, {"lengths": 8}, {"offset": 1}, {"offset": [0]}, {"lengths": None}]
)
def test_axes_lengths_and_offset_go_with_a_mask(
    metric: Callable[..., float], said: dict[str, Any]
) -> None:
    keep = [1, 1, 0, 1, 0, 1, 0, 0]
    census = take_census(keep, 4)
    if said == {"lengths": None}:
        assert metric(census, lengths=None, axes=None, offset=0) == metric(census)
        return
    with pytest.raises(ValueError, match="must go with a keep-mask"):
        metric(census, **said)


def test_every_metric_of_one_mask_by_hand() -> None:
    keep = [1, 1, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]  # blocks of 3, 1, 0 and, half written, 0 slots
    assert logical_saving(keep, 4) == 9 / 13
    assert physical_reclaim(keep, 4) == 2 / 4
    assert reclaim_efficiency(keep, 4) == (2 * 13) / (4 * 9)
    assert fragmentation(keep, 4) == 4 / 8
    assert packed_reclaim(keep, 4) == compacted_reclaim(keep, 4) == 3 / 4
    assert moved_tokens_per_block(keep, 4) == 1
    assert slots_per_move(keep, 4) == 4
    census = take_census(keep, 4)
    assert memory_waste(census) == 4 / 8
    assert capacity_gain(census) == 4 / 2
    assert effective_tokens_per_block(census) == math.log(1 / 2) / math.log(9 / 13)
    assert effective_rows(census) == 1
    open_tail = BlockPool(4, open_tail=True, compactor="pack")
    assert physical_reclaim(keep, open_tail) == 1 / 4
    assert compacted_reclaim(keep, open_tail) == 3 / 4
    assert moved_tokens_per_block(keep, open_tail) == 2 / 2
    assert slots_per_move(keep, open_tail) == 4


def test_metrics_that_differ_between_slots_and_entries() -> None:
    keep = [[1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]]
    census = take_census(keep, 2, axes="ht")
    assert logical_saving(census) == 9 / 12
    assert physical_reclaim(census) == 1 / 3
    assert reclaim_efficiency(census) == 12 / (3 * 9)
    assert fragmentation(census) == 1 / 4
    assert memory_waste(census) == 5 / 8
    assert packed_reclaim(census) == 2 / 3
    assert compacted_reclaim(census) == 1 / 3
    assert math.isnan(effective_tokens_per_block(census))
    assert effective_rows(census) == math.log(3 / 6) / math.log(9 / 12)


@pytest.mark.parametrize("pool", [BlockPool(4), BlockPool(4, frees="back", open_tail=True)])
@pytest.mark.parametrize("keep", [[], np.zeros((0, 5), bool), np.zeros((3, 0), bool)])
def test_nothing_is_undefined(keep: Any, pool: BlockPool) -> None:  # noqa: ANN401  # any mask
    axes = "bt" if np.ndim(keep) == 2 else "t"
    for census in (take_census(keep, pool, axes=axes), Census.empty(pool)):
        for metric in (*OF_MASKS, *OF_CENSUSES):
            assert math.isnan(metric(census)), metric.__name__
        assert math.isnan(compaction_cost(census).decode_steps)
        assert math.isnan(savings_breakdown(census).reclaimed)
        assert math.isnan(savings_breakdown(census).stranded)
        assert math.isnan(savings_breakdown(census).unshared)
        assert admission_count(census, blocks_per_request=1) == 0


@pytest.mark.parametrize(
    ("keep", "undefined"),
    [
        ([1, 1, 1, 1], {"reclaim_efficiency", "moved_tokens_per_block", "slots_per_move"}),
        (
            [0, 0, 0, 0],
            {"fragmentation", "memory_waste", "capacity_gain"}
            | {"moved_tokens_per_block", "slots_per_move"},
        ),
        ([1, 0, 0, 0], {"moved_tokens_per_block", "slots_per_move"}),
        ([1, 0, 0, 1], set()),
    ],
)
def test_which_metrics_are_undefined(keep: list[int], undefined: set[str]) -> None:
    census = take_census(keep, 2)
    if sum(keep) in (0, 4):
        undefined = undefined | {"effective_tokens_per_block", "effective_rows"}
    values = {metric.__name__: metric(census) for metric in (*OF_MASKS, *OF_CENSUSES)}
    assert {name for name, value in values.items() if math.isnan(value)} == undefined


def test_moves_that_free_nothing_have_no_slots_per_move() -> None:
    pool = BlockPool(4, compactor="pack")
    still, freeing = take_census([0, 1, 1, 1], pool), take_census([0, 1, 0, 0, 0, 1], pool)
    assert (still.num_moved_entries, still.num_compactable_blocks) == (3, 0)
    assert math.isnan(slots_per_move(still))
    assert (freeing.num_moved_entries, freeing.num_compactable_blocks) == (2, 1)
    assert slots_per_move(freeing) == 2
    assert slots_per_move(still + freeing) == 4 / 5


@pytest.mark.parametrize(
    "record",
    [
        pool_usage(take_census([], BlockPool(2, total_blocks=0))),
        step_saving([0, 0], [0, 0], 2),
        step_saving([1, 0], [1, 0], 2),
        compaction_cost(take_census([0, 0], 2)),
    ],
)
def test_undefined_figures_equal_their_copies(record: Any) -> None:  # noqa: ANN401  # any record
    again = pickle.loads(pickle.dumps(record))  # noqa: S301  # written on this line
    assert again == record
    assert hash(again) == hash(record)
    for field in attrs.fields(type(record)):
        assert attrs.evolve(record, **{field.name: 0.25}) != record, field.name


def test_infinite_where_nothing_is_freed() -> None:
    assert effective_tokens_per_block(take_census([1, 0, 1, 0], 2)) == math.inf
    assert effective_rows(take_census([[1, 0], [0, 1]], 2, axes="ht")) == math.inf


def test_efficiency_is_not_clipped() -> None:
    keep = np.ones((10, 17), bool)
    keep[:, 16] = False
    assert reclaim_efficiency(keep, 16, axes="bt") == 8.5


def test_large_counts_are_divided_exactly() -> None:
    part = take_census([1, 0, 0], BlockPool(1, shared_axes=""))
    fields = {
        name: value * 10**18 if isinstance(value, int) else [n * 10**18 for n in value]
        for name, value in part.to_dict().items()
        if name not in ("pool", "rows_per_table")
    }
    whole = Census.from_dict(part.to_dict() | fields) + part
    assert logical_saving(whole) == float(Fraction(2, 3))
    assert reclaim_efficiency(whole) == 1
    assert whole.num_entries == 3 * 10**18 + 3


# --- Where the savings went ---


@given(cases())
def test_the_breakdown_sums_to_what_was_evicted(case: Case) -> None:
    census = census_of(case)
    breakdown = savings_breakdown(census)
    expected = oracle.savings_breakdown(twin_of(case))
    for name in ("num_entries", "num_reclaimed", "num_stranded", "num_unshared"):
        assert type(getattr(breakdown, name)) is int
        assert getattr(breakdown, name) == expected[name], name
    for name in ("reclaimed", "stranded", "unshared"):
        assert same(getattr(breakdown, name), expected[name]), name
    assert (
        breakdown.num_reclaimed + breakdown.num_stranded + breakdown.num_unshared
        == census.num_evicted_entries
    )
    assert pickle.loads(pickle.dumps(breakdown)) == breakdown  # noqa: S301  # written on this line


@given(cases())
def test_held_memory_is_live_stranded_unshared_or_slack(case: Case) -> None:
    census = census_of(case)
    lost = savings_breakdown(census)
    rows = census.rows_per_table
    room = census.num_held_blocks * census.pool.block_size * rows
    parts = lost.num_stranded + lost.num_unshared + census.num_slack_slots * rows
    assert room == census.num_live_entries + parts
    assert same(memory_waste(census), Fraction(parts, room) if room else None)


# --- How full a pool is, and how many requests fit ---


@st.composite
def sized_cases(draw: st.DrawFn, least: int = 0) -> Case:
    """Cases of pools with a size, at least so many usable blocks larger than the masks need."""
    case = draw(cases())
    usable = max(0, census_of(case).num_blocks + draw(st.integers(least, 6)))
    reserved = draw(st.integers(0, 3))
    pool = case.pool.replace(
        total_blocks=usable + reserved,
        reserved_blocks=reserved,
        watermark_blocks=draw(st.integers(0, usable)),
    )
    return case._replace(pool=pool)


@given(sized_cases())
def test_pool_usage(case: Case) -> None:
    census = census_of(case)
    usage = pool_usage(census)
    expected = oracle.pool_usage(twin_of(case), case.pool)
    assert same(usage.before, expected["before"])
    assert same(usage.after, expected["after"])


def test_pool_usage_by_hand() -> None:
    pool = BlockPool(2, total_blocks=9, reserved_blocks=1)
    usage = pool_usage(take_census([0, 0, 1, 0, 0, 0, 1], pool))
    assert (usage.before, usage.after) == (4 / 8, 2 / 8)
    nothing = pool_usage(take_census([], BlockPool(2, total_blocks=1, reserved_blocks=1)))
    assert math.isnan(nothing.before)
    assert math.isnan(nothing.after)


@given(sized_cases(least=-6), st.integers(1, 5))
def test_admission_count_of_a_sized_pool(case: Case, need: int) -> None:
    census, twin = census_of(case), twin_of(case)
    if (case.pool.num_usable_blocks or 0) < twin["num_blocks"]:
        with pytest.raises(ValueError, match="never fitted"):
            oracle.admission_count(twin, case.pool, need)
        with pytest.raises(ValueError, match="total_blocks must be at least"):
            admission_count(census, blocks_per_request=need)
        with pytest.raises(ValueError, match="total_blocks must be at least"):
            pool_usage(census)
        return
    expected = oracle.admission_count(twin, case.pool, need)
    of_mask = admission_count(case.keep, case.pool, blocks_per_request=need, **case.said)
    assert type(of_mask) is int
    assert of_mask == admission_count(census, blocks_per_request=need) == expected


@given(cases(), st.integers(1, 5), st.integers(0, 4), st.integers(0, 3))
def test_admission_count_of_a_full_pool(
    case: Case, need: int, watermark: int, reserved: int
) -> None:
    pool = case.pool.replace(watermark_blocks=watermark, reserved_blocks=reserved)
    count = admission_count(case.keep, pool, blocks_per_request=need, **case.said)
    assert type(count) is int
    assert count == oracle.admission_count(twin_of(case), pool, need)
    census = take_census(case.keep, pool, **case.said)
    demands = [need] * (census.num_freed_blocks + 1)
    admitted = admit(census.num_freed_blocks, demands, watermark_blocks=watermark)
    assert count == len(admitted)


def test_a_watermark_above_what_is_free_admits_nothing() -> None:
    assert admission_count([0] * 8, BlockPool(2, watermark_blocks=9), blocks_per_request=1) == 0
    assert admission_count([0] * 8, BlockPool(2, watermark_blocks=4), blocks_per_request=1) == 0
    assert admission_count([0] * 8, BlockPool(2, watermark_blocks=3), blocks_per_request=1) == 1
    assert admission_count([0] * 8, BlockPool(2), blocks_per_request=5) == 0


def test_admission_count_refuses_what_a_metric_refuses() -> None:
    census = take_census([1, 0, 0, 0], 2)
    with pytest.raises(ValueError, match="must go with a keep-mask"):
        admission_count(census, blocks_per_request=1, axes="t")
    with pytest.raises(ValueError, match="pool must be the one"):
        admission_count(census, 4, blocks_per_request=1)
    with pytest.raises(TypeError, match="pool must be given"):
        admission_count([1, 0], blocks_per_request=1)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_block_usage(usable: int, reserved: int, free: int) -> None:
    pool = BlockPool(16, total_blocks=usable + reserved, reserved_blocks=reserved)
    if free > usable:
        with pytest.raises(ValueError, match="num_free_blocks must be at most"):
            block_usage(pool, free)
    else:
        expected = Fraction(usable - free, usable) if usable else None
        assert same(block_usage(pool, free), expected)


def test_block_usage_is_pool_usage_of_the_same_moment() -> None:
    pool = BlockPool(2, total_blocks=7, reserved_blocks=1)
    census = take_census([1, 0, 0, 0, 0, 0, 1], pool)
    usage = pool_usage(census)
    assert block_usage(pool, 6 - census.num_blocks) == usage.before
    assert block_usage(pool, 6 - census.num_held_blocks) == usage.after


Order: TypeAlias = Literal["fifo", "skip", "smallest"]
ORDERS: tuple[Order, ...] = get_args(Order)


@example(free=5, demands=[6, 5], watermark=1, order="skip", exempt_first=True)
@example(free=10, demands=[10], watermark=1, order="fifo", exempt_first=True)
@given(
    free=st.integers(0, 25),
    demands=st.lists(st.integers(1, 9), max_size=8),
    watermark=st.integers(0, 6),
    order=st.sampled_from(ORDERS),
    exempt_first=st.booleans(),
)
def test_admit(
    free: int, demands: list[int], watermark: int, order: Order, exempt_first: bool
) -> None:
    got = admit(free, demands, watermark_blocks=watermark, order=order, exempt_first=exempt_first)
    assert got == oracle.admit(free, demands, watermark, order, exempt_first)
    assert {type(index) for index in got} <= {int}
    most = max(
        (
            bits.bit_count()
            for bits in range(1 << len(demands))
            if sum(n for i, n in enumerate(demands) if bits >> i & 1) + watermark <= free
        ),
        default=0,
    )
    assert len(admit(free, demands, watermark_blocks=watermark, order="smallest")) == most


# --- Compaction ---


@given(cases(pools(frees_of=("any",))), st.lists(st.integers(0, 200), max_size=4))
def test_the_curve_and_what_a_budget_frees(case: Case, budgets: list[int]) -> None:
    case = case._replace(pool=case.pool.replace(compactor="evacuate"))
    census, twin = census_of(case), twin_of(case)
    curve = reclaim_curve(census)
    assert list(curve) == oracle.reclaim_curve(twin)
    assert type(curve) is tuple
    assert {type(moves) for moves in curve} <= {int}
    assert len(curve) == census.num_compactable_blocks
    assert (curve or (0,))[-1] * census.rows_per_table == census.num_moved_entries
    steps = np.diff([0, *curve])
    assert (np.diff(steps) >= 0).all()
    for budget in [0, *budgets, *(moves + more for moves in curve for more in (-1, 0, 1))]:
        if budget >= 0:
            blocks = blocks_for_moves(census, budget)
            assert type(blocks) is int
            assert blocks == oracle.blocks_for_moves(twin, budget)
            assert blocks == sum(moves <= budget for moves in curve)


@given(
    keep=st.lists(st.lists(st.booleans(), max_size=8), min_size=1, max_size=2),
    block_size=st.integers(1, 3),
    open_tail=st.booleans(),
)
def test_no_sequence_of_moves_is_cheaper_than_the_curve(
    keep: list[list[bool]], block_size: int, open_tail: bool
) -> None:
    pool = BlockPool(block_size, open_tail=open_tail)
    curve = [0]
    cheapest: list[list[int]] = []
    for row in keep:
        held = []
        for start in range(0, len(row), block_size):
            block = row[start : start + block_size]
            if any(block) or (open_tail and len(block) < block_size):
                held.append(sum(block))
        moves = [oracle.fewest_moves_to_free(held, block_size, n) for n in range(len(held) + 1)]
        cheapest.append([n for n in moves if n is not None])
    best = cheapest[0]
    for other in cheapest[1:]:
        best = [
            min(best[i] + other[n - i] for i in range(len(best)) if 0 <= n - i < len(other))
            for n in range(len(best) + len(other) - 1)
        ]
    curve += reclaim_curve(sum(take_census(row, pool) for row in keep))  # type: ignore[arg-type]
    assert curve == best


@pytest.mark.parametrize(
    "pool", [BlockPool(2, compactor="pack"), BlockPool(2, frees="back"), BlockPool(2, frees="none")]
)
def test_only_evacuate_has_a_curve(pool: BlockPool) -> None:
    census = take_census([1, 0, 0, 1], pool)
    for function in (reclaim_curve, lambda census: blocks_for_moves(census, 1)):
        with pytest.raises(ValueError, match="compactor is 'evacuate'"):
            function(census)


@given(cases(), st.none() | st.integers(1, 4096), st.none() | st.floats(1e-3, 1e15))
def test_compaction_cost(case: Case, entry_bytes: int | None, rate: float | None) -> None:
    case = case._replace(pool=case.pool.replace(entry_bytes=entry_bytes))
    census = census_of(case)
    if rate is not None and entry_bytes is None:
        with pytest.raises(ValueError, match="entry_bytes"):
            compaction_cost(census, rate)
        return
    cost = compaction_cost(census, rate)
    moved = twin_of(case)["num_moved_entries"]
    assert type(cost.num_moved_entries) is int
    assert cost.num_moved_entries == moved
    assert same(cost.decode_steps, oracle.decode_steps(twin_of(case)))
    if entry_bytes is None:
        assert cost.bytes_read is cost.bytes_written is None
    else:
        assert type(cost.bytes_read) is int
        assert cost.bytes_read == cost.bytes_written == moved * entry_bytes
    if rate is None:
        assert cost.seconds is None
    else:
        assert entry_bytes is not None
        assert type(cost.seconds) is float
        assert cost.seconds == 2 * moved * entry_bytes / rate


@pytest.mark.parametrize("rate", [10**12, np.float32(1e12), np.int64(10**12)])
def test_bandwidths_of_any_kind_of_number(rate: Any) -> None:  # noqa: ANN401
    census = take_census([1, 0, 0, 1], BlockPool(2, entry_bytes=512))
    seconds = compaction_cost(census, rate).seconds
    assert type(seconds) is float
    assert seconds == 1024 / float(rate)


@given(cases(), st.sampled_from(["pack_rows", "evacuate_rows"]))
def test_rows_are_compacted_for_at_most_two_decode_steps(case: Case, compactor: str) -> None:
    pool = case.pool.replace(frees="any", compactor=compactor)
    steps = compaction_cost(take_census(case.keep, pool, **case.said)).decode_steps
    assert math.isnan(steps) or steps <= 2


@given(cases())
def test_tables_of_one_row_are_compacted_for_at_most_two_decode_steps(case: Case) -> None:
    pool = case.pool.replace(shared_axes="")
    steps = compaction_cost(take_census(case.keep, pool)).decode_steps
    assert math.isnan(steps) or steps <= 2


def test_slots_of_shared_tables_can_cost_more() -> None:
    keep = [[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert (
        compaction_cost(take_census(keep, BlockPool(4, compactor="pack"), axes="ht")).decode_steps
        == 6
    )


# --- Pools ---

WITH_OTHERS = {
    "block_size": 24,
    "shared_axes": "h",
    "frees": "back",
    "open_tail": True,
    "compactor": "pack",
    "total_blocks": 100,
    "reserved_blocks": 1,
    "watermark_blocks": 2,
    "entry_bytes": 512,
}


def test_defaults_of_a_pool() -> None:
    assert attrs.asdict(BlockPool(16)) == {
        "block_size": 16,
        "shared_axes": "hl",
        "frees": "any",
        "open_tail": False,
        "compactor": "evacuate",
        "total_blocks": None,
        "reserved_blocks": 0,
        "watermark_blocks": 0,
        "entry_bytes": None,
    }
    assert attrs.asdict(BlockPool(**WITH_OTHERS)) == WITH_OTHERS


@pytest.mark.parametrize(
    ("frees", "compactor"),
    [("any", "evacuate"), ("back", "fill"), ("front", "none"), ("none", "none")],
)
def test_the_compactor_follows_what_is_freed(frees: str, compactor: str) -> None:
    assert BlockPool(16, frees=frees).compactor == compactor
    assert BlockPool(16).replace(frees=frees).compactor == compactor
    assert BlockPool(16, frees="back").replace(frees=frees).compactor == compactor


@given(pools(), pools())
def test_replace_builds_anew(a: BlockPool, b: BlockPool) -> None:
    assert a.replace() == a
    fields = attrs.asdict(b)
    assert a.replace(**fields) == b
    assert a.replace(block_size=b.block_size).compactor == a.compactor
    changed = a.replace(watermark_blocks=7, shared_axes="lh")
    assert (changed.watermark_blocks, changed.shared_axes) == (7, "hl")
    assert hash(a.replace()) == hash(a)


def test_replace_keeps_a_compactor_that_was_chosen() -> None:
    packed = BlockPool(16, compactor="pack")
    assert packed.replace(frees="back").compactor == "pack"
    with pytest.raises(ValueError, match="compactor must be"):
        packed.replace(frees="front")
    with pytest.raises(ValueError, match="compactor must be"):
        BlockPool(16).replace(frees="back", compactor="evacuate")
    with pytest.raises(TypeError, match="got blocks, size"):
        packed.replace(size=3, blocks=4)


@pytest.mark.parametrize("frees", ["any", "back", "front", "none"])
@pytest.mark.parametrize("compactor", oracle.LEGAL_COMPACTORS["any"])
def test_which_compactors_a_freeing_rule_allows(frees: str, compactor: str) -> None:
    if compactor in oracle.LEGAL_COMPACTORS[frees]:
        assert BlockPool(16, frees=frees, compactor=compactor).compactor == compactor
    else:
        with pytest.raises(ValueError, match=f"where frees={frees!r}"):
            BlockPool(16, frees=frees, compactor=compactor)


def test_a_pool_is_a_value() -> None:
    pool = BlockPool(16, shared_axes="lh")
    assert pool == BlockPool(16, shared_axes="hl") == pickle.loads(pickle.dumps(pool))  # noqa: S301  # written here
    assert hash(pool) == hash(BlockPool(16))
    with pytest.raises(AttributeError):
        pool.block_size = 8  # type: ignore[misc]


@given(st.integers(1, 65_535), st.integers(0, 10**20))
def test_num_blocks_for(block_size: int, tokens: int) -> None:
    blocks = BlockPool(block_size).num_blocks_for(tokens)
    assert type(blocks) is int
    assert (blocks - 1) * block_size < tokens <= blocks * block_size or tokens == blocks == 0


def test_usable_blocks() -> None:
    assert BlockPool(16).num_usable_blocks is None
    assert BlockPool(16, reserved_blocks=3).num_usable_blocks is None
    assert BlockPool(16, total_blocks=9, reserved_blocks=2).num_usable_blocks == 7
    assert BlockPool(16, total_blocks=2, reserved_blocks=2).num_usable_blocks == 0


@pytest.mark.parametrize(
    ("fields", "legal"),
    [
        ({"block_size": 1}, True),
        ({"block_size": 65_535}, True),
        ({"block_size": 0}, False),
        ({"block_size": 65_536}, False),
        ({"total_blocks": 5, "reserved_blocks": 5}, True),
        ({"total_blocks": 5, "reserved_blocks": 6}, False),
        ({"total_blocks": 5, "reserved_blocks": 1, "watermark_blocks": 4}, True),
        ({"total_blocks": 5, "reserved_blocks": 1, "watermark_blocks": 5}, False),
        ({"reserved_blocks": 5, "watermark_blocks": 50}, True),
        ({"total_blocks": 0}, True),
        ({"entry_bytes": 1}, True),
        ({"entry_bytes": 0}, False),
        ({"shared_axes": ""}, True),
        ({"shared_axes": "abyz"}, True),
        ({"shared_axes": "th"}, False),
        ({"shared_axes": "hh"}, False),
    ],
)
def test_bounds_of_a_pool(fields: dict[str, Any], legal: bool) -> None:
    arguments = {"block_size": 16} | fields
    if legal:
        pool = BlockPool(**arguments)
        assert all(getattr(pool, name) == value for name, value in fields.items())
    else:
        with pytest.raises(ValueError, match=f"^{list(fields)[-1]} must"):
            BlockPool(**arguments)


# --- Bytes ---


def test_bytes_of_an_entry() -> None:
    assert entry_bytes_for(128) == 2 * 128 * 2
    assert entry_bytes_for(128, 1) == 256
    assert entry_bytes_for(64, 4, v_head_dim=128) == (64 + 128) * 4
    assert entry_bytes_for(192, v_head_dim=128) == 640
    assert entry_bytes_mla(512, 64) == 1152
    assert entry_bytes_mla(512, 0, 1) == 512


def test_slots_of_a_page() -> None:
    assert block_size_from_bytes(2 * 1024 * 1024, 8, 128) == 1024
    assert block_size_from_bytes(65_536, 8, 128, 1) == 64
    assert block_size_from_bytes(4095, 8, 128) == 1
    assert block_size_from_bytes(2048, 8, 128) == 1
    with pytest.raises(ValueError, match="at least one token of 2048 bytes; got 2047"):
        block_size_from_bytes(2047, 8, 128)


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64])
def test_numpy_integers_come_out_as_built_in_ones(kind: Any) -> None:  # noqa: ANN401
    pool = BlockPool(kind(4), total_blocks=kind(20), reserved_blocks=kind(1))
    census = take_census([0] * 9 + [1], pool)
    for number, expected in (
        (pool.block_size, 4),
        (pool.num_usable_blocks, 19),
        (pool.num_blocks_for(kind(9)), 3),
        (admission_count(census, blocks_per_request=kind(3)), 6),
        (blocks_for_moves(census, kind(0)), 0),
        (admit(kind(9), [kind(4), kind(5)])[1], 1),
        (entry_bytes_for(kind(8)), 32),
        (entry_bytes_mla(kind(8), kind(4)), 24),
        (block_size_from_bytes(kind(96), kind(3), kind(8)), 2),
    ):
        assert type(number) is int
        assert number == expected
    assert block_usage(pool, kind(19)) == 0


@pytest.mark.parametrize(
    "function",
    [
        *OF_CENSUSES,
        kvreclaim.savings_breakdown,
        kvreclaim.pool_usage,
        kvreclaim.reclaim_curve,
        kvreclaim.compaction_cost,
        lambda census: kvreclaim.blocks_for_moves(census, 1),
        lambda census: kvreclaim.merge([census]),
    ],
)
def test_a_mask_where_only_a_census_will_do(function: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"census must be a Census; got list; write take_census"):
        function([True, False])


def test_a_block_size_is_a_pool_without_a_size() -> None:
    with pytest.raises(ValueError, match="pool must have a size"):
        kvreclaim.block_usage(16, 3)
