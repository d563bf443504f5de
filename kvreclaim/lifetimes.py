"""Eviction during decoding: the birth and death of every token -> blocks held at every step.

A mask for each step would be (steps x tokens); two numbers a token say the same. A block is held
over a few intervals of steps, so what all steps hold is a running sum of what changes where an
interval starts or ends. Only the reuse of dead slots has to be played through, token by token.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import attrs
import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _layout
from kvreclaim.census import Census, take_census
from kvreclaim.pool import BlockPool, PoolLike, as_pool

NEVER: Final = 2**31 - 1
"""The time of what does not happen: the largest int32."""

_MOST_STEPS: Final = 1 << 24  # a later time is no step, but a clock or another tool's "never"
_PIECE: Final = 1 << 18  # slots at a time: a dozen numbers are kept for each
_SPAN: Final = NEVER + 1  # table * _SPAN + time puts the times of all tables in one order


def _read_only(value: NDArray[Any]) -> NDArray[Any]:
    array = np.array(value)
    array.flags.writeable = False
    return array


@attrs.frozen(eq=False)
class Timeline:
    """What eviction leaves in the blocks of a pool at every step, as integers summed over tables.

    A timeline comes from `timeline`. Entry s of an array is what the census of step s says, unless
    holes are reused. The arrays are read-only, after a pickle round trip too; a timeline is equal
    to itself only.

    Parameters
    ----------
    pool
        The BlockPool it was taken under.
    num_tokens
        Tokens born by then, dead or alive.
    num_live_tokens
        Live slots: those of which at least one row's entry is alive.
    num_held_blocks
        Blocks that the runtime does not take back without a copy.
    num_freed_blocks
        Blocks that the tokens born by then fill, less those held.
    num_stranded_tokens
        Slots that were written and are dead, but sit in a held block.
    born_at, evicted_at
        The times that it was taken of, as int32.
    axes, lengths, offset, reuse_holes
        What came with them: a length and an offset for each index of the outer axes.

    Examples
    --------
    A prompt of four tokens is cut to two after its prefill; its blocks were held by then.

    >>> line = timeline([0, 0, 0, 0, 1], [NEVER, NEVER, 1, 1, NEVER], 2)
    >>> line.num_held_blocks.tolist(), line.num_freed_blocks.tolist(), line.peak_held_blocks
    ([2, 2], [0, 1], 2)
    >>> line.keep_at(1).tolist()
    [True, True, False, False, True]
    """

    pool: BlockPool
    num_tokens: NDArray[np.int64] = attrs.field(converter=_read_only)
    num_live_tokens: NDArray[np.int64] = attrs.field(converter=_read_only)
    num_held_blocks: NDArray[np.int64] = attrs.field(converter=_read_only)
    num_freed_blocks: NDArray[np.int64] = attrs.field(converter=_read_only)
    num_stranded_tokens: NDArray[np.int64] = attrs.field(converter=_read_only)
    born_at: NDArray[np.int32] = attrs.field(converter=_read_only, repr=False)
    evicted_at: NDArray[np.int32] = attrs.field(converter=_read_only, repr=False)
    axes: str | None
    lengths: NDArray[np.int64] = attrs.field(converter=_read_only, repr=False)
    offset: NDArray[np.int64] = attrs.field(converter=_read_only, repr=False)
    reuse_holes: bool

    def __reduce__(self) -> tuple[type[Timeline], tuple[Any, ...]]:
        """Pickle and copy by building anew, which makes the arrays read-only again."""
        return Timeline, tuple(getattr(self, field.name) for field in attrs.fields(Timeline))

    @property
    def peak_held_blocks(self) -> int:
        """The most blocks held at a step: eviction after a prefill does not lower it."""
        return int(self.num_held_blocks.max())

    @property
    def mean_held_blocks(self) -> float:
        """Blocks held, averaged over the steps."""
        return int(self.num_held_blocks.sum()) / len(self.num_held_blocks)

    def keep_at(self, step: int) -> NDArray[np.bool_]:
        """Return the keep-mask of a step, in the shape that the times have together.

        A token that is not born yet is False; it lies beyond `lengths_at` that step.
        """
        at = self._as_step(step)
        return np.asarray((self.born_at <= at) & (at < self.evicted_at))

    def lengths_at(self, step: int) -> NDArray[np.int64]:
        """Return the tokens of each table born by a step: the ``lengths`` of its keep-mask."""
        at = self._as_step(step)
        births, _ = np.broadcast_arrays(self.born_at, self.evicted_at)
        letters = _checks.as_axes(self.axes, births.shape, self.pool.shared_axes)
        layout = _layout.arrange(births, letters, self.pool, lengths=None, offset=0)
        born = layout.array.min(axis=_row_axes(layout)) <= at
        within = np.arange(layout.tokens) < self.lengths[..., None]
        return np.asarray(np.count_nonzero(born & within, axis=-1))

    def census_at(self, step: int) -> Census:
        """Return the census of a step's keep-mask, from which every metric follows.

        Each token sits at its own position there, even where the timeline reuses holes.

        Examples
        --------
        >>> from kvreclaim import physical_reclaim
        >>> line = timeline([0, 0, 0, 0], [NEVER, 2, 1, 1], 2)
        >>> [physical_reclaim(line.census_at(step)) for step in range(3)]
        [0.0, 0.5, 0.5]
        """
        return take_census(
            self.keep_at(step),
            self.pool,
            axes=self.axes,
            lengths=self.lengths_at(step),
            offset=self.offset,
        )

    def _as_step(self, step: int) -> int:
        return _checks.as_count("step", step, maximum=len(self.num_tokens) - 1)


def timeline(
    born_at: ArrayLike,
    evicted_at: ArrayLike,
    pool: PoolLike,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
    reuse_holes: bool = False,
) -> Timeline:
    """Count what is live, held, freed and stranded at every step of a generation.

    An entry is alive while ``born_at <= step < evicted_at``. A slot is written when the first of
    its entries is born, and live while any of them is alive. Tables grow in token order, each token
    in the slot of its position, so that every step equals the census of its keep-mask. A freed
    block comes back only when a token is born in it: it is taken anew, its dead slots stranded.
    Under ``frees="back"`` the empty blocks in front of that token come back too, since there a
    table has no gaps. An open tail is held until it is full.

    Parameters
    ----------
    born_at, evicted_at
        Integers from 0 to `NEVER`: the step at which an entry is written, and the first at which it
        is gone; `NEVER` for what does not happen. One axis for each letter of `axes`, of size 1 to
        repeat; or flat, a number for each token; or one number for all. An entry of equal times is
        evicted within the step that writes it: a dead slot from the start.
    pool
        A BlockPool, or a block size.
    axes, lengths, offset
        As in `take_census`, of both arrays together. Beyond a length nothing is alive: write zeros.
    reuse_holes
        True: at a step, first what is evicted dies and the blocks it empties are freed; then each
        new token goes into the lowest dead slot of a held block of its table, else into the next
        slot never written, else into a new block at the end. Dead slots are room for their own
        sequence to grow, not for others.

    Returns
    -------
    Timeline
        Steps run from 0 to the largest finite time; step 0 is always there.

    Raises
    ------
    TypeError, ValueError
        For times that are no integers from 0 to `NEVER`, or finite ones of 16,777,216 and more; an
        entry evicted before it, or another entry of its slot, is born; tokens of a table out of the
        order of their births; shapes, axes, lengths or offsets that do not fit.

    Examples
    --------
    One token in, one out, from step 1 on. Whatever block a survivor sits in stays.

    >>> born_at = [0, 0, 0, 0, 1, 2, 3]
    >>> evicted_at = [1, NEVER, 2, NEVER, 3, NEVER, NEVER]
    >>> line = timeline(born_at, evicted_at, 2)
    >>> line.num_live_tokens.tolist(), line.num_held_blocks.tolist()
    ([4, 4, 4, 4], [2, 3, 3, 4])
    >>> timeline(born_at, evicted_at, 2, reuse_holes=True).num_held_blocks.tolist()
    [2, 2, 2, 2]
    """
    pool = as_pool(pool)
    reuse_holes = _checks.as_flag("reuse_holes", reuse_holes)
    born, evicted, letters = _aligned(
        _as_times("born_at", born_at), _as_times("evicted_at", evicted_at), axes, pool
    )
    births, deaths = np.broadcast_arrays(born, evicted)
    layout = _layout.arrange(deaths, letters, pool, lengths=lengths, offset=offset)
    table_lengths, offsets = (
        np.broadcast_to(numbers, layout.num_tables) for numbers in (layout.lengths, layout.offsets)
    )
    within = np.True_ if lengths is None else _within(layout, letters, pool)
    _check_lives(births, deaths, within)
    steps = 1 + max(_latest("born_at", births, within), _latest("evicted_at", deaths, within))
    if lengths is not None:
        births = np.where(within, births, np.int32(NEVER))
    births = _layout.arrange(births, letters, pool, lengths=None, offset=0).array
    slots_born, slots_evicted = _slot_times(births, layout)

    changes = np.zeros((5, steps + 1), np.int64)
    piece = max(1, max(_PIECE, steps) // max(layout.tokens, 1))
    for first in range(0, layout.num_tables, piece):
        some = slice(first, first + piece)
        slots = _written(slots_born[some], slots_evicted[some], offsets[some], pool)
        changes[:3] += _grown(slots, steps)
        if reuse_holes:
            changes[3:] += _held_with_reuse(slots, offsets[some], pool, steps)
        elif pool.frees == "back":
            changes[3:] += _held_up_to_last(slots, offsets[some], pool, steps)
        else:
            changes[3:] += _held_by_block(slots, pool, steps)
    tokens, live, blocks, held, held_tokens = changes.cumsum(axis=1)[:, :steps]
    return Timeline(
        pool=pool,
        num_tokens=tokens,
        num_live_tokens=live,
        num_held_blocks=held,
        num_freed_blocks=blocks - held,
        num_stranded_tokens=held_tokens - live,
        born_at=born,
        evicted_at=evicted,
        axes=axes,
        lengths=table_lengths.reshape(layout.outer),
        offset=offsets.reshape(layout.outer),
        reuse_holes=reuse_holes,
    )


class _Slots(NamedTuple):
    """The written slots of a few tables, one table after another, in token order."""

    born: NDArray[np.int64]
    evicted: NDArray[np.int64]
    table: NDArray[np.int64]
    position: NDArray[np.int64]  # from the first slot of the table's first block
    first: NDArray[np.bool_]  # whether it is the first written slot of its block


def _written(
    born: NDArray[np.int32], evicted: NDArray[np.int32], offsets: NDArray[np.int64], pool: BlockPool
) -> _Slots:
    """Return the slots of the tokens that are born at all."""
    written = born < NEVER
    table = np.repeat(np.arange(len(born)), np.count_nonzero(written, axis=1))
    position = (np.arange(born.shape[1]) + offsets[:, None])[written]
    return _Slots(
        born=born[written].astype(np.int64),
        evicted=evicted[written].astype(np.int64),
        table=table,
        position=position,
        first=(position % pool.block_size == 0) | (np.diff(table, prepend=-1) > 0),
    )


def _grown(slots: _Slots, steps: int) -> NDArray[np.int64]:
    """Return the changes at each step of tokens born, slots live, and blocks that tokens fill."""
    born = _per_step(slots.born, steps)
    live = born - _per_step(slots.evicted, steps)
    return np.stack([born, live, _per_step(slots.born[slots.first], steps)])


def _per_step(
    times: NDArray[np.int64], steps: int, weights: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return how many times, or how much weight, fall on each step; the last one takes `NEVER`."""
    return np.bincount(np.minimum(times, steps), weights, minlength=steps + 1).astype(np.int64)


def _held_by_block(slots: _Slots, pool: BlockPool, steps: int) -> NDArray[np.int64]:
    """Return the changes at each step of blocks held, and of slots written in them.

    A block is held while one of its own slots is live, or one in front of it where only the front
    is freed.
    """
    block = np.cumsum(slots.first, dtype=np.int64) - 1
    begin, end, until = _runs(slots, slots.table if pool.frees == "front" else block, pool)
    rank = np.arange(1, len(block) + 1) - np.flatnonzero(slots.first)[block]
    entering = np.ones_like(rank)
    entering[begin] = rank[begin]  # the dead ones before it are in a held block again
    held = _per_step(slots.born[begin], steps) - _per_step(until, steps)
    written = _per_step(slots.born, steps, entering) - _per_step(until, steps, rank[end])
    return np.stack([held, written])


def _runs(
    slots: _Slots, group: NDArray[np.int64], pool: BlockPool
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where the slots of a block begin and end a stretch without a gap, and when it ends.

    It ends when the last of the slots up to there dies that belong to its group, blocks or tables.
    """
    evicted = slots.evicted
    if pool.frees == "none":
        evicted = np.full_like(evicted, NEVER)
    elif pool.open_tail:  # the last written slot of a partly written block holds it
        following = np.append(slots.born[1:], NEVER)
        following[np.append(np.diff(slots.table), 1) > 0] = NEVER
        is_full = slots.position % pool.block_size == pool.block_size - 1
        evicted = np.where(is_full, evicted, np.maximum(evicted, following))
    until = np.maximum.accumulate(group * _SPAN + evicted) % _SPAN
    begins = slots.first.copy()
    begins[1:] |= slots.born[1:] > until[:-1]
    begin = np.flatnonzero(begins)
    end = np.append(begin[1:], len(begins))[: len(begin)] - 1
    return begin, end, until[end]


def _held_up_to_last(
    slots: _Slots, offsets: NDArray[np.int64], pool: BlockPool, steps: int
) -> NDArray[np.int64]:
    """Return the changes at each step of blocks held, and of slots written in them.

    A table holds its blocks up to the last that has a live slot.
    """
    begin, _, until = _runs(slots, np.cumsum(slots.first, dtype=np.int64), pool)
    since = slots.table * _SPAN + slots.born
    at, blocks = _last_blocks(
        since[begin],
        slots.table[begin] * _SPAN + until,
        slots.position[begin] // pool.block_size + 1,
    )
    table, time = at // _SPAN, at % _SPAN
    before = np.append(0, blocks)[:-1]  # after its last block, a table holds none
    held = _per_step(time, steps, blocks - before)

    # Slots written before a change come and go with the blocks, later ones come one by one.
    end = offsets[table] + np.searchsorted(since, at) - np.searchsorted(slots.table, table)
    come, gone = (
        np.maximum(np.minimum(end, n * pool.block_size), offsets[table]) for n in (blocks, before)
    )
    limit = np.append(blocks, 0)[np.searchsorted(at, since, side="right") - 1] * pool.block_size
    inside = slots.born[slots.position < limit]
    return np.stack([held, _per_step(time, steps, come - gone) + _per_step(inside, steps)])


def _last_blocks(
    start: NDArray[np.int64], stop: NDArray[np.int64], block: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return when the largest block of the intervals around a time changes, and to what.

    Intervals come by start, and by block. Those that outlive all larger ones wait in a stack.
    """
    at: list[int] = []
    largest: list[int] = []
    waiting = [(2**63, 0)]  # end and number; below all others, no block
    intervals = zip(start.tolist(), stop.tolist(), block.tolist(), strict=True)
    for begin, end, number in itertools.chain(intervals, [(2**62, 2**62, 0)]):
        while waiting[-1][0] <= begin:
            at.append(waiting.pop()[0])
            largest.append(waiting[-1][1])
        if begin < end:
            while waiting[-1][0] <= end:
                waiting.pop()
            waiting.append((end, number))
            at.append(begin)
            largest.append(number)
    return np.array(at, np.int64), np.array(largest, np.int64)


def _held_with_reuse(
    slots: _Slots, offsets: NDArray[np.int64], pool: BlockPool, steps: int
) -> NDArray[np.int64]:
    """Return the changes at each step of blocks held, and of slots written in them."""
    held, written = [0] * (steps + 1), [0] * (steps + 1)
    bounds = np.searchsorted(slots.table, np.arange(len(offsets) + 1))
    # Two moments a step: births and deaths, then the deaths of what is born at that very step.
    births = 2 * slots.born
    deaths = 2 * slots.evicted + (slots.evicted == slots.born)
    for (start, stop), offset in zip(
        itertools.pairwise(bounds.tolist()), offsets.tolist(), strict=True
    ):
        table = _Table(pool, offset, held, written)
        dying = np.argsort(deaths[start:stop], kind="stable")
        dying = dying[: np.count_nonzero(slots.evicted[start:stop] < NEVER)]
        moments = deaths[start:stop][dying].tolist()
        dying_tokens = dying.tolist()
        places: list[int] = []
        done = 0
        for moment in [*births[start:stop].tolist(), 2 * NEVER]:  # the last lets the rest die
            while done < len(moments) and moments[done] <= moment:
                upto = bisect_right(moments, moments[done], done)
                table.evict([places[i] for i in dying_tokens[done:upto]], moments[done] // 2)
                done = upto
            if moment < 2 * NEVER:
                places.append(table.write(moment // 2))
    return np.array([held, written])


class _Table:
    """A block table whose new tokens go into dead slots; blocks are numbered as they are taken."""

    def __init__(self, pool: BlockPool, offset: int, held: list[int], written: list[int]) -> None:
        self.pool = pool
        self.offset = offset
        self.held, self.written = held, written  # changes at each step, of all tables together
        self.live: list[int] = []  # live slots of each block; -1 once it is freed
        self.blocks: deque[int] = deque()  # those held, where only an end of them is freed
        self.holes: list[int] = []  # a heap of dead slots, some of them of freed blocks
        self.fresh = self.end = 0  # the next slot never written, and the end of its block

    def write(self, step: int) -> int:
        """Write a token, and return its slot."""
        size = self.pool.block_size
        while self.holes:
            slot = heapq.heappop(self.holes)
            if self.live[slot // size] >= 0:
                self.live[slot // size] += 1
                return slot
        if self.fresh == self.end:
            self.fresh = len(self.live) * size or self.offset
            self.blocks.append(len(self.live))
            self.live.append(0)
            self.end = len(self.live) * size
            self.held[step] += 1
        slot = self.fresh
        self.fresh += 1
        self.live[slot // size] += 1
        self.written[step] += 1
        return slot

    def evict(self, slots: Iterable[int], step: int) -> None:
        """Let slots die together, and free what that allows."""
        size, live = self.pool.block_size, self.live
        emptied = []
        for slot in slots:
            block = slot // size
            heapq.heappush(self.holes, slot)
            live[block] -= 1
            if not live[block]:
                emptied.append(block)
        for block in self._freed(emptied):
            end = (block + 1) * size
            self.written[step] -= (self.fresh if end == self.end else end) - (
                block * size or self.offset
            )
            self.held[step] -= 1
            live[block] = -1
            if end == self.end:
                self.fresh = end

    def _freed(self, emptied: list[int]) -> list[int]:
        kept_open = self.pool.open_tail and self.fresh < self.end
        stays = len(self.live) - 1 if kept_open else -1
        if self.pool.frees == "any":
            return [block for block in emptied if block != stays]
        if self.pool.frees == "none" or not emptied:
            return []
        back = self.pool.frees == "back"
        inward = reversed(self.blocks) if back else iter(self.blocks)
        run = list(
            itertools.takewhile(lambda block: not self.live[block] and block != stays, inward)
        )
        for _ in run:
            self.blocks.pop() if back else self.blocks.popleft()
        return run


def _as_times(name: str, value: object) -> NDArray[np.int32]:
    rule = f"integers from 0 to NEVER, the largest int32 ({NEVER})"
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"{name} must be {rule}; got a numpy.ma masked array; write {name}.filled(NEVER) if "
            "what is masked does not happen."
        )
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(
            f"{name} must have rows of one length; got what makes no array ({error}); pad them and "
            "write their lengths."
        ) from None
    if array.size == 0:
        return np.zeros(array.shape, np.int32)  # an empty list says nothing of its kind
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must be {rule}; got an array of {array.dtype.name}; count the steps from 0, "
            "and write NEVER for what does not happen."
        )
    wrong = (array < 0) | (array > NEVER)
    if wrong.any():
        index = _first_of(wrong)
        raise ValueError(
            f"{name} must be {rule}; got {int(array[index])} {_at(index)}; write NEVER for what "
            "does not happen."
        )
    return array.astype(np.int32, copy=False)


def _aligned(
    born: NDArray[np.int32], evicted: NDArray[np.int32], axes: object, pool: BlockPool
) -> tuple[NDArray[np.int32], NDArray[np.int32], str]:
    """Return both with one axis for each letter, and the letters."""
    larger = max(born, evicted, key=np.ndim)
    if larger.ndim == 0:
        raise ValueError(
            "born_at and evicted_at must have a token axis; got two single numbers; write such as "
            "[0, 0, 1]."
        )
    letters = _checks.as_axes(axes, larger.shape, pool.shared_axes)
    along_tokens = [-1 if letter == "t" else 1 for letter in letters]
    aligned = [
        times.reshape(along_tokens) if times.ndim < min(larger.ndim, 2) else times
        for times in (born, evicted)
    ]
    sizes = zip(aligned[0].shape, aligned[1].shape, strict=False)
    if aligned[0].ndim != aligned[1].ndim or any(a != b and 1 not in (a, b) for a, b in sizes):
        raise ValueError(
            "born_at and evicted_at must have one axis for each letter of axes, of equal sizes or "
            "1 to repeat, or be flat, a number for each token; got shapes "
            f"{born.shape} and {evicted.shape}; write such as born_at[:, None, :]."
        )
    return aligned[0], aligned[1], letters


def _row_axes(layout: _layout.Layout) -> tuple[int, ...]:
    """Return the axes of the rows that share blocks, where the tokens are last."""
    return tuple(range(layout.outer_axes, layout.array.ndim - 1))


def _within(layout: _layout.Layout, letters: str, pool: BlockPool) -> NDArray[np.bool_]:
    """Return which tokens their tables have, to go with times in the order of the letters."""
    sizes = iter(layout.outer)
    shape = [1 if letter in pool.shared_axes + "t" else next(sizes) for letter in letters]
    tokens = np.arange(layout.tokens).reshape([-1 if letter == "t" else 1 for letter in letters])
    return np.asarray(tokens < np.reshape(layout.lengths, shape))


def _check_lives(
    births: NDArray[np.int32], deaths: NDArray[np.int32], within: NDArray[np.bool_] | np.bool_
) -> None:
    late = (deaths > births) & ~within
    if late.any():
        raise ValueError(
            "evicted_at must not be after born_at beyond the lengths, where nothing is alive; got "
            f"{_life(births, deaths, late)}; write the true lengths, or zeros beyond them."
        )
    early = (deaths < births) & within
    if early.any():
        raise ValueError(
            f"evicted_at must be at least born_at; got {_life(births, deaths, early)}; write "
            "born_at for what is evicted within the step that writes it, NEVER for what is not "
            "evicted."
        )


def _life(births: NDArray[np.int32], deaths: NDArray[np.int32], wrong: NDArray[np.bool_]) -> str:
    index = _first_of(wrong)
    return f"an entry born at {births[index]} and evicted at {deaths[index]}, {_at(index)}"


def _latest(name: str, times: NDArray[np.int32], within: NDArray[np.bool_] | np.bool_) -> int:
    """Return the largest finite time."""
    latest = int(times.max(where=(times < NEVER) & within, initial=0))
    if latest >= _MOST_STEPS:
        raise ValueError(
            f"{name} must count steps from 0, fewer than {_MOST_STEPS}; got {latest}; subtract the "
            "first step's time, and write NEVER for what does not happen."
        )
    return latest


def _slot_times(
    births: NDArray[np.int32], layout: _layout.Layout
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return when each slot is written and when its last entry dies, table by table."""
    rows, shape = _row_axes(layout), (layout.num_tables, layout.tokens)
    born = births.min(axis=rows).reshape(shape)
    falls = born[:, 1:] < born[:, :-1]
    if falls.any():
        table, token = _first_of(falls)
        raise ValueError(
            "born_at must not fall along the tokens of a table, which grows in token order; got "
            f"{born[table, token + 1]} after {born[table, token]} at token {token + 1} of table "
            f"{table} (of {layout.num_tables}); sort each sequence's tokens by birth."
        )
    last_born = births.max(axis=rows).reshape(shape)
    first_evicted = layout.array.min(axis=rows).reshape(shape)
    late = (last_born > first_evicted) & (born < NEVER)
    if late.any():
        table, token = index = _first_of(late)
        raise ValueError(
            "born_at must not be after evicted_at of another row of the same slot; got one born at "
            f"{last_born[index]} and one evicted at {first_evicted[index]} at token {token} of "
            f"table {table} (of {layout.num_tables}); write the token's birth in all rows that "
            "share blocks, and as evicted_at where an entry is never stored."
        )
    return born, layout.array.max(axis=rows).reshape(shape)


def _first_of(wrong: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(part) for part in np.unravel_index(int(wrong.argmax()), wrong.shape))


def _at(index: tuple[int, ...]) -> str:
    return f"at index {index[0] if len(index) == 1 else index}"
