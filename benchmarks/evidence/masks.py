"""The files of masks: a context each, of every policy at every ratio that is counted in full.

An .npz that `numpy.load` opens: ``POLICY|RATIO`` is `numpy.packbits` of a mask along its tokens,
``shape`` its (layers, kv heads, tokens), ``layers`` which layers of the model these are. The same
masks always make the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.evidence.tables import Context
from kvreclaim._formats import writing

Mask: TypeAlias = NDArray[np.bool_]

Keeps: TypeAlias = Mapping[tuple[str, float], Sequence[Mask]]
"""The masks of a model's contexts, always in one order, by (policy, ratio)."""


def save(path: Path, keeps: Mapping[tuple[str, float], Mask], layers: Sequence[int]) -> None:
    """Write the masks of one context, by (policy, ratio), whole or not at all.

    Raises
    ------
    ValueError
        For no masks, masks of different shapes, or another number of layers than they have.
    """
    shapes = {keep.shape for keep in keeps.values()}
    if len(shapes) != 1:
        raise ValueError(f"keeps must be masks of one shape; got {sorted(shapes) or 'none'}.")
    (shape,) = shapes
    if len(shape) != 3 or shape[0] != len(layers):  # noqa: PLR2004  # layer, head, token
        raise ValueError(
            f"keeps must be (layers, kv heads, tokens) of {len(layers)} layers; got shape {shape}."
        )
    arrays: dict[str, NDArray[Any]] = {
        f"{policy}|{ratio:g}": np.packbits(keep, axis=-1) for (policy, ratio), keep in keeps.items()
    }
    arrays["shape"] = np.array(shape, np.int64)
    arrays["layers"] = np.array(layers, np.int64)
    ordered = dict(sorted(arrays.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    writing.write_whole(str(path), lambda file: writing.write_npz(file, ordered, {}))


def load(path: Path) -> dict[tuple[str, float], Mask]:
    """Return the masks of one context, by (policy, ratio).

    Raises
    ------
    ValueError
        For a file that `save` has not written: with its name, and the array.
    """
    arrays = _arrays(path)
    *rows, tokens = arrays.pop("shape").tolist()
    del arrays["layers"]
    packed = (*rows, -(-tokens // 8))
    keeps = {}
    for name, bits in arrays.items():
        policy, bar, ratio = name.partition("|")
        if not bar or bits.dtype != np.uint8 or bits.shape != packed:
            raise ValueError(
                f"{path}, {name!r}: must be POLICY|RATIO, of uint8 and shape {packed}; got "
                f"{bits.dtype} and {bits.shape}."
            )
        keep = np.unpackbits(bits, axis=-1).view(np.bool_)
        if keep[..., tokens:].any():
            raise ValueError(f"{path}, {name!r}: must be zeros behind the {tokens} tokens.")
        keeps[policy, float(ratio)] = keep[..., :tokens]
    return keeps


def load_models(folder: Path) -> dict[str, Keeps]:
    """Return all masks of a folder by model: those of its contexts, in the order of their files.

    Raises
    ------
    ValueError
        Where two contexts of a model have masks of different policies or ratios.
    """
    models: dict[str, dict[tuple[str, float], list[Mask]]] = {}
    for path in sorted(folder.glob("*.npz")):
        keeps = load(path)
        model = Context.of_stem(path.stem).model
        of_model = models.setdefault(model, {key: [] for key in keeps})
        if of_model.keys() != keeps.keys():
            other = sorted(of_model.keys() ^ keeps.keys())
            raise ValueError(
                f"{path}: must have the masks of other contexts; they differ in {other}."
            )
        for key, keep in keeps.items():
            of_model[key].append(keep)
    return dict(models)


def load_layers(path: Path) -> tuple[int, ...]:
    """Return which layers of the model the masks of one context are of."""
    return tuple(_arrays(path)["layers"].tolist())


def _arrays(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files}
    for name in ("shape", "layers"):
        if name not in arrays or arrays[name].dtype != np.int64:
            raise ValueError(f"{path}: must hold {name!r}, of int64; got {', '.join(arrays)}.")
    return arrays
