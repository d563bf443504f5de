"""Every definition a second time: slow, literal, and without a line of the library.

Each table is laid out as an explicit list of blocks, each block a list of slots, and then things
are counted one by one. Ratios are Fractions, `None` means undefined (the library's nan), and
`float("inf")` stands where the definition says so. Standard library only.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from fractions import Fraction
from itertools import product
from typing import Any, Protocol, TypeAlias

Keep: TypeAlias = "bool | Sequence[Keep]"  # a nested list of any depth
PerTable: TypeAlias = "int | Sequence[PerTable]"  # one number for all, or one for each
Slot: TypeAlias = "str | list[bool]"  # "offset", "unwritten", or one bool per row
Block: TypeAlias = "list[Slot]"
Census: TypeAlias = "dict[str, Any]"
Move: TypeAlias = "tuple[int, int]"  # (source position, target position)

LEGAL_COMPACTORS = {  # the first is the cheapest
    "any": ("evacuate", "evacuate_rows", "fill", "pack", "pack_rows", "none"),
    "back": ("fill", "pack", "pack_rows", "none"),
    "front": ("none",),
    "none": ("none",),
}


class PoolLike(Protocol):
    """Whatever has these attributes can be measured under."""

    @property
    def block_size(self) -> int: ...
    @property
    def shared_axes(self) -> str: ...
    @property
    def frees(self) -> str: ...
    @property
    def open_tail(self) -> bool: ...
    @property
    def compactor(self) -> str | None: ...
    @property
    def total_blocks(self) -> int | None: ...
    @property
    def reserved_blocks(self) -> int: ...
    @property
    def watermark_blocks(self) -> int: ...
    @property
    def entry_bytes(self) -> int | None: ...


@dataclass(frozen=True)
class Pool:
    """The fields and defaults of a block pool; the compactor, if not given, follows `frees`."""

    block_size: int
    _: KW_ONLY
    shared_axes: str = "lh"
    frees: str = "any"
    open_tail: bool = False
    compactor: str | None = None
    total_blocks: int | None = None
    reserved_blocks: int = 0
    watermark_blocks: int = 0
    entry_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be; sort the shared letters; choose the compactor."""
        if not 1 <= _whole(self.block_size) <= 65_535:
            raise ValueError("a block has 1 to 65,535 slots")
        if len(set(self.shared_axes)) < len(self.shared_axes) or "t" in self.shared_axes:
            raise ValueError("shared_axes names each axis once, and never t")
        if self.frees not in LEGAL_COMPACTORS:
            raise ValueError("frees is any, back, front or none")
        if self.compactor not in (None, *LEGAL_COMPACTORS[self.frees]):
            raise ValueError("this compactor leaves blocks that the runtime cannot take back")
        if min(_whole(self.reserved_blocks), _whole(self.watermark_blocks)) < 0:
            raise ValueError("block counts are not negative")
        usable = _usable_blocks(self)
        if usable is not None and _whole(usable) < self.watermark_blocks:
            raise ValueError("the watermark is above the usable blocks")
        if self.entry_bytes is not None and _whole(self.entry_bytes) < 1:
            raise ValueError("an entry has at least one byte")
        object.__setattr__(self, "shared_axes", "".join(sorted(self.shared_axes)))
        if self.compactor is None:
            object.__setattr__(self, "compactor", LEGAL_COMPACTORS[self.frees][0])


# --- Reading the arguments ---


def _whole(value: object) -> int:
    """A count is an integer; True is not one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _shape(nested: object) -> tuple[int, ...]:
    """The sizes of a nested list's axes, outermost first; a ragged list has none."""
    if not isinstance(nested, (list, tuple)):
        return ()
    shapes = {_shape(item) for item in nested}
    if len(shapes) > 1:
        raise ValueError("the nested list is ragged")
    return (len(nested), *(shapes.pop() if shapes else ()))


def _at(nested: Any, index: Iterable[int]) -> object:  # noqa: ANN401 (a nested list)
    """The element of a nested list at one index per axis."""
    for position in index:
        nested = nested[position]
    return nested


def _kept(value: object) -> bool:
    """A mask holds booleans, or integers that are 0 or 1."""
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is neither kept nor evicted")
    if value not in (0, 1):
        raise ValueError(f"{value!r} is neither 0 nor 1")
    return bool(value)


def _letters(axes: str | None, num_axes: int, pool: PoolLike) -> list[str]:
    """One letter per axis, one of them `t`.

    1-D masks need none; nor does a pool that shares nothing, where the last axis is `t`.
    """
    if axes is None:
        if num_axes == 0 or (num_axes > 1 and pool.shared_axes != ""):
            raise ValueError("this mask needs axes")
        return ["?"] * (num_axes - 1) + ["t"]
    if not isinstance(axes, str):
        raise TypeError("axes is a string")
    if len(axes) != num_axes or len(set(axes)) < len(axes) or "t" not in axes:
        raise ValueError("axes names each axis of the mask once, one of them t")
    return list(axes)


def _number_of_each_table(
    given: PerTable, sizes: list[int], letters: list[str], low: int, high: int
) -> dict[tuple[int, ...], int]:
    """`lengths` and `offset`: one axis per outer letter in mask order, size 1 to broadcast.

    A plain number counts for all; a flat list where there is one outer letter, or as letter `b`.
    """
    shape = _shape(given)
    if shape == ():
        along: list[int] = []
    elif len(shape) == len(sizes):
        along = list(range(len(sizes)))
    elif len(shape) == 1 and "b" in letters:
        along = [letters.index("b")]
    else:
        raise ValueError("one axis per outer letter")
    if any(size not in (1, sizes[axis]) for size, axis in zip(shape, along, strict=True)):
        raise ValueError("a size that is neither 1 nor the mask's")
    for index in product(*(range(size) for size in shape)):
        if not low <= _whole(_at(given, index)) <= high:
            raise ValueError(f"not in {low}..{high}")
    numbers = {}
    for table in product(*(range(size) for size in sizes)):
        index = tuple(
            table[axis] if size > 1 else 0 for size, axis in zip(shape, along, strict=True)
        )
        numbers[table] = _whole(_at(given, index))
    return numbers


# --- The census ---


def census(
    keep: Keep,
    pool: PoolLike | int,
    axes: str | None = None,
    lengths: PerTable | None = None,
    offset: PerTable = 0,
    *,
    pinned: PerTable = 0,
    shape: Sequence[int] | None = None,
) -> Census:
    """Count one table at a time; a table is the rows that differ only in shared letters.

    `shape` is for masks with an axis of size 0: a nested list hides the sizes of the axes after it.
    """
    pool = Pool(pool) if isinstance(pool, int) else pool
    sizes = _shape(keep) if shape is None else tuple(shape)
    letters = _letters(axes, len(sizes), pool)
    time = letters.index("t")
    shared = [axis for axis, letter in enumerate(letters) if letter in pool.shared_axes]
    outer = [axis for axis in range(len(sizes)) if axis != time and axis not in shared]
    if any(sizes[axis] == 0 for axis in shared):
        raise ValueError("a shared axis of size 0: the tables would have no rows")

    outer_sizes = [sizes[axis] for axis in outer]
    outer_letters = [letters[axis] for axis in outer]
    full = sizes[time] if lengths is None else lengths
    length_of = _number_of_each_table(full, outer_sizes, outer_letters, 0, sizes[time])
    offset_of = _number_of_each_table(offset, outer_sizes, outer_letters, 0, pool.block_size - 1)
    pinned_of = _number_of_each_table(pinned, outer_sizes, outer_letters, 0, sizes[time])

    total = empty(pool)
    total["rows_per_table"] = math.prod(sizes[axis] for axis in shared)
    for table in product(*(range(size) for size in outer_sizes)):
        rows: list[list[bool]] = []
        for row in product(*(range(sizes[axis]) for axis in shared)):
            index = [0] * len(sizes)
            for axis, position in zip([*outer, *shared], [*table, *row], strict=True):
                index[axis] = position
            rows.append([])
            for token in range(sizes[time]):
                index[time] = token
                rows[-1].append(_kept(_at(keep, index)))
        counted = _census_of_table(rows, length_of[table], offset_of[table], pool, pinned_of[table])
        total = add(total, counted)
    return total


def empty(pool: PoolLike) -> Census:
    """Nothing counted yet: `rows_per_table` 0, which adds to anything of its pool."""
    nothing = _census_of_table([], 0, 0, pool)
    nothing["num_tables"] = 0
    return nothing


def _is_live(slot: Slot) -> bool:
    """A slot is live if any of its rows keeps the token."""
    return isinstance(slot, list) and any(slot)


def _is_dead(slot: Slot) -> bool:
    """A slot is dead when it was written and no row keeps its token."""
    return isinstance(slot, list) and not any(slot)


def _occupancy(block: Block) -> int:
    """The live slots in one block."""
    return sum(1 for slot in block if _is_live(slot))


def _live_entries(slots: list[Slot], row: int) -> int:
    """The kept tokens of one row in these slots."""
    return sum(1 for slot in slots if isinstance(slot, list) and slot[row])


def _lay_out(rows: list[list[bool]], length: int, offset: int, block_size: int) -> list[Block]:
    """The offset's slots, the written tokens, then unwritten slots up to the block's end.

    A sequence of length 0 owns no block.
    """
    if length == 0:
        return []
    slots: list[Slot] = ["offset"] * offset
    slots += [[row[token] for row in rows] for token in range(length)]
    while len(slots) % block_size != 0:
        slots.append("unwritten")
    return [slots[first : first + block_size] for first in range(0, len(slots), block_size)]


def _is_freed(blocks: list[Block], pool: PoolLike, num_pinned: int = 0) -> list[bool]:
    """A block is free when the runtime takes it back without copying anything.

    Any empty one; only the run at the back or at the front of the table; or none. A pinned block
    stays, as does a partly written last block of an open tail, and ends a run.
    """
    can_go = [_occupancy(block) == 0 for block in blocks]
    can_go[:num_pinned] = [False] * num_pinned
    if pool.open_tail and blocks and blocks[-1][-1] == "unwritten":
        can_go[-1] = False
    freed = [False] * len(blocks)
    if pool.frees == "any":
        freed = can_go
    if pool.frees == "front":
        for number in range(len(blocks)):
            if not can_go[number]:
                break
            freed[number] = True
    if pool.frees == "back":
        for number in reversed(range(len(blocks))):
            if not can_go[number]:
                break
            freed[number] = True
    return freed


def _census_of_table(  # noqa: C901  # one walk through the definitions, in their order
    rows: list[list[bool]], length: int, offset: int, pool: PoolLike, pinned: int = 0
) -> Census:
    """Everything that is counted, for one table."""
    if pinned > length:
        raise ValueError("more tokens are pinned than the sequence has")
    if any(any(row[length:]) for row in rows):
        raise ValueError("a token is kept beyond its sequence's length")
    size = pool.block_size
    num_rows = len(rows)
    blocks = _lay_out(rows, length, offset, size)
    slots = [slot for block in blocks for slot in block]
    # Pinned are the blocks that hold a pinned token: they are neither freed nor moved.
    num_pinned = _ceil(offset + pinned, size) if pinned else 0
    pinned_slots = [slot for block in blocks[:num_pinned] for slot in block]
    freed = _is_freed(blocks, pool, num_pinned)
    held = [block for block, is_freed in zip(blocks, freed, strict=True) if not is_freed]
    held_slots = [slot for block in held for slot in block]
    num_live = _occupancy(slots)
    num_live_entries = sum(_live_entries(slots, row) for row in range(num_rows))

    # Blocks after a full compaction: as few as hold the live slots, or the fullest row.
    loose = [slot for block in blocks[num_pinned:] for slot in block]
    loose_live = _occupancy(loose)
    fullest_row = max((_live_entries(loose, row) for row in range(num_rows)), default=0)
    num_floor = num_pinned + _ceil(fullest_row, size)
    if pool.compactor == "none":
        num_packed = len(held)
    elif pool.compactor in ("pack_rows", "evacuate_rows"):
        num_packed = num_floor
    else:
        num_packed = num_pinned + _ceil(loose_live, size)

    # What a full compaction copies; positions count from the first slot that can be moved to.
    live = [_is_live(slot) for slot in loose]
    movable = [0] * (size + 1) if pool.compactor == "evacuate" else []
    if pool.compactor == "evacuate":  # the emptiest held blocks, whole slots
        emptied = sorted(_occupancy(block) for block in held[num_pinned:])
        emptied = emptied[: len(held) - num_packed]
        for occupancy in emptied:
            movable[occupancy] += 1
        num_moved = sum(emptied) * num_rows
    elif pool.compactor == "evacuate_rows":  # all but the num_floor blocks with most live entries
        entries = [
            sum(_live_entries(block, row) for row in range(num_rows))
            for block in blocks[num_pinned:]
        ]
        num_moved = sum(sorted(entries, reverse=True)[num_floor - num_pinned :])
    elif pool.compactor == "fill":  # the live slots at positions >= the number of live slots
        num_moved = sum(live[loose_live:]) * num_rows
    elif pool.compactor == "pack":  # the live slots after the first that is not
        num_moved = _after_first_hole(live) * num_rows
    elif pool.compactor == "pack_rows":  # per row, the live entries after the first that is not
        num_moved = sum(
            _after_first_hole([isinstance(slot, list) and slot[row] for slot in loose])
            for row in range(num_rows)
        )
    else:
        num_moved = 0

    return {
        "rows_per_table": num_rows,
        "num_tables": 1,
        "num_entries": length * num_rows,
        "num_live_entries": num_live_entries,
        "num_tokens": length,
        "counts": tuple(
            sum(1 for block in blocks if _occupancy(block) == occupancy)
            for occupancy in range(size + 1)
        ),
        "num_freed_blocks": freed.count(True),
        "num_held_tokens": sum(1 for slot in held_slots if isinstance(slot, list)),
        "num_packed_blocks": num_packed,
        "num_floor_blocks": num_floor,
        "num_moved_entries": num_moved,
        "movable": tuple(movable),
        "num_pinned_blocks": num_pinned,
        "num_pinned_tokens": sum(1 for slot in pinned_slots if isinstance(slot, list)),
        "num_pinned_live_tokens": _occupancy(pinned_slots),
        "num_pinned_live_entries": sum(_live_entries(pinned_slots, row) for row in range(num_rows)),
        "num_blocks": len(blocks),
        "num_nonempty_blocks": sum(1 for block in blocks if _occupancy(block) > 0),
        "num_held_blocks": len(held),
        "num_live_tokens": num_live,
        "num_evicted_entries": sum(slot.count(False) for slot in slots if isinstance(slot, list)),
        "num_stranded_tokens": sum(1 for slot in held_slots if _is_dead(slot)),
        "num_slack_slots": sum(1 for slot in held_slots if not isinstance(slot, list)),
        "num_compactable_blocks": len(held) - num_packed,
    }


def _ceil(tokens: int, block_size: int) -> int:
    """The fewest blocks that hold so many tokens."""
    blocks = 0
    while blocks * block_size < tokens:
        blocks += 1
    return blocks


def _after_first_hole(live: list[bool]) -> int:
    """How many are live behind the first one that is not: sliding forward moves just those."""
    return sum(live[live.index(False) :]) if False in live else 0


def add(a: Census, b: Census) -> Census:
    """Counts of disjoint sets of sequences add; the rows of a table do not, and must agree."""
    if len(a["counts"]) != len(b["counts"]) or len(a["movable"]) != len(b["movable"]):
        raise ValueError("different pools")
    if len({a["rows_per_table"], b["rows_per_table"]} - {0}) > 1:
        raise ValueError("different rows per table")
    total: Census = {}
    for name in a:
        if name == "rows_per_table":
            total[name] = max(a[name], b[name])
        elif isinstance(a[name], tuple):
            total[name] = tuple(x + y for x, y in zip(a[name], b[name], strict=True))
        else:
            total[name] = a[name] + b[name]
    return total


# --- The metrics ---


def _ratio(numerator: int, denominator: int) -> Fraction | None:
    """A fraction, undefined over 0."""
    return None if denominator == 0 else Fraction(numerator, denominator)


def logical_saving(c: Census) -> Fraction | None:
    """Evicted entries / entries."""
    return _ratio(c["num_evicted_entries"], c["num_entries"])


def physical_reclaim(c: Census) -> Fraction | None:
    """Free blocks / blocks."""
    return _ratio(c["num_freed_blocks"], c["num_blocks"])


def reclaim_efficiency(c: Census) -> Fraction | None:
    """physical_reclaim / logical_saving, undefined where nothing is evicted."""
    reclaim, saving = physical_reclaim(c), logical_saving(c)
    return None if reclaim is None or not saving else reclaim / saving


def fragmentation(c: Census) -> Fraction | None:
    """(held blocks * block_size - live slots) / (held blocks * block_size)."""
    held_slots = c["num_held_blocks"] * _block_size(c)
    return _ratio(held_slots - c["num_live_tokens"], held_slots)


def packed_reclaim(c: Census) -> Fraction | None:
    """1 - num_floor_blocks / blocks."""
    return _ratio(c["num_blocks"] - c["num_floor_blocks"], c["num_blocks"])


def compacted_reclaim(c: Census) -> Fraction | None:
    """1 - num_packed_blocks / blocks: what is free after the pool's own compactor."""
    return _ratio(c["num_blocks"] - c["num_packed_blocks"], c["num_blocks"])


def moved_tokens_per_block(c: Census) -> Fraction | None:
    """Slots moved per block that compaction, and only compaction, frees."""
    return _ratio(c["num_moved_entries"], c["rows_per_table"] * c["num_compactable_blocks"])


def slots_per_move(c: Census) -> Fraction | None:
    """block_size / moved_tokens_per_block, undefined where that is 0 or undefined."""
    price = moved_tokens_per_block(c)
    return None if not price else _block_size(c) / price


def memory_waste(c: Census) -> Fraction | None:
    """1 - live entries / (held blocks * block_size * rows)."""
    held_entries = c["num_held_blocks"] * _block_size(c) * c["rows_per_table"]
    return _ratio(held_entries - c["num_live_entries"], held_entries)


def capacity_gain(c: Census) -> Fraction | None:
    """Blocks / held blocks."""
    return _ratio(c["num_blocks"], c["num_held_blocks"])


def savings_breakdown(c: Census) -> dict[str, int | Fraction | None]:
    """Entries of freed blocks, dead slots of held blocks times rows, entries dead in their row
    while another row keeps the slot, and any that are dead in a pinned block: together the evicted
    entries. Shares are of all entries.
    """
    rows = c["rows_per_table"]
    reclaimed = (c["num_tokens"] - c["num_held_tokens"]) * rows
    pinned_dead_slots = (c["num_pinned_tokens"] - c["num_pinned_live_tokens"]) * rows
    pinned_unshared = c["num_pinned_live_tokens"] * rows - c["num_pinned_live_entries"]
    stranded = c["num_stranded_tokens"] * rows - pinned_dead_slots
    unshared = c["num_live_tokens"] * rows - c["num_live_entries"] - pinned_unshared
    pinned = pinned_dead_slots + pinned_unshared
    return {
        "num_entries": c["num_entries"],
        "num_reclaimed": reclaimed,
        "num_stranded": stranded,
        "num_unshared": unshared,
        "num_pinned": pinned,
        "reclaimed": _ratio(reclaimed, c["num_entries"]),
        "stranded": _ratio(stranded, c["num_entries"]),
        "unshared": _ratio(unshared, c["num_entries"]),
        "pinned": _ratio(pinned, c["num_entries"]),
    }


def effective_tokens_per_block(c: Census) -> float | None:
    """ln(physical_reclaim) / ln(logical_saving).

    inf where nothing is freed; undefined where the saving is 0 or 1 (or there are no entries),
    and for tables of more than one row.
    """
    return None if c["rows_per_table"] > 1 else _log_ratio(physical_reclaim(c), logical_saving(c))


def effective_rows(c: Census) -> float | None:
    """ln(share of slots dead in every row) / ln(logical_saving).

    inf where no slot is dead in every row; undefined where the saving is 0 or 1.
    """
    dead = _ratio(c["num_tokens"] - c["num_live_tokens"], c["num_tokens"])
    return _log_ratio(dead, logical_saving(c))


def _log_ratio(share: Fraction | None, saving: Fraction | None) -> float | None:
    """ln(share) / ln(saving), where a saving of 0 or 1 is looked at before a share of 0."""
    if share is None or saving in (None, 0, 1):
        return None
    return math.inf if share == 0 else math.log(share) / math.log(saving)


def _block_size(c: Census) -> int:
    """`counts` has a place for 0, 1, ... block_size live slots."""
    return len(c["counts"]) - 1


def _usable_blocks(pool: PoolLike) -> int | None:
    """total - reserved, where the pool has a size."""
    return None if pool.total_blocks is None else pool.total_blocks - pool.reserved_blocks


def admission_count(c: Census, pool: PoolLike, blocks_per_request: int) -> int:
    """Requests of so many blocks, admitted one after another while the watermark stays free."""
    if _whole(blocks_per_request) < 1:
        raise ValueError("a request needs at least one block")
    usable = _usable_blocks(pool)
    if usable is None:
        free = c["num_freed_blocks"]
    elif usable < c["num_blocks"]:
        raise ValueError("the masks never fitted into this pool")
    else:
        free = usable - c["num_held_blocks"]
    admitted = 0
    while free - blocks_per_request >= pool.watermark_blocks:
        free -= blocks_per_request
        admitted += 1
    return admitted


def pool_usage(c: Census, pool: PoolLike) -> dict[str, Fraction | None]:
    """Blocks / usable blocks before the eviction, held / usable after it."""
    usable = _usable_blocks(pool)
    if usable is None:
        raise ValueError("usage needs total_blocks")
    return {
        "before": _ratio(c["num_blocks"], usable),
        "after": _ratio(c["num_held_blocks"], usable),
    }


# --- Compaction ---


def reclaim_curve(c: Census) -> list[int]:
    """Fewest slot moves to free 1, 2, ... more blocks: the cheapest blocks first."""
    if not c["movable"]:
        raise ValueError("only evacuate has a curve")
    curve = []
    moves = 0
    for occupancy, num_blocks in enumerate(c["movable"]):
        for _ in range(num_blocks):
            moves += occupancy
            curve.append(moves)
    return curve


def blocks_for_moves(c: Census, budget: int) -> int:
    """The most blocks that no more than `budget` moves free."""
    if _whole(budget) < 0:
        raise ValueError("a budget is not negative")
    return sum(1 for moves in reclaim_curve(c) if moves <= budget)


def decode_steps(c: Census) -> Fraction | None:
    """2 * moved entries / live entries: each is read once and written once."""
    return _ratio(2 * c["num_moved_entries"], c["num_live_entries"])


def fewest_moves_to_free(occupancies: Sequence[int], block_size: int, blocks: int) -> int | None:
    """Breadth first over every way to move one token at a time, until `blocks` blocks are empty.

    The blocks are those that one table holds; None where no sequence of moves gets there.
    """
    start = tuple(occupancies)
    moves_to = {start: 0}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        if state.count(0) >= blocks:
            return moves_to[state]
        for source, target in product(range(len(state)), repeat=2):
            if source != target and state[source] > 0 and state[target] < block_size:
                following = list(state)
                following[source] -= 1
                following[target] += 1
                if tuple(following) not in moves_to:
                    moves_to[tuple(following)] = moves_to[state] + 1
                    queue.append(tuple(following))
    return None


def fill_moves_by_simulation(live: Sequence[bool]) -> list[Move]:
    """One finger runs down over the survivors, one up over the holes, until they meet."""
    moves: list[Move] = []
    source, target = len(live) - 1, 0
    while True:
        while source >= 0 and not live[source]:
            source -= 1
        while target < len(live) and live[target]:
            target += 1
        if source <= target:
            return moves
        moves.append((source, target))
        source -= 1
        target += 1


def pack_moves_by_simulation(live: Sequence[bool]) -> list[Move]:
    """Every survivor slides forward, in order, to the next place."""
    moves = []
    target = 0
    for source, is_live in enumerate(live):
        if is_live:
            if source != target:
                moves.append((source, target))
            target += 1
    return moves


# --- Admission ---


def admit(
    free_blocks: int,
    demands: Sequence[int],
    watermark_blocks: int = 0,
    order: str = "fifo",
    exempt_first: bool = False,
) -> tuple[int, ...]:
    """Which requests get their blocks, ascending; the watermark stays free after each.

    `fifo` stops at the first that does not fit, `skip` goes on, `smallest` takes them by size (the
    earlier first on ties) and stops. `exempt_first`: the first admitted may use the watermark.
    """
    if order not in ("fifo", "skip", "smallest"):
        raise ValueError("order is fifo, skip or smallest")
    if min(_whole(free_blocks), _whole(watermark_blocks)) < 0:
        raise ValueError("block counts are not negative")
    if any(_whole(demand) < 1 for demand in demands):
        raise ValueError("a demand of no blocks")
    queue = list(range(len(demands)))
    if order == "smallest":
        queue.sort(key=lambda request: (demands[request], request))
    admitted: list[int] = []
    for request in queue:
        must_stay = 0 if exempt_first and not admitted else watermark_blocks
        if free_blocks - demands[request] >= must_stay:
            free_blocks -= demands[request]
            admitted.append(request)
        elif order != "skip":
            break
    return tuple(sorted(admitted))
