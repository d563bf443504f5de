"""Rows that an eviction leaves, told by their bits: where they were, and where that stays open."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from kvreclaim import _rows, masks


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
    found = masks.from_rows(before, after)
    assert found.keep.tolist() == keep
    assert found[1:] == (ambiguous, unmatched)


def test_keys_and_values_end_to_end_tell_more_tokens_apart() -> None:
    keys = np.array([[1.0], [1.0], [2.0]])
    values = np.array([[3.0], [4.0], [3.0]])
    left = [1, 2]
    assert masks.from_rows(keys, keys[left]).num_ambiguous == 1
    both = np.concatenate([keys, values], axis=-1)
    assert masks.from_rows(both, both[left], strict=True)[1:] == (0, 0)
    assert masks.from_rows(both, both[left]).keep.tolist() == [False, True, True]


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
    assert masks.from_rows(before, after).num_unmatched == 1
    with pytest.raises(ValueError, match=re.escape(where)) as refusal:
        masks.from_rows(before, after, strict=True)
    assert "the values where it rewrites the keys" in str(refusal.value)


def test_strict_is_a_flag() -> None:
    with pytest.raises(TypeError, match="strict must be"):
        masks.from_rows([[1.0]], [[1.0]], strict=1)  # type: ignore[arg-type]  # on purpose
