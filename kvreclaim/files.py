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
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvreclaim import _bits, _checks
from kvreclaim._formats import choice, opening, reading, writing
from kvreclaim._formats.arrays import named
from kvreclaim._formats.choice import Chosen
from kvreclaim._formats.grouping import OpenMasks
from kvreclaim._formats.opening import Source, standard_input
from kvreclaim._formats.reading import Progress
from kvreclaim.census import Census
from kvreclaim.pool import PoolLike, as_pool

__all__ = [
    "MAX_BYTES",
    "OpenMasks",
    "SavedMasks",
    "census_of_file",
    "load_masks",
    "mask_names",
    "open_masks",
    "save_masks",
    "standard_input",
]

MAX_BYTES: Final = 4 << 30
"""Unpacked bytes, one a token, that are read at once unless told otherwise."""

_LONGEST_NAME: Final = 10_000  # characters; an archive holds names of 65,535 bytes


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
        seek, and what `open_masks` yields, are taken too.
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
    evicted, most = _checked(polarity, max_bytes, progress)
    with opening.masks_of(path, most) as masks:
        chosen = choice.choose(masks, array, axes=axes, lengths=lengths, offset=0, most=most)
        return load_chosen(chosen, evicted=evicted, most=most, progress=progress)


def _checked(polarity: object, max_bytes: object, progress: object) -> tuple[bool, int]:
    """Return whether True means evicted, and how many bytes are read at once."""
    most = _checks.as_count("max_bytes", max_bytes)
    sense = _checks.as_choice("polarity", polarity, ("keep", "evict"))
    if progress is not None and not callable(progress):
        raise TypeError(
            "progress must be a function of two numbers, or None; got "
            f"{_checks.shown(progress)}; write such as progress=print."
        )
    return sense == "evict", most


def load_chosen(
    chosen: Chosen, *, evicted: bool, most: int, progress: Progress | None
) -> SavedMasks:
    """Return a mask that was chosen already, for `load_masks` and the command line."""
    keep = reading.load(chosen, evicted=evicted, most=most, progress=progress)
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
    evicted, most = _checked(polarity, max_bytes, progress)
    with opening.masks_of(path, most) as masks:
        chosen = choice.choose(masks, array, axes=axes, lengths=lengths, offset=offset, most=most)
        try:
            return reading.count(chosen, pool, evicted=evicted, most=most, progress=progress)
        except ValueError as error:
            if evicted:
                raise
            raise ValueError(reading.also_polarity(str(error), "polarity='evict'")) from None


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
    with open_masks(path, max_bytes=max_bytes) as masks:
        return tuple(masks.masks)


@contextmanager
def open_masks(path: Source, *, max_bytes: int = MAX_BYTES) -> Iterator[OpenMasks]:
    """Open a file once for many of its masks: what this yields is a path of the functions here.

    A file of thousands of masks is then listed once, and not anew for each of them.

    Parameters
    ----------
    path
        As in `load_masks`.
    max_bytes
        Refuse a longer file of a format that is read whole.

    Raises
    ------
    OSError
        Where the file cannot be opened.
    ValueError
        For a file that is damaged; when it is closed, for one that changed in the meantime.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/masks.npz"
    ...     np.savez(path, first=np.ones(4, bool), second=np.zeros(4, bool))
    ...     with open_masks(path) as masks:
    ...         {name: census_of_file(masks, 2, array=name).counts for name in mask_names(masks)}
    {'first': (0, 0, 2), 'second': (2, 0, 0)}
    """
    with opening.masks_of(path, _checks.as_count("max_bytes", max_bytes)) as masks:
        yield masks


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
        For what is no keep-mask, for axes that do not fit it or do not end in ``t``, and for
        lengths that do not fit it, or beyond which it keeps a token.

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
        masks = {
            "": SavedMasks(
                _checks.as_keep(keep), given, axes, {} if meta is None else _as_meta(meta)
            )
        }
    if not masks:
        raise ValueError("keep must hold a mask; got none; write one.")
    arrays: dict[str, NDArray[Any]] = {}
    texts: dict[str, str] = {}
    for name, saved in masks.items():
        _refuse_bare(name, saved)
        prefix = f"{_as_name(name)}/" if name else ""
        with named(f"mask {name!r}") if name else nullcontext():
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
    if (
        not isinstance(name, str)
        or name.strip("/") != name
        or not name.isprintable()
        or len(name) > _LONGEST_NAME
    ):
        raise ValueError(
            "keep must have printable names that neither begin nor end with '/', of at most "
            f"{_LONGEST_NAME} characters; got {_checks.shown(name)}; write other names."
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
    axes = _checks.as_axes_tokens_last(saved.axes, keep.shape, "lh")
    arrays: dict[str, NDArray[Any]] = {}
    if packed:
        arrays["bits"] = _bits.pack(keep)
        arrays["num_tokens"] = np.array(keep.shape[-1], np.int64)
    else:
        arrays["keep"] = np.ascontiguousarray(keep)
    if saved.lengths is not None:
        arrays["lengths"] = _checks.as_integers("lengths", saved.lengths)
        choice.check_numbers("lengths", arrays["lengths"], keep.shape, axes)
        _refuse_beyond(keep, axes, arrays["lengths"])
    if np.any(saved.offset):
        arrays["offset"] = _checks.as_integers("offset", saved.offset)
        choice.check_numbers("offset", arrays["offset"], keep.shape, axes)
    times = {"born_at": saved.born_at, "evicted_at": saved.evicted_at}
    for name, given in times.items():
        if given is not None:
            _checks.as_integers(name, given)
            arrays[name] = np.asarray(given, order="C")
    if {*times} & {*arrays}:
        choice.check_times(arrays.get("born_at"), arrays.get("evicted_at"), keep.shape)
    return arrays


def _refuse_beyond(keep: NDArray[np.bool_], axes: str, lengths: NDArray[np.int64]) -> None:
    """Refuse a kept token that its sequence does not have, where lengths say which they are of."""
    try:
        tokens = choice.tokens_of_rows(lengths, keep.shape, axes, "")
    except ValueError:  # they fit, but which axes they are of only a pool tells
        return
    beyond = keep & (np.arange(keep.shape[-1]) >= tokens[..., None])
    if beyond.any():
        *row, token = _checks.first_of(beyond)
        raise _checks.beyond_length(tuple(row), token, int(tokens[tuple(row)]))


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
