"""Report: every figure of one census in one record; the signature that says under which pool."""

from __future__ import annotations

import json
import math
from typing import Any

import attrs
from numpy.typing import ArrayLike

from kvreclaim import _checks, metrics
from kvreclaim.admission import admission_count
from kvreclaim.census import Census, as_census
from kvreclaim.compaction import compaction_cost
from kvreclaim.metrics import PoolUsage, SavingsBreakdown
from kvreclaim.pool import BlockPool, PoolLike


@attrs.frozen
class Signature:
    """Under which pool a figure holds, in one line that fits beside it.

    Parameters
    ----------
    pool
        The BlockPool.
    rows
        Rows of one table.
    version
        Version of kvreclaim.

    Examples
    --------
    >>> str(Signature(BlockPool(16), 90, "0.1.0"))[:42]
    'B:16|share:hl|frees:any|tail:closed|move:e'
    >>> Signature.parse(str(Signature(BlockPool(16), 90, "0.1.0"))).rows
    90
    """

    pool: BlockPool
    rows: int
    version: str

    def __str__(self) -> str:
        """Return the fields as ``name:value``, in a fixed order, with bars between them."""
        pool = self.pool
        fields = {
            "B": pool.block_size,
            "share": pool.shared_axes or "none",
            "frees": pool.frees,
            "tail": "open" if pool.open_tail else "closed",
            "move": pool.compactor,
            "pool": "full" if pool.total_blocks is None else pool.total_blocks,
            "reserved": pool.reserved_blocks,
            "watermark": pool.watermark_blocks,
            "entry": "-" if pool.entry_bytes is None else pool.entry_bytes,
            "rows": self.rows,
            "v": self.version,
        }
        return "|".join(f"{name}:{value}" for name, value in fields.items())

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Return the signature that a line spells.

        Raises
        ------
        ValueError
            For a line that no signature writes.
        """
        fields = dict(part.partition(":")[::2] for part in text.strip().split("|"))
        try:
            signature = cls(
                pool=BlockPool(
                    int(fields["B"]),
                    shared_axes="" if fields["share"] == "none" else fields["share"],
                    frees=fields["frees"],
                    open_tail={"open": True, "closed": False}[fields["tail"]],
                    compactor=fields["move"],
                    total_blocks=None if fields["pool"] == "full" else int(fields["pool"]),
                    reserved_blocks=int(fields["reserved"]),
                    watermark_blocks=int(fields["watermark"]),
                    entry_bytes=None if fields["entry"] == "-" else int(fields["entry"]),
                ),
                rows=int(fields["rows"]),
                version=fields["v"],
            )
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"text must be a signature such as {cls(BlockPool(16), 1, '0.1.0')}; got {text!r} "
                f"({error}); copy it from a report."
            ) from None
        if str(signature) != text.strip():
            raise ValueError(
                f"text must be a signature as it is written, {signature}; got {text!r}; copy it "
                "from a report."
            )
        return signature


@attrs.frozen(kw_only=True)
class Report:
    """Every figure of one census. Shares lie from 0 to 1; nan is undefined.

    A report comes from `report`. Each figure is the one that the function of its name returns; two
    reports are equal where their censuses are.

    Parameters
    ----------
    census
        The counts that every figure is made of.
    absent_axes
        Letters that share blocks under the pool but that the mask did not have, counted as size 1;
        None where a census came, which does not tell.
    blocks_per_request
        Blocks of one request, for `admission_count`; None leaves that out.
    logical_saving
        Share of the entries that is evicted.
    physical_reclaim, compacted_reclaim, packed_reclaim
        Share of the blocks that comes back: in place; after the pool's own compactor; packed.
    reclaim_efficiency
        ``physical_reclaim / logical_saving``.
    fragmentation, memory_waste
        Share of the held slots, and of the held memory, that is not live.
    capacity_gain
        Blocks over held blocks.
    moved_tokens_per_block, slots_per_move, decode_steps
        The price of a full compaction by the pool's own compactor.
    effective_tokens_per_block, effective_rows
        As many independent tokens a block, and rows a table, behave like.
    savings
        Where the evicted entries went.
    admission_count
        Requests of `blocks_per_request` blocks that the free blocks admit.
    pool_usage
        How full a pool with a size is, before and after; None without ``total_blocks``.
    held_bytes, reclaimed_bytes
        Bytes of the blocks held, and freed in place; None without ``entry_bytes``.
    """

    census: Census
    absent_axes: str | None
    blocks_per_request: int | None
    logical_saving: float = attrs.field(eq=False)
    physical_reclaim: float = attrs.field(eq=False)
    compacted_reclaim: float = attrs.field(eq=False)
    packed_reclaim: float = attrs.field(eq=False)
    reclaim_efficiency: float = attrs.field(eq=False)
    fragmentation: float = attrs.field(eq=False)
    memory_waste: float = attrs.field(eq=False)
    capacity_gain: float = attrs.field(eq=False)
    moved_tokens_per_block: float = attrs.field(eq=False)
    slots_per_move: float = attrs.field(eq=False)
    decode_steps: float = attrs.field(eq=False)
    effective_tokens_per_block: float = attrs.field(eq=False)
    effective_rows: float = attrs.field(eq=False)
    savings: SavingsBreakdown = attrs.field(eq=False)
    admission_count: int | None = attrs.field(eq=False)
    pool_usage: PoolUsage | None = attrs.field(eq=False)
    held_bytes: int | None = attrs.field(eq=False)
    reclaimed_bytes: int | None = attrs.field(eq=False)

    @property
    def signature(self) -> str:
        """Under which pool the figures hold."""
        from kvreclaim import __version__

        return str(Signature(self.census.pool, self.census.rows_per_table, __version__))

    def to_dict(self) -> dict[str, Any]:
        """Return signature, metrics and counts as built-in numbers; an undefined metric is None.

        Infinite ones are None too, since JSON has neither.
        """
        census = self.census
        return {
            "signature": self.signature,
            "metrics": {name: _finite(value) for name, value in self._metrics().items()},
            "counts": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in _counts(census).items()
            },
        }

    def to_json(self) -> str:
        """Return `to_dict` as a line of JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def _metrics(self) -> dict[str, float | int | None]:
        usage = self.pool_usage
        return {
            "physical_reclaim": self.physical_reclaim,
            "compacted_reclaim": self.compacted_reclaim,
            "packed_reclaim": self.packed_reclaim,
            "logical_saving": self.logical_saving,
            "reclaim_efficiency": self.reclaim_efficiency,
            "fragmentation": self.fragmentation,
            "memory_waste": self.memory_waste,
            "capacity_gain": self.capacity_gain,
            "moved_tokens_per_block": self.moved_tokens_per_block,
            "slots_per_move": self.slots_per_move,
            "decode_steps": self.decode_steps,
            "reclaimed": self.savings.reclaimed,
            "stranded": self.savings.stranded,
            "unshared": self.savings.unshared,
            "effective_tokens_per_block": self.effective_tokens_per_block,
            "effective_rows": self.effective_rows,
            "admission_count": self.admission_count,
            "pool_usage_before": None if usage is None else usage.before,
            "pool_usage_after": None if usage is None else usage.after,
            "held_bytes": self.held_bytes,
            "reclaimed_bytes": self.reclaimed_bytes,
        }

    def __str__(self) -> str:
        """Return the figures as a table for a terminal of 80 columns."""
        return "\n".join(_lines(self))


def report(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
    blocks_per_request: int | None = None,
) -> Report:
    """Return every figure of a keep-mask, or of a census, under a pool.

    Parameters
    ----------
    keep_or_census, pool, axes, lengths, offset
        As in `logical_saving`.
    blocks_per_request
        Blocks of one request; with it the report says how many requests are admitted.

    Raises
    ------
    TypeError, ValueError
        As `take_census`; and where a pool with a size is too small for the masks.

    Examples
    --------
    >>> figures = report([1, 1, 0, 0, 0, 1, 0, 0], 2)
    >>> figures.logical_saving, figures.physical_reclaim, figures.packed_reclaim
    (0.625, 0.5, 0.5)
    """
    census = as_census(keep_or_census, pool, axes=axes, lengths=lengths, offset=offset)
    absent = None
    if not isinstance(keep_or_census, Census):
        absent = "".join(letter for letter in census.pool.shared_axes if letter not in (axes or ""))
    sized = census.pool.total_blocks is not None
    block_bytes = None
    if census.pool.entry_bytes is not None:
        block_bytes = census.pool.entry_bytes * census.pool.block_size * census.rows_per_table
    return Report(
        census=census,
        absent_axes=absent,
        blocks_per_request=None
        if blocks_per_request is None
        else _checks.as_count("blocks_per_request", blocks_per_request, minimum=1),
        logical_saving=metrics.logical_saving(census),
        physical_reclaim=metrics.physical_reclaim(census),
        compacted_reclaim=metrics.compacted_reclaim(census),
        packed_reclaim=metrics.packed_reclaim(census),
        reclaim_efficiency=metrics.reclaim_efficiency(census),
        fragmentation=metrics.fragmentation(census),
        memory_waste=metrics.memory_waste(census),
        capacity_gain=metrics.capacity_gain(census),
        moved_tokens_per_block=metrics.moved_tokens_per_block(census),
        slots_per_move=metrics.slots_per_move(census),
        decode_steps=compaction_cost(census).decode_steps,
        effective_tokens_per_block=metrics.effective_tokens_per_block(census),
        effective_rows=metrics.effective_rows(census),
        savings=metrics.savings_breakdown(census),
        admission_count=None
        if blocks_per_request is None
        else admission_count(census, blocks_per_request=blocks_per_request),
        pool_usage=metrics.pool_usage(census) if sized else None,
        held_bytes=None if block_bytes is None else block_bytes * census.num_held_blocks,
        reclaimed_bytes=None if block_bytes is None else block_bytes * census.num_freed_blocks,
    )


def _counts(census: Census) -> dict[str, int | tuple[int, ...]]:
    fields = [field.name for field in attrs.fields(Census) if field.name != "pool"]
    derived = [name for name, part in vars(Census).items() if isinstance(part, property)]
    return {name: getattr(census, name) for name in (*fields, *derived)}


def _finite(value: float | None) -> float | int | None:
    return None if value is None or not math.isfinite(value) else value


def _lines(report: Report) -> list[str]:
    census, pool = report.census, report.census.pool
    compactor = "no compactor" if pool.compactor == "none" else f"after {pool.compactor}"
    lines = [
        (
            f"block tables: {census.num_tables}, rows of each: {census.rows_per_table}, tokens: "
            f"{census.num_tokens}, blocks of {pool.block_size}: {census.num_blocks}"
        ),
    ]
    if report.absent_axes and pool.shared_axes:
        lines.append(
            f"  The pool shares blocks over {pool.shared_axes!r}, the mask has no axis "
            f"{report.absent_axes!r}: counted as 1 row."
        )
    lines += [
        "",
        f"{'logical saving':<28}{_shown(report.logical_saving)}  of {census.num_entries} entries",
        _row("comes back in place", report.physical_reclaim, census.num_freed_blocks, "no copy"),
        _row(
            f"  {compactor}",
            report.compacted_reclaim,
            census.num_blocks - census.num_packed_blocks,
            f"copy: {_shown(report.decode_steps).strip()} decode steps",
        ),
        _row(
            "  packed",
            report.packed_reclaim,
            census.num_blocks - census.num_floor_blocks,
            "the most this layout can give",
        ),
        "",
        f"{'reclaim efficiency':<28}{_shown(report.reclaim_efficiency)}  in place / logical",
        f"{'fragmentation':<28}{_shown(report.fragmentation)}  of held slots are not live",
        f"{'memory waste':<28}{_shown(report.memory_waste)}  of held memory is not live",
        f"{'moved tokens per block':<28}{_shown(report.moved_tokens_per_block)}  by compaction",
        f"{'capacity gain':<28}{_shown(report.capacity_gain)}  blocks / held blocks",
        "",
        f"{'evicted entries: reclaimed':<28}{_shown(report.savings.reclaimed)}",
        f"{'  stranded in held blocks':<28}{_shown(report.savings.stranded)}",
        f"{'  kept alive by other rows':<28}{_shown(report.savings.unshared)}",
        f"{'effective tokens per block':<28}{_shown(report.effective_tokens_per_block)}",
        f"{'effective rows':<28}{_shown(report.effective_rows)}",
    ]
    if report.admission_count is not None:
        lines.append(
            f"{'requests admitted':<28}{report.admission_count:>7}  of "
            f"{report.blocks_per_request} blocks each"
        )
    if report.pool_usage is not None:
        lines.append(
            f"{'pool usage':<28}{_shown(report.pool_usage.before)}  before, "
            f"{_shown(report.pool_usage.after).strip()} after"
        )
    if report.held_bytes is not None:
        lines.append(
            f"{'bytes':<28}{report.held_bytes:>7}  held, {report.reclaimed_bytes} reclaimed"
        )
    lines += [
        "",
        f"peak: {census.num_blocks} blocks before eviction, unchanged by it",
        report.signature,
    ]
    return lines


def _row(name: str, share: float, blocks: int, remark: str) -> str:
    return f"{name:<28}{_shown(share)}  {blocks} blocks, {remark}"


def _shown(value: float) -> str:
    return f"{value:7.3f}" if math.isfinite(value) else f"{value!s:>7}"
