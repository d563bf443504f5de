"""What is measured: the policies, the shares that they keep, and how blocks are laid out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

DATA: Final = Path(__file__).parent / "data"
"""The folder of the tables, the masks and the manifest."""

PUBLISHED: Final = (
    "streaming_llm",
    "snapkv",
    "h2o",
    "tova",
    "knorm",
    "ada_kv",
    "pyramid_kv",
    "chunk_kv_16",
    "chunk_kv_20",
    "random",
)
"""Policies as published, each (layer, kv head) as its method says; and chance."""

OURS: Final = (
    "snapkv_common",
    "whole_block_head",
    "whole_block_layer",
    "whole_block_all",
    "evict_for_blocks_50",
    "evict_for_blocks_75",
)
"""Choices by the scores of SnapKV that look at blocks, or at all rows in common."""

POLICIES: Final = PUBLISHED + OURS

SNAPKV_WINDOW: Final = 64
SNAPKV_KERNEL: Final = 5
"""Of SnapKV and all that choose by its scores, as kvpress has them: the last queries, which stay
and by whose attention it chooses, and over how many tokens that is averaged."""

RATIOS: Final = (0.9, 0.75, 0.6, 0.5, 0.35, 0.25, 0.15, 0.1)
"""Shares of the context that a policy is told to keep."""

FULL_RATIOS: Final = (0.75, 0.5, 0.25)
"""Those whose masks are stored, and counted at every block size."""

BLOCK_SIZES: Final = (4, 8, 16, 32, 64, 128)
BLOCK_SIZE: Final = 16
"""The block size at which all ratios are counted."""

TABLES: Final[Mapping[str, str]] = MappingProxyType({"head": "", "layer": "h", "all": "lh"})
"""Which rows live in one block: the letters of the mask's axes that a block table covers.

A table for each (layer, kv head); for each layer; one for all, which is vLLM's layout.
"""

AXES: Final = "lht"
"""Axes of a mask: layer, kv head, token."""

COMPACTORS: Final = ("evacuate", "evacuate_rows", "fill", "pack", "pack_rows")

STATES: Final = ("in place", "packed")
"""How the survivors lie when blocks are given back: where they were written, or packed."""

REQUEST_TOKENS: Final = 512
"""Tokens of each new request that asks for the blocks that came free."""
