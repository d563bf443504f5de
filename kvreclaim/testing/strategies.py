"""Keep-masks and pools for Hypothesis, which is imported when a strategy is made.

``pip install 'kvreclaim[hypothesis]'``. Where Hypothesis and kvreclaim are installed,
``hypothesis.strategies.from_type(BlockPool)`` is `pools` without anything being imported by hand.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim._formats.libraries import imported
from kvreclaim.pool import COMPACTORS, FREES, BlockPool

if typing.TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

# Small or common sizes, and one that is no multiple of 8.
_BLOCK_SIZES: Final = (1, 2, 3, 4, 8, 16, 24, 32, 64)

# From the simplest, which Hypothesis prefers.
_KINDS: Final = ("none", "all", "window", "blocks", "random", "rare", "most")


def keep_masks(
    axes: str = "t",
    *,
    min_tokens: int = 0,
    max_tokens: int = 96,
    max_rows: int = 3,
    block_size: int = 16,
    ragged: bool = True,
) -> SearchStrategy[NDArray[np.bool_]]:
    """Return a strategy for keep-masks, of the kinds that eviction policies make.

    All or no tokens; sinks and a window; whole blocks; scattered tokens, few or many of them. Rows
    are alike or not, and where it is `ragged` they may end early, in tokens that none keeps. A mask
    shrinks to few tokens, of which none is kept.

    Parameters
    ----------
    axes
        One letter for each axis of the masks, ``t`` for tokens.
    min_tokens, max_tokens
        The least and the most tokens.
    max_rows
        The largest size of each other axis; the smallest is 1.
    block_size
        Tokens of the whole blocks, counted from token 0.
    ragged
        False: no row ends early but by chance.

    Raises
    ------
    TypeError, ValueError
        Where an argument is of the wrong kind or out of range; where Hypothesis is not installed.

    Examples
    --------
    >>> from hypothesis import given
    >>> from kvreclaim import physical_reclaim
    >>> @given(keep_masks("bt", min_tokens=1), pools(shared_axes=[""]))
    ... def a_share_of_the_blocks_comes_back(keep, pool):
    ...     assert 0 <= physical_reclaim(keep, pool, axes="bt") <= 1
    >>> a_share_of_the_blocks_comes_back()
    """
    imported("keep_masks", "hypothesis", "hypothesis")
    from hypothesis import strategies as st

    letters = _letters(axes)
    least = _checks.as_count("min_tokens", min_tokens)
    most = _checks.as_count("max_tokens", max_tokens, minimum=least)
    largest = _checks.as_count("max_rows", max_rows, minimum=1)
    size = _checks.as_block_size(block_size)
    may_end = _checks.as_flag("ragged", ragged)

    def row(draw: DrawFn, kind: str, tokens: int) -> NDArray[np.bool_]:
        if kind == "window":
            sink, start = draw(st.integers(0, tokens)), draw(st.integers(0, tokens))
            position = np.arange(tokens)
            return (position < sink) | (position >= tokens - start)
        if kind == "blocks":
            return np.repeat(bits(draw, -(-tokens // size)), size)[:tokens]
        if kind == "rare":
            return bits(draw, tokens) & bits(draw, tokens) & bits(draw, tokens)
        if kind == "most":
            return bits(draw, tokens) | bits(draw, tokens) | bits(draw, tokens)
        return bits(draw, tokens) if kind == "random" else np.full(tokens, kind == "all")

    def bits(draw: DrawFn, number: int) -> NDArray[np.bool_]:
        packed = draw(st.binary(min_size=-(-number // 8), max_size=-(-number // 8)))
        return np.unpackbits(np.frombuffer(packed, np.uint8), count=number).view(np.bool_)

    @st.composite
    def masks(draw: DrawFn) -> NDArray[np.bool_]:
        tokens = draw(st.integers(least, most))
        shape = [draw(st.integers(1, largest)) for letter in letters if letter != "t"]
        kind = draw(st.sampled_from(_KINDS))
        keep = np.empty([*shape, tokens], np.bool_)
        first = row(draw, kind, tokens)
        alike = draw(st.booleans())
        ends = may_end and draw(st.booleans())
        for index in np.ndindex(*shape):
            keep[index] = first if alike or not any(index) else row(draw, kind, tokens)
            if ends:
                keep[index][draw(st.integers(0, tokens)) :] = False
        return np.ascontiguousarray(np.moveaxis(keep, -1, letters.index("t")))

    return masks()


def pools(
    *,
    block_sizes: Sequence[int] = _BLOCK_SIZES,
    shared_axes: Sequence[str] = ("", "h", "l", "lh"),
    frees: Sequence[str] = FREES,
    sized: bool = False,
) -> SearchStrategy[BlockPool]:
    """Return a strategy for block pools: every combination of fields that is legal, and no other.

    A pool shrinks to small blocks, a table for each row, and any empty block coming back.

    Parameters
    ----------
    block_sizes, shared_axes, frees
        The values of these fields, the simplest first.
    sized
        True: some pools have `total_blocks`, and with it blocks that are reserved or held back by a
        watermark. Masks may not fit into such a pool, which `admission_count` refuses.

    Raises
    ------
    TypeError, ValueError
        For values that a BlockPool refuses; where Hypothesis is not installed.

    Examples
    --------
    >>> from hypothesis import given
    >>> @given(pools(frees=["back"]))
    ... def a_compactor_fills_from_the_back(pool):
    ...     assert not pool.compactor.startswith("evacuate")
    >>> a_compactor_fills_from_the_back()
    """
    imported("pools", "hypothesis", "hypothesis")
    from hypothesis import strategies as st

    sizes = [_checks.as_block_size(size) for size in _some("block_sizes", block_sizes)]
    letters = [
        _checks.as_shared_axes("shared_axes", some) for some in _some("shared_axes", shared_axes)
    ]
    rules = [_checks.as_choice("frees", rule, FREES) for rule in _some("frees", frees)]
    may_be_sized = _checks.as_flag("sized", sized)
    pairs = [(rule, compactor) for rule in rules for compactor in _legal_compactors(rule)]

    @st.composite
    def legal(draw: DrawFn) -> BlockPool:
        rule, compactor = draw(st.sampled_from(pairs))
        total, reserved, watermark = None, 0, 0
        if may_be_sized and draw(st.booleans()):
            total = draw(st.integers(0, 4096))
            reserved = draw(st.integers(0, min(total, 4)))
            watermark = draw(st.integers(0, min(total - reserved, 64)))
        return BlockPool(
            draw(st.sampled_from(sizes)),
            shared_axes=draw(st.sampled_from(letters)),
            frees=rule,
            open_tail=draw(st.booleans()),
            compactor=compactor,
            total_blocks=total,
            reserved_blocks=reserved,
            watermark_blocks=watermark,
            entry_bytes=draw(st.sampled_from([None, 512, 1152])),
        )

    return legal()


def _legal_compactors(frees: str) -> list[str]:
    """Return the compactors that BlockPool takes beside this freeing rule."""
    legal = []
    for compactor in COMPACTORS:
        try:
            BlockPool(1, frees=frees, compactor=compactor)
        except ValueError:
            continue
        legal.append(compactor)
    return legal


def _letters(axes: object) -> str:
    """Return the letters of an array's axes, ``t`` among them."""
    ndim = len(axes) if isinstance(axes, str) else 1
    return _checks.as_score_axes(axes, (0,) * max(ndim, 1), name="the masks", last="t", of="")


def _some(name: str, values: object) -> list[object]:
    """Return at least one value to choose from."""
    items = _checks.as_items(name, values, "values to choose from", "write a list of them")
    if not items:
        raise ValueError(f"{name} must have a value to choose; got none; leave it out for all.")
    return items
