"""The masks that are counted, what is asked of them, and how large a run is."""

from __future__ import annotations

import math
from typing import Final

import attrs
import numpy as np
from numpy.typing import NDArray

from kvreclaim import (
    BlockPool,
    Census,
    admission_count,
    fragmentation,
    logical_saving,
    moved_tokens_per_block,
    packed_reclaim,
    physical_reclaim,
    reclaim_efficiency,
)

MIB: Final = 1 << 20
TOKENS: Final = 1 << 17  # of a long row
ROWS: Final = 256  # of such rows a mask of 32 MiB has: 32 layers x 8 kv heads
SHORT: Final = 4096  # tokens of a short row
BLOCK: Final = 16  # slots of a block where nothing else is said
BLOCK_SIZES: Final = (1, 8, 12, 16, 24, 32, 64, 100, 128, 256, 1024)


@attrs.frozen(kw_only=True)
class Scale:
    """How large a run is."""

    rounds: int
    block_sizes: tuple[int, ...]  # of the main table
    growth: tuple[int, ...]  # tokens of the masks that growth is fitted to
    memory: tuple[int, ...]  # MiB of the masks whose peak of memory is looked for
    file: int  # MiB of the mask in a file
    processes: int  # in which each of the imports is timed
    others: tuple[int, ...]  # block sizes at which other ways are timed
    torch: bool


FULL: Final = Scale(
    rounds=11,
    block_sizes=BLOCK_SIZES,
    growth=tuple(1 << bits for bits in range(20, 31, 2)),
    memory=(4, 64, 1024),
    file=1024,
    processes=25,
    others=(8, 16, 64, 128),
    torch=True,
)
QUICK: Final = Scale(
    rounds=7,
    block_sizes=(8, 12, 16, 24, 32, 64, 100, 1024),
    growth=tuple(1 << bits for bits in (20, 22, 24, 27)),
    memory=(4, 64),
    file=64,
    processes=15,
    others=(16,),
    torch=False,
)


def half(*shape: int, seed: int = 0) -> NDArray[np.bool_]:
    """Return a mask of which each token stays by the toss of a coin."""
    size = math.prod(shape)
    bits = np.random.default_rng(seed).integers(0, 256, -(-size // 8), dtype=np.uint8)
    return np.unpackbits(bits, count=size).view(np.bool_).reshape(shape)


def window(*shape: int) -> NDArray[np.bool_]:
    """Return a mask that keeps four sinks and a recent window, half of each row in all."""
    keep = np.zeros(shape, np.bool_)
    keep[..., :4] = True
    keep[..., 4 - shape[-1] // 2 :] = True
    return keep


def whole_blocks(*shape: int, block_size: int = BLOCK) -> NDArray[np.bool_]:
    """Return a mask of which each block stays, or goes, by the toss of a coin."""
    blocks = half(*shape[:-1], shape[-1] // block_size)
    return blocks.repeat(block_size, axis=-1)


def apart(block_size: int, **fields: str) -> BlockPool:
    """Return a pool with a block table for each row."""
    return BlockPool(block_size, shared_axes="", **fields)


def six(census: Census) -> tuple[float, ...]:
    """Return the six metrics of a census."""
    return (
        logical_saving(census),
        physical_reclaim(census),
        reclaim_efficiency(census),
        fragmentation(census),
        moved_tokens_per_block(census),
        admission_count(census, blocks_per_request=8),
    )


def seven(census: Census) -> tuple[float, ...]:
    """Return the six metrics, and what packing would give back."""
    return (*six(census), packed_reclaim(census))
