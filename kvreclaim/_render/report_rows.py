"""The rows of a report, in the order in which it is read, and why a figure is undefined."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kvreclaim.census import Census

_NO_ENTRIES: Final = "there are no entries"
_NO_BLOCKS: Final = "there are no blocks"
_NONE_EVICTED: Final = "no entry is evicted"
_NONE_HELD: Final = "no block is held"
_NONE_COMPACTED: Final = "compaction frees no block"
_NO_COMPACTOR: Final = "no compactor"

LABELS: Final = {
    "logical_saving": "logical saving",
    "physical_reclaim": "comes back in place",
    "compacted_reclaim": "  after compaction",
    "packed_reclaim": "  packed",
    "reclaim_efficiency": "reclaim efficiency",
    "fragmentation": "fragmentation",
    "memory_waste": "memory waste",
    "moved_tokens_per_block": "moved tokens per block",
    "capacity_gain": "capacity gain",
    "reclaimed": "evicted entries: reclaimed",
    "stranded": "  stranded in held blocks",
    "unshared": "  kept alive by other rows",
    "pinned": "  in pinned blocks",
    "effective_tokens_per_block": "effective tokens per block",
    "effective_rows": "effective rows",
    "admission_count": "requests admitted",
}
"""What figures are called; two spaces begin the name of a part of the figure before it."""

NOT_COMPACTED: Final = f"  {_NO_COMPACTOR}"
"""What stands instead of "after compaction" under a pool that moves nothing."""

_WHY_NAN: Final = {
    "physical_reclaim": _NO_BLOCKS,
    "compacted_reclaim": _NO_BLOCKS,
    "packed_reclaim": _NO_BLOCKS,
    "logical_saving": _NO_ENTRIES,
    "reclaim_efficiency": _NONE_EVICTED,
    "fragmentation": _NONE_HELD,
    "memory_waste": _NONE_HELD,
    "capacity_gain": _NONE_HELD,
    "decode_steps": "no entry is live",
    "reclaimed": _NO_ENTRIES,
    "stranded": _NO_ENTRIES,
    "unshared": _NO_ENTRIES,
    "pinned": _NO_ENTRIES,
    "pool_usage_before": "no block is usable",
    "pool_usage_after": "no block is usable",
}
_WHY_INFINITE: Final = {
    "effective_tokens_per_block": "nothing comes back in place",
    "effective_rows": "no slot is dead in every row",
}


class Row(NamedTuple):
    """A figure with its name, what it is called, and what stands behind it."""

    name: str
    label: str
    value: float | int
    remark: str = ""


def head_of(census: Census, absent_axes: str | None) -> list[str]:
    """Return what was counted, and which letters of the pool the mask does not have."""
    pool = census.pool
    lines = [
        (
            f"block tables: {census.num_tables}, rows of each: {census.rows_per_table}, tokens: "
            f"{census.num_tokens}, blocks of {pool.block_size}: {census.num_blocks}"
        ),
    ]
    if absent_axes and pool.shared_axes:
        lines.append(
            f"  The pool shares blocks over {pool.shared_axes!r}, the mask has no axis "
            f"{absent_axes!r}: counted as 1 row."
        )
    return lines


class Rows(NamedTuple):
    """The rows of a report, group by group."""

    saving: list[Row]
    reclaim: list[Row]  # the three figures: in place, after the pool's own compactor, packed
    shares: list[Row]
    others: list[Row]


def rows_of(
    census: Census,
    figures: Mapping[str, float | int | None],
    blocks_per_request: int | None,
    shown: Callable[[str, float | int | None], str],
) -> Rows:
    """Return the rows of the figures that there are; `shown` writes those within a remark."""
    compactor = census.pool.compactor

    def row(name: str, remark: str = "", label: str = "") -> list[Row]:
        value = figures[name]
        return [] if value is None else [Row(name, label or LABELS[name], value, remark)]

    def inside(name: str) -> str:
        return shown(name, figures[name])

    def blocks(held: int, remark: str) -> str:
        return f"{census.num_blocks - held} blocks, {remark}"

    return Rows(
        saving=row("logical_saving", f"of {census.num_entries} entries"),
        reclaim=[
            *row("physical_reclaim", blocks(census.num_held_blocks, "no copy")),
            *row(
                "compacted_reclaim",
                blocks(
                    census.num_packed_blocks,
                    "nothing is moved"
                    if compactor == "none"
                    else f"copy: {inside('decode_steps')} decode steps",
                ),
                NOT_COMPACTED if compactor == "none" else f"  after {compactor}",
            ),
            *row(
                "packed_reclaim", blocks(census.num_floor_blocks, "the most this layout can give")
            ),
        ],
        shares=[
            *row("reclaim_efficiency", "in place / logical"),
            *row("fragmentation", "of held slots are not live"),
            *row("memory_waste", "of held memory is not live"),
            *row(
                "moved_tokens_per_block",
                "the pool has no compactor" if compactor == "none" else "by compaction",
            ),
            *row("capacity_gain", "blocks / held blocks"),
        ],
        others=[
            *row("reclaimed"),
            *row("stranded"),
            *row("unshared"),
            *(row("pinned") if census.num_pinned_blocks else []),
            *row("effective_tokens_per_block"),
            *row("effective_rows"),
            *row("admission_count", _remark_of_requests(census, blocks_per_request)),
            *row("pool_usage_before", f"before, {inside('pool_usage_after')} after", "pool usage"),
            *row("held_bytes", f"held, {inside('reclaimed_bytes')} reclaimed", "bytes"),
        ],
    )


def _remark_of_requests(census: Census, blocks_per_request: int | None) -> str:
    """Return how large they are, and how many of them a pool with a size had room for before."""
    usable = census.pool.num_usable_blocks
    if not blocks_per_request or usable is None:
        return f"of {blocks_per_request} blocks each"
    free = max(0, usable - census.num_blocks - census.pool.watermark_blocks)
    return f"of {blocks_per_request} blocks each, {free // blocks_per_request} without eviction"


def in_words(name: str, value: float, census: Census) -> str:
    """Return a figure to three decimals; an undefined or infinite one in words, with why."""
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return f"undefined ({why_undefined(name, census)})"
    return f"{value:.3f}" if math.isfinite(value) else f"infinite ({_WHY_INFINITE[name]})"


def why_undefined(name: str, census: Census) -> str:
    """Return why a figure of a census is nan."""
    if name in _WHY_NAN:
        return _WHY_NAN[name]
    if name in ("moved_tokens_per_block", "slots_per_move"):
        if census.pool.compactor == "none":
            return _NO_COMPACTOR
        return "compaction moves nothing" if census.num_compactable_blocks else _NONE_COMPACTED
    if name == "effective_tokens_per_block" and census.rows_per_table > 1:
        return "a table has several rows"
    if not census.num_entries:
        return _NO_ENTRIES
    return "every entry is evicted" if census.num_evicted_entries else _NONE_EVICTED


def peak_of(census: Census) -> str:
    """Return what eviction after a prefill leaves as it was."""
    return f"peak: {census.num_blocks} blocks before eviction, unchanged by it"
