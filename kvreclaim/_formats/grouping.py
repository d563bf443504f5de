"""Which arrays of a file make which masks, and which of these is asked for."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from typing import Final

from kvreclaim._formats import arrays as _arrays
from kvreclaim._formats.arrays import Array

_MOST_LISTED: Final = 20
_FEW: Final = 1 << 16  # values


class OpenMasks:
    """The masks of a file that is open, not read yet; a path of the functions of files.

    It comes from `open_masks`, and is of use inside of its with block.
    """

    def __init__(self, where: str, masks: Mapping[str, Mapping[str, Array]]) -> None:
        self.where = where  # what messages call the file
        self.masks = masks  # the parts of each, by name
        self.closed = False

    def __repr__(self) -> str:
        """Return the file, and how many masks it has."""
        return f"<{'closed' if self.closed else 'open'} {self.where!r}: {len(self.masks)} masks>"


def masks_in(arrays: Mapping[str, Array]) -> dict[str, dict[str, Array]]:
    """Return the parts of each mask by its name; a plain array is a mask too.

    A part that stands beside plain arrays is one of each, unless they have their own.
    """
    plain = [name for name in arrays if _arrays.last_of(name) not in _arrays.PARTS]
    around, used = _arrays.beside(plain, arrays)
    own = {f"{name}/" for name in plain if name} | {
        name.removesuffix(form)
        for name in arrays
        for form in ("keep", "bits")
        if _arrays.last_of(name) == form
    }
    masks: dict[str, dict[str, Array]] = {}
    for full_name, array in arrays.items():
        part = _arrays.last_of(full_name)
        prefix = full_name.removesuffix(part)
        if prefix in own and part in _arrays.PARTS:
            name = prefix[:-1] if len(prefix) > 1 else prefix
        elif full_name in used:
            continue
        else:
            name, part = full_name, "keep"
        if part in masks.setdefault(name, {}):
            raise ValueError(
                f"{array.where} must be the only mask of its name; got another one that is called "
                f"{name!r}; write it anew."
            )
        masks[name][part] = array
    for name, parts in around.items():
        shared = {part: array._replace(shared=True) for part, array in parts.items()}
        masks[name] = shared | masks[name]
    return masks


def meant(names: Container[str], array: str) -> str:
    """Return the name of the mask that is asked for: ``keep`` is also the one without a name."""
    if array != "keep" or "keep" in names or "/keep" in names:
        return array
    return "" if "" in names or "/" in names else array


def word_of_kept(masks: OpenMasks, array: str) -> str:
    """Return the word of a file for a mask, where that says that what is True is kept."""
    part = masks.masks.get(array, masks.masks.get(f"/{array}", {}))
    return next((part[form].kept_as for form in ("keep", "bits") if form in part), "")


def asked_as(names: Container[str], name: str) -> str:
    """Return what asks for a mask of a file."""
    return "keep" if not name and not meant(names, "keep") else name


def find(masks: OpenMasks, array: str | None) -> Mapping[str, Array]:
    """Return the parts of the mask of a name; without a name, of the only one."""
    parts = masks.masks
    if array is not None and not isinstance(array, str):
        raise TypeError(
            f"array must be the name of a mask; got a {type(array).__name__}; write such as 'keep'."
        )
    if array is None and len(parts) == 1:
        return next(iter(parts.values()))
    if array is not None:
        asked = meant(parts, array)
        for name in (asked, f"/{asked}"):
            if name in parts:
                return parts[name]
    names = list(parts)
    if not names:
        raise ValueError(
            f"{masks.where} must hold a mask; got none; save with kvreclaim.save_masks."
        )
    listed = ", ".join(map(repr, names[:_MOST_LISTED]))
    if len(names) > _MOST_LISTED:
        listed += f" and {len(names) - _MOST_LISTED} more"
    hint = next((name for name, part in parts.items() if begins_as_mask(part)), names[0])
    raise ValueError(
        f"array must name one of the {len(names)} masks in {masks.where} ({listed}); got "
        f"{'none' if array is None else repr(array)}; write such as "
        f"array={asked_as(parts, hint)!r}."
    )


def begins_as_mask(part: Mapping[str, Array]) -> bool:
    """Return whether an array declares that it is a mask, and its first values are 0 and 1."""
    try:
        mask = _arrays.mask_of(part)
        if mask.packed is not None or mask.values.dtype.kind == "b":
            return True
        some = mask.values.take(min(math.prod(mask.shape), _FEW))
        return not len(some) or (int(some.min()) >= 0 and int(some.max()) <= 1)
    except Exception:  # noqa: BLE001  # whatever is wrong with it, it is not one to offer
        return False
