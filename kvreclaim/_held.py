"""The written slots of block tables -> blocks held at every step.

A block is held over a few intervals of steps, so what all steps hold is a running sum of what
changes where an interval starts or ends. Only the reuse of dead slots has to be played through,
token by token.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvreclaim._lives import NEVER
from kvreclaim.pool import BlockPool

_SPAN: Final = NEVER + 1  # table * _SPAN + time puts the times of all tables in one order


class Slots(NamedTuple):
    """The written slots of a few tables, one table after another, in token order."""

    born: NDArray[np.int64]
    evicted: NDArray[np.int64]
    table: NDArray[np.int64]
    position: NDArray[np.int64]  # from the first slot of the table's first block
    first: NDArray[np.bool_]  # whether it is the first written slot of its block


def written_slots(
    born: NDArray[np.int32], evicted: NDArray[np.int32], offsets: NDArray[np.int64], pool: BlockPool
) -> Slots:
    """Return the slots of the tokens that are born at all."""
    written = born < NEVER
    table = np.repeat(np.arange(len(born)), np.count_nonzero(written, axis=1))
    position = (np.arange(born.shape[1]) + offsets[:, None])[written]
    return Slots(
        born=born[written].astype(np.int64),
        evicted=evicted[written].astype(np.int64),
        table=table,
        position=position,
        first=(position % pool.block_size == 0) | (np.diff(table, prepend=-1) > 0),
    )


def grown(slots: Slots, steps: int) -> NDArray[np.int64]:
    """Return the changes at each step of tokens born, slots live, and blocks that tokens fill."""
    born = _per_step(slots.born, steps)
    live = born - _per_step(slots.evicted, steps)
    return np.stack([born, live, _per_step(slots.born[slots.first], steps)])


def _per_step(
    times: NDArray[np.int64], steps: int, weights: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return how many times, or how much weight, fall on each step; the last one takes `NEVER`."""
    return np.bincount(np.minimum(times, steps), weights, minlength=steps + 1).astype(np.int64)


def held_by_block(slots: Slots, pool: BlockPool, steps: int) -> NDArray[np.int64]:
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
    slots: Slots, group: NDArray[np.int64], pool: BlockPool
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


def held_up_to_last(
    slots: Slots, offsets: NDArray[np.int64], pool: BlockPool, steps: int
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


def held_with_reuse(
    slots: Slots, offsets: NDArray[np.int64], pool: BlockPool, steps: int
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
