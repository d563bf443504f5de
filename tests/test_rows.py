"""Rows that an eviction leaves, told by their bits: where they were, and where that stays open."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _rows, masks
from kvreclaim.adapters._row_history import Codes, RowHistory
from kvreclaim.lifetimes import NEVER


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 4), max_size=12))
@example([1, 1, 2], [1, 2, 1])
@example([1, 1, 2], [1])
@example([], [1])
def test_each_row_left_is_taken_from_an_equal_one(before: list[int], after: list[int]) -> None:
    index, unsure = _rows.sources(np.array(before, np.int64), np.array(after, np.int64))
    places: dict[int, list[int]] = {}
    for place, row in enumerate(before):
        places.setdefault(row, []).append(place)
    expected = [places[row].pop(0) if places.get(row) else -1 for row in after]
    assert index.tolist() == expected
    was, now = Counter(before), Counter(after)
    assert unsure.tolist() == [now[row] < was[row] for row in after]


@given(st.data(), st.sampled_from(["f2", "f4", "i1"]))
def test_from_rows_counts_what_it_cannot_tell(data: st.DataObject, kind: str) -> None:
    """A slow twin: rows as bytes, survivors struck off a list one by one."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    before = rng.integers(0, 2, (2, 9, 2)).astype(kind)
    taken = rng.integers(0, 9, (2, 5))
    after = np.take_along_axis(before, taken[..., None], axis=1)
    keep, ambiguous, unmatched = [], 0, 0
    for old, new in zip(before, after, strict=True):
        rows = [row.tobytes() for row in old]
        left = [row.tobytes() for row in new]
        kept = [False] * len(rows)
        for row in left:
            free = [i for i, other in enumerate(rows) if other == row and not kept[i]]
            if free:
                kept[free[0]] = True
                ambiguous += left.count(row) < rows.count(row)
            else:
                unmatched += 1
        keep.append(kept)
    found = masks.from_rows(before, after, strict=False)
    assert found.keep.tolist() == keep
    assert found[1:] == (ambiguous, unmatched)


def test_keys_and_values_end_to_end_tell_more_tokens_apart() -> None:
    keys = np.array([[1.0], [1.0], [2.0]])
    values = np.array([[3.0], [4.0], [3.0]])
    left = [1, 2]
    assert masks.from_rows(keys, keys[left]).num_ambiguous == 1
    both = np.concatenate([keys, values], axis=-1)
    found = masks.from_rows(both, both[left])
    assert found[1:] == (0, 0)
    assert found.keep.tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ([[1.0], [2.0]], [[1.0], [2.5]], "got a row at slot 1 that is not there"),
        ([[1.0], [2.0]], [[1.0], [1.0]], "got a row at slot 1 that is not there"),
        ([[[1.0]], [[2.0]]], [[[1.0]], [[0.0]]], "got a row at slot 0 in row 1 that is not there"),
        (
            [[[[1.0]], [[2.0]]]],
            [[[[1.0]], [[-2.0]]]],
            "got a row at slot 0 in row (0, 1) that is not there",
        ),
    ],
)
def test_a_row_that_was_rewritten_is_refused_where_it_is(
    before: ArrayLike, after: ArrayLike, where: str
) -> None:
    assert masks.from_rows(before, after, strict=False).num_unmatched == 1
    with pytest.raises(ValueError, match=re.escape(where)) as refusal:
        masks.from_rows(before, after)
    assert "the values where it rewrites the keys" in str(refusal.value)


ROWS = np.random.default_rng(0).standard_normal((2, 6, 4)).astype("f4")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (ROWS, ROWS[:, 1:4] * np.float32(1.0001)),
        (ROWS, ROWS[:, 1:4].astype("f2").astype("f4")),
        (ROWS[:, :4], ROWS[:, :4].swapaxes(-1, -2)),
        (ROWS[:, 1:4], ROWS[:, 1:]),
    ],
    ids=["rewritten", "cast and back", "other axes", "swapped"],
)
def test_rows_that_say_nothing_of_an_eviction_are_refused_unless_told(
    before: NDArray[np.float32], after: NDArray[np.float32]
) -> None:
    with pytest.raises(ValueError, match=r"after must .*; write .*strict=False"):
        masks.from_rows(before, after)
    assert masks.from_rows(before, after, strict=False).num_unmatched > 0


def test_a_refusal_counts_the_rows_that_are_not_there() -> None:
    after = ROWS[:, 1:5].copy()
    after[1, [0, 2]] += 1
    with pytest.raises(ValueError, match=r"at slot 0 in row 1 .*, 2 of 4 in all; write .* nor in"):
        masks.from_rows(ROWS, after)


def test_tokens_written_since_are_let_pass_where_that_is_said() -> None:
    found = masks.from_rows(ROWS[:, :3], ROWS[:, 1:], strict=False)
    assert found.num_unmatched == 2 * 3
    assert found.keep.tolist() == [[False, True, True]] * 2


@pytest.mark.parametrize("kind", [np.longdouble, np.clongdouble])
def test_numbers_with_bytes_that_mean_nothing_are_refused(kind: type[np.generic]) -> None:
    rows = np.ones((2, 1), kind)
    if rows.dtype.char in "dD":
        pytest.skip("an extended float is a double here")
    with pytest.raises(TypeError, match=r"before must be an array of numbers .*; got an array of"):
        masks.from_rows(rows, rows[:1])


def test_strict_is_a_flag() -> None:
    with pytest.raises(TypeError, match="strict must be"):
        masks.from_rows([[1.0]], [[1.0]], strict=1)  # type: ignore[arg-type]  # on purpose


# --- Which token sits in which slot ---


def history_of(*passes: int, real: list[bool] | None = None) -> RowHistory:
    """A layer of one sequence and two heads after passes of so many tokens."""
    history = RowHistory(3, 1, 2)
    for number in passes:
        row = np.ones((1, number), np.bool_) if real is None else np.array([real])
        history.append(row)
    return history


def codes(keys: list[int], values: list[int]) -> Codes:
    """The same rows in both heads."""
    key, value = (
        np.broadcast_to(np.array(row, np.int64), (1, 2, len(row))) for row in (keys, values)
    )
    return key, value


def times(history: RowHistory) -> list[int]:
    assert (history.evicted_at == history.evicted_at[:1, :1]).all()
    return [int(time) if time < NEVER else -1 for time in history.evicted_at[0, 0]]


def test_slots_yet_to_come_are_masked_when_they_are_there() -> None:
    history = history_of(3)
    at = (np.array([0, 0]), np.array([0, 0]), np.array([1, 4]))
    assert not history.mask(at, 1)
    assert history.evicted_at[0].tolist() == [[NEVER, 1, NEVER], [NEVER] * 3]
    history.append(np.ones((1, 2), np.bool_))
    assert history.mask(at, 2)
    assert history.evicted_at[0, 0].tolist() == [NEVER, 1, NEVER, NEVER, 2]


def test_a_gather_moves_tokens_and_later_ones_are_told_by_where_they_are() -> None:
    history = history_of(4)
    history.gather(codes([1, 2, 3, 4], [5, 6, 7, 8]), codes([4, 1, 3], [8, 5, 7]), step=1)
    assert history.origin[0, 0].tolist() == [3, 0, 2]
    history.append(np.ones((1, 1), np.bool_))
    history.gather(codes([4, 1, 3, 9], [0, 0, 0, 0]), codes([9, 3], [0, 0]), step=2)
    assert history.origin[0, 1].tolist() == [4, 2]
    assert times(history) == [2, 1, -1, 2, -1]
    assert history.born_at.tolist() == [0, 0, 0, 0, 1]


def test_what_was_not_rewritten_tells_rows_apart() -> None:
    was = codes([1, 2, 3, 4], [5, 6, 5, 8])
    for now, ambiguous in (
        (codes([3, 4], [5, 8]), 0),  # both copied
        (codes([7, 9], [6, 8]), 0),  # keys rewritten
        (codes([7, 9], [5, 8]), 2),  # keys rewritten, and two values were equal
        (codes([3, 4], [0, 0]), 0),  # values rewritten
        (codes([3, 9], [5, 8]), 2),  # one key rewritten: then keys say nothing
    ):
        history = history_of(4)
        history.gather(was, now, step=1)
        assert history.num_ambiguous == ambiguous


@pytest.mark.parametrize("keys_written", [False, True])
def test_what_was_written_over_in_place_tells_nothing_alone(keys_written: bool) -> None:
    """Rows 1 and 2 of four were moved to the front of their own memory."""
    history = history_of(4)
    whole, moved = [1, 2, 3, 4], [2, 3, 3, 4]
    history.gather(
        codes(moved, whole) if keys_written else codes(whole, moved),
        codes([2, 3], [2, 3]),
        step=1,
        overwritten=(keys_written, not keys_written),
    )
    assert times(history) == [1, -1, -1, 1]
    assert history.num_ambiguous == 0


def test_keys_and_values_must_be_of_the_same_tokens() -> None:
    with pytest.raises(ValueError, match="layer 3 must be left with keys and values of the same"):
        history_of(4).gather(codes([1, 2, 3, 4], [5, 6, 7, 8]), codes([2, 3], [5, 6]), step=1)


def test_a_row_whose_key_equals_its_value_is_one_of_its_own() -> None:
    history = history_of(3)
    history.gather(codes([1, 2, 3], [1, 2, 3]), codes([2], [2]), step=1)
    assert history.origin[0].tolist() == [[1], [1]]
    assert history.num_ambiguous == 0


@pytest.mark.parametrize(
    ("taken", "place", "ambiguous"),
    [
        ([1, 3], [1, 3], 0),
        ([2, 3], [2, 3], 0),
        (None, [0, 3], 2),
        ([3, 3], [0, 3], 2),  # not what is left
        ([1, 1], [0, 3], 2),
        ([3, 1], [0, 3], 2),  # in another order
    ],
)
def test_what_was_asked_for_settles_which_of_equal_rows_is_left(
    taken: list[int] | None, place: list[int], ambiguous: int
) -> None:
    history = history_of(4)
    asked = None if taken is None else np.broadcast_to(np.array(taken), (1, 2, 2))
    history.gather(codes([1, 1, 1, 2], [1, 1, 1, 2]), codes([1, 2], [1, 2]), step=1, taken=asked)
    assert history.origin[0].tolist() == [place, place]
    assert history.num_ambiguous == ambiguous


def test_what_was_asked_for_settles_which_place_equal_rows_took() -> None:
    """Both are left, in the other order; the second eviction tells them apart by their keys."""
    history = history_of(3)
    taken = np.broadcast_to(np.array([2, 1]), (1, 2, 2))
    history.gather(codes([1, 2, 3], [9, 7, 7]), codes([6, 4], [7, 7]), step=1, taken=taken)
    history.gather(codes([6, 4], [7, 7]), codes([6], [7]), step=2)
    assert times(history) == [1, 2, -1]
    assert history.num_ambiguous == 0


def test_one_row_cannot_be_left_twice() -> None:
    history = history_of(3)
    twice = np.zeros((1, 2, 2), np.int64)
    history.gather(codes([1, 1, 1], [1, 1, 1]), codes([1, 1], [1, 1]), step=1, taken=twice)
    assert history.origin[0, 0].tolist() == [0, 1]
    assert history.num_ambiguous == 4


def test_padding_is_not_ambiguous() -> None:
    history = history_of(4, real=[False, False, True, True])
    history.gather(codes([1, 1, 2, 2], [1, 1, 2, 2]), codes([1, 2], [1, 2]), step=1)
    assert history.num_ambiguous == 2  # of the two heads' real rows


def test_the_newest_slots_are_taken_back_and_no_others() -> None:
    history = history_of(3, 2)
    history.gather(codes([1, 2, 3, 4, 5], [0] * 5), codes([3, 1, 5, 4], [0] * 4), step=2)
    assert not history.cut(3)  # token 3 in the last slot, token 4 before it
    assert history.num_slots == 4
    assert history.cut(2)
    assert history.num_tokens == 3
    assert history.cut(1) is False
    assert times(history) == [-1, 2, -1]


def test_a_replay_is_all_of_a_pass_but_not_the_first() -> None:
    history = history_of(3)
    assert not history.holds_replay(0)
    history = history_of(3, 2)
    assert history.holds_replay(3)
    assert not history.holds_replay(4)
    assert not history.holds_replay(2)
    history.gather(codes([1, 2, 3, 4, 5], [0] * 5), codes([1, 4, 2, 5], [0] * 4), step=2)
    assert not history.holds_replay(2)


def test_passes_that_are_gone_between_two_passes_were_taken_back() -> None:
    rows = [1, 2, 3, 4, 5, 6]
    for left, tokens, gone in (
        ([1, 3], 3, [-1, 1, -1]),  # of the first pass alone
        ([1, 4], 4, [-1, 1, 1, -1]),  # the second pass's only token is left
        ([1, 5], 6, [-1, 1, 1, 1, -1, 1]),
        ([6], 6, [1, 1, 1, 1, 1, -1]),
        ([], 3, [1, 1, 1]),  # the prompt itself is evicted, if it goes
    ):
        history = history_of(3, 1, 2)
        history.step = 0
        history.gather(codes(rows, [0] * 6), codes(left, [0] * len(left)), step=1, between=True)
        assert history.num_tokens == tokens
        assert times(history) == gone
    history = history_of(3, 1, 2)
    history.gather(codes(rows, [0] * 6), codes([1, 3], [0, 0]), step=1)
    assert history.num_tokens == 6  # a press has done it


def test_where_passes_began_is_forgotten_with_them() -> None:
    history = history_of(3, 3, 2)
    assert history.cut(3)
    history.append(np.ones((1, 5), np.bool_))  # where the third pass began, this one goes on
    history.gather(codes([*range(8)], [0] * 8), codes([*range(5)], [0] * 5), step=3, between=True)
    assert history.num_tokens == 8
    assert times(history) == [-1] * 5 + [3] * 3


def test_a_row_with_neither_key_nor_value_is_refused_where_it_is() -> None:
    history = history_of(3)
    with pytest.raises(ValueError, match="layer 3 must be left with copies") as refusal:
        history.gather(codes([1, 2, 3], [4, 5, 6]), codes([1, 9], [9, 6]), step=1)
    said = "got 2 of 4 rows with neither, the first in sequence 0, head 0, slot 1; measure"
    assert said in str(refusal.value)
