"""For policies' own tests: what an assertion lets pass, what it says, and that laws can break."""

from __future__ import annotations

import importlib.metadata
import itertools
import math
import os
import pickle
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scripts import scripts_of
from strategies import LEGAL_COMPACTORS, SMALL_BLOCKS, Case, cases, pools

import kvreclaim
from kvreclaim import (
    BlockPool,
    physical_reclaim,
    policies,
    reclaim_efficiency,
    runtimes,
    take_census,
)
from kvreclaim import testing as public
from kvreclaim.testing import (
    PolicyCheck,
    assert_block_coherent,
    assert_no_revival,
    assert_num_kept,
    assert_physical_reclaim,
    assert_reclaim_efficiency,
    check_policy,
    strategies,
)
from kvreclaim.testing._cases import Asked, edges, ordinary
from kvreclaim.testing._laws import LAWS

Keep = NDArray[np.bool_]
SHARES = st.sampled_from([0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1])
ANY_CASE = cases(pools(SMALL_BLOCKS))


def passes(call: Callable[[], None]) -> bool:
    """Return whether an assertion holds; anything else that it raises is raised."""
    try:
        call()
    except AssertionError:
        return False
    return True


def message(call: Callable[[], object]) -> str:
    with pytest.raises(AssertionError) as caught:
        call()
    return str(caught.value)


# --- Assertions hold where the figure is reached, and only there ---


@given(ANY_CASE, SHARES)
def test_physical_reclaim_is_the_metric(case: Case, least: float) -> None:
    measured = physical_reclaim(case.keep, case.pool, **case.said)
    for asked in [least] if math.isnan(measured) else [least, measured]:
        held = passes(
            lambda asked=asked: assert_physical_reclaim(  # type: ignore[misc]  # a default binds it
                case.keep, case.pool, at_least=asked, **case.said
            )
        )
        assert held == (measured >= asked)


@given(ANY_CASE, SHARES)
def test_reclaim_efficiency_is_the_metric(case: Case, least: float) -> None:
    measured = reclaim_efficiency(case.keep, case.pool, **case.said)
    for asked in [least] if math.isnan(measured) else [least, measured]:
        held = passes(
            lambda asked=asked: assert_reclaim_efficiency(  # type: ignore[misc]  # as above
                case.keep, case.pool, at_least=asked, **case.said
            )
        )
        assert held == (measured >= asked)


def mixed_blocks(case: Case) -> list[int]:
    """Count mixed blocks token by token; only of tables that have some."""
    axes, pool = case.said["axes"], case.pool
    outer = [letter for letter in axes if letter != "t" and letter not in pool.shared_axes]
    kinds: dict[tuple[int, ...], dict[int, set[bool]]] = defaultdict(lambda: defaultdict(set))
    for index, kept in np.ndenumerate(case.keep):
        at = dict(zip(axes, index, strict=True))
        table = tuple(at[letter] for letter in outer)
        length = np.asarray(case.said.get("lengths", case.keep.shape[axes.index("t")]))
        offset = np.asarray(case.said.get("offset", 0))
        if at["t"] < (length[table] if length.ndim else length):
            slot = at["t"] + int(offset[table] if offset.ndim else offset)
            kinds[table][slot // pool.block_size].add(bool(kept))
    counts = [sum(len(both) == 2 for both in blocks.values()) for blocks in kinds.values()]
    return [count for count in counts if count]


@given(ANY_CASE, st.integers(0, 3))
def test_block_coherent_is_its_twin(case: Case, most: int) -> None:
    held = passes(lambda: assert_block_coherent(case.keep, case.pool, at_most=most, **case.said))
    assert held == all(count <= most for count in mixed_blocks(case))


def test_block_coherent_does_not_ask_which_blocks_come_back() -> None:
    keep = [1, 1, 0, 0, 1, 1]
    for frees in LEGAL_COMPACTORS:
        assert_block_coherent(keep, BlockPool(2, frees=frees, open_tail=True))
    assert physical_reclaim(keep, BlockPool(2, frees="back")) == 0


@given(cases(BlockPool(1, shared_axes="")), st.integers(0, 12), st.booleans())
def test_num_kept_is_counting(case: Case, num_kept: int, hit: bool) -> None:
    said = {name: value for name, value in case.said.items() if name != "offset"}
    rows = np.moveaxis(case.keep, said["axes"].index("t"), -1)
    lengths = np.broadcast_to(np.array(said.get("lengths", rows.shape[-1])), rows.shape[:-1])
    if hit and rows.size:
        num_kept = int(rows[(0,) * (rows.ndim - 1)].sum())
    wanted = all(
        sum(rows[index].tolist()) == min(num_kept, int(lengths[index]))
        for index in np.ndindex(rows.shape[:-1])
    )
    assert passes(lambda: assert_num_kept(case.keep, num_kept, **said)) == wanted


def test_num_kept_of_rows_that_share_a_budget_is_their_mean() -> None:
    scores = np.random.default_rng(0).permutation(2 * 3 * 20).reshape(2, 3, 20)
    keep = policies.ada_kv(scores, 6, axes="bht")
    assert len({*keep.sum(axis=-1).flat}) > 1
    assert_num_kept(keep, 6, axes="bht", mean_over="h")
    assert_num_kept(keep.transpose(2, 1, 0), 6, axes="thb", mean_over="h")
    assert not passes(lambda: assert_num_kept(keep, 6, axes="bht"))
    assert not passes(lambda: assert_num_kept(keep, 7, axes="bht", mean_over="h"))
    keep[0, 0] = keep[1, 0] = True
    assert not passes(lambda: assert_num_kept(keep, 6, axes="bht", mean_over="bh"))
    assert_num_kept(np.ones((2, 3, 5)) == 1, 9, axes="bht", mean_over="h")
    ragged = np.arange(5) < np.array([[3], [5]])
    assert_num_kept(ragged, 9, axes="bt", lengths=[3, 5])
    assert not passes(lambda: assert_num_kept(ragged, 9, axes="bt"))


@given(cases(BlockPool(1, shared_axes="")), st.integers(0, 3), st.integers(0, 2**32 - 1))
def test_no_revival_is_its_twin(case: Case, more: int, seed: int) -> None:
    axes, rng = case.said["axes"], np.random.default_rng(seed)
    said = {name: value for name, value in case.said.items() if name != "offset"}
    token = axes.index("t")
    shape = [size + more * (axis == token) for axis, size in enumerate(case.keep.shape)]
    after = rng.random(shape) < 0.3
    if rng.random() < 0.5:  # else nearly every mask has a revival
        old = [slice(size) for size in case.keep.shape]
        after[tuple(old)] &= case.keep
    outer = [letter for letter in axes if letter != "t"]
    revived = 0
    for index, kept in np.ndenumerate(after):
        at = dict(zip(axes, index, strict=True))
        length = np.asarray(said.get("lengths", case.keep.shape[token]))
        written = at["t"] < (length[tuple(at[c] for c in outer)] if length.ndim else length)
        revived += bool(kept and written and not case.keep[index])
    held = passes(lambda: assert_no_revival(case.keep, after, **said))
    assert held == (revived == 0)
    if revived:
        text = message(lambda: assert_no_revival(case.keep, after, **said))
        assert f"got {revived} token" in text


# --- What is undefined misses, what is empty holds ---


def test_an_undefined_figure_misses_every_threshold() -> None:
    text = message(lambda: assert_physical_reclaim([], 2, at_least=0))
    assert "got nan, since there are no blocks" in text
    text = message(lambda: assert_physical_reclaim(np.ones((0, 4), bool), 2, at_least=0, axes="bt"))
    assert text.endswith("no tables")
    text = message(lambda: assert_reclaim_efficiency([1, 1], 2, at_least=0))
    assert "got nan, since nothing is evicted" in text
    assert "|##|" in text


def test_of_nothing_the_others_hold() -> None:
    nothing = np.ones((0, 4), bool)
    assert_block_coherent(nothing, 2, axes="bt")
    assert_block_coherent([], 2)
    assert_num_kept(nothing, 3, axes="bt")
    assert_num_kept([], 3)
    assert_no_revival(nothing, nothing, axes="bt")
    assert_no_revival([], [1, 1])


def test_a_share_is_compared_as_it_is_written() -> None:
    for free, blocks in itertools.product(range(11), range(1, 11)):
        if free <= blocks:
            keep = np.arange(blocks) >= free
            assert_physical_reclaim(keep, 1, at_least=free / blocks)


# --- What a message says ---


def test_the_message_of_physical_reclaim() -> None:
    keep = np.ones((2, 3, 8), bool)
    keep[0, :, 2:] = False
    keep[1, :, ::2] = False
    pool = runtimes.vllm(block_size=2)
    text = message(lambda: assert_physical_reclaim(keep, pool, at_least=0.6, axes="bht"))
    assert text == (
        "physical_reclaim must be at least 0.6;\n"
        "got 0.375: 3 of 8 blocks come back in place\n"
        "under B:2|share:hl|frees:any|tail:open|move:none|pool:full|reserved:1|watermark:0|entry:-|"
        f"rows:3|v:{kvreclaim.__version__}\n"
        "evicted entries: 30; back in place: 18, stranded: 12, kept by another row: 0\n"
        "\n"
        "table b=1 of 2:\n"
        "block tables: 1, rows of each: 3, tokens: 8, blocks of 2: 4\n"
        "comes back in place: 0 (0.000), packed: 2 (0.500)\n"
        "\n"
        "|x#|x#|x#|x#|\n"
        "\n"
        "# live     4  kept by a row\n"
        "x stranded 4  dead, in a block that stays\n"
        ". free     0  in a block that comes back in place\n"
        "- slack    0  never written, in a block that stays"
    )


def test_a_message_counts_what_another_row_keeps() -> None:
    text = message(
        lambda: assert_block_coherent([[1, 1, 0, 0], [0, 0, 1, 1]], 2, axes="ht", at_most=1)
    )
    assert text.startswith(
        "keep must have at most 1 mixed blocks in each table;\n"
        "got 2: in 2 of 2 blocks lie kept and evicted entries\n"
    )
    assert "stranded: 0, kept by another row: 4" in text


@given(ANY_CASE)
def test_the_map_is_of_the_first_table_that_fails(case: Case) -> None:
    census = take_census(case.keep, case.pool, **case.said)
    outer = [c for c in case.said["axes"] if c != "t" and c not in case.pool.shared_axes]
    measured = physical_reclaim(census)
    if math.isnan(measured) or measured == 1:
        return
    text = message(lambda: assert_physical_reclaim(case.keep, case.pool, at_least=1, **case.said))
    assert max(map(len, text.split("\n\n", 1)[1].splitlines())) <= 80
    shown = re.search(r"^table (.*) of (\d+):$", text, re.MULTILINE)
    assert bool(shown) == (census.num_tables > 1)
    if not shown:
        return
    assert int(shown[2]) == census.num_tables
    index = dict(part.split("=") for part in shown[1].split())
    assert [*index] == outer
    each = {}
    for at in np.ndindex(*(case.keep.shape[case.said["axes"].index(c)] for c in outer)):
        one = case.keep[
            tuple(
                slice(at[outer.index(c)], at[outer.index(c)] + 1) if c in outer else slice(None)
                for c in case.said["axes"]
            )
        ]
        said: dict[str, Any] = {
            name: np.asarray(value)[at].reshape([1] * len(at)) if np.ndim(value) else value
            for name, value in case.said.items()
        }
        each[at] = physical_reclaim(one, case.pool, **said)
    assert next(at for at, share in each.items() if share < 1) == tuple(map(int, index.values()))


def test_where_no_table_is_below_the_one_of_lowest_efficiency_is_shown() -> None:
    keep = [[0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1]]
    assert reclaim_efficiency(keep[0][:5], 2) == 5 / 6
    assert reclaim_efficiency(keep[1], 2) == 4 / 5
    text = message(
        lambda: assert_reclaim_efficiency(keep, 2, at_least=0.79, axes="bt", lengths=[5, 6])
    )
    assert text.startswith(
        "reclaim_efficiency must be at least 0.79;\n"
        f"got {11 / 14}: 0.500 of the blocks come back in place, of 0.636 evicted\n"
    )
    assert "\ntable b=1 of 2:\n" in text


def test_the_first_table_below_is_shown_not_the_lowest_nor_one_that_is_undefined() -> None:
    keep = [[0] * 4, [1, 1, 0, 0], [1, 0, 1, 0]]
    text = message(lambda: assert_physical_reclaim(keep, 2, at_least=0.9, axes="bt"))
    assert "\ntable b=1 of 3:\n" in text
    keep = [[1] * 4, [1, 0, 1, 0]]
    text = message(lambda: assert_reclaim_efficiency(keep, 2, at_least=0.9, axes="bt"))
    assert "\ntable b=1 of 2:\n" in text


def test_a_map_has_the_length_and_the_offset_of_its_table() -> None:
    keep = [[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]]
    text = message(lambda: assert_block_coherent(keep, 4, axes="bt", lengths=[6, 4], offset=[2, 3]))
    assert "\ntable b=1 of 2:\n" in text
    assert "\n|---#|x##-|\n" in text


def test_tokens_are_shown_from_where_they_come_back() -> None:
    before = np.zeros((2, 1000), bool)
    after = before.copy()
    after[1, 700] = True
    text = message(lambda: assert_no_revival(before, after, axes="bt"))
    assert text.splitlines()[:3] == [
        "after must keep only what before keeps;",
        "got 1 token that comes back to life, the first in the row of b=1, at token 700",
        "# kept, . evicted, ! evicted before and kept after",
    ]
    assert f" 640 {'.' * 60}!..." in text
    assert text.splitlines()[-1] == "and 296 more tokens"
    assert max(map(len, text.splitlines())) <= 80


def test_num_kept_shows_the_rows_that_share_a_budget() -> None:
    keep = np.zeros((1, 9, 70), bool)
    keep[:, :4, 3] = True
    text = message(lambda: assert_num_kept(keep, 1, axes="bht", mean_over="h"))
    assert text.splitlines()[:4] == [
        "keep must have exactly 1 tokens of each row on average over 'h';",
        "got 4 in the 9 rows of b=0; 1 of 1 groups of rows differ",
        "# kept, . evicted",
        f" 0 ...#{'.' * 60}",
    ]
    assert text.splitlines()[-2:] == ["and 6 more tokens", "and 3 more rows"]
    assert "got 3 in the row; 1 of 1 rows differ" in message(lambda: assert_num_kept([1, 1, 1], 2))
    text = message(lambda: assert_num_kept([[[1, 0]], [[1, 1]]], 1))
    assert "of (1, 0); 1 of 2 rows differ" in text


# --- Policies that keep the laws ---

WHOLE = BlockPool(4)
GOOD: dict[str, tuple[Callable[..., object], dict[str, Any]]] = {
    "lowest_importance": (policies.lowest_importance, {}),
    "of one row": (policies.lowest_importance, {"axes": "t"}),
    "tokens first": (
        lambda s, n: policies.lowest_importance(s, n, axes="tb"),
        {"axes": "tb"},
    ),
    "streaming_llm": (
        lambda s, n: policies.streaming_llm(s.shape, n, sink=3),
        {"sinks": 3, "window": 2},
    ),
    "h2o": (lambda s, n: policies.h2o(s[..., None, :], n), {}),
    "snapkv": (lambda s, n: policies.snapkv(s[..., None, :], n, window=1), {"window": 1}),
    "whole_block": (lambda s, n: policies.whole_block(s, n, WHOLE, axes="bt"), {}),
    "chunk_kv": (lambda s, n: policies.chunk_kv(s, n, chunk=3, axes="bht"), {"axes": "bht"}),
    "tova": (lambda s, n: policies.tova(s[..., None, :], n, axes="bhqt"), {"axes": "bht"}),
    "ada_kv": (
        lambda s, n: policies.ada_kv(s, n, axes="bht"),
        {"axes": "bht", "mean_over": "h"},
    ),
    "pyramid_kv": (
        lambda s, n: policies.pyramid_kv(s, n, window=4, axes="blt"),
        {"axes": "blt", "mean_over": "l", "window": 4, "skip": ["no_revival"]},
    ),
    "one budget for the batch": (
        lambda s, n: policies.ada_kv(s, n, axes="ht"),
        {"mean_over": "b"},
    ),
    "random": (lambda s, n, rng: policies.random(s.shape, n, rng=rng), {"takes_rng": True}),
    "padded": (
        lambda s, n, valid: policies.lowest_importance(np.where(valid, s, -1.0), n) & valid,
        {"takes_valid": True},
    ),
    "padded, one row": (
        lambda s, n, valid: policies.lowest_importance(np.where(valid, s, -1.0), n) & valid,
        {"takes_valid": True, "axes": "t"},
    ),
    "padded, tokens first": (
        lambda s, n, valid: (
            policies.lowest_importance(np.where(valid, s, -1.0), n, axes="thb") & valid
        ),
        {"takes_valid": True, "axes": "thb"},
    ),
    "of lists": (lambda s, n: policies.lowest_importance(s, n).tolist(), {}),
}
NOT_ASKED = {
    "lowest_importance": {"sinks", "window", "padding"},
    "of one row": {"sinks", "window", "padding", "batch"},
    "streaming_llm": {"padding"},
    "snapkv": {"sinks", "padding"},
    "pyramid_kv": {"sinks", "padding", "no_revival"},
    "one budget for the batch": {"sinks", "window", "padding", "batch"},
    "random": {"sinks", "window", "padding", "batch"},
    "padded": {"sinks", "window"},
}


@pytest.mark.parametrize("name", GOOD)
def test_a_policy_that_keeps_the_laws(name: str) -> None:
    policy, said = GOOD[name]
    check = check_policy(policy, **said)
    assert {*check.laws} | {*check.not_asked} == {*LAWS}
    assert not {*check.laws} & {*check.not_asked}
    assert {*check.not_asked} == NOT_ASKED.get(name, {*check.not_asked})


def test_pyramid_kv_breaks_one_law_as_its_rule_says() -> None:
    policy, said = GOOD["pyramid_kv"]
    text = message(lambda: check_policy(policy, **(said | {"skip": ()})))
    assert "breaks 1 of 10 laws: no_revival\n" in text


# --- Each law can break ---


def threshold(scores: NDArray[np.float64], num_kept: int) -> Keep:
    ordered = np.sort(scores)[..., ::-1]
    if not 0 < num_kept < scores.shape[-1]:
        return np.full(scores.shape, num_kept > 0)
    return scores >= ordered[..., num_kept - 1, None]


def forgetful(scores: NDArray[np.float64], num_kept: int) -> Keep:
    keep = policies.lowest_importance(scores, num_kept)
    scores[~keep] = -np.inf
    return keep


def of_the_first(scores: NDArray[np.float64], num_kept: int) -> Keep:
    return np.repeat(policies.lowest_importance(scores[:1], num_kept), len(scores), axis=0)


def of_place(scores: NDArray[np.float64], num_kept: int) -> Keep:
    """Keep other tokens in the second sequence: the same whichever comes second."""
    keep = policies.streaming_llm(scores.shape, num_kept)
    keep[1:] = np.roll(keep[1:], 1, axis=-1)
    return keep


def by_size(scores: NDArray[np.float64], num_kept: int) -> Keep:
    """Keep other tokens of a sequence alone than of two, whose order it does not mind."""
    return policies.lowest_importance(scores if len(scores) > 1 else -scores, num_kept)


def raising(scores: NDArray[np.float64], num_kept: int) -> Keep:
    if num_kept == 0:
        raise RuntimeError("nothing\nto keep")
    return policies.lowest_importance(scores, num_kept)


class Alternating:
    """A policy that remembers how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, scores: NDArray[np.float64], num_kept: int) -> Keep:
        self.calls += 1
        return policies.lowest_importance(scores * (-1) ** self.calls, num_kept)


def lowest(scores: NDArray[np.float64], num_kept: int, **_: object) -> Keep:
    return policies.lowest_importance(scores, num_kept)


def ties_by_chance(scores: NDArray[np.float64], num_kept: int) -> Keep:
    return lowest(scores + np.random.default_rng().random(scores.shape) / 2, num_kept)


def ties_by_place(scores: NDArray[np.float64], num_kept: int) -> Keep:
    """Break ties of every other sequence from the back."""
    turn = (-1) ** np.arange(len(scores))[:, None]
    return lowest(scores + turn * np.arange(scores.shape[-1]) / 1e3, num_kept)


def signing(scores: NDArray[np.float64], num_kept: int) -> Keep:
    keep = lowest(scores, num_kept)
    scores[scores == 0] = -0.0
    return keep


def flattening(scores: NDArray[np.float64], num_kept: int) -> Keep:
    keep = lowest(scores, num_kept)
    scores.resize(scores.size, refcheck=False)
    return keep


ROUNDINGS: tuple[Callable[[int, float], float], ...] = (
    lambda tokens, ratio: tokens * ratio,
    lambda tokens, ratio: math.ceil(tokens * ratio),
    lambda tokens, ratio: tokens - int(tokens * (1 - ratio)),
    lambda tokens, ratio: tokens - math.ceil(tokens * (1 - ratio)),
    lambda tokens, ratio: tokens * (1 - (1 - ratio)),
    lambda tokens, ratio: float(np.float32(tokens) * np.float32(ratio)),
    lambda tokens, ratio: math.ceil(np.float32(tokens) * np.float32(ratio)),
)


def of_ratio(count: Callable[[int, float], float]) -> Callable[..., Keep]:
    """A policy that is told a share of the tokens, and rounds; whole numbers are left alone."""

    def policy(scores: NDArray[np.float64], num_kept: int) -> Keep:
        tokens = scores.shape[-1]
        if num_kept in (0, tokens):
            return lowest(scores, num_kept)
        return lowest(scores, int(count(tokens, min(num_kept / tokens, 1.0))))

    return policy


def real_tokens(s: NDArray[np.float64], n: int, valid: Keep) -> Keep:
    """Take padding at the left for kept tokens' equal, but cut what stands at the right."""
    left = valid[..., :1]
    return np.where(left, lowest(np.where(valid, s, -1.0), n) & valid, lowest(s, n))


def as_the_first_is_padded(s: NDArray[np.float64], n: int, valid: Keep) -> Keep:
    """Take the first sequence's padding for that of all."""
    valid = np.broadcast_to(valid[:1], valid.shape)
    return lowest(np.where(valid, s, -1.0), n) & valid


BREAKS: dict[str, list[tuple[Callable[..., object], dict[str, Any], str, tuple[int, ...]]]] = {
    "shape": [
        (lambda s, n: lowest(s, n).T, {}, "shape", (1, 2)),
        (lambda s, n: lowest(s, n)[0], {}, "shape", (1, 2)),
        (lambda s, n: None, {}, "shape", (1, 2)),  # noqa: ARG005  # a policy that returns nothing
        (lambda s: lowest(s, 1), {}, "shape", (1, 2)),
    ],
    "dtype": [
        (lambda s, n: lowest(s, n) * 1.0, {}, "dtype", (1, 2)),
        (lambda s, n: lowest(s, n).astype(int), {}, "dtype", (1, 2)),
    ],
    "budget": [
        (lambda s, n: lowest(s, n - 1 if n else 0), {}, "budget, edge_budgets, ties", (1, 2)),
        (lambda s, n: lowest(s, n - (n > 50)), {}, "budget, edge_budgets, ties", (1, 64)),
        *((of_ratio(count), {}, "budget, ties", ()) for count in ROUNDINGS),
        (
            lambda s, n: policies.ada_kv(s, n, axes="bht"),
            {"axes": "bht"},
            "budget, ties",
            (1, 2, 3),
        ),
        (lambda s, n: lowest(s, 2 * n), {"mean_over": "b"}, "budget, ties", (1, 2)),
    ],
    "edge_budgets": [
        (lambda s, n: lowest(s, max(1, n)), {}, "edge_budgets", (1, 2)),
        (lambda s, n: lowest(s, n if n < s.shape[-1] else n - 1), {}, "edge_budgets", (1, 2)),
        (raising, {}, "edge_budgets", (1, 2)),
        (lambda s, n: lowest(s, n) if n else s * 0.0, {}, "edge_budgets", (1, 2)),
        (
            lambda s, n: policies.streaming_llm(s.shape, max(n, 5)),
            {"sinks": 4, "window": 1},
            "edge_budgets",
            (1, 7),
        ),
    ],
    "ties": [(threshold, {}, "ties", (1, 2))],
    "sinks": [
        (lowest, {"sinks": 1}, "sinks", (1, 3)),
        (
            lambda s, n: policies.streaming_llm(s.shape, n, sink=3),
            {"sinks": 4, "window": 1},
            "sinks",
            (1, 7),
        ),
    ],
    "window": [
        (lowest, {"window": 1}, "window", (1, 3)),
        (
            lambda s, n: policies.streaming_llm(s.shape, n, sink=4),
            {"sinks": 3, "window": 2},
            "window",
            (1, 7),
        ),
    ],
    "deterministic": [
        (Alternating(), {}, "deterministic, no_revival, batch", (1, 2)),
        (ties_by_chance, {"skip": ["no_revival", "batch"]}, "deterministic", ()),
        (
            lambda s, n, rng: policies.random(s.shape, n, rng=np.random.default_rng()),  # noqa: ARG005  # it does not use what it is given
            {"takes_rng": True, "skip": ["no_revival"]},
            "deterministic",
            (),
        ),
    ],
    "input_unchanged": [
        (forgetful, {}, "input_unchanged", (1, 2)),
        (signing, {}, "input_unchanged", (1, 2)),
        (flattening, {}, "input_unchanged", (1, 2)),
    ],
    "no_revival": [
        (lambda s, n: lowest(s if n % 2 else -s, n), {}, "no_revival", (1, 3)),
        (lambda s, n: lowest(s if n < 45 else -s, n), {}, "no_revival", (1, 64)),
    ],
    "batch": [
        (of_the_first, {}, "batch", (2, 2)),
        (of_place, {}, "batch", (2, 2)),
        (by_size, {}, "batch", (2, 2)),
        (ties_by_place, {}, "batch", (2, 2)),
        (lambda s, n: of_the_first(s.T, n).T, {"axes": "tb"}, "batch", (2, 2)),
    ],
    "padding": [
        (lowest, {"takes_valid": True}, "padding", (1, 2)),
        (lowest, {"takes_valid": True, "axes": "t"}, "padding", (2,)),
        (real_tokens, {"takes_valid": True}, "padding", (1, 2)),
        (as_the_first_is_padded, {"takes_valid": True}, "padding", (2, 3)),
        (
            lambda s, n, valid: real_tokens(s[..., ::-1], n, valid[..., ::-1])[..., ::-1],
            {"takes_valid": True},
            "padding",
            (1, 2),
        ),
    ],
}
BROKEN = [(law, *case) for law, all_of_it in BREAKS.items() for case in all_of_it]


def test_each_law_is_shown_to_break() -> None:
    assert {*BREAKS} == {*LAWS}
    assert all(BREAKS.values())


@pytest.mark.parametrize(("law", "policy", "said", "broken", "shape"), BROKEN)
def test_a_law_catches_what_breaks_it(
    law: str,
    policy: Callable[..., object],
    said: dict[str, Any],
    broken: str,
    shape: tuple[int, ...],
) -> None:
    text = message(lambda: check_policy(policy, **said))
    head = text.partition("\n")[0]
    assert head.partition(" laws: ")[2] == broken
    assert law in broken.split(", ")
    paragraph = next(part for part in text.split("\n\n") if part.startswith(f"{law}: "))
    assert paragraph.startswith(f"{law}: {LAWS[law].says}\n  ")
    assert not shape or f", shape {shape}, num_kept=" in paragraph


def test_a_batch_that_matters_is_said_in_which_way() -> None:
    assert "when the sequences came in reverse order\n" in message(
        lambda: check_policy(of_the_first)
    )
    assert "kept other tokens of b=0 when it came alone\n" in message(lambda: check_policy(by_size))


def test_a_law_that_is_skipped_is_not_asked() -> None:
    check = check_policy(threshold, skip=["ties"])
    assert {*check.not_asked} == {"sinks", "window", "padding", "ties"}
    text = message(lambda: check_policy(threshold, skip=["batch"]))
    assert text.startswith("threshold breaks 1 of 8 laws: ties\n")


def test_the_message_of_a_broken_policy() -> None:
    assert message(lambda: check_policy(threshold)) == (
        "threshold breaks 1 of 9 laws: ties\n"
        "\n"
        "ties: exactly num_kept tokens of each row stay where scores are equal\n"
        "  kept 2 instead of 1 tokens of b=0\n"
        "  smallest input found: axes='bt', shape (1, 2), num_kept=1, seed 0\n"
        "  importance = numpy.random.default_rng(0).integers(2, size=(1, 2)) * 1.0\n"
        "  = [[1.0, 1.0]]\n"
        "in blocks of 16:\n"
        "# kept, x evicted in a held block, . in a free block, - no token\n"
        "kept:\n"
        "b=0 |##--------------|"
    )


def test_a_map_is_in_blocks_of_the_pool_and_of_the_first_finding_alone() -> None:
    text = message(lambda: check_policy(Alternating(), pool=2))
    assert text.count("in blocks of 2:") == 1
    assert text.index("in blocks of 2:") < text.index("no_revival: ")
    assert re.search(r"kept:\nb=0 \|.[#x]\|\nkept when called again:\nb=0 \|", text)


def test_an_exception_is_a_finding_and_the_cause() -> None:
    with pytest.raises(
        AssertionError, match=r"the policy raised RuntimeError: nothing\\nto keep\n"
    ) as caught:
        check_policy(raising)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_policy_that_raises_at_once_is_said_to_raise() -> None:
    def fail(*_: object) -> Keep:
        raise KeyError("scores")

    text = message(lambda: check_policy(fail))
    assert text.startswith(
        "fail raised KeyError, and so breaks 1 of 9 laws: shape\n\n"
        "shape: the mask has the shape of the scores\n  the policy raised KeyError: 'scores'\n"
    )
    text = message(lambda: check_policy(lambda s, n: None))  # noqa: ARG005  # returns nothing
    assert text.startswith("<lambda> breaks 1 of 9 laws: shape\n")
    assert "\n  what the policy returns must be a keep-mask; got NoneType None;" in text
    assert "raised" not in text


def test_what_is_written_to_is_said() -> None:
    assert "  wrote -0.0 over importance 0.0 at index (0, " in message(
        lambda: check_policy(signing)
    )
    assert "  made an array of float64 of shape (2,) of the importance\n" in message(
        lambda: check_policy(flattening)
    )


def test_an_exception_without_a_text_is_a_finding_too() -> None:
    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def mute(*_: object) -> Keep:
        raise MuteError

    assert "  the policy raised MuteError: without a text\n" in message(lambda: check_policy(mute))


def test_a_policy_that_fails_where_reclaim_is_measured_is_told_so() -> None:
    def short(scores: NDArray[np.float64], num_kept: int) -> Keep:
        return lowest(scores, num_kept - (scores.shape[-1] > 500))

    text = message(lambda: check_policy(short))
    assert text.startswith(
        "short fails where reclaim is measured: kept 511 instead of 512 tokens of b=0\n"
        "  axes='bt', shape (2, 1024), num_kept=512\nin blocks of 16:\n"
    )
    assert "\nA character is a block: the eighths" in text
    assert max(map(len, text.splitlines())) <= 80
    assert check_policy(short, skip=["budget"]).num_kept == 512

    def overtaxed(scores: NDArray[np.float64], num_kept: int) -> Keep:
        if scores.shape[-1] > 500:
            raise MemoryError("x" * 1000)
        return lowest(scores, num_kept)

    with pytest.raises(
        AssertionError, match=r"the policy raised MemoryError: x{400}\n  axes='bt'"
    ) as caught:
        check_policy(overtaxed)
    assert isinstance(caught.value.__cause__, MemoryError)


def asked(**changes: Any) -> Asked:  # noqa: ANN401  # any field
    fields: dict[str, Any] = {
        "policy": lowest,
        "axes": "bht",
        "mean_over": "",
        "sinks": 0,
        "window": 0,
        "takes_rng": False,
        "takes_valid": False,
        "seed": 3,
        "calls": [0],
    }
    return Asked(**(fields | changes))


@pytest.mark.parametrize(("sinks", "window"), [(0, 0), (1, 0), (0, 2), (4, 64)])
def test_cases_come_by_size_and_print_what_makes_them(sinks: int, window: int) -> None:
    what = asked(sinks=sinks, window=window)
    for some in ([*ordinary(what)], [*ordinary(what, "tied")], [*edges(what)]):
        sizes = [math.prod(case.shape) for case in some]
        assert sizes == sorted(sizes)
        assert {case.shape[0] for case in some} == {1, 2}
        for case in some[::17]:
            made = eval(case.code(), {"numpy": np})  # noqa: S307  # the line that a message shows
            assert (made == case.importance()).all()
            assert made.shape == case.shape
    assert {case.seed for case in ordinary(what)} == {3, 4}
    for case in ordinary(what):
        assert max(1, sinks + window) <= case.num_kept < case.shape[-1]
        assert len({*case.importance().flat}) == math.prod(case.shape)
    budgets = {(case.num_kept, case.shape[-1]) for case in edges(what)}
    assert {num_kept - tokens for num_kept, tokens in budgets} >= {0, 1}
    assert 0 in {num_kept for num_kept, _ in budgets}
    assert all(n < max(1, sinks + window) or n >= tokens for n, tokens in budgets)
    assert sinks + window < 2 or sinks + window - 1 in {num_kept for num_kept, _ in budgets}


def test_the_same_seed_asks_the_same() -> None:
    seen: list[list[float]] = [[], [], []]

    def watching(into: list[float]) -> Callable[..., object]:
        def policy(scores: NDArray[np.float64], num_kept: int) -> Keep:
            into.append(float(scores.reshape(-1)[0]))
            return lowest(scores, num_kept)

        return policy

    for into, seed in zip(seen, (0, 0, 1), strict=True):
        check_policy(watching(into), seed=seed)
    assert seen[0] == seen[1]
    assert seen[0][:-1] != seen[2][:-1]  # the last is of where reclaim is measured
    assert seen[0][-1] != seen[2][-1]


def test_scores_of_your_own_are_not_written_to() -> None:
    scores = np.random.default_rng(0).random((2, 40))
    before = scores.copy()
    check_policy(forgetful, skip=["input_unchanged"], scores=scores)
    assert (scores == before).all()


# --- What comes back ---


def test_reclaim_is_that_of_the_mask_at_each_block_size() -> None:
    pool = runtimes.kv_compress(block_size=8)
    scores = np.random.default_rng(1).random((3, 100))
    check = check_policy(lowest, pool=pool, block_sizes=[1, 3, 16], scores=scores, keep_ratio=0.29)
    keep = policies.lowest_importance(scores, 29)
    assert (check.shape, check.num_kept, check.axes) == ((3, 100), 29, "bt")
    assert [at.block_size for at in check.reclaim] == [1, 3, 16]
    for at in check.reclaim:
        census = take_census(keep, pool.replace(block_size=at.block_size), axes="bt")
        assert at.physical_reclaim == physical_reclaim(census)
        assert at.packed_reclaim == kvreclaim.packed_reclaim(census)
        assert at.reclaim_efficiency == reclaim_efficiency(census)
    assert check.signature == (
        "B:each|share:none|frees:back|tail:closed|move:fill|pool:full|reserved:0|watermark:0|"
        f"entry:-|rows:1|v:{kvreclaim.__version__}"
    )


def test_rows_share_blocks_where_tokens_come_first() -> None:
    both = [
        check_policy(
            lambda s, n, axes=axes: policies.lowest_importance(s, n, axes=axes),
            axes=axes,
            scores=scores,
            block_sizes=[2],
        )
        for axes, scores in (
            ("ht", np.arange(16.0).reshape(2, 8) % 5),
            ("th", np.arange(16.0).reshape(2, 8).T % 5),
        )
    ]
    assert both[0].reclaim == both[1].reclaim
    assert both[0].signature == both[1].signature
    assert "|rows:2|" in both[0].signature


def test_a_check_is_a_record_whose_text_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    policy = GOOD["streaming_llm"][0]
    check = check_policy(policy, sinks=3, window=2, block_sizes=[1, 16, 600])
    assert capsys.readouterr() == ("", "")
    calls = []
    check_policy(
        lambda s, n: [calls.append(n), policy(s, n)][1],  # type: ignore[func-returns-value]  # it counts
        sinks=3,
        window=2,
    )
    assert check.num_calls == len(calls)
    assert str(check) == (
        f"<lambda>: 11 laws hold, in {len(calls)} calls\n"
        "not asked: padding\n"
        "reclaim, num_kept=512 of 1024 tokens, bt (2, 1024):\n"
        "\n"
        "block size  in place  packed  efficiency\n"
        "1              0.500   0.500       1.000\n"
        "16             0.484   0.500       0.969\n"
        "600            0.000   0.500       0.000\n"
        "\n"
        "B:each|share:hl|frees:any|tail:closed|move:evacuate|pool:full|reserved:0|watermark:0|"
        f"entry:-|rows:1|v:{kvreclaim.__version__}"
    )
    assert pickle.loads(pickle.dumps(check)) == check  # noqa: S301  # made on this line
    assert hash(check)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        check.num_calls = 0  # type: ignore[misc]  # what is shown to be refused
    assert check_policy(
        lambda s, n: policies.streaming_llm(s.shape, n, sink=1), sinks=1, window=299
    ).shape == (2, 1200)


# --- Bad arguments ---

HALF = [1, 0]
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: assert_physical_reclaim(HALF, 2, at_least=50),
        ValueError,
        "at_least must be a number from 0 to 1; got 50.0; write a share, not a percentage",
    ),
    (lambda: assert_physical_reclaim(HALF, 2, at_least=math.nan), ValueError, "at_least .* nan"),
    (lambda: assert_physical_reclaim(HALF, 2, at_least=True), TypeError, "at_least must be"),
    (lambda: assert_physical_reclaim([0.5], 2, at_least=0), TypeError, "keep must be True and"),
    (lambda: assert_physical_reclaim([HALF], 2, at_least=0), ValueError, "axes must name the 2"),
    (lambda: assert_physical_reclaim(HALF, "16", at_least=0), TypeError, "pool must be"),  # type: ignore[arg-type]  # what is shown to be refused
    (
        lambda: assert_physical_reclaim([HALF], 2, at_least=0, axes="bt", lengths=[0]),
        ValueError,
        "keep must be False beyond the lengths",
    ),
    (
        lambda: assert_reclaim_efficiency(HALF, 2, at_least=-1),
        ValueError,
        "at_least must be a finite number of at least 0; got int -1; write one",
    ),
    (lambda: assert_reclaim_efficiency(HALF, 2, at_least=math.inf), ValueError, "at_least must"),
    (lambda: assert_block_coherent(HALF, 2, at_most=-1), ValueError, "at_most must be .* got -1"),
    (lambda: assert_block_coherent(HALF, 2, offset=2), ValueError, "offset must be from 0 to 1"),
    (lambda: assert_num_kept(HALF, 1.0), TypeError, "num_kept must be an integer"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: assert_num_kept(HALF, -1), ValueError, "num_kept must be .* got -1"),
    (
        lambda: assert_num_kept([HALF], 1, axes="bt", mean_over="h"),
        ValueError,
        "mean_over must name letters of axes; got 'h' for axes 'bt'; write such as axes='lht'",
    ),
    (lambda: assert_num_kept([HALF], 1, mean_over="h"), ValueError, "for axes None"),
    (lambda: assert_num_kept(HALF, 1, axes="t", mean_over="t"), ValueError, "leave out 't'"),
    (lambda: assert_num_kept(HALF, 1, axes="bt"), ValueError, "axes must be"),
    (
        lambda: assert_num_kept([[1, 1]], 2, axes="bt", lengths=[1]),
        ValueError,
        "keep must be False beyond the lengths",
    ),
    (
        lambda: assert_no_revival([1, 1], [1]),
        ValueError,
        r"after must have the rows of before, and no fewer tokens; got shape \(1,\) after \(2,\)",
    ),
    (lambda: assert_no_revival([HALF], HALF), ValueError, "after must have the rows of before"),
    (lambda: assert_no_revival([HALF], [HALF, HALF]), ValueError, "after must have the rows"),
    (
        lambda: assert_no_revival([HALF], [HALF] * 2, axes="bt"),
        ValueError,
        "after must have the rows",
    ),
    (lambda: assert_no_revival([0.5], HALF), TypeError, "before must be True and False"),
    (lambda: assert_no_revival(HALF, [2]), ValueError, "after must be True and False"),
    (
        lambda: check_policy("mine"),  # type: ignore[arg-type]  # what is shown to be refused
        TypeError,
        r"policy must be callable as policy\(importance, num_kept\); got str 'mine'",
    ),
    (
        lambda: check_policy(lowest, skip=["speed"]),
        ValueError,
        "skip must be one of 'budget', 'edge_budgets', .*; got 'speed'",
    ),
    (lambda: check_policy(lowest, skip=["shape"]), ValueError, "skip must be .* got 'shape'"),
    (lambda: check_policy(lowest, skip="ties"), TypeError, "skip must be names of laws; got str"),
    (lambda: check_policy(lowest, axes="bh"), ValueError, "'t' among them; got 'bh' without 't'"),
    (lambda: check_policy(lowest, axes=""), ValueError, "axes must be"),
    (lambda: check_policy(lowest, axes=2), TypeError, "axes must be .* got int 2"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: check_policy(lowest, mean_over="h"), ValueError, "mean_over must name letters"),
    (lambda: check_policy(lowest, sinks=-1), ValueError, "sinks must be"),
    (lambda: check_policy(lowest, window=1.5), TypeError, "window must be"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: check_policy(lowest, takes_rng=1), TypeError, "takes_rng must be True or False"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: check_policy(lowest, takes_valid=None), TypeError, "takes_valid must be"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: check_policy(lowest, block_sizes=[]), ValueError, "block_sizes must be at least one"),
    (lambda: check_policy(lowest, block_sizes=[0]), ValueError, "block_sizes must be .* got 0"),
    (lambda: check_policy(lowest, keep_ratio=2), ValueError, "keep_ratio must be"),
    (lambda: check_policy(lowest, seed=-1), ValueError, "seed must be"),
    (lambda: check_policy(lowest, scores=[1.0, 2.0]), ValueError, "axes must be .* for scores"),
    (lambda: check_policy(lowest, scores=[[math.nan]]), ValueError, "scores must be"),
    (lambda: strategies.keep_masks("b"), ValueError, "'t' among them; got 'b' without 't'"),
    (lambda: strategies.keep_masks(3), TypeError, "axes must be .* got int 3"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: strategies.keep_masks(min_tokens=-1), ValueError, "min_tokens must be"),
    (lambda: strategies.keep_masks(min_tokens=100), ValueError, "max_tokens must be .* least 100"),
    (lambda: strategies.keep_masks(max_rows=0), ValueError, "max_rows must be"),
    (lambda: strategies.keep_masks(block_size=0), ValueError, "block_size must be"),
    (lambda: strategies.keep_masks(ragged=0), TypeError, "ragged must be True or False"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: strategies.pools(block_sizes=16), TypeError, "block_sizes must be values to choose"),  # type: ignore[arg-type]  # what is shown to be refused
    (lambda: strategies.pools(block_sizes=[]), ValueError, "block_sizes must have a value"),
    (lambda: strategies.pools(shared_axes="lh"), TypeError, "shared_axes must be values"),
    (lambda: strategies.pools(shared_axes=["t"]), ValueError, "shared_axes must be .* got 't'"),
    (lambda: strategies.pools(frees=["all"]), ValueError, "frees must be one of .* got 'all'"),
    (lambda: strategies.pools(sized=1), TypeError, "sized must be True or False"),  # type: ignore[arg-type]  # what is shown to be refused
]


@pytest.mark.parametrize(("call", "error", "wording"), BAD)
def test_a_bad_argument_is_no_failed_assertion(
    call: Callable[[], object], error: type[Exception], wording: str
) -> None:
    with pytest.raises(error, match=wording) as caught:
        call()
    assert caught.type is error
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


# --- Strategies ---


@given(st.data())
def test_masks_are_as_they_were_asked_for(data: st.DataObject) -> None:
    axes = data.draw(st.sampled_from(["t", "bt", "tb", "lht", "hblt"]))
    least, more = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 20))
    keep = data.draw(
        strategies.keep_masks(axes, min_tokens=least, max_tokens=least + more, max_rows=2)
    )
    assert keep.dtype == np.bool_
    assert keep.ndim == len(axes)
    assert keep.flags.writeable
    for letter, size in zip(axes, keep.shape, strict=True):
        low, high = (least, least + more) if letter == "t" else (1, 2)
        assert low <= size <= high


SEARCH = settings(max_examples=3000, database=None, suppress_health_check=list(HealthCheck))


def in_blocks(keep: Keep) -> bool:
    blocks = keep.reshape(-1, 4)
    return bool(
        (blocks.all(axis=1) | ~blocks.any(axis=1)).all() and 2 < blocks.any(axis=1).sum() < 6
    )


def is_window(keep: Keep) -> bool:
    edges_of_it = np.flatnonzero(np.diff(keep))
    return bool(keep[0] and keep[-1] and len(edges_of_it) == 2 and (~keep).sum() > 8)


KINDS: dict[str, Callable[[Keep], bool]] = {
    "none": lambda keep: not keep.any(),
    "all": lambda keep: bool(keep.all()),
    "window": is_window,
    "blocks": in_blocks,
    "rare": lambda keep: 2 <= keep.sum() <= 4,
    "most": lambda keep: 26 <= keep.sum() <= 30 and len(np.flatnonzero(np.diff(keep))) > 3,
    "scattered": lambda keep: len(np.flatnonzero(np.diff(keep))) > 12,
}


def drawn(masks: st.SearchStrategy[Keep]) -> list[Keep]:
    """Return what a strategy gives of itself: a search would reach any mask at last."""
    seen: list[Keep] = []

    @settings(max_examples=600, database=None, derandomize=True)
    @given(masks)
    def look(keep: Keep) -> None:
        seen.append(keep)

    look()
    return seen


def test_every_kind_of_mask_is_drawn() -> None:
    seen = drawn(strategies.keep_masks(min_tokens=32, max_tokens=32, block_size=4, ragged=False))
    counts = {kind: sum(map(condition, seen)) for kind, condition in KINDS.items()}
    assert min(counts.values()) >= 6, counts


def is_prefix(row: Keep) -> bool:
    return bool(row[0]) and not row[-1] and len(np.flatnonzero(np.diff(row))) == 1


def test_rows_are_alike_or_not() -> None:
    masks = strategies.keep_masks(
        "bt", min_tokens=24, max_tokens=24, max_rows=2, block_size=1, ragged=False
    )
    pairs = [keep for keep in drawn(masks) if len(keep) == 2]
    scattered = [keep for keep in pairs if np.diff(keep[0]).sum() > 6]  # not alike by chance
    alike = [bool((keep[0] == keep[1]).all()) for keep in scattered]
    assert alike.count(True) > 0.45 * len(alike)  # Hypothesis repeats itself in a quarter
    assert alike.count(False) > 10


def test_rows_end_at_many_places() -> None:
    masks = strategies.keep_masks("bt", min_tokens=24, max_tokens=24)
    ends = {int(row.sum()) for keep in drawn(masks) for row in keep if is_prefix(row)}
    assert len(ends) > 10


def test_rows_end_early_only_by_chance_where_they_may_not() -> None:
    counts = [
        sum(is_prefix(row) for keep in drawn(masks) for row in keep)
        for masks in (
            strategies.keep_masks("bt", min_tokens=24, max_tokens=24, ragged=ragged)
            for ragged in (False, True)
        )
    ]
    assert counts[0] < counts[1] / 2


def test_a_mask_shrinks() -> None:
    masks = strategies.keep_masks("bt", ragged=False)
    assert find(masks, lambda _: True, settings=SEARCH).shape == (1, 0)
    assert find(masks, lambda keep: bool(keep.any()), settings=SEARCH).tolist() == [[True]]
    assert find(masks, lambda keep: keep.shape[1] > 4, settings=SEARCH).tolist() == [[False] * 5]


def test_every_legal_pool_is_found_and_no_other() -> None:
    seen: set[str | tuple[str, str]] = set()

    @settings(max_examples=600, database=None, derandomize=True)
    @given(strategies.pools())
    def look(pool: BlockPool) -> None:
        assert pool.total_blocks is None
        seen.add((pool.frees, pool.compactor))
        seen.add(pool.shared_axes)
        seen.add(f"tail {pool.open_tail}, entry {pool.entry_bytes}, {pool.block_size > 1}")

    look()
    legal = {(frees, how) for frees, some in LEGAL_COMPACTORS.items() for how in some}
    others = {
        f"tail {tail}, entry {size}, {large}"
        for tail in (False, True)
        for size in (None, 512, 1152)
        for large in (False, True)
    }
    assert seen == legal | {"", "h", "l", "hl"} | others
    assert find(strategies.pools(), lambda _: True, settings=SEARCH) == BlockPool(1, shared_axes="")


def test_pools_are_as_they_were_asked_for() -> None:
    some = strategies.pools(block_sizes=[5], shared_axes=["s"], frees=["back"], sized=True)
    pool = find(
        some,
        lambda pool: pool.reserved_blocks > 1 and pool.watermark_blocks > 1,
        settings=SEARCH,
    )
    assert (pool.block_size, pool.shared_axes, pool.frees) == (5, "s", "back")
    assert pool.total_blocks == 4
    find(some, lambda pool: pool.total_blocks is None, settings=SEARCH)


@given(strategies.keep_masks("bht"), strategies.pools(sized=True))
def test_masks_and_pools_go_together(keep: Keep, pool: BlockPool) -> None:
    census = take_census(keep, pool, axes="bht")
    assert census.num_live_entries == keep.sum()


# --- The scripts of the page ---

ROOT = Path(kvreclaim.__file__).parents[1]
PAGE = Path(__file__).parents[1] / "docs" / "testing-policies.md"


def run_pytest(folder: Path, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder that is no part of this project."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | variables,
    )


def test_the_test_of_the_page_passes_and_shows_the_table(tmp_path: Path) -> None:
    script = scripts_of(PAGE)["test_my_policy.py"]
    (tmp_path / "test_my_policy.py").write_text(script, "utf-8")
    done = run_pytest(tmp_path, "-s", "-W", "error")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "my_policy: 8 laws hold" in done.stdout
    assert "block size  in place  packed  efficiency" in done.stdout


def test_a_policy_that_strands_memory_fails_it_and_pytest_shows_the_line(tmp_path: Path) -> None:
    script = scripts_of(PAGE)["test_my_policy.py"]
    rule = 'policies.whole_block(scores, num_kept, POOL, axes="lht")'
    assert rule in script
    script = script.replace(rule, "policies.lowest_importance(scores, num_kept)")
    (tmp_path / "test_my_policy.py").write_text(script, "utf-8")
    done = run_pytest(tmp_path, "-p", "no:randomly")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert re.search(r"^> +assert_physical_reclaim\(", done.stdout, re.MULTILINE)
    assert "physical_reclaim must be at least 0.5;" in done.stdout
    assert "_assertions.py" not in done.stdout  # the frames of the assertion itself are hidden


def test_the_hypothesis_test_of_the_page_passes(tmp_path: Path, installed: list[Path]) -> None:
    script = scripts_of(PAGE)["test_my_metric.py"]
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_my_metric.py").write_text(script, "utf-8")
    path = os.pathsep.join(map(str, [*installed, ROOT]))
    done = run_pytest(tests, "-W", "error", PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


# --- What is imported, and when ---


def fresh(code: str, *folders: Path, **variables: str) -> str:
    """Run a line in a fresh interpreter, of the package under test; return what it prints."""
    path = os.pathsep.join(map(str, [*folders, ROOT]))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path} | variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_testing_loads_no_part_and_using_it_no_test_library() -> None:
    shown = fresh(
        "import sys, kvreclaim.testing as t; print('numpy' in sys.modules, "
        "set(t.__all__) <= set(dir(t)));"
        "[sys.modules.__setitem__(name, None) for name in ('hypothesis', 'pytest', '_pytest')];"
        "from kvreclaim import policies; from kvreclaim.testing import *;"
        "check_policy(policies.lowest_importance); assert_physical_reclaim([1, 0], 1, at_least=.5);"
        "print(strategies.__name__, 'scipy' in sys.modules)"
    )
    assert shown.splitlines() == ["False True", "kvreclaim.testing.strategies False"]


def test_without_hypothesis_a_strategy_says_what_to_install() -> None:
    shown = fresh(
        "import sys; sys.modules['hypothesis'] = None\n"
        "from kvreclaim.testing.strategies import keep_masks, pools\n"
        "for make in (keep_masks, pools):\n"
        "    try: make()\n"
        "    except ValueError as error: print(error)"
    )
    for name, line in zip(("keep_masks", "pools"), shown.splitlines(), strict=True):
        assert line.startswith(f"{name} must be handled by the package hypothesis; ")
        assert line.endswith("write pip install 'kvreclaim[hypothesis]'.")


def test_names_are_those_that_a_type_checker_finds() -> None:
    for name in public.__all__:
        value = getattr(public, name)
        assert value.__name__.rpartition(".")[2] == name
    with pytest.raises(AttributeError, match=r"'kvreclaim.testing' has no attribute 'assert_sink'"):
        getattr(public, "assert_sink")  # noqa: B009  # a type checker knows that it is absent
    assert PolicyCheck.__doc__


@pytest.fixture
def installed(tmp_path: Path) -> list[Path]:
    """Return the folders that Python must look in to see the package as installed: none, mostly.

    In a checkout that is not installed, a folder with the metadata that an installer would write.
    """
    if [*importlib.metadata.distributions(name="kvreclaim")]:
        return []
    with (Path(__file__).parents[1] / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["hypothesis"]
    info = tmp_path / "kvreclaim-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvreclaim\nVersion: 0\n", "utf-8")
    lines = ["[hypothesis]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines), "utf-8")
    return [tmp_path]


def test_hypothesis_learns_of_pools_by_itself(installed: list[Path]) -> None:
    shown = fresh(
        "from hypothesis import strategies as st; from kvreclaim import BlockPool;"
        "print(st.from_type(BlockPool), st.from_type(BlockPool | None).validate())",
        *installed,
    )
    assert shown == "legal() None"
    shown = fresh(
        "from kvreclaim import BlockPool; from kvreclaim.testing import strategies as ours;"
        "ours.pools(); from hypothesis import strategies as st; print(st.from_type(BlockPool))",
        *installed,
    )
    assert shown == "legal()"


def test_hypothesis_loads_the_pool_and_nothing_more(installed: list[Path]) -> None:
    shown = fresh(
        "import sys, hypothesis; print(sorted(n for n in sys.modules if n.startswith('kvreclaim')),"
        "'scipy' in sys.modules)",
        *installed,
    )
    assert shown == (
        "['kvreclaim', 'kvreclaim._checks', 'kvreclaim._version', 'kvreclaim.pool', "
        "'kvreclaim.testing', 'kvreclaim.testing._hypothesis'] False"
    )
    shown = fresh(
        "import sys, hypothesis; print('kvreclaim' in sys.modules)",
        *installed,
        HYPOTHESIS_NO_PLUGINS="1",
    )
    assert shown == "False"


def test_hypothesis_works_where_the_pool_cannot_be_imported(
    installed: list[Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    (broken / "numpy").mkdir(parents=True)
    (broken / "numpy" / "__init__.py").write_text("raise ImportError('broken')", "utf-8")
    shown = fresh("import hypothesis; print('works')", broken, *installed)
    assert shown == "works"
