"""Masks in folders of zarr: arrays, groups and their attributes."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvreclaim._formats.arrays import (
    BESIDE,
    PARTS,
    Array,
    Values,
    beside,
    check_size,
    known,
    last_of,
    made,
    word_of_kept,
)
from kvreclaim._formats.libraries import imported, refusals


def arrays_in_zarr(where: str, most: int) -> dict[str, Array]:
    """Return the arrays of a zarr folder; what is said of each stands in its attributes.

    Attributes of a group, and arrays that are called so, hold for each array in it.
    """
    zarr = imported(where, "zarr", "zarr")
    with refusals(where, "a complete zarr folder"):
        root = zarr.open(where, mode="r")
        found = {"": root}
        if not isinstance(root, zarr.Array):
            found |= dict(sorted(root.members(max_depth=None)))  # it lists them in any order
        said = {name: {**node.attrs} for name, node in found.items()}
    called = {name: f"{where}, array {name!r}" if name else where for name in found}
    nodes = {
        name: Array(called[name], functools.partial(_zarr_values, called[name], node, most))
        for name, node in found.items()
        if isinstance(node, zarr.Array)
    }
    if not nodes:
        raise ValueError(f"{where} must hold an array; got a group without; write it anew.")
    attributes = {name: _zarr_attributes(called[name], of_node) for name, of_node in said.items()}
    of_groups = {
        f"{name}/{part}" if name else part: array
        for name, parts in attributes.items()
        if name not in nodes
        for part, array in parts.items()
    }
    masks = [name for name in nodes if last_of(name) not in BESIDE]
    around, used = beside(masks, of_groups | nodes)
    arrays: dict[str, Array] = {}
    for name, array in nodes.items():
        if name not in used:
            own = attributes[name]
            parts = {
                part: each._replace(shared=True) for part, each in around.get(name, {}).items()
            }
            if "num_tokens" in own:
                parts |= own | {"bits": array._replace(kept_as="bits")}
            else:
                parts |= own | {"keep": array._replace(kept_as=word_of_kept(name))}
            arrays |= {f"{name}/{part}" if name else part: each for part, each in parts.items()}
    return arrays


def _zarr_attributes(where: str, attributes: Mapping[str, Any]) -> dict[str, Array]:
    """Return what the attributes of an array, or of a group, say of masks."""
    return {
        part: known(
            f"{where}, {part!r}",
            json.dumps(attributes[part]) if part == "meta" else attributes[part],
        )
        for part in PARTS
        if part not in ("keep", "bits") and attributes.get(part) is not None
    }


def _zarr_values(where: str, node: Any, most: int) -> Values:  # noqa: ANN401  # an array of zarr
    with refusals(where, "an array that is read without pickles"):
        dtype, shape, pieces = np.dtype(node.dtype), tuple(node.shape), (node.chunks, node.shards)
        codecs = [
            getattr(node.metadata, name, None) for name in ("codecs", "filters", "compressor")
        ]
        if "pickle" in repr(codecs).lower():
            raise ValueError  # pragma: no cover  # today's zarr refuses them itself
    for sizes in (shape, *(piece for piece in pieces if piece is not None)):
        check_size(where, sizes, most)

    def read() -> NDArray[Any]:
        with refusals(where, "a complete array"):
            return np.asarray(node[...])

    return made(where, shape, dtype, read).open()
