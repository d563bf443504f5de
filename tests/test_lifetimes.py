"""The timeline against a census of every step, and against a slow twin that plays each step."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import tracemalloc
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias
from unittest import mock

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import SMALL_BLOCKS, pools

from kvreclaim import BlockPool, _lives, lifetimes, physical_reclaim, take_census
from kvreclaim.lifetimes import NEVER, Timeline, timeline

COUNTS = (
    "num_tokens",
    "num_live_tokens",
    "num_held_blocks",
    "num_freed_blocks",
    "num_stranded_tokens",
)
Times: TypeAlias = NDArray[np.int32]


# --- The slow twin: every step of every table, slot by slot ---


def twin(
    born_at: Any,  # noqa: ANN401  # nested lists of one shape
    evicted_at: Any,  # noqa: ANN401
    pool: oracle.PoolLike,
    axes: str | None = None,
    *,
    lengths: oracle.PerTable | None = None,
    offset: oracle.PerTable = 0,
    reuse_holes: bool = False,
    shape: Sequence[int] | None = None,
) -> dict[str, list[int]]:
    """The five counts of every step, summed over tables; a table's entries are (born, evicted)."""
    sizes = oracle._shape(born_at) if shape is None else tuple(shape)
    letters = oracle._letters(axes, len(sizes), pool)
    time = letters.index("t")
    shared = [axis for axis, letter in enumerate(letters) if letter in pool.shared_axes]
    outer = [axis for axis in range(len(sizes)) if axis != time and axis not in shared]
    outer_sizes = [sizes[axis] for axis in outer]
    outer_letters = [letters[axis] for axis in outer]
    full = sizes[time] if lengths is None else lengths
    length_of = oracle._number_of_each_table(full, outer_sizes, outer_letters, 0, sizes[time])
    offset_of = oracle._number_of_each_table(
        offset, outer_sizes, outer_letters, 0, pool.block_size - 1
    )
    tables = []
    for table in itertools.product(*map(range, outer_sizes)):
        tokens: list[Entries] = []
        for token in range(length_of[table]):
            entries: Entries = []
            for row in itertools.product(*(range(sizes[axis]) for axis in shared)):
                index = [0] * len(sizes)
                for axis, position in zip(
                    [*outer, *shared, time], [*table, *row, token], strict=True
                ):
                    index[axis] = position
                entries.append((_at(born_at, index), _at(evicted_at, index)))
            tokens.append(entries)
        tables.append((tokens, offset_of[table]))
    times = {t for tokens, _ in tables for entries in tokens for life in entries for t in life}
    steps = 1 + max(times - {NEVER}, default=0)
    counts = {name: [0] * steps for name in COUNTS}
    for tokens, before in tables:
        play = _play_with_reuse if reuse_holes else _play
        for step, found in enumerate(play(tokens, before, pool, steps)):
            for name in COUNTS:
                counts[name][step] += found[name]
    return counts


Entries: TypeAlias = "list[tuple[int, int]]"  # of one token: born and evicted in each row


def _at(nested: Any, index: Sequence[int]) -> int:  # noqa: ANN401
    for position in index:
        nested = nested[position]
    return int(nested)


def _is_alive(life: tuple[int, int], step: int) -> bool:
    return life[0] <= step < life[1]


def _is_born(token: Entries, step: int) -> bool:
    """A slot is written when the first of its entries is."""
    return any(born <= step < NEVER for born, _ in token)


def _play(
    tokens: list[Entries], offset: int, pool: oracle.PoolLike, steps: int
) -> list[dict[str, int]]:
    """The census of the tokens born by each step."""
    found = []
    for step in range(steps):
        written = [token for token in tokens if _is_born(token, step)]
        num_rows = len(tokens[0]) if tokens else 0
        rows = [[_is_alive(token[row], step) for token in written] for row in range(num_rows)]
        found.append(oracle._census_of_table(rows, len(written), offset, pool))
    return found


def _play_with_reuse(
    tokens: list[Entries], offset: int, pool: oracle.PoolLike, steps: int
) -> list[dict[str, int]]:
    """Blocks of the number of a token, "offset" or "unwritten"; freed ones are taken out.

    At a step tokens die, then blocks are freed, then tokens are written one by one. One that is
    evicted within the step that writes it keeps its slot until all are written.
    """
    blocks: list[list[int | str]] = []
    written: list[int] = []
    found = []
    for step in range(steps):
        blocks = _without_freed(blocks, tokens, step, pool)
        newborn = [
            number
            for number, token in enumerate(tokens)
            if number not in written and _is_born(token, step)
        ]
        placed: list[int] = []
        for number in newborn:
            for block, slot in _all_slots(blocks):
                what = blocks[block][slot]
                if isinstance(what, int) and what not in placed and _is_dead(tokens[what], step):
                    blocks[block][slot] = number
                    break
            else:
                if not blocks or blocks[-1][-1] != "unwritten":
                    first = not written and not placed
                    blocks.append(["unwritten"] * pool.block_size)
                    blocks[-1][: offset * first] = ["offset"] * (offset * first)
                blocks[-1][blocks[-1].index("unwritten")] = number
            placed.append(number)
        written += newborn
        blocks = _without_freed(blocks, tokens, step, pool)
        held = [what for block in blocks for what in block if isinstance(what, int)]
        num_live = sum(1 for number in held if not _is_dead(tokens[number], step))
        filled = math.ceil((offset + len(written)) / pool.block_size) if written else 0
        assert num_live == sum(1 for number in written if not _is_dead(tokens[number], step))
        found.append(
            {
                "num_tokens": len(written),
                "num_live_tokens": num_live,
                "num_held_blocks": len(blocks),
                "num_freed_blocks": filled - len(blocks),
                "num_stranded_tokens": len(held) - num_live,
            }
        )
    return found


def _all_slots(blocks: list[list[int | str]]) -> list[tuple[int, int]]:
    return [(number, slot) for number, block in enumerate(blocks) for slot in range(len(block))]


def _is_dead(token: Entries, step: int) -> bool:
    return not any(_is_alive(life, step) for life in token)


def _without_freed(
    blocks: list[list[int | str]], tokens: list[Entries], step: int, pool: oracle.PoolLike
) -> list[list[int | str]]:
    pictures: list[oracle.Block] = [
        [what if isinstance(what, str) else [not _is_dead(tokens[what], step)] for what in block]
        for block in blocks
    ]
    freed = oracle._is_freed(pictures, pool)
    return [block for block, is_freed in zip(blocks, freed, strict=True) if not is_freed]


# --- Lives for Hypothesis ---


class Lives(NamedTuple):
    """The times of some tokens, ready for `timeline(born_at, evicted_at, pool, **said)`."""

    born_at: Times
    evicted_at: Times
    pool: BlockPool
    said: dict[str, Any]  # axes, lengths, offset

    def line(self, *, reuse_holes: bool = False) -> Timeline:
        return timeline(
            self.born_at, self.evicted_at, self.pool, reuse_holes=reuse_holes, **self.said
        )

    def slowly(self, *, reuse_holes: bool = False) -> dict[str, list[int]]:
        said = {name: np.asarray(value).tolist() for name, value in self.said.items()}
        return twin(
            self.born_at.tolist(),
            self.evicted_at.tolist(),
            self.pool,
            **said,
            reuse_holes=reuse_holes,
            shape=self.born_at.shape,
        )


SMALL_POOLS = pools(SMALL_BLOCKS)


@st.composite
def lives(
    draw: st.DrawFn,
    pool: st.SearchStrategy[BlockPool] = SMALL_POOLS,
    *,
    others: str = "lhbs",
    births: Sequence[str] = ("prefill", "decode", "bursts", "some never"),
) -> Lives:
    """Times of one to four axes in any order, ragged or not, behind an offset or not."""
    chosen = draw(pool)
    letters = draw(
        st.lists(st.sampled_from(others or "?"), unique=True, max_size=min(3, len(others))).flatmap(
            lambda some: st.permutations([*some, "t"])
        )
    )
    outer = [letter for letter in letters if letter not in chosen.shared_axes + "t"]
    shared = [letter for letter in letters if letter in chosen.shared_axes]
    sizes = {letter: draw(st.integers(letter in shared, 3)) for letter in letters if letter != "t"}
    outer_sizes = tuple(sizes[letter] for letter in outer)
    num_rows = math.prod(sizes[letter] for letter in shared)
    tokens = draw(st.integers(0, 30))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    births_kind, deaths_kind = draw(st.sampled_from(births)), draw(st.sampled_from(DEATHS))

    born = np.zeros((math.prod(outer_sizes), num_rows, tokens), np.int64)
    evicted = np.zeros_like(born)
    alike = births_of(births_kind, tokens, rng)
    for table in range(len(born)):
        born[table] = alike if rng.random() < 0.5 else births_of(births_kind, tokens, rng)
        for row in range(num_rows):
            evicted[table, row] = deaths_of(deaths_kind, born[table, 0], rng)
    if draw(st.booleans()):  # an entry later than the first of its slot, but before that dies
        later = np.minimum(
            born[:, 1:] + rng.integers(0, 4, born[:, 1:].shape), evicted.min(axis=1)[:, None]
        )
        born[:, 1:] = np.where(born[:, 1:] == NEVER, NEVER, later)
        np.maximum(evicted, born, out=evicted)

    said: dict[str, Any] = {"axes": "".join(letters)}
    if 0 not in outer_sizes:
        if draw(st.booleans()):
            lengths = rng.integers(0, tokens + 1, outer_sizes)
            beyond = np.broadcast_to(np.arange(tokens) >= lengths.reshape(-1, 1, 1), born.shape)
            filler = draw(st.sampled_from(["zeros", "born at once evicted", "evicted at 0"]))
            if filler == "zeros":
                born[beyond] = 0
            evicted[beyond] = born[beyond] if filler == "born at once evicted" else 0
            said["lengths"] = lengths
        if draw(st.booleans()):
            said["offset"] = rng.integers(0, chosen.block_size, outer_sizes)
    order = [*outer, *shared, "t"]
    laid_out = [
        times.reshape(*(sizes[letter] for letter in order[:-1]), tokens)
        .transpose([order.index(letter) for letter in letters])
        .astype(np.int32)
        for times in (born, evicted)
    ]
    return Lives(laid_out[0], laid_out[1], chosen, said)


DEATHS = ("some", "many", "none", "window", "one out", "at once", "all")


def births_of(kind: str, tokens: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if kind == "prefill":
        return np.full(tokens, int(rng.integers(0, 3)))
    if kind == "decode":
        return np.maximum(np.arange(tokens) - int(rng.integers(0, tokens + 1)), 0)
    born = np.sort(rng.integers(0, rng.integers(1, 20), tokens))
    if kind == "some never":
        born[rng.integers(0, tokens + 1) :] = NEVER
    return born


def deaths_of(kind: str, born: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    tokens = len(born)
    evicted = np.full(tokens, NEVER)
    if kind in ("some", "many", "all"):
        dies = rng.random(tokens) < {"some": 0.3, "many": 0.9, "all": 1.0}[kind]
        evicted[dies] = (born + rng.integers(0, rng.integers(1, 12), tokens))[dies]
    elif kind == "window":
        window = int(rng.integers(1, tokens + 2))
        evicted[: max(tokens - window, 0)] = born[window:]
    elif kind == "one out":
        alive: list[int] = []
        budget = rng.integers(1, tokens + 2)
        for token in range(tokens):
            if len(alive) >= budget:
                evicted[alive.pop(rng.integers(len(alive)))] = born[token]
            alive.append(token)
    elif kind == "at once":
        evicted[rng.random(tokens) < 0.8] = 15
    clipped: NDArray[np.int64] = np.clip(evicted, born, NEVER)
    return clipped


def counts_of(line: Timeline) -> dict[str, list[int]]:
    return {name: getattr(line, name).tolist() for name in COUNTS}


# --- Laws ---


@given(lives(), st.sampled_from([1, 7, 64, 1 << 20]))
def test_every_step_is_the_census_of_its_mask(case: Lives, piece: int) -> None:
    with mock.patch.object(lifetimes, "_PIECE", piece):
        line = case.line()
    census_of_step = []
    for step in range(len(line.num_tokens)):
        keep = (case.born_at <= step) & (step < case.evicted_at)
        np.testing.assert_array_equal(line.keep_at(step), keep)
        said = case.said | {"lengths": line.lengths_at(step)}
        census_of_step.append(take_census(keep, case.pool, **said))
        assert census_of_step[-1] == line.census_at(step)
    assert counts_of(line) == {
        name: [getattr(census, name) for census in census_of_step] for name in COUNTS
    }


@given(lives(), st.booleans(), st.sampled_from([1, 7, 1 << 20]))
def test_equals_the_twin(case: Lives, reuse_holes: bool, piece: int) -> None:
    with mock.patch.object(lifetimes, "_PIECE", piece):
        line = case.line(reuse_holes=reuse_holes)
    assert counts_of(line) == case.slowly(reuse_holes=reuse_holes)


@given(lives(), st.booleans())
def test_blocks_and_slots_add_up(case: Lives, reuse_holes: bool) -> None:
    line = case.line(reuse_holes=reuse_holes)
    size = case.pool.block_size
    assert all((getattr(line, name) >= 0).all() for name in COUNTS)
    assert (np.diff(line.num_tokens) >= 0).all()
    assert (np.diff(line.num_held_blocks + line.num_freed_blocks) >= 0).all()
    assert (line.num_live_tokens + line.num_stranded_tokens <= line.num_held_blocks * size).all()
    assert line.peak_held_blocks == max(line.num_held_blocks.tolist())
    assert line.mean_held_blocks == sum(line.num_held_blocks.tolist()) / len(line.num_held_blocks)
    other = case.line(reuse_holes=not reuse_holes)
    for name in ("num_tokens", "num_live_tokens"):
        np.testing.assert_array_equal(getattr(line, name), getattr(other, name))
    np.testing.assert_array_equal(
        line.num_held_blocks + line.num_freed_blocks, other.num_held_blocks + other.num_freed_blocks
    )


@given(lives(), st.booleans())
def test_tables_add_up(case: Lives, reuse_holes: bool) -> None:
    """Each index of the first outer axis alone, the shorter ones held at their last step."""
    axes = case.said["axes"]
    outer = [letter for letter in axes if letter not in case.pool.shared_axes + "t"]
    if not outer or 0 in case.born_at.shape:
        return
    axis = axes.index(outer[0])
    whole = case.line(reuse_holes=reuse_holes)
    total = {name: np.zeros(len(whole.num_tokens), np.int64) for name in COUNTS}
    for i in range(case.born_at.shape[axis]):
        said = {name: value[i] for name, value in case.said.items() if name != "axes"}
        part = timeline(
            case.born_at.take(i, axis),
            case.evicted_at.take(i, axis),
            case.pool,
            axes=axes.replace(outer[0], ""),
            reuse_holes=reuse_holes,
            **said,
        )
        for name in COUNTS:
            counts = getattr(part, name)
            total[name][: len(counts)] += counts
            total[name][len(counts) :] += counts[-1]
    for name in COUNTS:
        np.testing.assert_array_equal(getattr(whole, name), total[name])


@given(lives(pools(SMALL_BLOCKS, frees_of=["none"]), others=""))
def test_reuse_of_what_is_never_freed_holds_the_most_slots_ever_in_use(case: Lives) -> None:
    """In use are the live slots, and for one step those that the step writes and evicts."""
    length, offset = (int(case.said.get(name, n)) for name, n in (("lengths", 30), ("offset", 0)))
    line = case.line(reuse_holes=True)
    most = 0
    for step, held in enumerate(line.num_held_blocks.tolist()):
        at_once = int(((case.born_at == step) & (case.evicted_at == step))[:length].sum())
        most = max(most, int(line.num_live_tokens[step]) + at_once)
        assert held == (-(-(offset + most) // case.pool.block_size) if most else 0)


@given(lives(pools(st.just(1), frees_of=["any"])), st.booleans())
def test_blocks_of_one_slot_strand_nothing(case: Lives, reuse_holes: bool) -> None:
    line = case.line(reuse_holes=reuse_holes)
    np.testing.assert_array_equal(line.num_held_blocks, line.num_live_tokens)
    assert not line.num_stranded_tokens.any()


@given(lives(births=["prefill"]))
def test_reuse_changes_nothing_where_a_table_is_written_at_once(case: Lives) -> None:
    assert counts_of(case.line()) == counts_of(case.line(reuse_holes=True))


@given(lives(births=["prefill"]))
def test_eviction_after_a_prefill_does_not_lower_the_peak(case: Lives) -> None:
    said = {name: value for name, value in case.said.items() if name != "lengths"}
    line = timeline(0, np.maximum(case.evicted_at, 1), case.pool, **said)
    whole = timeline(0, np.full_like(case.evicted_at, NEVER), case.pool, **said)
    assert line.peak_held_blocks == line.num_held_blocks[0] == whole.peak_held_blocks
    assert line.mean_held_blocks <= whole.mean_held_blocks


# --- By hand ---


def held(born: Any, evicted: Any, pool: BlockPool | int, **said: Any) -> list[list[int]]:  # noqa: ANN401
    """Return the blocks held and the slots stranded at every step."""
    line = timeline(born, evicted, pool, **said)
    return [line.num_held_blocks.tolist(), line.num_stranded_tokens.tolist()]


def test_a_freed_tail_is_taken_anew_by_the_next_token_and_an_open_one_is_kept() -> None:
    born, evicted = [0, 3], [1, NEVER]
    assert held(born, evicted, 4) == [[1, 0, 0, 1], [0, 0, 0, 1]]
    assert held(born, evicted, BlockPool(4, open_tail=True)) == [[1, 1, 1, 1], [0, 1, 1, 1]]
    # An open tail is freed once it is full.
    assert held([0, 2], [1, 2], BlockPool(2, open_tail=True)) == [[1, 1, 0], [0, 1, 0]]


def test_a_token_behind_a_freed_run_at_the_back_brings_the_run_back() -> None:
    born, evicted = [0, 0, 0, 2], [NEVER, 1, 1, 3]
    pool = BlockPool(1, frees="back")
    assert held(born, evicted, pool) == [[3, 1, 4, 1], [0, 0, 2, 0]]
    assert held(born, evicted, 1) == [[3, 1, 2, 1], [0, 0, 0, 0]]
    assert held(born, evicted, pool, reuse_holes=True) == [[3, 1, 2, 1], [0, 0, 0, 0]]


def test_only_the_front_or_nothing_is_freed() -> None:
    born, evicted = [0, 0, 0, 0], [2, 1, NEVER, 3]
    assert held(born, evicted, BlockPool(1, frees="front")) == [[4, 4, 2, 2], [0, 1, 0, 1]]
    assert held(born, evicted, BlockPool(1, frees="none")) == [[4, 4, 4, 4], [0, 1, 2, 3]]


def test_what_dies_at_a_step_makes_room_for_what_is_born_at_it() -> None:
    born, evicted = [0, 0, 1], [1, NEVER, NEVER]
    assert held(born, evicted, 2, reuse_holes=True) == [[1, 1], [0, 0]]
    # ... but first what died empties its block: the newborn goes into the hole of the other one.
    born, evicted = [0, 0, 0, 0, 1], [1, 1, NEVER, 1, NEVER]
    assert held(born, evicted, 2, reuse_holes=True) == [[2, 1], [0, 0]]


def test_tables_that_are_counted_one_by_one_add_up() -> None:
    born, evicted = [[0, 0, 1]] * 3, [[1, NEVER, NEVER]] * 3
    with mock.patch.object(lifetimes, "_PIECE", 1):
        assert held(born, evicted, 2, axes="bt", reuse_holes=True) == [[3, 3], [0, 0]]
        assert held(born, evicted, 2, axes="bt") == [[3, 6], [0, 3]]
        pool = BlockPool(2, frees="back")
        assert held(born, evicted, pool, axes="bt") == [[3, 6], [0, 3]]


def test_the_lowest_dead_slot_is_filled_first() -> None:
    born, evicted = [0] * 6 + [2], [NEVER, 1, NEVER, NEVER, NEVER, 1, 3]
    assert held(born, evicted, 2, reuse_holes=True) == [[3, 3, 3, 3], [0, 2, 1, 2]]
    evicted = [3, 1, NEVER, NEVER, NEVER, 1, 3]  # block 0 lives on in the newborn, then is freed
    assert held(born, evicted, 2, reuse_holes=True) == [[3, 3, 3, 2], [0, 2, 1, 1]]


def test_written_and_evicted_within_a_step() -> None:
    """A dead slot from the start, which no token of the same step goes into."""
    born, evicted = [0, 0, 0, 0, 0], [0, NEVER, 0, 0, NEVER]
    for reuse_holes in (False, True):
        assert held(born, evicted, 2, reuse_holes=reuse_holes) == [[2], [1]]


def test_a_window_that_slides_at_every_step() -> None:
    """701 tokens of prompt, then 4 sinks and the last 252: 256 alive at every later step."""
    prompt, steps, window = 701, 40, 252
    born = np.r_[np.zeros(prompt, int), np.arange(1, steps + 1)]
    evicted = np.full((3, 1, 2, prompt + steps), NEVER, np.int32)
    evicted[..., 4 : prompt + steps - window] = np.maximum(
        np.arange(4, prompt + steps - window) + window - prompt + 1, 1
    )
    line = timeline(born, evicted, 16, axes="lbht")
    assert line.num_live_tokens.tolist() == [701] + [256] * steps
    assert line.num_held_blocks[0] == line.peak_held_blocks == 44
    ends = [prompt + step for step in range(1, steps + 1)]
    in_window = [(end - 1) // 16 - (end - window) // 16 + 1 for end in ends]
    assert line.num_held_blocks[1:].tolist() == [1 + blocks for blocks in in_window]
    assert line.mean_held_blocks == (44 + steps + sum(in_window)) / 41
    assert physical_reclaim(line.census_at(steps)) == line.num_freed_blocks[-1] / 47
    per_row = timeline(born, evicted, BlockPool(16, shared_axes=""), axes="lbht")
    np.testing.assert_array_equal(per_row.num_held_blocks, 6 * line.num_held_blocks)


@pytest.mark.parametrize("shared_axes", ["", "lh"])
def test_one_in_one_out_with_reuse_holds_the_budget(shared_axes: str) -> None:
    """Each row evicts another token: rows of their own reuse every slot, shared ones few."""
    rng = np.random.default_rng(17)
    born = np.r_[np.zeros(64, int), np.arange(1, 101)]
    rows = np.stack([deaths_of_one_out(born, 64, rng) for _ in range(6)]).reshape(2, 3, -1)
    pool = BlockPool(16, shared_axes=shared_axes)
    line = timeline(born, rows, pool, axes="lht")
    reused = timeline(born, rows, pool, axes="lht", reuse_holes=True)
    if shared_axes == "":
        assert set(line.num_live_tokens.tolist()) == {6 * 64}
        assert set(reused.num_held_blocks.tolist()) == {6 * 4}
        assert not reused.num_stranded_tokens.any()
    assert line.peak_held_blocks > reused.peak_held_blocks
    assert line.mean_held_blocks > reused.mean_held_blocks


def deaths_of_one_out(
    born: NDArray[np.int64], budget: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    evicted = np.full(len(born), NEVER)
    alive = list(range(budget))
    for token in range(budget, len(born)):
        evicted[alive.pop(rng.integers(budget))] = born[token]
        alive.append(token)
    return evicted


# --- Forms ---


def same(a: Timeline, b: Timeline) -> bool:
    return counts_of(a) == counts_of(b) and all(
        np.array_equal(a.keep_at(step), b.keep_at(step))
        and np.array_equal(a.lengths_at(step), b.lengths_at(step))
        for step in range(len(a.num_tokens))
    )


def test_births_may_be_flat_of_size_1_or_one_number() -> None:
    rng = np.random.default_rng(3)
    born = np.sort(rng.integers(0, 5, 9))
    evicted = born + rng.integers(0, 4, (2, 3, 9))
    pool = BlockPool(2, shared_axes="h")
    full = timeline(np.broadcast_to(born, evicted.shape), evicted, pool, axes="lht")
    assert same(timeline(born, evicted, pool, axes="lht"), full)
    assert same(timeline(born[None, None], evicted, pool, axes="lht"), full)
    assert same(
        timeline(born, np.moveaxis(evicted, 2, 0), pool, axes="tlh"),
        timeline(
            np.broadcast_to(born[:, None, None], (9, 2, 3)),
            np.moveaxis(evicted, 2, 0),
            pool,
            axes="tlh",
        ),
    )
    assert same(
        timeline(0, evicted, pool, axes="lht"),
        timeline(np.zeros_like(evicted), evicted, pool, axes="lht"),
    )
    assert same(
        timeline(full.born_at, NEVER, pool, axes="lht"),
        timeline(full.born_at, np.full(full.born_at.shape, NEVER), pool, axes="lht"),
    )
    apart = BlockPool(2, shared_axes="")
    assert same(timeline(born, evicted, apart), timeline(born, evicted, apart, axes="lht"))
    lengths = timeline(born, evicted, apart, lengths=[[9], [9]], offset=[[1, 0, 1]]).lengths_at(2)
    assert lengths.tolist() == [[np.count_nonzero(born <= 2)] * 3] * 2


def test_every_layout_of_integers_counts_the_same() -> None:
    rng = np.random.default_rng(5)
    born = np.sort(rng.integers(0, 9, (3, 11)), axis=1)
    evicted = born + rng.integers(0, 9, born.shape)
    expected = timeline(born, evicted, 4, axes="bt", lengths=np.full(3, 11, "u1"))
    before = born.copy(), evicted.copy()
    for kind in ("i1", "u1", ">i2", "i4", "u8"):
        for order in ("C", "F"):
            a, b = (np.array(times, kind, order=order) for times in (born, evicted))
            a.flags.writeable = b.flags.writeable = False
            assert same(timeline(a, b[::-1, ::-1][::-1, ::-1], 4, axes="bt"), expected)
    assert same(timeline(born.tolist(), evicted.tolist(), 4, axes="bt"), expected)
    np.testing.assert_array_equal(before, (born, evicted))


def test_no_tokens_no_tables_and_nothing_that_happens() -> None:
    for born, evicted in (([], []), ([NEVER], [NEVER])):
        for reuse_holes in (False, True):
            line = timeline(born, evicted, 4, reuse_holes=reuse_holes)
            assert counts_of(line) == {name: [0] for name in COUNTS}
            assert (line.peak_held_blocks, line.mean_held_blocks) == (0, 0.0)
            assert not line.keep_at(0).any()
            assert line.lengths_at(0) == 0
    none = np.zeros((0, 5), np.int32)
    for frees in ("any", "back"):
        line = timeline(none, none, BlockPool(4, frees=frees), axes="bt")
        assert counts_of(line) == {name: [0] for name in COUNTS}
        assert line.lengths_at(0).shape == (0,)


# --- A record ---


def test_read_only_after_a_round_trip_too() -> None:
    line = timeline(
        [[0, 0, 1]] * 2, [[2, NEVER, 1]] * 2, BlockPool(2, open_tail=True), axes="bt", offset=1
    )
    for again in (line, pickle.loads(pickle.dumps(line)), copy.copy(line), copy.deepcopy(line)):  # noqa: S301
        assert same(again, line)
        assert (again.pool, again.axes, again.reuse_holes) == (line.pool, "bt", False)
        for name in (*COUNTS, "born_at", "evicted_at", "lengths", "offset"):
            array = getattr(again, name)
            assert array.dtype == (np.int32 if name.endswith("_at") else np.int64)
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        with pytest.raises(AttributeError):
            again.pool = 4  # type: ignore[misc]
    assert hash(line)
    assert line != pickle.loads(pickle.dumps(line))  # noqa: S301
    assert type(line.peak_held_blocks) is int
    assert type(line.mean_held_blocks) is float
    assert "born_at" not in repr(line)


def test_a_timeline_does_not_follow_its_input() -> None:
    born, evicted = np.zeros(3, np.int32), np.array([1, NEVER, 2], np.int32)
    line = timeline(born, evicted, 2)
    evicted[:] = 0
    assert line.keep_at(1).tolist() == [False, True, True]
    line.keep_at(1)[:] = False
    assert line.keep_at(1).tolist() == [False, True, True]


@pytest.mark.parametrize("step", [-1, 3, True, 1.0, None])
def test_steps_that_are_none(step: Any) -> None:  # noqa: ANN401
    line = timeline([0, 0], [2, NEVER], 2)
    for ask in (line.keep_at, line.lengths_at, line.census_at):
        with pytest.raises((TypeError, ValueError), match="step must be an integer from 0 to 2"):
            ask(step)


@pytest.mark.parametrize("frees", ["any", "back", "front"])
def test_memory_of_the_order_of_the_times(frees: str) -> None:
    """A boolean for each step and token would be 1,000 times the input's size here."""
    steps = 4_000
    born = np.arange(steps, dtype=np.int32)
    evicted = np.minimum(born + np.int32(500), NEVER)[None].repeat(4, axis=0)
    pool = BlockPool(16, shared_axes="", frees=frees)
    for reuse_holes in (False, True):
        tracemalloc.start()
        timeline(born, evicted, pool, reuse_holes=reuse_holes)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 60 * evicted.nbytes


# --- Bad input ---

OK: dict[str, Any] = {"born_at": [0, 1], "evicted_at": [1, 2], "pool": 2}
SHARED: dict[str, Any] = {"axes": "ht", "pool": BlockPool(2, shared_axes="h")}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"born_at": [0.0, 1.0]}, TypeError, "born_at must be integers from 0 .* float64"),
        ({"evicted_at": [1, np.nan]}, TypeError, "evicted_at must be integers .* float64"),
        ({"evicted_at": [True, False]}, TypeError, "evicted_at must be integers .* bool"),
        ({"evicted_at": [1, None]}, TypeError, "evicted_at must be integers .* object"),
        ({"born_at": "now"}, TypeError, "born_at must be integers"),
        (
            {"born_at": np.ma.array([0, 1], mask=[False, True])},
            TypeError,
            r"born_at\.filled\(NEVER\)",
        ),
        ({"born_at": [-1, 1]}, ValueError, "born_at must be integers from 0 .* got -1"),
        ({"evicted_at": [1, -1]}, ValueError, "evicted_at .* got -1 at index 1; write NEVER"),
        ({"evicted_at": [1, 2**31]}, ValueError, "the largest int32 .* got 2147483648"),
        ({"evicted_at": np.array([1, 2**64 - 1], "u8")}, ValueError, "got 18446744073709551615"),
        ({"evicted_at": [1, NEVER - 1]}, ValueError, "evicted_at must count steps from 0"),
        ({"born_at": [0, 1 << 24], "evicted_at": NEVER}, ValueError, "born_at must count steps"),
        ({"evicted_at": [[1, 2], [1]]}, ValueError, "evicted_at must have rows of one length"),
        (
            {"evicted_at": [1, 0]},
            ValueError,
            "at least born_at; .* born at 1 and evicted at 0, at",
        ),
        (
            {"born_at": [1, 0], "evicted_at": 2},
            ValueError,
            "not fall along .* got 0 after 1 at tok",
        ),
        ({"born_at": [NEVER, 1], "evicted_at": NEVER}, ValueError, "not fall along the tokens"),
        ({"born_at": 0, "evicted_at": 1}, ValueError, "must have a token axis"),
        ({"born_at": [0, 1, 2]}, ValueError, r"one axis for each .* shapes \(3,\) and \(2,\)"),
        ({"born_at": [[0, 1]]}, ValueError, "axes must name the 2 axes"),
        ({"axes": "bt"}, ValueError, "axes must be"),
        ({"axes": "h"}, ValueError, "axes must be .* without 't'"),
        ({"lengths": 3}, ValueError, "lengths must be from 0 to 2; got 3"),
        ({"lengths": [2.0]}, TypeError, "lengths must be integers"),
        ({"lengths": 1}, ValueError, "evicted_at must not be after born_at beyond the lengths"),
        ({"offset": 2}, ValueError, "offset must be from 0 to 1; got 2"),
        ({"pool": "vllm"}, TypeError, "pool must be a BlockPool or a block size"),
        ({"reuse_holes": 1}, TypeError, "reuse_holes must be True or False"),
        (
            SHARED | {"born_at": [[0, 1], [3, 1]], "evicted_at": [[2, 2], [4, 2]]},
            ValueError,
            "another row of the same slot; got one born at 3 and one evicted at 2 at token 0",
        ),
        (
            SHARED | {"born_at": [[0, 0], [0, NEVER]], "evicted_at": [[1, 1], [1, NEVER]]},
            ValueError,
            "as evicted_at where an entry is never stored",
        ),
        (
            SHARED | {"born_at": np.zeros((0, 2), int), "evicted_at": NEVER},
            ValueError,
            "at least one row in every axis that shares blocks",
        ),
        (
            {
                "axes": "lbht",
                "born_at": np.zeros((3, 2), int),
                "evicted_at": np.ones((4, 3, 1, 6), int),
            },
            ValueError,
            r"one axis for each letter of axes.* \(3, 2\) and \(4, 3, 1, 6\)",
        ),
    ],
)
@pytest.mark.parametrize("reuse_holes", [False, True])
def test_what_is_no_life_is_refused(
    changes: dict[str, Any], error: type[Exception], words: str, reuse_holes: bool
) -> None:
    assert len(timeline(**OK).num_tokens) == 3
    with pytest.raises(error, match=words) as refused:
        timeline(**(OK | {"reuse_holes": reuse_holes} | changes))
    assert type(refused.value) is error
    assert str(refused.value).endswith(".")
    assert "\n" not in str(refused.value)


def test_beyond_the_lengths_zeros_will_do() -> None:
    born, lengths = [0, 0, 1, 2], [4, 2]
    evicted = np.array([[NEVER, 1, NEVER, NEVER], [NEVER, 1, 0, 0]])
    line = timeline(born, evicted, 2, axes="bt", lengths=lengths)
    assert line.num_tokens.tolist() == [4, 5, 6]
    assert line.lengths_at(1).tolist() == [3, 2]
    evicted[1, 3] = 3
    with pytest.raises(ValueError, match=r"born at 2 and evicted at 3, at index \(1, 3\)"):
        timeline(born, evicted, 2, axes="bt", lengths=lengths)


# --- What one changed character of the code would have broken unseen ---


def test_a_birth_that_falls_below_its_neighbour_but_not_below_the_first() -> None:
    with pytest.raises(ValueError, match="got 1 after 2 at token 2 of table 0"):
        timeline([0, 2, 1], [NEVER] * 3, 2)


def test_times_with_an_axis_too_few() -> None:
    born, evicted = np.zeros((2, 3), np.int32), np.full((2, 3, 4), NEVER, np.int32)
    with pytest.raises(ValueError, match=r"one axis for each letter.* got shapes \(2, 3\) and"):
        timeline(born, evicted, 2, axes="lht")


def test_no_times_are_whole_numbers() -> None:
    assert _lives.as_times("born_at", []).dtype == np.int32


def test_a_large_letter_names_an_axis_as_a_small_one_does() -> None:
    born, evicted = np.zeros((2, 3), np.int32), np.array([[1, 3, 3], [2, 3, 0]], np.int32)
    pool = BlockPool(2, shared_axes="")
    large, small = (
        timeline(born, evicted, pool, axes=axes, lengths=[3, 2]) for axes in ("Xt", "bt")
    )
    for name in COUNTS:
        assert getattr(large, name).tolist() == getattr(small, name).tolist()
