"""What other tools hold -> keep-masks, and lengths where rows differ in length.

Every function returns a new boolean array whose last axis is tokens, True where a token's KV stays,
and writes to none of its arguments. Arrays may be lists, NumPy arrays, or tensors of torch, jax and
the like.

- positions: `from_indices` (kept), `from_evicted` (evicted), `from_runs` (kept intervals)
- rows end to end: `from_ragged` (booleans), `from_ragged_indices` (kept positions), `from_list`
- what a cache holds: `from_slots` (positions in physical blocks), `from_rows` (keys or values)
- other masks: `from_additive`, `from_evict_mask` (opposite polarity), `from_padded`, `from_packed`
- masks of something larger or smaller: `with_implicit` (tokens that a mask leaves out),
  `to_kv_heads` (query heads), `to_kv_layers` (layers that share a cache), `compose` (two evictions)

A set that is the same in all heads or layers needs no converter, and no memory:

>>> keep = np.array([[True, False], [True, True]])  # layer, token
>>> np.broadcast_to(keep[:, np.newaxis], (2, 8, 2)).shape  # the same in each of 8 heads
(2, 8, 2)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _checks, _rows
from kvreclaim._positions import (
    TRIPLE,
    Rows,
    at_coordinates,
    depth,
    from_positions,
    in_row,
    kept_at,
    rows_of,
)

Triple: TypeAlias = Sequence[ArrayLike] | ArrayLike
"""Three flat integer arrays of one length: batch, head and token of each evicted entry."""


def from_indices(
    indices: ArrayLike | Sequence[ArrayLike], num_tokens: int, fill: int | None = None
) -> NDArray[np.bool_]:
    """Return a keep-mask from the positions that are kept.

    Parameters
    ----------
    indices
        Integers of shape (..., k): kept positions along the last axis, in any order, such as top-k
        gives them; or a list of rows, each with as many positions as it keeps.
    num_tokens
        Tokens of each row.
    fill
        The number that marks an empty place in `indices`, such as -1.

    Returns
    -------
    numpy.ndarray
        Booleans of shape (..., num_tokens), True at the kept positions.

    Raises
    ------
    TypeError, ValueError
        For positions that are no integers, out of range, negative (unless they are `fill`), or
        given twice in a row; for a `fill` that is a position.

    Examples
    --------
    >>> from_indices([[3, 0], [1, -1]], 4, fill=-1)
    array([[ True, False, False,  True],
           [False,  True, False, False]])
    >>> from_indices([[3, 0], [1]], 4).sum()
    np.int64(3)
    """
    return from_positions("indices", indices, _checks.as_count("num_tokens", num_tokens), fill)


def from_evicted(
    evicted: Triple | Sequence[Triple | None] | None,
    shape: Sequence[int],
    fill: int | None = None,
) -> NDArray[np.bool_]:
    """Return a keep-mask from what is evicted: coordinates, or positions.

    Parameters
    ----------
    evicted
        For a `shape` of three axes (batch, head, token), three flat integer arrays of one length,
        the batch, head and token of each evicted entry, or None where nothing is evicted: kvpress's
        ``module.masked_key_indices``. For a `shape` of four axes (layer, batch, head, token), a
        list of these, one for each layer. For any `shape`, evicted positions along the last axis,
        with as many axes as `shape`, otherwise as `from_indices` takes them.
    shape
        The shape of the mask; its last axis is tokens.
    fill
        The number that marks an empty place among positions, such as -1.

    Returns
    -------
    numpy.ndarray
        Booleans of shape `shape`, False where evicted.

    Raises
    ------
    TypeError, ValueError
        For coordinates or positions that are no integers, out of range, negative, or given twice.

    Examples
    --------
    >>> batch, head, token = [0, 0, 0], [1, 0, 1], [2, 0, 1]
    >>> from_evicted((batch, head, token), (1, 2, 3))
    array([[[False,  True,  True],
            [ True, False, False]]])
    >>> from_evicted([None, (batch, head, token)], (2, 1, 2, 3)).sum()
    np.int64(9)
    >>> from_evicted([1, 2], (4,))
    array([ True, False, False,  True])
    """
    sizes = _sizes(shape)
    axes, nested = len(sizes), depth(evicted)
    if axes == TRIPLE and nested < axes:
        return ~at_coordinates("evicted", evicted, sizes)
    if axes == TRIPLE + 1 and nested < axes and isinstance(evicted, Iterable):
        layers = list(evicted)
        if len(layers) != sizes[0]:
            raise ValueError(
                f"evicted must have one item for each of the {sizes[0]} layers of shape {sizes}; "
                f"got {len(layers)}; write None for a layer that evicts nothing."
            )
        gone = [at_coordinates(f"evicted[{i}]", at, sizes[1:]) for i, at in enumerate(layers)]
        return ~np.array(gone, np.bool_).reshape(sizes)
    gone_at = from_positions("evicted", evicted, sizes[-1], fill)
    if gone_at.shape != sizes:
        raise ValueError(
            f"evicted must have a row of positions for each row of shape {sizes}; got rows of shape"
            f" {gone_at.shape[:-1]}; write three flat arrays (batch, head, token) for coordinates, "
            "and the shape (batch, head, token)."
        )
    return ~gone_at


def from_runs(runs: ArrayLike | Sequence[ArrayLike], num_tokens: int) -> NDArray[np.bool_]:
    """Return a keep-mask from the intervals that are kept.

    Parameters
    ----------
    runs
        Half-open intervals ``(start, stop)`` of one row, or a list of rows of them. Runs come in
        any order; they may be empty, touch and overlap.
    num_tokens
        Tokens of each row.

    Returns
    -------
    numpy.ndarray
        Booleans of shape (num_tokens,), or (rows, num_tokens).

    Raises
    ------
    TypeError, ValueError
        For what is no pair of integers, a stop before its start, and runs out of range.

    Examples
    --------
    A sink of one token and a window of two:

    >>> from_runs([(0, 1), (4, 6)], 6)
    array([ True, False, False, False,  True,  True])
    >>> from_runs([[(0, 2)], []], 3)
    array([[ True,  True, False],
           [False, False, False]])
    """
    tokens = _checks.as_count("num_tokens", num_tokens)
    rows = rows_of("runs", runs, item_axes=1)
    start, stop = rows.items.T
    row = rows.numbers()
    wrong = (start < 0) | (stop < start) | (stop > tokens)
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"runs must be pairs (start, stop) with 0 <= start <= stop <= length {tokens}; got "
            f"({start[first]}, {stop[first]}){rows.where(row[first])}; write the first kept token "
            "and the one after the last."
        )
    change = np.zeros((len(rows.counts), tokens + 1), np.int32)
    np.add.at(change, (row, start), 1)
    np.subtract.at(change, (row, stop), 1)
    covered = change.cumsum(axis=1, dtype=np.int32, out=change)[:, :tokens]
    return (covered > 0).reshape(*rows.outer, tokens)


def from_ragged(
    flat_keep: ArrayLike, offsets: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return a keep-mask and lengths from the masks of several sequences, end to end.

    Parameters
    ----------
    flat_keep
        Flat booleans, True where a token stays.
    offsets
        Where each sequence begins, and where the last ends (``cu_seqlens``): one more than there
        are sequences.

    Returns
    -------
    keep : numpy.ndarray
        Booleans of shape (sequences, longest), False beyond the lengths.
    lengths : numpy.ndarray
        Tokens of each sequence.

    Raises
    ------
    TypeError, ValueError
        For what is no flat keep-mask, and offsets that do not begin with 0, fall, or end elsewhere
        than the mask.

    Examples
    --------
    >>> keep, lengths = from_ragged([1, 0, 1, 1, 1], [0, 2, 5])
    >>> keep
    array([[ True, False, False],
           [ True,  True,  True]])
    >>> lengths
    array([2, 3])
    """
    flat = _flat("flat_keep", _checks.as_keep(flat_keep, "flat_keep"))
    return _padded(flat, _counts("offsets", offsets, len(flat)))


def from_ragged_indices(
    flat: ArrayLike, offsets: ArrayLike, lengths: ArrayLike
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return a keep-mask and lengths from the kept positions of several rows, end to end.

    Parameters
    ----------
    flat
        Flat integers: the kept positions of each row, counted from the row's own token 0, in any
        order.
    offsets
        Where the positions of each row begin in `flat`, and where the last end (``cu_klen``).
    lengths
        Tokens of each row, or of every one.

    Returns
    -------
    keep : numpy.ndarray
        Booleans of shape (rows, longest). Where rows are the heads of a layer, give them their
        axes back: ``keep.reshape(batch, heads, -1)``.
    lengths : numpy.ndarray
        Tokens of each row.

    Raises
    ------
    TypeError, ValueError
        For offsets that do not fit, and positions that are beyond their row's length, negative or
        given twice.

    Examples
    --------
    >>> from_ragged_indices([1, 0, 2], [0, 1, 3], [2, 3])
    (array([[False,  True, False],
           [ True, False,  True]]), array([2, 3]))
    """
    positions = _flat("flat", _checks.as_integers("flat", flat))
    counts = _counts("offsets", offsets, len(positions))
    given = _checks.as_integers("lengths", lengths)
    if given.shape not in ((), counts.shape):
        raise ValueError(
            f"lengths must be one number, or one for each of the {len(counts)} rows that offsets "
            f"make; got shape {given.shape}; write each row's tokens."
        )
    if given.size and int(given.min()) < 0:
        raise ValueError(
            f"lengths must be from 0 up; got {int(given.min())}; write each row's tokens."
        )
    tokens = np.broadcast_to(given, counts.shape).copy()
    keep = kept_at("flat", Rows(positions, counts, counts.shape), tokens)
    return keep, tokens


def from_list(rows: Iterable[ArrayLike]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return one padded keep-mask and lengths from the masks of sequences of different lengths.

    Parameters
    ----------
    rows
        A flat keep-mask for each sequence.

    Returns
    -------
    keep : numpy.ndarray
        Booleans of shape (sequences, longest), False beyond the lengths.
    lengths : numpy.ndarray
        Tokens of each sequence.

    Raises
    ------
    TypeError, ValueError
        For what is no keep-mask or has more than one axis.

    Examples
    --------
    >>> from_list([[1, 0, 1], [1]])
    (array([[ True, False,  True],
           [ True, False, False]]), array([3, 1]))
    """
    if not isinstance(rows, Iterable):
        raise TypeError(
            f"rows must be a list of keep-masks; got {_checks.shown(rows)}; write one mask for each"
            " sequence."
        )
    masks = [_checks.as_keep(row, f"rows[{i}]") for i, row in enumerate(rows)]
    for i, mask in enumerate(masks):
        if mask.ndim > 1:
            raise ValueError(
                f"rows[{i}] must have one axis; got shape {mask.shape}; take a census of each "
                "sequence instead, and add them."
            )
    lengths = np.array([len(mask) for mask in masks], np.int64)
    return _padded(np.concatenate([np.zeros(0, np.bool_), *masks]), lengths)


def from_slots(
    token_positions: ArrayLike,
    logical_blocks: ArrayLike | None = None,
    *,
    seq_indices: ArrayLike | None = None,
    layer_indices: ArrayLike | None = None,
    head_indices: ArrayLike | None = None,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return a keep-mask of physical slots, from blocks that say which token each slot holds.

    Arguments are named as the fields of KV-Compress's ``BlockMetadata``. The mask's last axis is
    slots as they lie in the blocks of a table, not positions: a census under the same block size
    counts exactly these blocks, wherever a compaction or a ring buffer has put the tokens. What it
    cannot tell is how many tokens were ever seen, so its ``logical_saving`` is the share of slots
    that are empty. For a mask of positions use `from_indices` with a `fill`.

    Parameters
    ----------
    token_positions
        Integers of shape (blocks, block size): the position of the token in each slot, negative
        where a slot is empty.
    logical_blocks
        The place of each block in its table; by default in the order given. Gaps are closed: a
        block that is gone is no block of the table.
    seq_indices, layer_indices, head_indices
        What each block belongs to; blocks that agree in all three make a table.

    Returns
    -------
    keep : numpy.ndarray
        Booleans of shape (tables, slots), True where a slot holds a token; tables ascend by
        sequence, layer and head.
    lengths : numpy.ndarray
        Written slots of each table: as few as own all its blocks and end no earlier than its last
        token.

    Raises
    ------
    TypeError, ValueError
        For arrays that do not fit one another, and two blocks at one place of a table.

    Examples
    --------
    Two heads with blocks of four slots; the first has a hole, the second is half written:

    >>> keep, lengths = from_slots(
    ...     [[5, -1, 2, 3], [0, 1, -1, -1]], logical_blocks=[0, 0], head_indices=[0, 1]
    ... )
    >>> keep
    array([[ True, False,  True,  True],
           [ True,  True, False, False]])
    >>> lengths
    array([4, 2])
    """
    held = _checks.as_integers("token_positions", token_positions) >= 0
    if held.ndim != 2 or held.shape[1] == 0:  # noqa: PLR2004  # blocks, slots
        raise ValueError(
            "token_positions must have the shape (blocks, block size); got shape "
            f"{held.shape}; write a row of positions for each block."
        )
    blocks, size = held.shape
    place = _of_blocks("logical_blocks", logical_blocks, np.arange(blocks))
    nothing = np.zeros(blocks, np.int64)
    owner = np.stack(
        [
            _of_blocks("seq_indices", seq_indices, nothing),
            _of_blocks("layer_indices", layer_indices, nothing),
            _of_blocks("head_indices", head_indices, nothing),
        ]
    )
    order = np.lexsort((place, *owner[::-1]))
    owner, place = owner[:, order], place[order]
    begins = np.ones(blocks, np.bool_)
    begins[1:] = (owner[:, 1:] != owner[:, :-1]).any(axis=0)
    twice = np.flatnonzero(~begins[1:] & (place[1:] == place[:-1]))
    if twice.size:
        whose = tuple(owner[:, twice[0]].tolist())
        raise ValueError(
            f"logical_blocks must name each place of a table once; got {place[twice[0]]} twice for "
            f"(sequence, layer, head) {whose}; write the block's place in its table, and what it "
            "belongs to."
        )
    table = np.cumsum(begins) - 1
    counts = np.bincount(table)
    rank = np.arange(blocks) - np.flatnonzero(begins)[table]
    in_blocks = np.zeros((len(counts), int(counts.max(initial=0)), size), np.bool_)
    in_blocks[table, rank] = held[order]
    keep = in_blocks.reshape(len(counts), in_blocks.shape[1] * size)
    behind_last = (keep * np.arange(1, keep.shape[1] + 1)).max(axis=1, initial=0)
    return keep, np.maximum(behind_last, (counts - 1) * size + 1)


class MatchedRows(NamedTuple):
    """A keep-mask recovered from a cache, and how sure it is.

    Parameters
    ----------
    keep
        Boolean array, True for a row of `before` that is found in `after`.
    num_ambiguous
        Kept rows that are one of several equal ones of which only some are left: which, the cache
        cannot tell, and the earliest are taken.
    num_unmatched
        Rows of `after` that `before` does not have, or not so often: new, or rewritten. Always 0
        unless they were let pass (``strict=False``): the tokens that such rows stand for are not in
        the mask, and are taken for evicted.
    """

    keep: NDArray[np.bool_]
    num_ambiguous: int
    num_unmatched: int


def from_rows(before: ArrayLike, after: ArrayLike, *, strict: bool = True) -> MatchedRows:
    """Return a keep-mask from the keys, or the values, of a cache before and after an eviction.

    Survivors are copies, so they are found by their bits, wherever they were put: 0.0 and -0.0
    differ, and equal NaN are equal. Where a method rewrites the keys (rerotation) give the values,
    where it rewrites the values (merging) give the keys; to tell more tokens apart, both, end to
    end in each row.

    Parameters
    ----------
    before
        Numbers of shape (..., tokens, elements).
    after
        Numbers of the same type and shape, but for the number of tokens.
    strict
        True: refuse rows of `after` that `before` does not have, or not so often. False: count
        them, as tokens written since the eviction, which are no part of the mask.

    Returns
    -------
    MatchedRows
        The mask, of shape (..., tokens), and how many rows were ambiguous and unmatched.

    Raises
    ------
    TypeError, ValueError
        For arrays that hold no numbers, or do not fit one another; unless `strict` is False, for a
        row that is new or rewritten.

    Examples
    --------
    >>> before = [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0]]
    >>> from_rows(before, [[4.0, 5.0], [0.5, 1.0]])
    MatchedRows(keep=array([ True, False,  True]), num_ambiguous=0, num_unmatched=0)
    >>> from_rows(before, [[4.0, 5.0], [0.5, 1.5]], strict=False).num_unmatched
    1
    """
    strict = _checks.as_flag("strict", strict)
    was, now = _numbers("before", before), _numbers("after", after)
    if now.dtype != was.dtype or now.shape[:-2] != was.shape[:-2] or now.shape[-1] != was.shape[-1]:
        raise ValueError(
            "after must have the type and the shape of before, but for the number of tokens, on "
            f"the axis before the last; got {_checks.dtype_name(after, now)} of shape {now.shape} "
            f"for {_checks.dtype_name(before, was)} of shape {was.shape}; write both as the cache "
            "holds them, numpy.moveaxis(rows, 0, -2) where tokens come first."
        )
    if strict and now.shape[-2] > was.shape[-2]:
        raise ValueError(
            f"after must have no more rows than before; got {now.shape[-2]} tokens after "
            f"{was.shape[-2]}; write the cache before the eviction first, or strict=False where "
            "tokens were written since."
        )
    old, new = _row_bits(was), _row_bits(now)
    keep = np.zeros(old.shape, np.bool_)
    ambiguous = unmatched = 0
    tokens = old.shape[-1]
    for index in np.ndindex(old.shape[:-1]):
        _, kind = np.unique(np.concatenate([old[index], new[index]]), return_inverse=True)
        source, unsure = _rows.sources(kind[:tokens], kind[tokens:])
        lost = source < 0
        if strict and lost.any():
            raise ValueError(
                "after must hold copies of rows of before; got a row at slot "
                f"{int(lost.argmax())}{in_row(index)} that is not there, or not so often, "
                f"{np.count_nonzero(lost)} of {len(lost)} in all; write what the method copies, "
                "the values where it rewrites the keys, neither cast to another type and back nor "
                "in another order of axes, or strict=False to count such rows."
            )
        keep[index][source[~lost]] = True
        ambiguous += int(np.count_nonzero(unsure))
        unmatched += int(np.count_nonzero(lost))
    return MatchedRows(keep, ambiguous, unmatched)


def with_implicit(keep: ArrayLike, prefix: int = 0, suffix: int = 0) -> NDArray[np.bool_]:
    """Return a keep-mask with the kept tokens around it that it leaves out.

    Parameters
    ----------
    keep
        Booleans of shape (..., tokens), or integers that are all 0 and 1. Rows of different
        lengths must have them added before they are padded.
    prefix
        Kept tokens before the first: a system prompt, sinks.
    suffix
        Kept tokens after the last: a question, generated tokens.

    Returns
    -------
    numpy.ndarray
        Booleans of shape (..., prefix + tokens + suffix).

    Raises
    ------
    TypeError, ValueError
        For what is no keep-mask, and numbers of tokens that are negative or no integers.

    Examples
    --------
    >>> with_implicit([0, 1, 0], prefix=2, suffix=1)
    array([ True,  True, False,  True, False,  True])
    """
    array = _checks.as_keep(keep)
    first = _checks.as_count("prefix", prefix)
    tokens = first + array.shape[-1] + _checks.as_count("suffix", suffix)
    whole = np.ones((*array.shape[:-1], tokens), np.bool_)
    whole[..., first : first + array.shape[-1]] = array
    return whole


_EVICTED_FROM: Final = -9984.0
"""-1e4 as bfloat16 holds it; what older code writes instead of -inf or the lowest finite number."""


def from_additive(mask: ArrayLike) -> NDArray[np.bool_]:
    """Return a keep-mask from a mask that is added to attention logits.

    Parameters
    ----------
    mask
        Floats: 0 where a token is kept; -inf, the lowest number of the type, or anything down from
        -1e4 where it is evicted. The last axis is tokens: of a mask (batch, 1, query, key) take
        the row of the last query.

    Returns
    -------
    numpy.ndarray
        Booleans of the same shape.

    Raises
    ------
    TypeError, ValueError
        For what is no float, and any other value: NaN, positive numbers, a bias such as ALiBi's.

    Examples
    --------
    >>> from_additive([0.0, -np.inf, 0.0, -1e9])
    array([ True, False,  True, False])
    """
    array = _checks.as_array("mask", mask, "an additive mask of floats")
    if array.dtype.kind != "f":
        raise TypeError(
            f"mask must be an additive mask of floats; got an array of {array.dtype.name}; write "
            "kvreclaim.masks.from_evict_mask(mask) if True or 1 means evicted, or use it as it is "
            "if that means kept."
        )
    if array.ndim == 0:
        raise ValueError("mask must have a token axis; got a single value; write a list.")
    keep = array == 0
    odd = ~(keep | (array <= _EVICTED_FROM))
    if odd.any():
        first = _checks.first_of(odd)
        raise ValueError(
            "mask must be 0 where a token is kept and -inf (or -1e4 and below) where it is "
            f"evicted; got {np.count_nonzero(odd)} of {array.size} values that are neither, the "
            f"first {array[first]} at index {_checks.index_text(first)}; choose the kept tokens "
            "first if these are scores."
        )
    return np.asarray(keep)


def from_evict_mask(mask: ArrayLike) -> NDArray[np.bool_]:
    """Return a keep-mask from a mask of the opposite polarity.

    Parameters
    ----------
    mask
        Booleans, or integers that are all 0 and 1; True where a token is evicted.

    Returns
    -------
    numpy.ndarray
        Booleans of the same shape.

    Raises
    ------
    TypeError, ValueError
        For what is no mask of True and False.

    Examples
    --------
    >>> from_evict_mask([0, 0, 1])
    array([ True,  True, False])
    """
    return ~_checks.as_keep(mask, "mask")


def from_padded(
    keep: ArrayLike, valid: ArrayLike, *, axis: int = 0
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return a keep-mask without padding, and lengths: the true share of real tokens.

    A paged runtime does not store padding, so each sequence is moved to begin with its first real
    token, and counts no other.

    Parameters
    ----------
    keep
        Booleans of shape (..., tokens), or integers that are all 0 and 1; False at padding.
    valid
        True, or 1, for real tokens, which are one run: an ``attention_mask`` of shape (sequences,
        tokens); or (tokens,) where all rows are padded alike; or of the shape of `keep`.
    axis
        The axis of `keep` that is sequences, where `valid` has the shape (sequences, tokens).

    Returns
    -------
    keep : numpy.ndarray
        Booleans of the shape of `keep`, as wide as the longest sequence, False beyond the lengths.
    lengths : numpy.ndarray
        Real tokens of each sequence, shaped as `valid` without its tokens.

    Raises
    ------
    TypeError, ValueError
        For shapes that do not fit, real tokens on both sides of padding, and padding that is kept.
        A policy that did not know of the padding may have kept some: then write ``keep & valid``.

    Examples
    --------
    >>> from_padded([[0, 0, 1, 0], [1, 1, 0, 0]], [[0, 0, 1, 1], [1, 1, 1, 1]])
    (array([[ True, False, False, False],
           [ True,  True, False, False]]), array([2, 4]))
    """
    array, real = _checks.as_keep(keep), _checks.as_keep(valid, "valid")
    outer, tokens = real.shape[:-1], real.shape[-1]
    at = 0
    if real.ndim == 2 and array.ndim > 1:  # noqa: PLR2004  # sequences, tokens
        at = _row_axis("keep", array, axis)
    moved = np.moveaxis(array, at, 0)
    fits = real.ndim in (1, 2, array.ndim) and real.ndim <= array.ndim
    if not fits or array.shape[-1] != tokens or moved.shape[: len(outer)] != outer:
        raise ValueError(
            "valid must have the shape (sequences, tokens) or (tokens,) for the axes of keep, or "
            f"the shape of keep; got shape {real.shape} for keep of shape {array.shape}; name the "
            "axis that is sequences with axis=..."
        )
    lengths = np.asarray(np.count_nonzero(real, axis=-1), np.int64)
    first = real.argmax(axis=-1) if tokens else lengths
    last = tokens - real[..., ::-1].argmax(axis=-1) if tokens else lengths
    broken = (lengths > 0) & (last - first != lengths)
    if broken.any():
        row = _checks.first_of(broken)
        raise ValueError(
            "valid must be True in one run for each sequence; got padding between real tokens"
            f"{in_row(row)}; leave such tokens in, and let keep say that they are evicted."
        )
    padding = ~real.reshape(*outer, *(1,) * (array.ndim - real.ndim), tokens)
    if (kept := moved & padding).any():
        place = _checks.first_of(kept)
        raise ValueError(
            f"keep must be False at padding; got True at token {place[-1]}"
            f"{in_row(place[: len(outer)])}; write keep & valid, broadcast to the shape of keep, "
            "if a policy that did not know of the padding has kept it."
        )
    out = np.zeros((*array.shape[:-1], int(lengths.max(initial=0))), np.bool_)
    target = np.moveaxis(out, at, 0)
    for row in np.ndindex(outer):
        start, length = int(first[row]), int(lengths[row])
        target[row][..., :length] = moved[row][..., start : start + length]
    return out, lengths


def from_packed(
    bits: ArrayLike, num_tokens: int, bitorder: Literal["big", "little"] = "big"
) -> NDArray[np.bool_]:
    """Return a keep-mask from packed bits.

    Parameters
    ----------
    bits
        An array of uint8 of shape (..., ceil(num_tokens / 8)), eight tokens a byte, 1 for kept.
    num_tokens
        Tokens of each row.
    bitorder
        Which bit of a byte is its first token: ``"big"``, the highest, or ``"little"``.

    Returns
    -------
    numpy.ndarray
        Booleans of shape (..., num_tokens).

    Raises
    ------
    TypeError, ValueError
        For what is no uint8, does not fit `num_tokens`, or has bits set beyond them, as the wrong
        bit order or number of tokens would.

    Examples
    --------
    >>> from_packed(np.packbits([1, 0, 1, 1, 1, 0, 0, 1, 0, 1]), 10).sum()
    np.int64(6)
    """
    array, tokens, order = _checks.as_bits(bits, num_tokens, bitorder)
    return np.unpackbits(array, axis=-1, count=tokens, bitorder=order).view(np.bool_)


def to_kv_heads(keep_q: ArrayLike, num_kv_heads: int, axis: int = -2) -> NDArray[np.bool_]:
    """Return the keep-mask of kv heads from one of query heads.

    An entry is dead only when no query head of its group keeps it; query head h belongs to group
    h // (query heads / kv heads).

    Parameters
    ----------
    keep_q
        Booleans with an axis of query heads, or integers that are all 0 and 1.
    num_kv_heads
        Kv heads that the cache stores; 1 for multi-query attention and for MLA's latent.
    axis
        The axis of query heads.

    Returns
    -------
    numpy.ndarray
        Booleans with `num_kv_heads` in that axis.

    Raises
    ------
    TypeError, ValueError
        For what is no keep-mask, and kv heads that do not divide the query heads.

    Examples
    --------
    >>> to_kv_heads([[1, 0], [0, 0], [0, 0], [0, 1]], 2)
    array([[ True, False],
           [False,  True]])
    """
    array = _checks.as_keep(keep_q, "keep_q")
    at = _row_axis("keep_q", array, axis)
    heads, groups = array.shape[at], _checks.as_count("num_kv_heads", num_kv_heads, minimum=1)
    if heads == 0 or heads % groups:
        raise ValueError(
            f"num_kv_heads must divide the {heads} heads in keep_q of shape {array.shape}; got "
            f"{groups} KV heads; write how many heads the cache stores, and axis=... for the axis "
            "of query heads."
        )
    parted = array.reshape(*array.shape[:at], groups, heads // groups, *array.shape[at + 1 :])
    return np.asarray(parted.any(axis=at + 1))


def to_kv_layers(keep: ArrayLike, owners: ArrayLike, axis: int = 0) -> NDArray[np.bool_]:
    """Return the keep-mask of caches from one of layers, some of which read the same cache.

    An entry is dead only when it is dead for every layer that reads it.

    Parameters
    ----------
    keep
        Booleans with an axis of layers, or integers that are all 0 and 1.
    owners
        ``owners[i]`` names the cache that layer i reads, by any integer.
    axis
        The axis of layers.

    Returns
    -------
    numpy.ndarray
        Booleans with one entry in that axis for each distinct owner, ascending.

    Raises
    ------
    TypeError, ValueError
        For what is no keep-mask, and owners that are not one integer for each layer.

    Examples
    --------
    Layers 0 and 1 read the cache of layer 0:

    >>> to_kv_layers([[1, 0, 0], [0, 1, 0], [0, 0, 1]], [0, 0, 2])
    array([[ True,  True, False],
           [False, False,  True]])
    """
    array = _checks.as_keep(keep)
    at = _row_axis("keep", array, axis)
    of_layer = _flat("owners", _checks.as_integers("owners", owners))
    if len(of_layer) != array.shape[at]:
        raise ValueError(
            f"owners must name a cache for each of the {array.shape[at]} layers in keep of shape "
            f"{array.shape}; got {len(of_layer)}; write one for each layer, and axis=... for the "
            "axis of layers."
        )
    caches, cache_of = np.unique(of_layer, return_inverse=True)
    out = np.zeros((*array.shape[:at], len(caches), *array.shape[at + 1 :]), np.bool_)
    layers, target = np.moveaxis(array, at, 0), np.moveaxis(out, at, 0)
    for layer, cache in enumerate(cache_of):
        target[cache] |= layers[layer]
    return out


def compose(first: ArrayLike, then: ArrayLike) -> NDArray[np.bool_]:
    """Return the keep-mask of two evictions, the second over the survivors of the first.

    Parameters
    ----------
    first
        Booleans of shape (..., tokens), or integers that are all 0 and 1.
    then
        Booleans of shape (..., slots): slot i is the i-th survivor of the same row of `first`, in
        the order of positions. Rows of fewer survivors are False beyond them.

    Returns
    -------
    numpy.ndarray
        Booleans of the shape of `first`.

    Raises
    ------
    TypeError, ValueError
        For what is no keep-mask, rows that do not fit, and a True beyond a row's survivors.

    Examples
    --------
    >>> compose([1, 0, 1, 1], [0, 1, 1])
    array([False, False,  True,  True])
    """
    early, late = _checks.as_keep(first, "first"), _checks.as_keep(then, "then")
    if early.shape[:-1] != late.shape[:-1]:
        raise ValueError(
            f"then must have the rows of first, {early.shape[:-1]}; got {late.shape[:-1]}; write a "
            "row of slots for each row of tokens."
        )
    slots = late.shape[-1]
    survivors = np.asarray(np.count_nonzero(early, axis=-1))
    short = np.asarray(survivors > slots)
    if short.any():
        row = _checks.first_of(short)
        raise ValueError(
            f"then must have a slot for each survivor of first; got {slots} slots for "
            f"{survivors[row]} survivors{in_row(row)}; write True for every survivor that stays."
        )
    exists = np.arange(slots) < survivors[..., np.newaxis]
    if (beyond := late & ~exists).any():
        place = _checks.first_of(beyond)
        raise ValueError(
            f"then must be False beyond the survivors of first; got True at slot {place[-1]} for "
            f"{survivors[place[:-1]]} survivors{in_row(place[:-1])}; write slots in "
            "the order of positions, not positions."
        )
    both = np.zeros(early.shape, np.bool_)
    both[early] = late[exists]
    return both


def _sizes(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, list | tuple) or not shape:
        raise TypeError(
            f"shape must be a tuple of sizes; got {_checks.shown(shape)}; write such as (batch, "
            "heads, tokens)."
        )
    return tuple(_checks.as_count(f"shape[{i}]", size) for i, size in enumerate(shape))


def _flat(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim != 1:
        raise ValueError(
            f"{name} must have one axis; got shape {array.shape}; write the rows end to end."
        )
    return array


def _counts(name: str, offsets: ArrayLike, total: int) -> NDArray[np.int64]:
    """Return how many values each sequence has, of `total` that lie end to end."""
    edges = _flat(name, _checks.as_integers(name, offsets))
    rule = f"{name} must begin with 0, never fall, and end with the {total} values there are"
    hint = "write where each row begins, and where the last ends"
    if edges.size == 0:
        raise ValueError(f"{rule}; got none; {hint}.")
    counts = np.diff(edges)
    wrong = np.concatenate([edges[:1] != 0, counts < 0])
    wrong[-1] |= edges[-1] != total
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(f"{rule}; got {edges[first]} at index {first}; {hint}.")
    return counts


def _padded(
    flat: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return rows that lie end to end one below the other, with their lengths."""
    exists = np.arange(int(lengths.max(initial=0))) < lengths[:, np.newaxis]
    keep = np.zeros(exists.shape, np.bool_)
    keep[exists] = flat
    return keep, lengths


def _of_blocks(name: str, given: ArrayLike | None, default: NDArray[np.int64]) -> NDArray[np.int64]:
    if given is None:
        return default
    values = _checks.as_integers(name, given)
    if values.shape != default.shape:
        raise ValueError(
            f"{name} must have one number for each of the {len(default)} blocks; got shape "
            f"{values.shape}; write a flat array."
        )
    return values


def _numbers(name: str, value: ArrayLike) -> NDArray[Any]:
    rule = "an array of numbers of shape (..., tokens, elements)"
    hint = "write keys or values as the cache holds them"
    array = _checks.as_array(name, value, rule)
    # An extended float has bytes that are no part of its value, and differ by chance.
    if array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        came = _checks.dtype_name(value, array)
        raise TypeError(f"{name} must be {rule}; got an array of {came}; {hint}.")
    if array.ndim < 2 or array.shape[-1] == 0:  # noqa: PLR2004  # tokens, elements
        raise ValueError(f"{name} must be {rule}; got shape {array.shape}; {hint}.")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("="))


def _row_bits(rows: NDArray[Any]) -> NDArray[np.void]:
    """Return each row as one item that compares by its bits."""
    return rows.view(np.dtype((np.void, rows.shape[-1] * rows.itemsize)))[..., 0]


def _row_axis(name: str, array: NDArray[np.bool_], axis: int) -> int:
    """Return the number of an axis of an array that is not its last, counted from the front."""
    axes = array.ndim
    number = _checks.as_count("axis", axis, minimum=-axes) if axes > 1 else -1
    if number in (-1, axes - 1) or number >= axes:
        raise ValueError(
            f"axis must be an axis of {name} before its last, which is tokens; got {axis} for shape"
            f" {array.shape}; write the axis that is meant."
        )
    return number % axes
