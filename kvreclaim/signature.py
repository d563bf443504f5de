"""Signature: under which pool a figure holds, in one line that fits beside it."""

from __future__ import annotations

import re
from typing import Final

import attrs

from kvreclaim import _checks
from kvreclaim.pool import BlockPool

_VERSION: Final = re.compile(r"[0-9A-Za-z.!+_-]+")
_FREES: Final = {
    "any": "an empty block comes back wherever it lies in its table",
    "back": "only the empty blocks at the back of a table come back",
    "front": "only the empty blocks at the front of a table come back",
    "none": "no block comes back before its sequence ends",
}
_MOVES: Final = {
    "evacuate": "compaction empties the emptiest blocks, slot by slot",
    "evacuate_rows": "compaction empties the emptiest blocks, row by row",
    "fill": "compaction fills holes with tokens from the end of the table",
    "pack": "compaction slides every survivor forward, in order",
    "pack_rows": "compaction packs each row by itself",
    "none": "the runtime has no compaction",
}


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

    def fields(self) -> dict[str, str]:
        """Return the fields as they are written, in their fixed order.

        Examples
        --------
        >>> Signature(BlockPool(16, shared_axes=""), 1, "0.1.0").fields()["share"]
        'none'
        """
        pool = self.pool
        return {
            "B": str(pool.block_size),
            "share": pool.shared_axes or "none",
            "frees": pool.frees,
            "tail": "open" if pool.open_tail else "closed",
            "move": pool.compactor,
            "pool": "full" if pool.total_blocks is None else str(pool.total_blocks),
            "reserved": str(pool.reserved_blocks),
            "watermark": str(pool.watermark_blocks),
            "entry": "-" if pool.entry_bytes is None else str(pool.entry_bytes),
            "rows": str(self.rows),
            "v": self.version,
        }

    def __str__(self) -> str:
        """Return the fields as ``name:value``, in a fixed order, with bars between them."""
        return line_of(self.fields())

    @classmethod
    def parse(cls, text: str) -> Signature:
        """Return the signature that a line spells.

        Raises
        ------
        ValueError
            For a line that no signature writes.
        """
        if not isinstance(text, str):
            raise TypeError(
                f"text must be the line that a signature prints; got {_checks.shown(text)}; write "
                "str(...) of it."
            )
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
                rows=_checks.as_count("rows", int(fields["rows"])),
                version=_as_version(fields["v"]),
            )
        except (KeyError, ValueError) as error:
            why = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"text must be a signature such as {cls(BlockPool(16), 1, '0.1.0')}; got {text!r} "
                f"({why}); copy it from a report."
            ) from None
        if str(signature) != text.strip():
            raise ValueError(
                f"text must be a signature as it is written, {signature}; got {text!r}; copy it "
                "from a report."
            )
        return signature

    def explain(self) -> str:
        """Return a line for each field: as it is written, and what it means.

        Examples
        --------
        >>> print(Signature(BlockPool(16), 90, "0.1.0").explain().splitlines()[0])
        B:16               a block holds 16 token slots
        """
        pool = self.pool
        named = {"h": "kv heads", "l": "layers"}
        shared = ", ".join(named.get(c, f"axis {c}") for c in reversed(pool.shared_axes))
        tail = "never comes back in place" if pool.open_tail else "comes back like others"
        meanings = (
            f"a block holds {pool.block_size} token slots",
            f"one block holds all rows of {shared}"
            if shared
            else "every row has a block table of its own",
            _FREES[pool.frees],
            f"a partly written last block {tail}",
            _MOVES[pool.compactor],
            "the pool has exactly the blocks that the masks hold"
            if pool.total_blocks is None
            else f"the pool has {pool.total_blocks} blocks",
            f"blocks of a sized pool that are never handed out: {pool.reserved_blocks}",
            f"blocks that admission leaves free: {pool.watermark_blocks}",
            "bytes of an entry are not given: no byte figures"
            if pool.entry_bytes is None
            else f"K and V of one token in one row take {pool.entry_bytes} bytes",
            f"rows (of one layer and kv head) in a block table: {self.rows}"
            if self.rows
            else "no block table was counted",
            f"counted by kvreclaim {self.version}",
        )
        return "\n".join(
            f"{name + ':' + value:<18} {meaning}"
            for (name, value), meaning in zip(self.fields().items(), meanings, strict=True)
        )


def _as_version(text: str) -> str:
    """Return a version as packages spell it: no letters that a terminal would obey."""
    if not _VERSION.fullmatch(text):
        raise ValueError(f"v must be a version; got {text!r}")
    return text


def line_of(fields: dict[str, str]) -> str:
    """Return the line of a signature whose values are given by name."""
    return "|".join(f"{name}:{value}" for name, value in fields.items())
