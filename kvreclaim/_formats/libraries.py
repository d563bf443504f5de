"""What the readers of other libraries' formats share; each imports its library when it reads.

A file is read before it is decoded, never mapped: a mapped file that is cut short kills the
process. What a library says of a file that it refuses is replaced, since some advise to load it
all the same.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kvreclaim._formats.arrays import Array, known

TEXTS: Final = ("axes", "bitorder", "meta")
NUMBERS: Final = ("lengths", "offset")


@contextmanager
def refusals(where: str, rule: str) -> Iterator[None]:
    """Say ourselves what a library refuses, whatever it raises."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # a library raises anything
        raise ValueError(
            f"{where} must be {rule}; got other data ({type(error).__name__} on reading it); "
            "write it anew."
        ) from None


def imported(where: str, module: str, extra: str) -> Any:  # noqa: ANN401  # a module
    """Return an optional package, or say how to get it."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  # a broken install raises anything
        raise ValueError(
            f"{where} must be handled by the package {module.partition('.')[0]}; got "
            f"{type(error).__name__} on importing it; write pip install 'kvreclaim[{extra}]'."
        ) from None


def note_as_array(where: str, part: str, note: object) -> Array:
    """Return what is written beside the arrays: a text, numbers, or numbers as JSON."""
    if part in TEXTS or not isinstance(note, str):
        return known(where, note)
    try:
        return known(where, json.loads(note))
    except (ValueError, RecursionError):
        raise ValueError(
            f"{where} must be numbers as JSON writes them; got {note[:80]!r}; write it anew."
        ) from None
