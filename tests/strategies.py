"""Keep-masks, pools and what goes with them, for Hypothesis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvreclaim import BlockPool

LEGAL_COMPACTORS = {
    "any": ("evacuate", "evacuate_rows", "fill", "pack", "pack_rows", "none"),
    "back": ("fill", "pack", "pack_rows", "none"),
    "front": ("none",),
    "none": ("none",),
}
BLOCK_SIZES = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 64, 100, 300])
SMALL_BLOCKS = st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12, 16])


class Case(NamedTuple):
    """A keep-mask with its pool, ready for `take_census(keep, pool, **said)`."""

    keep: NDArray[np.bool_]
    pool: BlockPool
    said: dict[str, Any]  # axes, lengths, offset


@st.composite
def pools(
    draw: st.DrawFn,
    block_sizes: st.SearchStrategy[int] = BLOCK_SIZES,
    *,
    frees_of: Sequence[str] = tuple(LEGAL_COMPACTORS),
    compactors: Sequence[str] = LEGAL_COMPACTORS["any"],
) -> BlockPool:
    """Every freeing rule with every compactor that it allows, among those named."""
    legal = {
        frees: [compactor for compactor in LEGAL_COMPACTORS[frees] if compactor in compactors]
        for frees in frees_of
    }
    frees = draw(st.sampled_from([frees for frees, some in legal.items() if some]))
    return BlockPool(
        draw(block_sizes),
        shared_axes=draw(st.sampled_from(["", "h", "l", "lh", "s", "hls"])),
        frees=frees,
        open_tail=draw(st.booleans()),
        compactor=draw(st.sampled_from(legal[frees])),
    )


ANY_POOL = pools()


@st.composite
def cases(
    draw: st.DrawFn,
    pool: BlockPool | st.SearchStrategy[BlockPool] = ANY_POOL,
    *,
    multiple_of: int = 0,
) -> Case:
    """Masks of one to four axes in any order, ragged or not, with or without an offset.

    With `multiple_of` n every sequence is a multiple of n whole blocks, without an offset.
    """
    if not isinstance(pool, BlockPool):
        pool = draw(pool)
    unit = multiple_of * pool.block_size or 1
    letters = draw(
        st.lists(st.sampled_from("lhbs"), unique=True, max_size=3).flatmap(
            lambda some: st.permutations([*some, "t"])
        )
    )
    axes = "".join(letters)
    tokens = unit * draw(st.integers(0, 6 if multiple_of else 70))
    sizes = {
        letter: draw(st.integers(1 if letter in pool.shared_axes else 0, 3)) for letter in letters
    } | {"t": tokens}
    shape = tuple(sizes[letter] for letter in letters)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keep = _mask(rng, shape, axes, draw(st.sampled_from(KINDS)))
    outer = tuple(
        sizes[letter] for letter in letters if letter != "t" and letter not in pool.shared_axes
    )
    said: dict[str, Any] = {"axes": axes}
    if 0 in outer:  # nothing to say of no table
        return Case(keep, pool, said)
    if draw(st.booleans()):
        lengths = unit * rng.integers(0, tokens // unit + 1, outer)
        said["lengths"] = lengths
        full = np.broadcast_to(
            lengths.reshape(
                [sizes[c] if c != "t" and c not in pool.shared_axes else 1 for c in letters]
            ),
            [n if c != "t" else 1 for c, n in zip(letters, shape, strict=True)],
        )
        positions = np.arange(tokens).reshape([-1 if c == "t" else 1 for c in letters])
        keep &= positions < full
    if not multiple_of and draw(st.booleans()):
        said["offset"] = rng.integers(0, pool.block_size, outer)
    return Case(keep, pool, said)


@st.composite
def tables(draw: st.DrawFn) -> Case:
    """One table of one to three rows that share blocks, behind an offset."""
    pool = draw(pools(SMALL_BLOCKS)).replace(shared_axes="h")
    shape = (draw(st.integers(1, 3)), draw(st.integers(0, 60)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keep = _mask(rng, shape, "ht", draw(st.sampled_from(KINDS)))
    offset = draw(st.integers(0, pool.block_size - 1))
    return Case(keep, pool, {"axes": "ht", "offset": offset})


KINDS = ("scatter", "runs", "windows", "rare", "alike")


def _mask(
    rng: np.random.Generator, shape: tuple[int, ...], axes: str, kind: str
) -> NDArray[np.bool_]:
    """Masks that free something: scattered ones alone would leave every block alive."""
    token_axis = axes.index("t")
    rows, tokens = math.prod(shape) // max(shape[token_axis], 1), shape[token_axis]
    flat = np.zeros((rows, tokens), bool)
    for row in flat:
        if kind == "scatter":
            row[:] = rng.random(tokens) < rng.random()
        elif kind == "rare":
            row[:] = rng.random(tokens) < 0.05
        elif kind in ("runs", "alike"):
            cuts = np.sort(rng.integers(0, tokens + 1, 6))
            for start, stop in zip(cuts[::2], cuts[1::2], strict=True):
                row[start:stop] = True
        else:
            sink, window = rng.integers(0, tokens + 1, 2)
            row[:sink] = True
            row[tokens - window :] = rng.random() < 0.8
    if kind == "alike" and rows:
        flat[1:] = flat[0] & (rng.random((rows - 1, tokens)) < 0.9)
    moved = [size for axis, size in enumerate(shape) if axis != token_axis]
    return np.moveaxis(flat.reshape([*moved, tokens]), -1, token_axis).copy()
