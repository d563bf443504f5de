"""Masks whose names, or whose files, say the opposite of how they were read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Mapping
from typing import Final

from kvreclaim._cli.inputs import SavedMask

_WORD: Final = r"(?<![^\W\d_])({})(?![^\W\d_])"  # of a name: no letter on either side
_OF_EVICTION: Final = re.compile(
    _WORD.format("dead|gone|evict(ed|ions?)?|drop(ped)?|discard(ed)?|(delet|eras|prun|remov)ed?"),
    re.IGNORECASE,
)
_OF_KEEPING: Final = re.compile(
    _WORD.format("keep|kept|live|alive|retain(ed)?|surviv(ed?|ors?|ing)"), re.IGNORECASE
)
_MOST_TOLD: Final = 3  # masks of a file, each by itself
_TIME_OF_EVICTION: Final = "evicted_at"  # of each token, no mask


def notes_on_polarity(masks: Iterable[SavedMask], options: argparse.Namespace) -> list[str]:
    """Return a note for each mask of which a name says the opposite of how it was read.

    Where the options say what True means, that is only what was meant for other files.
    """
    if options.polarity == "evict":
        words = {mask: mask.kept_as or _word_of_keeping(mask.array) for mask in masks}
        text = (
            "True was read as evicted, as --polarity says, though the file calls it {!r}; leave "
            "--polarity out, in a call of its own, if True means kept"
        )
        return _notes({mask: text.format(word) for mask, word in words.items() if word})
    if options.polarity == "keep":
        return []
    text = (
        "True was read as kept; write --polarity evict if it means evicted, --polarity keep if kept"
    )
    return _notes({mask: text for mask in masks if _says_eviction(mask)})


def _notes(of_each: Mapping[SavedMask, str]) -> list[str]:
    """Return a note for each mask, and one for many of a file of which the same is to be told."""
    alike: dict[tuple[str, str], list[SavedMask]] = {}
    for mask, text in of_each.items():
        file = mask.called.removesuffix(f":{mask.array}")
        alike.setdefault((file, text), []).append(mask)
    notes = []
    for (file, text), masks in alike.items():
        if len(masks) > _MOST_TOLD:
            notes.append(f"note: {file}: {len(masks)} masks, such as {masks[0].array!r}: {text}")
        else:
            notes += [f"note: {mask.called}: {text}" for mask in masks]
    return notes


def _word_of_keeping(name: str) -> str:
    """Return the word of a name that says that what is True is kept."""
    found = _OF_KEEPING.search(name)
    return found[0] if found else ""


def _says_eviction(mask: SavedMask) -> bool:
    """Return whether a mask is called after eviction; or its file, where nothing says keep."""
    names = [mask.array]
    if not (mask.kept_as or _word_of_keeping(mask.array)):
        names.append(mask.path.stem)
    if any(name.rpartition("/")[2] == _TIME_OF_EVICTION for name in names):
        return False
    return any(_OF_EVICTION.search(name) for name in names)
