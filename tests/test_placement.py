"""Physical blocks against slow twins of sets and lists; exact cases, handed cases and anchors."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from strategies import SMALL_BLOCKS, Case, cases

from kvreclaim import BlockPool, admission_count, admit, block_usage, masks, runtimes, take_census
from kvreclaim.placement import (
    Placement,
    admit_contiguous,
    external_fragmentation,
    free_runs,
    page_reclaim,
    place,
    unsafe_free,
)

DATA = Path(__file__).parent / "data"
Keeps = list[list[bool]]
Tables = list[list[int]]


def same(got: float, expected: Fraction | None) -> bool:
    return math.isnan(got) if expected is None else got == float(expected)


def ratio(numerator: int, denominator: int) -> Fraction | None:
    return None if denominator == 0 else Fraction(numerator, denominator)


# --- The slow twins ---


def place_twin(
    keeps: Keeps,
    tables: Tables,
    pool: BlockPool,
    lengths: list[int] | None = None,
    offsets: list[int] | None = None,
) -> dict[str, Any]:
    """Who wrote and who reads each slot of each block, as sets of sequences."""
    if pool.total_blocks is None or len(keeps) != len(tables):
        raise ValueError("no size, or a table too many or too few")
    lengths = [len(keep) for keep in keeps] if lengths is None else lengths
    offsets = [0] * len(keeps) if offsets is None else offsets
    writers: dict[tuple[int, int], set[int]] = {}
    readers: dict[tuple[int, int], set[int]] = {}
    holders: dict[int, set[int]] = {}
    for sequence, (keep, table) in enumerate(zip(keeps, tables, strict=True)):
        if any(keep[lengths[sequence] :]):
            raise ValueError("a token is kept beyond its sequence's length")
        first = offsets[sequence]
        positions = range(first, first + lengths[sequence])
        if len(table) != len({position // pool.block_size for position in [*positions]}):
            raise ValueError("too few blocks for the length, or too many")
        for block in table:
            if not pool.reserved_blocks <= block < pool.total_blocks:
                raise ValueError("no block of this pool, or a reserved one")
            if sequence in holders.setdefault(block, set()):
                raise ValueError("one block twice")
            holders[block].add(sequence)
        for position in positions:
            slot = (table[position // pool.block_size], position % pool.block_size)
            writers.setdefault(slot, set()).add(sequence)
            if keep[position - first]:
                readers.setdefault(slot, set()).add(sequence)
    still = {
        block: {
            sequence for (held, _), those in readers.items() if held == block for sequence in those
        }
        for block in holders
    }
    freed = [block for block in sorted(holders) if not still[block]]
    held = len(holders) - len(freed)
    reads = sum(map(len, readers.values()))
    return {
        "num_blocks": len(holders),
        "num_freed_blocks": len(freed),
        "freed_ids": tuple(freed),
        "num_shared_blocks": sum(1 for those in holders.values() if len(those) > 1),
        "num_spared_blocks": sum(1 for b in holders if still[b] and still[b] != holders[b]),
        "num_refs": sum(len(those) for those in holders.values()),
        "num_refs_dropped": sum(len(holders[b] - still[b]) for b in holders),
        "ref_counts": {block: len(still[block]) for block in holders},
        "free": tuple(
            block >= pool.reserved_blocks and (block not in holders or block in freed)
            for block in range(pool.total_blocks)
        ),
        "num_tokens": sum(lengths),
        "num_live_tokens": reads,
        "num_slots": len(writers),
        "num_live_slots": len(readers),
        "logical_saving_refs": ratio(sum(lengths) - reads, sum(lengths)),
        "logical_saving_slots": ratio(len(writers) - len(readers), len(writers)),
        "physical_reclaim": ratio(len(freed), len(holders)),
        "fragmentation": ratio(held * pool.block_size - len(readers), held * pool.block_size),
    }


def pages_twin(free: Sequence[bool], page: int, block: int) -> dict[str, Any]:
    """Which blocks lie wholly inside each page, byte by byte."""
    pages: dict[int, list[bool]] = {}
    for number, is_free in enumerate(free):
        touched = {byte // page for byte in range(number * block, (number + 1) * block)}
        if len(touched) == 1:
            pages.setdefault(touched.pop(), []).append(is_free)
    held = sum(blocks.count(False) for blocks in pages.values())
    pinned = sum(False in blocks for blocks in pages.values())
    floor, room = 0, 0
    for blocks in sorted(pages.values(), key=len, reverse=True):
        if room < held:
            floor, room = floor + 1, room + len(blocks)
    return {
        "num_pages": len(pages),
        "num_free_pages": len(pages) - pinned,
        "num_pinned_pages": pinned,
        "packed_floor": floor,
        "pinned_over_held": ratio(pinned * page, held * block),
    }


def runs_twin(free: Sequence[bool]) -> list[int]:
    text = "".join("1" if is_free else "0" for is_free in free)
    return [len(run) for run in text.split("0") if run]


def contiguous_twin(
    free: Sequence[bool], demands: Sequence[int], fit: str, order: str
) -> tuple[int, ...]:
    """Blocks are taken from the pool one by one."""
    free = list(free)
    admitted = []
    for request, need in enumerate(demands):
        starts = [
            start
            for start in range(len(free))
            if free[start] and (start == 0 or not free[start - 1])
            if all(free[start : start + need]) and start + need <= len(free)
        ]
        if not starts:
            if order == "fifo":
                break
            continue
        start = starts[0]
        if fit == "best":
            start = min(starts, key=lambda s: ([*free[s:], False]).index(False))
        free[start : start + need] = [False] * need
        admitted.append(request)
    return tuple(admitted)


def unsafe_twin(rows: list[list[bool]], length: int, offset: int, size: int) -> int:
    """Free the page of every dead token, then look for live tokens on freed pages."""
    live = [any(row[token] for row in rows) for token in range(length)]
    freed = {(offset + token) // size for token in range(length) if not live[token]}
    return sum(live[token] and (offset + token) // size in freed for token in range(length))


# --- Sequences that share blocks ---


class Sharing(NamedTuple):
    keeps: Keeps
    tables: Tables
    pool: BlockPool
    lengths: list[int]
    offsets: list[int]

    def placed(self) -> Placement:
        return place(self.keeps, self.tables, self.pool, lengths=self.lengths, offset=self.offsets)

    def expected(self) -> dict[str, Any]:
        return place_twin(*self)


@st.composite
def sharings(draw: st.DrawFn, *, offsets: bool = True) -> Sharing:
    """Sequences of which each may begin with the first blocks of an earlier one."""
    size, reserved = draw(SMALL_BLOCKS), draw(st.integers(0, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keeps: Keeps = []
    tables: Tables = []
    lengths: list[int] = []
    before: list[int] = []
    used = reserved
    for _ in range(draw(st.integers(0, 5))):
        length = draw(st.integers(0, 5 * size))
        before.append(draw(st.integers(0, size - 1)) if offsets else 0)
        needed = -(-(before[-1] + length) // size) if length else 0
        shared = draw(st.sampled_from([*tables, []]))[: draw(st.integers(0, needed))]
        tables.append([*shared, *range(used, used + needed - len(shared))])
        used += needed - len(shared)
        keep = rng.random(length) < draw(st.sampled_from([0.02, 0.1, 0.5, 0.98]))
        beyond = [False] * draw(st.integers(0, 3)) if offsets else []
        keeps.append(keep.tolist() + beyond)
        lengths.append(length)
    total = used + draw(st.integers(0, 3))
    ids = [*range(reserved), *(reserved + rng.permutation(total - reserved)).tolist()]
    tables = [[ids[block] for block in table] for table in tables]
    pool = BlockPool(size, total_blocks=total, reserved_blocks=reserved)
    return Sharing(keeps, tables, pool, lengths, before)


@given(sharings())
@example(Sharing([], [], BlockPool(4, total_blocks=0), [], []))
@example(Sharing([[]], [[]], BlockPool(4, total_blocks=3, reserved_blocks=3), [0], [0]))
@example(Sharing([[False, False]], [[0]], BlockPool(2, total_blocks=1), [2], [0]))
def test_place_equals_its_twin(sharing: Sharing) -> None:
    placement = sharing.placed()
    for name, value in sharing.expected().items():
        got = getattr(placement, name)
        if isinstance(value, Fraction) or value is None:
            assert same(got, value), name
            assert type(got) is float
        else:
            assert got == value, name
            assert type(got) is type(value)
    # Every block of the pool is reserved, free, or held.
    held = placement.num_blocks - placement.num_freed_blocks
    reserved = sharing.pool.reserved_blocks
    assert reserved + sum(placement.free) + held == sharing.pool.total_blocks == len(placement.free)


def test_a_sequence_of_no_tokens_holds_no_block_at_any_offset() -> None:
    nothing = place([[], [1]], [[], [2]], BlockPool(4, total_blocks=3), offset=[3, 3])
    assert nothing.holders == ((2, 1, 1),)


CORRUPTIONS: dict[str, Callable[[list[int], BlockPool], list[int]]] = {
    "outside": lambda table, pool: [*table[:-1], pool.total_blocks or 0],
    "negative": lambda table, _: [-1, *table[1:]],
    "reserved": lambda table, _: [0, *table[1:]],
    "twice": lambda table, _: [*table[:-1], table[0]],
    "too few": lambda table, _: table[:-1],
    "too many": lambda table, pool: [*table, (pool.total_blocks or 0) - 1],
}


@given(sharings(), st.sampled_from(sorted(CORRUPTIONS)), st.data())
def test_place_refuses_what_its_twin_refuses(
    sharing: Sharing, what: str, data: st.DataObject
) -> None:
    spoiled = [i for i, table in enumerate(sharing.tables) if len(table) > 1]
    assume(spoiled)
    number = data.draw(st.sampled_from(spoiled))
    pool = sharing.pool.replace(
        total_blocks=(sharing.pool.total_blocks or 0) + 1, reserved_blocks=1
    )
    tables = [[block + 1 for block in table] for table in sharing.tables]
    sharing = sharing._replace(tables=tables, pool=pool)
    tables[number] = CORRUPTIONS[what](tables[number], pool)
    with pytest.raises(ValueError, match=r"no block|twice|too few"):
        sharing.expected()
    with pytest.raises(ValueError, match="tables must"):
        sharing.placed()


@given(sharings(offsets=False))
def test_without_sharing_it_is_the_census(sharing: Sharing) -> None:
    """Each with blocks of its own: what sharing keeps is exactly the references that were lost."""
    pool = BlockPool(sharing.pool.block_size)
    alone = [take_census(keep, pool) for keep in sharing.keeps]
    first = np.cumsum([0, *(census.num_blocks for census in alone)]).tolist()
    tables = [list(range(a, b)) for a, b in itertools.pairwise(first)]
    unshared = place(sharing.keeps, tables, pool.replace(total_blocks=first[-1]))
    shared = sharing.placed()
    assert unshared.num_freed_blocks == sum(census.num_freed_blocks for census in alone)
    assert unshared.num_live_slots == sum(census.num_live_tokens for census in alone)
    assert unshared.num_slots == sum(census.num_tokens for census in alone)
    assert unshared.num_spared_blocks == unshared.num_shared_blocks == 0
    assert unshared.num_freed_blocks == unshared.num_refs_dropped == shared.num_refs_dropped
    assert shared.num_freed_blocks <= unshared.num_freed_blocks
    assert str(shared.logical_saving_refs) == str(unshared.logical_saving_refs)


# vLLM's coming operation (its pull request 53871), as described there: "a block-aligned range",
# and "a block still shared with another request is dropped from this request's table but not
# counted".
def evict_token_range(
    table: list[int], start: int, end: int, *, size: int, ref_counts: dict[int, int]
) -> int:
    first, last = -(-start // size), end // size
    num_freed = 0
    for block in table[first:last]:
        ref_counts[block] -= 1
        if ref_counts[block] == 0:
            num_freed += 1
    del table[first:last]
    return num_freed


@given(sharings(offsets=False), st.data())
def test_vllm_evicts_a_range_of_a_running_request(sharing: Sharing, data: st.DataObject) -> None:
    size = sharing.pool.block_size
    tables = [list(table) for table in sharing.tables]
    ref_counts = {block: 0 for table in tables for block in table}
    for table in tables:
        for block in table:
            ref_counts[block] += 1
    keeps = [[True] * length for length in sharing.lengths]
    num_freed = num_dropped = 0
    for number, length in enumerate(sharing.lengths):
        # The last token is being read: a running request never gives it away.
        start, end = sorted(data.draw(st.tuples(*[st.integers(0, max(length - 1, 0))] * 2)))
        keeps[number][start:end] = [False] * (end - start)
        num_freed += evict_token_range(tables[number], start, end, size=size, ref_counts=ref_counts)
        num_dropped += len(sharing.tables[number]) - len(tables[number])
    placement = place(keeps, sharing.tables, sharing.pool)
    assert placement.num_freed_blocks == num_freed
    assert placement.num_refs_dropped == num_dropped
    assert placement.ref_counts == ref_counts
    assert [
        [block for i, block in enumerate(table) if any(keep[i * size : (i + 1) * size])]
        for keep, table in zip(keeps, sharing.tables, strict=True)
    ] == tables


def test_a_range_that_ends_in_an_open_tail_leaves_it() -> None:
    """The operation aligns inward; a mask that kills the partly written last block frees it."""
    keep, table, pool = [True, True, False, False, False], [0, 1, 2], BlockPool(2, total_blocks=3)
    assert evict_token_range([*table], 2, 5, size=2, ref_counts=dict.fromkeys(table, 1)) == 1
    assert place([keep], [table], pool).freed_ids == (1, 2)
    assert take_census(keep, runtimes.vllm(block_size=2)).num_freed_blocks == 1


def test_a_placement_is_a_value() -> None:
    pool = BlockPool(2, total_blocks=4)
    placement = place([[1, 0, 0]], [np.array([3, 1])], pool)
    again = place(np.array([[1, 0, 0, 0]]), ((3, 1),), pool, lengths=[3], offset=0)
    assert placement == again == pickle.loads(pickle.dumps(placement))  # noqa: S301  # our own
    assert len({placement, again}) == 1
    assert placement.holders == ((1, 1, 0), (3, 1, 1))
    assert json.loads(json.dumps(attrs.asdict(placement)))["num_live_tokens"] == 1
    everything = {name: getattr(placement, name) for name in place_twin([], [], pool)}
    json.dumps(everything)  # built-in numbers only
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        placement.num_tokens = 4  # type: ignore[misc]
    placement.ref_counts[1] = 9  # a copy
    assert placement.ref_counts == {1: 0, 3: 1}


@pytest.mark.parametrize(
    "change",
    [
        {"holders": ((1, 1, 0), (4, 1, 1))},
        {"holders": ((1, 1, 0), (-1, 1, 1))},
        {"holders": ((3, 1, 1), (1, 1, 0))},
        {"holders": ((1, 1, 0), (1, 1, 1))},
        {"holders": ((1, 1, 0), (3, 1, 2))},
        {"holders": ((1, 1, -1), (3, 1, 1))},
        {"holders": ((1, 1, 1), (3, 1, 1))},
        {"holders": ((1, 1, 0), (3, 1, 0))},
        {"holders": ((1, 0, 0), (3, 1, 1))},
        {"num_live_tokens": 4},
        {"num_live_slots": 0},
        {"num_live_slots": 2},
        {"num_slots": 1},
        {"num_slots": 4},
        {"num_tokens": 2},
        {"pool": BlockPool(2, total_blocks=4, reserved_blocks=2)},
        {"pool": BlockPool(2)},
    ],
)
def test_accounts_that_do_not_add_up_are_refused(change: dict[str, Any]) -> None:
    placement = place([[1, 0, 0]], [[3, 1]], BlockPool(2, total_blocks=4))
    with pytest.raises(ValueError, match=r"add up|size"):
        attrs.evolve(placement, **change)


# --- Pages, runs, and pages freed by token ---

FLAGS = st.lists(st.booleans(), max_size=40) | st.lists(
    st.tuples(st.booleans(), st.integers(1, 6)), max_size=10
).map(lambda runs: [flag for flag, length in runs for _ in range(length)])


def check_pages(got: object, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        found = getattr(got, name)
        if name == "pinned_over_held":
            assert same(found, value)
            assert type(found) is float
        else:
            assert found == value, name
            assert type(found) is int


@given(FLAGS, st.integers(1, 9))
def test_page_reclaim_equals_its_twin(free: list[bool], blocks: int) -> None:
    check_pages(page_reclaim(free, blocks), pages_twin(free, blocks, 1))
    assert page_reclaim(np.array(free, bool), blocks) == page_reclaim(
        tuple(free), page_bytes=7 * blocks, block_bytes=7
    ) or not (set(free) - {True})  # nan differs from itself


@given(
    FLAGS, st.integers(1, 12).flatmap(lambda page: st.tuples(st.just(page), st.integers(1, page)))
)
@example([True] * 3, (10, 4))
@example([True] * 5, (10, 8))
def test_page_reclaim_leaves_out_straddling_blocks(
    free: list[bool], sizes: tuple[int, int]
) -> None:
    page, block = sizes
    got = page_reclaim(free, page_bytes=page, block_bytes=block)
    check_pages(got, pages_twin(free, page, block))
    assert got.packed_floor <= got.num_pinned_pages
    assert not got.pinned_over_held < 1


def test_pages_hold_the_blocks_that_kvcached_puts_there() -> None:
    """The picture in its page allocator: 0 and 1 on the first page, 3 and 4 on the second."""
    for held, (num_free, floor) in {0: (1, 1), 1: (1, 1), 2: (2, 0), 3: (1, 1), 5: (2, 0)}.items():
        reclaim = page_reclaim(np.arange(6) != held, page_bytes=16, block_bytes=6)
        assert (reclaim.num_pages, reclaim.num_free_pages, reclaim.packed_floor) == (
            2,
            num_free,
            floor,
        )


@given(FLAGS)
def test_runs_and_external_fragmentation_equal_their_twins(free: list[bool]) -> None:
    runs = runs_twin(free)
    assert free_runs(free) == tuple(runs)
    assert all(type(run) is int for run in free_runs(free))
    expected = None if not runs else 1 - Fraction(max(runs), sum(runs))
    assert same(external_fragmentation(free), expected)


@given(
    FLAGS,
    st.lists(st.integers(1, 8), max_size=8),
    st.sampled_from(["first", "best"]),
    st.sampled_from(["fifo", "skip"]),
)
def test_admit_contiguous_equals_its_twin(
    free: list[bool],
    demands: list[int],
    fit: Literal["first", "best"],
    order: Literal["fifo", "skip"],
) -> None:
    got = admit_contiguous(free, demands, fit, order)
    assert got == contiguous_twin(free, demands, fit, order)
    # A stitched allocator gets at least as much out of the same blocks, first come first served.
    if order == "fifo":
        assert len(got) <= len(admit(sum(free), demands))


def test_the_best_fit_leaves_the_longer_run_whole() -> None:
    free = [1, 1, 1, 0, 1, 1, 0, 1, 1]
    assert admit_contiguous(free, [2, 3], "best", "skip") == (0, 1)
    assert admit_contiguous(free, [2, 3], "first", "skip") == (0,)
    assert admit_contiguous(free, [2, 3], order="skip") == (0,)


def rows_of_tables(case: Case) -> Iterable[tuple[list[list[bool]], int, int]]:
    """Yield the rows, the length and the offset of each table."""
    axes, shared = case.said["axes"], case.pool.shared_axes
    outer = [axis for axis, letter in enumerate(axes) if letter != "t" and letter not in shared]
    rows = [axis for axis, letter in enumerate(axes) if letter in shared]
    keep = case.keep.transpose([*outer, *rows, axes.index("t")])
    sizes = keep.shape[: len(outer)]
    lengths = np.broadcast_to(np.asarray(case.said.get("lengths", keep.shape[-1])), sizes)
    offsets = np.broadcast_to(np.asarray(case.said.get("offset", 0)), sizes)
    for index in np.ndindex(sizes):
        table = keep[index].reshape(math.prod(keep.shape[len(outer) : -1]), keep.shape[-1])
        yield table.tolist(), int(lengths[index]), int(offsets[index])


@given(cases())
def test_unsafe_free_equals_its_twin(case: Case) -> None:
    case.said.pop("pinned", None)
    got = unsafe_free(case.keep, case.pool, **case.said)
    expected = (unsafe_twin(*table, case.pool.block_size) for table in rows_of_tables(case))
    assert got == sum(expected)
    assert type(got) is int


@given(st.lists(st.booleans(), max_size=40), SMALL_BLOCKS)
def test_whole_dead_pages_are_safe(keep: list[bool], size: int) -> None:
    pages = [keep[i : i + size] for i in range(0, len(keep), size)]
    coherent = [token for page in pages for token in [any(page)] * len(page)]
    assert unsafe_free(coherent, runtimes.sglang(page_size=size)) == 0
    assert unsafe_free(keep, 1) == 0


def test_unsafe_free_looks_at_shared_rows_together() -> None:
    heads = [[1, 0, 0, 0], [0, 1, 0, 0]]
    assert unsafe_free(heads, 2, axes="ht") == 0
    assert unsafe_free(heads, BlockPool(2, shared_axes="")) == 2
    assert unsafe_free([[1, 0, 0], [1, 0, 1]], 2, axes="bt", lengths=[1, 3]) == 1
    assert unsafe_free([1, 1, 0], 2, offset=1) == 1
    assert unsafe_free([0, 0, 1, 0], BlockPool(2, shared_axes="b")) == 1
    sequences = [[1, 0, 0, 0], [0, 0, 1, 0]]  # of which one block holds a slot each
    assert unsafe_free(sequences, BlockPool(2, shared_axes="b"), axes="bt") == 2
    assert (
        unsafe_free([0, 1, 1, 1], runtimes.vllm(block_size=4)) == 3
    )  # the other rules play no part


# --- What is refused ---

POOL: Any = BlockPool(2, total_blocks=6, reserved_blocks=1)
NOTHING: Any = None
ANOTHER: Any = "worst"
of = partial
REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str, str]] = {
    "a pool without a size": (of(place, [[1]], [[1]], 2), ValueError, "pool", "total_blocks"),
    "no size, no tables": (of(place, [], [], 2), ValueError, "pool", "total_blocks"),
    "no pool": (of(place, [[1]], [[1]], NOTHING), TypeError, "pool", "NoneType"),
    "outside": (of(place, [[1]], [[6]], POOL), ValueError, "tables", "block 6 in tables[0]"),
    "negative": (of(place, [[1]], [[-1]], POOL), ValueError, "tables", "from 1 to 5"),
    "the null block": (of(place, [[1]], [[0]], POOL), ValueError, "tables", "reserved"),
    "twice": (of(place, [[1] * 4], [[3, 3]], POOL), ValueError, "tables", "block 3 2 times"),
    "too few blocks": (of(place, [[1] * 4], [[3]], POOL), ValueError, "tables", "2 for the 4"),
    "too many blocks": (of(place, [[1]], [[3, 4]], POOL), ValueError, "tables", "got 2 in tables"),
    "for no tokens": (of(place, [[]], [[3]], POOL), ValueError, "tables", "0 for the 0 tokens"),
    "a table too few": (of(place, [[1], [1]], [[3]], POOL), ValueError, "tables", "2 keeps; got 1"),
    "ids that are no numbers": (of(place, [[1]], [["a"]], POOL), TypeError, "tables[0]", "str32"),
    "a table of tables": (of(place, [[1]], [[[3]]], POOL), ValueError, "tables[0]", "(1, 1)"),
    "a mask of heads": (of(place, [[[1], [0]]], [[3]], POOL), ValueError, "keeps[0]", "(2, 1)"),
    "scores": (of(place, [[0.3]], [[3]], POOL), TypeError, "keeps[0]", "float"),
    "kept beyond": (
        of(place, [[1, 0, 0, 1]], [[3]], POOL, lengths=[2]),
        ValueError,
        "keep",
        "True at token 3 of sequence 0, which has 2 tokens",
    ),
    "longer than its mask": (
        of(place, [[1]], [[3]], POOL, lengths=[2]),
        ValueError,
        "lengths[0]",
        "at most 1",
    ),
    "a length too many": (
        of(place, [[1]], [[3]], POOL, lengths=[1, 1]),
        ValueError,
        "lengths",
        "(2,)",
    ),
    "lengths of halves": (
        of(place, [[1]], [[3]], POOL, lengths=[0.5]),
        TypeError,
        "lengths",
        "float64",
    ),
    "an offset of a block": (
        of(place, [[1]], [[3]], POOL, offset=2),
        ValueError,
        "offset[0]",
        "at most 1",
    ),
    "pages: no form": (of(page_reclaim, [1]), TypeError, "page_reclaim", "neither"),
    "pages: both forms": (
        of(page_reclaim, [1], 2, page_bytes=2),
        TypeError,
        "page_reclaim",
        "both",
    ),
    "pages: half a form": (of(page_reclaim, [1], page_bytes=2), TypeError, "block_bytes", "None"),
    "pages: the other half": (
        of(page_reclaim, [1], block_bytes=2),
        TypeError,
        "page_bytes",
        "None",
    ),
    "pages: of no blocks": (of(page_reclaim, [1], 0), ValueError, "blocks_per_page", "got 0"),
    "pages: of no bytes": (
        of(page_reclaim, [1], page_bytes=0, block_bytes=1),
        ValueError,
        "page_bytes",
        "got 0",
    ),
    "pages: blocks of no bytes": (
        of(page_reclaim, [1], page_bytes=2, block_bytes=0),
        ValueError,
        "block_bytes",
        "got 0",
    ),
    "pages: rows of blocks": (of(page_reclaim, [[1], [0]], 2), ValueError, "free", "(2, 1)"),
    "pages: too small": (
        of(page_reclaim, [1], page_bytes=2, block_bytes=3),
        ValueError,
        "block_bytes",
        "at most page_bytes (2)",
    ),
    "free: counts": (of(free_runs, [2, 0]), ValueError, "free", "other than 0 and 1"),
    "free: a pool": (of(free_runs, [[1], [0]]), ValueError, "free", "(2, 1)"),
    "contiguous: nothing": (of(admit_contiguous, [1], [0]), ValueError, "demands", "got 0"),
    "contiguous: fit": (of(admit_contiguous, [1], [1], ANOTHER), ValueError, "fit", "'worst'"),
    "contiguous: order": (
        of(admit_contiguous, [1], [1], order=ANOTHER),
        ValueError,
        "order",
        "'worst'",
    ),
    "unsafe: axes": (of(unsafe_free, [[1, 0]], 2), ValueError, "axes", "(1, 2)"),
    "unsafe: beyond": (of(unsafe_free, [0, 1], 2, lengths=1), ValueError, "keep", "token 1"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_names_the_argument_and_what_came(what: str) -> None:
    call, kind, name, got = REFUSED[what]
    with pytest.raises((TypeError, ValueError)) as refused:
        call()
    message = str(refused.value)
    assert refused.type is kind, message
    assert message.startswith(name)
    assert got in message
    assert message.count("; ") >= 2
    assert message.endswith(".")


# --- Exact cases, handed cases, anchors ---

VECTORS = json.loads((DATA / "vectors_public.json").read_text(encoding="utf-8"))["cases"]


def vectors(kind: str) -> list[Any]:
    return [
        pytest.param(case["input"], case["expected"], id=case["id"])
        for case in VECTORS
        if case["kind"] == kind
    ]


def bits(text: str) -> list[bool]:
    return [letter == "1" for letter in text]


@pytest.mark.parametrize(("given", "expected"), vectors("prefix_sharing"))
def test_prefix_sharing(given: dict[str, Any], expected: dict[str, Any]) -> None:
    pool = BlockPool(given["block_size"], total_blocks=given["num_blocks"])
    placement = place([bits(text) for text in given["keep"]], given["tables"], pool)
    assert placement.num_blocks == expected["allocated_blocks"]
    assert placement.num_freed_blocks == expected["freed"]
    assert list(placement.freed_ids) == expected["freed_ids"]
    assert placement.num_shared_blocks == expected["shared_blocks"]
    assert placement.num_refs == expected["refs"]
    assert placement.num_refs_dropped == expected["refs_dropped"]
    assert placement.num_spared_blocks == expected["blocks_saved_from_reclaim_by_sharing"]
    assert sum(placement.free) == expected["pool_free_after"]
    after = {str(block): holders for block, holders in placement.ref_counts.items()}
    assert after == expected["ref_counts_after"]
    held = placement.num_blocks - placement.num_freed_blocks
    for got, ratio_text in (
        (placement.logical_saving_refs, expected["logical_saving_refs"]),
        (placement.logical_saving_slots, expected["logical_saving_slots"]),
        (placement.physical_reclaim, expected["reclaim_blocks"]),
        # The vectors print 0 where nothing is held.
        (placement.fragmentation, expected["fragmentation"] if held else None),
    ):
        assert same(got, None if ratio_text is None else Fraction(ratio_text))


@pytest.mark.parametrize(("given", "expected"), vectors("admission"))
def test_contiguous_admission(given: dict[str, Any], expected: dict[str, Any]) -> None:
    free, demands = bits(given["free_flags"]), given["sizes"]
    runs = list(free_runs(free))
    assert runs == expected["free_runs"]
    assert max(runs, default=0) == expected["largest_request_contiguous"]
    assert sum(runs) == expected["free"] == expected["largest_request_paged"]
    # The vectors print 0 where nothing is free.
    share = Fraction(expected["external_fragmentation"]) if runs else None
    assert same(external_fragmentation(free), share)
    assert list(admit_contiguous(free, demands)) == expected["contiguous_first_fit"]
    assert list(admit_contiguous(free, demands, "best")) == expected["contiguous_best_fit"]
    skipping = admit_contiguous(free, demands, order="skip")
    assert list(skipping) == expected["contiguous_first_fit_skip"]
    best = admit_contiguous(free, demands, "best", "skip")
    assert list(best) == expected["contiguous_best_fit_skip"]
    assert max(len(skipping), len(best)) <= expected["contiguous_max_count"]
    for need, count in expected["equal_contiguous"].items():
        assert len(admit_contiguous(free, [int(need)] * (len(free) + 1))) == count


def test_h02_blocks_are_free_but_pages_are_not() -> None:
    """https://github.com/ovg-project/kvcached/issues/359."""
    scattered = [False, False, *[True] * 6] * 4
    aligned = [False] * 8 + [True] * 24
    page_bytes = 2 * 1024 * 1024
    for free, pages in ((scattered, 0), (aligned, 3)):
        reclaim = page_reclaim(free, page_bytes=page_bytes, block_bytes=page_bytes // 8)
        assert sum(free) == 24
        assert reclaim == page_reclaim(free, 8)
        assert reclaim.num_free_pages == pages
        assert reclaim.num_free_pages * page_bytes == (0, 0, 0, 6291456)[pages]
        assert reclaim.packed_floor == 1
    assert page_reclaim(scattered, 8).pinned_over_held == 4.0


def test_h07_groups_of_one_pool_with_block_sizes_of_their_own() -> None:
    """https://github.com/vllm-project/vllm/issues/51163."""
    keep = np.arange(1000) >= 256
    groups = [take_census(keep, runtimes.vllm(block_size=size)) for size in (256, 64, 8, 4)]
    assert [group.num_blocks for group in groups] == [4, 16, 125, 250]
    assert [group.num_freed_blocks for group in groups] == [1, 4, 32, 64]


def test_e22_in_a_ring_buffer_a_position_is_no_slot() -> None:
    """https://github.com/vllm-project/vllm/issues/1304."""
    slots = [16, 17, *range(2, 16)]
    keep, lengths = masks.from_slots(np.reshape(slots, (4, 4)))
    placement = place(keep, [[3, 0, 2, 1]], BlockPool(4, total_blocks=4), lengths=lengths)
    assert placement.num_blocks == 4
    assert placement.num_freed_blocks == 0
    assert placement.num_live_slots == 16
    assert 18 - placement.num_live_slots == 2  # what was seen and is gone
    by_position = take_census(np.isin(np.arange(18), slots), 4)
    assert (by_position.num_blocks, by_position.num_freed_blocks) == (5, 0)


def test_e24_a_prefix_is_shared_by_whole_blocks() -> None:
    """https://github.com/vllm-project/vllm/issues/3942."""
    pool = BlockPool(32, total_blocks=8)
    shared = 34 // pool.block_size
    placement = place([[1] * 35, [1] * 36], [[5, 6], [5, 7]], pool)
    assert placement.num_shared_blocks == shared == 1
    assert placement.num_blocks == 3


def test_e25_a_capacity_in_tokens_is_rounded_by_the_caller() -> None:
    """https://github.com/NVIDIA/TensorRT-LLM/issues/224."""
    with pytest.raises(TypeError, match="total_blocks must be an integer"):
        BlockPool(16, total_blocks=10718 / 16)
    down, up = 10718 // 16, BlockPool(16).num_blocks_for(10718)
    assert (down, down * 16) == (669, 10704)
    assert (up, up * 16) == (670, 10720)
    last = [[1] * 16], [[669]]
    assert place(*last, BlockPool(16, total_blocks=up)).num_blocks == 1
    with pytest.raises(ValueError, match="from 0 to 668"):
        place(*last, BlockPool(16, total_blocks=down))


ANCHORS = {
    anchor["name"]: anchor
    for anchor in json.loads((DATA / "anchors.json").read_text(encoding="utf-8"))
}


def anchors(start: str) -> list[Any]:
    found = [
        pytest.param(anchor["inputs"], anchor["expected"], id=name)
        for name, anchor in ANCHORS.items()
        if name.startswith(start)
    ]
    assert found
    return found


@pytest.mark.parametrize(("inputs", "expected"), anchors("kvcached_bench_frag"))
def test_kvcached_waste(inputs: dict[str, int], expected: dict[str, Any]) -> None:
    kept, stride = inputs["kept"], inputs["stride"]
    free = np.ones(16 * kept, bool)
    free[: kept * stride : stride] = False
    reclaim = page_reclaim(free, inputs["blocks_per_page"])
    assert reclaim.num_pinned_pages == expected["pages_pinned"]
    assert reclaim.pinned_over_held == expected["waste"]
    assert reclaim.packed_floor == kept // inputs["blocks_per_page"]


@pytest.mark.parametrize(("inputs", "expected"), anchors("kvcached_packed_floor"))
def test_kvcached_packed_floor(inputs: dict[str, int], expected: dict[str, Any]) -> None:
    """Every fifth block of 79 pages: 73 of them would be 4.6 times the floor too."""
    live, blocks = inputs["live_blocks"], inputs["blocks_per_page"]
    free = np.arange(5 * live) % 5 != 0
    reclaim = page_reclaim(free, blocks)
    assert reclaim.packed_floor == expected["packed_floor_pages"]
    assert reclaim.num_free_pages == 0


@pytest.mark.parametrize(("inputs", "expected"), anchors("hf_storable"))
def test_hf_sectors(inputs: dict[str, Any], expected: dict[str, int]) -> None:
    """A request takes the blocks that earlier ones left in their sectors, then whole sectors."""
    left = dict(inputs["free_blocks"])
    demands = []
    for request in inputs["requests"]:
        sectors = 0
        for kind, need in request.items():
            per_sector = inputs["blocks_per_sector"][kind]
            taken = -(-max(0, need - left[kind]) // per_sector)
            left[kind] += taken * per_sector - need
            sectors += taken
        demands.append(sectors)
    assert len(admit(inputs["free_sectors"], demands)) == expected["admitted"]


@pytest.mark.parametrize(("inputs", "expected"), anchors("flashinfer_len"))
def test_flashinfer_pages(inputs: dict[str, int], expected: dict[str, int]) -> None:
    tokens, size = inputs["kv_len"], inputs["page_size"]
    census = take_census(np.ones(tokens, bool), size)
    assert BlockPool(size).num_blocks_for(tokens) == census.num_blocks == expected["pages"]
    assert size - census.num_slack_slots == expected["last_page_len"]


@pytest.mark.parametrize(("inputs", "expected"), anchors("interval_dead"))
def test_a_dead_interval(inputs: dict[str, Any], expected: dict[str, int]) -> None:
    (start, end), size = inputs["dead"], inputs["block_size"]
    keep = np.ones(1024, bool)
    keep[start:end] = False
    pool = runtimes.vllm(block_size=size, total_blocks=1025)
    assert take_census(keep, pool).num_freed_blocks == expected["freed_blocks"]
    table = np.arange(1, 1 + 1024 // size)[::-1]
    assert place([keep], [table], pool).num_freed_blocks == expected["freed_blocks"]
    refs = dict.fromkeys(table.tolist(), 1)
    freed = evict_token_range(table.tolist(), start, end, size=size, ref_counts=refs)
    assert freed == expected["freed_blocks"]


@pytest.mark.parametrize(("inputs", "expected"), anchors("vllm_usage"))
def test_vllm_usage(inputs: dict[str, int], expected: dict[str, float]) -> None:
    pool = runtimes.vllm(total_blocks=inputs["num_gpu_blocks"])
    usage = block_usage(pool, inputs["free"])
    if pool.num_usable_blocks:
        assert usage == expected["kv_cache_usage_perc"]
    else:  # vLLM says 0 of a pool that has nothing but its null block; to us it is undefined
        assert math.isnan(usage)


def test_free_blocks_of_a_placement_are_those_that_admission_gives_away() -> None:
    """The three ways to say how many requests fit, of one pool."""
    pool = runtimes.vllm(total_blocks=11)
    keep = [0, 0] * 16 + [1] * 16
    table = [9, 4, 2]
    placement = place([keep], [table], pool)
    census = take_census(keep, pool)
    free = sum(placement.free)
    assert free == 10 - census.num_held_blocks == 9
    for need in (1, 2, 4, 9, 10):
        count = admission_count(census, blocks_per_request=need)
        assert count == len(admit(free, [need] * 10)) == free // need
    assert free_runs(placement.free) == (1, 8)
