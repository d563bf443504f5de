"""The oracle itself: against shared vectors, exhaustive searches, simulations, and by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import reduce
from itertools import combinations, product
from pathlib import Path
from typing import Any

import oracle
import pytest
from oracle import Census, Pool

VECTORS = json.loads(
    (Path(__file__).parent / "data" / "vectors_public.json").read_text(encoding="utf-8")
)


def cases(kind: str) -> list[Any]:
    chosen = [case for case in VECTORS["cases"] if case["kind"] == kind]
    return [pytest.param(case["input"], case["expected"], id=case["id"]) for case in chosen]


def bits(text: str) -> list[bool]:
    return [letter == "1" for letter in text]


def fraction(text: str | None) -> Fraction | None:
    return None if text is None else Fraction(text)


def census_of(text: str, pool: Pool | int, offset: int = 0) -> Census:
    return oracle.census(bits(text), pool, offset=offset)


def census_of_all(texts: Sequence[str], pool: Pool) -> Census:
    longest = max((len(text) for text in texts), default=0)
    return oracle.census(
        [bits(text.ljust(longest, "0")) for text in texts],
        pool,
        axes="bt",
        lengths=[len(text) for text in texts],
        shape=(len(texts), longest),
    )


def masks(max_tokens: int) -> Iterator[list[bool]]:
    for num_tokens in range(max_tokens + 1):
        for keep in product((False, True), repeat=num_tokens):
            yield list(keep)


def slots_of(keep: list[bool], offset: int) -> list[bool]:
    """Whether each place of a table is live, the offset's holes first."""
    return [False] * offset + keep


def check_counts(census: Census, expected: dict[str, Any]) -> None:
    """What one sequence and a batch of them have in common."""
    assert census["num_tokens"] == expected["tokens"]
    assert census["num_live_tokens"] == expected["live"]
    assert census["num_evicted_entries"] == expected["dead"]
    assert census["num_blocks"] == expected["blocks"]
    assert census["num_freed_blocks"] == expected["freed"]
    assert census["num_nonempty_blocks"] == expected["nonempty"]
    assert census["num_held_blocks"] == expected["nonempty"]
    assert census["num_stranded_tokens"] == expected["stranded_tokens"]
    assert census["num_slack_slots"] == expected["slack_slots"]
    assert oracle.logical_saving(census) == fraction(expected["logical_saving"])
    assert oracle.physical_reclaim(census) == fraction(expected["reclaim_blocks"])
    assert oracle.reclaim_efficiency(census) == fraction(expected["efficiency_fraction"])
    broken_down = oracle.savings_breakdown(census)
    assert broken_down["reclaimed"] == fraction(expected["reclaim_tokens"])
    assert broken_down["num_unshared"] == 0
    if census["num_held_blocks"] == 0:
        assert oracle.fragmentation(census) is None  # the vectors print 0
    else:
        assert oracle.fragmentation(census) == fraction(expected["fragmentation"])


def check_compaction(census: Census, expected: dict[str, Any], curve: list[int]) -> None:
    """What a full compaction by `evacuate` does."""
    assert [0, *oracle.reclaim_curve(census)] == curve
    assert census["num_compactable_blocks"] == expected["freed_by_compaction"]
    assert census["num_moved_entries"] == expected["moves"]
    assert oracle.moved_tokens_per_block(census) == fraction(expected["moves_per_block"])
    assert oracle.slots_per_move(census) == fraction(expected["slots_per_move"])
    share = fraction(expected["moved_share_of_survivors"])
    assert oracle.decode_steps(census) == (None if share is None else 2 * share)


# --- Shared vectors ---


@pytest.mark.parametrize(("given", "expected"), cases("sequence"))
def test_sequence_vectors(given: dict[str, Any], expected: dict[str, Any]) -> None:
    size, offset = given["block_size"], given["offset"]
    census = census_of(given["keep"], size, offset)
    check_counts(census, expected)
    assert list(census["counts"]) == expected["histogram"]
    assert census["num_packed_blocks"] == expected["min_blocks"]
    assert census["num_floor_blocks"] == expected["min_blocks"]
    assert census["num_compactable_blocks"] == expected["recoverable_blocks"]
    assert expected["min_freed"] <= census["num_freed_blocks"] <= expected["max_freed"]
    held_tokens = sum(
        written
        for written, live in zip(expected["valid_sizes"], expected["occupancies"], strict=True)
        if live > 0
    )
    assert census["num_held_tokens"] == held_tokens
    if offset == 0:
        check_compaction(census, expected["compaction"], expected["compaction_curve"])
        packed = census_of(given["keep"], Pool(size, compactor="pack"))
        filled = census_of(given["keep"], Pool(size, compactor="fill"))
        assert packed["num_moved_entries"] == expected["stable_pack_moves"]
        assert filled["num_moved_entries"] == expected["prefix_fill_moves"]


@pytest.mark.parametrize(("given", "expected"), cases("pool"))
def test_pool_vectors(given: dict[str, Any], expected: dict[str, Any]) -> None:
    pool = Pool(given["block_size"])
    census = census_of_all(given["keep"], pool)
    check_counts(census, expected)
    check_compaction(census, expected["compaction_sequence"], expected["curve_sequence"])
    moves_for = [0, *oracle.reclaim_curve(census)]
    for budget, (blocks, moves) in zip(
        given["budgets"], expected["budgeted_sequence"], strict=True
    ):
        assert oracle.blocks_for_moves(census, budget) == blocks
        assert moves_for[blocks] == moves
    one_by_one = [census_of(keep, pool) for keep in given["keep"]]
    summed = reduce(oracle.add, one_by_one, oracle.empty(pool))
    assert summed["num_tables"] == len(given["keep"])
    assert {**summed, "rows_per_table": 1} == census


@pytest.mark.parametrize(("given", "expected"), cases("compaction_target"))
def test_compaction_target_vectors(given: dict[str, Any], expected: dict[str, Any]) -> None:
    size = given["block_size"]
    texts = [
        "".join(("1" * live).ljust(size, "0") for live in sequence)
        for sequence in given["occupancies"]
    ]
    census = census_of_all(texts, Pool(size))
    curve = [0, *oracle.reclaim_curve(census)]
    to_free = max(0, census["num_nonempty_blocks"] - given["target_blocks"])
    assert (curve[to_free] if to_free < len(curve) else None) == expected["sequence"]


@pytest.mark.parametrize(("given", "expected"), cases("admission"))
def test_admission_vectors(given: dict[str, Any], expected: dict[str, Any]) -> None:
    free, demands, watermark = expected["free"], given["sizes"], given["watermark"]
    assert given["free_flags"].count("1") == free
    assert list(oracle.admit(free, demands, watermark)) == expected["fifo"]
    assert list(oracle.admit(free, demands, watermark, "skip")) == expected["fifo_skip"]
    exempt = oracle.admit(free, demands, watermark, exempt_first=True)
    assert list(exempt) == expected["fifo_exempt_first"]
    assert len(oracle.admit(free, demands, watermark, "smallest")) == expected["max_count"]
    flags = given["free_flags"]  # as a mask with blocks of one slot
    full = Pool(1, watermark_blocks=watermark)
    sized = Pool(1, watermark_blocks=watermark, total_blocks=len(flags) + 3, reserved_blocks=3)
    census = oracle.census([flag == "0" for flag in flags], full)
    for need, count in expected["equal"].items():
        assert len(oracle.admit(free, [int(need)] * (free + 1), watermark)) == count
        assert oracle.admission_count(census, full, int(need)) == count
        assert oracle.admission_count(census, sized, int(need)) == count


@pytest.mark.parametrize(
    ("given", "expected"),
    [case for case in cases("shared_axes") if isinstance(case.values[0]["share"], str)],
)
def test_shared_axes_vectors(given: dict[str, Any], expected: dict[str, Any]) -> None:
    shared = {"per_head": "", "per_layer": "h", "all": "lh"}[given["share"]]
    keep = [[bits(head) for head in layer] for layer in given["keep"]]
    census = oracle.census(keep, Pool(given["block_size"], shared_axes=shared), "lht")
    assert census["num_blocks"] == expected["blocks"]
    assert census["num_freed_blocks"] == expected["freed"]
    assert oracle.logical_saving(census) == fraction(expected["logical_saving"])
    assert oracle.physical_reclaim(census) == fraction(expected["reclaim_bytes"])
    assert oracle.reclaim_efficiency(census) == fraction(expected["efficiency_fraction"])
    dead_in_every_row = census["num_tokens"] - census["num_live_tokens"]
    assert Fraction(dead_in_every_row, census["num_tokens"]) == fraction(expected["union_saving"])


@pytest.mark.parametrize(("given", "expected"), cases("delta"))
def test_delta_vectors(given: dict[str, Any], expected: dict[str, Any]) -> None:
    before = census_of(given["before"], given["block_size"], given["offset"])
    after = census_of(given["after"], given["block_size"], given["offset"])
    newly_dead = before["num_live_tokens"] - after["num_live_tokens"]
    newly_freed = after["num_freed_blocks"] - before["num_freed_blocks"]
    assert newly_dead == expected["newly_dead"]
    assert newly_freed == expected["newly_freed"]


@pytest.mark.parametrize(("given", "expected"), cases("streaming"))
def test_streaming_vectors(given: dict[str, Any], expected: dict[str, Any]) -> None:
    keep = [
        token < given["sink"] or token >= given["n"] - given["window"]
        for token in range(given["n"])
    ]
    census = oracle.census(keep, given["block_size"], offset=given["offset"])
    assert census["num_freed_blocks"] == expected["freed"]
    assert census["num_live_tokens"] == expected["live"]


# --- Counted definitions against searches and simulations ---


@pytest.mark.parametrize("open_tail", [False, True])
@pytest.mark.parametrize("block_size", [2, 3])
def test_evacuate_is_the_fewest_moves(block_size: int, open_tail: bool) -> None:
    pool = Pool(block_size, open_tail=open_tail)
    for keep in masks(8):
        for offset in range(block_size):
            census = oracle.census(keep, pool, offset=offset)
            blocks = oracle._lay_out([keep], len(keep), offset, block_size)
            freed = oracle._is_freed(blocks, pool)
            held = [
                oracle._occupancy(block)
                for block, is_freed in zip(blocks, freed, strict=True)
                if not is_freed
            ]
            curve = oracle.reclaim_curve(census)
            for number, moves in enumerate([0, *curve]):
                assert oracle.fewest_moves_to_free(held, block_size, number) == moves
            assert oracle.fewest_moves_to_free(held, block_size, len(curve) + 1) is None


@pytest.mark.parametrize("block_size", [2, 3])
def test_fill_and_pack_are_what_the_procedures_move(block_size: int) -> None:
    for keep in masks(8):
        for offset in range(block_size if keep else 1):
            slots = slots_of(keep, offset)
            num_live = sum(keep)
            for compactor, moves in (
                ("fill", oracle.fill_moves_by_simulation(slots)),
                ("pack", oracle.pack_moves_by_simulation(slots)),
                ("pack_rows", oracle.pack_moves_by_simulation(slots)),
            ):
                pool = Pool(block_size, compactor=compactor)
                census = oracle.census(keep, pool, offset=offset)
                assert census["num_moved_entries"] == len(moves)
                after = slots[:]
                for source, target in moves:
                    assert after[source]
                    assert not after[target]
                    assert target < source
                    after[source], after[target] = False, True
                assert after == [True] * num_live + [False] * (len(slots) - num_live)
                assert census["num_packed_blocks"] == math.ceil(num_live / block_size)


def test_pack_keeps_the_order_of_survivors() -> None:
    moves = oracle.pack_moves_by_simulation(bits("0110101"))
    assert moves == [(1, 0), (2, 1), (4, 2), (6, 3)]
    assert oracle.fill_moves_by_simulation(bits("0110101")) == [(6, 0), (4, 3)]
    assert oracle.fill_moves_by_simulation(bits("1100")) == []
    assert oracle.pack_moves_by_simulation([]) == []


@pytest.mark.parametrize("offset", [0, 1])
def test_rows_are_compacted_by_themselves(offset: int) -> None:
    pack_rows = Pool(2, compactor="pack_rows")
    evacuate_rows = Pool(2, compactor="evacuate_rows")
    for first in masks(4):
        for second in product((False, True), repeat=len(first)):
            rows = [first, list(second)]
            census = oracle.census(rows, pack_rows, "ht", offset=offset)
            moves = [oracle.pack_moves_by_simulation(slots_of(row, offset)) for row in rows if row]
            assert census["num_moved_entries"] == sum(len(row) for row in moves)

            # Fewest entries to move: try every choice of blocks that stay.
            census = oracle.census(rows, evacuate_rows, "ht", offset=offset)
            blocks = oracle._lay_out(rows, len(first), offset, 2)
            entries = [sum(oracle._live_entries(block, row) for row in (0, 1)) for block in blocks]
            num_kept = math.ceil(max(sum(row) for row in rows) / 2)
            cheapest = min(
                sum(entries) - sum(entries[block] for block in stay)
                for stay in combinations(range(len(blocks)), num_kept)
            )
            assert census["num_moved_entries"] == cheapest
            assert census["num_packed_blocks"] == census["num_floor_blocks"] == num_kept


@pytest.mark.parametrize("open_tail", [False, True])
@pytest.mark.parametrize(
    ("frees", "compactor"),
    [(frees, name) for frees, names in oracle.LEGAL_COMPACTORS.items() for name in names],
)
def test_laws_of_two_rows(frees: str, compactor: str, open_tail: bool) -> None:
    pool = Pool(2, frees=frees, compactor=compactor, open_tail=open_tail)
    for first in masks(5):
        for second in product((False, True), repeat=len(first)):
            for offset in (0, 1):
                c = oracle.census([first, list(second)], pool, "ht", offset=offset)
                blocks = c["num_blocks"]
                assert sum(c["counts"]) == blocks
                assert c["num_held_blocks"] == blocks - c["num_freed_blocks"]
                assert c["num_live_tokens"] == sum(k * n for k, n in enumerate(c["counts"]))
                assert c["num_evicted_entries"] == c["num_entries"] - c["num_live_entries"]
                assert c["num_stranded_tokens"] == c["num_held_tokens"] - c["num_live_tokens"]
                assert c["num_slack_slots"] == 2 * c["num_held_blocks"] - c["num_held_tokens"]
                # In place, after the own compactor, packed: never less.
                assert (
                    c["num_freed_blocks"]
                    <= blocks - c["num_packed_blocks"]
                    <= blocks - c["num_floor_blocks"]
                )
                assert sum(c["movable"]) in (0, c["num_compactable_blocks"])
                split = oracle.savings_breakdown(c)
                parts = (split["num_reclaimed"], split["num_stranded"], split["num_unshared"])
                assert sum(part or 0 for part in parts) == c["num_evicted_entries"]
                if blocks and compactor != "none":
                    packed = oracle.packed_reclaim(c)
                    own = oracle.compacted_reclaim(c)
                    assert packed is not None
                    assert own is not None
                    assert own <= packed
                if compactor == "none":
                    assert c["num_packed_blocks"] == c["num_held_blocks"]
                    assert c["num_moved_entries"] == 0


# --- Small examples by hand ---


@pytest.mark.parametrize(
    ("keep", "frees", "open_tail", "freed", "held_tokens"),
    [
        ("00 01 00 1", "any", False, 2, 3),
        ("00 01 00 1", "back", False, 0, 7),
        ("00 01 00 1", "front", False, 1, 5),
        ("00 01 00 1", "none", False, 0, 7),
        ("00 01 00 0", "any", False, 3, 2),
        ("00 01 00 0", "any", True, 2, 3),
        ("00 01 00 0", "back", False, 2, 4),
        ("00 01 00 0", "back", True, 0, 7),
        ("00 01 00 0", "front", True, 1, 5),
        ("00 01 00 00", "back", True, 2, 4),  # a full last block is not open
        ("00 01 00 00", "any", True, 3, 2),
        ("00 00 0", "front", False, 3, 0),
        ("00 00 0", "front", True, 2, 1),
        ("00 00 0", "back", True, 0, 5),
        ("00 00 0", "none", True, 0, 5),
        ("0", "any", True, 0, 1),
        ("", "any", True, 0, 0),
    ],
)
def test_which_blocks_come_back(
    keep: str, frees: str, open_tail: bool, freed: int, held_tokens: int
) -> None:
    census = census_of(keep.replace(" ", ""), Pool(2, frees=frees, open_tail=open_tail))
    assert census["num_freed_blocks"] == freed
    assert census["num_held_tokens"] == held_tokens


def test_a_full_compaction_takes_a_dead_open_tail() -> None:
    census = census_of("110", Pool(2, open_tail=True))
    assert census["num_freed_blocks"] == 0
    assert census["num_packed_blocks"] == 1
    assert census["movable"] == (1, 0, 0)
    assert oracle.reclaim_curve(census) == [0]
    assert oracle.blocks_for_moves(census, 0) == 1
    assert oracle.moved_tokens_per_block(census) == 0
    assert oracle.slots_per_move(census) is None
    back = census_of("110", Pool(2, open_tail=True, frees="back"))
    assert (back["num_held_blocks"], back["num_packed_blocks"]) == (2, 1)
    with pytest.raises(ValueError, match="evacuate"):
        oracle.reclaim_curve(back)


def test_offset_slots_are_slack_and_holes() -> None:
    aligned = census_of("0000 1111".replace(" ", ""), 4)
    assert (aligned["num_blocks"], aligned["num_freed_blocks"]) == (2, 1)
    shifted = census_of("00001111", Pool(4, compactor="pack"), offset=1)
    assert shifted["counts"] == (1, 1, 0, 1, 0)  # -000 0111 1---
    assert shifted["num_freed_blocks"] == 1
    assert shifted["num_held_tokens"] == 5
    assert shifted["num_stranded_tokens"] == 1
    assert shifted["num_slack_slots"] == 3
    assert shifted["num_packed_blocks"] == 1
    assert shifted["num_moved_entries"] == 4
    assert oracle.fragmentation(shifted) == Fraction(1, 2)
    kept = census_of("1111", Pool(4, compactor="pack"), offset=3)  # ---1 111-
    assert (kept["num_blocks"], kept["num_packed_blocks"]) == (2, 1)
    assert kept["num_slack_slots"] == 4
    assert kept["num_moved_entries"] == 4
    assert census_of("1111", Pool(4, compactor="fill"), offset=3)["num_moved_entries"] == 3
    assert census_of("1111", 4, offset=3)["num_moved_entries"] == 1
    # The offset fills the block: its end, not its number of tokens, makes a tail open.
    assert census_of("00", Pool(4, open_tail=True), offset=2)["num_freed_blocks"] == 1
    assert census_of("00", Pool(4, open_tail=True), offset=1)["num_freed_blocks"] == 0


def test_two_rows_in_shared_blocks() -> None:
    keep = [bits("11 00 10 00".replace(" ", "")), bits("00 10 01 00".replace(" ", ""))]
    shared = oracle.census(keep, Pool(2), "ht")
    assert shared["rows_per_table"] == 2
    assert shared["num_tables"] == 1
    assert shared["num_entries"] == 16
    assert shared["num_live_entries"] == 5
    assert shared["counts"] == (1, 1, 2)
    assert shared["num_packed_blocks"] == 3  # 5 live slots
    assert shared["num_floor_blocks"] == 2  # 3 live entries in the fullest row
    assert shared["num_moved_entries"] == 0
    assert oracle.fragmentation(shared) == Fraction(1, 6)
    assert oracle.memory_waste(shared) == Fraction(7, 12)
    assert oracle.packed_reclaim(shared) == Fraction(1, 2)
    assert oracle.compacted_reclaim(shared) == Fraction(1, 4)
    assert oracle.savings_breakdown(shared) == {
        "num_entries": 16,
        "num_reclaimed": 4,
        "num_stranded": 2,
        "num_unshared": 5,
        "num_pinned": 0,
        "reclaimed": Fraction(1, 4),
        "stranded": Fraction(1, 8),
        "unshared": Fraction(5, 16),
        "pinned": Fraction(0),
    }
    assert oracle.effective_tokens_per_block(shared) is None
    assert oracle.effective_rows(shared) == pytest.approx(math.log(3 / 8) / math.log(11 / 16))

    # Live entries per block 2, 1, 2, 0: two blocks stay, one entry moves.
    rows = oracle.census(keep, Pool(2, compactor="evacuate_rows"), "ht")
    assert (rows["num_packed_blocks"], rows["num_moved_entries"]) == (2, 1)
    assert oracle.moved_tokens_per_block(rows) == Fraction(1, 2)
    assert oracle.slots_per_move(rows) == 4
    assert oracle.decode_steps(rows) == Fraction(2, 5)
    # First row: the entry at 4; second row: both.
    packed = oracle.census(keep, Pool(2, compactor="pack_rows"), "ht")
    assert (packed["num_packed_blocks"], packed["num_moved_entries"]) == (2, 3)
    # Slots 11 10 11 00: those at 4 and 5 move, two entries each; only 5 in positions >= 5.
    assert oracle.census(keep, Pool(2, compactor="pack"), "ht")["num_moved_entries"] == 4
    assert oracle.census(keep, Pool(2, compactor="fill"), "ht")["num_moved_entries"] == 2

    apart = oracle.census(keep, Pool(2, shared_axes=""), "ht")
    assert (apart["rows_per_table"], apart["num_tables"], apart["num_blocks"]) == (1, 2, 8)
    assert apart["num_freed_blocks"] == 4
    assert apart == oracle.census(keep, Pool(2, shared_axes=""))  # axes may be left out
    with pytest.raises(ValueError, match="rows per table"):
        oracle.add(shared, oracle.census(keep, Pool(2, shared_axes="l"), "ht"))


def test_any_order_of_axes() -> None:
    keep = [[bits("1100"), bits("0000")], [bits("0001"), bits("0001")]]  # (l, b, t)
    by_layer_last = [[[keep[layer][b][t] for layer in (0, 1)] for t in range(4)] for b in (0, 1)]
    first = oracle.census(keep, Pool(2), "lbt", lengths=[4, 4])
    assert first == oracle.census(by_layer_last, Pool(2), "btl")
    assert first["counts"] == (1, 2, 1)
    assert first["num_tables"] == 2


def test_sequences_of_length_zero() -> None:
    census = oracle.census([bits("0000"), bits("1000")], Pool(4), "bt", lengths=[0, 4], offset=3)
    assert census["num_tables"] == 2
    assert census["num_tokens"] == 4
    assert census["num_blocks"] == 2  # ---1 000-
    nothing = oracle.census([[], []], Pool(4), "bt")
    assert (nothing["num_tables"], nothing["num_blocks"]) == (2, 0)
    assert nothing["rows_per_table"] == 1
    no_tables = oracle.census([], Pool(4), "bht", shape=(0, 3, 5))
    assert (no_tables["num_tables"], no_tables["rows_per_table"]) == (0, 3)
    for metric in (
        oracle.logical_saving,
        oracle.physical_reclaim,
        oracle.reclaim_efficiency,
        oracle.fragmentation,
        oracle.packed_reclaim,
        oracle.compacted_reclaim,
        oracle.moved_tokens_per_block,
        oracle.slots_per_move,
        oracle.memory_waste,
        oracle.capacity_gain,
        oracle.effective_tokens_per_block,
        oracle.effective_rows,
        oracle.decode_steps,
    ):
        assert metric(nothing) is None, metric.__name__
        assert metric(oracle.empty(Pool(4))) is None, metric.__name__
    assert oracle.reclaim_curve(nothing) == []
    assert oracle.admission_count(nothing, Pool(4), 1) == 0


def test_lengths_and_offsets_broadcast() -> None:
    keep = [[bits("1100"), bits("1000")], [bits("0100"), bits("1000")]]
    pool = Pool(2)
    # Two outer letters, in mask order.
    grid = oracle.census(keep, pool, "sbt", lengths=[[2, 1], [2, 1]], offset=[[0, 1], [0, 1]])
    assert grid["num_tokens"] == 6
    assert grid["num_blocks"] == 4
    assert grid == oracle.census(keep, pool, "sbt", lengths=[[2, 1]], offset=[[0, 1]])
    assert grid == oracle.census(keep, pool, "sbt", lengths=[2, 1], offset=[0, 1])
    assert oracle.census(keep, pool, "sbt", lengths=2) == oracle.census(
        keep, pool, "sbt", lengths=[[2]]
    )
    with pytest.raises(ValueError, match="outer letter"):
        oracle.census(keep, pool, "sxt", lengths=[2, 1])
    with pytest.raises(ValueError, match="neither 1"):
        oracle.census(keep, pool, "sbt", lengths=[4, 4, 4])


@pytest.mark.parametrize(
    ("keep", "options", "error"),
    [
        ([1, 1, 0], {"lengths": 1}, ValueError),  # kept beyond the length
        ([1, 0], {"lengths": 3}, ValueError),
        ([1, 0], {"lengths": -1}, ValueError),
        ([1, 0], {"lengths": 2.0}, TypeError),
        ([1, 0], {"lengths": True}, TypeError),
        ([1, 0], {"lengths": [2]}, ValueError),  # no outer letter
        ([1, 0], {"offset": 2}, ValueError),
        ([1, 0], {"offset": -1}, ValueError),
        ([1, 0], {"offset": 0.0}, TypeError),
        ([1, 0], {"axes": "bt"}, ValueError),
        ([1, 0], {"axes": "b"}, ValueError),
        ([1, 0], {"axes": 1}, TypeError),
        ([[1, 0]], {}, ValueError),  # axes needed
        ([[1, 0]], {"axes": "tt"}, ValueError),
        ([[[1, 0]]], {"axes": "bbt"}, ValueError),
        ([[1, 0], [1]], {"axes": "bt"}, ValueError),
        ([[], []], {"axes": "th"}, ValueError),  # a shared axis of size 0
        (True, {}, ValueError),
        ([1, 2], {}, ValueError),
        ([1.0, 0.0], {}, TypeError),
        (["1", "0"], {}, TypeError),
    ],
)
def test_bad_input_is_refused(keep: Any, options: Any, error: type[Exception]) -> None:  # noqa: ANN401
    with pytest.raises(error):
        oracle.census(keep, Pool(2), **options)


@pytest.mark.parametrize(
    ("options", "compactor"),
    [
        ({}, "evacuate"),
        ({"frees": "back"}, "fill"),
        ({"frees": "front"}, "none"),
        ({"frees": "none"}, "none"),
        ({"frees": "back", "compactor": "pack"}, "pack"),
    ],
)
def test_the_compactor_follows_what_is_freed(options: Any, compactor: str) -> None:  # noqa: ANN401
    assert Pool(16, **options).compactor == compactor
    assert Pool(16).shared_axes == "hl"


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"block_size": 0}, ValueError),
        ({"block_size": 65_536}, ValueError),
        ({"block_size": True}, TypeError),
        ({"shared_axes": "ll"}, ValueError),
        ({"shared_axes": "lt"}, ValueError),
        ({"frees": "head"}, ValueError),
        ({"frees": "back", "compactor": "evacuate"}, ValueError),
        ({"frees": "front", "compactor": "fill"}, ValueError),
        ({"reserved_blocks": -1}, ValueError),
        ({"total_blocks": 4, "reserved_blocks": 1, "watermark_blocks": 4}, ValueError),
        ({"entry_bytes": 0}, ValueError),
    ],
)
def test_bad_pools_are_refused(options: Any, error: type[Exception]) -> None:  # noqa: ANN401
    with pytest.raises(error):
        Pool(**{"block_size": 16, **options})


def test_streaming_llm_and_every_second() -> None:
    sink_and_window = [token < 4 or token >= 512 - 252 for token in range(512)]
    window = oracle.census(sink_and_window, 16)
    assert oracle.logical_saving(window) == Fraction(1, 2)
    assert oracle.physical_reclaim(window) == Fraction(15, 32)
    assert oracle.reclaim_efficiency(window) == Fraction(15, 16)
    assert oracle.moved_tokens_per_block(window) == 4
    assert oracle.slots_per_move(window) == 4
    assert oracle.capacity_gain(window) == Fraction(32, 17)
    effective = oracle.effective_tokens_per_block(window)
    assert effective == pytest.approx(math.log(15 / 32) / math.log(1 / 2))
    assert oracle.effective_rows(window) == pytest.approx(1)

    every_second = oracle.census([True, False] * 256, 16)
    assert oracle.logical_saving(every_second) == Fraction(1, 2)
    assert oracle.physical_reclaim(every_second) == 0
    assert oracle.reclaim_efficiency(every_second) == 0
    assert oracle.fragmentation(every_second) == Fraction(1, 2)
    assert oracle.packed_reclaim(every_second) == Fraction(1, 2)
    assert oracle.moved_tokens_per_block(every_second) == 8
    assert oracle.slots_per_move(every_second) == 2
    assert oracle.effective_tokens_per_block(every_second) == math.inf
    assert oracle.reclaim_curve(every_second) == [8 * blocks for blocks in range(1, 17)]
    assert oracle.blocks_for_moves(every_second, 23) == 2
    assert oracle.decode_steps(every_second) == 1  # half of the survivors move


def test_efficiency_can_exceed_one() -> None:
    ten_with_a_dead_tail = oracle.census([bits("1" * 16 + "0")] * 10, Pool(16), "bt")
    assert oracle.reclaim_efficiency(ten_with_a_dead_tail) == Fraction(17, 2)
    assert oracle.fragmentation(ten_with_a_dead_tail) == 0


def test_undefined_before_infinite() -> None:
    nothing_freed = Pool(2, frees="none")
    assert oracle.effective_tokens_per_block(census_of("0000", nothing_freed)) is None
    assert oracle.effective_tokens_per_block(census_of("1111", nothing_freed)) is None
    assert oracle.effective_tokens_per_block(census_of("1000", nothing_freed)) == math.inf
    disjoint = oracle.census([bits("10"), bits("01")], Pool(2), "ht")
    assert oracle.effective_rows(disjoint) == math.inf
    assert oracle.effective_rows(oracle.census([bits("11")] * 2, Pool(2), "ht")) is None
    assert oracle.fragmentation(census_of("00", 2)) is None
    assert oracle.capacity_gain(census_of("00", 2)) is None
    assert oracle.memory_waste(census_of("00", 2)) is None
    assert oracle.moved_tokens_per_block(census_of("0101", Pool(4, compactor="pack"))) is None


def test_admission_and_usage_of_a_sized_pool() -> None:
    pool = Pool(2, total_blocks=11, reserved_blocks=1, watermark_blocks=2)
    census = census_of("00 10 00 11".replace(" ", ""), pool)
    assert oracle.pool_usage(census, pool) == {"before": Fraction(2, 5), "after": Fraction(1, 5)}
    assert oracle.admission_count(census, pool, 3) == 2  # 8 free, 6 above the watermark
    assert oracle.admission_count(census, Pool(2), 2) == 1
    assert oracle.admission_count(census, Pool(2, watermark_blocks=9), 1) == 0
    assert oracle.admission_count(census, Pool(2, reserved_blocks=9), 2) == 1
    with pytest.raises(ValueError, match="never fitted"):
        oracle.admission_count(census, Pool(2, total_blocks=4, reserved_blocks=1), 1)
    with pytest.raises(ValueError, match="at least one block"):
        oracle.admission_count(census, pool, 0)
    with pytest.raises(ValueError, match="total_blocks"):
        oracle.pool_usage(census, Pool(2))
    only_reserved = Pool(2, total_blocks=1, reserved_blocks=1)
    assert oracle.pool_usage(census, only_reserved) == {"before": None, "after": None}


def test_admission_orders() -> None:
    assert oracle.admit(10, [4, 7, 4]) == (0,)
    assert oracle.admit(10, [4, 7, 4], order="skip") == (0, 2)
    assert oracle.admit(10, [7, 4, 4, 4], order="smallest") == (1, 2)
    assert oracle.admit(10, [5, 5], watermark_blocks=1) == (0,)
    assert oracle.admit(10, [10], watermark_blocks=1) == ()
    assert oracle.admit(10, [10], watermark_blocks=1, exempt_first=True) == (0,)
    # The first that is admitted, not the first in the queue.
    assert oracle.admit(5, [6, 5], watermark_blocks=1, order="skip", exempt_first=True) == (1,)
    assert oracle.admit(5, [6, 5], watermark_blocks=1, exempt_first=True) == ()
    assert oracle.admit(0, []) == ()
    for refused in ({"demands": [0]}, {"demands": [-1]}, {"free_blocks": -1}, {"order": "lifo"}):
        with pytest.raises(ValueError, match=r"demand|negative|order"):
            oracle.admit(**{"free_blocks": 1, "demands": [1], **refused})  # type: ignore[arg-type]


def test_sums_must_agree() -> None:
    one = census_of("110100", 2)
    assert oracle.add(oracle.empty(Pool(2)), one) == one
    with pytest.raises(ValueError, match="pools"):
        oracle.add(one, census_of("1", 4))
    with pytest.raises(ValueError, match="pools"):
        oracle.add(one, census_of("1", Pool(2, compactor="fill")))
    with pytest.raises(ValueError, match="negative"):
        oracle.blocks_for_moves(one, -1)


def test_the_twin_is_independent() -> None:
    source = Path(oracle.__file__).read_text(encoding="utf-8")
    imports = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
    assert not [line for line in imports if "numpy" in line or "kvreclaim" in line]
