"""The key-value cache of a Hugging Face model: what is refused, and its rows as numbers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvreclaim import _checks
from kvreclaim._formats.libraries import imported

Tensor: TypeAlias = Any
"""A torch.Tensor; torch may be absent."""

Module: TypeAlias = Any
"""A torch.nn.Module."""

Gathered: TypeAlias = tuple[int, Tensor]
"""How many rows there were, and the positions taken, of shape (sequence, kv head, rows)."""

_AXES: Final = 4  # sequence, kv head, token, element
_TOKENS: Final = (2, -2)
_OF_GATHER: Final = ("input", "dim", "index")
_AT_ONCE: Final = 1 << 16  # elements, which fit in a cache of the processor
_AT_ONCE_ELSEWHERE: Final = 1 << 24
_REFUSED: Final = {
    "QuantizedLayer": "quantised rows have no bits to be known by",
    "StaticLayer": "its rows are written in place, and unwritten ones look like written ones",
}


def decoder_of(model: object) -> tuple[Module, list[Module]]:
    """Return the module that holds the layers of a model, and its layers."""
    hint = "write the model that the press is given, such as pipe.model"
    decoder: Any = model
    for _ in range(5):  # a model in an adapter in a wrapper
        if hasattr(decoder, "layers"):
            break
        decoder = getattr(decoder, "language_model", None) or getattr(decoder, "model", None)
    if not hasattr(decoder, "layers") or not hasattr(decoder, "register_forward_pre_hook"):
        raise TypeError(
            "model must be a Hugging Face model whose decoder has layers; got "
            f"{_checks.shown(model)}; {hint}."
        )
    layers = list(decoder.layers)
    for number, layer in enumerate(layers):
        if not hasattr(getattr(layer, "self_attn", None), "layer_idx"):
            raise TypeError(
                "model must have attention with a key-value cache in every layer; got a "
                f"{type(layer).__name__} without a self_attn that knows its layer_idx in layer "
                f"{number}; {hint}."
            )
    return decoder, layers


def rows_of(cache: Any, layer: int) -> tuple[Tensor, Tensor]:  # noqa: ANN401  # of transformers
    """Return keys and values that a cache holds of a layer, of shape (b, h, t, elements)."""
    hint = "write past_key_values=DynamicCache(), which holds every row as it was written"
    if getattr(cache, "offloading", False) or not hasattr(cache, "layers"):
        what = "an offloaded cache" if hasattr(cache, "layers") else _checks.shown(cache)
        raise TypeError(f"the cache must have its layers at hand; got {what}; {hint}.")
    if layer >= len(cache.layers):
        raise ValueError(
            f"the cache must hold every layer of the model; got {len(cache.layers)} layers and "
            f"none of number {layer}; measure models whose layers share a cache by layers of their "
            "own, and leave the cache as it is until the recorder's block ends."
        )
    held = cache.layers[layer]
    if getattr(held, "is_sliding", False):
        raise ValueError(
            "every layer must hold the same tokens; got a sliding window "
            f"({type(held).__name__}) in layer {layer}; {hint}, and does so in every layer, then "
            "keep[sliding, ..., : 1 - window] = False in the mask, for the layers that slide."
        )
    for kind in type(held).__mro__:
        if kind.__name__ in _REFUSED:
            raise TypeError(
                f"the cache must hold rows as they were written; got {type(held).__name__} in "
                f"layer {layer}: {_REFUSED[kind.__name__]}; {hint}."
            )
    keys, values = getattr(held, "keys", None), getattr(held, "values", None)
    shapes = [tuple(getattr(rows, "shape", ())) for rows in (keys, values)]
    if any(len(shape) != _AXES for shape in shapes) or shapes[0][:-1] != shapes[1][:-1]:
        raise TypeError(
            "the cache must hold keys and values of shape (sequence, kv head, token, element); got "
            f"{type(held).__name__} with {shapes[0]} and {shapes[1]} in layer {layer}; {hint}."
        )
    return keys, values


def real_tokens(mask: object, num_sequences: int, num_tokens: int) -> NDArray[np.bool_]:
    """Return True where a token of a pass is real, from the attention mask that the model got."""
    if mask is None or (getattr(mask, "ndim", 0) != 2 and num_sequences == 1):  # noqa: PLR2004
        return np.ones((num_sequences, num_tokens), np.bool_)
    shape = tuple(getattr(mask, "shape", ()))
    if len(shape) != 2 or shape[0] != num_sequences or shape[1] < num_tokens:  # noqa: PLR2004
        raise ValueError(
            "attention_mask must have the shape (sequence, token), so that padding is known; got "
            f"{shape or _checks.shown(mask)} for {num_sequences} sequences and {num_tokens} tokens;"
            " write what the tokenizer returned."
        )
    real: NDArray[np.bool_] = (_checks.as_array("attention_mask", mask, "0 and 1") != 0)[
        :, -num_tokens:
    ]
    return real


def _bits(rows: Tensor) -> Tensor:
    torch = imported("rows", "torch", "torch")
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return rows.detach().contiguous().view(kinds[rows.element_size()])


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors hold the same bits."""
    torch = imported("rows", "torch", "torch")
    return bool(torch.equal(_bits(one), _bits(other).to(one.device)))


def num_writes(rows: Tensor) -> int:
    """Return how often the memory of a tensor was written over; 0 in inference mode, uncounted."""
    return 0 if rows.is_inference() else int(rows._version)  # noqa: SLF001  # torch has no other name for it


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors begin at the same place of the same memory."""
    return bool(one.data_ptr() == other.data_ptr() and one.stride() == other.stride())


def fingerprints(rows: Tensor) -> NDArray[np.int64]:
    """Return 64 bits for each row, the same on any device: equal where all bits of rows are.

    Others are the same by a chance of about 2**-64 for each pair. Only these travel to the host.
    """
    torch = imported("rows", "torch", "torch")
    flat = _bits(rows).flatten(0, -2)
    draw = np.random.default_rng(0x5EED).integers(-(2**62), 2**62, (2, flat.shape[-1])) * 2 + 1
    salt, factor = torch.from_numpy(draw).to(flat.device)
    out = torch.empty(len(flat), dtype=torch.int64, device=flat.device)
    step = _AT_ONCE if flat.device.type == "cpu" else _AT_ONCE_ELSEWHERE
    step = max(1, step // max(flat.shape[-1], 1))
    for first in range(0, len(flat), step):
        mixed = flat[first : first + step].to(torch.int64, copy=True)
        mixed.bitwise_xor_(salt).mul_(factor)
        mixed.bitwise_xor_(mixed >> 32).mul_(factor)
        torch.sum(mixed, -1, out=out[first : first + step])
    return np.asarray(out.cpu().numpy().reshape(tuple(rows.shape[:-1])))


def gathers() -> Any:  # noqa: ANN401  # of a class of torch
    """Return a context manager of torch whose `seen` lists what is `Gathered` along tokens."""
    torch = imported("model", "torch", "torch")
    mode: Any = imported("model", "torch.overrides", "torch").TorchFunctionMode
    own = (torch.gather, torch.Tensor.gather)

    class Gathers(mode):  # type: ignore[misc]  # torch may be absent
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Gathered] = []

        def __torch_function__(
            self,
            func: Callable[..., object],
            _: object,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> object:
            said = kwargs or {}
            if func in own:
                unsaid = (said.get(name) for name in _OF_GATHER[len(args) :])
                rows, axis, positions = itertools.chain(args[:3], unsaid)
                if rows.ndim == _AXES and axis in _TOKENS:
                    self.seen.append((rows.shape[2], positions[..., 0]))
            return func(*args, **said)

    return Gathers()


def taken_of(
    gathered: list[Gathered], shape: tuple[int, ...], num_left: int
) -> NDArray[np.int64] | None:
    """Return the positions of the last gather that made so many rows of a cache of a shape."""
    for num_rows, positions in reversed(gathered):
        if num_rows == shape[2] and tuple(positions.shape) == (*shape[:2], num_left):
            return _checks.as_integers("positions", positions)
    return None
