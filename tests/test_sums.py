"""Sums and means: each is the float nearest to the true one, whatever the order and the layout."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvreclaim import _sums

SMALLEST = 5e-324
HALF = 2.0**-53  # half of what lies between 1 and the next float
# Terms whose sums lie on the border between two floats, next to it, or near the smallest ones.
KINDS: dict[str, list[float]] = {
    "tenths": [number * 0.1 for number in range(-4, 12)],
    "borders": [1.0, HALF, -HALF, HALF / 2, 2.0**-106, -(2.0**-106), 1e-200, -1e-200, 2.0, 3.0],
    "smallest": [SMALLEST, 3 * SMALLEST, -SMALLEST, 2.0**-1022, 2.0**-1021, 2.0**-970],
    "vast": [1e300, -1e300, 1e299, 1.0, 2.0**943, HALF],
    "infinite": [0.1, 0.2, math.inf, 1e300, -1e300],
}


@st.composite
def arrays(draw: st.DrawFn, *, groups: int = 3, rows: int = 5) -> NDArray[np.float64]:
    """Terms as (group, row, column), in any memory layout."""
    shape = [draw(st.integers(0, groups)), draw(st.integers(0, rows)), draw(st.integers(0, 12))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from([*KINDS, "any", "wide"]))
    if kind == "any":
        values = rng.random(shape)
    elif kind == "wide":
        values = np.exp(rng.normal(0, draw(st.sampled_from([1, 10, 100])), shape))
    else:
        values = rng.choice(KINDS[kind], shape)
    order = draw(st.permutations(range(3)))
    return values.transpose(order).copy().transpose(np.argsort(order))


def nearest(terms: Iterable[float], count: int = 1) -> float:
    some = list(terms)
    if math.inf in some:
        return math.inf
    return float(sum(map(Fraction, some), Fraction(0)) / count)


def chunks_of(columns: int, size: int, offset: int) -> list[list[int]]:
    number = -(-(columns + offset) // size) if columns else 0
    slots = range(number * size)
    return [
        [slot - offset for slot in slots[i * size : (i + 1) * size] if 0 <= slot - offset < columns]
        for i in range(number)
    ]


# On the border between two floats, just beyond it on either side, or alike but for an addition.
DOUBTFUL = [
    [first, HALF, *more]
    for first in (1.0, 1.0 + 2 * HALF)
    for more in ([SMALLEST], [-SMALLEST], [0.0], [1e-200, -1e-200])
]


@pytest.mark.parametrize("terms", [*DOUBTFUL, [1e300, 1.0, -1e300]])
def test_sums_and_means_on_a_border_are_decided_exactly(terms: list[float]) -> None:
    for size in (4, 8):
        padded = [*terms, *[0.0] * (size - len(terms))]
        row = np.array([[[7.0, *padded]]])
        of_columns = _sums.over_rows(row.swapaxes(1, 2))
        assert _sums.rounded(of_columns).tolist() == [[nearest([7.0, *terms])]]
        found, counts = _sums.over_chunks(_sums.over_rows(row), size, np.array([[size - 1]]))
        assert counts.tolist() == [[1, size]]
        assert _sums.rounded(found).tolist() == [[7.0, nearest(terms)]]
        assert _sums.means(found, counts).tolist() == [[7.0, nearest(terms, size)]]
        around = _sums.over_neighbours(np.array([terms]), 2 * size + 1)
        assert set(_sums.rounded(around)[0].tolist()) == {nearest(terms)}


@given(arrays())
def test_a_sum_is_the_nearest_float(values: NDArray[np.float64]) -> None:
    got = _sums.rounded(_sums.over_rows(values))
    assert got.tolist() == [[nearest(column) for column in group.T] for group in values]


@given(arrays(), st.integers(1, 15), st.data())
def test_sums_and_means_of_chunks_are_the_nearest_floats(
    values: NDArray[np.float64], size: int, data: st.DataObject
) -> None:
    groups, rows, columns = values.shape
    number = data.draw(st.sampled_from([1, max(1, groups)]))
    offsets = data.draw(st.lists(st.integers(0, size - 1), min_size=number, max_size=number))
    found, counts = _sums.over_chunks(
        _sums.over_rows(values), size, np.array(offsets, np.int64)[:, None]
    )
    totals = _sums.rounded(found)
    means = _sums.means(found, np.maximum(counts * rows, 1))
    for group in range(groups):
        offset = offsets[group % number]
        chunks = chunks_of(columns, size, offset)
        for place, chunk in enumerate(chunks):
            terms = values[group][:, chunk].ravel().tolist()
            assert counts[group % number, place] == len(chunk)
            assert totals[group, place] == nearest(terms)
            assert means[group, place] == nearest(terms, max(1, len(terms)))
        assert not totals[group, len(chunks) :].any()


@given(arrays(rows=0), arrays(), st.integers(0, 14))
def test_sums_over_neighbours_are_the_nearest_floats(
    none: NDArray[np.float64], values: NDArray[np.float64], side: int
) -> None:
    for array in (none.sum(axis=1), values[:, 0] if values.shape[1] else values.sum(axis=1)):
        got = _sums.rounded(_sums.over_neighbours(array, 2 * side + 1))
        wanted = [
            [nearest(row[max(0, i - side) : i + side + 1]) for i in range(len(row))]
            for row in array.tolist()
        ]
        assert got.tolist() == wanted


def test_an_infinite_neighbour_is_seen_from_side_to_side() -> None:
    row = np.array([[0.1, 0.2, 0.3, 0.4, math.inf, 0.5, 0.6, 0.7]])
    around = _sums.rounded(_sums.over_neighbours(row, 5))[0]
    assert np.isinf(around).tolist() == [False] * 2 + [True] * 5 + [False]


@given(st.floats(-1e300, 1e300), st.integers(1, 40), st.integers(1, 9))
@example(0.1, 10, 3)
@example(5e-324, 7, 7)
@example(1e300, 3, 3)
def test_the_mean_of_equal_numbers_is_that_number(value: float, columns: int, size: int) -> None:
    rows = np.full((1, 3, columns), value)
    found, counts = _sums.over_chunks(_sums.over_rows(rows), size, np.zeros((1, 1), np.int64))
    assert set(_sums.means(found, counts * 3)[0].tolist()) == {value}


@pytest.mark.parametrize("shape", [(1, 70_000, 2), (300, 3, 100), (2, 5, 70_000), (1, 1, 140_000)])
def test_large_arrays_are_summed_in_parts(shape: tuple[int, int, int]) -> None:
    values = np.random.default_rng(0).random(shape) - 0.5
    values[-1, -1, -1] = math.inf
    got = _sums.rounded(_sums.over_rows(values))
    wanted = [[math.fsum(column) for column in group.T.tolist()] for group in values]
    assert got.tolist() == wanted


@given(arrays(), st.randoms(use_true_random=False))
def test_order_and_layout_do_not_matter(values: NDArray[np.float64], random: Any) -> None:  # noqa: ANN401  # Hypothesis names no type for it
    wanted = _sums.rounded(_sums.over_rows(values)).tolist()
    order = list(range(values.shape[1]))
    random.shuffle(order)
    for other in (np.asfortranarray(values), values[:, order], values[:, ::-1]):
        assert _sums.rounded(_sums.over_rows(other)).tolist() == wanted
