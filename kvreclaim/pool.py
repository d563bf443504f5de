"""BlockPool: how an allocator hands out and takes back memory."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import attrs

from kvreclaim import _checks

MAX_BLOCK_SIZE: Final = _checks.MAX_BLOCK_SIZE

FREES: Final = ("any", "back", "front", "none")
COMPACTORS: Final = ("evacuate", "evacuate_rows", "fill", "pack", "pack_rows", "none")

# Which compactors leave their survivors where the freeing rule can use the emptied blocks.
_LEGAL_COMPACTORS: Final = {
    "any": COMPACTORS,
    "back": ("fill", "pack", "pack_rows", "none"),
    "front": ("none",),
    "none": ("none",),
}


def _block_size(value: object) -> int:
    return _checks.as_block_size(value)


def _shared_axes(value: object) -> str:
    return _checks.as_shared_axes("shared_axes", value)


def _frees(value: object) -> str:
    return _checks.as_choice("frees", value, FREES)


def _open_tail(value: object) -> bool:
    return _checks.as_flag("open_tail", value)


def _compactor(value: object) -> str:
    return _checks.as_choice("compactor", value, COMPACTORS)


def _total_blocks(value: object) -> int | None:
    return None if value is None else _checks.as_count("total_blocks", value)


def _reserved_blocks(value: object) -> int:
    return _checks.as_count("reserved_blocks", value)


def _watermark_blocks(value: object) -> int:
    return _checks.as_count("watermark_blocks", value)


def _entry_bytes(value: object) -> int | None:
    return None if value is None else _checks.as_count("entry_bytes", value, minimum=1)


@attrs.frozen
class BlockPool:
    """How an allocator hands out blocks, and which of them it can take back.

    Parameters
    ----------
    block_size
        Slots (token positions) of one block, 1 to 65,535; any integer.
    shared_axes
        Letters of the mask axes whose rows live in the same block. ``"lh"``: one block holds all
        layers and heads (vLLM). ``"h"``: a block table for each layer. ``""``: a table for each
        (layer, head) (KV-Compress). The default flatters no method. Stored sorted.
    frees
        Which empty blocks the runtime takes back without copying: ``"any"``; only the run at the
        ``"back"`` of a table (vAttention, KV-Compress); only the run at the ``"front"`` (plain
        sliding windows); ``"none"`` (masked attention).
    open_tail
        True: a partly written last block stays with its sequence even when all its tokens are
        dead, since the next token is written there.
    compactor
        How survivors are moved: ``"evacuate"`` empties the emptiest blocks into the holes of the
        others, whole slots at a time; ``"evacuate_rows"`` keeps the blocks with most live entries
        and moves the rest row by row; ``"fill"`` fills holes from the end of the table;
        ``"pack"`` slides every survivor forward in order; ``"pack_rows"`` packs each row by
        itself; ``"none"``. When it is not given, it is the cheapest that ``frees`` allows.
    total_blocks
        Blocks of the whole pool; None: exactly the blocks that the masks hold.
    reserved_blocks
        Blocks of a sized pool that are never handed out (a null block).
    watermark_blocks
        Blocks that admission must leave free.
    entry_bytes
        Bytes of one entry, K and V of one token in one row; None: no byte figures.
        `entry_bytes_for` computes it.

    Raises
    ------
    TypeError, ValueError
        Where a field is of the wrong kind or out of range, or two fields contradict each other.

    Examples
    --------
    >>> BlockPool(16).shared_axes
    'hl'
    >>> BlockPool(16, frees="back").compactor
    'fill'
    >>> BlockPool(16, total_blocks=513, reserved_blocks=1).num_usable_blocks
    512
    """

    block_size: int = attrs.field(converter=_block_size)
    shared_axes: str = attrs.field(default="lh", converter=_shared_axes, kw_only=True)
    frees: str = attrs.field(default="any", converter=_frees, kw_only=True)
    open_tail: bool = attrs.field(default=False, converter=_open_tail, kw_only=True)
    compactor: str = attrs.field(converter=_compactor, kw_only=True)
    total_blocks: int | None = attrs.field(default=None, converter=_total_blocks, kw_only=True)
    reserved_blocks: int = attrs.field(default=0, converter=_reserved_blocks, kw_only=True)
    watermark_blocks: int = attrs.field(default=0, converter=_watermark_blocks, kw_only=True)
    entry_bytes: int | None = attrs.field(default=None, converter=_entry_bytes, kw_only=True)

    @compactor.default
    def _cheapest_compactor(self) -> str:
        return _LEGAL_COMPACTORS[self.frees][0]

    def __attrs_post_init__(self) -> None:
        """Refuse fields that contradict each other."""
        legal = _LEGAL_COMPACTORS[self.frees]
        if self.compactor not in legal:
            raise ValueError(
                f"compactor must be one of {', '.join(map(repr, legal))} where "
                f"frees={self.frees!r}, since the runtime takes back no others of the blocks it "
                f"empties; got {self.compactor!r}; write one of these, or leave it out."
            )
        if self.total_blocks is None:
            return
        if self.reserved_blocks > self.total_blocks:
            raise ValueError(
                f"reserved_blocks must be at most total_blocks ({self.total_blocks}); got "
                f"{self.reserved_blocks}; write a larger pool or reserve fewer."
            )
        if self.watermark_blocks > self.total_blocks - self.reserved_blocks:
            raise ValueError(
                f"watermark_blocks must be at most the {self.total_blocks - self.reserved_blocks} "
                f"usable blocks (total_blocks - reserved_blocks); got {self.watermark_blocks}; "
                "write a lower watermark or a larger pool."
            )

    @property
    def num_usable_blocks(self) -> int | None:
        """Blocks that can be handed out: total less reserved; None without a size."""
        return None if self.total_blocks is None else self.total_blocks - self.reserved_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks a table of ``num_tokens`` tokens owns: the quotient rounded up.

        Examples
        --------
        >>> BlockPool(16).num_blocks_for(33)
        3
        """
        return -(-_checks.as_count("num_tokens", num_tokens) // self.block_size)

    def replace(self, **changes: Any) -> BlockPool:  # noqa: ANN401  # any field's value may come
        """Return a pool with some fields changed; a compactor at its default follows ``frees``.

        Examples
        --------
        >>> BlockPool(16).replace(frees="none").compactor
        'none'
        """
        fields = attrs.asdict(self)
        unknown = sorted(set(changes) - set(fields))
        if unknown:
            raise TypeError(
                f"replace must be given fields of a BlockPool ({', '.join(fields)}); got "
                f"{', '.join(unknown)}; write one of these."
            )
        if self.compactor == self._cheapest_compactor():
            del fields["compactor"]
        return BlockPool(**(fields | changes))


PoolLike: TypeAlias = BlockPool | int
"""A pool, or a plain integer that stands for ``BlockPool(block_size)``."""


def as_pool(pool: PoolLike) -> BlockPool:
    """Return the pool, made from a block size where an integer came."""
    if isinstance(pool, BlockPool):
        return pool
    try:
        return BlockPool(pool)
    except TypeError:
        raise TypeError(
            f"pool must be a BlockPool or a block size; got {type(pool).__name__} {pool!r}; write "
            "such as BlockPool(16) or 16."
        ) from None


def entry_bytes_for(head_dim: int, dtype_bytes: int = 2, *, v_head_dim: int | None = None) -> int:
    """Return the bytes of one entry: K and V of one token in one kv head of one layer.

    Parameters
    ----------
    head_dim
        Elements of a key; of a value too, unless `v_head_dim` is given.
    dtype_bytes
        Bytes of one element: 2 for float16 and bfloat16, 1 for 8-bit formats.
    v_head_dim
        Elements of a value where it differs from a key.

    Examples
    --------
    >>> entry_bytes_for(128)
    512
    """
    key = _checks.as_count("head_dim", head_dim, minimum=1)
    value = key if v_head_dim is None else _checks.as_count("v_head_dim", v_head_dim, minimum=1)
    return (key + value) * _checks.as_count("dtype_bytes", dtype_bytes, minimum=1)


def entry_bytes_mla(kv_lora_rank: int, rope_dim: int, dtype_bytes: int = 2) -> int:
    """Return the bytes of one entry under multi-head latent attention: one latent for all heads.

    Examples
    --------
    DeepSeek-V3:

    >>> entry_bytes_mla(512, 64)
    1152
    """
    rank = _checks.as_count("kv_lora_rank", kv_lora_rank, minimum=1)
    rope = _checks.as_count("rope_dim", rope_dim)
    return (rank + rope) * _checks.as_count("dtype_bytes", dtype_bytes, minimum=1)


def block_size_from_bytes(
    page_bytes: int, kv_heads: int, head_dim: int, dtype_bytes: int = 2
) -> int:
    """Return the slots of a page that holds K, or V, of one layer (vAttention's pages).

    Examples
    --------
    A 2 MiB page, 8 kv heads of 128 elements in 16 bits:

    >>> block_size_from_bytes(2 * 1024 * 1024, 8, 128)
    1024
    """
    page = _checks.as_count("page_bytes", page_bytes, minimum=1)
    slot = (
        _checks.as_count("kv_heads", kv_heads, minimum=1)
        * _checks.as_count("head_dim", head_dim, minimum=1)
        * _checks.as_count("dtype_bytes", dtype_bytes, minimum=1)
    )
    if page < slot:
        raise ValueError(
            f"page_bytes must hold at least one token of {slot} bytes; got {page}; write a larger "
            "page."
        )
    return page // slot
