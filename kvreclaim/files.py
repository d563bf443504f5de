"""Load and save masks, safely, and count them in a stream.

A file is refused before memory is allocated where what it declares does not fit what it holds.
Pickles are never loaded, and nothing is mapped into memory. Which formats there are, and how a mask
is written in each:

- .npy, and .npz with any arrays: booleans, or integers that are all 0 and 1; ``axes``, ``lengths``,
  ``offset`` and ``born_at`` with ``evicted_at`` beside them hold for each array;
- our own .npz and .safetensors, which `save_masks` writes: ``keep`` (booleans), or ``bits`` (uint8)
  with ``num_tokens`` and ``bitorder``; ``axes``; if need be ``lengths``, ``offset``, ``born_at``
  with ``evicted_at``, ``meta`` (JSON); several masks as ``NAME/keep`` ...;
- .json: nested lists of 0 and 1, or an object ``{"axes", "num_tokens", "kept": [positions of a
  row, ...]}``, with ``"runs": [[[start, stop], ...], ...]`` or ``"keep"`` (nested 0 and 1) in place
  of ``"kept"``, and ``"lengths"`` ... as above; or an object of such objects by name;
- .jsonl, or any file of several JSON documents: such an object, or list, on each line is one
  sequence; together they are one mask, padded, with the lengths, whose first axis is ``b``;
- text and .csv: rows of 0 and 1, one a line;
- .pt (tensors, or dicts and lists of them), .safetensors, .parquet (a column of lists of booleans,
  or ``bits`` and ``num_tokens``, a row of the mask in each row) and .zarr, each with its package.

Axes and lengths come from the file or from the caller; they are never guessed. Those that stand
beside arrays in any of these formats, in their folder or one around it, are those of each array
that has none of its own; masks saved as ``NAME/keep`` or ``NAME/bits`` take nothing from there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _bits, _checks, _layout, occupancy
from kvreclaim._formats import arrays as _arrays
from kvreclaim._formats import choice, opening, writing
from kvreclaim._formats.arrays import Progress
from kvreclaim._formats.choice import Chosen
from kvreclaim._formats.opening import Source, standard_input
from kvreclaim.census import Census, merge, take_census, take_census_of_rows, take_census_packed
from kvreclaim.pool import BlockPool, PoolLike, as_pool

__all__ = [
    "MAX_BYTES",
    "SavedMasks",
    "census_of_file",
    "load_masks",
    "mask_names",
    "save_masks",
    "standard_input",
]

MAX_BYTES: Final = 4 << 30
"""Unpacked bytes, one a token, that are read at once unless told otherwise."""


class SavedMasks(NamedTuple):
    """A keep-mask from a file, with what the file says of it.

    Parameters
    ----------
    keep
        Boolean array, True where a token stays.
    lengths
        Tokens of each sequence; None: the full axis.
    axes
        A letter for each axis of `keep`; None where neither the file nor the caller names them.
    meta
        Whatever the writer noted.
    offset
        Slots of the first block before token 0.
    born_at, evicted_at
        When each token came and went, as `timeline` takes them; both or neither.
    """

    keep: NDArray[np.bool_]
    lengths: NDArray[np.int64] | None
    axes: str | None
    meta: dict[str, Any]
    offset: NDArray[np.int64] | int = 0
    born_at: NDArray[Any] | None = None
    evicted_at: NDArray[Any] | None = None


def load_masks(
    path: Source,
    *,
    array: str | None = None,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    polarity: Literal["keep", "evict"] = "keep",
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> SavedMasks:
    """Return a mask from a file, checked.

    Parameters
    ----------
    path
        The file; its first bytes say what it is. ``"-"`` is standard input; a binary file that can
        seek is taken too.
    array
        The name of the mask, in a file that holds several; `mask_names` lists them. ``"keep"`` is
        also the mask whose name is empty.
    axes, lengths
        What the file does not say itself; where both say it, they must agree, unless what the file
        says of several arrays does not fit this one.
    polarity
        What True means in the file: ``"keep"``, or ``"evict"``; tokens beyond a length are kept
        in neither.
    max_bytes
        Refuse a mask of more tokens than this, and a longer file of a format that is read whole.
    progress
        Called after each piece with how many values are read, and how many there are.

    Raises
    ------
    OSError
        Where the file cannot be opened.
    ValueError, TypeError
        For a file that is damaged, holds no such mask, or holds pickles; nothing is read by halves.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/mask.npy", np.array([[1, 0, 1]], np.uint8))
    ...     load_masks(f"{folder}/mask.npy", axes="ht").keep
    array([[ True, False,  True]])
    """
    most = _checks.as_count("max_bytes", max_bytes)
    sense = _checks.as_choice("polarity", polarity, ("keep", "evict"))
    with opening.arrays_of(path, most) as (where, arrays):
        chosen = choice.choose(
            where, arrays, array, axes=axes, lengths=lengths, offset=0, most=most
        )
        keep = _arrays.read(chosen.mask, most, progress)
        with _arrays.named(chosen.mask.where):
            if sense == "evict":
                letters = chosen.axes or "?" * (keep.ndim - 1) + "t"
                _turn_round(keep, chosen.tokens_of_rows(letters, ""), letters.index("t"))
        return SavedMasks(
            keep, chosen.lengths, chosen.axes, chosen.meta(), chosen.offset, *chosen.times(most)
        )


def census_of_file(
    path: Source,
    pool: PoolLike,
    *,
    array: str | None = None,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    offset: ArrayLike = 0,
    polarity: Literal["keep", "evict"] = "keep",
    max_bytes: int = MAX_BYTES,
    progress: Progress | None = None,
) -> Census:
    """Return the census of a mask in a file, which need not fit in memory.

    It equals ``take_census`` of what `load_masks` returns. A .npy or .npz in C order whose last
    axis is tokens is read through one reused buffer: what stays in memory is a bit for each slot of
    the tables that are open at once. Any other file is loaded, under `max_bytes`.

    Parameters
    ----------
    path, array, polarity, max_bytes, progress
        As in `load_masks`.
    pool
        A BlockPool, or a block size.
    axes, lengths, offset
        What the file does not say itself, as in `take_census`.

    Raises
    ------
    OSError
        Where the file cannot be opened.
    ValueError, TypeError
        As `load_masks` and `take_census`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_masks(f"{folder}/masks.npz", [[1, 0, 0, 0], [0, 1, 0, 0]], axes="ht")
    ...     census_of_file(f"{folder}/masks.npz", 2).counts
    (1, 0, 1)
    """
    pool = as_pool(pool)
    most = _checks.as_count("max_bytes", max_bytes)
    sense = _checks.as_choice("polarity", polarity, ("keep", "evict"))
    with opening.arrays_of(path, most) as (where, arrays):
        chosen = choice.choose(
            where, arrays, array, axes=axes, lengths=lengths, offset=offset, most=most
        )
        with _arrays.named(chosen.mask.where):
            if sense == "evict":
                return _census(chosen, pool, evicted=True, most=most, progress=progress)
            try:
                return _census(chosen, pool, evicted=False, most=most, progress=progress)
            except ValueError as error:
                raise ValueError(choice.also_polarity(str(error))) from None


def mask_names(path: Source, *, max_bytes: int = MAX_BYTES) -> tuple[str, ...]:
    """Return the names of the masks in a file; a file of one unnamed mask has the name ``""``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/masks.npz"
    ...     np.savez(path, first=np.ones(4, bool), second=np.zeros(4, bool))
    ...     mask_names(path)
    ('first', 'second')
    """
    with opening.arrays_of(path, _checks.as_count("max_bytes", max_bytes)) as (_, arrays):
        return tuple(choice.masks_in(arrays))


def save_masks(
    path: str | os.PathLike[str],
    keep: ArrayLike | SavedMasks | Mapping[str, SavedMasks],
    *,
    axes: str | None = None,
    lengths: ArrayLike | None = None,
    meta: Mapping[str, Any] | None = None,
    packed: bool = True,
) -> None:
    """Write a mask, or several by name; whole or not at all.

    Parameters
    ----------
    path
        The file to write; it ends in .npz, or in .safetensors.
    keep
        A keep-mask, what `load_masks` returned, or several of these by name.
    axes
        A letter for each axis of the mask; bits are packed along the last, so it ends in ``t``.
    lengths
        Tokens of each sequence.
    meta
        Anything that JSON can hold.
    packed
        True: eight tokens a byte; False: one.

    Raises
    ------
    OSError
        Where the file cannot be written; one that was there before is still there.
    TypeError, ValueError
        For what is no keep-mask, and axes that do not fit it or do not end in ``t``.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_masks(f"{folder}/masks.npz", [[1, 0, 1]], axes="ht", meta={"policy": "mine"})
    ...     load_masks(f"{folder}/masks.npz").meta
    {'policy': 'mine'}
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(
            f"path must be a path to write to; got {_checks.shown(path)}; write such as "
            "'masks.npz'."
        )
    target = os.fspath(path)
    _checks.as_flag("packed", packed)
    if isinstance(keep, Mapping | SavedMasks):
        if axes is not None or lengths is not None or meta is not None:
            raise TypeError(
                "axes, lengths and meta must stand in the SavedMasks; got them beside; write "
                "saved._replace(axes=...)."
            )
        masks = keep if isinstance(keep, Mapping) else {"": keep}
    else:
        given = None if lengths is None else _checks.as_integers("lengths", lengths)
        masks = {"": SavedMasks(_checks.as_keep(keep), given, axes, _as_meta(meta or {}))}
    if not masks:
        raise ValueError("keep must hold a mask; got none; write one.")
    arrays: dict[str, NDArray[Any]] = {}
    texts: dict[str, str] = {}
    for name, saved in masks.items():
        _refuse_bare(name, saved)
        prefix = f"{_as_name(name)}/" if name else ""
        for part, array in _arrays_of(saved, packed=packed).items():
            arrays[prefix + part] = array
        for part, text in _texts_of(saved, packed=packed).items():
            texts[prefix + part] = text
    if target.endswith(".safetensors"):
        write = writing.write_safetensors
    elif target.endswith(".npz"):
        write = writing.write_npz
    else:
        raise ValueError(
            f"path must end in .npz or .safetensors; got {target!r}; write one of these."
        )
    writing.write_whole(target, lambda file: write(file, arrays, texts))


def _as_name(name: object) -> str:
    if not isinstance(name, str) or name.strip("/") != name or not name.isprintable():
        raise ValueError(
            "keep must have printable names that neither begin nor end with '/'; got "
            f"{_checks.shown(name)}; write other names."
        )
    return name


def _refuse_bare(name: str, saved: object) -> None:
    if not isinstance(saved, SavedMasks):
        raise TypeError(
            f"keep must be SavedMasks by name; got {type(saved).__name__} for {name!r}; write "
            f"{{{name!r}: SavedMasks(keep, None, 'lht', {{}})}}, with the mask's own axes."
        )


def _arrays_of(saved: SavedMasks, *, packed: bool) -> dict[str, NDArray[Any]]:
    """Return the arrays of a mask by part, in C order."""
    keep = _checks.as_keep(saved.keep)
    _checks.as_axes_tokens_last(saved.axes, keep.shape, "lh")
    arrays: dict[str, NDArray[Any]] = {}
    if packed:
        arrays["bits"] = _bits.pack(keep)
        arrays["num_tokens"] = np.array(keep.shape[-1], np.int64)
    else:
        arrays["keep"] = np.ascontiguousarray(keep)
    if saved.lengths is not None:
        arrays["lengths"] = _checks.as_integers("lengths", saved.lengths)
        choice.check_lengths(arrays["lengths"], keep.shape[-1])
    if np.any(saved.offset):
        arrays["offset"] = _checks.as_integers("offset", saved.offset)
    times = {"born_at": saved.born_at, "evicted_at": saved.evicted_at}
    for name, given in times.items():
        if given is not None:
            _checks.as_integers(name, given)
            arrays[name] = np.asarray(given, order="C")
    if {*times} & {*arrays}:
        choice.check_times(arrays.get("born_at"), arrays.get("evicted_at"), keep.shape)
    return arrays


def _texts_of(saved: SavedMasks, *, packed: bool) -> dict[str, str]:
    """Return the texts that go with the arrays of a mask."""
    axes = _checks.as_axes_tokens_last(saved.axes, np.shape(saved.keep), "lh")
    texts = {"axes": axes}
    if packed:
        texts["bitorder"] = "big"
    if _as_meta(saved.meta):
        texts["meta"] = _as_json(saved.meta)
    return texts


def _as_meta(meta: object) -> dict[str, Any]:
    if not isinstance(meta, Mapping):
        raise TypeError(f"meta must be a dict; got {_checks.shown(meta)}; write one.")
    return {**meta}


def _as_json(meta: dict[str, Any]) -> str:
    try:
        text = json.dumps(meta, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(
            f"meta must be what JSON can hold; got what it cannot ({error}); write strings, finite "
            "numbers, lists and dicts."
        ) from None
    if json.loads(text) != meta:
        raise ValueError(
            "meta must be what JSON gives back unchanged; got tuples, or keys that are no strings; "
            "write lists, and strings."
        )
    return text


def _census(
    chosen: Chosen, pool: BlockPool, *, evicted: bool, most: int, progress: Progress | None
) -> Census:
    mask, shape = chosen.mask, chosen.mask.shape
    axes = _checks.as_axes(chosen.axes, shape, pool.shared_axes)
    said: dict[str, Any] = {"lengths": chosen.lengths, "offset": chosen.offset}
    rows_last = axes[-1] == "t" and not (mask.values.fortran and len(shape) > 1)
    if not (rows_last and mask.values.streams):
        keep = _arrays.read(mask, most, progress)
        if evicted:
            _turn_round(keep, chosen.tokens_of_rows(axes, pool.shared_axes), axes.index("t"))
        return take_census(keep, pool, axes=chosen.axes, **said)
    tokens = chosen.tokens_of_rows(axes, pool.shared_axes) if evicted else None
    read = _arrays.row_reader(mask, evicted=tokens, progress=progress)
    # An axis of one row that shares blocks changes nothing, but would keep its tables open.
    kept = [i for i, c in enumerate(axes) if shape[i] != 1 or c not in pool.shared_axes]
    axes, shape = "".join(axes[i] for i in kept), tuple(shape[i] for i in kept)
    if 0 in shape:
        _arrays.check_size(mask.where, shape, most)  # no bytes: any number of rows is there
    _check_open(mask.where, axes, shape, pool, most)
    if shape[-1] > occupancy.PIECE and mask.num_rows and not {*axes} & {*pool.shared_axes}:
        return _census_of_long_rows(read, axes, shape, pool, **said)
    return take_census_of_rows(read, shape, axes, pool, **said)


def _census_of_long_rows(
    read: Callable[[int], NDArray[np.uint8]],
    axes: str,
    shape: tuple[int, ...],
    pool: BlockPool,
    **said: Any,  # noqa: ANN401  # lengths and offset
) -> Census:
    """Count rows that are a table each, one at a time, without a second copy of its bits."""
    nothing = _layout.arrange(np.broadcast_to(np.False_, shape), axes, pool, **said)
    rows = math.prod(shape[:-1])
    lengths, offsets = _layout.of_each_table(nothing)
    censuses = []
    for row in range(rows):
        bits = read(1)[0]
        with _arrays.named(f"row {row}"):
            census = take_census_packed(
                bits, shape[-1], pool, lengths=lengths[row], offset=int(offsets[row])
            )
        censuses.append(census)
    return merge(censuses)


def _check_open(where: str, axes: str, shape: tuple[int, ...], pool: BlockPool, most: int) -> None:
    """Refuse tables that keep more bits open at once than fit."""
    first = next((i for i, c in enumerate(axes) if c in pool.shared_axes), len(axes) - 1)
    inner = [shape[i] for i in range(first, len(axes) - 1) if axes[i] not in pool.shared_axes]
    needed = math.prod(inner) * -(-shape[-1] // 8)
    if needed > most:
        raise ValueError(
            f"{where} must have tables whose bits fit into max_bytes={most}; got {needed} bytes of "
            f"them open at once, for axes {axes!r} of shape {shape}; write the axes that share "
            "blocks last but 't', or a larger max_bytes."
        )


def _turn_round(evicted: NDArray[np.bool_], tokens: NDArray[np.int64], axis: int) -> None:
    """Make a keep-mask of its opposite, in place; tokens that are not there are not kept."""
    np.logical_not(evicted, out=evicted)
    size = evicted.shape[axis]
    if (tokens < size).any():
        positions = np.arange(size).reshape([-1 if i == axis else 1 for i in range(evicted.ndim)])
        evicted &= positions < np.expand_dims(tokens, axis)
