"""The rows of the three tables, and their CSV files: written sorted, read with every cell checked.

A number is written with `DIGITS` significant digits, an undefined one as an empty cell.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import attrs

from benchmarks.evidence.settings import POLICIES, STATES, TABLES

DIGITS: Final = 6


class Context(NamedTuple):
    """A document of which a model has read so many tokens."""

    model: str
    document: str
    tokens: int

    @property
    def stem(self) -> str:
        """The name of its file of masks, without the suffix."""
        return f"{self.model}__{self.document}__{self.tokens}"

    @classmethod
    def of_stem(cls, stem: str) -> Context:
        """Return the context of a file of masks, by the file's name without the suffix."""
        parts = stem.split("__")
        if len(parts) != 3 or not all(parts) or not parts[2].isdecimal():  # noqa: PLR2004  # names
            raise ValueError(
                f"stem must be MODEL__DOCUMENT__TOKENS; got {stem!r}; name the file of masks so."
            )
        return cls(parts[0], parts[1], int(parts[2]))


@attrs.frozen(kw_only=True)
class QualityRow:
    """What one mask costs the model's answers.

    Parameters
    ----------
    model, document, tokens
        The context.
    policy, ratio
        Who chose the mask, and the share that it was told to keep.
    retained
        The share that the mask keeps.
    loss_full, loss_empty, loss
        Mean nats over the 128 tokens behind the context: with all of the context, with none of it,
        and with this mask.
    kl
        KL(full || reduced) over these tokens, in mean nats.
    top1
        Share of them whose most likely token is the same.
    probe_loss_full, probe_loss
        Mean nats of the answers to planted keys: with all of the context, and with this mask.
    probes, probes_right_full, probes_right
        Planted keys, and how many greedy decoding gets wholly right.
    """

    KEY: ClassVar[tuple[str, ...]] = ("model", "document", "tokens", "policy", "ratio")

    model: str
    document: str
    tokens: int
    policy: str
    ratio: float
    retained: float
    loss_full: float
    loss_empty: float
    loss: float
    kl: float
    top1: float
    probe_loss_full: float
    probe_loss: float
    probes: int
    probes_right_full: int
    probes_right: int


@attrs.frozen(kw_only=True)
class ReclaimRow:
    """What one mask gives back under one layout of blocks.

    Parameters
    ----------
    model, document, tokens, policy, ratio
        As in `QualityRow`.
    tables
        Which rows share blocks: a key of `settings.TABLES`.
    block_size, blocks
        Slots of a block, and blocks of all tables.
    logical_saving
        Share of the entries that the mask evicts.
    dead_in_all_rows
        Share of the slots that every row of their table evicts; what `logical_saving` has more is
        lost to sharing, and what comes back less, to the size of a block.
    physical_reclaim, packed_reclaim
        Share of the blocks that comes back in place, and with every row packed by itself.
    fragmentation, memory_waste
        Share of the slots, and of the memory, of blocks held in place that holds nothing live.
    reclaim_min, reclaim_max
        Smallest and largest `physical_reclaim` of a table.
    moved_per_block_evacuate, ...
        Slots that a full compaction moves for each block that it frees beyond those free in place;
        undefined where it frees none. By rows: entries moved over rows.
    decode_steps_evacuate, ...
        Its copy in decode steps, of which each reads every live entry once.
    """

    KEY: ClassVar[tuple[str, ...]] = (*QualityRow.KEY, "tables", "block_size")

    model: str
    document: str
    tokens: int
    policy: str
    ratio: float
    tables: str
    block_size: int
    blocks: int
    logical_saving: float
    dead_in_all_rows: float
    physical_reclaim: float
    packed_reclaim: float
    fragmentation: float
    memory_waste: float
    reclaim_min: float
    reclaim_max: float
    moved_per_block_evacuate: float
    decode_steps_evacuate: float
    moved_per_block_evacuate_rows: float
    decode_steps_evacuate_rows: float
    moved_per_block_fill: float
    decode_steps_fill: float
    moved_per_block_pack: float
    decode_steps_pack: float
    moved_per_block_pack_rows: float
    decode_steps_pack_rows: float


@attrs.frozen(kw_only=True)
class AdmissionRow:
    """What a pool that a model's contexts fill gives to new requests, by our count and vLLM's.

    Parameters
    ----------
    model, policy, ratio, tables, block_size
        As in `ReclaimRow`; the contexts of the model are the running requests.
    state
        How their survivors lie: one of `settings.STATES`.
    pool_blocks
        Blocks of the pool: those of the contexts, before anything was evicted.
    free_blocks, free_blocks_vllm
        Free ones after it: by our census, and of vLLM's own pool.
    admission_count, admitted_vllm
        New requests of `settings.REQUEST_TOKENS` that get their blocks: by our count, and of
        vLLM's own pool until it refuses.
    """

    KEY: ClassVar[tuple[str, ...]] = ("model", "policy", "ratio", "tables", "block_size", "state")

    model: str
    policy: str
    ratio: float
    tables: str
    block_size: int
    state: str
    pool_blocks: int
    free_blocks: int
    free_blocks_vllm: int
    admission_count: int
    admitted_vllm: int


Row: TypeAlias = QualityRow | ReclaimRow | AdmissionRow
AnyRow = TypeVar("AnyRow", QualityRow, ReclaimRow, AdmissionRow)

FILES: Final[dict[str, type[Row]]] = {
    "quality.csv": QualityRow,
    "reclaim.csv": ReclaimRow,
    "admission.csv": AdmissionRow,
}

# What comes first in a file; all others follow in their own order.
_ORDER: Final[dict[str, tuple[str, ...]]] = {
    "policy": POLICIES,
    "tables": tuple(TABLES),
    "state": STATES,
}


def columns(kind: type[Row]) -> tuple[str, ...]:
    """Return the names of a table's columns."""
    return tuple(field.name for field in attrs.fields(kind))


def to_csv(rows: Iterable[AnyRow]) -> str:
    """Return the file of some rows of one kind, at least one, sorted by what names them.

    Raises
    ------
    ValueError
        For no rows, two of one name, or a string that a cell cannot hold.
    """
    ordered = sorted(rows, key=_place)
    if not ordered:
        raise ValueError("rows must hold at least one row; got none; measure something.")
    for row, after in itertools.pairwise(ordered):
        if _key(row) == _key(after):
            raise ValueError(f"rows must differ in {', '.join(row.KEY)}; got {_key(row)} twice.")
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns(type(ordered[0])))
    writer.writerows(map(_cell, attrs.astuple(row)) for row in ordered)
    return out.getvalue()


def from_csv(kind: type[AnyRow], text: str, *, name: str) -> list[AnyRow]:
    """Return the rows of a file's text; `name` is the file's, for errors.

    Raises
    ------
    ValueError
        For other columns, another number of cells, a cell that is not of its column's type, and two
        rows of one name: with the file, the line and the column.
    """
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    expected = list(columns(kind))
    header = next(lines, [])
    if header != expected:
        wrong = next(
            (i for i, pair in enumerate(zip(header, expected, strict=False)) if pair[0] != pair[1]),
            min(len(header), len(expected)),
        )
        got, want = (
            repr(names[wrong]) if wrong < len(names) else "none" for names in (header, expected)
        )
        raise ValueError(f"{name}, line 1, column {wrong + 1}: must be {want}; got {got}.")
    rows: list[AnyRow] = []
    seen: dict[tuple[Any, ...], int] = {}
    for cells in lines:
        where = f"{name}, line {lines.line_num}"
        if len(cells) != len(expected):
            raise ValueError(f"{where}: must have {len(expected)} cells; got {len(cells)}.")
        values: dict[str, Any] = {
            field.name: _value(str(field.type), cell, f"{where}, column {field.name!r}")
            for field, cell in zip(attrs.fields(kind), cells, strict=True)
        }
        row = kind(**values)
        if (first := seen.setdefault(_key(row), lines.line_num)) != lines.line_num:
            names = ", ".join(kind.KEY)
            raise ValueError(f"{where}: must differ in {names}; got those of line {first}.")
        rows.append(row)
    return rows


def _key(row: Row) -> tuple[str | float, ...]:
    return tuple(getattr(row, name) for name in row.KEY)


def _place(row: Row) -> list[tuple[int, str | float]]:
    """Return what a table is sorted by: names in the order of their settings, most kept first."""
    place: list[tuple[int, str | float]] = []
    for name, value in zip(row.KEY, _key(row), strict=True):
        known = _ORDER.get(name, ())
        first = known.index(str(value)) if value in known else len(known)
        place.append((first, -float(value) if name == "ratio" else value))
    return place


def _word(cell: str) -> str:
    if not cell:
        raise ValueError(cell)
    return cell


def _float(cell: str) -> float:
    return float(cell) if cell else math.nan


def _cell(value: str | float) -> str:
    if isinstance(value, float):
        if math.isinf(value):
            raise ValueError(f"rows must hold finite numbers, or nan; got {value}.")
        return "" if math.isnan(value) else f"{value:.{DIGITS}g}"
    return str(value)


def _value(kind: str, cell: str, where: str) -> str | float:
    """Return what a cell holds, in the one way of writing it."""
    read, rule = _READ[kind]
    with contextlib.suppress(ValueError):
        value = read(cell)
        if _cell(value) == cell:
            return value
    raise ValueError(f"{where}: must be {rule}; got {cell!r}.")


_READ: Final[dict[str, tuple[Callable[[str], str | float], str]]] = {
    "str": (_word, "a word"),
    "int": (int, "an integer"),
    "float": (_float, f"a number of at most {DIGITS} significant digits, or empty"),
}
