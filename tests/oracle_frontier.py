"""The least loss for a number of free blocks, found by trying every set of entries.

Slow, literal, and without a line of the library: entries are listed with the block that each lies
in, every set of so many of them is evicted, and free blocks are counted. Losses are Fractions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from typing import TypeAlias

Index: TypeAlias = "tuple[int, ...]"
Block: TypeAlias = "tuple[Index, int]"  # (table, number)


@dataclass(frozen=True)
class Entry:
    """One entry: where it stands, in which block it lies, and what it is worth."""

    index: Index
    block: Block
    worth: Fraction | None  # None: it must stay


@dataclass(frozen=True)
class Problem:
    """All entries, and the blocks that may not be freed."""

    entries: list[Entry]
    closed: set[Block]

    @property
    def blocks(self) -> list[Block]:
        """All blocks that hold an entry, in order."""
        return sorted({entry.block for entry in self.entries})

    def held_by(self, block: Block) -> list[Entry]:
        """The entries of a block."""
        return [entry for entry in self.entries if entry.block == block]

    def may_be_freed(self, block: Block) -> bool:
        """Whether a block may be freed, given the budget."""
        stays = any(entry.worth is None for entry in self.held_by(block))
        return block not in self.closed and not stays


def problem(
    importance: Mapping[Index, float],
    axes: str,
    *,
    block_size: int,
    shared_axes: str = "lh",
    open_tail: bool = False,
    lengths: Mapping[Index, int] | int,
    offset: Mapping[Index, int] | int = 0,
    protected: Mapping[Index, bool] | None = None,
) -> Problem:
    """List the entries; lengths and offsets are those of each table, named by its outer indices."""
    entries: list[Entry] = []
    closed: set[Block] = set()
    for index, worth in importance.items():
        table = tuple(
            place
            for place, letter in zip(index, axes, strict=True)
            if letter != "t" and letter not in shared_axes
        )
        token = index[axes.index("t")]
        length = lengths if isinstance(lengths, int) else lengths[table]
        start = offset if isinstance(offset, int) else offset[table]
        if token >= length:
            continue
        number = (start + token) // block_size
        stays = math.isinf(worth) or (protected is not None and protected[index])
        entries.append(Entry(index, (table, number), None if stays else Fraction(worth)))
        end = start + length
        if open_tail and end % block_size != 0 and number == end // block_size:
            closed.add((table, number))
    return Problem(entries, closed)


def least_losses(given: Problem, num_evicted: int) -> list[Fraction]:
    """Return the least loss that frees at least 0, 1, 2, ... blocks, as far as the budget goes."""
    best: dict[int, Fraction] = {}
    may_go = [entry for entry in given.entries if entry.worth is not None]
    open_blocks = [block for block in given.blocks if block not in given.closed]
    holders = {block: {entry.index for entry in given.held_by(block)} for block in open_blocks}
    for evicted in combinations(may_go, num_evicted):
        gone = {entry.index for entry in evicted}
        freed = sum(1 for block in open_blocks if holders[block] <= gone)
        loss = sum((entry.worth for entry in evicted if entry.worth is not None), Fraction(0))
        for blocks in range(freed + 1):
            if blocks not in best or loss < best[blocks]:
                best[blocks] = loss
    return [best[blocks] for blocks in range(len(best))]


def finish_cost(worths: Sequence[Fraction], block_size: int, threshold: Fraction) -> list[Fraction]:
    """Return what exceeds the threshold in each block of a row."""
    costs: list[Fraction] = []
    for token, worth in enumerate(worths):
        if token % block_size == 0:
            costs.append(Fraction(0))
        if worth > threshold:
            costs[-1] += worth - threshold
    return costs


def loss_with_blocks(given: Problem, num_evicted: int, bought: set[Block]) -> Fraction:
    """Return the loss of some blocks and the cheapest entries around them."""
    inside = [
        entry.worth for entry in given.entries if entry.block in bought and entry.worth is not None
    ]
    loose = sorted(
        entry.worth
        for entry in given.entries
        if entry.block not in bought and entry.worth is not None
    )
    return sum(inside + loose[: num_evicted - len(inside)], Fraction(0))


def cheapest_blocks_loss(given: Problem, num_evicted: int, blocks: int) -> Fraction:
    """Return the loss of the blocks of least sum, earlier ones first, the rest filled up."""
    sums = {
        block: sum((e.worth for e in given.held_by(block) if e.worth is not None), Fraction(0))
        for block in given.blocks
        if given.may_be_freed(block)
    }
    bought = sorted(sums, key=lambda block: (sums[block], block))[:blocks]
    return loss_with_blocks(given, num_evicted, set(bought))


def bought_at_price(given: Problem, num_evicted: int, price: Fraction) -> set[Block]:
    """Return the blocks that cost at most a price to finish, at the highest threshold that fits.

    What goes changes at thresholds where an entry or a block is reached; each of them is tried.
    """
    worths = {
        block: [e.worth for e in given.held_by(block) if e.worth is not None]
        for block in given.blocks
        if given.may_be_freed(block)
    }
    levels = sorted({e.worth for e in given.entries if e.worth is not None})

    def cost(block: Block, threshold: Fraction) -> Fraction:
        return sum((max(worth - threshold, Fraction(0)) for worth in worths[block]), Fraction(0))

    def num_going(bought: set[Block], threshold: Fraction) -> int:
        return sum(
            1
            for e in given.entries
            if e.worth is not None and (e.worth < threshold or e.block in bought)
        )

    reached: dict[Block, Fraction] = {}
    for block, inside in worths.items():
        # With m entries above it, the cost is their sum less m thresholds.
        options = [
            (sum(above, Fraction(0)) - price) / len(above)
            for above in (sorted(inside)[first:] for first in range(len(inside)))
        ]
        options += levels
        reached[block] = min(tau for tau in options if cost(block, tau) <= price)
    bought: set[Block] = set()
    for threshold in sorted({*levels, *reached.values()}):
        there = {block for block in worths if reached[block] <= threshold}
        if num_going(there, threshold) <= num_evicted:
            bought = there
            continue
        for block in sorted(there - bought):
            if num_going(bought | {block}, threshold) > num_evicted:
                break
            bought = bought | {block}
        break
    return bought


def indices(shape: Sequence[int]) -> list[Index]:
    """Return all indices of an array, in row-major order."""
    return list(product(*(range(size) for size in shape)))
