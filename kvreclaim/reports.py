"""Report: every figure of one census in one record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import attrs
from numpy.typing import ArrayLike

from kvreclaim import _checks, metrics
from kvreclaim._render import html, report_rows
from kvreclaim._version import __version__
from kvreclaim.admission import admission_count
from kvreclaim.census import Census, as_census, require_census
from kvreclaim.compaction import compaction_cost
from kvreclaim.metrics import PoolUsage, SavingsBreakdown
from kvreclaim.pool import BlockPool, PoolLike
from kvreclaim.signature import Signature


@attrs.frozen(kw_only=True)
class Report:
    """Every figure of one census. Shares lie from 0 to 1; nan is undefined.

    A report comes from `report`. Each figure is the one that the function of its name returns; two
    reports are equal where their censuses and the two fields below it are.

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
    version
        Version of kvreclaim that counted.
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
    version: str = attrs.field(eq=False)

    @classmethod
    def from_census(
        cls,
        census: Census,
        *,
        absent_axes: str | None = None,
        blocks_per_request: int | None = None,
        version: str | None = None,
    ) -> Report:
        """Return every figure of a census, with what the census does not tell.

        Raises
        ------
        ValueError
            Where a pool with a size is too small for the masks.
        """
        require_census(census)
        request = (
            None
            if blocks_per_request is None
            else _checks.as_count("blocks_per_request", blocks_per_request, minimum=1)
        )
        pool = census.pool
        block_bytes = None
        if pool.entry_bytes is not None:
            block_bytes = pool.entry_bytes * pool.block_size * census.rows_per_table
        return cls(
            census=census,
            absent_axes=absent_axes,
            blocks_per_request=request,
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
            if request is None
            else admission_count(census, blocks_per_request=request),
            pool_usage=None if pool.total_blocks is None else metrics.pool_usage(census),
            held_bytes=None if block_bytes is None else block_bytes * census.num_held_blocks,
            reclaimed_bytes=None if block_bytes is None else block_bytes * census.num_freed_blocks,
            version=__version__ if version is None else version,
        )

    @property
    def signature(self) -> str:
        """Under which pool the figures hold."""
        return str(Signature(self.census.pool, self.census.rows_per_table, self.version))

    def figures(self) -> dict[str, float | int | None]:
        """Return every figure by name; None where the pool, or the caller, asks for none."""
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
            "pinned": self.savings.pinned,
            "effective_tokens_per_block": self.effective_tokens_per_block,
            "effective_rows": self.effective_rows,
            "admission_count": self.admission_count,
            "pool_usage_before": None if usage is None else usage.before,
            "pool_usage_after": None if usage is None else usage.after,
            "held_bytes": self.held_bytes,
            "reclaimed_bytes": self.reclaimed_bytes,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return signature, metrics and counts as built-in numbers; an undefined metric is None.

        Infinite ones are None too, since JSON has neither. `from_dict` reads it back.
        """
        return {
            "signature": self.signature,
            "absent_axes": self.absent_axes,
            "blocks_per_request": self.blocks_per_request,
            "metrics": {name: _finite(value) for name, value in self.figures().items()},
            "counts": {
                name: list(value) if isinstance(value, tuple) else value
                for name, value in _counts(self.census).items()
            },
        }

    def to_json(self) -> str:
        """Return `to_dict` as a line of JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Report:
        """Return the report that `to_dict` wrote, its figures made anew of its counts.

        Raises
        ------
        ValueError
            For anything else, and for figures that are not those of the counts beside them.

        Examples
        --------
        >>> figures = report([1, 1, 0, 0, 0, 1, 0, 0], 2)
        >>> Report.from_dict(figures.to_dict()) == figures
        True
        """
        try:
            signature = Signature.parse(fields["signature"])
            names = [field.name for field in attrs.fields(Census) if field.name != "pool"]
            counts = {name: fields["counts"][name] for name in names}
            made = cls.from_census(
                Census.from_dict({"pool": attrs.asdict(signature.pool), **counts}),
                absent_axes=_as_absent_axes(fields["absent_axes"], signature.pool),
                blocks_per_request=fields["blocks_per_request"],
                version=signature.version,
            )
            again = made.to_dict()
            wrong = {
                name: (fields[part].get(name, value), value)
                for part in ("metrics", "counts")
                for name, value in again[part].items()
                if fields[part].get(name, value) != value
            }
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            reason = f"nothing named {error}" if isinstance(error, KeyError) else error
            raise ValueError(
                f"fields must be what Report.to_dict returned; got others ({reason}); report the "
                "masks anew."
            ) from None
        if again["signature"] != str(signature):
            wrong["rows"] = (signature.rows, made.census.rows_per_table)
        for name, (got, value) in wrong.items():
            raise ValueError(
                f"{name} must be {value}, as the counts in fields have it; got {got!r}; report the "
                "masks anew."
            )
        return made

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Return the report that `to_json` wrote, as `from_dict` does."""
        return cls.from_dict(read_json(text))

    def __str__(self) -> str:
        """Return the figures as a table for a terminal of 80 columns."""
        return "\n".join(_lines(self))

    def _repr_html_(self) -> str:
        """Return the figures as a table for a notebook, with why one is undefined."""
        return _html(self)


def report(
    keep_or_census: ArrayLike | Census,
    pool: PoolLike | None = None,
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
    pinned: ArrayLike = 0,
    blocks_per_request: int | None = None,
) -> Report:
    """Return every figure of a keep-mask, or of a census, under a pool.

    Parameters
    ----------
    keep_or_census, pool, axes, lengths, offset
        As in `logical_saving`.
    pinned
        As in `take_census`; only with a keep-mask.
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
    census = as_census(
        keep_or_census, pool, axes=axes, lengths=lengths, offset=offset, pinned=pinned
    )
    absent = None if isinstance(keep_or_census, Census) else absent_axes(census.pool, axes)
    return Report.from_census(census, absent_axes=absent, blocks_per_request=blocks_per_request)


def absent_axes(pool: BlockPool, axes: str | None) -> str:
    """Return the letters that share blocks under a pool but that a mask does not have."""
    return "".join(letter for letter in pool.shared_axes if letter not in (axes or ""))


def read_json(text: str) -> Any:  # noqa: ANN401  # whatever the text holds
    """Return what JSON text holds, without the NaN and Infinity that JSON does not have."""
    require_text(text)
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (RecursionError, ValueError) as error:
        raise ValueError(
            f"text must be JSON; got another text ({error}); write it with to_json, or with "
            "kvreclaim report --format json."
        ) from None


def require_text(text: object) -> None:
    """Refuse what is no text of JSON, such as the dict that it holds."""
    if not isinstance(text, str):
        raise TypeError(
            f"text must be JSON; got {_checks.shown(text)}; write what to_json returned."
        )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _as_absent_axes(value: object, pool: BlockPool) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value == "".join(c for c in pool.shared_axes if c in value):
        return value
    raise ValueError(f"absent_axes are {value!r}, shared ones {pool.shared_axes!r}")


def _counts(census: Census) -> dict[str, int | tuple[int, ...]]:
    fields = [field.name for field in attrs.fields(Census) if field.name != "pool"]
    derived = [name for name, part in vars(Census).items() if isinstance(part, property)]
    return {name: getattr(census, name) for name in (*fields, *derived)}


def _finite(value: float | None) -> float | int | None:
    return None if value is None or not math.isfinite(value) else value


def _lines(report: Report) -> list[str]:
    saving, reclaim, *groups = report_rows.rows_of(
        report.census, report.figures(), report.blocks_per_request, _number
    )
    lines = report_rows.head_of(report.census, report.absent_axes)
    for group in (saving + reclaim, *groups):
        lines.append("")
        for row in group:
            line = f"{row.label:<28}{_number(row.name, row.value):>7}"
            lines.append(f"{line}  {row.remark}" if row.remark else line)
    return [*lines, "", report_rows.peak_of(report.census), report.signature]


def _number(_: str, value: float | None) -> str:
    return str(value) if value is None or isinstance(value, int) else f"{value:.3f}"


def _html(report: Report) -> str:
    census = report.census

    def in_words(name: str, value: float | None) -> str:
        return "" if value is None else report_rows.in_words(name, value, census)

    rows = report_rows.rows_of(census, report.figures(), report.blocks_per_request, in_words)
    return html.as_html(
        report.signature,
        [],
        [
            [[row.label, in_words(row.name, row.value), row.remark] for row in group]
            for group in (rows.reclaim, rows.saving + rows.shares, rows.others)
        ],
        [*report_rows.head_of(census, report.absent_axes), report_rows.peak_of(census)],
    )
