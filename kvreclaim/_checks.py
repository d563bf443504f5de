"""Every argument check, and its wording.

A message is one sentence: the argument, the rule, what came, what to write instead.
TypeError for the wrong kind of thing, ValueError for the wrong value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction
from numbers import Rational, Real
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Shape: TypeAlias = int | Sequence[int]
"""A number of tokens, or a shape whose last axis is tokens."""

MAX_BLOCK_SIZE: Final = 65_535
"""Slots of the largest block."""

MOST_TOKENS: Final = 2**40
"""Tokens of the longest sequence, and entries of the largest array of scores."""

MOST_IMPORTANCE: Final = 1e300
"""The largest finite score, so that sums of them stay within the range of a float."""

BEYOND_LENGTHS: Final = "keep must be False beyond the lengths"
"""How the error begins of a kept token that a sequence does not have."""

_USUAL_AXES: Final = {"s": "seed", "b": "sequence", "l": "layer", "h": "kv head", "t": "token"}
_BITS: Final = 64  # of the largest integer that NumPy has
_MOST_AXES: Final = 32
_WHOLE: Final = 2.0**53  # up to here a float holds every whole number
_MOST: Final = 1e100  # of a sample, so that no product of sums leaves the range of floats
_SHORT: Final = 40  # characters of a value that a message shows whole
_NO_LETTERS: Final = frozenset(
    f"{word}{plural}"
    for word in ("layer", "head", "token", "batch", "sequence", "row", "table", "block", "all")
    for plural in ("", "s", "es")
) | {"none"}
"""Words whose letters would be taken for so many axes."""


def as_count(name: str, value: object, *, minimum: int = 0, maximum: int | None = None) -> int:
    """Return ``value`` as a built-in integer between the two bounds."""
    rule = (
        f"an integer of at least {minimum}"
        if maximum is None
        else f"an integer from {minimum} to {maximum}"
    )
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be {rule}; got the boolean {value}; write a number.")
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # the TypeError below is for this
    except TypeError:
        raise TypeError(
            f"{name} must be {rule}; got {shown(value)}; write a whole number, int(...) if it is "
            "one already."
        ) from None
    if number < minimum or (maximum is not None and number > maximum):
        bound = f"at least {minimum}" if number < minimum else f"at most {maximum}"
        raise ValueError(f"{name} must be {rule}; got {number}; write {bound}.")
    return number


def as_block_size(value: object, name: str = "block_size") -> int:
    """Return the slots of a block."""
    return as_count(name, value, minimum=1, maximum=MAX_BLOCK_SIZE)


def as_positive(name: str, value: object) -> float:
    """Return ``value`` as a finite float above 0."""
    rule = "a finite number above 0"
    number = _as_real(name, value, rule)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be {rule}; got {number}; write one.")
    return number


def as_finite(name: str, value: object) -> float:
    """Return ``value`` as a finite float."""
    number = _as_real(name, value, "a finite number")
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number; got {number}; write one.")
    return number


def as_share(name: str, value: object) -> float:
    """Return ``value`` as a float from 0 to 1."""
    rule = "a number from 0 to 1"
    number = _as_real(name, value, rule)
    if not 0 <= number <= 1:
        raise ValueError(f"{name} must be {rule}; got {number}; write a share, not a percentage.")
    return number


def _as_real(name: str, value: object, rule: str) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {rule}; got {shown(value)}; write a number.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{name} must be {rule}; got more than a float holds; write less."
        ) from None


def as_exact(name: str, value: object, *, minimum: int = 0, maximum: int | None = 1) -> Fraction:
    """Return a number as a fraction; a float is the decimal that it is written as."""
    rule = (
        f"a finite number of at least {minimum}"
        if maximum is None
        else f"a number from {minimum} to {maximum}"
    )
    number = _as_real(name, value, rule)
    if isinstance(value, Rational):
        exact = Fraction(int(value.numerator), int(value.denominator))
    elif math.isfinite(number):
        exact = Fraction(str(value))
    else:
        exact = Fraction(minimum - 1)  # refused below, whichever way it is not finite
    if exact < minimum or (maximum is not None and exact > maximum):
        hint = "write one" if maximum is None else "write a share, not a percentage"
        raise ValueError(f"{name} must be {rule}; got {shown(value)}; {hint}.")
    return exact


def as_shape(name: str, value: object) -> tuple[int, ...]:
    """Return a number of tokens, or a shape that ends in one, as a shape."""
    if not isinstance(value, list | tuple):
        return (as_count(name, value, maximum=MOST_TOKENS),)
    if not value:
        raise ValueError(
            f"{name} must be an integer, or a shape whose last axis is tokens; got an empty one; "
            "write such as 4096 or (32, 8, 4096)."
        )
    if len(value) > _MOST_AXES:
        raise ValueError(
            f"{name} must be a shape of at most {_MOST_AXES} axes; got {len(value)}; write such as "
            "4096 or (32, 8, 4096)."
        )
    shape = tuple(
        as_count(f"{name}[{axis}]", size, maximum=MOST_TOKENS) for axis, size in enumerate(value)
    )
    if math.prod(size for size in shape if size) > MOST_TOKENS:
        raise ValueError(
            f"{name} must be a shape of at most 2**40 tokens in all; got {shown(value)}; write "
            "fewer rows at a time."
        )
    return shape


def as_rng(rng: object) -> np.random.Generator:
    """Return ``rng`` if it is a source of randomness, which alone makes a draw repeatable."""
    if isinstance(rng, np.random.Generator):
        return rng
    raise TypeError(
        f"rng must be a numpy.random.Generator; got {shown(rng)}; write numpy.random.default_rng("
        "seed)."
    )


def as_flag(name: str, value: object) -> bool:
    """Return ``value`` if it is True or False."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(f"{name} must be True or False; got {shown(value)}; write one of the two.")


def as_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    listed = ", ".join(repr(choice) for choice in choices)
    if not isinstance(value, str):
        raise TypeError(f"{name} must be one of {listed}; got {shown(value)}; write its name.")
    if value not in choices:
        raise ValueError(f"{name} must be one of {listed}; got {value!r}; write one of these.")
    return value


def as_shared_axes(name: str, value: object) -> str:
    """Return the letters of the axes that share blocks, sorted."""
    rule = "a string of letters, one for each mask axis that shares blocks, such as 'lh', 'h' or ''"
    if not isinstance(value, str):
        raise TypeError(f"{name} must be {rule}; got {shown(value)}; write the letters.")
    if "t" in value:
        raise ValueError(f"{name} must be {rule}; got {value!r}; leave out 't', which blocks cut.")
    _refuse_odd_letters(name, rule, value)
    return "".join(sorted(value))


def as_demands(demands: object) -> list[int]:
    """Return how many blocks each request needs."""
    rule, hint = "the blocks that each request needs", "write a list, such as [8, 8]"
    return [
        as_count("demands", demand, minimum=1)
        for demand in as_items("demands", demands, rule, hint)
    ]


def as_items(name: str, value: object, rule: str, hint: str) -> list[Any]:
    """Return the items of whatever can be gone through, which text and single values cannot."""
    single = isinstance(value, str | bytes) or getattr(value, "ndim", 1) == 0
    if isinstance(value, Iterable) and not single:
        return list(value)
    raise TypeError(f"{name} must be {rule}; got {shown(value)}; {hint}.")


def as_axes(axes: object, shape: tuple[int, ...], shared_axes: str, *, name: str = "keep") -> str:
    """Return a letter for each axis of an array; unnamed axes where nothing shares become ``?``."""
    if axes is None:
        if len(shape) == 1:
            return "t"
        if not shared_axes:
            return "?" * (len(shape) - 1) + "t"
        some = list(_USUAL_AXES.items())[-len(shape) :]
        raise ValueError(
            f"axes must name the {len(shape)} axes of {name}, since the pool lets the rows of "
            f"{shared_axes!r} share blocks; got {name} of shape {shape} and no axes; write one "
            f"letter an axis and 't' for tokens, such as axes={''.join(dict(some))!r} "
            f"({', '.join(dict(some).values())})."
        )
    rule = f"a string of one letter for each axis of {name}, 't' for tokens"
    letters = _as_letters(axes, shape, rule, name=name, example="lht")
    if "t" not in letters:
        raise ValueError(
            f"axes must be {rule}; got {letters!r} without 't'; name the token axis 't'."
        )
    return letters


def as_axes_tokens_last(axes: object, shape: tuple[int, ...], shared_axes: str) -> str:
    """Return the letters of an array whose last axis is tokens, as packed bits have it."""
    letters = as_axes(axes, shape, shared_axes)
    if letters[-1] != "t":
        raise ValueError(
            f"axes must end in 't', the axis along which bits are packed; got {letters!r}; write "
            "numpy.moveaxis(keep, axis, -1), and the letters in that order."
        )
    return letters


def as_score_axes(axes: object, shape: tuple[int, ...], *, name: str, last: str, of: str) -> str:
    """Return a letter for each axis of scores that end in ``last``, where ``of`` choose together.

    Unnamed axes become ``?`` where no rows choose together.
    """
    ends = " and ".join(map(repr, last))
    rule = f"a string of one letter for each axis of {name}, {ends} among them"
    if len(shape) < len(last):
        raise ValueError(
            f"{name} must have the axes {last!r}, 'q' for queries and 't' for tokens; got shape "
            f"{shape}; write such as {name}[None] for one query."
        )
    if axes is None:
        if len(shape) > len(last) and of:
            raise ValueError(
                f"axes must name the {len(shape)} axes of {name}, since the rows along {of!r} are "
                f"chosen together; got {name} of shape {shape} and no axes; write one letter an "
                f"axis, such as axes={'lh' + last!r}."
            )
        return "?" * (len(shape) - len(last)) + last
    letters = _as_letters(axes, shape, rule, name=name, example="lh" + last)
    missing = next((letter for letter in last if letter not in letters), None)
    if missing is not None:
        raise ValueError(
            f"axes must be {rule}; got {letters!r} without {missing!r}; name the axis of "
            f"{'queries' if missing == 'q' else 'tokens'} {missing!r}."
        )
    return letters


def _as_letters(axes: object, shape: tuple[int, ...], rule: str, *, name: str, example: str) -> str:
    """Return the letters that were given, one for each axis of the array of this name."""
    if not isinstance(axes, str):
        raise TypeError(f"axes must be {rule}; got {shown(axes)}; write such as axes={example!r}.")
    _refuse_odd_letters("axes", rule, axes)
    if len(axes) != len(shape):
        raise ValueError(
            f"axes must be {rule}; got {axes!r} for {name} of shape {shape}; "
            f"write {len(shape)} letter{'s' * (len(shape) != 1)}."
        )
    return axes


def _refuse_odd_letters(name: str, rule: str, value: str) -> None:
    if value.lower() in _NO_LETTERS:
        hint = "write a letter for each axis, such as 'lht' for layer, kv head, token"
        if name == "shared_axes":
            hint = (
                "write 'h' for a table for each layer, 'lh' for one table for all, '' for a table "
                "for each layer and head"
            )
        raise ValueError(f"{name} must be {rule}; got the word {value!r}; {hint}.")
    odd = next((letter for letter in value if not (letter.isascii() and letter.isalpha())), None)
    if odd is not None:
        raise ValueError(f"{name} must be {rule}; got {value!r}; {odd!r} is no letter from a to z.")
    if len(set(value)) != len(value):
        raise ValueError(f"{name} must be {rule}; got {value!r}; write each letter once.")


def as_keep(keep: object, name: str = "keep") -> NDArray[np.bool_]:
    """Return a keep-mask as a boolean array, without a copy where it is one already."""
    if type(keep) is np.ndarray:
        array = keep
    else:
        _refuse_record(name, keep)
        array = as_array(name, keep, _KEEP_RULE)
    if array.ndim == 0:
        raise ValueError(
            f"{name} must have a token axis; got a single value; write such as [True, False]."
        )
    if array.dtype != np.bool_:
        if array.size == 0 and isinstance(keep, list | tuple):
            return array.astype(np.bool_)  # an empty list says nothing of its kind
        array = _booleans_from_integers(name, _with_own_dtype(array), dtype_name(keep, array))
    return array


_KEEP_RULE: Final = "an array of True and False, True where a token stays"
_PAIR: Final = [np.bool_, np.int64]  # what `from_list` and its kin return


def _refuse_record(name: str, value: object) -> None:
    """Refuse what holds a mask, or was counted from one, and say how to write its parts."""
    kind = type(value)
    if hasattr(kind, "keep"):
        held = "saved" if hasattr(kind, "axes") else "found"
        parts = [part for part in ("axes", "lengths", "offset") if hasattr(kind, part)]
        what = f"{kind.__name__}, which holds more than a mask"
        hint = ", ".join([f"{held}.keep", *(f"{part}={held}.{part}" for part in parts)])
    elif hasattr(kind, "census"):
        what = f"{kind.__name__}, which holds a census"
        hint = "its .census, where a Census is taken"
    elif isinstance(value, tuple) and [getattr(part, "dtype", 0) for part in value] == _PAIR:
        what, hint = "a pair of a mask and lengths", "pair[0], lengths=pair[1]"
    else:
        return
    raise TypeError(f"{name} must be {_KEEP_RULE}; got {what}; write {hint}.")


def _booleans_from_integers(name: str, array: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    kind = array.dtype.kind
    rule = f"{name} must be True and False, or integers that are all 0 and 1"
    if kind in "iu":
        if array.size == 0 or (int(array.min()) >= 0 and int(array.max()) <= 1):
            return array.view(np.bool_) if array.dtype.itemsize == 1 else array.astype(np.bool_)
        others = (array != 0) & (array != 1)
        first = first_of(others)
        raise ValueError(
            f"{rule}; got {dtype} with {np.count_nonzero(others)} of {array.size} values other "
            f"than 0 and 1, the first {int(array[first])} at index {index_text(first)}; write "
            f"{name} != 0 if every other value means kept, kvreclaim.masks.from_indices(...) if "
            "these are positions, kvreclaim.masks.from_packed(...) if these are packed bits."
        )
    if kind == "f":
        raise TypeError(f"{rule}; got an array of {dtype}{_float_hint(name, array)}.")
    if array.size == 0 and kind == "O":
        hint = "write numpy.zeros(0, bool) for no tokens"
    elif kind == "O" and isinstance(array.flat[0], list | tuple | np.ndarray):
        hint = "write kvreclaim.masks.from_list(rows) for rows of different lengths"
    elif kind == "O":
        hint = f"write {name}.astype(bool) if every value is True or False"
    elif kind in "USV":
        hint = "write booleans, such as [c == '1' for c in text]"
    else:
        hint = "write a boolean array that says which tokens stay"
    raise TypeError(f"{rule}; got an array of {dtype}; {hint}.")


def _float_hint(name: str, array: NDArray[np.floating[Any]]) -> str:
    nan = np.isnan(array)
    if nan.any():
        first = first_of(nan)
        return (
            f" with {np.count_nonzero(nan)} NaN, the first at index {index_text(first)}, "
            f"which is neither kept nor evicted; decide what NaN means, such as {name} == 1"
        )
    additive = f"kvreclaim.masks.from_additive({name})"
    if array.size and float(array.max()) <= 0 and float(array.min()) < 0:
        return f", an additive mask (0 = kept, -inf = evicted); write {additive}"
    return (
        f"; write {name} == 1 if these are 0.0 and 1.0, {additive} for an additive mask (0 = kept, "
        "-inf = evicted), or choose the kept tokens first if these are scores"
    )


def as_importance(value: object, name: str = "importance") -> NDArray[np.float64]:
    """Return scores as float64: up to 1e300 in size, or +inf for a token that must stay."""
    rule = "an array of numbers, one for each token, +inf for one that must stay"
    array = _with_own_dtype(as_array(name, value, rule))
    if array.dtype.kind not in "iuf":
        mask = array.dtype.kind == "b"
        hint = "write the scores it was made from" if mask else "write numbers"
        raise TypeError(
            f"{name} must be {rule}; got an array of {dtype_name(value, array)}; {hint}."
        )
    if array.ndim == 0:
        raise ValueError(
            f"{name} must have a token axis; got a single value; write such as [0.5, 0.1]."
        )
    wide = array.dtype.kind == "f" and array.dtype.itemsize > 8  # noqa: PLR2004  # bytes of float64
    scores = array if wide else array.astype(np.float64, copy=False)
    wrong = ~(scores > -math.inf)
    if wrong.any():
        first = first_of(wrong)
        raise ValueError(
            f"{name} must be {rule}; got {np.count_nonzero(wrong)} values that are NaN or -inf, "
            f"the first {scores[first]} at index {index_text(first)}; write what they are worth, "
            "such as 0.0."
        )
    largest = max(scores.max(initial=0.0), -scores.min(initial=0.0))
    if largest > MOST_IMPORTANCE:
        _refuse_vast(name, scores)
    if largest >= _WHOLE:  # to which the next integer is rounded
        _refuse_merged(name, value, array)
    with np.errstate(under="ignore"):  # of a longer float, what float64 holds as 0
        return scores.astype(np.float64, copy=False)


def _refuse_vast(name: str, scores: NDArray[np.floating[Any]]) -> None:
    """Refuse finite scores that a few sums would take out of the range of a float."""
    wrong = (np.abs(scores) > MOST_IMPORTANCE) & np.isfinite(scores)
    if wrong.any():
        first = first_of(wrong)
        raise ValueError(
            f"{name} must be at most {MOST_IMPORTANCE:g} in size, or +inf; got "
            f"{np.count_nonzero(wrong)} values beyond, the first {scores[first]!s} at index "
            f"{index_text(first)}; divide all by the largest."
        )


def _refuse_merged(name: str, value: object, array: NDArray[Any]) -> None:
    """Refuse integers that float64 would round, and so make equal to others."""
    if array.dtype.kind in "iu":
        high = array >> 32  # both halves are exact as float64
        low = array - (high << 32)
        wrong = array.astype(np.float64) - high * 2.0**32 != low
        first = first_of(wrong)
        found = int(array[first]) if wrong.any() else None
    elif isinstance(value, list | tuple):  # NumPy has made floats of integers beside floats
        items = np.array(value, object)
        wrong = np.array(
            [
                isinstance(item, int | np.integer) and int(item) != int(float(item))
                for item in items.flat
            ]
        ).reshape(items.shape)
        first = first_of(wrong)
        found = int(items[first]) if wrong.any() else None
    else:
        return
    if found is not None:
        raise ValueError(
            f"{name} must be numbers that float64 holds exactly where they are integers; got "
            f"{found} at index {index_text(first)}, which it rounds; subtract what they have in "
            "common, or write floats."
        )


def as_samples(
    name: str, value: object, *, columns: bool = False
) -> NDArray[np.float64 | np.int64]:
    """Return finite numbers, one for each sample; with ``columns`` a row of them for each."""
    rule = "finite numbers, one for each sample"
    array = as_array(name, value, rule)
    if array.dtype.kind not in "iuf":
        raise TypeError(
            f"{name} must be {rule}; got an array of {dtype_name(value, array)}; write numbers."
        )
    if array.ndim != 1 and not (columns and array.ndim == 2 and array.shape[1]):  # noqa: PLR2004  # rows and columns
        also = ", or of shape (n, k)" if columns else ""
        raise ValueError(
            f"{name} must be {rule}, of shape (n,){also}; got shape {array.shape}; write a flat "
            "list."
        )
    wrong = ~np.isfinite(array)
    if wrong.any():
        first = first_of(wrong)
        raise ValueError(
            f"{name} must be {rule}; got {np.count_nonzero(wrong)} of {array.size} that are nan or "
            f"infinite, the first {array[first]} at index {index_text(first)}; leave out the "
            "samples for which the figure is undefined, and say how many they were."
        )
    if not array.size:  # an empty list says nothing of its kind
        array = array.astype(np.int64)
    with np.errstate(under="ignore"):  # of a longer float, what float64 holds as 0
        numbers = array.astype(np.float64) if array.dtype.kind == "f" else as_integers(name, array)
    return numbers.reshape(-1, 1) if columns and array.ndim == 1 else numbers


def as_confidence(value: object) -> float:
    """Return a confidence level, between 0 and 1."""
    rule = "a number between 0 and 1, neither of them included"
    number = _as_real("confidence", value, rule)
    if not 0 < number < 1:
        raise ValueError(f"confidence must be {rule}; got {number}; write 0.95 for 95 %.")
    return number


def as_bounds(
    name: str, value: object, values: Sequence[float], *, of: str = "values"
) -> tuple[float, float]:
    """Return the least and the greatest value that can be, between which all values lie."""
    rule = "two finite numbers, the lower one first"
    array = as_array(name, value, rule)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be {rule}; got {shown(value)}; write such as (0, 1).")
    numbers = array.tolist() if array.shape == (2,) else []
    if not (numbers and -math.inf < numbers[0] < numbers[1] < math.inf):
        raise ValueError(f"{name} must be {rule}; got {shown(value)}; write such as (0, 1).")
    low, high = map(float, numbers)
    for index, number in enumerate(values):
        if not low <= number <= high:
            raise ValueError(
                f"{of} must lie within {name}, {low} to {high}; got {number} at index {index}; "
                "write the bounds of what was measured."
            )
    return low, high


def refuse_unpaired(name: str, array: NDArray[Any], other_name: str, other: NDArray[Any]) -> None:
    """Refuse arrays of different numbers of samples."""
    if len(array) != len(other):
        raise ValueError(
            f"{name} must have a sample for each of the {len(other)} of {other_name}; got "
            f"{len(array)}; write both for the same sequences, in the same order."
        )


def refuse_huge(name: str, array: NDArray[Any]) -> None:
    """Refuse numbers whose products of sums might leave the range of floats."""
    largest = max(map(abs, array.reshape(-1).tolist()), default=0)
    if largest > _MOST:
        raise ValueError(
            f"{name} must be at most {_MOST:g} in size; got {largest}; write them in a larger unit."
        )


def refuse_negative(name: str, array: NDArray[Any]) -> None:
    """Refuse numbers below 0."""
    wrong = array < 0
    if wrong.any():
        first = first_of(wrong)[0]
        raise ValueError(
            f"{name} must be at least 0; got {array[wrong][0]} at index {first}; write what there "
            "was before eviction."
        )


def as_integers(name: str, value: object) -> NDArray[np.int64]:
    """Return positions, offsets or lengths as 64-bit integers."""
    array = as_array(name, value, "integers")
    kind = array.dtype.kind
    if kind not in "iu" and array.size:
        hint = (
            "a boolean mask says itself which tokens it means and needs no converter from positions"
            if kind == "b"
            else "write whole numbers, astype(int) if they are whole already"
        )
        raise TypeError(
            f"{name} must be integers; got an array of {dtype_name(value, array)}; {hint}."
        )
    if kind == "u" and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise ValueError(
            f"{name} must fit in 64 bits with a sign; got {int(array.max())}; write a fill value "
            "such as -1 instead."
        )
    return array.astype(np.int64, copy=False)


def as_array(name: str, value: object, rule: str) -> NDArray[Any]:
    """Return whatever holds numbers as a NumPy array: on the host, dense, a view where one will do.

    Tensors of other libraries are known by their methods; no library is imported.
    """
    if type(value) is np.ndarray:
        return _with_own_dtype(value)
    if isinstance(value, np.ma.MaskedArray):
        hint = f"write {name}.filled(...) with what the masked values mean"
        if rule == _KEEP_RULE:
            hint = (
                f"write {name}.filled(False) if those tokens were evicted, or kvreclaim.masks."
                f"from_padded({name}.data, ~{name}.mask) if they are padding"
            )
        raise TypeError(
            f"{name} must be {rule}; got a numpy.ma masked array, whose masked values mean neither "
            f"one thing nor the other; {hint}."
        )
    if value is None or isinstance(value, str | bytes | bytearray | dict | set | frozenset):
        raise TypeError(f"{name} must be {rule}; got {shown(value)}; write an array or a list.")
    if isinstance(value, list | tuple):
        return _from_list(name, value, rule)
    if getattr(value, "is_nested", False) is True:
        raise TypeError(
            f"{name} must be {rule}; got a nested tensor, whose rows differ in length; write "
            f"{name}.unbind() where a list of rows is taken, such as kvreclaim.masks.from_list."
        )
    if getattr(value, "is_meta", False) is True:
        raise TypeError(
            f"{name} must be {rule}; got a tensor on the meta device, which has a shape but no "
            "values; write one that holds them."
        )
    try:
        array = _on_host(value)
    except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
        traced = "Tracer" in type(error).__name__
        raise TypeError(
            f"{name} must be {rule}; got a traced jax array, whose values are not known yet; call "
            "outside jit."
            if traced
            else f"{name} must be {rule}; got a {type(value).__name__} whose values NumPy cannot "
            "read; write a plain array of them, made outside of any tracing."
        ) from error
    if array.dtype.kind == "O" and array.ndim == 0:
        _refuse_huge(name, array)
        raise TypeError(f"{name} must be {rule}; got {shown(value)}; write an array or a list.")
    return _with_own_dtype(array)


def _from_list(name: str, value: Sequence[Any], rule: str) -> NDArray[Any]:
    _refuse_masked(name, value, rule)
    try:
        try:
            array = np.asarray(value)
        except (TypeError, RuntimeError):  # tensors that must be copied to the host one by one
            items = [as_array(f"{name}[{i}]", item, rule) for i, item in enumerate(value)]
            array = np.asarray(items)
    except ValueError:
        raise ValueError(
            f"{name} must be {rule}, in rows of one length; got a list that makes no array; pad "
            "it, as kvreclaim.masks.from_list(rows) does for masks."
        ) from None
    _refuse_huge(name, array)
    return _with_own_dtype(array)


def _refuse_masked(name: str, items: Sequence[Any], rule: str, depth: int = _MOST_AXES) -> None:
    """Refuse masked arrays inside of lists, of which NumPy would take the data."""
    for index, item in enumerate(items):
        if isinstance(item, np.ma.MaskedArray):
            as_array(f"{name}[{index}]", item, rule)
        elif isinstance(item, list | tuple) and depth:
            _refuse_masked(f"{name}[{index}]", item, rule, depth - 1)


def _refuse_huge(name: str, array: NDArray[Any]) -> None:
    """Refuse integers for which NumPy has no type."""
    if array.dtype.kind != "O":
        return
    huge = (item for item in array.flat if isinstance(item, int) and item.bit_length() > _BITS)
    for number in huge:
        raise ValueError(
            f"{name} must fit in 64 bits; got an integer of {number.bit_length()}; write a smaller "
            "one."
        )


def _on_host(value: Any) -> NDArray[Any]:  # noqa: ANN401  # an array of any library
    if hasattr(value, "detach"):  # torch
        tensor = value.detach()
        if str(getattr(tensor, "layout", "torch.strided")) != "torch.strided":
            tensor = tensor.to_dense()
        tensor = tensor.cpu()
        try:
            return np.asarray(tensor)
        except (
            TypeError
        ):  # bfloat16 and 8-bit floats, which NumPy does not have: float32 holds them
            return np.asarray(tensor.float())
    if hasattr(value, "__cuda_array_interface__") and hasattr(value, "get"):  # cupy
        return np.asarray(value.get())
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def _with_own_dtype(array: NDArray[Any]) -> NDArray[Any]:
    """Return values of a dtype that NumPy got from another library (bfloat16) in one of its own."""
    name = array.dtype.name
    if array.dtype.kind != "V" or array.dtype.names is not None or name.startswith("void"):
        return array
    return array.astype(np.int8 if "int" in name else np.float32)


def dtype_name(value: object, array: NDArray[Any]) -> str:
    """Return the name of the dtype that came, which NumPy may not have."""
    came = None if isinstance(value, np.ndarray) else getattr(value, "dtype", None)
    return array.dtype.name if came is None else str(came).rpartition(".")[2]


def as_read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that cannot be written to, as a field of a frozen record."""
    copy = np.array(array)
    copy.flags.writeable = False
    return copy


def as_bits(
    bits: object, num_tokens: object, bitorder: object
) -> tuple[NDArray[np.uint8], int, Literal["big", "little"]]:
    """Return packed bits, their tokens and their order, where no bit stands beyond the tokens."""
    order: Literal["big", "little"]
    order = "little" if as_choice("bitorder", bitorder, ("big", "little")) == "little" else "big"
    tokens = as_count("num_tokens", num_tokens)
    array = as_array("bits", bits, "packed in an array of uint8")
    if array.dtype != np.uint8:
        raise TypeError(
            f"bits must be packed in an array of uint8; got {array.dtype.name}; write "
            "numpy.packbits(keep, axis=-1)."
        )
    if array.ndim == 0 or array.shape[-1] != -(-tokens // 8):
        raise ValueError(
            f"bits must have ceil(num_tokens / 8) = {-(-tokens // 8)} bytes in the last axis for "
            f"num_tokens={tokens}; got shape {array.shape}; write the true num_tokens."
        )
    if tokens % 8:
        beyond = 0xFF >> tokens % 8 if order == "big" else 0xFF << tokens % 8 & 0xFF
        if (array[..., -1] & np.uint8(beyond)).any():
            raise ValueError(
                f"bits must be 0 beyond num_tokens={tokens}; got bits set there; write the true "
                f"num_tokens, or bitorder={'little' if order == 'big' else 'big'!r}."
            )
    return array, tokens, order


def as_per_table(
    name: str,
    value: object,
    *,
    letters: str,
    sizes: tuple[int, ...],
    maximum: int,
    hint: str,
    of: str = "keep",
) -> NDArray[np.int64]:
    """Return one integer from 0 to ``maximum`` for each table, in row-major order.

    ``value`` has one axis for each outer letter, of the letter's size or 1; a flat array belongs
    to the only outer letter, or to letter ``b``.
    """
    array = as_array(name, value, "integers")
    if array.dtype.kind not in "iu":
        if array.size:
            raise TypeError(
                f"{name} must be integers; got {shown(value)} of type {array.dtype.name}; {hint}."
            )
        array = array.astype(np.int64)
    if array.ndim == 1 and len(sizes) != 1 and "b" in letters:
        array = array.reshape([-1 if letter == "b" else 1 for letter in letters])
    fits = array.ndim == 0 or (
        array.ndim == len(sizes)
        and all(got in (1, size) for got, size in zip(array.shape, sizes, strict=True))
    )
    if not fits:
        named = letters.replace("?", "-")
        raise ValueError(
            f"{name} must have one axis for each axis of {of} that is neither tokens nor shared "
            f"({named!r} of shape {sizes}, or size 1 to repeat); got shape {array.shape}; {hint}."
        )
    wrong = (array < 0) | (array > maximum)
    if wrong.any():
        first = first_of(wrong)
        at = f" at index {index_text(first)}" if first else ""
        raise ValueError(
            f"{name} must be from 0 to {maximum}; got {int(array[first])}{at}; {hint}."
        )
    return np.broadcast_to(array.astype(np.int64), sizes).reshape(-1)


def refuse_revival(before: object, after: object) -> None:
    """Refuse masks of different shapes, and a token that is evicted before and kept after."""
    first, then = as_keep(before, "before"), as_keep(after, "after")
    if first.shape != then.shape:
        raise ValueError(
            f"after must have the shape of before, {first.shape}; got {then.shape}; write both "
            "masks over the same tokens."
        )
    revived = then & ~first
    if revived.any():
        at = index_text(first_of(revived))
        raise ValueError(
            f"after must keep only what before keeps; got {np.count_nonzero(revived)} tokens that "
            f"come back to life, the first at index {at}; write the masks in the order of time."
        )


def is_zero(value: object) -> bool:
    """Return whether an offset is the plain 0 that stands for none."""
    return type(value) is int and value == 0


def beyond_length(index: tuple[Any, ...], token: int, length: int) -> ValueError:
    """Return the error for a kept token that a sequence of this length does not have."""
    where = f" of sequence {index_text(index)}" if index else ""
    return ValueError(
        f"{BEYOND_LENGTHS}; got True at token {token}{where}, which has "
        f"{length} token{'s' * (length != 1)}; write the true lengths, or "
        "kvreclaim.masks.from_padded(keep, valid) for padding on the left."
    )


def first_of(wrong: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the index of the first True."""
    return tuple(int(part) for part in np.unravel_index(int(wrong.argmax()), wrong.shape))


def index_text(index: tuple[Any, ...]) -> str:
    """Return an index as it is written: a number, or numbers in brackets."""
    numbers = tuple(int(part) for part in index)
    return str(numbers[0]) if len(numbers) == 1 else str(numbers)


def shown(value: object) -> str:
    """Return a short picture of what came: its type, and its value where that is short."""
    text = repr(value)
    kind = type(value).__name__
    return f"{kind} {text}" if len(text) <= _SHORT and "\n" not in text else f"a {kind}"
