"""Reference policies: each against its slow twin, the laws they obey, and what bad input gets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import oracle_policies as oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvreclaim import BlockPool, compacted_reclaim, policies, runtimes, take_census

INF = math.inf
BUDGETS = st.integers(0, 24)
UNITS = st.sampled_from([1 / 8, 0.1, 1 / 3])
SHARES = st.sampled_from([0, 0.1, 0.2, 0.25, 0.29, 0.5, 0.7, 0.9, 1])


class Case(NamedTuple):
    """Scores and the letters of their axes."""

    scores: NDArray[np.float64]
    axes: str


@st.composite
def cases(
    draw: st.DrawFn, letters: str = "lhb", *, last: str = "t", smallest: int = 0, tokens: int = 20
) -> Case:
    """Scores of one to three axes beside those they end in, in any order and memory layout.

    Many are equal. Those in eighths have exact sums, those in tenths and thirds have not.
    """
    some = draw(st.lists(st.sampled_from(letters), unique=True, max_size=2))
    axes = "".join(draw(st.permutations([*some, *last])))
    sizes = {letter: draw(st.integers(smallest, 3)) for letter in some}
    sizes |= {"t": draw(st.integers(0, tokens)), "q": draw(st.integers(1, 4))}
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    most = draw(st.sampled_from([1, 3, 8, 1_000]))
    whole = rng.integers(-most, most + 1, [sizes[c] for c in axes])
    scores: NDArray[np.float64] = whole.astype(np.float64) * draw(UNITS)
    if draw(st.booleans()):
        scores[rng.random(scores.shape) < 0.1] = INF
    order = draw(st.permutations(range(len(axes))))
    return Case(scores.transpose(order).copy().transpose(np.argsort(order)), axes)


def same(got: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> None:
    assert got.dtype == np.bool_
    assert got.shape == wanted.shape
    assert (got == wanted).all()


def moved(case: Case, keep: NDArray[np.bool_], *, together: str = "") -> NDArray[np.bool_]:
    """Return a mask as (group, row of the group, token), by NumPy's own means."""
    letters = case.axes.replace("q", "")
    inner = [letter for letter in together if letter in letters]
    outer = [letter for letter in letters if letter not in [*inner, "t"]]
    ordered = keep.transpose([letters.index(letter) for letter in [*outer, *inner, "t"]])
    groups = math.prod(ordered.shape[: len(outer)])
    rows = math.prod(ordered.shape[len(outer) : -1])
    return ordered.reshape(groups, rows, ordered.shape[-1])


# --- Each policy is its slow twin ---


@given(cases(), BUDGETS)
def test_lowest_importance_is_its_twin(case: Case, kept: int) -> None:
    got = policies.lowest_importance(case.scores, kept, axes=case.axes)
    same(
        got,
        oracle.by_groups(case.scores, case.axes, lambda rows: oracle.lowest_importance(rows, kept)),
    )


@given(st.integers(0, 30), st.integers(0, 40), st.integers(0, 10))
def test_streaming_llm_is_its_twin(tokens: int, kept: int, sink: int) -> None:
    got = policies.streaming_llm(tokens, kept, sink=sink)
    assert set(np.flatnonzero(got)) == oracle.streaming_llm(tokens, kept, sink)
    assert got.shape == (tokens,)
    same(policies.streaming_llm((2, 3, tokens), kept, sink=sink), np.tile(got, (2, 3, 1)))


@given(cases(last="qt"), BUDGETS, SHARES)
def test_h2o_is_its_twin(case: Case, kept: int, share: float) -> None:
    got = policies.h2o(case.scores, kept, recent_share=share, axes=case.axes)
    same(
        got,
        oracle.by_groups(case.scores, case.axes, lambda rows: oracle.h2o(rows, kept, share)),
    )


@given(
    cases(last="qt"),
    BUDGETS,
    st.integers(1, 4),
    st.sampled_from([1, 3, 5, 9]),
    st.sampled_from(["avg", "max"]),
)
def test_snapkv_is_its_twin(case: Case, kept: int, window: int, kernel: int, pooling: str) -> None:
    got = policies.snapkv(
        case.scores, kept, window=window, kernel=kernel, pooling=pooling, axes=case.axes
    )
    same(
        got,
        oracle.by_groups(
            case.scores,
            case.axes,
            lambda rows: oracle.snapkv(rows, kept, window, kernel, pooling),
        ),
    )


@given(cases(last="qt", smallest=1), BUDGETS)
def test_tova_is_its_twin(case: Case, kept: int) -> None:
    got = policies.tova(case.scores, kept, axes=case.axes)
    same(
        got,
        oracle.by_groups(
            case.scores, case.axes, lambda rows: oracle.tova(rows, kept), together="h"
        ),
    )


@given(cases(smallest=1), BUDGETS, SHARES)
@example(Case(np.array([[INF, 0, 0], [INF, INF, INF]]), "ht"), 1, 1)
def test_ada_kv_is_its_twin(case: Case, kept: int, floor: float) -> None:
    got = policies.ada_kv(case.scores, kept, floor=floor, axes=case.axes)
    same(
        got,
        oracle.by_groups(
            case.scores, case.axes, lambda rows: oracle.ada_kv(rows, kept, floor), together="h"
        ),
    )


@given(
    cases("lhb", smallest=1, tokens=40),
    BUDGETS,
    st.integers(0, 6),
    st.sampled_from([1, 1.5, 2, 3, 20]),
)
def test_pyramid_kv_is_its_twin(case: Case, kept: int, window: int, beta: float) -> None:
    got = policies.pyramid_kv(case.scores, kept, window=window, beta=beta, axes=case.axes)
    same(
        got,
        oracle.by_groups(
            case.scores,
            case.axes,
            lambda rows: oracle.pyramid_kv(rows, kept, window, beta),
            together="l",
        ),
    )


@given(cases(smallest=1), BUDGETS, st.integers(1, 7))
def test_chunk_kv_is_its_twin(case: Case, kept: int, chunk: int) -> None:
    got = policies.chunk_kv(case.scores, kept, chunk=chunk, axes=case.axes)
    same(
        got,
        oracle.by_groups(
            case.scores, case.axes, lambda rows: oracle.by_chunks(rows, kept, chunk), together="h"
        ),
    )


@given(
    cases(smallest=1),
    BUDGETS,
    st.builds(
        BlockPool,
        st.integers(1, 7),
        shared_axes=st.sampled_from(["", "h", "lh"]),
        open_tail=st.booleans(),
    ),
    st.data(),
)
def test_whole_block_is_its_twin(
    case: Case, kept: int, pool: BlockPool, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(0, pool.block_size - 1))
    got = policies.whole_block(case.scores, kept, pool, axes=case.axes, offset=offset)

    def choose(rows: list[Any]) -> list[set[int]]:
        return oracle.by_chunks(rows, kept, pool.block_size, offset, spare_part=pool.open_tail)

    same(got, oracle.by_groups(case.scores, case.axes, choose, together=pool.shared_axes))


@given(cases(smallest=1), st.integers(1, 7), st.sampled_from(["", "s", "b"]), st.data())
def test_kv_compress_is_its_twin(
    case: Case, block_size: int, shared: str, data: st.DataObject
) -> None:
    sizes = dict(zip(case.axes, case.scores.shape, strict=True))
    if shared == "b" and sizes.get("b", 1) > 1:
        shared = ""
    pool = runtimes.kv_compress(block_size=block_size, shared_axes=shared)
    rows = sizes.get("l", 1) * sizes.get("h", 1)
    freed = data.draw(st.integers(0, rows * -(-sizes["t"] // block_size)))
    got = policies.kv_compress(case.scores, freed, pool, axes=case.axes)
    same(
        got,
        oracle.by_groups(
            case.scores,
            case.axes,
            lambda rows: oracle.kv_compress(rows, freed, block_size),
            together="lh",
        ),
    )


@given(
    st.one_of(
        st.integers(0, 1),
        st.floats(0, 1),
        st.integers(0, 1_000).map(lambda thousandths: thousandths / 1_000),
        st.floats(0, 1, width=32).map(np.float32),
    ),
    st.integers(0, 10**9),
    st.sampled_from(["floor", "nearest", "ceil"]),
)
def test_num_kept_for_is_its_twin(ratio: Any, tokens: int, rounding: str) -> None:  # noqa: ANN401  # a number of any kind
    got = policies.num_kept_for(ratio, tokens, rounding)
    assert type(got) is int
    assert got == oracle.num_kept_for(ratio, tokens, rounding)


@pytest.mark.parametrize(
    ("ratio", "tokens", "rounding", "wanted"),
    [
        (0.1, 100, "floor", 10),
        (0.29, 100, "floor", 29),  # 0.29 * 100 is 28.999999999999996
        (0.07, 100, "ceil", 7),  # 0.07 * 100 is 7.000000000000001
        (np.float32(0.1), 100, "floor", 10),
        (np.float64(0.7), 10, "ceil", 7),
        (Fraction(1, 3), 9, "floor", 3),
        (Fraction(1, 3), 10, "ceil", 4),
        (1 - Fraction("0.9"), 1_000, "floor", 100),
        (0.5, 1, "nearest", 1),
        (0.5, 3, "nearest", 2),
        (0.5, 5, "nearest", 3),
        (np.int64(1), 7, "floor", 7),
        (0, 7, "ceil", 0),
        (0.5, 0, "ceil", 0),
        (1e-300, 10, "ceil", 1),
    ],
)
def test_a_ratio_is_read_as_it_is_written(
    ratio: Any,  # noqa: ANN401  # a number of any kind
    tokens: int,
    rounding: str,
    wanted: int,
) -> None:
    assert policies.num_kept_for(ratio, tokens, rounding) == wanted


# --- What every policy promises ---


class Policy(NamedTuple):
    """A policy as a function of scores and a budget, under letters that it chooses together."""

    keep: Callable[..., NDArray[np.bool_]]
    together: str
    last: str = "t"


POOL = BlockPool(4, shared_axes="h")
POLICIES = {
    "lowest_importance": Policy(policies.lowest_importance, ""),
    "whole_block": Policy(
        lambda scores, kept, **said: policies.whole_block(scores, kept, POOL, **said), "h"
    ),
    "h2o": Policy(policies.h2o, "", "qt"),
    "snapkv": Policy(lambda *given, **said: policies.snapkv(*given, window=3, **said), "", "qt"),
    "tova": Policy(policies.tova, "h", "qt"),
    "ada_kv": Policy(policies.ada_kv, "h"),
    "pyramid_kv": Policy(
        lambda *given, **said: policies.pyramid_kv(*given, window=1, beta=3, **said), "l"
    ),
    "chunk_kv": Policy(lambda *given, **said: policies.chunk_kv(*given, chunk=3, **said), "h"),
}
SHARES_BUDGET = {"ada_kv": "h", "pyramid_kv": "l"}
named = pytest.mark.parametrize("name", POLICIES)


def scores_for(data: st.DataObject, name: str) -> Case:
    return data.draw(cases(last=POLICIES[name].last, smallest=1))


@named
@given(data=st.data(), kept=BUDGETS)
def test_the_budget_is_kept_exactly(name: str, data: st.DataObject, kept: int) -> None:
    case = scores_for(data, name)
    keep = POLICIES[name].keep(case.scores, kept, axes=case.axes)
    rows = moved(case, keep, together=SHARES_BUDGET.get(name, ""))
    of_group = rows.shape[1] * min(kept, rows.shape[-1])
    assert (rows.sum(axis=(1, 2)) == of_group).all()


@named
@given(data=st.data(), kept=BUDGETS)
def test_scores_are_not_written_to_and_the_mask_is_the_callers(
    name: str, data: st.DataObject, kept: int
) -> None:
    case = scores_for(data, name)
    before = case.scores.copy()
    case.scores.flags.writeable = False
    first = POLICIES[name].keep(case.scores, kept, axes=case.axes)
    assert (case.scores == before).all()
    again = POLICIES[name].keep(case.scores[...].astype(">f8"), kept, axes=case.axes)
    same(again, first)
    assert first.flags.writeable


@named
def test_rows_that_do_not_choose_together_are_independent(name: str) -> None:
    policy = POLICIES[name]
    letter = "l" if policy.together == "h" else "h"
    rng = np.random.default_rng(7)
    other = "".join(c for c in "lh" if c != letter)
    axes = letter + other + policy.last
    scores = rng.random((4, 3, 2, 24)) if "q" in policy.last else rng.random((4, 3, 24))
    keep = policy.keep(scores, 10, axes=axes)
    order = rng.permutation(4)
    same(policy.keep(scores[order], 10, axes=axes), keep[order])
    for index in range(4):
        same(policy.keep(scores[index], 10, axes=axes[1:]), keep[index])


@named
def test_axes_may_come_in_any_order(name: str) -> None:
    policy = POLICIES[name]
    rng = np.random.default_rng(8)
    letters = "blh" + policy.last
    sizes = dict(zip("blhqt", (2, 3, 2, 4, 17), strict=True))
    scores = rng.integers(0, 3, [sizes[letter] for letter in letters])  # many are equal
    keep = policy.keep(scores, 9, axes=letters)
    assert 0 < keep.mean() < 1
    for order in itertools.permutations(range(len(letters))):
        turned = "".join(letters[axis] for axis in order)
        got = policy.keep(scores.transpose(order), 9, axes=turned)
        mask_axes = [letters.replace("q", "").index(c) for c in turned if c != "q"]
        same(got, keep.transpose(mask_axes))


@named
@pytest.mark.parametrize("tokens", [10, 12])  # chunks of 3 and blocks of 4: the last one is short
@pytest.mark.parametrize("worth", [1.0, 0.1, 1 / 3, 1e300, -0.7])
def test_of_equal_tokens_the_earlier_are_evicted(name: str, tokens: int, worth: float) -> None:
    policy = POLICIES[name]
    scores = np.full((7, tokens) if "q" in policy.last else tokens, worth)
    # A mean over neighbours is lower at the ends, where zeros are counted.
    said = {"pooling": "max"} if name == "snapkv" else {}
    for kept in range(tokens + 1):
        keep = policy.keep(scores, kept, **said)
        assert keep.tolist() == [False] * (tokens - kept) + [True] * kept


def test_a_short_last_chunk_wins_a_tie() -> None:
    # As floats (0.1 + 0.1 + 0.1) / 3 is above 0.1.
    assert np.flatnonzero(policies.chunk_kv([0.1] * 10, 1, chunk=3)).tolist() == [9]
    assert np.flatnonzero(policies.whole_block([0.1] * 10, 1, 3)).tolist() == [9]
    assert np.flatnonzero(policies.whole_block([0.1] * 10, 3, 3, offset=2)).tolist() == [7, 8, 9]


# What chooses together along which letter, of which the order says nothing.
SUMMED = {"h2o": "q", "snapkv": "q", "tova": "h", "chunk_kv": "h", "whole_block": "h"}


@pytest.mark.parametrize("name", SUMMED)
@given(data=st.data(), kept=BUDGETS)
def test_neither_the_order_of_rows_nor_the_layout_decides(
    name: str, data: st.DataObject, kept: int
) -> None:
    policy, letter = POLICIES[name], SUMMED[name]
    shape = [data.draw(st.integers(1, 3)), data.draw(st.integers(2, 7)), 3, 20]
    axes = {"q": "lqt", "h": "lht"}[letter]
    if letter == "h" and policy.last == "qt":
        axes = "lhqt"
    elif len(axes) == 3:
        del shape[2]
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    scores = rng.integers(-4, 9, shape) * data.draw(UNITS)
    said: dict[str, Any] = {"axes": axes}
    if name == "snapkv":  # its window cuts off queries otherwise
        policy, said["window"] = Policy(policies.snapkv, "", "qt"), shape[1]
    keep = policy.keep(scores, kept, **said)
    order = rng.permutation(shape[1])
    same(policy.keep(scores[:, order], kept, **said), keep)
    same(policy.keep(np.asfortranarray(scores), kept, **said), keep)
    same(policy.keep(scores[:, ::-1], kept, **said), keep)


@pytest.mark.parametrize("name", ["chunk_kv", "whole_block"])
@given(seed=st.integers(0, 2**32 - 1), unit=UNITS, kept=BUDGETS)
def test_chunks_of_the_same_numbers_are_equal(name: str, seed: int, unit: float, kept: int) -> None:
    rng = np.random.default_rng(seed)
    size = {"chunk_kv": 3, "whole_block": 4}[name]
    numbers = rng.integers(-4, 9, size) * unit
    scores = np.concatenate([rng.permutation(numbers) for _ in range(5)])
    keep = POLICIES[name].keep(scores, kept).reshape(5, size)
    whole = min(kept // size, 5)
    assert keep[5 - whole :].all()
    assert not keep[: max(0, 4 - whole)].any()


@named
def test_a_token_that_must_stay_stays(name: str) -> None:
    policy = POLICIES[name]
    rng = np.random.default_rng(9)
    for _ in range(50):
        scores = rng.random((3, 12) if "q" in policy.last else 12)
        must = int(rng.integers(12))
        scores[..., must] = INF
        assert policy.keep(scores, 7)[must]


# Not pyramid_kv, whose line turns.
@pytest.mark.parametrize("name", sorted({*POLICIES} - {"pyramid_kv"}))
@given(data=st.data(), kept=st.integers(0, 20))
def test_a_larger_budget_keeps_what_a_smaller_one_does(
    name: str, data: st.DataObject, kept: int
) -> None:
    case = scores_for(data, name)
    less = POLICIES[name].keep(case.scores, kept, axes=case.axes)
    more = POLICIES[name].keep(case.scores, kept + 1, axes=case.axes)
    assert not (less & ~more).any()


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 8))
def test_streaming_llm_only_grows_with_the_budget(tokens: int, kept: int, sink: int) -> None:
    less = policies.streaming_llm(tokens, kept, sink=sink)
    more = policies.streaming_llm(tokens, kept + 1, sink=sink)
    assert not (less & ~more).any()
    assert less.sum() == min(kept, tokens)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.uint64, ">f4"])
def test_scores_of_any_number_type_are_taken(dtype: str) -> None:
    scores = np.array([3, 1, 2, 5, 4], dtype)
    assert policies.lowest_importance(scores, 3).tolist() == [True, False, False, True, True]


VAST = 2**70


def test_numbers_beyond_the_tokens_are_cut_to_them() -> None:
    rng = np.random.default_rng(4)
    scores, attention = rng.random((2, 9)), rng.random((2, 6, 9))
    assert policies.chunk_kv([1, 2, 3], 2, chunk=2**63).tolist() == [False, True, True]
    assert policies.chunk_kv([5, 0, 3], 1, chunk=2**63).tolist() == [True, False, False]

    def by_chunks(kept: int, size: int, offset: int = 0) -> NDArray[np.bool_]:
        def choose(rows: list[Any]) -> list[set[int]]:
            return oracle.by_chunks(rows, kept, size, offset)

        return oracle.by_groups(scores, "ht", choose, together="h")

    pool = BlockPool(65_535, shared_axes="h")
    for kept in (0, 4, VAST):
        same(policies.chunk_kv(scores, kept, chunk=VAST, axes="ht"), by_chunks(kept, 9))
        same(policies.whole_block(scores, kept, pool, axes="ht"), by_chunks(kept, 9))
        cut = policies.whole_block(scores, kept, pool, axes="ht", offset=65_530)
        same(cut, by_chunks(kept, 65_535, 65_530))
    for pooling in ("avg", "max"):
        said: dict[str, Any] = {"window": 2, "pooling": pooling}
        wide = policies.snapkv_importance(attention, kernel=13, **said)
        for kernel in (15, 2**63 + 1, VAST + 1):
            same(
                policies.snapkv(attention, 4, kernel=kernel, **said),
                policies.snapkv(attention, 4, kernel=13, **said),
            )
            vast = policies.snapkv_importance(attention, kernel=kernel, **said)
            assert np.array_equal(vast, wide)
        votes = attention[:, -2:, :7].sum(axis=1)
        all_of_them = votes.sum(axis=-1) if pooling == "avg" else votes.max(axis=-1)
        assert np.allclose(wide[:, :7], all_of_them[:, None], rtol=1e-12)
    same(policies.snapkv(attention, 4, window=VAST), policies.snapkv(attention, 4, window=9))
    same(policies.streaming_llm(9, 4, sink=VAST), policies.streaming_llm(9, 4, sink=9))
    pyramid = policies.pyramid_kv(scores, 4, window=VAST, axes="lt")
    same(pyramid, policies.pyramid_kv(scores, 4, window=9, axes="lt"))
    for name, policy in POLICIES.items():
        given_scores = attention[0] if "q" in policy.last else scores[0]
        assert policy.keep(given_scores, VAST).all(), name
    assert policies.random((2, 9), VAST, rng=rng).all()
    assert policies.streaming_llm((2, 9), VAST).all()


def test_scores_near_the_largest_are_summed_without_a_warning() -> None:
    vast = np.array([1e300, 1e300, 9e299, 9e299])
    assert policies.chunk_kv(vast, 2, chunk=2).tolist() == [True, True, False, False]
    heads = np.tile(vast, (600, 1))
    assert policies.chunk_kv(heads, 2, chunk=2, axes="ht")[0].tolist() == [True, True, False, False]
    assert policies.whole_block(heads, 2, 2, axes="ht")[0].tolist() == [True, True, False, False]
    assert policies.tova(heads[:, None], 2, axes="hqt")[0].tolist() == [True, True, False, False]
    assert policies.h2o(heads, 2, recent_share=0).tolist() == [True, True, False, False]
    keep = policies.snapkv(-heads, 3, window=1, kernel=1)
    assert keep.tolist() == [False, True, True, True]


def test_integers_are_told_apart_up_to_where_floats_hold_them() -> None:
    top = 2**53
    for dtype in (np.int64, np.uint64, ">i8"):
        assert policies.lowest_importance(np.array([top, top - 1], dtype), 1).tolist() == [
            True,
            False,
        ]
        even = np.array([top + 2, top + 4, 2**62], dtype)  # these are floats
        assert policies.lowest_importance(even, 1).tolist() == [False, False, True]
    assert policies.lowest_importance(np.array([-(2**63), 0]), 1).tolist() == [False, True]


def test_no_rows_and_no_tokens_give_empty_masks() -> None:
    for name, policy in POLICIES.items():
        one = (1,) * (len(policy.last) - 1)
        axes = "blh" + policy.last
        for shape in ((0, 2, 2, *one, 5), (2, 2, 2, *one, 0), (0, 2, 2, *one, 0)):
            keep = policy.keep(np.zeros(shape), 2, axes=axes)
            assert keep.shape == (*shape[:3], shape[-1]), name
    assert policies.tova(np.zeros((0, 0)), 3).shape == (0,)
    pool = runtimes.kv_compress()
    assert policies.kv_compress(np.zeros((2, 0)), 0, pool, axes="ht").shape == (2, 0)
    assert policies.kv_compress(np.zeros((0, 2, 5)), 1, pool, axes="bht").shape == (0, 2, 5)
    rng = np.random.default_rng(0)
    for shape in ((0,), (0, 3), (3, 0)):
        assert policies.random(shape, 2, rng=rng).shape == shape
        assert policies.streaming_llm(shape, 2).shape == shape


# --- What single policies promise ---


def test_random_gives_every_choice_equally_often() -> None:
    draws = 60_000
    keep = policies.random((draws, 5), 2, rng=np.random.default_rng(1))
    assert (keep.sum(axis=-1) == 2).all()
    codes, counts = np.unique(keep @ (1 << np.arange(5)), return_counts=True)
    assert len(codes) == 10
    expected = draws / 10
    z = (counts - expected) / math.sqrt(expected * 0.9)
    assert abs(z).max() < 4


def test_random_rows_are_independent_and_repeat_with_their_seed() -> None:
    shape = (40_000, 2, 4)
    keep = policies.random(shape, 1, rng=np.random.default_rng(2))
    same(policies.random(shape, 1, rng=np.random.default_rng(2)), keep)
    alike = (keep[:, 0] == keep[:, 1]).all(axis=-1).sum()
    z = (alike - shape[0] / 4) / math.sqrt(shape[0] * 3 / 16)
    assert abs(z) < 4
    assert policies.random(3, 9, rng=np.random.default_rng(3)).all()
    assert not policies.random(3, 0, rng=np.random.default_rng(3)).any()


@given(cases(last="qt"), BUDGETS, SHARES)
def test_h2o_keeps_its_recent_share(case: Case, kept: int, share: float) -> None:
    rows = moved(case, policies.h2o(case.scores, kept, recent_share=share, axes=case.axes))
    recent = min(policies.num_kept_for(share, kept), rows.shape[-1])
    assert rows[..., rows.shape[-1] - recent :].all()


def test_h2o_sums_over_queries_and_splits_an_odd_budget_for_the_heavy() -> None:
    attention = np.zeros((3, 6))
    attention[:, 0] = 0.25  # 0.75 in all
    attention[0, 1] = 0.5
    attention[1, 2] = 0.625
    keep = policies.h2o(attention, 3)
    assert np.flatnonzero(keep).tolist() == [0, 2, 5]


@given(cases(last="qt"), BUDGETS, st.integers(1, 9))
def test_snapkv_keeps_its_window_and_reads_no_older_query(
    case: Case, kept: int, window: int
) -> None:
    keep = policies.snapkv(case.scores, kept, window=window, axes=case.axes)
    rows = moved(case, keep)
    last = min(window, kept, rows.shape[-1])
    assert rows[..., rows.shape[-1] - last :].all()
    queries = case.axes.index("q")
    older = np.concatenate([np.full_like(case.scores, 99.0), case.scores], axis=queries)
    if case.scores.shape[queries] >= window:
        same(policies.snapkv(older, kept, window=window, axes=case.axes), keep)


def test_snapkv_importance_is_what_other_policies_choose_by() -> None:
    attention = np.random.default_rng(0).random((3, 2, 8, 40))  # (layer, kv head, query, token)
    scores = policies.snapkv_importance(attention, window=4, axes="lhqt")
    assert scores.shape == (3, 2, 40)
    assert np.isinf(scores[..., -4:]).all()
    votes = attention[1, 1, -4:].sum(axis=0)
    wanted = [sum(votes[max(0, i - 2) : min(36, i + 3)]) for i in range(36)]
    assert np.allclose(scores[1, 1, :36], wanted, rtol=1e-12)
    keep = policies.snapkv(attention, 20, window=4, axes="lhqt")
    same(policies.lowest_importance(scores, 20), keep)
    assert policies.ada_kv(scores, 20, axes="lht")[..., -4:].all()
    turned = policies.snapkv_importance(np.moveaxis(attention, -1, 0), window=4, axes="tlhq")
    assert np.array_equal(np.moveaxis(turned, 0, -1), scores)


def test_snapkv_pads_a_mean_with_zeros_and_a_maximum_with_nothing() -> None:
    logits = np.array([[-1.0, -4, -3, -2, -5, -1]])
    mean = policies.snapkv(logits, 3, window=1, kernel=3)
    most = policies.snapkv(logits, 3, window=1, kernel=3, pooling="max")
    assert np.flatnonzero(mean).tolist() == [0, 4, 5]  # -5, -8, -9, -10, -7
    assert np.flatnonzero(most).tolist() == [0, 1, 5]  # -1, -1, -2, -2, -2


def test_tova_reads_the_last_query_alone_and_may_evict_the_last_token() -> None:
    attention = np.array([[9, 9, 0, 0], [1, 2, 3, 0.5]])
    assert policies.tova(attention, 2).tolist() == [False, True, True, False]


def test_tova_averages_over_heads_and_not_over_layers() -> None:
    attention = np.zeros((2, 2, 1, 3))  # layer, head, query, token
    attention[0, :, 0] = [[3, 2, 0], [0, 2, 1]]
    attention[1, :, 0] = [[0, 0, 1], [0, 0, 1]]
    keep = policies.tova(attention, 1, axes="lhqt")
    assert keep[0].tolist() == [[False, True, False]] * 2
    assert keep[1].tolist() == [[False, False, True]] * 2


@given(cases("hb", smallest=1), BUDGETS, SHARES)
def test_ada_kv_leaves_every_head_its_floor(case: Case, kept: int, floor: float) -> None:
    keep = policies.ada_kv(case.scores, kept, floor=floor, axes=case.axes)
    rows = moved(case, keep, together="h")
    safe = min(policies.num_kept_for(floor, kept), rows.shape[-1])
    assert (rows.sum(axis=-1) >= safe).all()
    own = policies.lowest_importance(case.scores, safe, axes=case.axes)
    assert not (own & ~keep).any()
    if floor == 1:
        same(keep, policies.lowest_importance(case.scores, kept, axes=case.axes))


def test_ada_kv_keeps_no_head_empty_but_without_a_floor() -> None:
    scores = [[9, 9, 9], [1, 1, 1]]
    assert policies.ada_kv(scores, 1, floor=0.2, axes="ht").sum(axis=-1).tolist() == [1, 1]
    assert policies.ada_kv(scores, 1, floor=0, axes="ht").sum(axis=-1).tolist() == [2, 0]


@given(
    st.integers(1, 40),
    st.integers(0, 3_000),
    st.integers(0, 3_000),
    st.integers(0, 100),
    st.fractions(1, 50),
)
def test_pyramid_budgets_fall_in_a_line_and_sum_exactly(
    layers: int, tokens: int, kept: int, window: int, beta: Fraction
) -> None:
    scores = np.zeros((layers, tokens))
    keep = policies.pyramid_kv(scores, kept, window=window, beta=beta, axes="lt")
    budgets = keep.sum(axis=-1).tolist()
    assert sum(budgets) == layers * min(kept, tokens)
    assert budgets == sorted(budgets, reverse=True)
    steps = [a - b for a, b in itertools.pairwise(budgets)]
    assert max(steps, default=0) - min(steps, default=0) <= 2
    assert keep[:, tokens - min(window, *budgets, tokens) :].all()


def test_pyramid_kv_takes_layers_in_order_and_rounds_halves_to_even() -> None:
    keep = policies.pyramid_kv(np.zeros((40, 3)), 8, window=2, beta=4, axes="tl")
    assert keep.sum(axis=0).tolist() == [14, 8, 2]
    flat = policies.pyramid_kv(np.zeros((1, 40)), 8, window=2, beta=4, axes="lt")
    assert flat.sum() == 8
    halves = policies.pyramid_kv(np.zeros((3, 40)), 3, window=1, beta=2, axes="lt")
    assert halves.sum(axis=-1).tolist() == [4, 3, 2]  # of 4.5, 3 and 1.5
    short = policies.pyramid_kv(np.zeros((2, 40)), 8, window=3, beta=4, axes="lt")
    assert short.sum(axis=-1).tolist() == [8, 8]  # the last layer would have 2 for a window of 3


@given(cases("hb", smallest=1), st.integers(0, 5), st.integers(1, 5))
def test_chunk_kv_keeps_whole_chunks_alike_in_all_heads(
    case: Case, num_chunks: int, chunk: int
) -> None:
    token_axis = case.axes.index("t")
    whole = case.scores.shape[token_axis] // chunk * chunk
    scores = np.take(case.scores, range(whole), axis=token_axis)
    keep = policies.chunk_kv(scores, num_chunks * chunk, chunk=chunk, axes=case.axes)
    rows = moved(Case(scores, case.axes), keep, together="h")
    assert (rows == rows[:, :1]).all()
    chunks = rows.reshape(*rows.shape[:2], -1, chunk)
    assert (chunks == chunks[..., :1]).all()


@given(st.integers(1, 6), st.integers(0, 9), st.integers(0, 60), st.sampled_from(["", "h", "hl"]))
def test_whole_block_frees_a_block_for_every_block_of_tokens(
    size: int, blocks: int, kept: int, shared: str
) -> None:
    rng = np.random.default_rng(blocks)
    tokens = size * blocks
    pool = BlockPool(size, shared_axes=shared)
    keep = policies.whole_block(rng.random((2, 3, tokens)), kept, pool, axes="lht")
    census = take_census(keep, pool, axes="lht")
    assert census.num_freed_blocks == census.num_tables * (max(0, tokens - kept) // size)


def test_whole_block_follows_the_offset_of_each_sequence() -> None:
    pool = BlockPool(4)
    scores = np.random.default_rng(3).random((3, 2, 18))
    keep = policies.whole_block(scores, 8, pool, axes="bht", offset=[0, 1, 3])
    for sequence, offset in enumerate((0, 1, 3)):
        alone = policies.whole_block(scores[sequence], 8, pool, axes="ht", offset=offset)
        same(keep[sequence], alone)
        assert take_census(alone, pool, axes="ht", offset=offset).num_freed_blocks >= 2


def test_whole_block_does_not_spend_its_budget_on_a_tail_that_stays() -> None:
    scores = [5, 5, 5, 5, 4, 4, 4, 4, 0, 0]
    closed, opened = BlockPool(4), BlockPool(4, open_tail=True)
    for pool, kept, tokens in (
        (closed, 8, [8, 9]),
        (closed, 6, [4, 5, 8, 9]),
        (opened, 6, [4, 5, 6, 7]),
    ):
        evicted = np.flatnonzero(~policies.whole_block(scores, kept, pool))
        assert set(tokens) <= set(evicted.tolist())
    assert take_census(policies.whole_block(scores, 6, opened), opened).num_freed_blocks == 1
    assert policies.whole_block([5, 5, 0, 0], 2, BlockPool(2, open_tail=True)).tolist() == [
        *[True] * 2,
        *[False] * 2,
    ]  # a full last block is no open tail


@given(cases("lhb", smallest=1), st.integers(1, 16), st.data())
def test_kv_compress_frees_exactly_what_was_asked_of_each_sequence(
    case: Case, block_size: int, data: st.DataObject
) -> None:
    pool = runtimes.kv_compress(block_size=block_size)
    assert pool.compactor == "fill"
    sizes = dict(zip(case.axes, case.scores.shape, strict=True))
    blocks = -(-sizes["t"] // block_size)
    own = sizes.get("l", 1) * sizes.get("h", 1) * blocks
    freed = data.draw(st.integers(0, own))
    keep = policies.kv_compress(case.scores, freed, pool, axes=case.axes)
    census = take_census(keep, pool, axes=case.axes)
    assert census.num_blocks - census.num_packed_blocks == freed * sizes.get("b", 1)
    if own:
        assert compacted_reclaim(keep, pool, axes=case.axes) == freed / own
    token_axis = case.axes.index("t")
    rows, scores = np.moveaxis(keep, token_axis, -1), np.moveaxis(case.scores, token_axis, -1)
    for index in np.ndindex(rows.shape[:-1]):
        live = int(rows[index].sum())
        assert live in (sizes["t"], live // block_size * block_size)
        same(rows[index], policies.lowest_importance(scores[index], live))


def test_kv_compress_takes_axes_in_any_order() -> None:
    scores = np.random.default_rng(5).integers(0, 2, (2, 3, 2, 9))  # many groups cost the same
    pool = runtimes.kv_compress(block_size=2)
    keep = policies.kv_compress(scores, 13, pool, axes="blht")
    for order in itertools.permutations(range(4)):
        turned = "".join("blht"[axis] for axis in order)
        got = policies.kv_compress(scores.transpose(order), 13, pool, axes=turned)
        same(got, keep.transpose(order))


def test_kv_compress_takes_a_block_size_for_one_row() -> None:
    keep = policies.kv_compress([3, 1, 2, 5, 4], 1, 2)
    assert keep.tolist() == [True, False, True, True, True]


# --- Bad input ---

ROW = [0.5, 0.25, 0.75]
SQUARE = np.ones((3, 3))
RNG = np.random.default_rng(0)
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: policies.lowest_importance(ROW, -1), ValueError, "num_kept must be .* got -1"),
    (lambda: policies.lowest_importance(ROW, 1.0), TypeError, "num_kept must be an integer"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: policies.lowest_importance(ROW, True), TypeError, "num_kept must .* boolean True"),
    (lambda: policies.lowest_importance([0, math.nan], 1), ValueError, "1 values .* index 1"),
    (lambda: policies.lowest_importance([-INF, 0], 1), ValueError, "importance .* NaN or -inf"),
    (
        lambda: policies.lowest_importance([0, 1.1e300, 2e300], 1),
        ValueError,
        r"importance must be at most 1e\+300 in size, or \+inf; got 2 values beyond, the first 1.1",
    ),
    (lambda: policies.lowest_importance([INF, -1.7e308], 1), ValueError, "first -1.7e.* index 1"),
    (
        lambda: policies.lowest_importance(np.array(["1e4000", "1e3000"], np.longdouble), 1),
        ValueError,
        r"got 2 values beyond, the first 1e\+4000 at index 0; divide all by the largest",
    ),
    (lambda: policies.chunk_kv([1.7e308, 1.7e308, 1e308, 1e308], 2), ValueError, "4 values beyond"),
    (lambda: policies.h2o([[1e308] * 4] * 4, 2), ValueError, "attention must be at most 1e"),
    (
        lambda: policies.lowest_importance([2**53 + 1, 2**53], 1),
        ValueError,
        "importance must be numbers that float64 holds exactly .*; got 9007199254740993 at index 0",
    ),
    (
        lambda: policies.lowest_importance(np.array([[0, 1], [2, -(2**62) - 1]]), 1),
        ValueError,
        r"got -4611686018427387905 at index \(1, 1\), which it rounds; subtract",
    ),
    (
        lambda: policies.lowest_importance(np.array([0, 2**64 - 1], np.uint64), 1),
        ValueError,
        "got 18446744073709551615 at index 1",
    ),
    (
        lambda: policies.lowest_importance([0.5, 2**53 + 1], 1),  # which NumPy makes floats of
        ValueError,
        "got 9007199254740993 at index 1",
    ),
    (lambda: policies.tova([[2**60 + 1, 0]], 1), ValueError, "attention .*must be numbers that"),
    (lambda: policies.lowest_importance([True, False], 1), TypeError, "scores it was made from"),
    (lambda: policies.lowest_importance(3.0, 1), ValueError, "importance must have a token axis"),
    (
        lambda: policies.lowest_importance(SQUARE, 1, axes="ht" + "b"),
        ValueError,
        r"axes must .*; got 'htb' for importance of shape \(3, 3\); write 2 letters",
    ),
    (
        lambda: policies.lowest_importance(SQUARE, 1, axes="lh"),
        ValueError,
        "'t' among them; got 'lh' without 't'; name the axis of tokens 't'",
    ),
    (lambda: policies.lowest_importance(SQUARE, 1, axes="tt"), ValueError, "each letter once"),
    (lambda: policies.lowest_importance(SQUARE, 1, axes="?t"), ValueError, "is no letter"),
    (
        lambda: policies.lowest_importance(SQUARE, 1, axes=2),  # type: ignore[arg-type]  # what is shown to be refused
        TypeError,
        "axes must be .* got int 2; write such as axes='lht'",
    ),
    (
        lambda: policies.ada_kv(SQUARE, 1),
        ValueError,
        (
            r"axes must name the 2 axes of importance, since .* 'h' are chosen together; got "
            r"importance of shape \(3, 3\) and no axes; write one letter an axis, .* axes='lht'\."
        ),
    ),
    (lambda: policies.pyramid_kv(SQUARE, 1), ValueError, "rows along 'l' are chosen together"),
    (lambda: policies.chunk_kv(SQUARE, 1), ValueError, "rows along 'h' are chosen together"),
    (lambda: policies.tova(SQUARE[None], 1), ValueError, "attention, since .* axes='lhqt'"),
    (
        lambda: policies.kv_compress(SQUARE, 1, runtimes.kv_compress()),
        ValueError,
        "rows along 'lh' are chosen together",
    ),
    (lambda: policies.whole_block(SQUARE, 1, 2), ValueError, "axes must name .* of importance"),
    (
        lambda: policies.whole_block(np.ones((0, 3)), 1, 2, axes="ht"),
        ValueError,
        "importance must have at least one row",
    ),
    (
        lambda: policies.whole_block(ROW, 1, 2, offset=2),
        ValueError,
        "offset must be from 0 to 1; got 2",
    ),
    (lambda: policies.whole_block(ROW, 1, "vllm"), TypeError, "pool must be a BlockPool"),  # type: ignore[arg-type]  # what is shown to be refused
    (
        lambda: policies.h2o(ROW, 1),
        ValueError,
        r"attention must have the axes 'qt', .* got shape \(3,\); write such as attention\[None\]",
    ),
    (
        lambda: policies.h2o(SQUARE, 1, axes="ht"),
        ValueError,
        "'q' and 't' among them; got 'ht' without 'q'; name the axis of queries 'q'",
    ),
    (
        lambda: policies.h2o(np.ones((0, 3)), 1),
        ValueError,
        r"attention must have at least one query; got shape \(0, 3\), whose axis 0 is the queries",
    ),
    (lambda: policies.h2o([[math.nan, 0]], 1), ValueError, "attention must be .* first nan"),
    (lambda: policies.h2o([[-INF, 0]], 1), ValueError, "attention must be .* first -inf"),
    (lambda: policies.h2o([["a", "b"]], 1), TypeError, "attention must be an array of numbers"),
    (
        lambda: policies.tova([[0.0, 0.0], [math.nan, 0.0]], 1),
        ValueError,
        r"attention \(its last 1 queries\) must be .* first nan at index \(0, 0\)",
    ),
    (
        lambda: policies.h2o(SQUARE, 1, recent_share=1.5),
        ValueError,
        "recent_share must be a number from 0 to 1; got float 1.5; write a share, not a percentage",
    ),
    (lambda: policies.h2o(SQUARE, 1, recent_share=-0.1), ValueError, "recent_share must be"),
    (lambda: policies.h2o(SQUARE, 1, recent_share=math.nan), ValueError, "got float nan"),
    (
        lambda: policies.h2o(SQUARE, 1, recent_share="half"),  # type: ignore[arg-type]  # what is shown to be refused
        TypeError,
        "recent_share must be a number from 0 to 1; got str 'half'; write a number",
    ),
    (
        lambda: policies.snapkv(SQUARE, 1, kernel=4),
        ValueError,
        "kernel must be an odd number, .*; got 4; write 5",
    ),
    (lambda: policies.snapkv(SQUARE, 1, kernel=0), ValueError, "kernel .* at least 1; got 0"),
    (lambda: policies.snapkv(SQUARE, 1, window=0), ValueError, "window .* at least 1; got 0"),
    (
        lambda: policies.snapkv(SQUARE, 1, pooling="mean"),
        ValueError,
        "pooling must be one of 'avg', 'max'; got 'mean'",
    ),
    (lambda: policies.ada_kv(ROW, 1, floor=2), ValueError, "floor must be a number from 0 to 1"),
    (lambda: policies.ada_kv(ROW, 1, floor=True), TypeError, "floor must be a number"),
    (
        lambda: policies.pyramid_kv(ROW, 1, beta=0.5),
        ValueError,
        "beta must be a finite number of at least 1; got float 0.5; write one",
    ),
    (lambda: policies.pyramid_kv(ROW, 1, beta=INF), ValueError, "beta must be a finite number"),
    (lambda: policies.pyramid_kv(ROW, 1, window=-1), ValueError, "window must be"),
    (lambda: policies.chunk_kv(ROW, 1, chunk=0), ValueError, "chunk must be .* got 0"),
    (
        lambda: policies.kv_compress(np.ones((2, 4)), 1, 16, axes="ht"),
        ValueError,
        (
            "pool must give each row of importance a block table of its own; got "
            "shared_axes='hl' for axes 'ht'; write kvreclaim.runtimes.kv_compress\\(\\), or "
            r"pool.replace\(shared_axes=''\)"
        ),
    ),
    (
        lambda: policies.kv_compress(
            np.ones((2, 4)), 5, runtimes.kv_compress(block_size=2), axes="ht"
        ),
        ValueError,
        "num_freed_blocks must be at most the 4 blocks of a sequence's rows; got 5",
    ),
    (lambda: policies.kv_compress(ROW, -1, 16), ValueError, "num_freed_blocks must be"),
    (lambda: policies.random((), 1, rng=RNG), ValueError, "num_tokens must be .* empty one"),
    (
        lambda: policies.random(2**70, 1, rng=RNG),
        ValueError,
        "num_tokens must be an integer from 0 to 1099511627776; got 1180591620717411303424; write",
    ),
    (lambda: policies.streaming_llm((1, 2**63), 1), ValueError, r"num_tokens\[1\] must be an int"),
    (lambda: policies.streaming_llm((0, 2**21, 2**20), 1), ValueError, r"at most 2\*\*40 tokens"),
    (
        lambda: policies.random((1,) * 33, 1, rng=RNG),
        ValueError,
        "num_tokens must be a shape of at most 32 axes; got 33; write such as 4096",
    ),
    (lambda: policies.random(-1, 1, rng=RNG), ValueError, "num_tokens must be .* got -1"),
    (lambda: policies.random(4, 1, rng=0), TypeError, "rng must be a numpy.random.Generator"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: policies.streaming_llm(4, 1, sink=-1), ValueError, "sink must be .* got -1"),
    (lambda: policies.streaming_llm((4, -1), 1), ValueError, r"num_tokens\[1\] must be"),
    (
        lambda: policies.num_kept_for(1.01, 4),
        ValueError,
        "keep_ratio must be a number from 0 to 1; got float 1.01; write a share",
    ),
    (lambda: policies.num_kept_for(-INF, 4), ValueError, "keep_ratio must be .* got float -inf"),
    (lambda: policies.num_kept_for(INF, 4), ValueError, "keep_ratio must be .* got float inf"),
    (lambda: policies.num_kept_for(10**400, 4), ValueError, "more than a float holds"),
    (lambda: policies.num_kept_for("0.5", 4), TypeError, "keep_ratio must be .* got str '0.5'"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: policies.num_kept_for(0.5, 4.0), TypeError, "num_tokens must be an integer"),  # type: ignore[arg-type]  # what is shown to be refused
    (
        lambda: policies.num_kept_for(0.5, 4, "up"),
        ValueError,
        "rounding must be one of 'floor', 'nearest', 'ceil'; got 'up'",
    ),
]


@pytest.mark.parametrize(("call", "error", "wording"), BAD)
def test_bad_input_is_refused_in_one_sentence(
    call: Callable[[], object], error: type[Exception], wording: str
) -> None:
    with pytest.raises(error, match=wording) as caught:
        call()
    assert caught.type is error
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
