"""Masks as text: rows of 0 and 1, JSON, and JSON lines.

A row of text is 0s and 1s, side by side or with one separator between any two; one line is one row,
several make a mask of (lines, tokens), all of one length.

A JSON document is a nested list of 0 and 1, or an object that holds ``num_tokens`` and ``kept``
(the positions that each row keeps) or ``runs`` (their ``[start, stop)``), nested as ``axes`` says,
or ``keep`` (nested 0 and 1); it may hold ``axes``, ``lengths``, ``offset``, ``born_at``,
``evicted_at`` and ``meta``, and an object of such objects, or lists, holds masks by name; what of
these stands beside them holds for each that does not say it itself. In JSON lines each
line is one sequence, of its own ``num_tokens``: they make one mask, padded, with lengths, whose
first axis is ``b``; its meta has a list ``lines`` of theirs. Any other key is refused: it may say
what would change the figures.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks, masks
from kvreclaim._formats.arrays import (
    BESIDE,
    Array,
    beside,
    integers,
    known,
    last_of,
    made,
    mask_of,
    named,
    text,
)
from kvreclaim._formats.reading import read
from kvreclaim._positions import depth

_BOM: Final = b"\xef\xbb\xbf"
_SEPARATORS: Final = b", ;\t"
_ONE: Final = ord("1")  # the character 0 differs from it in the last bit alone
_MOST_LISTS: Final = 65  # rows of as many axes as NumPy has, but tokens; positions, or runs
_MOST_TOKENS: Final = (1 << 63) - 1
_FORMS: Final = ("kept", "runs", "keep")


def arrays_in_text(where: str, data: bytes) -> dict[str, Array]:
    """Return the mask of lines of 0 and 1."""
    lines = data.removeprefix(_BOM).split(b"\n")
    if len(lines) > 1 and not lines[-1]:
        del lines[-1]
    rows: list[NDArray[np.uint8]] = []
    for number, line in enumerate(lines, 1):
        row = _row(f"{where}, line {number}", line.removesuffix(b"\r"))
        if rows and len(row) != len(rows[0]):
            raise ValueError(
                f"{where}, line {number} must have {len(rows[0])} tokens, as the lines before; got "
                f"{len(row)}; write sequences of different lengths as JSON lines of num_tokens and "
                "kept."
            )
        rows.append(row)
    return {"keep": known(where, rows[0] if len(rows) == 1 else rows)}


def _row(where: str, line: bytes) -> NDArray[np.uint8]:
    """Return the 0s and 1s of a line, side by side or separated."""
    characters = np.frombuffer(line, np.uint8)
    separated = len(line) > 1 and line[1] in _SEPARATORS
    wrong = (characters | 1) != _ONE
    if separated:
        wrong[1::2] = characters[1::2] != line[1]
        wrong[len(line) - 1 :] |= len(line) % 2 == 0
    if wrong.any() or not line:
        at = int(wrong.argmax()) if line else 0
        raise ValueError(
            f"{where} must be 0s and 1s, side by side or with one ',', ' ', ';' or tab between; "
            f"got {line[at : at + 1].decode('latin1')!r} at column {at + 1}; write one row a line "
            "and no header."
        )
    return characters[:: 2 if separated else 1] & np.uint8(1)


def arrays_in_json(where: str, data: bytes) -> dict[str, Array]:
    """Return the masks of a JSON document, or of JSON lines where it is several."""
    try:
        document = _parsed(where, _decoded(where, data))
    except _SeveralDocuments:
        return arrays_in_json_lines(where, data)
    if not isinstance(document, dict) or any(key in document for key in (*_FORMS, "num_tokens")):
        return _mask(where, document)
    said = {name: value for name, value in document.items() if not isinstance(value, dict)}
    around, used = beside([name for name in document if last_of(name) not in BESIDE], said)
    return {
        f"{name}/{part}" if name else part: array
        for name, inner in document.items()
        if name not in used
        for part, array in _one_of_several(where, name, inner, around.get(name, {})).items()
    }


def _one_of_several(
    where: str, name: str, document: object, around: Mapping[str, Any]
) -> dict[str, Array]:
    """Return the parts of a mask that has a name, and of those around it what it does not say."""
    own = document if isinstance(document, dict) else {}
    there = {part: value for part, value in around.items() if own.get(part) is None}
    shared = {
        part: known(f"{where}, {part!r}", value)._replace(shared=True)
        for part, value in there.items()
        if value is not None
    }
    return _mask(f"{where}, mask {name!r}", {**own, **there} if own else document) | shared


def arrays_in_json_lines(where: str, data: bytes) -> dict[str, Array]:
    """Return the one mask of JSON lines, a sequence each."""
    sequences: list[tuple[str, dict[str, Array]]] = []
    for number, line in enumerate(_decoded(where, data).split("\n"), 1):
        if line.strip():
            here = f"{where}, line {number}"
            sequences.append((here, _mask(here, _parsed(here, line))))
    opened = [mask_of(parts) for _, parts in sequences]
    axes = [text(parts["axes"]) if "axes" in parts else None for _, parts in sequences]
    outer = opened[0].shape[:-1]
    for (here, parts), mask, letters in zip(sequences, opened, axes, strict=True):
        _refuse_parts_of_line(here, parts, letters)
        if mask.shape[:-1] != outer or letters != axes[0]:
            raise ValueError(
                f"{here} must have the rows and the axes of the lines before, {outer} and "
                f"{axes[0]!r}; got {mask.shape[:-1]} and {letters!r}; write them to another file."
            )
    lengths = np.array([mask.shape[-1] for mask in opened], np.int64)
    shape = (len(opened), *outer, int(lengths.max()))
    parts_of = [parts for _, parts in sequences]
    keep = made(where, shape, np.dtype(np.bool_), lambda: _padded(parts_of, shape))
    arrays = {"keep": keep._replace(kept_as=max(mask.kept_as for mask in opened))}
    if axes[0] is not None:
        arrays["axes"] = known(where, f"b{axes[0]}")
    if (lengths < shape[-1]).any():
        arrays["lengths"] = known(where, lengths)
    notes = [json.loads(text(parts["meta"])) if "meta" in parts else {} for _, parts in sequences]
    if any(notes):
        arrays["meta"] = known(where, json.dumps({"lines": notes}))
    offsets = [integers(parts["offset"]) if "offset" in parts else 0 for _, parts in sequences]
    if any("offset" in parts for _, parts in sequences):
        arrays["offset"] = known(where, offsets)
    return arrays


def _refuse_parts_of_line(here: str, parts: Mapping[str, Array], letters: str | None) -> None:
    """Refuse what a line, which is one sequence among others, cannot say."""
    if "lengths" in parts or "b" in (letters or ""):
        raise ValueError(
            f"{here} must be one sequence, of num_tokens tokens; got lengths or axis 'b'; "
            "write a line for each sequence."
        )
    if letters is not None and letters[-1:] != "t":
        raise ValueError(
            f"{here} must have axes that end in 't', since lines differ in their tokens; got "
            f"{letters!r}; write a list of tokens for each row."
        )
    if "born_at" in parts or "evicted_at" in parts:
        raise ValueError(
            f"{here} must have no births and evictions, for which lines of JSON have no form; got "
            "some; save them with kvreclaim.save_masks."
        )


def _padded(sequences: list[dict[str, Array]], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    keep = np.zeros(shape, np.bool_)
    for row, mask in zip(keep, map(mask_of, sequences), strict=True):
        row[..., : mask.shape[-1]] = read(mask, math.prod(max(size, 1) for size in shape))
    return keep


class _SeveralDocuments(Exception):  # noqa: N818  # never leaves this file
    """Raised where a JSON document is followed by more."""


def _decoded(where: str, data: bytes) -> str:
    try:
        return data.removeprefix(_BOM).decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{where} must be text in UTF-8; got byte {data[error.start]:#x} at {error.start}; "
            "write it anew."
        ) from None


def _parsed(where: str, document: str) -> Any:  # noqa: ANN401  # whatever JSON holds
    try:
        return json.loads(document, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError:
        found = "lists nested too deeply"
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and "\n" in document.strip():
            raise _SeveralDocuments from None
        found = str(error)
    except ValueError as error:
        found = str(error)
    raise ValueError(f"{where} must be a JSON document; got {found}; write it anew.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) < len(pairs):
        raise ValueError("a name that stands twice in one object")
    return names


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name}, which is no JSON")


def _mask(where: str, document: object) -> dict[str, Array]:
    """Return the parts of one mask."""
    if isinstance(document, list):
        return {"keep": known(where, document)}
    found = document if isinstance(document, dict) else {}
    forms = [form for form in _FORMS if form in found]
    if len(forms) != 1:
        raise ValueError(
            f"{where} must be a list of 0 and 1, or an object with one of 'kept', 'runs' and "
            f"'keep'; got {sorted(found) if found else _checks.shown(document)!r:.200}; write such "
            'as {"axes": "ht", "num_tokens": 8, "kept": [[0, 7], [3]]}.'
        )
    _refuse_other_keys(where, forms[0], found)
    parts = {
        part: known(f"{where}, {part!r}", found[part])
        for part in BESIDE
        if found.get(part) is not None
    }
    if found.get("meta") is not None:
        parts["meta"] = known(f"{where}, 'meta'", json.dumps(found["meta"]))
    if forms == ["keep"]:
        keep = known(f"{where}, 'keep'", found["keep"])
    else:
        keep = _from_rows(where, forms[0], found)
    return parts | {"keep": keep._replace(kept_as=forms[0])}


def _refuse_other_keys(where: str, form: str, found: Mapping[str, Any]) -> None:
    """Refuse a key that nothing reads: a name misspelt, or what is meant otherwise."""
    keys = (form, *BESIDE, "meta") if form == "keep" else ("num_tokens", form, *BESIDE, "meta")
    other = next((key for key in found if key not in keys), None)
    if other is not None:
        near = difflib.get_close_matches(other.lower(), keys, n=1, cutoff=0.7)
        if other in ("evicted", "dropped"):
            hint = "write the tokens that stay, and leave out the others"
        elif near:
            hint = f"write {near[0]!r} if that is meant, or put it into 'meta' if only you read it"
        else:
            hint = "put what only you read into 'meta', and leave out the rest"
        raise ValueError(
            f"{where} must have no other keys than {', '.join(keys)}; got {other!r:.80}; {hint}."
        )


def _from_rows(where: str, form: str, found: Mapping[str, Any]) -> Array:
    """Return the mask of rows of kept positions, or of runs."""
    axes, lists = found.get("axes"), _depth(where, found[form])
    if axes is None:  # the caller may name them
        axes = "?" * (lists - (1 if form == "kept" else 2)) + "t"
    if not isinstance(axes, str) or axes[-1:] != "t":
        raise ValueError(
            f"{where} must have axes that end in 't'; got {_checks.shown(axes)}; write the letters "
            f"of the lists in {form!r}, then 't'."
        )
    if "num_tokens" not in found:
        raise ValueError(
            f"{where} must have num_tokens beside {form!r}; got none; write how many tokens a row "
            "has."
        )
    with named(where):
        tokens = _checks.as_count("num_tokens", found["num_tokens"], maximum=_MOST_TOKENS)
    outer: list[int] = []
    rows = [found[form]]
    for letter in axes[:-1]:
        sizes = {len(row) if isinstance(row, list) else None for row in rows}
        if len(sizes) > 1 or None in sizes:
            raise ValueError(
                f"{where} must have {form!r} in lists of one length for axis {letter!r} of "
                f"{axes!r}; got others; write a list for each axis but 't'."
            )
        outer.append(max((size or 0 for size in sizes), default=0))
        rows = [item for row in rows for item in row]
    make = functools.partial(_expanded, where, form, rows, tokens)
    return made(where, (*outer, tokens), np.dtype(np.bool_), make)


def _depth(where: str, rows: object) -> int:
    """Return how many lists lie in each other, at most as many as arrays have axes, and a run."""
    try:
        lists = depth(rows)
    except RecursionError:
        lists = sys.maxsize
    if lists > _MOST_LISTS:
        raise ValueError(
            f"{where} must be a JSON document; got lists nested too deeply; write it anew."
        )
    return lists


def _expanded(where: str, form: str, rows: list[Any], tokens: int) -> NDArray[np.bool_]:
    keep = np.zeros((len(rows), tokens), np.bool_)
    for i, row in enumerate(rows):
        with named(f"{where}, row {i} of {form!r}"):
            if form == "kept":
                kept = masks.from_indices(row, tokens)
            else:
                kept = masks.from_runs([row], tokens).reshape(-1)
            if kept.shape != (tokens,):
                raise ValueError(
                    "it must be one flat list; got lists in it; write the axes into the file, "
                    'such as "axes": "ht".'
                )
            keep[i] = kept
    return keep
