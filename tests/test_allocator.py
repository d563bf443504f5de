"""A toy paged allocator that agrees with the census at every step.

It moves block ids between a free list and block tables, and marks slots; it counts nothing. What
the census, `physical_reclaim` and the admission functions say of its keep-masks is then compared
with what lies in its lists.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvreclaim import (
    BlockPool,
    Census,
    admission_count,
    admit,
    block_usage,
    blocks_for_moves,
    merge,
    physical_reclaim,
    pool_usage,
    reclaim_curve,
    take_census,
)

Block = list[bool | None]  # a slot is live, dead, or never written


class Allocator:
    """Block tables over a pool of physical blocks.

    A table entry is None where the block was taken back while the sequence goes on.
    """

    def __init__(self, num_blocks: int, block_size: int, frees: str, *, open_tail: bool) -> None:
        self.size = block_size
        self.frees = frees
        self.open_tail = open_tail
        self.free = list(range(num_blocks))
        self.slots: dict[int, Block] = {}
        self.tables: dict[int, list[int | None]] = {}
        self.lengths: dict[int, int] = {}

    def blocks(self, sequence: int) -> list[Block]:
        """The slots of the blocks that a sequence holds, in the order of its table."""
        return [self.slots[block] for block in self.tables[sequence] if block is not None]

    def start(self, sequence: int, num_tokens: int) -> None:
        self.tables[sequence] = []
        self.lengths[sequence] = 0
        for _ in range(num_tokens):
            self.append(sequence)

    def needs_a_block(self, sequence: int) -> bool:
        table = self.tables[sequence]
        return self.lengths[sequence] % self.size == 0 or table[-1] is None

    def append(self, sequence: int) -> None:
        """Write the next token; behind a tail that was taken back, in a new block."""
        table = self.tables[sequence]
        if self.needs_a_block(sequence):
            while self.frees == "back" and table and table[-1] is None:
                table.pop()
            self.lengths[sequence] = len(table) * self.size
            taken = self.free.pop(0)
            self.slots[taken] = [None] * self.size
            table.append(taken)
        last = table[-1]
        assert last is not None
        self.slots[last][self.lengths[sequence] % self.size] = True
        self.lengths[sequence] += 1

    def evict(self, sequence: int, positions: list[int]) -> None:
        for position in positions:
            block = self.tables[sequence][position // self.size]
            assert block is not None
            self.slots[block][position % self.size] = False
        self.take_back(sequence)

    def take_back(self, sequence: int) -> None:
        """Return the dead blocks that this runtime can return."""
        table = self.tables[sequence]
        order = list(range(len(table)))
        if self.frees == "none":
            order = []
        if self.frees == "back":
            order.reverse()
        for number in order:
            block = table[number]
            if block is None:
                continue
            if self.is_dead(sequence, number):
                self.give(block)
                table[number] = None
            elif self.frees in ("back", "front"):
                break

    def is_dead(self, sequence: int, number: int) -> bool:
        block = self.tables[sequence][number]
        assert block is not None
        slots = self.slots[block]
        is_last = number == len(self.tables[sequence]) - 1
        return True not in slots and not (self.open_tail and is_last and slots[-1] is None)

    def give(self, block: int) -> None:
        del self.slots[block]
        self.free.append(block)

    def finish(self, sequence: int) -> None:
        for block in self.tables.pop(sequence):
            if block is not None:
                self.give(block)
        del self.lengths[sequence]

    def rewrite(self, sequence: int, emptied: list[int]) -> None:
        """Give some blocks back and make a table of the others."""
        table = [block for block in self.tables[sequence] if block is not None]
        for block in emptied:
            assert True not in self.slots[block]
            table.remove(block)
            self.give(block)
        self.tables[sequence] = [*table]
        written = sum(slot is not None for slots in self.blocks(sequence) for slot in slots)
        self.lengths[sequence] = written

    def move(self, source: tuple[int, int], target: tuple[int, int]) -> None:
        """Copy one slot into another one that holds nothing live."""
        assert self.slots[source[0]][source[1]] is True
        assert self.slots[target[0]][target[1]] is not True
        assert self.slots[target[0]][: target[1]].count(None) == 0
        self.slots[target[0]][target[1]] = True
        self.slots[source[0]][source[1]] = False

    def evacuate(self, sequence: int, num_blocks: int) -> int:
        """Move the live slots of the emptiest blocks into the holes of the others."""
        held = [block for block in self.tables[sequence] if block is not None]
        by_live = sorted(held, key=lambda block: self.slots[block].count(True))
        sources, targets = by_live[:num_blocks], by_live[num_blocks:]
        moves = 0
        for source in sources:
            for slot in range(self.size):
                if self.slots[source][slot]:
                    target = next(block for block in targets if not all(self.slots[block]))
                    hole = next(i for i, live in enumerate(self.slots[target]) if not live)
                    self.move((source, slot), (target, hole))
                    moves += 1
        self.rewrite(sequence, sources)
        return moves

    def squeeze(self, sequence: int, *, in_order: bool) -> int:
        """Move survivors forward: each to the next place, or the last ones into the first holes."""
        table = [block for block in self.tables[sequence] if block is not None]
        places = [(block, slot) for block in table for slot in range(self.size)]
        moves = 0
        while True:
            live = [i for i, (block, slot) in enumerate(places) if self.slots[block][slot]]
            hole = next((i for i in range(len(places)) if i not in live), len(places))
            behind = [i for i in live if i > hole]
            if not behind:
                break
            self.move(places[behind[0] if in_order else behind[-1]], places[hole])
            moves += 1
        self.rewrite(sequence, [block for block in table if True not in self.slots[block]])
        return moves


VARIANTS = [
    ("any", False, "evacuate"),
    ("any", True, "evacuate"),
    ("back", False, "fill"),
    ("back", True, "fill"),
    ("back", False, "pack"),
    ("back", True, "pack"),
    ("front", False, "none"),
    ("front", True, "none"),
    ("none", False, "none"),
    ("none", True, "none"),
]


class Serving(RuleBasedStateMachine):
    """Requests come, grow, lose tokens, are compacted and end."""

    @initialize(
        variant=st.sampled_from(VARIANTS),
        block_size=st.integers(1, 5),
        num_blocks=st.integers(1, 14),
        data=st.data(),
    )
    def build(
        self, variant: tuple[str, bool, str], block_size: int, num_blocks: int, data: st.DataObject
    ) -> None:
        frees, open_tail, compactor = variant
        self.num_blocks = num_blocks
        self.allocator = Allocator(num_blocks, block_size, frees, open_tail=open_tail)
        self.pool = BlockPool(block_size, frees=frees, open_tail=open_tail, compactor=compactor)
        self.sized = self.pool.replace(
            total_blocks=num_blocks + 2,
            reserved_blocks=2,
            watermark_blocks=data.draw(st.integers(0, min(2, num_blocks)), label="watermark"),
        )
        self.started = 0

    def draw_sequence(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.allocator.tables)), label="sequence")

    def keep_of(self, sequence: int) -> list[bool]:
        """Return the keep-mask of all slots that the sequence has written, in order."""
        size = self.allocator.size
        return [
            block is not None and self.allocator.slots[block][slot] is True
            for block in self.allocator.tables[sequence]
            for slot in range(size)
        ][: self.allocator.lengths[sequence]]

    def held_only(self, sequence: int) -> Census:
        """Take the census of what the sequence still holds, as if the rest had never been."""
        slots = [slot for block in self.allocator.blocks(sequence) for slot in block]
        written = [slot for slot in slots if slot is not None]
        assert slots == written + [None] * (len(slots) - len(written))
        return take_census(np.array(written, bool), self.sized)

    @rule(prompts=st.lists(st.integers(1, 12), min_size=1, max_size=4))
    def admit_requests(self, prompts: list[int]) -> None:
        demands = [self.pool.num_blocks_for(prompt) for prompt in prompts]
        watermark = self.sized.watermark_blocks
        expected = admit(len(self.allocator.free), demands, watermark_blocks=watermark)
        admitted = []
        for number, prompt in enumerate(prompts):
            before = len(self.allocator.free)
            if before < demands[number] + watermark:
                break
            self.allocator.start(self.started, prompt)
            self.started += 1
            admitted.append(number)
            assert before - len(self.allocator.free) == demands[number]
        assert expected == tuple(admitted)

    @precondition(lambda self: self.allocator.tables)
    @rule(data=st.data(), num_tokens=st.integers(1, 6))
    def decode(self, data: st.DataObject, num_tokens: int) -> None:
        sequence = self.draw_sequence(data)
        for _ in range(num_tokens):
            if self.allocator.free or not self.allocator.needs_a_block(sequence):
                self.allocator.append(sequence)

    @precondition(lambda self: self.allocator.tables)
    @rule(data=st.data())
    def evict_some(self, data: st.DataObject) -> None:
        sequence = self.draw_sequence(data)
        live = [position for position, kept in enumerate(self.keep_of(sequence)) if kept]
        if live:
            lost = data.draw(st.lists(st.sampled_from(live), unique=True), label="tokens")
            self.allocator.evict(sequence, lost)

    @precondition(lambda self: self.allocator.tables)
    @rule(data=st.data())
    def evict_a_run(self, data: st.DataObject) -> None:
        sequence = self.draw_sequence(data)
        live = [position for position, kept in enumerate(self.keep_of(sequence)) if kept]
        first, last = sorted(data.draw(st.integers(0, len(live))) for _ in range(2))
        self.allocator.evict(sequence, live[first:last])

    @precondition(lambda self: self.allocator.tables and self.pool.compactor != "none")
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        sequence = self.draw_sequence(data)
        census = take_census(self.keep_of(sequence), self.pool)
        to_free = census.num_compactable_blocks
        expected = census.num_moved_entries
        if self.pool.compactor == "evacuate":
            to_free = data.draw(st.integers(0, to_free), label="blocks to free")
            expected = (0, *reclaim_curve(census))[to_free]
            moves = self.allocator.evacuate(sequence, to_free)
            assert blocks_for_moves(census, moves) >= to_free
            assert blocks_for_moves(census, max(0, moves - 1)) < to_free or moves == 0
        else:
            moves = self.allocator.squeeze(sequence, in_order=self.pool.compactor == "pack")
        assert moves == expected
        assert len(self.allocator.blocks(sequence)) == census.num_held_blocks - to_free

    @precondition(lambda self: self.allocator.tables)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.allocator.finish(self.draw_sequence(data))

    @invariant()
    def every_block_is_free_or_in_one_table(self) -> None:
        held = [
            block
            for table in self.allocator.tables.values()
            for block in table
            if block is not None
        ]
        assert sorted(held + self.allocator.free) == list(range(self.num_blocks))

    @invariant()
    def tables_and_slots_agree_with_the_census(self) -> None:
        for sequence, table in self.allocator.tables.items():
            census = take_census(self.keep_of(sequence), self.pool)
            blocks = self.allocator.blocks(sequence)
            slots = [slot for block in blocks for slot in block]
            assert census.num_blocks == len(table)
            assert census.num_freed_blocks == table.count(None)
            assert census.num_held_blocks == len(blocks)
            live = [block.count(True) for block in blocks] + [0] * table.count(None)
            assert [live.count(k) for k in range(self.pool.block_size + 1)] == list(census.counts)
            assert census.num_live_tokens == slots.count(True)
            assert census.num_stranded_tokens == slots.count(False)
            assert census.num_slack_slots == slots.count(None)

    @invariant()
    def what_came_back_is_the_reclaim_of_all_sequences(self) -> None:
        tables = self.allocator.tables
        lengths = [self.allocator.lengths[sequence] for sequence in tables]
        keep = np.zeros((len(tables), max(lengths, default=0)), bool)
        for row, sequence in enumerate(tables):
            keep[row, : lengths[row]] = self.keep_of(sequence)
        census = take_census(keep, self.pool, axes="bt", lengths=lengths)
        entries = [block for table in tables.values() for block in table]
        returned = entries.count(None)
        assert (census.num_freed_blocks, census.num_blocks) == (returned, len(entries))
        if entries:
            assert physical_reclaim(census) == float(Fraction(returned, len(entries)))
        for need in (1, 2, 3):
            assert admission_count(census, blocks_per_request=need) == returned // need

    @invariant()
    def the_free_list_admits_what_the_census_says(self) -> None:
        census = merge([Census.empty(self.sized), *map(self.held_only, self.allocator.tables)])
        assert census.num_freed_blocks == 0
        free = len(self.allocator.free)
        usage = pool_usage(census).after
        assert usage == float(Fraction(self.num_blocks - free, self.num_blocks))
        assert usage == block_usage(self.sized, free)
        for need in (1, 2, 3):
            left, admitted = list(self.allocator.free), 0
            while len(left) >= need + self.sized.watermark_blocks:
                del left[:need]
                admitted += 1
            assert admission_count(census, blocks_per_request=need) == admitted


Serving.TestCase.settings = settings(stateful_step_count=30)
TestServing = Serving.TestCase
